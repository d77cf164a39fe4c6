"""Run the command line in this process, or in a child process that tests can observe, signal and kill."""

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

from condenset.cli import main
from condenset.io import files
from condenset.runs import checkpoint, loop
from condenset.runs.identity import IDENTITY
from condenset.runs.status_report import STATUS
from condenset.training.trainer import Trainer
from helpers.charts import skip_drawing

TINY_NETWORK = ("--network", "convnet(width=8, depth=1)", "--device", "cpu")
TINY_EVALUATION = ("--nets", "1", "--epochs", "1")
TINY = (*TINY_NETWORK, "--iterations", "5", "--nets", "2", "--epochs", "2", "--no-whole")
RECORD_FIELDS = [
    "dataset",
    "method",
    "ipc",
    "seed",
    "network",
    "accuracy_mean",
    "accuracy_std",
    "accuracies",
    "balanced_accuracy",
    "protocol",
    "epochs",
    "augment",
    "images",
    "storage_bytes",
    "condense_seconds",
    "peak_memory_bytes",
    "evaluate_seconds",
    "iterations",
    "condense_lr",
    "recipe",
    "device",
    "version",
    "settings",
    "class_names",
    "test_images",
    "per_class_accuracy",
    "confusion",
]

PRELOADED_MODULES = [  # all that commands import, most of it late
    "condenset.cli",
    "condenset.experiments.start",
    "condenset.pipeline.evaluation.run",
    "condenset.pipeline.preview",
    "matplotlib.figure",
    "pytest",
    "torch.fx.experimental.symbolic_shapes",  # to build networks on the meta device
    "typer._adapters",
]


@dataclass(frozen=True)
class CommandResult:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The error of a command that must fail with one line on stderr, without a traceback."""
        lines = self.err.splitlines()
        assert self.code == 2, self
        assert [line.startswith("condenset: ") for line in lines].count(True) == 1, self
        assert lines[-1].startswith("condenset: "), self  # progress may come before
        assert "Traceback" not in self.err
        assert self.out == ""
        return lines[-1].removeprefix("condenset: ")


CommandRunner = Callable[..., CommandResult]


def run_in_process(capsys: pytest.CaptureFixture[str], *arguments: object) -> CommandResult:
    """Run a command in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    code = exit_info.value.code
    assert isinstance(code, int)
    return CommandResult(code, *capsys.readouterr())


@dataclass
class CommandProcess:
    """A command in a child process, forked from a server that has already imported torch.

    Attributes:
        arguments: The words after `condenset`.
        output_directory: Where stdout and stderr are written.
        setup: Called in the child process before the command.
        stderr: Path of another file for stderr.
    """

    arguments: tuple[object, ...]
    output_directory: Path
    setup: Callable[[], None] | None = None
    stderr: str = ""
    process: BaseProcess = field(init=False)

    def __post_init__(self) -> None:
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(PRELOADED_MODULES)
        self.output_directory.mkdir(exist_ok=True)
        self.paths = [str(self.output_directory / "out"), self.stderr or str(self.output_directory / "err")]
        arguments = [str(argument) for argument in self.arguments]
        self.process = server.Process(target=_run_child, args=(arguments, self.paths, self.setup), daemon=True)
        self.process.start()

    def wait(self) -> CommandResult:
        """Wait for the end of the command."""
        self.process.join(60)
        assert self.process.exitcode is not None, "still running"
        out, err = Path(self.paths[0]).read_text(), "" if self.stderr else Path(self.paths[1]).read_text()
        return CommandResult(self.process.exitcode, out, err)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds or the command has ended."""
        while not condition() and self.process.is_alive():
            time.sleep(0.002)

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def _run_child(arguments: list[str], paths: list[str], setup: Callable[[], None] | None) -> None:
    sys.stdout, sys.stderr = (open(path, "w") for path in paths)  # noqa: SIM115
    torch.set_num_threads(1)
    checkpoint.CHECKPOINT_SECONDS = loop.SYNC_SECONDS = 0.0
    skip_drawing(setattr)
    if setup:
        setup()
    main(arguments)


@dataclass(frozen=True)
class KillAtRename:
    """Kill the process before it renames its nth temporary file to the final name."""

    number: int

    def __call__(self) -> None:
        num_renames = 0

        def replace(*paths: Any) -> None:
            nonlocal num_renames
            num_renames += Path(paths[1]).name != STATUS  # its time depends on the speed of the machine
            if num_renames == self.number:
                os.kill(os.getpid(), signal.SIGKILL)
            os.rename(*paths)

        checkpoint.CHECKPOINT_SECONDS = 1e9
        files.os.replace = replace  # type: ignore[attr-defined]


@dataclass(frozen=True)
class CountSteps:
    """Append a dot to a file for every training step of a network."""

    path: Path

    def __call__(self) -> None:
        step = Trainer._step

        def counted_step(trainer: Trainer, *args: Any) -> None:
            step(trainer, *args)
            with self.path.open("a") as file:
                file.write(".")

        Trainer._step = counted_step  # type: ignore[method-assign]


def write_npz(path: Path, counts: tuple[int, ...] = (12, 12, 12), size: int = 8, seed: int = 0) -> Path:
    """Write a dataset of grey images whose classes differ in brightness, with as many test images."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    splits = [random.integers(0, 90, (len(labels), size, size)) + 60 * labels[:, None, None] for _ in range(2)]
    train_images, test_images = (np.minimum(images, 255).astype(np.uint8) for images in splits)
    class_names = np.array([f"class {index}" for index in range(len(counts))])
    arrays = {"x_train": train_images, "y_train": labels, "x_test": test_images, "y_test": labels}
    np.savez(path, **arrays, class_names=class_names)
    return path


def replace_test_images(path: Path) -> None:
    """Change the test images of a dataset and keep its training images."""
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"x_test": 255 - arrays["x_test"]})


def read_records(directory: Path) -> list[dict[str, Any]]:
    """Read results.json, without the checksums."""
    records: list[dict[str, Any]] = json.loads((directory / "results.json").read_text())
    return [{name: value for name, value in record.items() if name != "checksum"} for record in records]


def read_files(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and the content of every file below a directory, except the status of a run."""
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != STATUS]
    return {str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def list_files(directory: Path) -> list[str]:
    """Return the relative paths of all files below a directory, sorted, without the identity of a run."""
    return [name for name in read_files(directory) if Path(name).name != IDENTITY]


def sets_equal(first: Path, second: Path) -> bool:
    """Tell whether two set files have bitwise equal tensors."""
    first_tensors, second_tensors = (safetensors.torch.load_file(path) for path in (first, second))
    assert first_tensors.keys() == second_tensors.keys() >= {"images", "labels"}
    return all(torch.equal(first_tensors[name], second_tensors[name]) for name in first_tensors)
