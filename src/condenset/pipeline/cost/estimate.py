"""The cost of a run: time, memory and disk of its parts."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from condenset.data.ipc import Ipc, name_set

CONDENSING = "condensing"  # name of the stage that every learned set has


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """The cost of a part of a job.

    Attributes:
        name: What is computed.
        steps: Iterations of a method, or training steps of all networks.
        step_seconds: Time of a step.
        seconds: Time on one device.
        parallel_seconds: Time on all devices, if they do nothing else.
    """

    name: str
    steps: int
    step_seconds: float
    seconds: float
    parallel_seconds: float


@dataclass(frozen=True, kw_only=True)
class JobCost:
    """The cost of one set.

    Attributes:
        method: Name of the method.
        ipc: Images per class.
        stages: The parts of the job.
        classes_per_chunk: Classes that are computed at once.
        num_chunks: Chunks of classes in an iteration of the largest shard.
        num_shards: Parts that the classes are divided into for several devices. 1: they are not divided.
        classes_per_shard: Classes of the largest shard.
        undivided: Why the classes cannot be divided over devices. Empty: they can.
        streamed_bytes: Bytes that an iteration of the largest shard reads from the file of the images. 0: the images
            are in memory.
        streamed_rate: The same per second.
        device_bytes: Peak memory of a device with the largest shard; on a CPU, of a process. 0: not measured.
        set_bytes: Size of the set.
        checkpoint_bytes: Size of the checkpoint and the one before, which are deleted at the end.
        network_bytes: Size of the stored networks, unless an earlier job stores them.
    """

    method: str
    ipc: Ipc
    stages: tuple[StageCost, ...]
    classes_per_chunk: int
    num_chunks: int
    num_shards: int
    classes_per_shard: int
    undivided: str
    streamed_bytes: int
    streamed_rate: float
    device_bytes: int
    set_bytes: int
    checkpoint_bytes: int
    network_bytes: int


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """The cost of a run.

    Attributes:
        dataset: Name or path of the dataset.
        num_classes: Number of classes.
        num_images: Number of training images.
        image_shape: (C, H, W).
        device: Type of the device that was measured, such as "cuda".
        hardware: Its name.
        precision: Precision of the computation.
        gpus: Number of devices.
        jobs: The sets, each by itself.
        whole: The networks that train on the whole dataset. None: there are none.
        parallel_seconds: Time on all devices, which work on all sets at the same time.
        host_bytes: Peak memory of one process with the whole set, without files that it maps.
        dataset_bytes: Size of the training images.
    """

    dataset: str
    num_classes: int
    num_images: int
    image_shape: tuple[int, int, int]
    device: str
    hardware: str
    precision: str
    gpus: int
    jobs: tuple[JobCost, ...]
    parallel_seconds: float
    host_bytes: int
    dataset_bytes: int
    whole: StageCost | None = None

    @property
    def stages(self) -> dict[str, StageCost]:
        """All stages by name."""
        named = {f"{name_set(job.method, job.ipc)}: {stage.name}": stage for job in self.jobs for stage in job.stages}
        return named | ({f"whole dataset: {self.whole.name}": self.whole} if self.whole else {})

    @property
    def seconds(self) -> float:
        """Time on one device."""
        return sum(stage.seconds for stage in self.stages.values())

    @property
    def disk_bytes(self) -> int:
        """Largest size of the run directory without logs: all sets and networks, and the checkpoints of one job."""
        stored = sum(job.set_bytes + job.network_bytes for job in self.jobs)
        return stored + max(job.checkpoint_bytes for job in self.jobs)


def estimate_host_bytes(process_bytes: int, jobs: Sequence[JobCost], device: str) -> int:
    """Return the peak memory of the host: of the process, and of the state of a job while it is written.

    The content of a checkpoint is in memory twice. The state of a GPU is copied to the host before.
    """
    is_cpu = device == "cpu"
    num_states = 2 if is_cpu else 3
    return max(
        max(process_bytes, job.device_bytes if is_cpu else 0) + num_states * job.checkpoint_bytes // 2 for job in jobs
    )


def hand_out(times: Sequence[float], num_workers: int) -> float:
    """Return when the last task ends if tasks of these times are handed out in order as workers become free."""
    ends = [0.0] * min(num_workers, len(times))
    for seconds in times:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends, default=0.0)
