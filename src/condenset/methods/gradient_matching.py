"""Gradient matching: learn images on which a network has the loss gradients of the real images (DC and DSA).

Shapes: K classes, B real and I synthetic images per class, N synthetic images in total, P parameters of the network.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm  # BatchNorm1d, 2d, 3d and SyncBatchNorm

from condenset import augment, kernels, networks
from condenset.data.class_store import ClassStore
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.ipc import format_ipc
from condenset.engine import rng
from condenset.engine.compile import compile_second_order, uses_custom_kernels
from condenset.engine.cuda_graph import capture_step
from condenset.methods.common import (
    NUM_LOSSES,
    build_condensed_set,
    class_labels,
    images_per_class,
    initial_images,
    mean_weights,
    record_loss,
    remove_padding,
)
from condenset.methods.gradient_chunks import Chunk, classes_per_chunk, split_classes
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.methods.registry import method_of
from condenset.methods.samplers import sample_new_networks
from condenset.networks.gradients import class_gradients, class_gradients_by_backward
from condenset.runs.context import RunContext
from condenset.runs.loop import run_loop
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

NORM_IMAGES = 16  # real images per class that batch norm takes its statistics from
TRAIN_BATCH = 256
EPSILON = 1e-6  # added to the product of two norms, so that a row without gradient has distance 1

Gradients = Mapping[str, Tensor]


def row_distance(real: Gradients, synthetic: Gradients) -> Tensor:
    """Return (K,) sums of 1 - cosine over the rows of all weights; gradients by name have shape (K, rows, columns)."""
    total = torch.zeros((), device=next(iter(real.values())).device)
    for name, real_KRC in real.items():
        synthetic_KRC = synthetic[name]
        norms_KR = torch.linalg.vector_norm(real_KRC, dim=2) * torch.linalg.vector_norm(synthetic_KRC, dim=2)
        total = total + (1 - (real_KRC * synthetic_KRC).sum(2) / (norms_KR + EPSILON)).sum(1)
    return total


def condense(data: ImageData, recipe: GradientMatchingRecipe, run: RunContext) -> CondensedSet:
    """Learn images by gradient matching; the recipe sets augmentation (DSA) and initial images."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = GradientMatching(data, recipe, run, counts)

    def result(seconds: float) -> CondensedSet:
        return build_condensed_set(problem.images_NCHW, problem.trainer.data.labels, data, recipe, run, seconds)

    description = f"{method_of(recipe).name}, {format_ipc(recipe.ipc)} per class"
    return result(run_loop(run, problem.state, recipe.image_steps, problem.make_step, description, result))


class GradientMatching:
    """The state of a run and its step: match gradients once, then train the network for some epochs.

    Real gradients are computed in the run's precision. Synthetic gradients are differentiated again, so they are
    computed in float32.
    """

    def __init__(self, data: ImageData, recipe: GradientMatchingRecipe, run: RunContext, counts: list[int]) -> None:
        device = run.compute.device
        self.recipe, self.run, self.data = recipe, run, data
        self.stages = augment.parse_strategy(recipe.augment, allow_hflip=data.allow_hflip)
        self.networks = sample_new_networks(recipe.network, data, run.seed, run.compute)
        self.dtype = torch.float32 if self.networks.on_host else run.compute.dtype  # of the real gradients
        uses = ("augment", "real", "norm", "order", "training")
        self.keys = {use: rng.make_key(run.seed, use, device=device) for use in uses}
        self.store = ClassStore(data, device)
        self.batch_size = min(recipe.batch_size, max(data.class_counts))

        initial_KICHW = initial_images(self.store, recipe.init, run.seed, max(counts))
        self.images_NCHW = remove_padding(initial_KICHW, counts)
        self.velocity = torch.zeros_like(self.images_NCHW)
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)

        self.trainer = self._make_trainer(data, counts)
        self.trainer.start(torch.zeros_like(self.trainer.weights), self.keys["training"])
        shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
        self.network = networks.build(recipe.network, **shape).to(device).eval()
        for module in self.network.modules():
            if isinstance(module, BatchNorm):
                module.momentum = 1.0  # the statistics of the last batch alone
        self.buffers = dict(self.network.named_buffers())
        num_norm = min(NORM_IMAGES, max(data.class_counts))
        norm_weights = mean_weights([min(num_norm, count) for count in data.class_counts], num_norm)
        self.norm_index = norm_weights.to(device).nonzero()  # excludes padding
        max_classes = run.classes_per_chunk or classes_per_chunk(data, recipe, run.compute, run.memory_limit)
        self.chunks = split_classes(data.class_counts, counts, self.batch_size, max_classes, device)
        self._compile(networks.canonical_spec(recipe.network, size=data.size))

    def _compile(self, spec: str) -> None:
        """Compile the gradient functions; one compiled function serves all runs with this network and these shapes."""
        this = weakref.proxy(self)  # cached functions that referred to this object would keep its GPU memory
        self.real: Callable[..., dict[str, Tensor]] = lambda *args: this.real_gradients(*args)
        self.synthetic: Callable[..., tuple[Tensor, Tensor]] = lambda *args: this.loss_and_gradient(*args)
        self.class_gradients = class_gradients
        if self.networks.on_host:  # users' networks may have any layers, and code that cannot be traced
            self.class_gradients = class_gradients_by_backward
            return
        self.synthetic = compile_second_order(self.synthetic, self.run.compute, f"gradient distance, {spec}")
        if not uses_custom_kernels(self.network, self.run.compute):
            self.real = compile_second_order(self.real, self.run.compute, f"gradients, {spec}")

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that changes from one step to the next."""
        names = ("images", "velocity", "losses", "clock", "weights", "trained")
        return dict(zip(names, (*self.match_state, self.trainer.weights, self.trainer.clock), strict=True))

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
        match, (outer_steps, inner_epochs) = self.match, self.recipe.loops
        if self.networks.on_host:
            self._prepare_network(int(self.clock) // outer_steps * outer_steps)  # a resumed run has its weights already
        else:
            match = capture_step(self.match, self.match_state, self.run.compute)
        if outer_steps > 1 and inner_epochs:
            self.trainer.compile_steps()

        def step(number: int) -> None:
            with self.networks.user_code(number):
                if number % outer_steps == 0:
                    self.sample_network(number)
                match()
                if (number + 1) % outer_steps:  # the network is not used after its last match
                    first_epoch = self.clock * inner_epochs  # on the device, so that the host need not wait
                    for epoch in range(inner_epochs):
                        self.trainer.train_epoch(self.keys["order"], first_epoch + epoch, self._check_stop)

        return step

    def _check_stop(self) -> None:
        """Stop if the user asked to, after a chunk of classes or a step of the network."""
        self.run.check_stop(1 / (len(self.chunks) + self.recipe.loops[1] * self.trainer.steps_per_epoch))

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
        self._update_batch_norm()
        total = torch.zeros((), device=self.losses.device)
        for chunk in self.chunks:
            images, velocity = self.images_NCHW[chunk.rows], self.velocity[chunk.rows]
            loss, gradient = self.gradient(images, chunk)
            velocity.mul_(self.recipe.momentum).add_(gradient)
            images.sub_(velocity, alpha=self.recipe.lr)
            total += loss
            self._check_stop()
        record_loss(self.clock, self.losses, total)

    def gradient(self, images_NCHW: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return the loss of a chunk and its gradient with respect to the images, under one augmentation per class."""
        weights, dtype = self.trainer.weights, self.dtype
        index_KB = self.store.sample_class_indices(self.keys["real"], self.clock, chunk.classes_K, self.batch_size)
        leaf = images_NCHW.detach().clone().requires_grad_()
        images_KICHW = (
            leaf.unflatten(0, chunk.synthetic_weight_KI.shape) if chunk.index_KI is None else leaf[chunk.index_KI]
        )
        if self.stages:
            streams_K = self.store.stream_ids(chunk.classes_K)
            uniform_KU = rng.uniform(self.keys["augment"], self.clock, streams_K, augment.NUM_UNIFORMS)
            transform = augment.sample_transform(uniform_KU, self.stages, self.data.size)
            real_KBCHW = self.store.take_augmented(index_KB, transform, dtype)
            images_KICHW = augment.apply(transform, images_KICHW)
        else:
            real_KBCHW = self.store.take_normalized(index_KB).to(dtype)
        real = self.real(weights, self.buffers, real_KBCHW, chunk.classes_K, chunk.real_weight_KB)
        augmented_KICHW = images_KICHW.detach()
        loss, by_augmented_KICHW = self.synthetic(
            weights, self.buffers, augmented_KICHW, chunk.classes_K, chunk.synthetic_weight_KI, real
        )
        (gradient,) = torch.autograd.grad(images_KICHW, leaf, by_augmented_KICHW)
        return loss, gradient

    def real_gradients(
        self, weights_P: Tensor, buffers: dict[str, Tensor], images_KBCHW: Tensor, classes_K: Tensor, weight_KB: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradients of the loss on each class's real images, by parameter name."""
        views = self.trainer.parameters.unflatten(weights_P.detach().requires_grad_(), images_KBCHW.dtype)
        gradients = self.class_gradients(self.forward, views | buffers, images_KBCHW, classes_K, weight_KB)
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
        if self.networks.on_host:
            weights_P = weights_P.detach().requires_grad_()  # for `class_gradients_by_backward`
        parameters = self.trainer.parameters.unflatten(weights_P, leaf.dtype) | buffers
        with kernels.disable_kernels(blocks_only=True):  # the block kernels have no second derivative
            gradients = self.class_gradients(self.forward, parameters, leaf, classes_K, weight_KI, create_graph=True)
        loss = row_distance(real, gradients).sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), gradient

    def forward(self, views: dict[str, Tensor], images: Tensor) -> Tensor:
        """Return logits; batch norm uses its stored statistics."""
        logits: Tensor = functional_call(self.network, views, (images,))
        return logits

    @torch.no_grad()
    def _update_batch_norm(self) -> None:
        """Set the statistics of batch norm from some real images of every class; they hold until the next step."""
        if not self.buffers:
            return
        classes_K = torch.arange(len(self.store.counts), device=self.clock.device)
        num = min(NORM_IMAGES, self.store.max_count)
        images_KSCHW = self.store.take_normalized(
            self.store.sample_class_indices(self.keys["norm"], self.clock, classes_K, num)
        )
        images = images_KSCHW[self.norm_index[:, 0], self.norm_index[:, 1]]
        self.network.train()
        views = self.trainer.parameters.unflatten(self.trainer.weights, images.dtype)
        self.forward(views | self.buffers, images)
        self.network.eval()
