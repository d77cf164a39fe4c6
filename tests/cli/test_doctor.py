"""The command `condenset doctor`, also in broken installations."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from helpers.command_line import CommandResult, CommandRunner

ITEMS = ["python", "condenset", "packages", "torch", "device", "compiler", "triton", "ray", "tensorboard", "datasets"]
PROBE = {"version": "9.9", "devices": ["GPU X, 80 GiB"], "threads": 4}


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of Python, which imports torch at once."""
    return replace_python(tmp_path, monkeypatch, f"echo '{json.dumps(PROBE)}'")


def replace_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> Path:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def read_checks(result: CommandResult) -> dict[str, dict[str, Any]]:
    return {check["item"]: check for check in json.loads(result.out)}


@pytest.mark.usefixtures("python")
def test_complete_installation(condenset: CommandRunner) -> None:
    result = condenset("doctor", "--json")
    checks = read_checks(result)
    assert result.code == 0 and list(checks) == [*ITEMS, "data directory", "free disk", "machine"]
    assert checks["torch"]["value"] == "9.9" and checks["device"]["value"] == "GPU X, 80 GiB"
    assert {checks[item]["state"] for item in ("python", "packages", "torch", "free disk", "machine")} == {"ok"}
    lines = condenset("doctor").out.splitlines()
    assert lines[0].split() == ["item", "state", "value", "remedy"] and len(lines) == 1 + len(checks)


@pytest.mark.usefixtures("python")
def test_missing_parts_have_a_command(condenset: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"rich": "1.0"}
    find_version = metadata.version

    def version(name: str) -> str:
        if name in ("ray", "triton", "scipy"):
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or find_version(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "nothing")
    result = condenset("doctor", "--json")
    checks = read_checks(result)
    assert result.code == 1  # a required package is missing, another one too old
    assert checks["packages"]["remedy"] == "pip install 'scipy>=1.11' 'rich>=13'"
    assert [checks[item]["state"] for item in ("packages", "ray", "triton", "compiler")] == [
        "missing",
        "optional",
        "optional",
        "optional",
    ]
    assert checks["ray"]["remedy"] == "pip install 'condenset[ray]'"
    assert "gcc" in checks["compiler"]["remedy"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo 'ImportError: libcudart.so is missing' >&2; exit 1", "ImportError: libcudart.so is missing"),
        ("kill -SEGV $$", "importing it ended with -11"),
        ("echo nonsense", "JSONDecodeError"),
    ],
)
def test_broken_torch(
    condenset: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, reason: str
) -> None:
    replace_python(tmp_path, monkeypatch, command)
    result = condenset("doctor", "--json")
    checks = read_checks(result)
    assert result.code == 1 and checks["torch"]["state"] == "missing" and reason in checks["torch"]["value"]
    assert checks["free disk"]["state"] == "ok"  # the other checks run


@pytest.mark.usefixtures("python")
def test_data_directory(condenset: CommandRunner, tmp_path: Path) -> None:
    assert "created when needed" in read_checks(condenset("doctor", "--json"))["data directory"]["value"]
    assert not (tmp_path / "data").exists()
    result = condenset("doctor", "--data-dir", "/proc/data", "--json")
    assert result.code == 1 and "CONDENSET_DATA" in read_checks(result)["data directory"]["remedy"]


def test_doctor_does_not_import_torch_itself() -> None:
    script = "import sys, condenset.cli.doctor; print({'torch', 'numpy'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"
