"""The command line under test: in this process, or in one of its own that can be watched, signalled and killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from condenset import cli, files, runs

TINY_NETWORK = ("--network", "convnet(width=8, depth=1)", "--device", "cpu")
TINY = (*TINY_NETWORK, "--iterations", "5", "--nets", "2", "--epochs", "2", "--no-whole")
FIELDS = [
    "dataset",
    "method",
    "ipc",
    "seed",
    "network",
    "accuracy_mean",
    "accuracy_std",
    "accuracies",
    "epochs",
    "augment",
    "condense_seconds",
    "peak_memory_bytes",
    "evaluate_seconds",
    "iterations",
    "condense_lr",
    "device",
    "version",
]

PRELOADED = [
    "condenset.workflow",
    "condenset.data",
    "condenset.console",
    "pytest",
    "torch._dynamo",  # torch imports it late, for networks that have shapes only
]


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of a refusal; there may have been progress before it, never a traceback."""
        lines = self.err.splitlines()
        assert self.code == 2, self
        assert [line.startswith("condenset: ") for line in lines].count(True) == 1, self
        assert lines[-1].startswith("condenset: "), self
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[-1].removeprefix("condenset: ")


Condenset = Callable[..., Result]


def run_here(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    code = caught.value.code
    assert isinstance(code, int)
    return Result(code, *capsys.readouterr())


@dataclass
class Command:
    """A command in a process of its own, forked from a server that has imported everything already."""

    arguments: tuple[object, ...]
    folder: Path  # of its outputs
    prepare: Callable[..., None] | None = None  # called in the process before the command
    stderr: str = ""
    process: BaseProcess = field(init=False)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.folder.mkdir(exist_ok=True)
        self.paths = [str(self.folder / "out"), self.stderr or str(self.folder / "err")]
        arguments = [str(argument) for argument in self.arguments]
        self.process = context.Process(target=_command, args=(arguments, self.paths, self.prepare), daemon=True)
        self.process.start()

    def wait(self) -> Result:
        self.process.join(60)
        assert self.process.exitcode is not None, "still running"
        return Result(
            self.process.exitcode, *(Path(path).read_text() for path in self.paths[: 1 if self.stderr else 2])
        )

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Until it happened, as long as the command runs."""
        while not happened() and self.process.is_alive():
            time.sleep(0.002)

    def send(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def _command(arguments: list[str], paths: list[str], prepare: Callable[..., None] | None) -> None:
    sys.stdout, sys.stderr = (open(path, "w") for path in paths)  # noqa: SIM115
    torch.set_num_threads(1)
    runs.CHECKPOINT_SECONDS = runs.SETTLE_SECONDS = 0.0
    if prepare:
        prepare()
    cli.main(arguments)


@dataclass(frozen=True)
class DieAtRename:
    """Kill the process when it is about to rename its nth temporary file to the final name."""

    number: int

    def __call__(self) -> None:
        seen = 0

        def replace(*paths: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            os.rename(*paths)

        runs.CHECKPOINT_SECONDS = 1e9
        files.os.replace = replace  # type: ignore[attr-defined]


def write_npz(path: Path, counts: tuple[int, ...] = (12, 12, 12), size: int = 8, seed: int = 0) -> Path:
    """Grey images whose classes differ in brightness, with as many for the test."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    halves = [(random.integers(0, 90, (len(labels), size, size)) + 60 * labels[:, None, None]) for _ in range(2)]
    images, tests = (np.minimum(half, 255).astype(np.uint8) for half in halves)
    names = np.array([f"class {number}" for number in range(len(counts))])
    np.savez(path, x_train=images, y_train=labels, x_test=tests, y_test=labels, class_names=names)
    return path


def records_of(folder: Path) -> list[dict[str, object]]:
    """What results.json says."""
    return json.loads((folder / "results.json").read_text())


def change_the_test(path: Path) -> None:
    """Other test images beside the same training images: what is scored on them is another number."""
    with np.load(path) as found:
        arrays = dict(found)
    np.savez(path, **arrays | {"x_test": 255 - arrays["x_test"]})


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder: when it was written, and what it holds."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def names(folder: Path) -> list[str]:
    return list(tree(folder))


def same_set(first: Path, second: Path) -> bool:
    """Bitwise the same tensors."""
    sets = [safetensors.torch.load_file(path) for path in (first, second)]
    assert sets[0].keys() == sets[1].keys() >= {"images", "labels"}
    return all(torch.equal(sets[0][name], sets[1][name]) for name in sets[0])
