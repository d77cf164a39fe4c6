"""Gradient matching: synthetic images on which a network's loss has the gradients it has on real ones (DC and DSA).

Shapes: K classes, B real and I synthetic images a class, N synthetic images in all, P numbers of a network.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from condenset import augment, draws, kernels, networks
from condenset.data.store import ClassStore
from condenset.engine.memory import classes_together, need, parts
from condenset.engine.step import accelerate, by_hand, traced
from condenset.methods.common import (
    NUM_LOSSES,
    finished,
    images_per_class,
    initial_images,
    labels_of,
    tick,
    unpadded,
    weights_of,
)
from condenset.networks.gradients import class_gradients
from condenset.recipes import GradientRecipe, Protocol
from condenset.runs import Run, iterate
from condenset.train import Trainer, TrainingSet
from condenset.types import CondensedSet, ImageData

NORM_IMAGES = 16  # real ones a class, that batch norm takes its statistics from
TRAIN_BATCH = 256
EPSILON = 1e-6  # of a product of norms: a row without gradient is at distance 1

Gradients = Mapping[str, Tensor]


def row_distance(real: Gradients, synthetic: Gradients) -> Tensor:
    """(K,) sum over all weights' output rows of 1 - cosine; gradients are (K, rows, columns) by name."""
    total = torch.zeros((), device=next(iter(real.values())).device)
    for name, a_KRC in real.items():
        b_KRC = synthetic[name]
        norms_KR = torch.linalg.vector_norm(a_KRC, dim=2) * torch.linalg.vector_norm(b_KRC, dim=2)
        total = total + (1 - (a_KRC * b_KRC).sum(2) / (norms_KR + EPSILON)).sum(1)
    return total


def dc(data: ImageData, recipe: GradientRecipe, run: Run) -> CondensedSet:
    """Dataset condensation with gradient matching (Zhao, Mopuri and Bilen, ICLR 2021)."""
    return _condense("dc", data, recipe, run)


def dsa(data: ImageData, recipe: GradientRecipe, run: Run) -> CondensedSet:
    """Gradient matching with differentiable Siamese augmentation in both loops (Zhao and Bilen, ICML 2021)."""
    return _condense("dsa", data, recipe, run)


def _condense(method: str, data: ImageData, recipe: GradientRecipe, run: Run) -> CondensedSet:
    counts = images_per_class(data, recipe)
    run.place.reset_peak_memory()
    problem = GradientMatching(data, recipe, run, counts)

    def made(seconds: float) -> CondensedSet:
        return finished(problem.images_NCHW, problem.trainer.data.labels, data, method, recipe, run, seconds)

    text = f"{method}, {recipe.ipc} a class"
    return made(iterate(run, problem.state, recipe.image_steps, problem.prepare, text, made))


class Chunk(NamedTuple):
    """Classes that pass through the network together."""

    classes_K: Tensor
    rows: slice  # of the synthetic images
    index_KI: Tensor | None  # places in rows, those that fill a row up repeating its first; None: nothing to fill up
    real_KB: Tensor  # what an image counts: 1/number, 0 for padding
    synthetic_KI: Tensor


class GradientMatching:
    """The state of a run, and its step: match gradients once, then train the network a little further.

    Real gradients are computed in the run's precision; the synthetic ones, differentiated again, in float32.
    """

    def __init__(self, data: ImageData, recipe: GradientRecipe, run: Run, counts: list[int]) -> None:
        device = run.place.device
        self.recipe, self.run, self.size = recipe, run, data.size
        self.operations = augment.parse(recipe.augment, can_flip=data.can_flip)
        uses = ("network", "augment", "real", "norm", "order", "training")
        self.keys = {use: draws.make_key(run.seed, use, device=device) for use in uses}
        self.store = ClassStore(data, device)
        self.batch = min(recipe.batch, max(data.class_counts))

        started_KICHW = initial_images(self.store, recipe.init, run.seed, max(counts))
        self.images_NCHW = unpadded(started_KICHW, counts)
        self.velocity = torch.zeros_like(self.images_NCHW)
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)

        self.trainer = self._trainer(data, counts)
        self.trainer.start(torch.zeros_like(self.trainer.weights), self.keys["training"])
        shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
        self.network = networks.build(recipe.network, **shape).to(device).eval()
        for module in self.network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0  # the last batch's statistics, nothing of earlier ones
        self.buffers = dict(self.network.named_buffers())
        kept = min(NORM_IMAGES, max(data.class_counts))
        self.norm_index = weights_of([min(kept, count) for count in data.class_counts], kept).to(device).nonzero()
        self.chunks = self._split(data, counts)

        me = weakref.proxy(self)  # functions that held this object would keep it, and its GPU memory, for long
        self.real: Callable[..., dict[str, Tensor]] = lambda *args: me.real_gradients(*args)
        spec = networks.canonical(recipe.network, size=data.size)  # shapes tell the rest
        self.synthetic = traced(lambda *args: me.loss_and_slope(*args), run.place, f"gradient distance, {spec}")
        if not by_hand(self.network, run.place):
            self.real = traced(self.real, run.place, f"gradients, {spec}")

    @property
    def state(self) -> dict[str, Tensor]:
        """All that changes from one step to the next."""
        names = ("images", "velocity", "losses", "clock", "weights", "trained")
        return dict(zip(names, (*self.changed, self.trainer.weights, self.trainer.clock), strict=True))

    @property
    def changed(self) -> list[Tensor]:
        """What matching changes; the rest of the state is the network's training."""
        return [self.images_NCHW, self.velocity, self.losses, self.clock]

    def _trainer(self, data: ImageData, counts: list[int]) -> Trainer:
        """What trains the network: plain SGD, on the images as they are at that moment."""
        recipe, device = self.recipe, self.run.place.device
        labels = labels_of(counts).to(device)
        one, zero = (torch.full((data.channels, 1, 1), value, device=device) for value in (1.0, 0.0))
        protocol = Protocol(
            network=recipe.network,
            lr=recipe.network_lr,
            momentum=0.0,
            weight_decay=0.0,
            batch=TRAIN_BATCH,
            augment=recipe.augment,
        )
        mine = TrainingSet(self.images_NCHW, labels, one, zero, data.can_flip, data.num_classes)
        return Trainer(recipe.network, mine, protocol, self.run.place)

    def _split(self, data: ImageData, counts: list[int]) -> list[Chunk]:
        device, most = self.run.place.device, max(counts)
        real_KB = weights_of([min(self.batch, count) for count in data.class_counts], self.batch).to(device)
        synthetic_KI = weights_of(counts, most).to(device)
        count_K1 = torch.tensor(counts)[:, None]
        place_KI = torch.where(torch.arange(most) < count_K1, torch.arange(most), 0)
        place_KI = place_KI + torch.cumsum(count_K1, 0) - count_K1
        chunks = []
        for part in parts(data.num_classes, self.run.chunk or self._fitting(data, most)):
            rows = slice(sum(counts[: part.start]), sum(counts[: part.stop]))
            classes_K = torch.arange(part.start, part.stop, device=device)
            full = min(counts[part]) == most
            index_KI = None if full else (place_KI[part] - rows.start).to(device)
            chunks.append(Chunk(classes_K, rows, index_KI, real_KB[part], synthetic_KI[part]))
        return chunks

    def _fitting(self, data: ImageData, most: int) -> int:
        """Classes that fit the memory: maps and their slopes of the real ones, twice those in float32 of the others."""
        place = self.run.place
        alike = max(self.batch, 2 * most * 4 * 8 // torch.finfo(place.dtype).bits)
        wanted = need(
            self.network,
            place,
            (data.channels, data.size, data.size),
            real=0,
            synthetic=alike,
            by_hand=False,
            stored=len(data.images),
            learned=data.num_classes * most,
        )
        return classes_together(wanted, place, self.run.memory)

    def prepare(self) -> Callable[[int], None]:
        """The step, ready to run; made once the state stands where it will go on from."""
        match = accelerate(self.match, self.changed, self.run.place)
        outer, inner = self.recipe.loops
        if outer > 1 and inner:
            self.trainer.ready()

        def step(number: int) -> None:
            if number % outer == 0:
                self.draw_network()
            match()
            if (number + 1) % outer:  # after the last match the network is done with
                first = self.clock * inner  # on the device: nothing is waited for
                for each in range(inner):
                    self.trainer.one_pass(self.keys["order"], first + each)

        return step

    def draw_network(self) -> None:
        """A fresh network for the step that the clock stands at and those that follow."""
        parameters = self.trainer.parameters
        uniform_P = draws.flat_uniform(self.keys["network"], self.clock, parameters.num)
        self.trainer.weights.copy_(parameters.initial(uniform_P))

    def match(self) -> None:
        """One step of the images of all classes towards matching gradients; the clock says which."""
        self._set_statistics()
        total = torch.zeros((), device=self.losses.device)
        for chunk in self.chunks:
            images, velocity = self.images_NCHW[chunk.rows], self.velocity[chunk.rows]
            loss, gradient = self.gradient(images, chunk)
            velocity.mul_(self.recipe.momentum).add_(gradient)
            images.sub_(velocity, alpha=self.recipe.lr)
            total += loss
        tick(self.clock, self.losses, total)

    def gradient(self, images_NCHW: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """The loss of a chunk's classes and its gradient by their images, under one augmentation draw a class."""
        weights, dtype = self.trainer.weights, self.run.place.dtype
        places_KB = self.store.choose(self.keys["real"], self.clock, chunk.classes_K, self.batch)
        leaf = images_NCHW.detach().clone().requires_grad_()
        images_KICHW = leaf.unflatten(0, chunk.synthetic_KI.shape) if chunk.index_KI is None else leaf[chunk.index_KI]
        if self.operations:
            rows_K = self.store.rows(chunk.classes_K)
            uniform_KU = draws.uniform(self.keys["augment"], self.clock, rows_K, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform_KU, self.operations, self.size)
            real_KBCHW = self.store.take_augmented(places_KB, transform, dtype)
            images_KICHW = augment.apply(transform, images_KICHW)
        else:
            real_KBCHW = self.store.take(places_KB).to(dtype)
        real = self.real(weights, self.buffers, real_KBCHW, chunk.classes_K, chunk.real_KB)
        seen = images_KICHW.detach()
        loss, slope = self.synthetic(weights, self.buffers, seen, chunk.classes_K, chunk.synthetic_KI, real)
        (gradient,) = torch.autograd.grad(images_KICHW, leaf, slope)
        return loss, gradient

    def real_gradients(
        self, weights_P: Tensor, buffers: dict[str, Tensor], images_KBCHW: Tensor, classes_K: Tensor, share_KB: Tensor
    ) -> dict[str, Tensor]:
        """The weight gradients of each class's real images."""
        views = self.trainer.parameters.views(weights_P.detach().requires_grad_(), images_KBCHW.dtype)
        found = class_gradients(self.forward, views | buffers, images_KBCHW, classes_K, share_KB)
        return {name: gradient.detach() for name, gradient in found.items()}

    def loss_and_slope(
        self,
        weights_P: Tensor,
        buffers: dict[str, Tensor],
        images_KICHW: Tensor,
        classes_K: Tensor,
        share_KI: Tensor,
        real: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The distance from the real gradients, over all classes, and its gradient by the images as they are seen."""
        leaf = images_KICHW.detach().requires_grad_()
        views = self.trainer.parameters.views(weights_P, leaf.dtype)
        with kernels.plain(blocks_only=True):  # their kernels know no second derivative
            found = class_gradients(self.forward, views | buffers, leaf, classes_K, share_KI, create_graph=True)
        loss = row_distance(real, found).sum()
        (slope,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), slope

    def forward(self, views: dict[str, Tensor], images: Tensor) -> Tensor:
        """Logits; batch norm by the statistics it holds."""
        logits: Tensor = functional_call(self.network, views, (images,))
        return logits

    @torch.no_grad()
    def _set_statistics(self) -> None:
        """Batch norm's, from a few real images of every class together; they stand until the next step."""
        if not self.buffers:
            return
        classes_K = torch.arange(len(self.store.counts), device=self.clock.device)
        num = min(NORM_IMAGES, self.store.max_count)
        images_KSCHW = self.store.take(self.store.choose(self.keys["norm"], self.clock, classes_K, num))
        filled = images_KSCHW[self.norm_index[:, 0], self.norm_index[:, 1]]
        self.network.train()
        self.forward(self.trainer.parameters.views(self.trainer.weights, filled.dtype) | self.buffers, filled)
        self.network.eval()
