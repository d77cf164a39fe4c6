"""Completion in shells: the script of bash, and the names that are completed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from condenset import DATASETS, METHODS, NETWORKS
from condenset.cli import completion
from condenset.data.reading.options import FITS
from condenset.engine.device import DEVICES, PRECISIONS
from condenset.engine.options import ENGINES
from condenset.experiments import EXPERIMENTS, SCALES
from condenset.training.protocol import PROTOCOLS
from helpers.command_line import CommandRunner

SCRIPT = """
source <(_CONDENSET_COMPLETE=source_bash condenset)
for line in "$@"; do
    COMP_WORDS=($line) COMP_CWORD=$(($(wc -w <<< "$line") - 1)) COMPREPLY=()
    _condenset_completion condenset
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    program = tmp_path / "condenset"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m condenset "$@"\n')
    program.chmod(0o755)
    repeated = "--seed 1 --seed 2"  # an error, but not for the completion
    lines = [
        "condenset re",
        "condenset run --ipc",
        f"condenset run digits {repeated} --method random,dm",
        "condenset run photos",
    ]
    lines += ["condenset show mnist-ld", "condenset export mnist-ld", "condenset evaluate x mnist-ld"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["bash", "--norc", "-c", SCRIPT, "bash", *lines]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    commands, options, methods, paths, *sets = result.stdout.splitlines()
    assert "resume" in commands.split() and options.split() == ["--ipc", "--ipc-share"]
    assert methods.split() == ["random,dm", "random,dmplus"]
    assert sets == ["mnist-ld-1 mnist-ld-10"] * 3
    assert paths == "" and result.stderr == ""  # bash completes the path


def test_names_are_those_of_the_registries() -> None:
    registries = {
        "METHODS": METHODS,
        "NETWORKS": NETWORKS,
        "DATASETS": DATASETS,
        "EXPERIMENTS": EXPERIMENTS,
        "PROTOCOLS": PROTOCOLS,
        "SCHEDULES": METHODS["dm"].schedules,
        "SCALES": SCALES,
        "DEVICES": DEVICES,
        "PRECISIONS": PRECISIONS,
        "ENGINES": ENGINES,
        "FITS": FITS,
    }
    for name, registry in registries.items():
        assert list(getattr(completion, name)) == list(registry), f"correct {name} in cli/completion.py"


def test_imported_datasets_are_completed(condenset: CommandRunner, toy: Path) -> None:
    assert completion.complete_dataset("my") == []
    assert condenset("data", "import", toy, "mine").code == 0
    assert completion.complete_dataset("mi") == ["mine"]


def test_networks_that_are_given_already_are_not_completed() -> None:
    assert completion.complete_networks("mlp,re") == ["mlp,resnet18", "mlp,resnet18_ap"]
    assert completion.complete_networks("mlp,m") == []


def test_show_completion_prints_a_script(condenset: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *args: ("zsh", "/bin/zsh"))
    assert "#compdef condenset" in condenset("--show-completion").out


def test_finished_sets_are_completed() -> None:
    assert completion.complete_set("mnist-dm") == ["mnist-dm-1", "mnist-dm-10", "mnist-dm-50"]
    assert completion.complete_set("runs/") == []
