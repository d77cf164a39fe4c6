"""Gradient matching: learn images on which a network has the loss gradients of the real images (DC, DSA and others).

Shapes: K classes, B real and I synthetic images per class, N synthetic images in total, P parameters of the network.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from condenset import augment, kernels, networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.partition import NormalizedParts
from condenset.data.stores.class_store import ClassStore
from condenset.engine import rng
from condenset.engine.compile import compile_second_order, uses_custom_kernels
from condenset.engine.cuda_graph import capture_step
from condenset.methods.common import (
    build_condensed_set,
    class_labels,
    images_per_class,
    initial_stored_images,
    remove_padding,
)
from condenset.methods.gradient.chunks import Chunk, classes_per_chunk, split_classes
from condenset.methods.gradient.distance import Gradients, row_distance
from condenset.methods.gradient.norms import BatchNormStatistics
from condenset.methods.problem import LearningProblem
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.methods.samplers import sample_new_networks
from condenset.networks.gradients import class_gradients, class_gradients_by_backward
from condenset.runs.context import RunContext
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

TRAIN_BATCH = 256


def condense(data: ImageData, recipe: GradientMatchingRecipe, run: RunContext) -> CondensedSet:
    """Learn images by gradient matching; the recipe sets augmentation (DSA) and initial images."""
    return solve(GradientMatching, data, recipe, run)


def solve(
    problem_class: type[GradientMatching], data: ImageData, recipe: GradientMatchingRecipe, run: RunContext
) -> CondensedSet:
    """Learn images by gradient matching or one of its variants."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = problem_class(data, recipe, run, counts)

    def result(seconds: float) -> CondensedSet:
        labels, layout = class_labels(counts), recipe.layout
        return build_condensed_set(problem.images_NCHW, labels, data, recipe, run, seconds, layout=layout)

    return result(problem.learn(result, iterations=recipe.image_steps))


class GradientMatching(LearningProblem):
    """The state of a run and its step: match gradients once, then train the network for some epochs.

    Real gradients are computed in the run's precision. Synthetic gradients are differentiated again, so they are
    computed in float32. Variants override the distance, the gradients, or the training of the network.
    """

    recipe: GradientMatchingRecipe
    distance_name = "gradient distance"  # identifies what `loss_and_gradient` computes, in the cache of compiled code
    differentiates_weights = False  # whether `compute_gradients` differentiates by the weights themselves

    def __init__(self, data: ImageData, recipe: GradientMatchingRecipe, run: RunContext, counts: list[int]) -> None:
        super().__init__(data, recipe, run)
        device = run.compute.device
        self.stages = augment.parse_strategy(recipe.augment, allow_hflip=data.allow_hflip)
        self.networks = sample_new_networks(recipe.network, data, run.seed, run.compute)
        self.dtype = torch.float32 if self.networks.on_host else run.compute.dtype  # of the real gradients
        uses = ("augment", "real", "norm", "order", "training")
        self.keys = {use: self.make_key(use) for use in uses}
        self.store = ClassStore(data, device)
        self.batch_size = min(recipe.batch_size, max(data.class_counts))

        recipe.layout.check_shape(data.channels, data.size, has_decoders=False)
        self.parts = NormalizedParts(recipe.layout, data.mean, data.std, device)
        initial_KICHW = initial_stored_images(self.store, recipe.init, run.seed, max(counts), self.parts)
        self.images_NCHW = remove_padding(initial_KICHW, counts)
        self.velocity = torch.zeros_like(self.images_NCHW)

        self.trainer = self._make_trainer(data, counts)
        self.trainer.start(torch.zeros_like(self.trainer.weights), self.keys["training"])
        shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
        self.network = networks.build(recipe.network, **shape).to(device).eval()
        self.buffers = dict(self.network.named_buffers())
        self.norms = BatchNormStatistics(self.network, self.store, data.class_counts, self.keys["norm"])
        max_classes = run.classes_per_chunk or classes_per_chunk(data, recipe, run.compute, run.memory_limit)
        self.chunks = self.split_classes(counts, max_classes)
        self._compile(networks.canonical_spec(recipe.network, size=data.size))

    def split_classes(self, counts: list[int], max_classes: int) -> list[Chunk]:
        """Return the chunks of classes that are matched one after the other."""
        class_counts, device = self.data.class_counts, self.run.compute.device
        return split_classes(class_counts, counts, self.batch_size, max_classes, device, self.parts.layout.num_parts)

    def _compile(self, spec: str) -> None:
        """Compile the gradient functions; one compiled function serves all runs with this network and these shapes."""
        this = weakref.proxy(self)  # cached functions that referred to this object would keep its GPU memory
        self.real: Callable[..., dict[str, Tensor]] = lambda *args: this.real_gradients(*args)
        self.synthetic: Callable[..., tuple[Tensor, Tensor]] = lambda *args: this.loss_and_gradient(*args)
        if self.networks.on_host:  # users' networks may have any layers, and code that cannot be traced
            return
        self.synthetic = compile_second_order(self.synthetic, self.run.compute, f"{self.distance_name}, {spec}")
        if not uses_custom_kernels(self.network, self.run.compute):
            self.real = compile_second_order(self.real, self.run.compute, f"real, {self.distance_name}, {spec}")

    def compute_gradients(self, *args: Any, create_graph: bool = False) -> dict[str, Tensor]:
        """Return the gradients that are matched, by name; see `class_gradients`."""
        function = class_gradients_by_backward if self.networks.on_host else class_gradients
        return function(self.forward, *args, create_graph=create_graph)

    def distance(self, real: Gradients, synthetic: Gradients) -> Tensor:
        """Return the distance of the gradients, summed over classes."""
        return row_distance(real, synthetic).sum()

    @property
    def learned(self) -> dict[str, Tensor]:
        network = {"weights": self.trainer.weights, "trained": self.trainer.clock}
        return {"images": self.images_NCHW, "velocity": self.velocity, **network}

    @property
    def match_state(self) -> list[Tensor]:
        """The part of the state that `match` changes; training the network changes the others."""
        return [self.images_NCHW, self.velocity, self.losses, self.clock]

    def _make_trainer(self, data: ImageData, counts: list[int]) -> Trainer:
        """Return the trainer of the network: plain SGD on the current synthetic images."""
        recipe, device = self.recipe, self.run.compute.device
        labels = class_labels(counts).to(device)
        scale, shift = (torch.full((data.channels, 1, 1), value, device=device) for value in (1.0, 0.0))
        protocol = Protocol(
            network=recipe.network,
            lr=recipe.network_lr,
            momentum=0.0,
            weight_decay=0.0,
            batch_size=TRAIN_BATCH,
            augment=recipe.augment,
        )
        train_set = DeviceDataset(self.images_NCHW, labels, scale, shift, data.allow_hflip, data.num_classes)
        return Trainer(recipe.network, train_set, protocol, self.run.compute)

    def make_step(self) -> Callable[[int], None]:
        """Return the step of the loop, captured if possible; called once the state is restored."""
        outer_steps, inner_epochs = self.recipe.loops
        if self.networks.on_host:
            self._prepare_network(int(self.clock) // outer_steps * outer_steps)  # a resumed run has its weights already
        match = self.make_match()
        if outer_steps > 1 and inner_epochs:
            self.trainer.compile_steps()

        def step(number: int) -> None:
            with self.networks.user_code(number):
                if number % outer_steps == 0:
                    self.sample_network(number)
                match(number)
                if (number + 1) % outer_steps:  # the network is not used after its last match
                    first_epoch = self.clock * inner_epochs  # on the device, so that the host need not wait
                    for epoch in range(inner_epochs):
                        self.trainer.train_epoch(
                            self.keys["order"], first_epoch + epoch, self._check_stop, max_steps=self.max_train_steps
                        )

        return step

    def make_match(self) -> Callable[[int], None]:
        """Return a function that updates the images in a step, given its number; captured if possible."""
        step = self.match if self.networks.on_host else capture_step(self.match, self.match_state, self.run.compute)
        return lambda number: step()

    @property
    def max_train_steps(self) -> int:
        """The largest number of steps in an epoch of the network."""
        return self.trainer.steps_per_epoch

    def _check_stop(self) -> None:
        """Stop if the user asked to, after a chunk of classes or a step of the network."""
        self.run.check_stop(1 / self.num_substeps)

    @property
    def num_substeps(self) -> int:
        """The number of chunks and of steps of the network in a step."""
        return len(self.chunks) + self.recipe.loops[1] * self.max_train_steps

    def sample_network(self, number: int = 0) -> None:
        """Sample a new network for step `number` and those that follow."""
        self._prepare_network(number)
        self.trainer.weights.copy_(self.networks.sample_weights(self.clock))

    @torch.no_grad()
    def _prepare_network(self, number: int) -> None:
        """Build a user's network for step `number`, and copy its buffers and frozen parameters."""
        self.networks.prepare(number)
        for name, value in self.networks.fixed_tensors(torch.float32).items():
            for network in (self.network, self.trainer.model.network):
                path, _, attribute = name.rpartition(".")
                getattr(network.get_submodule(path), attribute).copy_(value)

    def match(self) -> None:
        """Update the images of all classes by one step towards matching gradients."""
        self.update_batch_norm()
        total = torch.zeros((), device=self.losses.device)
        for chunk in self.chunks:
            images, velocity = self.images_NCHW[chunk.rows], self.velocity[chunk.rows]
            loss, gradient = self.gradient(images, chunk)
            self.update(images, velocity, gradient)
            total += loss
            self._check_stop()
        self.record_loss(total)

    def update(self, images_NCHW: Tensor, velocity: Tensor, gradient: Tensor) -> None:
        """Update images by one step of SGD with momentum, in place."""
        velocity.mul_(self.recipe.momentum).add_(gradient)
        images_NCHW.sub_(velocity, alpha=self.recipe.lr)

    def gradient(self, images_NCHW: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return the loss of a chunk and its gradient with respect to the images, under one augmentation per class."""
        leaf = images_NCHW.detach().clone().requires_grad_()
        real_KBCHW, images_KICHW = self.sample_batches(leaf, chunk)
        real = self.differentiate_real(real_KBCHW, chunk)
        augmented_KICHW = images_KICHW.detach()
        loss, by_augmented_KICHW = self.synthetic(
            self.trainer.weights, self.buffers, augmented_KICHW, chunk.classes_K, chunk.synthetic_weight_KI, real
        )
        (gradient,) = torch.autograd.grad(images_KICHW, leaf, by_augmented_KICHW)
        return loss, gradient

    def sample_batches(self, images_NCHW: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return real images and all synthetic images of the classes of a chunk, under one augmentation per class."""
        index_KB = self.store.sample_class_indices(self.keys["real"], self.clock, chunk.classes_K, self.batch_size)
        images_KICHW = self.parts.decode(chunk.group_by_class(images_NCHW))
        if not self.stages:
            return self.store.take_normalized(index_KB).to(self.dtype), images_KICHW
        streams_K = self.store.stream_ids(chunk.classes_K)
        uniform_KU = rng.uniform(self.keys["augment"], self.clock, streams_K, augment.NUM_UNIFORMS)
        transform = augment.sample_transform(uniform_KU, self.stages, self.data.size)
        return self.store.take_augmented(index_KB, transform, self.dtype), augment.apply(transform, images_KICHW)

    def differentiate_real(self, real_KBCHW: Tensor, chunk: Chunk) -> dict[str, Tensor]:
        """Return the gradients of the real images."""
        return self.real(self.trainer.weights, self.buffers, real_KBCHW, chunk.classes_K, chunk.real_weight_KB)

    def real_gradients(
        self, weights_P: Tensor, buffers: dict[str, Tensor], images_KBCHW: Tensor, classes_K: Tensor, weight_KB: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradients of the loss on each class's real images, by parameter name."""
        views = self.trainer.parameters.unflatten(weights_P.detach().requires_grad_(), images_KBCHW.dtype)
        gradients = self.compute_gradients(views | buffers, images_KBCHW, classes_K, weight_KB)
        return {name: gradient.detach() for name, gradient in gradients.items()}

    def loss_and_gradient(
        self,
        weights_P: Tensor,
        buffers: dict[str, Tensor],
        images_KICHW: Tensor,
        classes_K: Tensor,
        weight_KI: Tensor,
        real: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over classes of the distance from the real gradients, and its gradient by the images."""
        leaf = images_KICHW.detach().requires_grad_()
        if self.differentiates_weights or self.networks.on_host:  # `class_gradients` does without
            weights_P = weights_P.detach().requires_grad_()
        parameters = self.trainer.parameters.unflatten(weights_P, leaf.dtype) | buffers
        with kernels.disable_kernels(blocks_only=True):  # the block kernels have no second derivative
            gradients = self.compute_gradients(parameters, leaf, classes_K, weight_KI, create_graph=True)
        loss = self.distance(real, gradients)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), gradient

    def forward(self, views: dict[str, Tensor], images: Tensor) -> Tensor:
        """Return logits; batch norm uses its stored statistics."""
        logits: Tensor = functional_call(self.network, views, (images,))
        return logits

    def update_batch_norm(self) -> None:
        """Set the statistics of batch norm, which hold until the next step."""
        if self.buffers:
            views = self.trainer.parameters.unflatten(self.trainer.weights, torch.float32)
            self.norms.update(self.forward, views | self.buffers, self.clock)
