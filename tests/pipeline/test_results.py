"""Test the records of results.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from condenset import UserError
from condenset.pipeline.results import condense_cost, read_results, write_results
from helpers.command_line import RECORD_FIELDS, read_records
from helpers.plans import NETWORK, execute_in, make_tiny_plan


def test_records_have_the_fields_of_the_results_file(tmp_path: Path) -> None:
    records = execute_in(tmp_path, make_tiny_plan())
    assert [list(record) for record in records] == [RECORD_FIELDS, RECORD_FIELDS]
    assert read_records(tmp_path) == read_results(tmp_path) == records
    random, dm = records
    assert (random["iterations"], dm["iterations"]) == (0, 2)
    assert dm["condense_seconds"] > 0
    assert dm["peak_memory_bytes"] > 0


def test_a_record_has_the_learning_rate_of_the_images(tmp_path: Path) -> None:
    fields = {"iterations": 1, "outer_steps": 1, "inner_epochs": 0, "network": NETWORK, "lr": 0.3}
    records = execute_in(tmp_path, make_tiny_plan(methods=("random", "dc"), recipe_fields=fields))
    assert [record["condense_lr"] for record in records] == [None, 0.3]


def test_a_record_has_the_recipe_of_the_set(tmp_path: Path) -> None:
    plan = make_tiny_plan(methods=("dm",), recipe_fields={"iterations": 0, "network": NETWORK, "momentum": 0.9})
    (record,) = execute_in(tmp_path, plan)
    (job,) = plan.condense_jobs
    assert job.recipe is not None
    assert record["recipe"] | {"ipc": 1} == job.recipe.to_dict() and record["recipe"]["momentum"] == 0.9


@pytest.mark.parametrize("seconds", [None, "1", True, float("nan"), 10**400])
def test_invalid_seconds_are_unknown(seconds: object) -> None:
    assert condense_cost({"seconds": seconds}) == {"condense_seconds": None}


@pytest.mark.parametrize(
    "change",
    [
        {"method": 3},
        {"ipc": "1"},
        {"ipc": []},
        {"ipc": [1, "2"]},
        {"accuracy_mean": 1.5},
        {"accuracies": []},
        {"accuracies": [2]},
        {"condense_seconds": "1"},
        {"together": 3},
        {"recipe": "dm"},
        {"images": "ten"},
        {"storage_bytes": [1]},
        {"accuracy_std": None},
    ],
)
def test_invalid_records_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    scores = {"accuracies": [0.5], "accuracy_mean": 0.5, "accuracy_std": 0.0}
    record = {"method": "dm", "ipc": 1, "network": "convnet", "condense_seconds": 1.0, **scores}
    write_results(tmp_path / "results.json", [record])
    assert read_results(tmp_path) == [record]
    write_results(tmp_path / "results.json", [record | change])
    with pytest.raises(UserError, match=r"results.json is not a list of results; delete it"):
        read_results(tmp_path)


def test_incomplete_scores_are_refused(tmp_path: Path) -> None:
    record = {"method": "dm", "ipc": 1, "network": "convnet", "condense_seconds": 1.0}
    write_results(tmp_path / "results.json", [record])
    assert read_results(tmp_path) == [record]
    write_results(tmp_path / "results.json", [{**record, "accuracy_mean": 0.5}])
    with pytest.raises(UserError, match="is not a list of results"):
        read_results(tmp_path)


def test_a_run_without_results_has_no_records(tmp_path: Path) -> None:
    assert read_results(tmp_path) == []


def test_a_changed_number_is_refused(tmp_path: Path) -> None:
    execute_in(tmp_path, make_tiny_plan())
    path = tmp_path / "results.json"
    text = path.read_text()
    path.write_text(text.replace('"condense_seconds": ', '"condense_seconds": 1', 1))
    with pytest.raises(UserError, match="does not match its checksum; delete it"):
        read_results(tmp_path)
    path.write_text(text)
    assert len(read_results(tmp_path)) == 2
