"""Extrapolate the cost of a method's loop from trials with few classes."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

from condenset.data.image_data import ImageData
from condenset.data.stores.streamed_store import is_streamed, stored_bytes
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import split_evenly
from condenset.methods import Recipe, method_of
from condenset.pipeline.cost.trial import (
    TRIAL_BYTES,
    TRIAL_SECONDS,
    LoopTiming,
    TrialRun,
    images_per_iteration,
    measure_loop,
    sample_classes,
)

UNCHUNKED_CLASSES = 50  # of the first trial of a method that computes all classes at once
MIN_CHUNKS = 4  # of the larger trial, to separate the time of a chunk from that of an iteration
TRIAL_STEPS = 4  # steps of the larger trial that should fit in TRIAL_SECONDS


@dataclass(frozen=True, kw_only=True)
class LoopCost:
    """The cost of a loop as a function of the number of classes.

    Attributes:
        timings: Measurements by number of classes, in increasing order. Others are interpolated linearly.
        classes_per_chunk: Classes that are computed at once in the whole dataset.
        device_bytes: Peak memory of the device with the whole dataset, or with the largest shard.
        state_bytes: Size of a checkpoint with the whole dataset.
    """

    timings: dict[int, LoopTiming] = field(default_factory=dict)
    classes_per_chunk: int = 0
    device_bytes: int = 0
    state_bytes: int = 0

    @property
    def num_steps(self) -> int:
        """Number of iterations."""
        return next((timing.num_steps for timing in self.timings.values()), 0)

    def step_seconds(self, num_classes: int) -> float:
        """Return the time of an iteration."""
        return interpolate({num: timing.step_seconds for num, timing in self.timings.items()}, num_classes)

    def seconds(self, num_classes: int) -> float:
        """Return the time of all iterations, with the start."""
        start_seconds = list(self.timings.values())[-1].start_seconds  # kernels are built in the first trial
        return start_seconds + self.num_steps * self.step_seconds(num_classes)


def interpolate(values: dict[int, float], position: int) -> float:
    """Return the value at a position on the line through the two nearest positions with known values."""
    if position in values:
        return values[position]
    if len(values) == 1:
        ((only, value),) = values.items()
        return value * position / only
    (first, low), (second, high) = sorted(sorted(values.items(), key=lambda item: abs(item[0] - position))[:2])
    line = low + (high - low) * (position - first) / (second - first)
    nearest, value = (second, high) if position > second else (first, low)
    return line if line > 0 and high > low else value * position / nearest


def measure_classes(
    data: ImageData,
    recipe: Recipe,
    compute: ComputeDevice,
    memory_limit: int | None,
    shard_classes: int | None = None,
    part: ImageData | None = None,
) -> LoopCost:
    """Measure a method on one chunk of classes, and on as many chunks as a short trial allows.

    Args:
        data: The dataset, of which only the shape is used.
        recipe: The settings of the method.
        compute: Device and precision.
        memory_limit: Limit of the memory in bytes.
        shard_classes: Classes of the smallest shard, which are measured too if they are few.
        part: The images of the largest shard, which a device has. None: all.
    """
    meter, num_classes = _LoopMeter(data, recipe, compute, memory_limit), data.num_classes
    first_classes = min(meter.chunk or UNCHUNKED_CLASSES, num_classes)
    timings = {first_classes: meter.measure(first_classes)}
    if first_classes < num_classes:
        num_chunks = max(2, meter.num_chunks_that_fit(first_classes, timings[first_classes]))
        more_classes = min(num_classes, num_chunks * first_classes)
        timings[more_classes] = meter.measure(more_classes)
        if num_chunks < MIN_CHUNKS and more_classes < num_classes:
            del timings[first_classes]  # a line through both would multiply the noise
    elif compute.device.type == "cuda":
        timings[first_classes] = meter.measure(first_classes)  # the first trial builds kernels
    if shard_classes and shard_classes < first_classes:
        timings = {shard_classes: meter.measure(shard_classes), **timings}
    return LoopCost(
        timings=timings,
        classes_per_chunk=meter.chunk or num_classes,
        device_bytes=meter.device_bytes(part or data, max(timings), timings[max(timings)]),
        state_bytes=round(interpolate({num: item.state_bytes for num, item in timings.items()}, num_classes)),
    )


def count_streamed_bytes(data: ImageData, recipe: Recipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes that an iteration reads from the file of the images; 0 if they are in memory."""
    if not method_of(recipe).streams_images or not is_streamed(data, compute, memory_limit, zca=recipe.zca):
        return 0
    batch_size: int = min(getattr(recipe, "batch_size", 0), data.largest_class)
    return data.num_classes * batch_size * math.prod(data.images.shape[1:])


class _LoopMeter:
    """Measure trials of a method on random images in the shape of some classes of a dataset."""

    def __init__(self, data: ImageData, recipe: Recipe, compute: ComputeDevice, memory_limit: int | None) -> None:
        self.data, self.recipe, self.compute, self.memory_limit = data, recipe, compute, memory_limit
        self.max_bytes = TRIAL_BYTES if memory_limit is None else min(TRIAL_BYTES, memory_limit // 4)
        self.chunk: int | None = None  # classes that are computed at once; None: all
        self._estimates: dict[int, int] = {}  # of the memory of trials, by number of classes
        if get_chunk := method_of(recipe).classes_per_chunk:
            self.chunk = split_evenly(data.num_classes, get_chunk(data, recipe, compute, memory_limit))[0].stop

    def measure(self, num_classes: int) -> LoopTiming:
        """Run a trial with some classes, and the chunks of the whole dataset."""
        trial = sample_classes(self.data, self.recipe, num_classes, self.max_bytes)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # the whole dataset is of interest
            self._estimates[num_classes] = self._estimate_bytes(*trial)
        chunk = min(self.chunk, num_classes) if self.chunk else None
        return measure_loop(
            *trial, TrialRun(compute=self.compute, classes_per_chunk=chunk, memory_limit=self.memory_limit)
        )

    def num_chunks_that_fit(self, num_classes: int, timing: LoopTiming) -> int:
        """Return how many chunks a second trial can have: few if a chunk takes long or has many pixels."""
        by_time = TRIAL_SECONDS / (TRIAL_STEPS * max(timing.step_seconds, 1e-9))
        bytes_per_class = images_per_iteration(self.recipe) * math.prod(self.data.images.shape[1:])
        return int(min(by_time, self.max_bytes // (num_classes * bytes_per_class), self.data.num_classes))

    def device_bytes(self, data: ImageData, num_classes: int, timing: LoopTiming) -> int:
        """Return the peak memory with some data: that of a trial, and the difference of the estimates."""
        further_bytes = self._estimate_bytes(data, self.recipe) - self._estimates[num_classes]
        return max(0, timing.peak_bytes + further_bytes)

    def _estimate_bytes(self, data: ImageData, recipe: Recipe) -> int:
        """Return an estimate of the memory of a method; if there is none, the size of the images."""
        estimate = method_of(recipe).estimate_memory
        if estimate is None:
            return stored_bytes(data, zca=recipe.zca)
        return estimate(data, recipe, self.compute, self.memory_limit)
