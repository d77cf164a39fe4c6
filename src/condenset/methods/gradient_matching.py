"""Gradient matching: learn images on which a network has the loss gradients of the real images (DC and DSA).

Shapes: K classes, B real and I synthetic images per class, N synthetic images in total, P parameters of the network.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from condenset import augment, kernels, networks
from condenset.data.class_store import ClassStore
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.engine.compile import compile_second_order, uses_custom_kernels
from condenset.engine.cuda_graph import capture_step
from condenset.engine.memory import estimate_memory, num_classes_that_fit, split_evenly
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
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.methods.registry import method_of
from condenset.methods.samplers import sample_new_networks
from condenset.networks.gradients import class_gradients
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

    description = f"{method_of(recipe).name}, {recipe.ipc} per class"
    return result(run_loop(run, problem.state, recipe.image_steps, problem.prepare, description, result))


class Chunk(NamedTuple):
    """Classes that pass through the network together; chunks bound the memory."""

    classes_K: Tensor
    rows: slice  # of the synthetic images
    index_KI: Tensor | None  # positions in `rows`; padding repeats the first image of a class. None: no padding
    real_KB: Tensor  # weight of each real image in the mean loss of its class, 0 for padding
    synthetic_KI: Tensor  # the same for synthetic images


class GradientMatching:
    """The state of a run and its step: match gradients once, then train the network for some epochs.

    Real gradients are computed in the run's precision. Synthetic gradients are differentiated again, so they are
    computed in float32.
    """

    def __init__(self, data: ImageData, recipe: GradientMatchingRecipe, run: RunContext, counts: list[int]) -> None:
        device = run.compute.device
        self.recipe, self.run, self.data = recipe, run, data
        self.operations = augment.parse(recipe.augment, allow_hflip=data.allow_hflip)
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
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0  # the statistics of the last batch alone
        self.buffers = dict(self.network.named_buffers())
        num_norm = min(NORM_IMAGES, max(data.class_counts))
        norm_weights = mean_weights([min(num_norm, count) for count in data.class_counts], num_norm)
        self.norm_index = norm_weights.to(device).nonzero()  # excludes padding
        self.chunks = self._split(data, counts)
        self._compile(networks.canonical_spec(recipe.network, size=data.size))

    def _compile(self, spec: str) -> None:
        """Compile the gradient functions; one compiled function serves all runs with this network and these shapes."""
        this = weakref.proxy(self)  # cached functions that referred to this object would keep its GPU memory
        self.real: Callable[..., dict[str, Tensor]] = lambda *args: this.real_gradients(*args)
        self.synthetic: Callable[..., tuple[Tensor, Tensor]] = lambda *args: this.loss_and_gradient(*args)
        if self.networks.on_host:  # users' networks may contain code that cannot be traced
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

    def _split(self, data: ImageData, counts: list[int]) -> list[Chunk]:
        """Split the classes into chunks that fit the memory."""
        device, width = self.run.compute.device, max(counts)
        real_KB = mean_weights([min(self.batch_size, count) for count in data.class_counts], self.batch_size).to(device)
        synthetic_KI = mean_weights(counts, width).to(device)
        count_K1 = torch.tensor(counts)[:, None]
        index_KI = torch.where(torch.arange(width) < count_K1, torch.arange(width), 0)
        index_KI = index_KI + torch.cumsum(count_K1, 0) - count_K1
        max_classes = self.run.classes_per_chunk or self._max_classes_per_pass(data, width)
        chunks = []
        for classes in split_evenly(data.num_classes, max_classes):
            rows = slice(sum(counts[: classes.start]), sum(counts[: classes.stop]))
            classes_K = torch.arange(classes.start, classes.stop, device=device)
            has_padding = min(counts[classes]) < width
            chunk_index_KI = (index_KI[classes] - rows.start).to(device) if has_padding else None
            chunks.append(Chunk(classes_K, rows, chunk_index_KI, real_KB[classes], synthetic_KI[classes]))
        return chunks

    def _max_classes_per_pass(self, data: ImageData, ipc: int) -> int:
        """Return how many classes fit the memory.

        Real images need feature maps and their gradients. Synthetic images need twice that, in float32.
        """
        compute = self.run.compute
        float32_images = 2 * ipc * 4 * 8 // torch.finfo(compute.dtype).bits
        memory = estimate_memory(
            self.network,
            compute,
            (data.channels, data.size, data.size),
            real_per_class=0,
            synthetic_per_class=max(self.batch_size, float32_images),
            custom_kernels=False,
            num_stored=len(data.images),
            num_learned=data.num_classes * ipc,
        )
        return num_classes_that_fit(memory, compute, self.run.memory_limit)

    def prepare(self) -> Callable[[int], None]:
        """Return the step of the loop, captured if possible; called once the state is restored."""
        match = self.match
        if not self.networks.on_host:
            match = capture_step(self.match, self.match_state, self.run.compute)
        outer_steps, inner_epochs = self.recipe.loops
        if outer_steps > 1 and inner_epochs:
            self.trainer.compile_steps()

        def step(number: int) -> None:
            if number % outer_steps == 0:
                self.sample_network(number)
            match()
            if (number + 1) % outer_steps:  # the network is not used after its last match
                first_epoch = self.clock * inner_epochs  # on the device, so that the host need not wait
                for epoch in range(inner_epochs):
                    self.trainer.train_epoch(self.keys["order"], first_epoch + epoch)

        return step

    def sample_network(self, number: int = 0) -> None:
        """Sample a new network for step `number` and those that follow."""
        self.networks.prepare(number)
        self.trainer.weights.copy_(self.networks.sample_weights(self.clock))

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
        record_loss(self.clock, self.losses, total)

    def gradient(self, images_NCHW: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return the loss of a chunk and its gradient with respect to the images, under one augmentation per class."""
        weights, dtype = self.trainer.weights, self.dtype
        index_KB = self.store.choose(self.keys["real"], self.clock, chunk.classes_K, self.batch_size)
        leaf = images_NCHW.detach().clone().requires_grad_()
        images_KICHW = leaf.unflatten(0, chunk.synthetic_KI.shape) if chunk.index_KI is None else leaf[chunk.index_KI]
        if self.operations:
            streams_K = self.store.rows(chunk.classes_K)
            uniform_KU = rng.uniform(self.keys["augment"], self.clock, streams_K, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform_KU, self.operations, self.data.size)
            real_KBCHW = self.store.take_augmented(index_KB, transform, dtype)
            images_KICHW = augment.apply(transform, images_KICHW)
        else:
            real_KBCHW = self.store.take(index_KB).to(dtype)
        real = self.real(weights, self.buffers, real_KBCHW, chunk.classes_K, chunk.real_KB)
        augmented_KICHW = images_KICHW.detach()
        loss, by_augmented_KICHW = self.synthetic(
            weights, self.buffers, augmented_KICHW, chunk.classes_K, chunk.synthetic_KI, real
        )
        (gradient,) = torch.autograd.grad(images_KICHW, leaf, by_augmented_KICHW)
        return loss, gradient

    def real_gradients(
        self, weights_P: Tensor, buffers: dict[str, Tensor], images_KBCHW: Tensor, classes_K: Tensor, weight_KB: Tensor
    ) -> dict[str, Tensor]:
        """Return the gradients of the loss on each class's real images, by parameter name."""
        views = self.trainer.parameters.unflatten(weights_P.detach().requires_grad_(), images_KBCHW.dtype)
        gradients = class_gradients(self.forward, views | buffers, images_KBCHW, classes_K, weight_KB)
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
        views = self.trainer.parameters.unflatten(weights_P, leaf.dtype)
        with kernels.disable_kernels(blocks_only=True):  # the block kernels have no second derivative
            gradients = class_gradients(self.forward, views | buffers, leaf, classes_K, weight_KI, create_graph=True)
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
        images_KSCHW = self.store.take(self.store.choose(self.keys["norm"], self.clock, classes_K, num))
        images = images_KSCHW[self.norm_index[:, 0], self.norm_index[:, 1]]
        self.network.train()
        views = self.trainer.parameters.unflatten(self.trainer.weights, images.dtype)
        self.forward(views | self.buffers, images)
        self.network.eval()
