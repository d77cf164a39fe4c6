"""Test runs that score on held-out training images (`val_share`)."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest

import condenset as cs
from condenset import UserError
from condenset.data import check_dataset, import_dataset
from condenset.pipeline.config import read_plan
from condenset.pipeline.evaluation.plan import EvaluationRequest
from condenset.pipeline.evaluation.run import start_evaluation
from condenset.pipeline.preview import preview_run
from condenset.pipeline.report.content import collect_content
from condenset.pipeline.results import Record, RunResult
from condenset.pipeline.run import resume_run, start_run
from condenset.pipeline.sets import find_scores
from condenset.report.html import render_report
from condenset.runs.status_report import read_status
from helpers.data_files import make_classes
from helpers.plans import SCORE_REQUEST

VALIDATION: Any = {"val_share": 0.2}
PROTOCOL = SCORE_REQUEST.protocol_fields


def run(out: str, **options: Any) -> RunResult:
    return start_run(SCORE_REQUEST, out=Path(out), device="cpu", **({"dataset": "digits"} | options))


def evaluate(*sets: str, **options: Any) -> list[Record]:
    request = EvaluationRequest(paths=tuple(map(Path, sets)), **options)
    return start_evaluation(request, out=Path("evaluation"), overwrite=True, device="cpu").records


def splits() -> tuple[cs.ImageData, cs.ImageData]:
    return cs.train_val_split(cs.load("digits", verbose=False).train, 0.2)


def test_the_score_is_that_of_train_val_split() -> None:
    (record,) = run("a", load_fields=VALIDATION).records
    train, val = splits()
    condensed = cs.condense(train, "random", ipc=1, device="cpu", verbose=False)
    scores = cs.evaluate(condensed, val, device="cpu", verbose=False, **PROTOCOL)
    assert record["accuracies"] == list(scores.accuracies) and record["scored_on"] == "validation"
    plan = read_plan(Path("a/recipe.toml"))
    assert (plan.fingerprint, plan.test_fingerprint) == (train.fingerprint, val.fingerprint)
    assert plan.load_options.val_share == 0.2
    assert "scored_on" not in run("b").records[0]


def test_a_resumed_run_has_the_same_score() -> None:
    result = run("a", load_fields=VALIDATION)
    Path("a/results.json").unlink()
    (record,) = resume_run(Path("a")).records
    assert {**record, "evaluate_seconds": 0} == {**result.records[0], "evaluate_seconds": 0}


def test_an_evaluation_scores_on_the_same_images() -> None:
    (record,) = run("a", load_fields=VALIDATION).records
    with warnings.catch_warnings(action="error"):
        (scored,) = evaluate("a")
        (tested,) = evaluate("a", load_fields={"val_share": 0})
    assert (scored["accuracies"], scored["scored_on"]) == (record["accuracies"], "validation")
    assert "scored_on" not in tested and sum(tested["test_images"]) == 364
    with pytest.warns(UserWarning, match="may contain images that a/sets/random-1.safetensors was made from"):
        evaluate("a", load_fields={"val_share": 0.4})
    run("b")
    with pytest.warns(UserWarning, match="contain images that b/sets/random-1.safetensors was made from"):
        evaluate("b", load_fields=VALIDATION)
    for name in ("val_share", "test_share"):
        with pytest.raises(UserError, match=f"test= and {name}= exclude each other"):
            evaluate("a", load_fields={"test": "more", name: 0.2})


def test_a_config_file_keeps_the_choice_until_another_is_given() -> None:
    run("a", load_fields=VALIDATION)
    config = Path("a/recipe.toml")
    assert run("b", dataset=None, config=config).records[0]["scored_on"] == "validation"
    last = run("c", dataset=None, config=config, load_fields={"val_share": 0})
    assert "scored_on" not in last.records[0] and read_plan(Path("c/recipe.toml")).load_options.val_share is None


def test_another_hold_out_for_the_test_keeps_the_validation_images(tmp_path: Path) -> None:
    make_classes(tmp_path / "photos", "ab", count=20)
    run("a", dataset="photos", load_fields=VALIDATION)
    other = run("b", dataset=None, config=Path("a/recipe.toml"), load_fields={"test_share": 0.4})
    assert other.records[0]["scored_on"] == "validation"
    (name,) = read_status(Path("b")).finished_jobs
    assert name == "random-1 (validation)"
    preview = preview_run(SCORE_REQUEST, dataset="photos", device="cpu", load_fields={"test_share": 0.4, **VALIDATION})
    assert preview["test images"] == "not used (a share of 0.4 of every class, held out)"


def test_validation_images_are_no_part_of_a_hold_out_for_the_test(tmp_path: Path) -> None:
    make_classes(tmp_path / "photos", "ab", count=20)
    run("a", dataset="photos", load_fields=VALIDATION)
    plan, held_out = read_plan(Path("a/recipe.toml")), cs.load("photos", test_share=0.2, verbose=False)
    train, val = cs.train_val_split(held_out.train, 0.2)
    assert (plan.fingerprint, plan.test_fingerprint) == (train.fingerprint, val.fingerprint)
    make_classes(tmp_path / "more", "ab", count=2, seed=1)
    with warnings.catch_warnings(action="error"):
        evaluate("a", load_fields={"test_share": 0.2})
        evaluate("a", load_fields={"test": "more"})
    run("b", dataset="photos", load_fields={"test": "more"})
    run("c", dataset=None, config=Path("b/recipe.toml"), load_fields=VALIDATION)  # replaces the test images
    assert read_plan(Path("c/recipe.toml")).load_options.test is None


def test_plan_and_report_name_the_images() -> None:
    run("a", load_fields=VALIDATION)
    preview = preview_run(SCORE_REQUEST, dataset="digits", device="cpu", load_fields=VALIDATION)
    assert preview["validation images"] == "287 (a share of 0.2 of the training images of every class, held out)"
    assert preview["test images"] == "not used"
    page = render_report(dataclasses.replace(collect_content(Path("a")), train=None, features=None))  # no map
    assert "validation accuracy" in page and "test accuracy" not in page
    evaluate("a")
    assert "(validation images: fingerprint" in collect_content(Path("evaluation")).settings["dataset"]
    file = Path("a/sets/random-1.safetensors")
    assert str(find_scores(cs.CondensedSet.load(file), file)).endswith(", validation images)")


def test_only_load_divides_the_training_images() -> None:
    train, val = splits()
    loaded = cs.load("digits", val_share=0.2, verbose=False)
    assert loaded.test is not None and loaded.test.name == "digits" and not loaded.train.allow_hflip
    assert (loaded.train.fingerprint, loaded.test.fingerprint) == (train.fingerprint, val.fingerprint)
    assert (loaded.train.mean, loaded.train.std) == (train.mean, train.std)
    with pytest.raises(UserError, match="an import does not divide the training images: leave out val_share="):
        import_dataset("digits", "mine", **VALIDATION)
    with pytest.raises(UserError, match="a check does not divide the training images: leave out val_share="):
        check_dataset("digits", **VALIDATION)
