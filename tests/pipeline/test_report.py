"""The report of a run: what it collects from the files of the run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import condenset as cs
from condenset.errors import UserError
from condenset.io.progress import NullProgress
from condenset.pipeline.config import read_plan
from condenset.pipeline.datasets import reload_data
from condenset.pipeline.report.content import collect_content
from condenset.pipeline.report.run import merge_contents
from condenset.pipeline.report.snapshot_scores import read_snapshot_scores, score_snapshots
from condenset.report.html.answer import build_answer
from condenset.report.html.methods import build_methods
from helpers.command_line import TINY, TINY_EVALUATION, TINY_NETWORK, CommandRunner, replace_test_images, write_npz
from helpers.reports import make_content, make_data, make_record, make_reported_set

RUN = ("--ipc", 2, "--snapshots", 2, *TINY)


@pytest.fixture
def finished(condenset: CommandRunner, toy: Path) -> Path:
    """The directory of a run of `random` and `dm`."""
    assert condenset("run", toy, *RUN, "--out", "a").code == 0
    return Path("a")


def test_contents_of_a_run(finished: Path) -> None:
    content = collect_content(finished)
    assert content.title == "toy, condensed"
    assert [record["label"] for record in content.records] == ["random, 2 per class", "dm, 2 per class"]
    assert [item.label for item in content.sets] == ["random, 2 per class", "dm, 2 per class"]
    assert [[snapshot.step for snapshot in item.snapshots] for item in content.sets] == [[], [0, 2]]
    assert {step["label"] for step in content.steps} == {"dm, 2 per class"}
    assert content.train is not None and len(content.train) == 36
    assert content.features is not None
    assert content.features.description == "a ConvNet with random weights"
    assert content.settings["command"] == "condenset run --config a/recipe.toml"
    assert content.settings["seed"] == "0"
    assert content.curve_command == "condenset report a --nets 1"
    assert "recipe.toml" in content.recipes
    assert content.notices == []
    import hashlib

    file = finished / content.sets[0].file
    assert content.sets[0].checksum == hashlib.sha256(file.read_bytes()).hexdigest()


def test_features_come_from_the_network_trained_on_the_whole_dataset(condenset: CommandRunner, toy: Path) -> None:
    options = (*TINY_NETWORK, *TINY_EVALUATION, "--whole-epochs", 1)
    assert condenset("run", toy, "--method", "random", "--ipc", 1, *options, "--out", "a").code == 0
    path = Path("a/networks/whole.safetensors")
    content = collect_content(Path("a"))
    assert content.features is not None
    assert content.features.description == "a ConvNet trained on the whole dataset"
    path.write_bytes(path.read_bytes()[:-4])
    content = collect_content(Path("a"))
    assert content.features is not None
    assert content.features.description == "a ConvNet with random weights"


def test_report_without_its_dataset_says_so(finished: Path, toy: Path) -> None:
    toy.rename(toy.with_name("moved.npz"))
    page = cs.write_report(finished, verbose=False).read_text()
    assert f"the dataset is not available (no such file: {toy})." in page  # no option of `report` names another path
    with pytest.raises(UserError, match=r"^no such file: \S+$"):
        cs.write_report(finished, num_networks=1, verbose=False)
    assert '<section id="map"' not in page and '<section id="images"' in page


def test_unfinished_run_has_a_notice(finished: Path) -> None:
    finished = finished.rename("my run")
    (finished / "sets/dm-2.safetensors").unlink()
    (finished / "results.json").unlink()
    content = collect_content(finished)
    command = "condenset resume 'my run'"
    assert content.notices == [f"This run is not finished: 0 of 2 results. Continue it with '{command}'."]
    (finished / "sets/random-2.safetensors").unlink()
    with pytest.raises(UserError, match=f"my run has no results yet: finish it with '{command}'"):
        collect_content(finished)


def test_damaged_snapshots_are_left_out_with_a_notice(finished: Path) -> None:
    (finished / "snapshots/dm-2/0.safetensors").write_bytes(b"x")
    content = collect_content(finished)
    assert content.notices[0].startswith("Snapshots of dm-2 are left out: ")
    assert all(not item.snapshots for item in content.sets)
    assert content.curve_command == ""


def test_snapshots_with_some_images_have_no_accuracies(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_BYTES", "MAX_WHOLE_BYTES"):
        monkeypatch.setattr(f"condenset.runs.snapshots.{name}", 1)  # one image
    assert condenset("run", toy, *RUN, "--out", "a").code == 0
    content = collect_content(Path("a"))
    assert [len(item.snapshots) for item in content.sets] == [0, 2] and content.curve_command == ""
    with pytest.raises(UserError, match="the snapshots of a cannot be scored: they have only some images of their set"):
        cs.write_report("a", num_networks=1, verbose=False)


def test_snapshots_of_whitened_sets_have_no_accuracies(condenset: CommandRunner, toy: Path) -> None:
    whitened = ("--method", "dm", *RUN, "--zca", "--no-whole")
    assert condenset("run", toy, *whitened, "--out", "a").code == 0
    assert collect_content(Path("a")).curve_command == ""
    line = condenset("report", "a", "--nets", 1).error_line
    problem = "they have pixels from 0 to 1, and the images of a set with ZCA whitening exceed this range"
    assert line == f"the snapshots of a cannot be scored: {problem}"
    score = {"job": "dm-2", "step": 0, "seconds": 0.0, "accuracy": 0.1, "networks": 1}  # of an earlier version
    Path("a/snapshots/scores.json").write_text(json.dumps([score]))
    content = collect_content(Path("a"))
    assert content.snapshot_scores == []
    assert content.notices == [f"The curve of accuracy leaves out dm-2: its snapshots cannot be scored, {problem}."]


@pytest.mark.parametrize(("name", "message"), [("none", "no such directory"), ("empty", "is not a run")])
def test_other_directories_are_refused(name: str, message: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(UserError, match=message):
        cs.write_report(name)


def test_snapshots_are_scored_once(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(finished / "recipe.toml")
    splits = reload_data(plan, None, finished)
    score_snapshots(finished, plan, splits, 1, NullProgress())
    scores = read_snapshot_scores(finished)
    assert [(score["job"], score["step"], score["networks"]) for score in scores] == [("dm-2", 0, 1), ("dm-2", 2, 1)]
    monkeypatch.setattr("condenset.pipeline.report.snapshot_scores.score_set", None)
    score_snapshots(finished, plan, splits, 1, NullProgress())
    assert read_snapshot_scores(finished) == scores
    curve = collect_content(finished).snapshot_scores
    assert [point["step"] for point in curve] == [0, 2, 5]
    record = json.loads((finished / "results.json").read_text())[1]
    assert curve[-1]["accuracy"] == record["accuracy_mean"]
    (finished / "snapshots/scores.json").write_text('[{"job": 1}]')
    with pytest.raises(UserError, match="is not a list of scores of snapshots; delete it"):
        collect_content(finished)


def test_last_point_of_the_curve_counts_image_steps(condenset: CommandRunner, toy: Path) -> None:
    options = ("--method", "dc", "--ipc", 1, "--snapshots", 4, "--set", "outer_steps=4", "--iterations", 2)
    options += (*TINY_NETWORK, *TINY_EVALUATION, "--no-whole")
    assert condenset("run", toy, *options, "--out", "a").code == 0
    cs.write_report("a", num_networks=1, verbose=False)
    assert [point["step"] for point in collect_content(Path("a")).snapshot_scores] == [0, 2, 4, 6, 8]


def test_networks_on_snapshots_need_snapshots(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("run", toy, "--method", "dm", "--ipc", 1, "--snapshots", 0, *TINY, "--out", "a").code == 0
    assert condenset("evaluate", "a", *TINY_EVALUATION, "--device", "cpu", "--out", "e").code == 0
    for name in ("a", "e"):
        error_line = condenset("report", name, "--nets", 1).error_line
        rule = "--nets needs a run that learns images, with --snapshots 1 or more"
        assert error_line == f"{name} has no snapshots: {rule}"
    with pytest.raises(UserError, match="no such directory: none"):
        cs.write_report("none", num_networks=1)


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({}, ["whole dataset"]),
        ({"seed": 1}, ["whole dataset (a)", "whole dataset (b)"]),
        ({"scoring": cs.Protocol(epochs=3)}, ["whole dataset (a)", "whole dataset (b)"]),
    ],
)
def test_whole_datasets_of_several_runs_are_merged_if_they_are_equal(
    finished: Path, fields: dict[str, object], labels: list[str]
) -> None:
    content = collect_content(finished)
    whole = {**content.records[0], "label": "whole dataset", "method": "whole", "ipc": None, "seed": 0}
    whole["scoring"] = cs.Protocol(epochs=2)
    contents = [
        dataclasses.replace(content, records=[*content.records, record]) for record in (whole, {**whole, **fields})
    ]
    merged = merge_contents(contents, [Path("a"), Path("b")])
    assert [record["label"] for record in merged.records if record["method"] == "whole"] == labels
    line = build_methods(merged).charts["chart-methods"]["layer"][1]["data"]["values"]
    assert [value["label"] for value in line] == labels
    assert [bar["label"] for bar in build_answer(merged).values["bars"]][-1] == "all 6 real images"  # of its own run


def test_runs_with_other_protocols_are_not_compared(condenset: CommandRunner, finished: Path, toy: Path) -> None:
    options = (*RUN[:4], *TINY_NETWORK, "--iterations", 5, *TINY_EVALUATION, "--no-whole")
    assert condenset("run", toy, *options, "--method", "dm", "--out", "b").code == 0
    answer = build_answer(merge_contents([collect_content(Path(name)) for name in "ab"], [finished, Path("b")]))
    reason = "because their networks train differently (epochs: 2 in a, 1 in b)."
    assert answer.values["sentence"] == f"The accuracies of these runs cannot be compared, {reason}"
    assert answer.values["bars"] == []


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({}, "65.0 ± 15.0% test accuracy over 2 seeds, against 45.0% with 6 random images."),
        ({"lr": 2.0}, "50.0 ± 0.0% test accuracy, against 40.0% with 6 random images."),
    ],
)
def test_headline_of_several_runs_is_not_the_best_run(recipe: dict[str, object], sentence: str) -> None:
    data = make_data()
    random, dm = make_reported_set(data, "random"), make_reported_set(data)
    contents = []
    for seed, accuracies in enumerate([(0.4, 0.5), (0.5, 0.8)]):
        provenance = {**dm.condensed.provenance, "recipe": {"ipc": 2, **(recipe if seed else {})}}
        sets = [random, dataclasses.replace(dm, condensed=dataclasses.replace(dm.condensed, provenance=provenance))]
        fields = {"seed": seed, "scoring": cs.Protocol(), "test_fingerprint": "t"}
        records = [
            make_record(item.label, method, 2, accuracy, 6, **fields, accuracy_std=0.0)
            for item, method, accuracy in zip(sets, ("random", "dm"), accuracies, strict=True)
        ]
        contents.append(make_content(records=records, sets=sets))
    merged = merge_contents(contents, [Path("a"), Path("b")])
    section = build_answer(merged)
    num_seeds = "2 seeds" if not recipe else "a"
    assert section.values["sentence"] == f"6 synthetic images replace 24: {sentence}"
    assert section.values["bars"][-1]["label"] == f"6 synthetic images (dm, {num_seeds})"


def test_runs_with_other_test_images_are_refused(condenset: CommandRunner, finished: Path, toy: Path) -> None:
    replace_test_images(Path(shutil.copy(toy, "other.npz")))
    options = ("--method", "random", "--ipc", 2, *TINY_NETWORK, *TINY_EVALUATION, "--no-whole")
    assert condenset("run", "other.npz", *options, "--out", "b").code == 0
    line = condenset("report", finished, "b", "--out", "page.html").error_line
    command = "condenset evaluate a b --dataset DATASET --out DIRECTORY"
    way_out = f"write a report for each run, or score their sets on the same images with '{command}'"
    assert line == f"the runs of one report must have the same test images: {way_out}"
    assert condenset("evaluate", finished, "b", "--dataset", toy, *TINY_EVALUATION, "--out", "c").code == 0


def test_several_runs_on_one_dataset_share_a_page(condenset: CommandRunner, finished: Path, toy: Path) -> None:
    assert condenset("run", toy, *RUN, "--method", "dm", "--seed", 1, "--out", "b").code == 0
    contents = [collect_content(finished), collect_content(Path("b"))]
    scores = [{"label": "dm, 2 per class", "step": 0, "seconds": 0.0, "accuracy": 0.5}]
    contents = [dataclasses.replace(content, snapshot_scores=scores) for content in contents]
    merged = merge_contents(contents, [finished, Path("b")])
    assert [score["label"] for score in merged.snapshot_scores] == ["dm, 2 per class (a)", "dm, 2 per class (b)"]
    labels = ["random, 2 per class (a)", "dm, 2 per class (a)", "dm, 2 per class (b)"]
    assert [item.label for item in merged.sets] == labels
    assert [record["label"] for record in merged.records] == labels
    assert [row[0].text for row in build_methods(merged).values["rows"]] == ["random (a)", "dm (a)", "dm (b)"]
    assert merged.settings["b: seed"] == "1"
    assert merged.curve_command == "condenset report a b --nets 1 --out FILE"
    assert list(merged.recipes) == ["a/recipe.toml", "b/recipe.toml"]
    merged = merge_contents(contents, [Path("x/a"), Path("y/a")])
    assert [item.label for item in merged.sets][1:] == ["dm, 2 per class (x/a)", "dm, 2 per class (y/a)"]
    with pytest.raises(UserError, match="a report of several runs needs a file"):
        cs.write_report([finished, "b"])
    with pytest.raises(UserError, match="the runs of one report must be different, but got b, b"):
        cs.write_report(["b", "b"], "page.html")
    write_npz(Path("other.npz"), seed=5)
    assert condenset("run", "other.npz", *RUN, "--method", "dm", "--out", "c").code == 0
    with pytest.raises(UserError, match="the runs of one report must have the same training images"):
        cs.write_report([finished, "c"], "page.html", verbose=False)
    assert not Path("page.html").exists()


def test_empty_table_of_an_experiment_is_left_out(condenset: CommandRunner, finished: Path) -> None:
    assert condenset("evaluate", finished, *TINY_EVALUATION, "--device", "cpu", "--out", "e").code == 0
    Path("e/evaluation.toml").rename("e/experiment.toml")
    Path("e/table.md").touch()
    assert collect_content(Path("e")).table == []
