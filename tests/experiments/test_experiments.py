"""What every experiment in the table keeps to: tiny it works, leaves its files, does nothing twice, does as asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import pstdev

import pytest
from performed import go, looked_at, tiny_run

from condenset import CondensedSet, UserError, workflow
from condenset.engine import Place
from condenset.estimates import Work
from condenset.experiments import EXPERIMENTS, common, find, perform, wishes_for
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Table
from condenset.experiments.settings import Settings, from_toml, to_toml
from condenset.files import read_tensors
from condenset.plans import Wishes
from condenset.runs import Interrupted, Run, Silent
from condenset.types import Splits
from plain import StopAtLoop

AVAILABLE = [name for name, experiment in EXPERIMENTS.items() if experiment.perform]
pytestmark = pytest.mark.usefixtures("tiniest")


@pytest.mark.parametrize("name", AVAILABLE)
def test_it_leaves_its_files_and_does_nothing_twice(
    name: str, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = go(name, splits, tmp_path)
    assert outcome.records and outcome.table.rows
    assert all(len(row) == len(outcome.table.columns) for row in outcome.table.rows)
    results = json.loads((tmp_path / "results.json").read_text())
    assert {"experiment", "dataset", "scale", "seed"} <= results[0].keys()
    about, _, table = (tmp_path / "table.md").read_text().partition("\n\n")
    about, _, told = about.partition(". ")
    assert re.fullmatch(rf"{name}: {splits.train.name}, .* a class, scale tiny; its numbers mean nothing", about)
    assert table == outcome.table.markdown() and ("±" in table) == told.startswith("Accuracies are in %")
    assert {"device", "hardware", "precision", "version"} <= results[0].keys()
    assert (tmp_path / "figure.png").exists()
    title = re.search(r"<!-- (.*), scale tiny -->", (tmp_path / "figure.svg").read_text())
    assert title and re.fullmatch(rf"{name}: {splits.train.name}, [\d, ]+ images? a class", title[1])

    def never(*_: object, **__: object) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr(common, "score", never)
    monkeypatch.setattr(workflow, "METHODS", dict.fromkeys(workflow.METHODS, never))
    monkeypatch.setattr(workflow, "dm_sizes", never)
    monkeypatch.setattr("condenset.train.Trainer.training", never)
    go(name, splits, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == results


def test_stopped_and_gone_on_with_it_comes_out_the_same(splits: Splits, tmp_path: Path) -> None:
    undisturbed = go("sizes", splits, tmp_path / "whole")
    for number in (1, 3, 5):
        folder = tmp_path / str(number)
        run = tiny_run(folder)
        run.progress = StopAtLoop(run, number)
        with pytest.raises(Interrupted):
            go("sizes", splits, folder, run)
        again = go("sizes", splits, folder)
        for mine, theirs in zip(again.records, undisturbed.records, strict=True):
            assert mine["accuracies"] == theirs["accuracies"]


def test_stopped_in_the_midst_of_a_part_its_networks_go_on(splits: Splits, tmp_path: Path) -> None:
    """A set and the networks that score it share the part's folder."""

    def lab(run: Run) -> Lab:
        return Lab(dataset="tiny", scale="tiny", wishes=Wishes(), splits=splits, run=run, folder=run.folder or tmp_path)

    whole = lab(tiny_run(tmp_path / "whole")).made_and_scored("dm-2", "dm", 2)
    run = tiny_run(tmp_path / "stopped")
    run.progress = StopAtLoop(run, 2)  # of the networks; the set is made
    with pytest.raises(Interrupted):
        lab(run).made_and_scored("dm-2", "dm", 2)
    left = tmp_path / "stopped/parts/dm-2/checkpoint"
    assert json.loads(read_tensors(left)[1]["checkpoint"])["step"] == 1
    run, told = tiny_run(tmp_path / "stopped"), list[int]()
    run.progress.update = lambda done, note="": told.append(done)  # type: ignore[method-assign]
    assert lab(run).made_and_scored("dm-2", "dm", 2)["accuracies"] == whole["accuracies"]
    assert told[0] == 2
    assert not left.exists()


def test_what_is_not_there_yet_says_so(splits: Splits, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not yet available"):
        go("generative", splits, tmp_path)
    with pytest.raises(UserError, match="did you mean 'sizes'"):
        go("size", splits, tmp_path)


def test_a_damaged_record_is_named(splits: Splits, tmp_path: Path) -> None:
    lab = Lab(dataset="tiny", scale="tiny", wishes=Wishes(), splits=splits, run=tiny_run(tmp_path), folder=tmp_path)
    assert lab.remembered("a", lambda run: {"x": 1})["x"] == 1
    (tmp_path / "parts/a/record.json").write_text("[")
    with pytest.raises(UserError, match="delete it to do this part again"):
        lab.remembered("a", lambda run: {"x": 2})


@pytest.mark.parametrize(("name", "field"), [("batchnorm", "accuracies"), ("nas", "rows"), ("distribution", "dm")])
def test_a_record_that_lacks_what_it_is_for_is_named(
    name: str, field: str, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(monkeypatch)
    go(name, splits, tmp_path)
    path = next(path for path in (tmp_path / "parts").glob("*/record.json") if field in json.loads(path.read_text()))
    record = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in record.items() if key != field}))
    with pytest.raises(UserError, match=f"{path} is not a record of condenset; delete it to do this part again"):
        go(name, splits, tmp_path)
    path.unlink()
    go(name, splits, tmp_path)
    assert json.loads(path.read_text()).keys() == record.keys()


def test_settings_survive_their_file(tmp_path: Path) -> None:
    changes = {
        "methods": ("dm", "random"),
        "set": ("dm.iterations=3", "network=convnet(norm='batch')"),
        "nets": 1,
        "ipc": (3, 1),
    }
    fields = {"dataset": 'a "b" 😀', "scale": "tiny", "seed": 3, "memory": 5, "data_dir": "/x", **changes}
    settings = Settings(experiment="sizes", **fields)  # type: ignore[arg-type]
    (tmp_path / "experiment.toml").write_text(to_toml(settings))
    assert from_toml(tmp_path / "experiment.toml") == settings
    (tmp_path / "experiment.toml").write_text(to_toml(settings) + "x = 1\n")
    with pytest.raises(UserError, match="is not an experiment"):
        from_toml(tmp_path / "experiment.toml")
    (tmp_path / "experiment.toml").write_text("seed = " + "9" * 5000)
    with pytest.raises(UserError, match="is not an experiment of condenset: Exceeds the limit"):
        from_toml(tmp_path / "experiment.toml")
    with pytest.raises(UserError, match="scale must be one of tiny, small, paper"):
        Settings(experiment="sizes", dataset="a", scale="big")


def test_methods_networks_and_recipes_can_be_cut(splits: Splits, tmp_path: Path) -> None:
    asked = Settings(
        experiment="sizes",
        dataset="tiny",
        scale="tiny",
        methods=("random", "mmd"),
        ipc=(3, 1, 3),
        set=("mmd.iterations=1", "momentum=0.1"),
        nets=1,
        epochs=0,
        whole_epochs=0,
    )
    about = {"dataset": "tiny", "scale": "tiny"}
    outcome = perform("sizes", splits, tiny_run(tmp_path), tmp_path, **about, wishes=asked.wishes)
    found = [(record["ipc"], record["method"]) for record in outcome.records]
    assert found == [(1, "random"), (1, "mmd"), (3, "random"), (3, "mmd"), (None, "whole")]
    assert {len(record["accuracies"]) for record in outcome.records} == {1}
    recipe = CondensedSet.load(tmp_path / "parts" / "mmd-3" / "condensed.safetensors").provenance["recipe"]
    assert (recipe["iterations"], recipe["momentum"], recipe["batch"]) == (1, 0.1, 8)


@pytest.mark.parametrize("name", [name for name in AVAILABLE if EXPERIMENTS[name].repeated])
def test_several_sets_have_seeds_of_their_own(name: str, splits: Splits, tmp_path: Path) -> None:
    run, methods = tiny_run(tmp_path), ("dm",)
    about = {"dataset": "tiny", "scale": "tiny"}
    wishes = Settings(experiment=name, **about, methods=methods, nets=1).wishes
    outcome = perform(name, splits, run, tmp_path, **about, wishes=wishes, sets=2)
    made = [record for record in outcome.records if record["method"] == "dm" and record.get("states") != 0]
    assert {(record["sets"], len(record["accuracies"])) for record in made} == {(2, 2)}
    assert run.seed == 1
    pairs = [path for path in (tmp_path / "parts").iterdir() if (path.with_name(path.name + "-set2")).exists()]
    sets = [path for path in pairs if (path / "condensed.safetensors").exists()]
    assert sets
    for path in sets:
        folders = (path, path.with_name(path.name + "-set2"))
        first, second = (CondensedSet.load(folder / "condensed.safetensors") for folder in folders)
        assert (first.provenance["seed"], second.provenance["seed"]) == (1, 2)
        assert not first.images.equal(second.images)


def test_what_was_scored_otherwise_is_scored_again(splits: Splits, tmp_path: Path) -> None:
    about = {"dataset": "tiny", "scale": "tiny"}
    for nets in (1, 2):
        wishes = Settings(experiment="sizes", **about, methods=("random",), nets=nets).wishes
        outcome = perform("sizes", splits, tiny_run(tmp_path), tmp_path, **about, wishes=wishes)
        assert {len(record["accuracies"]) for record in outcome.records} == {nets}
        assert all(record["settings"]["protocol"]["nets"] == nets for record in outcome.records)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"experiment": "networks", "methods": ("random",)}, "a method of this experiment must be one of dm, but"),
        ({"experiment": "cost", "methods": ("dm", "random")}, "must be one of dc, dsa, dm, but got 'random'"),
        ({"experiment": "distribution", "methods": ("ld",)}, "must be one of random, .* but got 'ld'"),
        ({"methods": ("dsa", "none")}, "a method of this experiment must be one of random"),
        ({"set": ("dd.steps=3",)}, "the method of a setting must be one of"),
        ({"set": ("steps=3",)}, "an option of"),
        ({"nets": 0}, "nets must be a whole number, 1 or more"),
        ({"whole_epochs": -1}, "epochs must be a whole number, 0 or more"),
        ({"sets": 0}, "sets must be a whole number, 1 or more"),
        ({"experiment": "nas", "sets": 2}, "takes no number of sets"),
        ({"experiment": "networks", "set": ("dm.pool=a", "dm.group=10-20")}, "nothing to choose by --set group"),
        ({"experiment": "architectures", "set": ("network=mlp",)}, "nothing to choose by --set network"),
        ({"experiment": "distribution", "nets": 3}, "nothing to choose by --nets"),
        ({"experiment": "batchnorm", "whole_epochs": 3}, "nothing to choose by --whole-epochs"),
        ({"methods": "dm"}, "methods must be a list of texts"),
        ({"ipc": (True,)}, "ipc must be a list of whole numbers"),
        ({"ipc": (0,)}, r"ipc .* must be a whole number, 1 or more"),
        ({"experiment": "batchnorm", "ipc": (1, 10)}, "takes one number of images a class"),
    ],
)
def test_what_cannot_be_asked_of_an_experiment(fields: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        _ = Settings(**{"experiment": "sizes", "dataset": "a", "scale": "tiny", **fields}).wishes  # type: ignore[arg-type]


def test_a_record_of_several_sets_is_over_all_of_them(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(monkeypatch)
    wishes = Settings(experiment="sizes", dataset="tiny", scale="tiny", ipc=(1,), nets=2).wishes
    run = tiny_run(tmp_path)
    outcome = perform("sizes", splits, run, tmp_path, dataset="tiny", scale="tiny", wishes=wishes, sets=2)
    first, _, whole = outcome.records
    assert first["accuracies"] == [0.01, 0.02, 0.02, 0.03]
    assert first["accuracy_std"] == pytest.approx(pstdev(first["accuracies"]))
    assert first["seconds"] == 2.0
    assert first["relative"] == pytest.approx(first["accuracy_mean"] / whole["accuracy_mean"])


def test_what_the_scales_stand_for(splits: Splits, tmp_path: Path) -> None:
    small, paper = (
        Lab(dataset="tiny", scale=scale, wishes=Wishes(), splits=splits, run=tiny_run(tmp_path), folder=tmp_path)
        for scale in ("small", "paper")
    )
    assert [len(lab.each_set(lambda end: end)) for lab in (small, paper)] == [1, 5]
    assert (small.protocol(whole=True).epochs, paper.protocol(whole=True).epochs) == (100, 200)
    assert (small.protocol().epochs, paper.protocol().epochs) == (300, 1000)
    for lab, image_steps in ((small, (1000, 1000, 2500)), (paper, (1000, 10_000, 50_000))):
        assert tuple(lab.recipe("dc", ipc).image_steps for ipc in (1, 10, 50)) == image_steps  # type: ignore[attr-defined]


def test_records_tell_what_they_were_made_on_not_what_they_were_read_on(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(monkeypatch)
    for name in ("batchnorm", "nas"):
        monkeypatch.setattr(Place, "hardware", "the first machine")
        first = go(name, splits, tmp_path / name).records
        monkeypatch.setattr(Place, "hardware", "another")
        again = go(name, splits, tmp_path / name).records
        assert {each["hardware"] for each in (*first, *again) if "hardware" in each} == {"the first machine"}
        known = json.loads((tmp_path / name / "results.json").read_text())
        assert {each["hardware"] for each in known} == {"the first machine"}


class Parts(Silent):
    """Notes which part every loop is said to be of."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.told.append(self.part)


@pytest.mark.parametrize("name", AVAILABLE)
def test_progress_tells_which_part_of_how_many(name: str, splits: Splits, tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    run.progress = parts = Parts()
    experiment = find(name)
    perform(name, splits, run, tmp_path, dataset="tiny", scale="tiny", sets=2 if experiment.repeated else None)
    num = len(list((tmp_path / "parts").iterdir()))
    told = [tuple(map(int, part.split("/"))) for part in parts.told if part]
    assert {total for _, total in told} == {num}
    assert min(place for place, _ in told) >= 1 and max(place for place, _ in told) == num


def test_progress_tells_how_long_what_is_left_takes(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what was foretold of each: a part may take a hundred times as long as another."""
    now, told, totals, run = 70_000.0, [], [], tiny_run(tmp_path)
    monkeypatch.setattr(common.time, "monotonic", lambda: now)

    def foretold(works: list[Work], *_: object) -> list[float]:
        return [1000 * bool(each.recipe) + each.num * bool(each.protocol) for each in works]

    monkeypatch.setattr(common, "seconds_of", foretold)
    monkeypatch.setattr(run.progress, "foretell", lambda seconds: totals.append(seconds()))
    lab = Lab(dataset="tiny", scale="tiny", wishes=Wishes(), splits=splits, run=run, folder=tmp_path)
    recipe, protocol = lab.recipe("dm", 1), lab.protocol()
    lab.remembered("before", lambda _: {})
    (tmp_path / "parts" / "half").mkdir()
    lab.expect(
        {
            "before": Work(recipe, protocol, 9000),
            "half": Work(recipe, None, 0),
            "none": Work(None, None, 0),
            "light": Work(None, protocol, 10),
            "both": Work(recipe, protocol, 400),
            "last": Work(None, protocol, 600),
        }
    )
    assert totals == [1000 + 10 + 1000 + 400 + 600]
    for name, file, seconds in (
        ("before", "", 0.1),
        ("half", "condensed.safetensors", 7),  # the rest of it
        ("none", "condensed.safetensors", 50_000),  # of which nothing was foretold
        ("light", "record.json", 9_000),  # too little of it to go by
        ("both", "condensed.safetensors", 11_200),
        ("both", "record.json", 1400),
        ("last", "record.json", 1200),
    ):
        with lab.part(name) as part:
            told.append(part.progress.part)
            now += seconds
            if file and part.folder:
                (part.folder / file).touch()
    # 400 and 600 seconds are left, at 20 for each that was foretold; then 600, at 21,600 for 1,410
    left = ["1/6", "2/6", "3/6", "4/6", "5/6", "5/6 (about 5.6 h", "6/6 (about 2.6 h"]
    assert told == [f"{each} for all that are left)" if "(" in each else each for each in left]


@pytest.mark.parametrize("name", AVAILABLE)
def test_too_few_images_are_told_of_before_anything_is_made(name: str, splits: Splits, tmp_path: Path) -> None:
    """Of 24 images a class the search trains on 22 or fewer, and continual's first step may have enough in its own."""
    wishes = wishes_for(find(name), ipcs=(24,) if name == "nas" else (25,))
    with pytest.raises(UserError, match="ipc must be at most the size of every class"):
        perform(name, splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=wishes)
    assert not (tmp_path / "parts").exists()


def test_what_is_asked_of_the_scoring_reaches_it(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols, asked = looked_at(monkeypatch), {"nets": 4, "epochs": 7, "whole_epochs": 9}
    wishes = Settings(experiment="sizes", dataset="tiny", scale="tiny", ipc=(1,), **asked).wishes
    perform("sizes", splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=wishes)
    found = {job: (each.nets, each.epochs) for job, each in protocols.items()}
    assert found == {"random-1": (4, 7), "dm-1": (4, 7), "whole": (4, 9)}


def test_too_few_images_are_told_of_before_the_first_set(splits: Splits, tmp_path: Path) -> None:
    wishes = Settings(experiment="sizes", dataset="tiny", scale="tiny", ipc=(1, 99)).wishes
    with pytest.raises(UserError, match="99"):
        perform("sizes", splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=wishes)
    assert not (tmp_path / "parts").exists()


def test_a_table_as_markdown() -> None:
    assert Table(("a", "b"), [("1", "x|y")]).markdown() == "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n"
