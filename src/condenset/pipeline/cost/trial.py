"""Measure a few real iterations of a method, or training steps of networks, on random images.

The time of a step does not depend on what images show, so a trial needs the shape of a dataset alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.engine.device import ComputeDevice
from condenset.methods import DMRecipe, Recipe, method_of
from condenset.methods.matching.recipe import POOL_SAMPLERS
from condenset.methods.unrolled.mtt_recipe import MTTRecipe
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training.dataset import DeviceDataset
from condenset.training.parallel import train_in_parallel
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

TRIAL_SECONDS = 2.0  # of measured iterations
TRIAL_BYTES = 2**30  # of random images
BLOCK_BYTES = 2**24  # of different random pixels, which repeat
SAMPLE_SECONDS = 0.2  # between two samples of the time
MAX_STEPS = 10**8  # of a training, which is stopped before


def random_pixels(num_images: int, shape: Sequence[int]) -> Tensor:
    """Return (N, C, H, W) random uint8 images. Images repeat if there are many."""
    image_bytes = shape[0] * shape[1] * shape[2]
    num_different = min(num_images, max(1, BLOCK_BYTES // image_bytes))
    generator = torch.Generator().manual_seed(0)
    block = torch.randint(0, 256, (num_different, *shape), generator=generator, dtype=torch.uint8)
    return block[torch.arange(num_images) % num_different]


def sample_classes(
    data: ImageData, recipe: Recipe, num_classes: int, max_bytes: int = TRIAL_BYTES
) -> tuple[ImageData, Recipe]:
    """Return random images in place of the first classes of a dataset, and the recipe for these classes.

    Large classes have fewer images than in the dataset, but as many as an iteration needs, if they exceed `max_bytes`.
    """
    max_count = max(images_per_iteration(recipe), max_bytes // (num_classes * math.prod(data.images.shape[1:])))
    counts = torch.tensor([min(count, max_count) for count in data.class_counts[:num_classes]])
    trial = ImageData(
        images=random_pixels(int(counts.sum()), data.images.shape[1:]),
        labels=torch.repeat_interleave(torch.arange(num_classes), counts),
        class_names=data.class_names[:num_classes],
        mean=data.mean,
        std=data.std,
        name=data.name,
        allow_hflip=data.allow_hflip,
        stored_fingerprint="trial",
    )
    ipc = recipe.ipc if isinstance(recipe.ipc, int) else recipe.ipc[:num_classes]
    return trial, dataclasses.replace(recipe, ipc=ipc)


def trial_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a trial: a pool has one network of one epoch, since the time depends on neither."""
    if isinstance(recipe, MTTRecipe):
        return dataclasses.replace(recipe, pool="", pool_size=1, max_start_epoch=1, expert_epochs=1)
    if not isinstance(recipe, DMRecipe) or recipe.sampler not in POOL_SAMPLERS:
        return recipe
    return dataclasses.replace(recipe, pool="", group="all", pool_size=1, pool_epochs=1)


def images_per_iteration(recipe: Recipe) -> int:
    """Return how many images per class a trial needs: for an iteration, and for the initial images."""
    num_initial = max(recipe.ipc) if isinstance(recipe.ipc, tuple) else recipe.ipc
    return max(getattr(recipe, "batch_size", 1), num_initial * recipe.layout.num_parts)


@dataclass(kw_only=True)
class TrialRun(RunContext):
    """A run without directory that stops when its iterations have been measured.

    Attributes:
        num_steps: Number of iterations of the whole loop.
        began: The time when the loop began.
        samples: Times at which the device had finished all steps so far, with the number of these steps.
        state_bytes: Size of the state that a checkpoint contains.
    """

    num_steps: int = 0
    began: float = 0.0
    samples: list[tuple[float, int]] = field(default_factory=list)
    state_bytes: int = 0

    def load_checkpoint(self, state: Mapping[str, Tensor], num_steps: int) -> int:
        """Note the beginning of the loop. Networks of a pool, which have a directory, are not measured."""
        if self.directory is not None:
            return super().load_checkpoint(state, num_steps)
        self.num_steps, self.began = num_steps, time.monotonic()
        self.state_bytes = sum(tensor.nbytes for tensor in state.values())
        return 0

    def save_checkpoint(self, step: int, seconds: float, state: Mapping[str, Tensor], *, force: bool = False) -> None:
        """Note the time, and stop the loop after enough steps. The loop has waited for the device."""
        if self.directory is not None:
            super().save_checkpoint(step, seconds, state, force=force)
            return
        self.samples.append((time.monotonic(), step))
        if len(self.samples) > 1 and self.samples[-1][0] - self.samples[0][0] >= TRIAL_SECONDS:
            raise Interrupted


@dataclass(frozen=True, kw_only=True)
class LoopTiming:
    """The measured cost of the loop of a method.

    Attributes:
        num_steps: Steps of the whole loop.
        step_seconds: Time of a step.
        start_seconds: Time from the beginning of the loop to its first step.
        state_bytes: Size of a checkpoint.
        peak_bytes: Peak memory of the device, or of the process on a CPU.
    """

    num_steps: int = 0
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    state_bytes: int = 0
    peak_bytes: int = 0


def measure_loop(data: ImageData, recipe: Recipe, run: TrialRun) -> LoopTiming:
    """Run a method until its iterations are measured. A method without a loop takes no time."""
    if run.compute.device.type == "cuda":
        gc.collect()  # the memory of an earlier trial would count
    with contextlib.suppress(Interrupted):
        method_of(recipe).condense(data, recipe, run)
    peak_bytes = run.compute.peak_memory()
    if not run.samples:
        return LoopTiming(peak_bytes=peak_bytes)
    first_time, first_step = run.samples[0]
    has_pairs = run.samples[-1][1] > first_step  # not if the recipe has one iteration
    step_seconds = median_step_seconds(run.samples) if has_pairs else first_time - run.began
    return LoopTiming(
        num_steps=run.num_steps,
        step_seconds=step_seconds,
        start_seconds=max(0.0, first_time - run.began - first_step * step_seconds),
        state_bytes=run.state_bytes,
        peak_bytes=peak_bytes,
    )


def median_step_seconds(samples: Sequence[tuple[float, int]]) -> float:
    """Return the median time of a step between samples of the time and the number of steps."""
    pairs = [(first, second) for first, second in itertools.pairwise(samples) if second[1] > first[1]]
    return statistics.median((end - start) / (last - first) for (start, first), (end, last) in pairs)


def measure_training(
    images_NCHW: Tensor, num_classes: int, protocol: Protocol, compute: ComputeDevice, num_networks: int
) -> float:
    """Return the seconds of a training step of one of several networks that train in parallel.

    Args:
        images_NCHW: Images to train on: floats, or uint8 as in a dataset.
        num_classes: The number of classes.
        protocol: How the networks are trained.
        compute: Device and precision.
        num_networks: Networks that train in parallel.
    """
    protocol = dataclasses.replace(protocol, steps=MAX_STEPS)
    scale, shift = (torch.full((images_NCHW.shape[1], 1, 1), value, device=compute.device) for value in (1 / 64, -2.0))
    labels = torch.arange(len(images_NCHW), device=compute.device) % num_classes
    dataset = DeviceDataset(images_NCHW.to(compute.device), labels, scale, shift, True, num_classes)
    trainers = [Trainer(protocol.network, dataset, protocol, compute) for _ in range(num_networks)]
    trainings = [trainer.iter_train(0, "trial", number) for number, trainer in enumerate(trainers)]
    samples: list[tuple[float, int]] = []
    first = trainers[0].steps_per_epoch if compute.device.type == "cuda" else 1  # steps that are captured on a GPU
    for done in train_in_parallel(trainings, compute.device):
        if done >= first and (not samples or time.monotonic() - samples[-1][0] >= SAMPLE_SECONDS):
            if compute.device.type == "cuda":
                torch.cuda.synchronize(compute.device)
            samples.append((time.monotonic(), done))
            if len(samples) > 1 and samples[-1][0] - samples[0][0] >= TRIAL_SECONDS:
                break
    return median_step_seconds(samples) / num_networks
