"""`condenset evaluate`: which sets, which data, which networks, which protocol."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from condenset import CondensedSet
from condenset.augment import DEFAULT_STRATEGY
from condenset.pipeline.report.content import collect_content
from helpers.command_line import (
    RECORD_FIELDS,
    TINY,
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandRunner,
    list_files,
    read_records,
    replace_test_images,
    write_npz,
)
from helpers.data_files import make_classes
from helpers.evaluations import NETWORK, QUICK, evaluate, read_table, warning_lines


def test_all_sets_are_scored_on_all_networks(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", "1,2", "--method", "random", "--out", "a")
    networks = ("--network", f"{NETWORK},mlp(width=8)", "--network", "mlp(width=4)")
    table = read_table(condenset("evaluate", "a", *QUICK, *networks).out)
    assert table[0] == ["set", "dataset", "method", "images per class", NETWORK, "mlp(width=8)", "mlp(width=4)"]
    assert [row[:4] for row in table[1:]] == [
        ["random-1", "toy.npz", "random", "1"],
        ["random-2", "toy.npz", "random", "2"],
    ]
    records = evaluate(condenset, "a", *QUICK, *networks)
    assert [(Path(record["file"]).stem, record["network"]) for record in records] == [
        (name, network) for name in ("random-1", "random-2") for network in (NETWORK, "mlp(width=8)", "mlp(width=4)")
    ]
    assert [list(record) for record in records] == [["file", "made_from", *RECORD_FIELDS]] * 6
    assert [f"{100 * record['accuracy_mean']:.1f}" for record in records] == [*table[1][4:], *table[2][4:]]
    assert "--network must name a network" in condenset("evaluate", "a", "--network", "mlp,").error_line


def test_rows_name_their_file(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    for directory in "ab":
        condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", directory)
    shutil.copy("a/sets/random-1.safetensors", "other.safetensors")
    rows = read_table(condenset("evaluate", "a", "b", "other.safetensors", *QUICK, "--dataset", toy).out)[1:]
    assert [row[0] for row in rows] == ["a/sets/random-1", "b/sets/random-1", "other"]
    records = evaluate(condenset, "a", "a/sets", "other.safetensors", *QUICK, "--dataset", toy)
    assert [record["file"] for record in records] == [
        str(tmp_path / name) for name in ("a/sets/random-1.safetensors", "other.safetensors")
    ]


def test_the_scores_of_a_run_are_repeated(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy, "--ipc", 1, *TINY, "--augment", "crop", "--out", "a")
    expected = [record["accuracies"] for record in read_records(tmp_path / "a")]
    assert [record["accuracies"] for record in evaluate(condenset, "a", "--device", "cpu")] == expected
    (record,) = evaluate(condenset, "a/sets/dm-1.safetensors", "--device", "cpu")
    assert (record["accuracies"], record["epochs"], record["augment"]) == (expected[1], 2, "crop")
    (record,) = evaluate(condenset, "a/sets/dm-1.safetensors", "--nets", 1, "--seed", 5, "--device", "cpu")
    assert (len(record["accuracies"]), record["epochs"], record["seed"]) == (1, 2, 5)
    shutil.copy("a/sets/dm-1.safetensors", "moved.safetensors")
    for options in ((), ("--dataset", toy)):
        (record,) = evaluate(condenset, "moved.safetensors", *options, "--device", "cpu", "--config", "a/recipe.toml")
        assert record["accuracies"] == expected[1]
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "b")
    records = evaluate(condenset, "a", "b", *QUICK, "--augment", "crop")
    assert {record["network"] for record in records} == {NETWORK}


def test_sets_with_different_networks_are_scored_on_one(condenset: CommandRunner, toy: Path) -> None:
    other = "convnet(width=4, depth=1)"
    for directory, network in (("a", NETWORK), ("b", other)):
        condenset("condense", toy, "--ipc", 1, "--network", network, "--iterations", 1, "--out", directory)
    (line,) = warning_lines(condenset, "evaluate", "a", "b", *QUICK, "--out", "e")
    assert (
        f"({NETWORK}, {other}): all are scored on the default of their dataset (convnet)" in line
        and "--network own" in line
    )
    assert {record["network"] for record in read_records(Path("e"))} == {"convnet"}
    records = evaluate(condenset, "a", "b", *QUICK, "--network", "own")
    assert [record["network"] for record in records] == [NETWORK, other]
    table = read_table(condenset("evaluate", "a", "b", *QUICK, "--network", "own").out)
    assert table[0][4:] == [NETWORK, other] and (table[1][5], table[2][4]) == ("-", "-")


def test_runs_with_different_protocols_are_scored_by_the_default(condenset: CommandRunner, toy: Path) -> None:
    for directory, augment in (("a", "crop"), ("b", "none")):
        options = (*TINY_NETWORK, *TINY_EVALUATION, "--no-whole", "--method", "random", "--augment", augment)
        condenset("run", toy, "--ipc", 1, *options, "--out", directory)
    (line,) = warning_lines(condenset, "evaluate", "a", "b", *QUICK, "--out", "e")
    assert "the runs of the sets differ in augment" in line and "--config" in line
    assert {record["augment"] for record in read_records(Path("e"))} == {DEFAULT_STRATEGY}
    records = evaluate(condenset, "a", "b", *QUICK, "--config", "b/recipe.toml")
    assert {record["augment"] for record in records} == {"none"}


def test_evaluate_tests_on_all_images_that_it_is_given(condenset: CommandRunner, tmp_path: Path) -> None:
    for name, count in (("pets", 5), ("zoo", 7)):
        make_classes(tmp_path / name, count=count)
    condenset("condense", "pets", "--ipc", 1, "--method", "random", "--out", "a")
    error_line = condenset("evaluate", "a", *QUICK).error_line
    assert "was made from all images of" in error_line and "give other images with --dataset" in error_line
    (record,) = evaluate(condenset, "a", *QUICK, "--dataset", "zoo")
    assert (record["dataset"], record["test_images"]) == (str(tmp_path / "zoo"), [7, 7])
    assert evaluate(condenset, "a", *QUICK, "--test", "zoo")[0]["test_images"] == [7, 7]
    (line,) = warning_lines(condenset, "evaluate", "a", *QUICK, "--dataset", "pets", "--out", "e")
    assert "the test images contain images that" in line
    assert read_records(Path("e"))[0]["test_images"] == [5, 5]


def test_evaluate_uses_the_test_images_of_the_run(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=10)
    condenset("run", "pets", "--ipc", 1, "--method", "random", *TINY_NETWORK, *TINY_EVALUATION, "--no-whole")
    (record,), (repeated,) = read_records(Path("runs/pets")), evaluate(condenset, "runs/pets", "--device", "cpu")
    assert (repeated["test_images"], repeated["accuracies"]) == ([2, 2], record["accuracies"])
    (line,) = warning_lines(condenset, "evaluate", "runs/pets", *QUICK, "--dataset", "pets")
    assert "the test images contain images that" in line


def test_evaluate_warns_if_the_training_images_have_changed(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    write_npz(toy, seed=1)
    (line,) = warning_lines(condenset, "evaluate", "a", *QUICK)
    assert line.startswith("condenset: warning: a/sets/random-1.safetensors was made from other training images than ")


def test_evaluate_takes_a_directory_of_sets(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", "2,1,3", "--method", "random", "--out", "a")
    for path, ipcs in (("a/sets", [1, 2, 3]), ("a", [2, 1, 3])):  # sorted by name; in the order of the run
        assert [record["ipc"] for record in evaluate(condenset, path, *QUICK)] == ipcs


def test_own_steps_of_distillation_replace_epochs(condenset: CommandRunner, toy: Path) -> None:
    quick = ("--set", "iterations=1", "--set", "steps=1", "--set", "epochs=1", *TINY_NETWORK)
    protocol = ("--no-whole", "--epochs", 2, "--nets", 2)
    assert condenset("run", toy, "--ipc", 1, "--method", "dd,random", *quick, *protocol, "--out", "r").code == 0
    path = "r/sets/dd-1.safetensors"
    error_line = condenset("evaluate", path, "--own-steps", "--epochs", 5).error_line
    assert error_line == "--own-steps replaces --epochs: give only one of them"
    for config in ((), ("--config", "r/recipe.toml")):
        (record,) = evaluate(condenset, path, "--own-steps", *config)
        assert (record["learned_steps"], len(record["accuracies"])) == (True, 2)
    assert "needs a set with learned step sizes" in condenset("evaluate", "r", "--own-steps").error_line


def test_own_steps_of_trajectory_matching_are_the_learning_rate(condenset: CommandRunner, toy: Path) -> None:
    steps = (f"{field}=1" for field in ("iterations", "steps", "expert_epochs", "max_start_epoch", "pool_size"))
    quick = (*(word for step in steps for word in ("--set", step)), "--no-zca", *TINY_NETWORK)
    protocol = ("--no-whole", "--protocol", "modern", "--epochs", 2, "--nets", 1)
    assert condenset("run", toy, "--ipc", 1, "--method", "mtt", *quick, *protocol, "--out", "r").code == 0
    (record,) = evaluate(condenset, "r", "--own-steps")
    step_size = CondensedSet.load("r/sets/mtt-1.safetensors").provenance["step_size"]
    assert (record["evaluate_lr"], record["protocol"], record["epochs"]) == (step_size, "modern", 2)
    assert record["learned_steps"] is True
    (record,) = evaluate(condenset, "r", "--own-steps", "--epochs", 1, "--augment", "crop")
    assert (record["evaluate_lr"], record["epochs"], record["augment"]) == (step_size, 1, "crop")
    (record,) = evaluate(condenset, "r", "--own-steps", "--protocol", "paper", "--epochs", 1)
    assert (record["evaluate_lr"], record["protocol"]) == (step_size, "paper")
    table = read_table(condenset("evaluate", "r", "--own-steps").out)
    assert table[0][-1] == f"{NETWORK}, modern, own steps"
    distillation = ("--method", "dd", "--set", "iterations=1", "--set", "steps=1", "--set", "epochs=1", *TINY_NETWORK)
    assert condenset("run", toy, "--ipc", 1, *distillation, *protocol, "--out", "d").code == 0
    alone, with_steps = evaluate(condenset, "r", "d", "--own-steps", "--out", "e")
    assert (alone["protocol"], alone["epochs"], "epochs" in with_steps) == ("modern", 2, False)
    assert "--epochs" not in collect_content(Path("e")).settings["command"]  # dd has no use for it
    evaluate(condenset, "r", "--own-steps", "--out", "f")
    assert (
        "--own-steps --nets 1 --seed 0 --protocol modern --epochs 2" in collect_content(Path("f")).settings["command"]
    )


def test_all_sets_are_checked_before_the_first_is_scored(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    before = list_files(tmp_path)
    assert "broken.safetensors is not" in condenset("evaluate", "a", "broken.safetensors", *QUICK).error_line
    assert "did you mean 'convnet'" in condenset("evaluate", "a", *QUICK, "--network", "mlp,convnett").error_line
    assert list_files(tmp_path) == before


def test_evaluate_rejects_a_dataset_that_does_not_match(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    other = write_npz(tmp_path / "other.npz", (4, 4, 4, 4))
    error_line = condenset("evaluate", "a", "--dataset", other, *QUICK).error_line
    assert "4 classes of the test set, but it lacks 'class 3'" in error_line
    large = write_npz(tmp_path / "large.npz", size=16)
    assert "image shape of the test set" in condenset("evaluate", "a", "--dataset", large, *QUICK).error_line
    assert "digitz" in condenset("evaluate", "a", "--dataset", "digitz", *QUICK).error_line
    assert "toy.npz/x must be a directory" in condenset("evaluate", "a", *QUICK, "--out", "toy.npz/x").error_line
    assert "cannot write to" in condenset("evaluate", "a", *QUICK, "--out", "/proc/x").error_line


def test_the_help_names_the_directory_of_the_evaluation(condenset: CommandRunner) -> None:
    assert "Directory of the evaluation" in condenset("evaluate", "--help").out


def test_an_evaluation_has_its_own_directory(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    for directory in ("runs/evaluate", "runs/evaluate-2"):
        assert f"results  {directory}/results.json" in condenset("evaluate", "a", *QUICK).out
        assert list_files(tmp_path / directory) == ["evaluation.toml", "events.jsonl", "results.json"]
    result = condenset("resume", "runs/evaluate")
    assert "The evaluation is finished." in result.err.splitlines() and "Scoring" not in result.err
    assert result.code == 0 and read_table(result.out) == read_table(condenset("evaluate", "a", *QUICK).out)
    assert "already contains a run" in condenset("evaluate", "a", *QUICK, "--out", "runs/evaluate").error_line
    assert condenset("evaluate", "a", *QUICK, "--out", "runs/evaluate", "--overwrite").code == 0
    error_line = condenset("evaluate", "a", *QUICK, "--out", "a", "--overwrite").error_line
    assert "random-1.safetensors is inside a, which would be overwritten" in error_line
    assert CondensedSet.load("a/sets/random-1.safetensors")
    assert "is an evaluation, which has no sets" in condenset("show", "runs/evaluate").error_line
    assert "--memory has no effect" in condenset("resume", "runs/evaluate", "--memory", "1GiB").error_line


def test_a_resumed_evaluation_needs_the_same_sets_and_images(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    condenset("evaluate", "a", *QUICK, "--out", "e")
    Path("e/results.json").unlink()
    shutil.copy(toy, "moved.npz")
    replace_test_images(toy)
    assert "toy.npz has changed since the evaluation began" in condenset("resume", "e").error_line
    assert condenset("resume", "e", "--dataset", "moved.npz").code == 0
    Path("e/results.json").unlink()
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--seed", 1, "--out", "a", "--overwrite")
    assert "random-1.safetensors has changed since" in condenset("resume", "e").error_line


@pytest.mark.parametrize("command", ["run", "evaluate", "resume"])
def test_per_class_prints_the_accuracy_of_each_class(condenset: CommandRunner, toy: Path, command: str) -> None:
    options = (*TINY_NETWORK, *TINY_EVALUATION, "--no-whole", "--method", "random", "--ipc", "1,2")
    arguments: dict[str, tuple[object, ...]] = {
        "run": (toy, *options, "--out", "a"),
        "evaluate": ("a", "--device", "cpu"),
        "resume": ("a",),
    }
    if command != "run":
        condenset("run", *arguments["run"])
    result = condenset(command, *arguments[command], "--per-class")
    table = read_table(result.out.split("\n\n")[1].removeprefix(f"{NETWORK}\n"))
    assert table[0] == ["class", "test images", "random-1 %", "random-2 %"]
    assert [row[:2] for row in table[1:]] == [
        *([f"class {label}", "12"] for label in range(3)),
        ["mean of classes", "36"],
    ]
    for column, record in enumerate(read_records(Path("a")), start=2):
        values = [*record["per_class_accuracy"], record["balanced_accuracy"]]
        assert [row[column] for row in table[1:]] == [f"{100 * value:.1f}" for value in values]
        assert record["confusion"][0][0] == round(12 * record["per_class_accuracy"][0])
