"""A ranking in a folder: what is kept of it and by what name, and going on after a stop."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

import condenset as cs
from condenset import folders, ranking
from condenset.builders import Architectures
from condenset.engine import Place
from condenset.ranking import search
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run, Silent
from condenset.train import Trainer
from ranked import BAD, CPU, FAST, GOOD, linear, trainings

LONGER = Protocol(nets=2, epochs=4, batch=16)


class StopAfter(Silent):
    """Asks the run to stop when so many architectures are done."""

    def __init__(self, run: Run, number: float) -> None:
        self.run, self.number = run, number

    def update(self, done: float, note: str = "") -> None:
        self.run.stop_requested = int(done >= self.number)


def test_after_a_stop_only_the_rest_is_trained(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, validation = parts
    architectures, protocol = [GOOD, "convnet(depth=9)", linear, BAD], Protocol(nets=1, epochs=2, batch=16)
    run = Run(place=CPU, folder=tmp_path, job="rank")
    run.progress = StopAfter(run, 3)
    with pytest.raises(Interrupted):
        search(architectures, train, validation, protocol, run)
    trained: list[str | nn.Module] = []
    first = Trainer.__init__

    def noted(self: Trainer, architecture: str | nn.Module, *args: object, **more: object) -> None:
        trained.append(architecture)
        first(self, architecture, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "__init__", noted)
    again = search(architectures, train, validation, protocol, Run(place=CPU, folder=tmp_path, job="rank"))
    assert trained == [BAD]
    whole = search(architectures, train, validation, protocol, Run(place=CPU))
    assert [(row.name, row.accuracy) for row in again.rows[:3]] == [(row.name, row.accuracy) for row in whole.rows[:3]]
    trained.clear()
    other = Protocol(nets=1, epochs=3, batch=16)
    search(architectures[:1], train, validation, other, Run(place=CPU, folder=tmp_path, job="rank"))
    assert trained == [GOOD]  # under other settings nothing is taken over


def test_a_folder_of_others_is_left_alone(parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path) -> None:
    train, validation = parts
    for name, text in (("notes.txt", "mine"), (folders.RANKING, "mine"), ("events.jsonl", '{"job": "soup"}')):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(cs.UserError, match="is not empty and not a ranking: choose another folder"):
            cs.rank([GOOD], train, validation, folder=folder, **FAST)
        assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, text)]
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("# condenset 0.1.0")
    first = cs.rank([GOOD], train, validation, folder=run, **FAST)  # a run may have its ranking beside it
    assert json.loads((run / folders.RANKING).read_text())["rows"][0]["name"] == first.best.name
    again = cs.rank([GOOD, BAD], train, validation, folder=run, **FAST)
    assert len(again.rows) == 2


def test_a_network_that_was_trained_before_a_stop_is_kept(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = Protocol(nets=3, epochs=2, batch=16)
    run = Run(place=CPU, folder=tmp_path, job="rank")
    run.progress = StopAfter(run, 2)
    with pytest.raises(Interrupted):
        search([GOOD], *parts, protocol, run)
    numbers = trainings(monkeypatch)
    found = [search([GOOD], *parts, protocol, Run(place=CPU, folder=folder, job="rank")) for folder in (tmp_path, None)]
    assert numbers == [2, 0, 1, 2]
    assert found[0].best.accuracy == found[1].best.accuracy
    numbers.clear()
    more = dataclasses.replace(protocol, nets=4)
    search([GOOD], *parts, more, Run(place=CPU, folder=tmp_path, job="rank"))
    assert numbers == [3]  # a network is what it is, however many there are


def raises(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_group_goes_on_where_it_stopped(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([names]))
    numbers = trainings(monkeypatch)
    specs, options = [GOOD, BAD], {**FAST, "folder": tmp_path}
    first = cs.rank(specs, *parts, **options)
    found = cs.rank(specs, *parts, nets=2, **options)
    assert numbers == [0, 0, 1, 1]
    assert {row.name for row in found.rows} == {row.name for row in first.rows}
    monkeypatch.setattr(ranking._Search, "_look", raises(cs.UserError("it diverged")))
    gone = cs.rank(specs, *parts, nets=2, **FAST)
    assert [row.reason for row in gone.rows] == ["it diverged"] * 2


def test_what_fails_once_is_not_tried_again_but_for_one_s_own(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's code may have been mended meanwhile; what a folder says of other settings does not count."""
    looks, numbers = ranking._Search._look, trainings(monkeypatch)
    monkeypatch.setattr(ranking._Search, "_look", raises(cs.UserError("it diverged")))
    options = {**FAST, "folder": tmp_path}
    cs.rank([GOOD, linear], *parts, **options)
    monkeypatch.setattr(ranking._Search, "_look", looks)
    found = cs.rank([GOOD, linear], *parts, **options)
    assert [(row.name, row.reason) for row in found.rows] == [("linear", ""), (GOOD, "it diverged")]
    assert len(numbers) == 3
    assert not cs.rank([GOOD], *parts, **{**options, "lr": 0.02}).rows[0].reason


def stopped(specs: Architectures, sets: tuple[cs.ImageData, cs.ImageData], folder: Path, number: float) -> None:
    run = Run(place=CPU, folder=folder, job="rank")
    run.progress = StopAfter(run, number)
    with pytest.raises(Interrupted):
        search(specs, *sets, LONGER, run)


def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for every step that is trained from now on."""
    taken: list[int] = []
    step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, ahead: (taken.append(len(ahead)), step(self, ahead))[1])
    return taken


@pytest.mark.parametrize("at_once", [1, 2])
def test_networks_half_trained_go_on_to_the_same(
    at_once: int, parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([names[:at_once], names[at_once:]]))
    specs, taken = ["convnet(width=8, depth=1, norm='batch')", GOOD], steps(monkeypatch)
    whole = search(specs, *parts, LONGER, Run(place=CPU))
    all_of_them = len(taken)
    taken.clear()
    for number in (0.6, 1.4, 2.6):  # in a group of two it is of both
        stopped(specs, parts, tmp_path, number)
    assert (tmp_path / folders.HALF_RANKED).exists()
    run = Run(place=CPU, folder=tmp_path, job="rank")
    again = search(specs, *parts, LONGER, run)
    assert len(taken) == all_of_them  # none is done twice
    assert [(row.name, row.accuracy) for row in again.rows] == [(row.name, row.accuracy) for row in whole.rows]
    assert not (tmp_path / folders.HALF_RANKED).exists()
    trained = [event["seconds"] for event in run.events("network")]
    assert sum(row.seconds for row in again.rows) == pytest.approx(sum(trained), abs=0.01)


def test_a_network_of_ones_own_begins_anew(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = steps(monkeypatch)
    stopped([linear], parts, tmp_path, 0.6)
    assert taken and not (tmp_path / folders.HALF_RANKED).exists()
    taken.clear()
    search([linear], *parts, LONGER, Run(place=CPU, folder=tmp_path, job="rank"))
    assert len(taken) == LONGER.nets * LONGER.length(len(parts[0]))[0]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_checkpoint_that_cannot_be_read_is_not_the_architectures_fault(
    at_once: int, parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([names[:at_once], names[at_once:]]))
    stopped([GOOD, BAD], parts, tmp_path, 0.6)
    (tmp_path / folders.HALF_RANKED).write_bytes(b"garbage")
    with pytest.raises(cs.UserError, match="delete it to start this job again"):
        search([GOOD, BAD], *parts, LONGER, Run(place=CPU, folder=tmp_path, job="rank"))
    (tmp_path / folders.HALF_RANKED).unlink()
    found = search([GOOD, BAD], *parts, LONGER, Run(place=CPU, folder=tmp_path, job="rank"))
    assert [row.reason for row in found.rows] == ["", ""]


def test_in_a_runs_folder_both_have_checkpoints(parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"of hours")
    stopped([GOOD], parts, tmp_path, 0.6)
    assert (tmp_path / folders.HALF_RANKED).exists()
    search([GOOD], *parts, LONGER, Run(place=CPU, folder=tmp_path, job="rank"))
    assert not (tmp_path / folders.HALF_RANKED).exists()
    assert (tmp_path / "checkpoint").read_bytes() == b"of hours"


def test_groups_are_the_same_after_a_stop(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven, three, three and one; of the four that are left after the first group, not two and two."""
    gpu, cut = Place(torch.device("cuda"), torch.float32), ranking._groups
    monkeypatch.setattr(ranking, "TOGETHER", 3)
    monkeypatch.setattr(ranking, "_groups", lambda names, named, _: cut(names, named, gpu))
    specs, taken = [f"mlp(width={width})" for width in range(4, 11)], steps(monkeypatch)
    search(specs, *parts, LONGER, Run(place=CPU))
    all_of_them = len(taken)
    taken.clear()
    for number in (2.0, 7.5, 10.0):
        stopped(specs, parts, tmp_path, number)
    search(specs, *parts, LONGER, Run(place=CPU, folder=tmp_path, job="rank"))
    assert len(taken) == all_of_them


def test_what_its_networks_took_that_fitted_is_counted_once(
    parts: tuple[cs.ImageData, cs.ImageData], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ranking._Search._train

    def second_is_too_large(self: ranking._Search, trainers: Mapping[str, Trainer], net: int) -> None:
        if net:
            raise torch.OutOfMemoryError("too large")
        train(self, trainers, net)
        self.seconds[GOOD] = 100.0

    monkeypatch.setattr(ranking._Search, "_train", second_is_too_large)
    (row,) = search([GOOD], *parts, LONGER, Run(place=CPU)).rows
    assert "too large" in row.reason and row.seconds <= 100


@pytest.mark.parametrize("at_once", [1, 2])
def test_what_cannot_be_written_is_not_the_architectures_fault(
    at_once: int, parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([names[:at_once], names[at_once:]]))
    monkeypatch.setattr(Run, "event", lambda *_, **__: raises(cs.UserError("cannot write to it"))())
    with pytest.raises(cs.UserError, match="cannot write to it"):
        cs.rank([GOOD, BAD], *parts, folder=tmp_path, **FAST)
    assert not (tmp_path / "ranking.json").exists()


def test_events_that_say_nothing_are_passed_over(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cs.rank([GOOD], *parts, folder=tmp_path, **FAST)
    path = tmp_path / "events.jsonl"
    true = json.loads(path.read_text().splitlines()[-1])
    odd: list[dict[str, object]] = [{"net": each} for each in ("0", None, True, -1, 0.0, [])]
    odd += [{"name": each} for each in (None, [], "other")] + [{"seconds": each} for each in ("1", None, [])]
    odd += [{"accuracies": each} for each in (None, [], {}, {"": "1"}, {"": 7.5}, {"": 0.5, "x": 0.5})]
    lines = [json.dumps({**true, **each}) for each in odd] + ["9" * 5000, "[", "3"]
    path.write_text("\n".join([*lines, json.dumps(true), json.dumps(true)]) + "\n")
    numbers = trainings(monkeypatch)
    assert cs.rank([GOOD], *parts, folder=tmp_path, **FAST) == found
    path.write_text("\n".join(lines) + "\n")
    again = cs.rank([GOOD], *parts, folder=tmp_path, **FAST)
    assert (numbers, again.best.accuracy) == ([0], found.best.accuracy)


def test_a_folder_keeps_what_is_done(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cs.rank([GOOD, linear], *parts, folder=tmp_path / "a", **FAST)
    assert json.loads((tmp_path / "a/ranking.json").read_text()) == json.loads(found.to_json())
    monkeypatch.setattr(Trainer, "train", None)
    assert cs.rank([GOOD, linear], *parts, folder=tmp_path / "a", **FAST) == found


def test_what_a_kill_left_of_the_outcome_goes(parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path) -> None:
    (tmp_path / ".ranking.json.abc.tmp").write_text("half")
    (tmp_path / ".mine.tmp").touch()
    cs.rank([GOOD], *parts, folder=tmp_path, **FAST)
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "ranking.json", ".mine.tmp"}
    (tmp_path / "recipe.toml").write_text("# condenset run\n")
    folders.new_folder(tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"ranking.json", ".mine.tmp"}  # which no run wrote


def hidden(channels: int, size: int, num_classes: int, *, wide: bool = False) -> nn.Module:
    width = 32 if wide else 1
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, width), nn.Linear(width, num_classes))


class Thing:
    """Of which two are printed alike, but for where they lie."""

    def __call__(self, *shape: int) -> nn.Module:
        return linear(*shape)

    def build(self, *shape: int) -> nn.Module:
        return linear(*shape)


def test_a_folder_knows_architectures_by_names_that_do_not_go_with_their_order(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = functools.partial(hidden, wide=True)
    first = cs.rank([hidden, wide, functools.partial(linear)], *parts, folder=tmp_path, **FAST)
    assert {row.name for row in first.rows} == {"hidden", "hidden(wide=True)", "linear"}
    assert len({row.accuracy for row in first.rows}) > 1
    monkeypatch.setattr(Trainer, "train", None)
    again = cs.rank([wide, linear, hidden], *parts, folder=tmp_path, **FAST)
    assert {row.name: row for row in again.rows} == {row.name: row for row in first.rows}
    twice = ([linear, linear], [linear, functools.partial(linear)])
    nameless = (lambda *shape: linear(*shape), functools.partial(hidden, wide=Thing()), Thing(), Thing().build)
    for same in (*twice, *([each] for each in nameless)):
        with pytest.raises(
            cs.UserError, match=r"(two .* 'linear'|has no name of its own), .* by their names: give a mapping"
        ):
            cs.rank(same, *parts, folder=tmp_path, **FAST)


def test_a_name_that_a_mapping_gives_to_another_spec_is_trained_anew(
    parts: tuple[cs.ImageData, cs.ImageData], tmp_path: Path
) -> None:
    good, again = (cs.rank({"mine": GOOD}, *parts, folder=tmp_path, **FAST) for _ in range(2))
    assert good == again
    bad = cs.rank({"mine": BAD}, *parts, folder=tmp_path, **FAST)
    assert bad.best.accuracy == cs.rank([BAD], *parts, **FAST).best.accuracy != good.best.accuracy
