"""Attack commands: kill them, fill the disk, damage their files. Then check that the result is the same or refused.

    python benchmarks/chaos.py                          # all attacks, about ten minutes on two CPU cores
    python benchmarks/chaos.py --tries 5 --only kill    # attacks whose name contains "kill"

A try fails if a command prints a traceback, takes more than a minute, or completes with another result without a
warning. Files of input data have no checksum, except in a run that has recorded their fingerprint. A new run that reads
a damaged one may give another result. Such tries have their own column.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import safetensors
import typer
from chaos_files import digest, mutate, write_data
from chaos_process import KillAtOperation, LimitFileSize, Outcome, run_command

from condenset.cli.console import print_line, print_table

QUICK = ["--network", "convnet(width=8, depth=1)", "--device", "cpu", "--nets", "2", "--epochs", "3"]
RUN_OPTIONS = ["--set", "dm.iterations=8", *QUICK, "--no-whole"]
OUTCOMES = ("refused", "same", "changed data", "failed")
COLUMNS = ("attack", "tries", "refused in one line", "same result", "read changed data", "failures")


@dataclass
class Command:
    """A command to attack. Its output goes to the directory `out` of a workspace."""

    name: str
    arguments: list[str]
    is_import: bool = False

    def start(self, workspace: Path) -> list[str]:
        """Return the arguments that start the command, or continue it if it has begun."""
        if self.is_import:
            return [*self.arguments, "--data-dir", str(workspace / "out")]
        if any((workspace / "out").glob("*.toml")):
            return ["resume", str(workspace / "out")]
        return [*self.arguments, "--out", str(workspace / "out")]


class Chaos:
    """A workspace with data, commands and their undisturbed results."""

    def __init__(self, root: Path, tries: int, seed: int) -> None:
        self.root, self.tries, self.random = root, tries, random.Random(seed)
        write_data(root)
        toy, sets = str(root / "toy.npz"), str(root / "base" / "sets")
        run = [toy, "--ipc", "1,2", "--method", "random,dm", *RUN_OPTIONS]
        methods = ["--method", "dc,dd,herding", "--set", "dc.iterations=2", "--set", "dd.iterations=2"]
        methods += ["--set", "herding.epochs=2"]
        paper = ["paper", "sizes", "--scale", "tiny", "--dataset", toy, "--ipc", "1,2", "--nets", "1"]
        self.commands = [
            Command("run", ["run", *run]),
            Command("condense", ["condense", toy, "--ipc", "1", *methods, *QUICK[:4]]),
            Command("evaluate", ["evaluate", sets, *QUICK, "--dataset", toy]),
            Command("compare", ["compare", toy, "--ipc", "1", "--method", "random,dm", *RUN_OPTIONS]),
            Command("paper", [*paper, "--epochs", "2", "--set", "dm.iterations=4", "--device", "cpu"]),
            Command("data import", ["data", "import", toy, "own"], is_import=True),
        ]
        base = run_command(["run", *run, "--out", str(root / "base")], root)
        assert base.code == 0, base
        self.expected: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.num_operations: dict[str, int] = {}

    def prepare(self, command: Command) -> None:
        """Run a command undisturbed, and keep its result."""
        if command.name not in self.expected:
            workspace, began = self.new_workspace(), time.monotonic()
            count = KillAtOperation(0, workspace / "out")  # only counts
            outcome = run_command(command.start(workspace), workspace, setup=count)
            assert outcome.code == 0, outcome
            self.num_operations[command.name] = (workspace / "operations").stat().st_size
            self.seconds[command.name] = time.monotonic() - began
            self.expected[command.name] = digest(workspace / "out")

    def new_workspace(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.root))

    def judge(self, outcome: Outcome, workspace: Path, expected: Any) -> str:
        """Return the kind of outcome of a try."""
        if outcome.is_refusal:
            return "refused"
        try:
            same = outcome.code == 0 and digest(workspace / "out") == expected
        except (ValueError, safetensors.SafetensorError):  # a damaged file is still there
            same = False
        if same or (outcome.code == 0 and outcome.has_warning):
            return "same" if same else "refused"
        return "failed"

    def finish(self, command: Command, workspace: Path) -> str:
        """Continue a command that was disturbed, and judge its result."""
        outcome = run_command(command.start(workspace), workspace)
        done = command.is_import and "exists already" in outcome.err
        outcome = Outcome(0, "", "") if done else outcome
        kind = self.judge(outcome, workspace, self.expected[command.name])
        leftovers = [path for path in (workspace / "out").rglob("*") if path.name.endswith(".tmp")]
        if kind != "same" or leftovers:  # a refusal is not enough here: nothing is damaged
            report(command.name, outcome, workspace, leftovers)
            return "failed"
        return kind

    def kill_at_operations(self, command: Command) -> Iterator[str]:
        """Kill a command before a file operation, each time in a new directory: before every one if tries allow it."""
        self.prepare(command)
        numbers = range(1, self.num_operations[command.name] + 1)
        for number in sorted(self.random.sample(numbers, min(self.tries, len(numbers)))):
            workspace = self.new_workspace()
            run_command(command.start(workspace), workspace, setup=KillAtOperation(number, workspace / "out"))
            yield self.finish(command, workspace)
            shutil.rmtree(workspace, ignore_errors=True)

    def kill_at_random(self, command: Command) -> Iterator[str]:
        """Kill a command up to three times at random moments."""
        self.prepare(command)
        for _ in range(self.tries):
            workspace = self.new_workspace()
            for _ in range(self.random.randint(1, 3)):
                delay = self.random.uniform(0, self.seconds[command.name])
                if run_command(command.start(workspace), workspace, kill_after=delay).code == 0:
                    break
            yield self.finish(command, workspace)
            shutil.rmtree(workspace, ignore_errors=True)

    def fill_disk(self, command: Command) -> Iterator[str]:
        """Run a command on a disk that becomes full, then with enough space."""
        self.prepare(command)
        for _ in range(self.tries):
            workspace, num_bytes = self.new_workspace(), self.random.choice([4, 8, 12, 16, 24, 32, 64]) * 1024
            (workspace / "out").mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(workspace / "out")]
            is_mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
            try:
                yield self._fill_and_finish(command, workspace, None if is_mounted else LimitFileSize(num_bytes))
            finally:
                if is_mounted:
                    subprocess.run(["umount", str(workspace / "out")], check=True)
            shutil.rmtree(workspace, ignore_errors=True)

    def _fill_and_finish(self, command: Command, workspace: Path, limit: LimitFileSize | None) -> str:
        """Run a command on a small disk, or with a limit of the size of files, then without it."""
        outcome = run_command(command.start(workspace), workspace, setup=limit or (lambda: None))
        if limit is None:
            subprocess.run(["mount", "-o", "remount,size=64m", str(workspace / "out")], check=True)
        if outcome.code == 0 or outcome.is_refusal:
            return self.finish(command, workspace)
        report(f"full disk, {command.name}", outcome, workspace, [])
        return "failed"

    def damage(self, pattern: str) -> Iterator[str]:
        """Damage a file of a run directory, and resume the run. It was killed before if the file is a checkpoint."""
        command = self.commands[2] if pattern == "evaluation.toml" else self.commands[0]
        self.prepare(command)
        original = self.new_workspace()
        for number in range(20, 200, 3):  # until a file of this name exists
            shutil.rmtree(original / "out", ignore_errors=True)
            setup = KillAtOperation(number, original / "out") if pattern == "checkpoint*" else (lambda: None)
            run_command(command.start(original), original, setup=setup)
            if len(list((original / "out").glob("checkpoint*"))) == 2 or pattern != "checkpoint*":
                break
        for _ in range(self.tries):
            workspace = self.new_workspace()
            shutil.copytree(original / "out", workspace / "out")
            file = self.random.choice(sorted((workspace / "out").rglob(pattern)))
            mutate(file, self.random)
            outcome = run_command(["resume", str(workspace / "out")], workspace)
            kind = self.judge(outcome, workspace, self.expected[command.name])
            yield kind
            if kind == "failed":
                report(f"damaged {file.name}", outcome, workspace, [])
            else:
                shutil.rmtree(workspace)

    def damage_data(self, source: str, dataset: str) -> Iterator[str]:
        """Damage a file of a dataset, and condense it in a new run."""
        for _ in range(self.tries):
            workspace = self.new_workspace()
            shutil.copytree(self.root / "data", workspace / "data")
            files = [workspace / "data" / source] if (workspace / "data" / source).is_file() else []
            files = files or sorted(path for path in (workspace / "data" / source).rglob("*") if path.is_file())
            mutate(self.random.choice(files), self.random)
            name = str(files[0]) if dataset == "path" else dataset
            options = ["--ipc", "1", "--method", "random", "--out", "out", "--data-dir", str(workspace / "data")]
            outcome = run_command(["condense", name, *options], workspace)
            if outcome.is_refusal or outcome.code == 0:
                yield "refused" if outcome.is_refusal else "changed data"
                shutil.rmtree(workspace, ignore_errors=True)
            else:
                report(f"damaged data {source}", outcome, workspace, [])
                yield "failed"


def report(attack: str, outcome: Outcome, workspace: Path, leftovers: list[Path]) -> None:
    """Print a failed try. Its workspace is kept."""
    last = outcome.err.strip().splitlines()[-1:] or [""]
    print_line(f"FAILED {attack}: exit code {outcome.code}, {last[0]} {leftovers or ''} in {workspace}", stderr=True)


def list_attacks(chaos: Chaos) -> dict[str, Callable[[], Iterator[str]]]:
    """Return all attacks by name."""
    attacks: dict[str, Callable[[], Iterator[str]]] = {}
    for command in chaos.commands:
        attacks[f"kill at file operations: {command.name}"] = lambda command=command: chaos.kill_at_operations(command)
        attacks[f"kill at random moments: {command.name}"] = lambda command=command: chaos.kill_at_random(command)
        attacks[f"fill the disk: {command.name}"] = lambda command=command: chaos.fill_disk(command)
    patterns = ("checkpoint*", "*.safetensors", "recipe.toml", "evaluation.toml", "results.json", "events.jsonl")
    for pattern in patterns:
        attacks[f"damage {pattern}"] = lambda pattern=pattern: chaos.damage(pattern)
    datasets = {"toy.npz": "path", "MNIST": "mnist", "cifar-10-batches-py": "cifar10", "imported": "own"}
    for source, dataset in datasets.items():
        attacks[f"damage data {source}"] = lambda pair=(source, dataset): chaos.damage_data(*pair)
    return attacks


def main(
    tries: Annotated[int, typer.Option(help="Tries per attack.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of moments and damage.")] = 0,
    only: Annotated[str, typer.Option(help="Only attacks whose name contains this text.")] = "",
) -> None:
    """Attack commands and print a table of tries and failures."""
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    chaos = Chaos(root, tries, seed)
    imported = run_command(["data", "import", "toy.npz", "own", "--data-dir", str(root / "data")], root)
    assert imported.code == 0, imported
    rows, failures = [], 0
    for name, attack in list_attacks(chaos).items():
        if only in name:
            counts = Counter(attack())
            failures += counts["failed"]
            rows.append((name, str(counts.total()), *(str(counts[outcome]) for outcome in OUTCOMES)))
            print_line(" ".join(rows[-1]), stderr=True)
    print_table(COLUMNS, rows)
    if not failures:
        shutil.rmtree(root)
    raise typer.Exit(1 if failures else 0)


if __name__ == "__main__":
    typer.run(main)
