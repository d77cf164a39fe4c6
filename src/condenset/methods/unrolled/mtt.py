"""MTT: match the training trajectories of experts (Cazenavette, Wang, Torralba, Efros and Zhu, CVPR 2022).

A student starts from the weights of an expert after some epoch on the real images, and takes N steps of gradient
descent on the synthetic images. Its weights are to be those of the expert M epochs later. The images and the step size
are learned. The graph of one step is built at a time.
Shapes: E experts, S states of each, P parameters of a network, N synthetic images, B of them per step of the student.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from condenset import augment, networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.stores.class_store import ClassStore
from condenset.engine import rng
from condenset.engine.device import ComputeDevice
from condenset.io.directories import temporary_directory
from condenset.methods.common import (
    build_condensed_set,
    class_labels,
    images_per_class,
    initial_images,
    remove_padding,
)
from condenset.methods.pools.pool_training import check_pool_memory, fill_run_pool
from condenset.methods.problem import LearningProblem
from condenset.methods.recipe import TINY_NETWORK
from condenset.methods.registry import Method
from condenset.methods.samplers import build_on_meta
from condenset.methods.unrolled.mtt_recipe import MTTRecipe, check_pool, presets
from condenset.methods.unrolled.unrolling import TrainingStep, differentiate_training
from condenset.networks import FlatParameters
from condenset.runs.context import RunContext

MIN_STEP_SIZE = 1e-6  # of the student, which must stay above 0


def condense(data: ImageData, recipe: MTTRecipe, run: RunContext) -> CondensedSet:
    """Learn images on which a student follows the trajectories of experts."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    weights_ESP, pool = load_or_train_experts(data, recipe, run)
    problem = TrajectoryMatching(data, recipe, run, counts, weights_ESP)

    def result(seconds: float) -> CondensedSet:
        learned: dict[str, Any] = {"pool": pool, "step_size": float(problem.step_size)}
        return build_condensed_set(problem.images_NCHW, problem.labels_N, data, recipe, run, seconds, **learned)

    return result(problem.learn(result))


def load_or_train_experts(data: ImageData, recipe: MTTRecipe, run: RunContext) -> tuple[Tensor, dict[str, Any]]:
    """Return (E, S, P) weights of the experts after every epoch in float32, and what the provenance records."""
    check_pool(recipe)
    float32 = ComputeDevice(run.compute.device, torch.float32)
    with temporary_directory("condenset-pool") as temporary:
        pool = fill_run_pool(
            data,
            recipe.pool_size,
            recipe.expert_protocol(data),
            run,
            parent=recipe.pool,
            temporary=temporary,
            num_checkpoints=recipe.num_epochs,
        )
        states = pool.states[: recipe.pool_size * pool.num_states]
        weights_GP = pool.weights(states, build_on_meta(recipe.network, data), float32)
    weights_ESP = weights_GP.view(recipe.pool_size, pool.num_states, -1)
    return weights_ESP, {"networks": recipe.pool_size, "seconds": pool.seconds(states)}


def make_training_step(
    network: nn.Module, parameters: FlatParameters, spec: str, data: ImageData, compute: ComputeDevice
) -> TrainingStep:
    """Return a step of the student: the cross-entropy by plain operations, since kernels have no second derivative."""

    def loss(weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor) -> Tensor:
        weights = parameters.unflatten(weights_P, weights_P.dtype)
        return F.cross_entropy(functional_call(network, weights, (images_NCHW,)), labels_N)

    if not isinstance(network, networks.Network):  # a user's network may have code that cannot be compiled
        return TrainingStep(loss)
    return TrainingStep(loss, compute, f"{networks.canonical_spec(spec, size=data.size)}, {data.num_classes} classes")


def trajectory_distance(weights_P: Tensor, start_P: Tensor, target_P: Tensor) -> Tensor:
    """Return ‖weights − target‖² / ‖start − target‖²."""
    return (weights_P - target_P).square().sum() / (start_P - target_P).square().sum()


class TrajectoryMatching(LearningProblem):
    """The state of a run and its step, in float32 because the step computes second derivatives.

    Args:
        data: The real images.
        recipe: The settings.
        run: The run.
        counts: Synthetic images per class.
        weights_ESP: Weights of the experts after every epoch.
    """

    recipe: MTTRecipe

    def __init__(
        self, data: ImageData, recipe: MTTRecipe, run: RunContext, counts: list[int], weights_ESP: Tensor
    ) -> None:
        super().__init__(data, recipe, run)
        device, self.weights_ESP = run.compute.device, weights_ESP
        self.network, self.size = build_on_meta(recipe.network, data), data.size
        self.parameters = FlatParameters(self.network, device)
        self.training_step = make_training_step(self.network, self.parameters, recipe.network, data, run.compute)
        self.stages = augment.parse_strategy(recipe.augment, allow_hflip=data.allow_hflip)
        self.keys = {use: self.make_key(use) for use in ("network", "state", "order", "augment")}

        initial_KICHW = initial_images(ClassStore(data, device), recipe.init, run.seed, max(counts))
        self.images_NCHW, self.labels_N = remove_padding(initial_KICHW, counts), class_labels(counts).to(device)
        self.step_size = torch.tensor(recipe.step_size, device=device)
        self.velocity, self.step_size_velocity = torch.zeros_like(self.images_NCHW), torch.zeros_like(self.step_size)
        num, steps = len(self.labels_N), recipe.steps
        self.batch_size = min(recipe.student_batch or num, num)
        self.schedule = list(torch.arange(steps * self.batch_size, device=device).split(self.batch_size))

    @property
    def learned(self) -> dict[str, Tensor]:
        step_size = {"step_size": self.step_size, "step_size_velocity": self.step_size_velocity}
        return {"images": self.images_NCHW, "velocity": self.velocity, **step_size}

    def step(self) -> None:
        """Run one iteration: train a student from a state of an expert, and move it towards a later state."""
        start_P, target_P = self.sample_segment()
        leaf = self.images_NCHW.detach().clone().requires_grad_()
        batches, labels = self.sample_batches(leaf)
        gradients = differentiate_training(
            self.training_step,
            start_P,
            batches.detach(),
            labels,
            self.schedule,
            self.step_size.expand(self.recipe.steps),
            lambda weights_P: trajectory_distance(weights_P, start_P, target_P),
            after_step=self.run.check_stop,
        )
        (by_images,) = torch.autograd.grad(batches, leaf, gradients.images)
        momentum = self.recipe.momentum
        self.velocity.mul_(momentum).add_(by_images)
        self.step_size_velocity.mul_(momentum).add_(gradients.step_sizes_T.sum())
        self.images_NCHW.sub_(self.velocity, alpha=self.recipe.lr)
        self.step_size.sub_(self.step_size_velocity, alpha=self.recipe.step_size_lr).clamp_(min=MIN_STEP_SIZE)
        self.record_loss(gradients.loss)

    def sample_segment(self) -> tuple[Tensor, Tensor]:
        """Return the weights that the student starts from, and those that it is to reach."""
        num_experts, num_states, _ = self.weights_ESP.shape
        expert = rng.random_index(self.keys["network"], self.clock, num_experts)
        row = expert * num_states + rng.random_index(self.keys["state"], self.clock, self.recipe.max_start_epoch)
        rows_GP = self.weights_ESP.flatten(0, 1)
        start_P, target_P = (rows_GP.index_select(0, row + epochs)[0] for epochs in (0, self.recipe.expert_epochs))
        return start_P, target_P

    def sample_batches(self, images_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Return the augmented images of all steps of the student, one step after the other, and their labels."""
        steps, batch_size = self.recipe.steps, self.batch_size
        index_SB = self.sample_indices().view(steps, batch_size)
        batches = [images_NCHW[index_B] for index_B in index_SB]
        if self.stages:
            rows_B = torch.arange(batch_size, device=images_NCHW.device)
            for number, batch in enumerate(batches):
                step = self.clock * steps + number
                uniform_BU = rng.uniform(self.keys["augment"], step, rows_B, augment.NUM_UNIFORMS)
                transform = augment.sample_transform(uniform_BU, self.stages, self.size, shared=True)
                batches[number] = augment.apply(transform, batch[:, None])[:, 0]
        return torch.cat(batches), self.labels_N[index_SB.flatten()]

    def sample_indices(self) -> Tensor:
        """Return the images of all steps: random orders of the set, divided into batches; the rest is left out."""
        steps, batch_size, num = self.recipe.steps, self.batch_size, len(self.labels_N)
        if batch_size == num:
            return torch.arange(num, device=self.clock.device).repeat(steps)
        num_batches = num // batch_size  # of an order
        num_orders = -(-steps // num_batches)
        first = self.clock * num_orders
        orders = [rng.permutation(self.keys["order"], first + number, num) for number in range(num_orders)]
        return torch.cat([order[: num_batches * batch_size] for order in orders])[: steps * batch_size]


def check_recipe(data: ImageData, recipe: MTTRecipe, compute: ComputeDevice, memory_limit: int | None) -> None:
    """Refuse a pool in another directory than one of pools, and images that experts cannot be trained on."""
    check_pool(recipe)
    check_pool_memory(data, compute, memory_limit, zca=recipe.zca)


METHOD = Method(
    name="mtt",
    recipe=MTTRecipe,
    condense=condense,
    summary="MTT: learn images on which a network follows the training trajectory of networks on real images.",
    source="Cazenavette et al., CVPR 2022",
    presets=presets,
    tiny={
        "network": TINY_NETWORK,
        "iterations": 3,
        "steps": 2,
        "expert_epochs": 1,
        "max_start_epoch": 1,
        "pool_size": 1,
        "lr": 10.0,
        "zca": False,
    },
    check=check_recipe,
    supports_snapshots=True,
)
