from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from planned import NETWORK, SPLITS, go, plan_of
from shell import FIELDS, names, tree

import condenset as cs
from condenset import CondensedSet, Splits, UserError, runs, split_off, workflow
from condenset.augment import STRATEGY
from condenset.engine import Place
from condenset.methods import METHODS, matching
from condenset.recipes import RandomRecipe
from condenset.runs import Run
from condenset.workflow import cost_of, execute, find_set, summary
from plain import tiny_data


def test_records_have_the_fields_of_the_results_file(tmp_path: Path) -> None:
    records = go(plan_of(), tmp_path)
    assert [list(record) for record in records] == [FIELDS, FIELDS]
    assert json.loads((tmp_path / "results.json").read_text()) == records
    assert json.dumps(go(plan_of(), None)[1]["accuracies"]) == json.dumps(records[1]["accuracies"])
    random, dm = records
    assert (random["iterations"], dm["iterations"]) == (0, 2)
    assert dm["condense_seconds"] > 0
    assert dm["peak_memory_bytes"] > 0


@pytest.mark.parametrize("seconds", [None, "1", True, float("nan"), 10**400])
def test_seconds_that_are_no_number_are_not_known(seconds: object) -> None:
    assert cost_of({"seconds": seconds}) == {"condense_seconds": None}


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = go(plan_of(), tmp_path)
    before = tree(tmp_path)

    def never(*arguments: object) -> None:
        raise AssertionError("done twice")

    monkeypatch.setattr(workflow, "METHODS", {"random": never, "dm": never})
    monkeypatch.setattr(workflow, "score", never)
    assert go(plan_of(), tmp_path) == first
    assert tree(tmp_path) == before


def sets_of(folder: Path) -> list[CondensedSet]:
    return [CondensedSet.load(folder / name) for name in ("sets/dm-1.safetensors", "condensed.safetensors")]


def test_sizes_are_learned_at_once_and_a_stop_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(methods=("dm",), ipcs=(1, 2))
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = go(plan, tmp_path / "whole")
    assert [record["together"] for record in whole] == [[1, 2], [1, 2]]
    alone = [go(plan_of(methods=("dm",), ipcs=(ipc,)), None)[0] for ipc in (1, 2)]
    assert [record["accuracies"] for record in whole] == [record["accuracies"] for record in alone]
    assert all("together" not in record for record in alone)

    with monkeypatch.context() as patch:  # a kill after the first of the two files
        patch.setattr(runs.Run, "drop_checkpoint", lambda self: None)
        save, saved = CondensedSet.save, []

        def once(self: CondensedSet, *args: object, **kwargs: object) -> None:
            if saved:
                raise KeyboardInterrupt
            save(self, *args, **kwargs)  # type: ignore[arg-type]
            saved.append(self)

        patch.setattr(CondensedSet, "save", once)
        with pytest.raises(KeyboardInterrupt):
            go(plan, tmp_path / "cut")
    assert not (tmp_path / "cut/sets/dm-1.safetensors").exists()
    go(plan, tmp_path / "cut")
    for mine, expected in zip(*map(sets_of, (tmp_path / "cut", tmp_path / "whole")), strict=True):
        assert torch.equal(mine.images, expected.images)


def test_a_set_of_another_seed_is_somebody_elses(tmp_path: Path) -> None:
    go(plan_of(methods=("random",), recipe={}), tmp_path)
    (tmp_path / "results.json").unlink()
    with pytest.raises(UserError, match="belongs to another recipe"):
        execute(plan_of(methods=("random",), recipe={}), SPLITS, Run(place=Place.best("cpu"), folder=tmp_path, seed=1))


def test_a_set_is_scored_under_its_own_seed_unless_told(tmp_path: Path) -> None:
    made = execute(plan_of(), SPLITS, Run(place=Place.best("cpu"), folder=tmp_path, seed=3))
    fields = {"nets": 2, "epochs": 1, "network": NETWORK}
    about = {"dataset": "tiny"}
    again, other = (
        workflow.evaluate_file(tmp_path, Run(place=Place.best("cpu")), lambda **_: SPLITS, fields, about, seed)
        for seed in (None, 4)
    )
    assert (again["seed"], again["accuracies"]) == (3, made[-1]["accuracies"])
    assert other["seed"] == 4


def test_a_set_of_somebody_else_is_not_overwritten_by_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(methods=("dm",), ipcs=(1, 2))
    go(plan_of(methods=("dm",), ipcs=(2,), recipe={"iterations": 1, "network": NETWORK}), tmp_path)
    (tmp_path / "results.json").unlink()
    monkeypatch.setattr(workflow, "dm_sizes", lambda *_: pytest.fail("refused only after hours"))
    with pytest.raises(UserError, match=r"condensed\.safetensors belongs to another recipe"):
        go(plan, tmp_path)


def test_a_size_between_two_that_are_there_leaves_them_as_they_are(tmp_path: Path) -> None:
    first = go(plan_of(methods=("dm",), ipcs=(1, 3)), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    again = go(plan_of(methods=("dm",), ipcs=(1, 2, 3)), tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    assert [again[0], again[2]] == first
    assert (again[1]["ipc"], again[1]["together"]) == (2, [2, 3])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("results.json", "results.json is not a list of results; delete it"),
        ("condensed.safetensors", "condensed.safetensors; delete it to make it again"),
    ],
)
def test_a_folder_in_place_of_a_file_is_one_line(tmp_path: Path, name: str, told: str) -> None:
    plan = plan_of(methods=("dm",), ipcs=(1,))
    go(plan, tmp_path)
    for each in ("results.json", name):
        (tmp_path / each).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=told):
        go(plan, tmp_path)


def test_a_checkpoint_of_other_sizes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(CondensedSet, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        go(plan_of(methods=("dm",), ipcs=(1, 2)), tmp_path)
    with pytest.raises(UserError, match=r"another recipe \(it differs in other sizes\); delete it"):
        go(plan_of(methods=("dm",), ipcs=(1, 3)), tmp_path)


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
def test_sizes_begun_at_once_go_on_at_once_whatever_fits_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(workflow, "fitting", lambda *_: before)
    plan = plan_of(methods=("dm",), ipcs=(1, 2, 3))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(CondensedSet, "save", killed)
        go(plan, tmp_path)
    monkeypatch.setattr(workflow, "fitting", lambda *_: after)
    told = [record.get("together") for record in go(plan, tmp_path)]
    assert told == ([[1, 2, 3]] * 3 if before == 3 else [None, [2, 3], [2, 3]])


def test_results_of_earlier_jobs_stay_while_another_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(ipcs=(1, 2))
    records = go(plan, tmp_path)
    left = [records[0], records[3]]
    (tmp_path / "results.json").write_text(json.dumps(left))
    score = workflow.score

    def look(*arguments: object) -> object:
        kept = json.loads((tmp_path / "results.json").read_text())
        assert all(record in kept for record in left)
        return score(*arguments)

    monkeypatch.setattr(workflow, "score", look)
    again = go(plan, tmp_path)
    assert [record["accuracies"] for record in again] == [record["accuracies"] for record in records]


def test_a_checkpoint_goes_when_its_set_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    seen: list[list[str]] = []
    score, finished = workflow.score, matching.finished
    monkeypatch.setattr(matching, "finished", lambda *args: (seen.append(names(tmp_path)), finished(*args))[1])
    monkeypatch.setattr(workflow, "score", lambda *args: (seen.append(names(tmp_path)), score(*args))[1])
    go(plan_of(methods=("dm",)), tmp_path)
    assert ["checkpoint" in found for found in seen] == [True, False]


def test_no_checkpoint_is_left_when_all_is_done(tmp_path: Path) -> None:
    go(plan_of(), tmp_path)
    (tmp_path / "checkpoint").write_text("left by a kill after the last set was saved")
    go(plan_of(), tmp_path)
    assert "checkpoint" not in names(tmp_path)


def test_the_picture_shows_what_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[str]] = []

    def save_grid(sets: list[CondensedSet], path: Path) -> None:
        drawn.append([small.provenance["method"] for small in sets])

    monkeypatch.setattr(workflow, "save_grid", save_grid)
    go(plan_of(ipcs=(1, 2)), tmp_path / "both")
    go(plan_of(methods=("random",), recipe={}), tmp_path / "one")
    go(plan_of(methods=("random", "dm", "forgetting")), tmp_path / "mixed")
    assert drawn == [["dm", "dm"], ["random"], ["dm"]]


def test_methods_that_need_a_trained_network_share_it_over_a_resume(tmp_path: Path) -> None:
    plan = plan_of(methods=("herding", "kcenter", "forgetting"), ipcs=(1, 2), recipe={"network": NETWORK})
    records = go(plan, tmp_path)
    assert [record["method"] for record in records] == ["herding", "kcenter", "forgetting"] * 2
    (file,) = (tmp_path / "networks").iterdir()
    (tmp_path / "condensed.safetensors").unlink()  # as if the run had stopped before the last set
    (tmp_path / "results.json").unlink()
    before = file.stat().st_mtime_ns
    assert [record["accuracies"] for record in go(plan, tmp_path)] == [record["accuracies"] for record in records]
    assert file.stat().st_mtime_ns == before
    assert (tmp_path / "events.jsonl").read_text().count('"event": "trained"') == 1


def test_a_set_whose_training_images_are_no_longer_those_of_its_dataset_is_warned_of(tmp_path: Path) -> None:
    go(plan_of(methods=("random",), recipe={}), tmp_path)
    moved = Splits(train=tiny_data([6, 6], seed=2), test=SPLITS.test)
    fields = {"nets": 1, "epochs": 1, "network": NETWORK}

    def evaluated(splits: Splits, **source: object) -> dict[str, object]:
        return workflow.evaluate_file(tmp_path, Run(place=Place.best("cpu")), lambda **_: splits, fields, dict(source))

    with pytest.warns(UserWarning, match=r"training images of tiny are not those that .* was made from") as said:
        warned = evaluated(moved)
    assert len(said) == 1
    given = evaluated(moved, dataset="tiny")  # by the user's own choice; warnings are errors here
    assert warned["accuracies"] == given["accuracies"] == evaluated(SPLITS)["accuracies"]
    rest, _ = split_off(SPLITS.train, 0.2)
    METHODS["random"](rest, RandomRecipe(ipc=1), Run(place=Place.best("cpu"))).save(tmp_path / "part.safetensors")
    tmp_path = tmp_path / "part.safetensors"
    evaluated(SPLITS)  # made from a part of them, which is told nobody as a change


def test_sets_without_provenance_are_told_of_too(tmp_path: Path) -> None:
    go(plan_of(), tmp_path)
    small, file = find_set(tmp_path)
    assert file == tmp_path / "condensed.safetensors"
    told = summary(small)
    assert told["images"] == "2 of 3x8x8, 2 classes"
    assert told["labels"] == "hard"
    assert "iterations=2" in told["recipe"]
    assert "source" not in told
    sourced = dataclasses.replace(small, provenance={**small.provenance, "source": "a/b.npz"})
    assert summary(sourced)["source"] == "a/b.npz"
    bare = CondensedSet(
        images=small.images, labels=small.labels, class_names=small.class_names, mean=small.mean, std=small.std
    )
    assert summary(bare)["images"] == told["images"]
    bare.save(tmp_path / "bare.safetensors")
    run = Run(place=Place.best("cpu"))
    fields = {"nets": 1, "epochs": 1, "network": NETWORK}
    (tmp_path / "recipe.toml").unlink(missing_ok=True)
    odd = dataclasses.replace(bare, provenance={"dataset": 5, "seconds": "many"})
    odd.save(tmp_path / "odd.safetensors")
    with pytest.raises(UserError, match=r"odd.* give --dataset, but got 5"):
        workflow.evaluate_file(tmp_path / "odd.safetensors", run, lambda **_: SPLITS, fields, {})
    with pytest.raises(UserError, match="give --dataset"):
        workflow.evaluate_file(tmp_path / "bare.safetensors", run, lambda **_: SPLITS, fields, {})
    record = workflow.evaluate_file(tmp_path / "bare.safetensors", run, lambda **_: SPLITS, fields, {"dataset": "tiny"})
    assert list(record) == FIELDS
    assert record["method"] is record["ipc"] is record["condense_seconds"] is None


def test_a_record_says_how_images_were_changed_in_training(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"iterations": 1, "steps": 1, "epochs": 1, "network": NETWORK}
    cs.condense(SPLITS.train, "dd", ipc=1, device="cpu", **fields).save(tmp_path / "a.safetensors")

    def augment(**asked: Any) -> str:
        asked |= {"nets": 1, "network": NETWORK}
        file, run = tmp_path / "a.safetensors", Run(place=Place.best("cpu"))
        record = workflow.evaluate_file(file, run, lambda **_: SPLITS, asked, {"dataset": "tiny"})
        return str(record["augment"])

    assert augment(epochs=1) == STRATEGY
    assert augment(epochs=1, augment="crop") == "crop"
    assert augment(own_steps=True) == "none"
