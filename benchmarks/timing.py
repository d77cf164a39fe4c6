"""Shared parts of the benchmarks: random data and timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from condenset import ImageData

STRETCH_SECONDS = 0.1  # calls per measurement fill about this time


def random_data(num_classes: int, per_class: int, size: int, channels: int) -> ImageData:
    """Return random images. The time of a step does not depend on what images show."""
    generator = torch.Generator().manual_seed(0)
    shape = (num_classes * per_class, channels, size, size)
    return ImageData(
        images=torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
        labels=torch.arange(num_classes).repeat_interleave(per_class),
        class_names=tuple(map(str, range(num_classes))),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
    )


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_calls(functions: Sequence[Callable[[], object]], device: torch.device, seconds: float) -> list[float]:
    """Return the minimum time of one call of each function, in milliseconds.

    The functions take turns in short stretches, so that noise on the machine affects all of them.

    Args:
        functions: What to time.
        device: The device that they run on.
        seconds: Time for each function. Each gets at least three turns.
    """

    def time_stretch(function: Callable[[], object], num_calls: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(num_calls):
            function()
        synchronize(device)
        return (time.perf_counter() - start) / num_calls

    for function in functions:
        function()
    num_calls = [max(1, int(STRETCH_SECONDS / time_stretch(function, 1))) for function in functions]
    turns: list[list[float]] = []
    end = time.perf_counter() + seconds * len(functions)
    while len(turns) < 3 or time.perf_counter() < end:
        turns.append([time_stretch(function, num) for function, num in zip(functions, num_calls, strict=True)])
    return [1e3 * min(times) for times in zip(*turns, strict=True)]
