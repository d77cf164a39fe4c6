"""Test which test images a run uses, and that a resumed run reads the same data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from condenset import UserError, evaluate, load
from condenset.pipeline.config import read_plan
from condenset.pipeline.plan import Plan
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import RunResult
from condenset.pipeline.run import resume_run, start_run
from helpers.data_files import make_classes
from helpers.plans import SCORE_REQUEST

CONDENSE = RunRequest(methods=("random",), ipcs=(1,), evaluate=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of two classes with ten images each, without splits."""
    make_classes(tmp_path / "photos", "ab", count=10)
    return tmp_path / "photos"


def run(request: RunRequest, out: str, **options: Any) -> tuple[RunResult, Plan]:
    result = start_run(request, out=Path(out), device="cpu", **options)
    return result, read_plan(result.directory / "recipe.toml")


def test_a_scored_run_holds_out_a_fifth_and_records_it(photos: Path) -> None:
    result, plan = run(SCORE_REQUEST, "a", dataset="photos")
    splits = load(photos, test_share=0.2)
    assert plan.load_options.test_share == 0.2 and len(splits.test) == 4
    assert (plan.fingerprint, plan.test_fingerprint) == (splits.train.fingerprint, splits.test.fingerprint)
    assert resume_run(Path("a")).records == result.records


def test_condense_uses_every_image(photos: Path) -> None:
    _, plan = run(CONDENSE, "a", dataset="photos")
    assert plan.load_options.test_share is None and plan.fingerprint == load(photos).train.fingerprint
    _, scored = run(SCORE_REQUEST, "b", config=Path("a/recipe.toml"))  # a run of its config needs test images
    assert scored.load_options.test_share == 0.2
    _, shared = run(CONDENSE, "c", dataset="photos", load_fields={"test_share": 0.5})
    assert shared.fingerprint == load(photos, test_share=0.5).train.fingerprint


def test_test_images_of_their_own_path_are_recorded_and_may_move(photos: Path, tmp_path: Path) -> None:
    make_classes(tmp_path / "more", "ab", count=2, seed=1)
    result, plan = run(SCORE_REQUEST, "a", dataset="photos", load_fields={"test": "more"})
    assert plan.load_options.test == str(tmp_path / "more")
    assert plan.test_fingerprint == load(photos, test="more").test.fingerprint
    shutil.move(tmp_path / "more", tmp_path / "moved")
    with pytest.raises(UserError, match="give its path with --dataset, --test or --data-dir"):
        resume_run(Path("a"))
    assert resume_run(Path("a"), test_moved_to="moved").records == result.records
    make_classes(tmp_path / "other", "ab", count=3, seed=2)
    with pytest.raises(UserError, match="other is not the dataset that a began with"):
        resume_run(Path("a"), test_moved_to="other")


def test_a_choice_of_test_images_replaces_that_of_the_config(photos: Path, tmp_path: Path) -> None:
    make_classes(tmp_path / "more", "ab", count=2, seed=1)
    run(SCORE_REQUEST, "a", dataset="photos", load_fields={"test_share": 0.5})
    _, same = run(RunRequest(), "b", config=Path("a/recipe.toml"))
    assert same.load_options.test_share == 0.5
    _, other = run(RunRequest(), "c", config=Path("a/recipe.toml"), load_fields={"test": "more"})
    assert other.load_options.test_share is None and other.load_options.test == str(tmp_path / "more")


def test_moved_test_images_need_a_recorded_path(toy: Path) -> None:
    run(SCORE_REQUEST, "a", dataset="toy.npz")
    with pytest.raises(UserError, match="a has no test images of their own path, but got 'more'"):
        resume_run(Path("a"), test_moved_to="more")


def test_a_hold_out_is_refused_if_there_is_a_test_split(toy: Path) -> None:
    with pytest.raises(UserError, match="toy has a test split, so there is nothing to hold out"):
        run(SCORE_REQUEST, "a", dataset="toy.npz", load_fields={"test_share": 0.2})


def test_evaluation_without_test_images_names_the_way_out(photos: Path) -> None:
    splits = load(photos)
    with pytest.raises(UserError, match=r"load the dataset with test='PATH' or test_share=0\.2"):
        evaluate(splits.train, splits.test)
    with pytest.raises(UserError, match="photos has no test images"):
        splits.require_test()
