"""Train several networks at once on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

import torch

from condenset import networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import ComputeDevice
from condenset.engine.compile import uses_custom_kernels
from condenset.engine.memory import num_networks_that_fit, split_evenly
from condenset.engine.tasks import Engine
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol

# One network leaves part of a GPU idle. In batches of 64, 10 are a tenth faster than 5, in batches of 256 2%.
MAX_PARALLEL = 10


def train_in_parallel(trainings: Sequence[Iterator[int]], device: torch.device) -> Iterator[int]:
    """Advance all trainings in turn, and yield the number of steps that all have done.

    Args:
        trainings: Iterators of `Trainer.iter_train`, which all yield the same numbers of steps.
        device: The device. On a GPU each training gets its own stream.
    """
    streams = [torch.cuda.Stream(device) for _ in trainings] if device.type == "cuda" else []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream(device))
    num_done: int | None = None
    try:
        while True:
            for position, training in enumerate(trainings):
                with torch.cuda.stream(streams[position]) if streams else contextlib.nullcontext():
                    num_done = next(training, None)
            if num_done is None:
                break
            yield num_done
    finally:  # also if the consumer stops early: the memory that the streams write to may be reused afterwards
        for stream in streams:
            torch.cuda.current_stream(device).wait_stream(stream)


def remaining_groups(num: int, max_size: int, remaining: Collection[int]) -> list[list[int]]:
    """Split the networks that remain to be trained into groups that train in parallel.

    All networks are split, not only the remaining ones, so that the groups are the same after an interruption.

    Args:
        num: The number of all networks.
        max_size: The largest size of a group.
        remaining: The indices of the networks that remain.
    """
    groups = [[index for index in range(num)[part] if index in remaining] for part in split_evenly(num, max_size)]
    return [group for group in groups if group]


def num_networks_per_task(num: int, engine: Engine, num_parallel: int) -> int:
    """Return how many of `num` networks a task trains: those that train in parallel, but so that all workers work."""
    return max(1, min(num_parallel, -(-num // engine.num_workers())))


def num_parallel(protocol: Protocol, data: DeviceDataset | ImageData | CondensedSet, compute: ComputeDevice) -> int:
    """Return how many networks to train at once: several on a GPU if the custom kernels are used and they fit."""
    if compute.device.type != "cuda" or not networks.has_default_init(protocol.network):
        return 1
    images = data.images_NCHW if isinstance(data, DeviceDataset) else data.images
    image = (images.shape[1], images.shape[2], images.shape[3])
    with torch.device("meta"):
        network = networks.build(protocol.network, channels=image[0], size=image[1], num_classes=data.num_classes)
    if not uses_custom_kernels(network, compute):
        return 1
    num_that_fit = num_networks_that_fit(network, compute, image, min(protocol.batch_size, len(data)))
    return max(1, min(MAX_PARALLEL, num_that_fit))
