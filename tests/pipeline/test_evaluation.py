"""Test how an evaluation is planned, stored, executed and resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import condenset as cs
from condenset import CondensedSet, UserError, train_val_split
from condenset.augment import DEFAULT_STRATEGY
from condenset.pipeline.evaluation.config import EvaluationConfig, evaluation_to_toml, read_evaluation
from condenset.pipeline.evaluation.plan import EvaluationRequest
from condenset.pipeline.evaluation.run import collect_records, resume_evaluation, start_evaluation
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import Record, RunResult
from condenset.pipeline.run import resume_run, start_run
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.command_line import RECORD_FIELDS, write_npz
from helpers.interruption import StopAtStep
from helpers.plans import NETWORK

PROTOCOL: dict[str, Any] = {"num_networks": 1, "epochs": 1}
SET = Path("a.safetensors")


def evaluate(*paths: Path, **fields: Any) -> RunResult:
    defaults: dict[str, Any] = {"networks": (NETWORK,), "protocol_fields": PROTOCOL}
    return start_evaluation(EvaluationRequest(paths=paths, **{**defaults, **fields}), device="cpu")


def save_set(path: Path, toy: Path, method: str = "random", **fields: Any) -> CondensedSet:
    """Make a set of one image per class, and save it."""
    condensed = cs.condense(cs.load(toy, verbose=False).train, method, ipc=1, device="cpu", verbose=False, **fields)
    condensed.save(path)
    return condensed


@pytest.fixture
def run(toy: Path) -> Path:
    """The directory of a run with one set, by its own protocol."""
    fields = {"num_networks": 2, "epochs": 1, "network": NETWORK, "augment": "crop"}
    request = RunRequest(methods=("random",), ipcs=(1,), protocol_fields=fields, whole=False)
    return start_run(request, dataset=str(toy), device="cpu", seed=3, out=Path("r")).directory


def test_the_protocol_and_the_seed_of_a_run_are_the_default(run: Path) -> None:
    expected = json.loads((run / "results.json").read_text())[0]
    (record,) = evaluate(run, networks=(), protocol_fields={}).records
    for name in ("dataset", "seed", "network", "epochs", "augment", "accuracies", "confusion"):
        assert record[name] == expected[name]
    (other,) = evaluate(run, networks=(), protocol_fields={"num_networks": 1}, seed=4).records
    assert (other["seed"], other["augment"], len(other["accuracies"])) == (4, "crop", 1)


def test_a_set_in_the_directory_of_another_run_is_scored_on_its_own_dataset(run: Path, tmp_path: Path) -> None:
    other = write_npz(tmp_path / "other.npz", seed=5)
    save_set(run / "a.safetensors", other, seed=7)
    (record,) = evaluate(run / "a.safetensors").records
    assert (record["dataset"], record["seed"], record["augment"]) == (str(other), 7, DEFAULT_STRATEGY)


def test_changed_training_images_are_a_warning(toy: Path, run: Path) -> None:
    file = run / "sets" / "random-1.safetensors"
    write_npz(toy, seed=1)
    with pytest.warns(UserWarning, match="was made from other training images than .*toy.npz has now") as warned:
        (record,) = evaluate(file).records
    assert len(warned) == 1
    (explicit,) = evaluate(file, dataset=str(toy)).records  # no warning: the user names the dataset
    assert record["accuracies"] == explicit["accuracies"]


def test_a_part_of_the_training_images_is_no_warning() -> None:
    train, _ = train_val_split(cs.load("digits", verbose=False).train, 0.2)
    cs.condense(train, "random", ipc=1, device="cpu", verbose=False).save(SET)
    assert evaluate(SET).records[0]["dataset"] == "digits"


def test_a_set_without_provenance_needs_a_dataset(toy: Path) -> None:
    bare = dataclasses.replace(save_set(SET, toy), provenance={})
    bare.save(Path("bare.safetensors"))
    with pytest.raises(UserError, match=r"bare.safetensors must name its dataset in its provenance; or give dataset="):
        evaluate(Path("bare.safetensors"))
    (record,) = evaluate(Path("bare.safetensors"), dataset=str(toy)).records
    assert list(record) == ["file", "made_from", *RECORD_FIELDS]
    assert record["method"] is record["ipc"] is record["condense_seconds"] is None
    invalid = dataclasses.replace(bare, provenance={"dataset": 5, "seconds": "many"})
    invalid.save(Path("invalid.safetensors"))
    with pytest.raises(UserError, match=r"invalid.* or give dataset= or test=, but got 5"):
        evaluate(Path("invalid.safetensors"))


def test_a_record_has_the_augmentation_of_the_protocol(toy: Path) -> None:
    save_set(SET, toy, "dd", iterations=1, steps=1, epochs=1, network=NETWORK)

    def record_for(**protocol: Any) -> Record:
        return evaluate(SET, dataset=str(toy), protocol_fields={"num_networks": 1, **protocol}).records[0]

    assert record_for(epochs=1)["augment"] == DEFAULT_STRATEGY
    assert record_for(epochs=1, augment="crop")["augment"] == "crop"
    by_learned_steps = record_for(learned_steps=True)
    assert (by_learned_steps["augment"], by_learned_steps["learned_steps"]) == ("none", True)


def test_an_evaluation_is_stored_completely(toy: Path, tmp_path: Path) -> None:
    save_set(SET, toy)
    result = evaluate(SET, dataset=str(toy), load_fields={"size": 8}, networks=(NETWORK, "mlp(width=4)"))
    config = read_evaluation(result.directory / "evaluation.toml")
    assert [job.protocol.network for job in config.jobs] == [NETWORK, "mlp(width=4)"]
    source = config.jobs[0].source
    assert (source.dataset, source.every_image, source.options.size) == (str(toy), True, 8)
    (tmp_path / "again.toml").write_text(evaluation_to_toml(config))
    assert read_evaluation(tmp_path / "again.toml") == config


@pytest.mark.parametrize("damage", ["jobs = 3", "x = 1", "[[jobs]]\nfile = 3", "device = 3"])
def test_a_damaged_evaluation_is_an_error(toy: Path, damage: str) -> None:
    save_set(SET, toy)
    path = evaluate(SET, dataset=str(toy)).directory / "evaluation.toml"
    content = path.read_text()
    path.write_text(damage if damage.startswith("jobs") else content.replace('device = "cpu"', damage))
    with pytest.raises(UserError, match=r"evaluation.toml"):
        resume_evaluation(path.parent)


def test_one_of_several_datasets_can_move(toy: Path, run: Path, tmp_path: Path) -> None:
    other = write_npz(tmp_path / "other.npz", seed=5)
    request = RunRequest(methods=("random",), ipcs=(1,), evaluate=False)
    condensed = start_run(request, dataset=str(other), device="cpu").directory
    result = evaluate(run, condensed, config=run / "recipe.toml")
    expected = [record["accuracies"] for record in result.records]
    for name in ("results.json", "events.jsonl"):
        (result.directory / name).unlink()
    other.rename(tmp_path / "moved.npz")
    with pytest.raises(UserError, match=r"other.npz; if the dataset has moved"):
        resume_evaluation(result.directory)
    (result.directory / "results.json").unlink()
    with pytest.raises(UserError, match=r"toy.npz has other test images than the evaluation began with"):
        resume_evaluation(result.directory, moved_to=str(toy))
    with pytest.raises(UserError, match="has no test images of their own path, but got 'more'"):
        resume_evaluation(result.directory, test_moved_to="more")
    (result.directory / "results.json").unlink()
    resumed = resume_evaluation(result.directory, moved_to="moved.npz").records
    assert [record["accuracies"] for record in resumed] == expected


def test_the_dataset_of_a_set_is_found_after_a_move(toy: Path, run: Path, tmp_path: Path) -> None:
    (run / "sets" / "random-1.safetensors").unlink()
    toy.rename(tmp_path / "moved.npz")
    resume_run(run, moved_to="moved.npz")
    assert evaluate(run).records[0]["dataset"] == str(tmp_path / "moved.npz")


@contextmanager
def stop_after(step: int, config: EvaluationConfig, run: RunContext, partial: list[Record]) -> Iterator[None]:
    """Stop an evaluation when a job has done this number of steps, and collect the records so far."""
    run.progress = StopAtStep(run, step)
    try:
        yield
    finally:
        partial += collect_records(config, run)


@pytest.mark.parametrize("network", [NETWORK, "convnet(width=8, depth=1, norm='batch')"])
def test_a_stopped_evaluation_resumes_to_the_same_scores(toy: Path, network: str) -> None:
    save_set(SET, toy)
    request = EvaluationRequest(
        paths=(SET,), dataset=str(toy), networks=(network,), protocol_fields={"num_networks": 3, "epochs": 3}
    )
    expected = start_evaluation(request, device="cpu").records
    partial: list[Record] = []
    with pytest.raises(Interrupted):
        start_evaluation(
            request, device="cpu", out=Path("e"), session=lambda config, run: stop_after(6, config, run, partial)
        )
    assert (partial[0]["accuracies"], partial[0]["planned_networks"]) == (expected[0]["accuracies"][:1], 3)
    assert not Path("e/results.json").exists() and Path("e/checkpoint").exists()
    resumed = resume_evaluation(Path("e")).records
    for name in ("accuracies", "per_class_accuracy", "confusion"):
        assert resumed[0][name] == expected[0][name]
    assert not Path("e/checkpoint").exists()
