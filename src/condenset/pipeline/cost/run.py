"""Estimate the cost of a run from a few measured iterations: time, memory and disk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from condenset.data.datasets.outline import outline_dataset, outline_first_classes, outline_missing
from condenset.data.image_data import ImageData
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import split_evenly
from condenset.errors import UserError, check_int, option, option_name
from condenset.io.progress import NullProgress
from condenset.methods import METHODS, DMRecipe, Recipe, method_of
from condenset.methods.common import images_per_class
from condenset.methods.coresets.coreset import NetworkCoresetRecipe
from condenset.methods.generative.recipe import GenerativeRecipe
from condenset.methods.matching.network_source import NUM_CHECKPOINTS, estimate_network_bytes
from condenset.methods.matching.recipe import POOL_SAMPLERS
from condenset.methods.pools.pool_training import expert_protocol, is_run_pool_complete
from condenset.methods.pools.trainer import checkpoint_epochs
from condenset.methods.samplers import build_on_meta
from condenset.methods.sharding import split_shards
from condenset.methods.unrolled.mtt_recipe import MTTRecipe
from condenset.pipeline.cost.estimate import CONDENSING, CostEstimate, JobCost, StageCost, estimate_host_bytes, hand_out
from condenset.pipeline.cost.loop import LoopCost, count_streamed_bytes, measure_classes
from condenset.pipeline.cost.trial import measure_training, random_pixels, trial_recipe
from condenset.pipeline.plan import Job, Plan, make_plan
from condenset.pipeline.request import RunRequest
from condenset.pipeline.run import plan_run
from condenset.runs.context import RunContext
from condenset.training.parallel import num_parallel
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
        settings: Settings of the plan: `device`, `precision`, `memory_limit`, `data_dir`, `num_networks_on_random`.
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
        whole = meter.measure_whole()
    finally:
        progress.stop()
    process_bytes = ComputeDevice(torch.device("cpu"), torch.float32).peak_memory()
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
        whole=whole,
        parallel_seconds=meter.parallel_seconds(),
        host_bytes=estimate_host_bytes(process_bytes, jobs, compute.device.type),
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
        num_networks_on_random=settings.get("num_networks_on_random"),
    )


class _CostMeter:
    """Measure the jobs of a plan."""

    def __init__(self, plan: Plan, data: ImageData, compute: ComputeDevice, gpus: int, progress: NullProgress) -> None:
        self.plan, self.data, self.compute, self.gpus, self.progress = plan, data, compute, gpus, progress
        self._step_seconds: dict[tuple[Protocol, int, bool, int], float] = {}  # of trainings, which jobs share
        self._networks: set[tuple[Protocol, int]] = set()  # that earlier jobs train, and later ones use
        self._generators: list[tuple[str, dict[str, Any]]] = []  # the same of generators
        self._network_seconds = 0.0  # on all devices, before the sets
        self._set_tasks, self._score_tasks = list[float](), list[float]()  # times on one device

    def parallel_seconds(self) -> float:
        """Return the time of the measured jobs on all devices: networks first, then all sets, then all scores."""
        score_tasks = sorted(self._score_tasks, reverse=True)
        return self._network_seconds + hand_out(self._set_tasks, self.gpus) + hand_out(score_tasks, self.gpus)

    def measure_job(self, job: Job) -> JobCost:
        """Return the cost of a job."""
        recipe, data = job.recipe, self.data
        assert recipe is not None
        undivided = METHODS[job.method].class_dependence(recipe)
        is_divided = self.gpus > 1 and not undivided
        shards = split_shards(data.num_classes, self.gpus) if is_divided else [range(data.num_classes)]
        part = outline_first_classes(data, len(shards[0])) if is_divided else data
        loop, limit, stages = LoopCost(), self.plan.memory_limit, []
        networks = self._trained_networks(recipe)
        is_trained = networks in self._networks
        if networks and not is_trained:
            self._networks.add(networks)
            stages.append(self._network_stage(recipe, networks[0]))
        if not METHODS[job.method].is_coreset and not self._has_generator(recipe):
            self.progress.start(f"measuring {job.name}", None)
            loop = measure_classes(data, trial_recipe(recipe), self.compute, limit, min(map(len, shards)), part)
            stages.append(self._condense_stage(loop, shards))
        num_images = sum(images_per_class(data, recipe))
        if protocol := self.plan.protocol_of(job):
            stages.append(self._score_stage(protocol, num_images * recipe.layout.num_parts))
        num_weights, streamed_bytes = (
            self._count_weights(networks),
            count_streamed_bytes(part, recipe, self.compute, limit),
        )
        return JobCost(
            method=job.method,
            ipc=recipe.ipc,
            stages=tuple(stages),
            classes_per_chunk=min(loop.classes_per_chunk, part.num_classes),
            num_chunks=-(-part.num_classes // loop.classes_per_chunk) if loop.classes_per_chunk else 0,
            num_shards=len(shards),
            classes_per_shard=len(shards[0]),
            undivided=undivided,
            streamed_bytes=streamed_bytes,
            streamed_rate=streamed_bytes / loop.step_seconds(part.num_classes) if loop.num_steps else 0.0,
            device_bytes=loop.device_bytes + self._pool_bytes(recipe) if loop.timings else 0,
            set_bytes=num_images * math.prod(data.images.shape[1:]) * FLOAT_BYTES,
            checkpoint_bytes=2 * loop.state_bytes,
            network_bytes=(0 if is_trained else num_weights * FLOAT_BYTES) + _generator_bytes(recipe, loop),
        )

    def measure_whole(self) -> StageCost | None:
        """Return the cost of the networks that train on the whole dataset. None: there are none."""
        return self._score_stage(self.plan.whole, len(self.data), pixels=True) if self.plan.whole else None

    def _network_stage(self, recipe: Recipe, protocol: Protocol) -> StageCost:
        """Return the cost of the networks that a method trains on the dataset."""
        name = "reference network" if isinstance(recipe, NetworkCoresetRecipe) else "pool of networks"
        stage, _ = self._measure_training(name, protocol, len(self.data), protocol.num_networks, pixels=True)
        self._network_seconds += stage.parallel_seconds
        return stage

    def _score_stage(self, protocol: Protocol, num_images: int, *, pixels: bool = False) -> StageCost:
        """Return the cost of the networks that score a set, or the whole dataset, which is stored as pixels."""
        protocols = [self.plan.protocol_of(job) for job in self.plan.jobs]
        total = sum(item.num_networks for item in protocols if item)
        stage, tasks = self._measure_training("scoring", protocol, num_images, total, pixels=pixels)
        self._score_tasks += tasks
        return stage

    def _condense_stage(self, loop: LoopCost, shards: Sequence[range]) -> StageCost:
        """Return the cost of the loop of a method: all classes on one device, or shards on all devices."""
        num_classes, tasks = self.data.num_classes, [loop.seconds(len(shard)) for shard in shards]
        self._set_tasks += tasks
        return StageCost(
            name=CONDENSING,
            steps=loop.num_steps,
            step_seconds=loop.step_seconds(num_classes),
            seconds=loop.seconds(num_classes),
            parallel_seconds=hand_out(tasks, self.gpus),
        )

    def _trained_networks(self, recipe: Recipe) -> tuple[Protocol, int] | None:
        """Return the same as `_needed_networks`, but None if `--pool` has all of them."""
        networks = self._needed_networks(recipe)
        if networks is None or not isinstance(recipe, MTTRecipe | DMRecipe):
            return networks
        is_stored = is_run_pool_complete(
            self.data,
            networks[0],
            RunContext(seed=self.plan.seed, compute=self.compute),
            parent=recipe.pool,
            num_checkpoints=networks[1] - 1 if isinstance(recipe, MTTRecipe) else NUM_CHECKPOINTS,
            zca=recipe.zca,
        )
        return None if is_stored else networks

    def _needed_networks(self, recipe: Recipe) -> tuple[Protocol, int] | None:
        """Return the protocol of the networks that a method trains, and how many states of each it stores.

        None: it needs no networks, or the user names a pool that is trained.
        """
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
            return FLOAT_BYTES * self._count_weights(self._needed_networks(recipe))
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

    def _measure_training(
        self, name: str, protocol: Protocol, num_images: int, total: int, *, pixels: bool
    ) -> tuple[StageCost, list[float]]:
        """Return the cost of training networks, and the times of its tasks on one device.

        Args:
            name: What is trained.
            protocol: How the networks are trained.
            num_images: Images to train on.
            total: Networks that train at the same time on all devices, also those of other jobs.
            pixels: The images are stored as pixels, not as floats.
        """
        num, steps = protocol.num_networks, protocol.training_steps(num_images)
        at_once = min(num, num_parallel(protocol, self.data, self.compute))
        group_size = min(at_once, -(-total // self.gpus))  # few networks for many devices train alone, which is slower
        self.progress.start(f"measuring {name}", None)
        seconds, task_seconds = (
            self._measure_step(protocol, num_images, pixels, size) for size in (at_once, group_size)
        )
        tasks = [(group.stop - group.start) * steps * task_seconds for group in split_evenly(num, group_size)]
        stage = StageCost(
            name=f"{name}, {num} × {protocol.network}" if num > 1 else name,
            steps=num * steps,
            step_seconds=seconds,
            seconds=num * steps * seconds,
            parallel_seconds=hand_out(tasks, self.gpus),
        )
        return stage, tasks

    def _measure_step(self, protocol: Protocol, num_images: int, pixels: bool, num_networks: int) -> float:
        """Return the time of a training step of one of several networks that train in parallel."""
        shape = self.data.images.shape[1:]
        num_trial = min(num_images, max(protocol.batch_size, TRAIN_BYTES // math.prod(shape)))
        key = (protocol, num_trial, pixels, num_networks)
        if key not in self._step_seconds:
            images = random_pixels(num_trial, shape)
            inputs = images if pixels else images / 64 - 2
            seconds = measure_training(inputs, self.data.num_classes, protocol, self.compute, num_networks)
            self._step_seconds[key] = seconds
        return self._step_seconds[key]


def _generator_bytes(recipe: Recipe, loop: LoopCost) -> int:
    """Return the largest size of a stored generator: the state of its training has two moments per weight."""
    return loop.state_bytes // 3 if isinstance(recipe, GenerativeRecipe) else 0
