"""The option --engine: what is refused, and what a run directory stores."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import condenset as cs
from condenset.engine import options
from helpers.command_line import TINY, TINY_NETWORK, CommandRunner, read_records, sets_equal
from helpers.recording_engine import RecordingEngine

pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]
PAPER = ("paper", "sizes", "--scale", "tiny", "--dataset")


@pytest.fixture
def recorded() -> list[RecordingEngine]:
    """The engines of the commands so far."""
    return []


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, recorded: list[RecordingEngine]) -> list[dict[str, Any]]:
    """Run tasks in this process in place of Ray, and record the arguments and the engines."""
    calls: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def open_local(address: str | None, **arguments: Any) -> Iterator[RecordingEngine]:
        calls.append({"address": address, **arguments})
        recorded.append(RecordingEngine())
        yield recorded[-1]

    monkeypatch.setattr(options, "open_ray", open_local)
    return calls


def test_run_on_an_engine_equals_a_local_run(
    toy: Path, condenset: CommandRunner, engines: list[dict[str, Any]], recorded: list[RecordingEngine]
) -> None:
    command = (
        "run",
        toy,
        "--method",
        "dm,random,dc",
        "--ipc",
        "1,2",
        *TINY,
        "--snapshots",
        3,
        "--set",
        "dm.batch_size=4",
    )
    dc = ("--set", "dc.inner_epochs=1", "--set", "dc.outer_steps=1", "--set", "dm.sampler=final")
    pool = ("--set", "dm.pool_size=2", "--set", "dm.pool_epochs=1")
    assert condenset(*command, *dc, *pool, "--out", "local").code == 0
    result = condenset(*command, *dc, *pool, "--out", "tasks", "--engine", "ray", "--address", "auto")
    assert result.code == 0, result
    assert result.err.startswith("Connecting to Ray at auto\n")
    assert engines == [{"address": "auto", "num_gpus": 0.0, "num_cpus": 1}]
    for path in Path("local/sets").iterdir():
        assert sets_equal(path, Path("tasks/sets") / path.name), path
    accuracies = [[record["accuracies"] for record in read_records(Path(name))] for name in ("local", "tasks")]
    assert accuracies[0] == accuracies[1]
    assert recorded[0].scored_jobs() == [{f"{method}-{ipc}" for method in ("dm", "random", "dc") for ipc in (1, 2)}]
    assert not Path("tasks/tasks").exists()
    snapshots = [sorted(path.name for path in Path(run).glob("snapshots/*/*")) for run in ("local", "tasks")]
    assert snapshots[0] == snapshots[1] != []


def test_resume_keeps_the_engine_unless_another_is_given(
    toy: Path, condenset: CommandRunner, engines: list[dict[str, Any]]
) -> None:
    options = ("--engine", "ray", "--address", "auto", "--gpus-per-worker", 0.5)
    assert condenset("condense", toy, *TINY_NETWORK, "--iterations", 2, *options, "--out", "a").code == 0
    stored = tomllib.loads(Path("a/recipe.toml").read_text())
    assert (stored["engine"], stored["address"], stored["gpus_per_worker"]) == ("ray", "auto", 0.5)
    assert condenset("resume", "a").code == 0
    assert condenset("resume", "a", "--address", "ray://head:10001").code == 0
    assert condenset("resume", "a", "--engine", "local").code == 0
    assert [call["address"] for call in engines] == ["auto", "auto", "ray://head:10001"]


def test_evaluation_and_experiment_use_the_engine(
    toy: Path,
    condenset: CommandRunner,
    engines: list[dict[str, Any]],
    recorded: list[RecordingEngine],
    fast_tiny: None,
) -> None:
    assert (
        condenset("condense", toy, "--method", "random", "--ipc", "1,2", "--device", "cpu", "--out", "sets").code == 0
    )
    quick = ("--nets", 1, "--epochs", 1, "--device", "cpu", "--engine", "ray")
    shutil.copy("sets/sets/random-1.safetensors", "copy.safetensors")
    assert condenset("evaluate", "sets", "copy.safetensors", *quick, "--out", "a").code == 0
    assert [len(jobs) for jobs in recorded[0].scored_jobs()] == [3], "all sets at once, also if two are equal"
    assert len(read_records(Path("a"))) == 3 and not Path("a/tasks").exists()
    assert condenset("resume", "a").code == 0
    paper = ("paper", "sizes", "--dataset", toy, "--scale", "tiny", "--methods", "random,dm", "--ipc", "1,2")
    assert condenset(*paper, *quick, "--sets", 2, "--out", "b").code == 0
    assert condenset("resume", "b").code == 0
    assert len(engines) == 4
    assert not Path("b/tasks").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "dc"), "dc cannot be divided among workers, because its images of a class depend on the other"),
        (("--network", "convnet(norm='batch')"), "batch norm mixes the classes: use --engine local, or another method"),
    ],
)
def test_condensing_that_cannot_be_divided_is_refused(
    arguments: tuple[str, ...], message: str, toy: Path, condenset: CommandRunner
) -> None:
    assert message in condenset("condense", toy, *arguments, "--engine", "ray", "--device", "cpu").error_line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "spark"), "engine must be one of local, ray, but got 'spark'"),
        (("--address", "auto"), "--address must come with --engine ray, but got 'auto'"),
        (("--engine", "ray", "--gpus-per-worker", "1.5"), "or a fraction of one GPU, but got 1.5"),
    ],
)
def test_wrong_engine_options_are_one_line(
    arguments: tuple[str, ...], message: str, toy: Path, condenset: CommandRunner
) -> None:
    assert message in condenset("condense", toy, *arguments).error_line
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", [("condense",), ("evaluate", "set.safetensors", "--dataset"), PAPER])
def test_address_without_a_cluster_leaves_no_directory(
    command: tuple[str, ...], toy: Path, condenset: CommandRunner
) -> None:
    cs.condense(cs.load(toy, verbose=False).train, "random", ipc=1, verbose=False).save("set.safetensors")
    options = ("--device", "cpu", "--engine", "ray", "--address", "127.0.0.1:1", "--out", "run")
    assert "cannot connect to Ray at '127.0.0.1:1'" in condenset(*command, toy, *options).error_line
    assert not Path("run").exists()


def test_manifest_for_kubernetes_has_a_valid_command_and_the_tested_version_of_ray(condenset: CommandRunner) -> None:
    manifest = pytest.importorskip("yaml").safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    script = shlex.split(manifest["spec"]["entrypoint"])[-1]
    command = script.partition("else condenset ")[2].removesuffix("; fi").split()
    assert "imagenet" in condenset(*command).error_line, "all options exist; the dataset is missing"
    version = manifest["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray=={version}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert f"rayproject/ray:{version}-" in (ROOT / "docs" / "guides" / "cluster.md").read_text()
