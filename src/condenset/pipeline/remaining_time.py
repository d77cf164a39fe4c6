"""Estimate the time that the jobs of a run still need, from the seconds per step measured in the same run."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

from condenset.data.image_data import ImageData
from condenset.io.progress import format_duration
from condenset.methods.common import images_per_class
from condenset.pipeline.plan import Job, Plan
from condenset.training.protocol import Protocol

CONDENSING, SCORING = 0, 1  # the parts of a job, in order
QUICK_ITERATIONS, QUICK_NETWORKS, QUICK_EPOCHS = 500, 3, 300  # of a run that gives a first impression


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Steps of a run that take equally long.

    Attributes:
        position: The number of the job, and `CONDENSING` or `SCORING`.
        kind: Stages of one kind have the same time per step, except for the number of images.
        steps: The number of steps.
        images: The number of images that the time of a step depends on.
    """

    position: tuple[int, int]
    kind: tuple[int, str]
    steps: int
    images: int


class RemainingTime:
    """The time that a run still needs. A progress bar calls it with the speed of the current task.

    Networks that a method trains first and the selection of coresets are not counted.

    Args:
        plan: The jobs of the run.
        data: The training images.
        finished: The names of jobs that have a result.
        condensed: The names of jobs whose sets exist.
    """

    def __init__(self, plan: Plan, data: ImageData, finished: Container[str], condensed: Container[str]) -> None:
        self._names = [job.name for job in plan.jobs]
        self._stages = _list_stages(plan, data, finished, condensed)
        self._quick_options = suggest_quick_options(plan)
        self._position = (0, CONDENSING)
        self._measured: dict[tuple[int, str], dict[int, float]] = {}  # seconds per step by images, by kind

    def begin(self, job: str, part: int) -> None:
        """Note that a part of a job begins. All parts before it are complete."""
        self._position = (self._names.index(job), part)
        self._stages = [stage for stage in self._stages if stage.position >= self._position]

    def __call__(self, total: int | None, step_seconds: float, remaining: float) -> tuple[float, str]:
        """Return the seconds that the run still needs, and a text that states them.

        Args:
            total: The steps of the current task, which may be a part of a job or a preparation.
            step_seconds: Its seconds per step.
            remaining: The seconds that it still needs.
        """
        later = self._stages
        if later and (later[0].position, later[0].steps) == (self._position, total):
            self._measured.setdefault(later[0].kind, {})[later[0].images] = step_seconds
            later = later[1:]
        bounds = [self._bound(stage) for stage in later]
        low, high = (remaining + sum(pair[index] for pair in bounds) for index in (0, 1))
        seconds = low if high == math.inf else (low + high) / 2
        scope = " in total" if later else ""
        advice = f"; for a quick look, start a run with {self._quick_options}" if self._quick_options else ""
        return seconds, f"{_format_bounds(low, high)} remaining{scope}{advice}"

    def _bound(self, stage: Stage) -> tuple[float, float]:
        """Return the least and the most seconds of a stage: a step is constant to proportional in its images."""
        if stage.kind not in self._measured:
            return 0.0, math.inf
        measured = self._measured[stage.kind]
        images = min(measured, key=lambda number: abs(number - stage.images))
        seconds = stage.steps * measured[images]
        low, high = sorted((seconds, seconds * stage.images / images))
        return low, high


def _format_bounds(low: float, high: float) -> str:
    """Return a range of durations as text: `about 12 min`, `12 min to 3.5 h` or `at least 12 min`."""
    if high == math.inf:
        return f"at least {format_duration(low)}"
    texts = dict.fromkeys(map(format_duration, (low, high)))  # one if both are the same
    return " to ".join(texts) if len(texts) > 1 else f"about {format_duration(low)}"


def _list_stages(plan: Plan, data: ImageData, finished: Container[str], condensed: Container[str]) -> list[Stage]:
    """Return the stages of the jobs that have no result, in order."""
    stages, shared = [], set[str]()  # sets that are learned at once with an earlier one
    for number, job in enumerate(plan.jobs):
        if job.name in finished:
            continue
        num_images = len(data) if job.recipe is None else sum(images_per_class(data, job.recipe))
        steps = job.recipe.image_steps if job.recipe else 0
        if steps and job.name not in shared and job.name not in condensed:
            shared |= {other.name for other in plan.jobs_to_share(job)}
            position, kind = (number, CONDENSING), (CONDENSING, job.method)
            stages.append(Stage(position=position, kind=kind, steps=steps, images=num_images))
        protocol = plan.protocol_of(job)
        if protocol:
            stages.append(_scoring_stage(job, (number, SCORING), protocol, num_images))
    return stages


def _scoring_stage(job: Job, position: tuple[int, int], protocol: Protocol, num_images: int) -> Stage:
    num_images *= job.recipe.layout.num_parts if job.recipe else 1
    return Stage(
        position=position,
        kind=(SCORING, protocol.network),
        steps=protocol.num_networks * protocol.training_steps(num_images),
        images=min(protocol.batch_size, num_images),
    )


def suggest_quick_options(plan: Plan) -> str:
    """Return options of the command line that make a run shorter, or nothing if it has them."""
    options = []
    if any(getattr(job.recipe, "iterations", 0) > QUICK_ITERATIONS for job in plan.jobs):
        options.append(f"--iterations {QUICK_ITERATIONS}")
    if plan.protocol and plan.protocol.num_networks > QUICK_NETWORKS:
        options.append(f"--nets {QUICK_NETWORKS}")
    if plan.protocol and plan.protocol.epochs > QUICK_EPOCHS:
        options.append(f"--epochs {QUICK_EPOCHS}")
    if plan.whole:
        options.append("--no-whole")
    return " ".join(options)
