"""Describe a run before it starts: the plan that `--dry-run` prints, and advice about large images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from condenset.data.image_data import ImageData, Splits
from condenset.data.ipc import format_ipc
from condenset.data.reading.options import LoadOptions
from condenset.data.stores.streamed_store import is_streamed
from condenset.engine.device import ComputeDevice
from condenset.io.bytesize import format_bytes
from condenset.io.directories import find_unique_directory
from condenset.methods import Recipe, method_of
from condenset.pipeline.plan import Plan, describe_scoring
from condenset.pipeline.request import RunRequest
from condenset.pipeline.run import plan_run
from condenset.runs.directory import default_run_directory
from condenset.training.protocol import describe_protocol

ADVISED_SIZE = 64  # pixels; larger images make most runs slow
HIDDEN_FIELDS = ("ipc", "allow_fewer")  # of recipes

Preview = dict[str, str]
"""What a run would do: text by label."""


def preview_run(request: RunRequest, *, out: Path | None = None, **arguments: Any) -> Preview:
    """Return what `start_run` would do with the same arguments. Nothing is written."""
    plan, splits = plan_run(request, out=out, **arguments)
    compute = ComputeDevice.select(plan.device, plan.precision)
    rows = {
        "dataset": plan.dataset,
        **describe_splits(splits, plan.load_options),
        **describe_compute(compute, plan.memory_limit),
        "seed": str(plan.seed),
    }
    for job in plan.condense_jobs:
        assert job.recipe is not None
        rows[f"{job.method}, {format_ipc(job.ipc)} per class"] = describe_recipe(
            job.recipe, splits.train, compute, plan.memory_limit
        )
    if plan.protocol:
        rows["scoring"] = describe_scoring(plan)
    if plan.whole:
        rows["whole dataset"] = describe_protocol(plan.whole)
    rows["directory"] = str(out or find_unique_directory(default_run_directory(splits.train.name)))
    advice = advise_size(plan, splits.train)
    return {**rows, "advice": advice} if advice else rows


def describe_splits(splits: Splits, options: LoadOptions) -> Preview:
    """Return the number of images and classes, and the shape of the images."""
    train, test = splits.train, splits.test
    origin = "" if options.test is None else f" ({options.test})"
    if options.test_share is not None:
        origin = f" (a share of {options.test_share:g} of every class, held out)"
    held_out: Preview = {}
    if options.val_share is not None:
        held_out = {"test images": f"not used{origin}"}
        origin = f" (a share of {options.val_share:g} of the training images of every class, held out)"
    return {
        "training images": f"{len(train):,}",
        f"{options.scored_on} images": "none" if test is None else f"{len(test):,}{origin}",
        **held_out,
        "classes": f"{train.num_classes:,}",
        "image shape": f"{train.channels}x{train.size}x{train.size}",
    }


def describe_compute(compute: ComputeDevice, memory_limit: int | None) -> Preview:
    """Return the device, its precision and the memory limit."""
    limit = "" if memory_limit is None else f", at most {format_bytes(memory_limit)}"
    return {"device": f"{compute.hardware}, {compute.precision}{limit}"}


def describe_recipe(recipe: Recipe, data: ImageData, compute: ComputeDevice, memory_limit: int | None) -> str:
    """Return the settings of a method in one line, with an estimate of its memory where there is one."""
    hidden = HIDDEN_FIELDS if recipe.zca else (*HIDDEN_FIELDS, "zca")
    fields = {name: value for name, value in recipe.to_dict().items() if name not in hidden and value not in ("", None)}
    text = ", ".join(f"{name}={value}" for name, value in fields.items())
    estimate = method_of(recipe).estimate_memory
    if estimate is None:
        return text or "no settings"
    memory = f"about {format_bytes(estimate(data, recipe, compute, memory_limit))} of memory"
    streamed = method_of(recipe).streams_images and is_streamed(data, compute, memory_limit, zca=recipe.zca)
    return f"{text} ({memory}{', images streamed from disk' if streamed else ''})"


def advise_size(plan: Plan, data: ImageData) -> str:
    """Return one line about the time that smaller images would save, or nothing if images are small or resized."""
    if data.size <= ADVISED_SIZE or plan.load_options.size is not None:
        return ""
    factor = (data.size / ADVISED_SIZE) ** 2
    is_path = Path(plan.dataset).is_absolute()
    option = f"{'' if is_path else 'condenset data import with '}--size {ADVISED_SIZE}"
    return f"images are {data.size}x{data.size}; {option} makes an iteration about {factor:.2g} times faster"
