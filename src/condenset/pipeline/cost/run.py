"""Estimate the cost of a run from a few measured iterations: time, memory and disk."""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from condenset.data.image_data import ImageData
from condenset.data.outline import outline_dataset, outline_missing
from condenset.data.streamed_store import is_streamed
from condenset.engine.device import ComputeDevice
from condenset.errors import UserError, check_int, option, option_name
from condenset.io.progress import NullProgress
from condenset.methods import METHODS, DMRecipe, MTTRecipe, Recipe, method_of
from condenset.methods.common import images_per_class
from condenset.methods.coresets.coreset import NetworkCoresetRecipe
from condenset.methods.generative.recipe import GenerativeRecipe
from condenset.methods.matching.network_source import NUM_CHECKPOINTS, estimate_network_bytes
from condenset.methods.matching.pools.trainer import checkpoint_epochs
from condenset.methods.matching.pools.training import expert_protocol
from condenset.methods.matching.recipe import POOL_SAMPLERS
from condenset.methods.samplers import build_on_meta
from condenset.methods.sharding import split_shards
from condenset.pipeline.cost.estimate import CONDENSING, CostEstimate, JobCost, StageCost
from condenset.pipeline.cost.loop import LoopCost, measure_classes
from condenset.pipeline.cost.trial import measure_training, random_pixels
from condenset.pipeline.plan import Job, Plan, make_plan
from condenset.pipeline.request import RunRequest
from condenset.pipeline.run import plan_run
from condenset.training.protocol import Protocol

TRAIN_BYTES = 2**28  # of random images that networks train on
FLOAT_BYTES = 4


def estimate_cost(
    request: RunRequest,
    *,
    dataset: str | None = None,
    classes: int | None = None,
    images: int | None = None,
    gpus: int = 1,
    load_fields: Mapping[str, Any] = MappingProxyType({}),
    progress: NullProgress | None = None,
    **settings: Any,
) -> CostEstimate:
    """Measure a few iterations on random images, and return the cost of the whole run. Nothing is written.

    Args:
        request: Methods, sizes and options.
        dataset: Name or path of the dataset. A registered one need not be on this machine. With `classes` and
            `images`: any name, which presets may depend on.
        classes: Number of classes of a dataset that does not exist yet.
        images: Its images per class. Their size is `size` in `load_fields`.
        gpus: Number of devices to divide the run over.
        load_fields: Fields of `LoadOptions`.
        progress: The progress display.
        settings: Settings of the plan: `device`, `precision`, `memory_limit`, `data_dir`.
    """
    gpus = check_int("gpus", gpus, 1)
    if classes is None and images is None:
        data = outline_missing(dataset, settings.get("data_dir"), load_fields.get("size"))
    else:
        data = _outline_data(dataset, classes, images, load_fields.get("size"))
    if data is None:
        plan, splits = plan_run(request, dataset=dataset, load_fields=load_fields, **settings)
        data = splits.train
    else:
        plan = _plan_outline(data, request, load_fields, settings)
    compute = ComputeDevice.select(plan.device, plan.precision)
    progress = progress or NullProgress()
    meter = _CostMeter(plan, data, compute, gpus, progress)
    try:
        jobs = tuple(meter.measure_job(job) for job in plan.condense_jobs)
    finally:
        progress.stop()
    process_bytes = ComputeDevice(torch.device("cpu"), torch.float32).peak_memory()
    host_bytes = process_bytes + max(job.checkpoint_bytes for job in jobs) // 2
    if compute.device.type == "cpu":
        host_bytes = max(host_bytes, *(job.device_bytes for job in jobs))
    return CostEstimate(
        dataset=plan.dataset,
        num_classes=data.num_classes,
        num_images=len(data),
        image_shape=(data.channels, data.size, data.size),
        device=compute.device.type,
        hardware=compute.hardware,
        precision=compute.precision,
        gpus=gpus,
        jobs=jobs,
        host_bytes=host_bytes,
        dataset_bytes=data.images.numel(),
    )


def _outline_data(dataset: str | None, classes: int | None, images: int | None, size: int | None) -> ImageData:
    """Return the outline of a dataset that does not exist yet."""
    if classes is None or images is None or size is None:
        names = f"{option('classes')}, {option('images')} and {option('size')}"
        raise UserError(f"give {names} together, or a dataset")
    return outline_dataset(dataset or "data", classes, images, size)


def _plan_outline(
    data: ImageData, request: RunRequest, load_fields: Mapping[str, Any], settings: Mapping[str, Any]
) -> Plan:
    """Return the plan of a run on the outline of a dataset."""
    for name in load_fields.keys() - {"size"}:
        raise UserError(f"{option_name(name)} has no effect on data that are not on this machine: leave it out")
    compute = ComputeDevice.select(settings.get("device"), settings.get("precision"))
    return make_plan(
        data,
        request,
        dataset=data.name,
        device=str(compute.device),
        precision=compute.precision,
        memory_limit=settings.get("memory_limit"),
    )


class _CostMeter:
    """Measure the jobs of a plan."""

    def __init__(self, plan: Plan, data: ImageData, compute: ComputeDevice, gpus: int, progress: NullProgress) -> None:
        self.plan, self.data, self.compute, self.gpus, self.progress = plan, data, compute, gpus, progress
        self._step_seconds: dict[tuple[Protocol, int, bool], float] = {}  # of trainings, which jobs share
        self._networks: set[tuple[Protocol, int]] = set()  # that earlier jobs train, and later ones use
        self._generators: list[tuple[str, dict[str, Any]]] = []  # the same of generators

    def measure_job(self, job: Job) -> JobCost:
        """Return the cost of a job."""
        recipe, data = job.recipe, self.data
        assert recipe is not None
        undivided = METHODS[job.method].class_dependence(recipe)
        is_divided = self.gpus > 1 and not undivided
        shards = split_shards(data.num_classes, self.gpus) if is_divided else [range(data.num_classes)]
        loop = LoopCost()
        stages = []
        networks = self._trained_networks(recipe)
        is_trained = networks in self._networks
        if networks and not is_trained:
            self._networks.add(networks)
            name = "reference network" if isinstance(recipe, NetworkCoresetRecipe) else "pool of networks"
            stages.append(self._measure_training(name, networks[0], len(data), pixels=True))
        if not METHODS[job.method].is_coreset and not self._has_generator(recipe):
            self.progress.start(f"measuring {job.name}", None)
            limit = self.plan.memory_limit
            loop = measure_classes(data, trial_recipe(recipe), self.compute, limit, min(map(len, shards)))
            stages.append(self._condense_stage(loop, shards))
        num_images = sum(images_per_class(data, recipe))
        if self.plan.protocol:
            num_decoded = num_images * getattr(recipe, "partition", 1) ** 2
            stages.append(self._measure_training("scoring", self.plan.protocol, num_decoded, pixels=False))
        num_weights = self._count_weights(networks)
        return JobCost(
            method=job.method,
            ipc=recipe.ipc,
            stages=tuple(stages),
            classes_per_chunk=loop.classes_per_chunk,
            num_chunks=-(-data.num_classes // loop.classes_per_chunk) if loop.classes_per_chunk else 0,
            num_shards=len(shards),
            classes_per_shard=len(shards[0]),
            undivided=undivided,
            streamed_bytes=self._streamed_bytes(recipe),
            device_bytes=loop.device_bytes + self._pool_bytes(recipe) if loop.timings else 0,
            set_bytes=num_images * math.prod(data.images.shape[1:]) * FLOAT_BYTES,
            checkpoint_bytes=2 * loop.state_bytes,
            network_bytes=(0 if is_trained else num_weights * FLOAT_BYTES) + _generator_bytes(recipe, loop),
        )

    def _condense_stage(self, loop: LoopCost, shards: Sequence[range]) -> StageCost:
        """Return the cost of the loop of a method: all classes on one device, or shards on all devices."""
        num_classes = self.data.num_classes
        return StageCost(
            name=CONDENSING,
            steps=loop.num_steps,
            step_seconds=loop.step_seconds(num_classes),
            seconds=loop.seconds(num_classes),
            parallel_seconds=hand_out([loop.seconds(len(shard)) for shard in shards], self.gpus),
        )

    def _trained_networks(self, recipe: Recipe) -> tuple[Protocol, int] | None:
        """Return how a method trains networks on the dataset, and how many states of each it stores; None: none."""
        if isinstance(recipe, NetworkCoresetRecipe):
            return recipe.protocol, 1
        if isinstance(recipe, MTTRecipe):
            protocol = recipe.expert_protocol(self.data)
            return dataclasses.replace(protocol, num_networks=recipe.pool_size), recipe.num_epochs + 1
        if not isinstance(recipe, DMRecipe) or recipe.sampler not in POOL_SAMPLERS or recipe.has_pool:
            return None
        protocol = expert_protocol(self.data, network=recipe.network, epochs=recipe.pool_epochs)
        num_states = len(checkpoint_epochs(recipe.pool_epochs, NUM_CHECKPOINTS))
        return dataclasses.replace(protocol, num_networks=recipe.pool_size), num_states

    def _has_generator(self, recipe: Recipe) -> bool:
        """Return whether an earlier job trains the generator that a set is drawn from."""
        if not isinstance(recipe, GenerativeRecipe):
            return False
        key = (method_of(recipe).name, recipe.training_fields())
        is_trained = key in self._generators
        self._generators.append(key)
        return is_trained

    def _pool_bytes(self, recipe: Recipe) -> int:
        """Return the memory of the networks that a method samples from; the trial has one small pool."""
        if isinstance(recipe, MTTRecipe):
            return FLOAT_BYTES * self._count_weights(self._trained_networks(recipe))
        if not isinstance(recipe, DMRecipe) or recipe.sampler not in POOL_SAMPLERS:
            return 0
        return estimate_network_bytes(recipe, self.data, self.compute)

    def _count_weights(self, networks: tuple[Protocol, int] | None) -> int:
        """Return how many weights the stored states of networks have."""
        if networks is None:
            return 0
        protocol, num_states = networks
        network = build_on_meta(protocol.network, self.data)
        return protocol.num_networks * num_states * sum(parameter.numel() for parameter in network.parameters())

    def _measure_training(self, name: str, protocol: Protocol, num_images: int, *, pixels: bool) -> StageCost:
        """Return the cost of training networks on a number of images, stored as pixels or as floats."""
        shape, num_classes = self.data.images.shape[1:], self.data.num_classes
        num_trial = min(num_images, max(protocol.batch_size, TRAIN_BYTES // math.prod(shape)))
        key = (protocol, num_trial, pixels)
        if key not in self._step_seconds:
            self.progress.start(f"measuring {name}", None)
            images = random_pixels(num_trial, shape)
            inputs = images if pixels else images / 64 - 2
            self._step_seconds[key] = measure_training(inputs, num_classes, protocol, self.compute)
        seconds = self._step_seconds[key]
        steps, num = protocol.training_steps(num_images), protocol.num_networks
        return StageCost(
            name=f"{name}, {num} × {protocol.network}" if num > 1 else name,
            steps=num * steps,
            step_seconds=seconds,
            seconds=num * steps * seconds,
            parallel_seconds=-(-num // self.gpus) * steps * seconds,
        )

    def _streamed_bytes(self, recipe: Recipe) -> int:
        """Return the bytes that an iteration reads from the file of the images; 0 if they are in memory."""
        data, limit = self.data, self.plan.memory_limit
        if not method_of(recipe).streams_images or not is_streamed(data, self.compute, limit):
            return 0
        batch_size: int = min(getattr(recipe, "batch_size", 0), data.largest_class)
        return data.num_classes * batch_size * math.prod(data.images.shape[1:])


def _generator_bytes(recipe: Recipe, loop: LoopCost) -> int:
    """Return the largest size of a stored generator: the state of its training has two moments per weight."""
    return loop.state_bytes // 3 if isinstance(recipe, GenerativeRecipe) else 0


def hand_out(times: Sequence[float], num_workers: int) -> float:
    """Return when the last task ends if tasks of these times are handed out in order as workers become free."""
    ends = [0.0] * min(num_workers, len(times))
    for seconds in times:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def trial_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a trial: a pool has one network of one epoch, since the time depends on neither."""
    if isinstance(recipe, MTTRecipe):
        return dataclasses.replace(recipe, pool="", pool_size=1, max_start_epoch=1, expert_epochs=1)
    if not isinstance(recipe, DMRecipe) or recipe.sampler not in POOL_SAMPLERS:
        return recipe
    return dataclasses.replace(recipe, pool="", group="all", pool_size=1, pool_epochs=1)
