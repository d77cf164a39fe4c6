"""Output that cannot be written, in encodings without ±, or with control characters."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from condenset import CondensedSet, cli
from condenset.cli import main
from condenset.cli.console import print_line, print_table
from condenset.cli.streams import OutputStream, guard_output
from condenset.io.progress import ProgressBar
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner, write_npz

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\udc80"
CONTROLS = set("\x1b\x07\x9b\x7f\r")
NEEDS_DEVICE_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def assert_harmless(text: str) -> None:
    """Check that text contains the hostile name in its escaped form only."""
    assert not CONTROLS & set(text), ascii(text)
    assert "\\x1b]0;owned" in text


def write_hostile_set(path: Path, directory: Path) -> Path:
    """Change names in the provenance of the set of a directory, and write it to a file."""
    condensed = CondensedSet.load(directory / "sets" / "random-2.safetensors")
    fields = {name: HOSTILE for name in ("method", "dataset", "version", "hardware")}
    recipe = {**condensed.provenance["recipe"], "network": HOSTILE, "augment": HOSTILE}
    provenance = {**condensed.provenance, **fields, "recipe": recipe}
    replace(condensed, provenance=provenance).save(path)
    return path


@pytest.fixture
def hostile_set(condenset: CommandRunner, toy: Path, tmp_path: Path) -> Path:
    """A set with control characters in its provenance."""
    assert condenset("condense", toy, "--ipc", 2, "--method", "random", "--out", "a").code == 0
    return write_hostile_set(tmp_path / "hostile.safetensors", Path("a"))


def test_show_and_evaluate_escape_provenance(condenset: CommandRunner, hostile_set: Path, toy: Path) -> None:
    assert_harmless(condenset("show", hostile_set).out)
    options = (*TINY_NETWORK, *TINY_EVALUATION, "--dataset", toy)
    result = condenset("evaluate", hostile_set, *options)
    assert result.code == 0
    assert_harmless(result.out)
    directory = next(Path("runs").glob("*"))
    assert_harmless(condenset("resume", directory).out)


def test_names_of_files_and_classes_are_escaped(condenset: CommandRunner, tmp_path: Path) -> None:
    name = "\x1b]0;owned\x07"  # a path must be text in UTF-8
    (tmp_path / name).mkdir()
    dataset = write_npz(tmp_path / name / "toy.npz")
    out = tmp_path / name / "run"
    result = condenset("condense", dataset, "--ipc", 1, "--method", "random", "--out", out)
    assert result.code == 0
    assert_harmless(result.err)
    assert_harmless(result.out)
    assert_harmless(condenset("data", "import", dataset, "own").out + condenset("data", "list").out)
    assert_harmless(condenset("condense", dataset, "--ipc", 1, "--out", out).err)


def test_the_class_names_of_a_report_are_escaped(condenset: CommandRunner, tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array(["a", "\x1b]0;owned\x07"] * 2)
    np.savez(tmp_path / "named.npz", images=images, labels=labels)
    assert_harmless(condenset("data", "check", tmp_path / "named.npz").out)


def test_a_terminal_table_escapes_cells_and_titles(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    print_table((f"[bold]{HOSTILE}",), [(HOSTILE,)])
    assert_harmless(terminal.getvalue())
    assert "[bold]" in terminal.getvalue()


def test_progress_escapes_names(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressBar()
    progress.start(f"reading {HOSTILE}", total=10)
    progress.last_line = progress.start_time = -1e9
    progress.update(1)
    progress.stop()
    assert_harmless(capsys.readouterr().err)


def test_only_the_console_module_prints() -> None:
    directory = Path(cli.__file__).parent
    for path in directory.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not prints or path.name == "console.py", path


def test_an_ascii_stream_gets_ascii_text(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with guard_output():
        print_table(("accuracy", "networks"), [("63.0 ± 0.4", "20 × ConvNet"), ("-", "…")])
        print_line("é \udc80")
    assert stream.errors == "strict"
    expected = ["accuracy      networks", "63.0 +/- 0.4  20 x ConvNet", "-             ...", "\\xe9 \\udc80"]
    assert content.getvalue().decode().splitlines() == expected


class BrokenStream(io.StringIO):
    """A stream that cannot be written, as on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, BrokenStream()])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_run_completes_when_the_output_cannot_be_written(
    name: str, stream: io.StringIO | None, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as exit_info:
            main(["condense", str(toy), "--ipc", "1", "--method", "random", "--out", "a"])
    assert exit_info.value.code == 1
    assert Path("a/results.json").exists()


def run_process(*arguments: str, redirect: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell with its output redirected."""
    script = f'"$0" -c "from condenset.cli import main; main()" "$@" {redirect}'
    variables = {**os.environ, **environment}
    return subprocess.run(
        ["sh", "-c", script, sys.executable, *arguments], capture_output=True, text=True, env=variables, check=False
    )


@pytest.mark.parametrize(
    ("redirect", "reason"),
    [
        (">&-", "it is closed"),
        pytest.param(">/dev/full", "No space left on device", marks=NEEDS_DEVICE_FULL),
    ],
)
def test_a_real_process_reports_an_output_that_cannot_be_written(redirect: str, reason: str) -> None:
    process = run_process("--version", redirect=redirect)
    assert process.returncode == 1
    assert process.stderr == f"condenset: standard output cannot be written: {reason}\n"


@NEEDS_DEVICE_FULL
def test_a_real_process_survives_a_full_stderr() -> None:
    process = run_process("nothing", redirect="2>/dev/full")
    assert (process.returncode, process.stderr) == (2, "")


def test_a_failed_stream_is_not_written_again() -> None:
    stream = OutputStream(BrokenStream(), "standard output")
    for _ in range(2):
        print("text", file=stream)  # type: ignore[call-overload]
    assert isinstance(stream.error, OSError) and stream.error.errno == 28
