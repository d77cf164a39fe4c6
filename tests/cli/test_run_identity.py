"""Results of one run are never shown as those of another."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset import UserError
from condenset.data.condensed_set import CondensedSet
from condenset.experiments.start import start_experiment
from condenset.pipeline.evaluation.plan import EvaluationRequest
from condenset.pipeline.evaluation.run import resume_evaluation, start_evaluation
from condenset.pipeline.request import RunRequest
from condenset.pipeline.run import resume_run, start_run
from condenset.runs.identity import IDENTITY
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner, read_files
from helpers.plans import SCORE_REQUEST

RANDOM = ("--method", "random", "--ipc", 1, "--device", "cpu")


def edit(path: Path, old: str, new: str) -> str:
    """Replace text in a file, and return the old content."""
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))
    return content


def test_an_edited_recipe_does_not_print_old_results(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset(
        "run",
        toy,
        "--method",
        "dm",
        "--ipc",
        1,
        *TINY_NETWORK,
        "--iterations",
        5,
        *TINY_EVALUATION,
        "--no-whole",
        "--out",
        "a",
    )
    recipe = tmp_path / "a" / "recipe.toml"
    for old, new, name in (
        ("seed = 0", "seed = 1", "seed"),
        ("lr = 1.0", "lr = 2.0", "lr"),
        ("epochs = 1", "epochs = 3", "epochs"),
    ):
        content = edit(recipe, old, new)
        before = read_files(tmp_path)
        error_line = condenset("resume", "a").error_line
        assert f"a/recipe.toml has changed since the run began (it differs in {name})" in error_line
        assert "restore it or start a new run" in error_line
        assert read_files(tmp_path) == before
        recipe.write_text(content)
    assert condenset("resume", "a").code == 0


def test_results_of_a_run_with_other_settings_are_refused(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    for directory, epochs in (("a", 1), ("b", 2)):
        condenset("run", toy, *RANDOM, "--nets", 1, "--epochs", epochs, "--no-whole", "--out", directory)
    shutil.copy(tmp_path / "a" / "results.json", tmp_path / "b")
    assert "b/results.json has results of a run with other settings" in condenset("resume", "b").error_line
    edit(tmp_path / "a" / "recipe.toml", "epochs = 1", "epochs = 2")
    (tmp_path / "a" / IDENTITY).unlink()
    assert "a/results.json has results of a run with other settings" in condenset("resume", "a").error_line


def test_an_edited_evaluation_does_not_print_old_results(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, *RANDOM, "--out", "a")
    network = ("--network", "convnet(width=8, depth=1)", "--device", "cpu")
    assert condenset("evaluate", "a", *TINY_EVALUATION, *network, "--out", "b").code == 0
    edit(tmp_path / "b" / "evaluation.toml", "epochs = 1", "epochs = 2")
    assert "b/evaluation.toml has changed since the run began" in condenset("resume", "b").error_line


def test_an_edited_experiment_does_not_print_old_results(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    options = ("--scale", "tiny", *RANDOM, "--whole-epochs", 1)
    assert condenset("paper", "sota", "--dataset", toy, *options, *TINY_EVALUATION, "--out", "a").code == 0
    edit(tmp_path / "a" / "experiment.toml", "seed = 0", "seed = 1")
    error_line = condenset("resume", "a").error_line
    assert "a/experiment.toml has changed since the run began (it differs in seed)" in error_line


@contextlib.contextmanager
def reuse_directory(*_: Any) -> Iterator[None]:
    """Delete the directory of a run that has just begun, and start another run there."""
    shutil.rmtree("a")
    start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), device="cpu", seed=5)
    yield


def test_a_run_whose_directory_is_reused_stops_and_writes_nothing(toy: Path, tmp_path: Path) -> None:
    contents: list[object] = []

    @contextlib.contextmanager
    def session(*_: Any) -> Iterator[None]:
        with reuse_directory():
            contents.append(read_files(tmp_path / "a"))
            yield

    start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("sets"), device="cpu")
    evaluation = EvaluationRequest(paths=(Path("sets"),))
    experiment = {"scale": "tiny", "dataset": "toy.npz", "methods": ("random",), "ipcs": (1,), "num_networks": 1}
    for start in (
        lambda: start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), session=session, device="cpu"),
        lambda: start_evaluation(evaluation, out=Path("a"), session=session, device="cpu"),
        lambda: start_experiment("sota", out=Path("a"), session=session, device="cpu", **experiment),
    ):
        with pytest.raises(UserError, match="a was deleted, or belongs to another run now"):
            start()
        assert read_files(tmp_path / "a") == contents[-1]
        shutil.rmtree("a")


def test_a_resumed_run_computes_with_the_threads_that_it_began_with(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    used: list[int] = []

    @contextlib.contextmanager
    def session(*_: Any) -> Iterator[None]:
        used.append(torch.get_num_threads())
        yield

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), session=session, device="cpu")
        start_evaluation(EvaluationRequest(paths=(Path("a"),)), out=Path("b"), session=session, device="cpu")
        torch.set_num_threads(1)
        resume_run(Path("a"), session=session)
        resume_evaluation(Path("b"), session=session)
        start_run(RunRequest(), config=Path("a/recipe.toml"), out=Path("c"), session=session)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert used == [2] * 5
    assert "threads = 2" in Path("a/recipe.toml").read_text()
    assert CondensedSet.load("c/sets/random-1.safetensors").provenance["threads"] == 2
