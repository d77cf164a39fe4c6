"""Test how set files are found, scored and described."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import condenset as cs
from condenset import CondensedSet, Splits, UserError, train_val_split
from condenset.augment import DEFAULT_STRATEGY
from condenset.pipeline.config import write_plan
from condenset.pipeline.results import Record
from condenset.pipeline.sets import evaluate_file, find_set, find_sets, set_metadata, set_summary
from condenset.runs.context import RunContext
from helpers.command_line import RECORD_FIELDS
from helpers.plans import CPU, NETWORK, SPLITS, execute_in, make_tiny_plan
from helpers.reference_dm import tiny_data

PROTOCOL: dict[str, Any] = {"num_networks": 1, "epochs": 1, "network": NETWORK}


def evaluate(
    path: Path, splits: Splits = SPLITS, protocol: dict[str, Any] = PROTOCOL, seed: int | None = None, **source: Any
) -> Record:
    return evaluate_file(path, RunContext(compute=CPU), lambda **arguments: splits, protocol, source, seed)


def save_random_set(path: Path, data: cs.ImageData = SPLITS.train, seed: int = 0) -> CondensedSet:
    condensed = cs.condense(data, "random", ipc=1, seed=seed, device="cpu")
    condensed.save(path)
    return condensed


def test_the_sets_of_a_directory_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "cab":
        (tmp_path / f"{name}.safetensors").touch()
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *arguments: reversed(sorted(glob(*arguments))))
    assert [path.stem for path in find_sets(tmp_path)] == ["a", "b", "c"]
    with pytest.raises(UserError, match=r"has 3 set files: name one of them, such as .*a.safetensors"):
        find_set(tmp_path)


def test_a_directory_without_sets_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is neither a run nor a directory of set files \(\.safetensors\)"):
        find_sets(tmp_path)
    write_plan(tmp_path / "recipe.toml", make_tiny_plan())
    with pytest.raises(UserError, match="is an unfinished run without a set: finish it with 'condenset resume"):
        find_sets(tmp_path)
    (tmp_path / "experiment.toml").touch()
    with pytest.raises(UserError, match=r"is an experiment: its sets are in the directories of .*parts"):
        find_sets(tmp_path)


def test_a_set_is_scored_with_its_own_seed_by_default(tmp_path: Path) -> None:
    records = execute_in(tmp_path, make_tiny_plan(), seed=3)
    protocol = {"num_networks": 2, "epochs": 1, "network": NETWORK}
    repeated = evaluate(tmp_path, protocol=protocol, dataset="tiny")
    assert (repeated["seed"], repeated["accuracies"]) == (3, records[-1]["accuracies"])
    assert evaluate(tmp_path, protocol=protocol, seed=4, dataset="tiny")["seed"] == 4


def test_a_set_in_the_directory_of_another_run_is_scored_on_its_own_dataset(tmp_path: Path) -> None:
    write_plan(tmp_path / "recipe.toml", make_tiny_plan())  # of a run on other data
    train, test = (dataclasses.replace(tiny_data([6, 6], seed=seed), name="other") for seed in (5, 6))
    save_random_set(tmp_path / "a.safetensors", train, seed=7)
    loaded: list[str] = []

    def load(dataset: str) -> Splits:
        loaded.append(dataset)
        return Splits(train=train, test=test)

    record = evaluate_file(tmp_path / "a.safetensors", RunContext(compute=CPU), load, PROTOCOL, {})
    assert (loaded, record["seed"]) == (["other"], 7)


def test_the_run_of_a_set_says_where_its_data_are(tmp_path: Path) -> None:
    plan = dataclasses.replace(make_tiny_plan(), dataset="/data/tiny", data_dir="/data", size=8)
    write_plan(tmp_path / "recipe.toml", plan)
    save_random_set(tmp_path / "sets" / "a.safetensors")

    def load(**arguments: object) -> Splits:
        assert arguments == {"dataset": "/data/tiny", "data_dir": "/data", "size": 8}
        return SPLITS

    record = evaluate_file(tmp_path / "sets" / "a.safetensors", RunContext(compute=CPU), load, PROTOCOL, {})
    assert record["dataset"] == "/data/tiny"


def test_changed_training_images_are_a_warning(tmp_path: Path) -> None:
    file, part_file = tmp_path / "a.safetensors", tmp_path / "part.safetensors"
    save_random_set(file)
    changed = Splits(train=tiny_data([6, 6], seed=2), test=SPLITS.test)
    with pytest.warns(UserWarning, match="was made from other training images than tiny has now") as warned:
        record = evaluate(file, changed)
    assert len(warned) == 1
    explicit = evaluate(file, changed, dataset="tiny")  # no warning: the user names the dataset
    assert record["accuracies"] == explicit["accuracies"] == evaluate(file)["accuracies"]
    train, _ = train_val_split(SPLITS.train, 0.2)
    save_random_set(part_file, train)
    evaluate(part_file)  # no warning: the set was made from a part of the training images


def test_a_set_without_provenance_can_be_described_and_scored(tmp_path: Path) -> None:
    condensed = save_random_set(tmp_path / "a.safetensors")
    bare = dataclasses.replace(condensed, provenance={})
    assert set_summary(bare)["images"] == set_summary(condensed)["images"] == "2 of 3x8x8, 2 classes"
    bare.save(tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match="give --dataset"):
        evaluate(tmp_path / "bare.safetensors")
    record = evaluate(tmp_path / "bare.safetensors", dataset="tiny")
    assert list(record) == RECORD_FIELDS
    assert record["method"] is record["ipc"] is record["condense_seconds"] is None


def test_an_invalid_dataset_in_the_provenance_is_an_error(tmp_path: Path) -> None:
    condensed = save_random_set(tmp_path / "a.safetensors")
    invalid = dataclasses.replace(condensed, provenance={"dataset": 5, "seconds": "many"})
    invalid.save(tmp_path / "invalid.safetensors")
    with pytest.raises(UserError, match=r"invalid.* or give --dataset, but got 5"):
        evaluate(tmp_path / "invalid.safetensors")


def test_a_missing_dataset_is_an_error_that_names_the_set(tmp_path: Path) -> None:
    save_random_set(tmp_path / "a.safetensors")

    def load(**arguments: object) -> Splits:
        raise UserError("no such dataset")

    with pytest.raises(UserError, match=r"a.safetensors names the dataset tiny: no such dataset; or give --dataset"):
        evaluate_file(tmp_path / "a.safetensors", RunContext(compute=CPU), load, PROTOCOL, {})
    with pytest.raises(UserError, match=r"^no such dataset$"):
        evaluate_file(tmp_path / "a.safetensors", RunContext(compute=CPU), load, PROTOCOL, {"dataset": "x"})


def test_a_summary_has_the_recipe_and_the_source(tmp_path: Path) -> None:
    execute_in(tmp_path, make_tiny_plan())
    condensed, file = find_set(tmp_path)
    assert file == tmp_path / "condensed.safetensors"
    summary = set_summary(condensed)
    assert summary["labels"] == "hard"
    assert "iterations=2" in summary["recipe"]
    assert "source" not in summary
    with_source = dataclasses.replace(condensed, provenance={**condensed.provenance, "source": "a/b.npz"})
    assert set_summary(with_source)["source"] == "a/b.npz"
    metadata = set_metadata(condensed)
    assert (metadata["images"], metadata["shape"], metadata["recipe"]["iterations"]) == (2, [3, 8, 8], 2)


def test_a_record_has_the_augmentation_of_the_protocol(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"iterations": 1, "steps": 1, "epochs": 1, "network": NETWORK}
    path = tmp_path / "a.safetensors"
    cs.condense(SPLITS.train, "dd", ipc=1, device="cpu", **fields).save(path)

    def record_for(**protocol: Any) -> Record:
        return evaluate(path, protocol={"num_networks": 1, "network": NETWORK, **protocol}, dataset="tiny")

    assert record_for(epochs=1)["augment"] == DEFAULT_STRATEGY
    assert record_for(epochs=1, augment="crop")["augment"] == "crop"
    by_learned_steps = record_for(learned_steps=True)
    assert (by_learned_steps["augment"], by_learned_steps["learned_steps"]) == ("none", True)
