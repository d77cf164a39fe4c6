"""The cost of a run: time, memory and disk of its parts."""

from __future__ import annotations

from dataclasses import dataclass

from condenset.data.ipc import Ipc

CONDENSING = "condensing"  # name of the stage that every learned set has


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """The cost of a part of a job.

    Attributes:
        name: What is computed.
        steps: Iterations of a method, or training steps of all networks.
        step_seconds: Time of a step.
        seconds: Time on one device.
        parallel_seconds: Time on all devices.
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
        num_chunks: Chunks of classes in an iteration.
        num_shards: Parts that the classes are divided into for several devices. 1: they are not divided.
        classes_per_shard: Classes of the largest shard.
        undivided: Why the classes cannot be divided over devices. Empty: they can.
        streamed_bytes: Bytes that an iteration reads from the file of the images. 0: the images are in memory.
        device_bytes: Peak memory of the device; on a CPU, of the process. 0: not measured.
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
        host_bytes: Peak memory of the process, without files that it maps.
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
    host_bytes: int
    dataset_bytes: int

    @property
    def seconds(self) -> float:
        """Time on one device."""
        return sum(stage.seconds for job in self.jobs for stage in job.stages)

    @property
    def parallel_seconds(self) -> float:
        """Time on all devices."""
        return sum(stage.parallel_seconds for job in self.jobs for stage in job.stages)

    @property
    def disk_bytes(self) -> int:
        """Largest size of the run directory without logs: all sets and networks, and the checkpoints of one job."""
        stored = sum(job.set_bytes + job.network_bytes for job in self.jobs)
        return stored + max(job.checkpoint_bytes for job in self.jobs)
