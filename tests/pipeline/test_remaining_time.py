"""Test the estimate of the time that all jobs of a run still need."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from condenset.io.progress import NullProgress, format_duration
from condenset.pipeline.plan import Plan
from condenset.pipeline.remaining_time import CONDENSING, SCORING, RemainingTime, suggest_quick_options
from helpers.plans import NETWORK, SPLITS, execute_in, make_tiny_plan
from helpers.recording_engine import RecordingEngine

QUICK = "; for a quick look, start a run with --no-whole"


@pytest.fixture
def plan() -> Plan:
    """A plan of random-1, mmd-1, random-2, mmd-2 and the whole dataset of 12 images in 2 classes."""
    fields = {"num_networks": 2, "epochs": 9, "network": NETWORK}  # 2 networks of 10 steps
    recipe_fields = {"iterations": 100, "network": NETWORK}
    return make_tiny_plan(
        methods=("random", "mmd"), ipcs=(1, 2), recipe_fields=recipe_fields, protocol_fields=fields, whole=True
    )


def make_remaining(plan: Plan, *, finished: tuple[str, ...] = (), condensed: tuple[str, ...] = ()) -> RemainingTime:
    return RemainingTime(plan, SPLITS.train, finished, condensed)


def test_later_jobs_count_with_the_measured_speed(plan: Plan) -> None:
    assert plan.whole is not None
    whole_steps = plan.whole.num_networks * plan.whole.training_steps(12)
    remaining = make_remaining(plan)
    remaining.begin("random-1", SCORING)
    # 2 images take 10 s per step. 4 images take 10 s to 20 s, and the 12 images of the whole dataset 10 s to 60 s.
    low, high = 20 * (10 + 10 + 10) + whole_steps * 10, 20 * (10 + 20 + 20) + whole_steps * 60
    seconds, text = remaining(20, 10.0, 50.0)
    assert seconds == 50 + low  # the time of mmd is unknown
    assert text == f"at least {format_duration(seconds)} remaining in total{QUICK}"
    remaining.begin("mmd-1", CONDENSING)
    low, high = low + 30 + 100 * 7, high + 30 + 200 * 7
    seconds, text = remaining(100, 7.0, 30.0)
    assert seconds == (low + high) / 2
    assert text.startswith(f"{format_duration(low)} to {format_duration(high)} remaining in total;")
    remaining.begin("random-2", SCORING)
    remaining(20, 12.0, 30.0)
    remaining.begin("mmd-2", SCORING)  # as long as random-2
    assert remaining(20, 12.0, 240.0)[0] == 240 + whole_steps * (12 + 36) / 2
    remaining.begin("whole", SCORING)
    assert remaining(whole_steps, 60.0, 7200.0) == (7200.0, f"about 2.0 h remaining{QUICK}")


def test_speed_of_a_preparation_is_not_that_of_the_job(plan: Plan) -> None:
    remaining = make_remaining(plan)
    remaining.begin("mmd-1", CONDENSING)
    assert remaining(55, 10.0, 50.0)[0] == 50  # such as a pool of networks
    assert remaining(None, 10.0, 50.0)[0] == 50


def test_finished_work_does_not_count(plan: Plan) -> None:
    remaining = make_remaining(plan, finished=("random-1", "random-2", "whole"), condensed=("mmd-2",))
    remaining.begin("mmd-1", CONDENSING)
    remaining(100, 7.0, 0.0)
    remaining.begin("mmd-1", SCORING)
    assert remaining(20, 1.0, 0.0)[0] == 20 * (1 + 2) / 2  # the scoring of mmd-2


def test_random_images_count_with_their_own_number_of_networks(plan: Plan) -> None:
    for number, networks in ((None, 2), (1, 1)):
        fewer = dataclasses.replace(plan, num_networks_on_random=number)
        remaining = make_remaining(fewer, finished=("random-1", "mmd-2", "whole"), condensed=("mmd-1",))
        remaining.begin("mmd-1", SCORING)
        assert remaining(20, 1.0, 0.0)[0] == networks * 10 * (1 + 2) / 2  # the scoring of random-2


def test_sizes_that_are_learned_at_once_count_once() -> None:
    fields = {"num_networks": 1, "epochs": 1, "network": NETWORK}
    plan = make_tiny_plan(methods=("dm",), ipcs=(1, 2), protocol_fields=fields)
    remaining = make_remaining(plan)
    remaining.begin("dm-1", CONDENSING)
    assert remaining(2, 10.0, 5.0)[0] == 5
    assert make_tiny_plan(methods=("dm",), ipcs=(1, 2)).jobs_to_share(plan.jobs[0])  # otherwise this tests nothing


def test_quick_options_are_those_that_shorten_the_run(plan: Plan) -> None:
    assert suggest_quick_options(plan) == "--no-whole"
    fields = {"num_networks": 20, "epochs": 1000}
    long = make_tiny_plan(recipe_fields={"iterations": 3000}, protocol_fields=fields, whole=True)
    assert suggest_quick_options(long) == "--iterations 500 --nets 3 --epochs 300 --no-whole"
    condense = make_tiny_plan(recipe_fields={"iterations": 3000}, protocol_fields={}, evaluate=False)
    assert suggest_quick_options(condense) == "--iterations 500"
    quick = make_tiny_plan(recipe_fields={"iterations": 500}, protocol_fields={"num_networks": 3, "epochs": 300})
    assert suggest_quick_options(quick) == ""


class EstimateRecorder(NullProgress):
    """Record the estimate at the start of every task, which takes 100 s per step and 1 s in total."""

    def __init__(self) -> None:
        self.estimates: dict[str, tuple[float, str] | None] = {}

    def start(self, description: str, total: int | None, done: int = 0, *, unit: str = "") -> None:
        self.estimates[description] = self.estimate_run(total, 100.0, 1.0) if self.estimate_run else None

    @property
    def seconds(self) -> dict[str, float]:
        return {description: estimate[0] for description, estimate in self.estimates.items() if estimate}


def test_run_estimates_the_time_of_all_jobs(tmp_path: Path) -> None:
    progress = EstimateRecorder()
    execute_in(tmp_path, make_tiny_plan(), progress=progress)  # 2 networks of 2 steps
    assert progress.seconds == {"random-1: scoring": 401, "dm, 1 per class": 401, "dm-1: scoring": 1}
    assert progress.estimate_run is None  # the report is not a job
    (tmp_path / "results.json").unlink()
    execute_in(tmp_path, make_tiny_plan(), progress=progress)
    assert progress.estimates["random-1: scoring"] == (401, "about 7 min remaining in total")  # the set of dm exists


def test_steps_are_those_of_the_tasks(tmp_path: Path) -> None:
    protocol_fields = {"num_networks": 1, "epochs": 1, "batch_size": 2, "network": NETWORK}
    recipe_fields = {"iterations": 1, "network": NETWORK, "partition": 2, "outer_steps": 3, "inner_epochs": 1}
    plan = make_tiny_plan(
        methods=("dc", "dm"), ipcs=(1, 2), recipe_fields=recipe_fields, protocol_fields=protocol_fields
    )
    progress = EstimateRecorder()
    execute_in(tmp_path, plan, progress=progress)
    # The jobs after dm-1: dc-2 has 3 steps on twice the images of dc-1, and dm-2 is learned with dm-1. Networks train
    # for 2 epochs in batches of 2 images, on 4 images of dc-2 and on 16 that dm-2 decodes to.
    assert progress.seconds["dm-1: scoring"] == 1 + 100 * (3 * (1 + 2) / 2 + 2 * (2 + 8))
    assert progress.seconds["dm-2: scoring"] == 1  # nothing is left after it


def test_an_engine_works_on_all_jobs_at_once(tmp_path: Path) -> None:
    progress = EstimateRecorder()
    execute_in(tmp_path, make_tiny_plan(), progress=progress, engine=RecordingEngine())
    assert progress.seconds == {}
