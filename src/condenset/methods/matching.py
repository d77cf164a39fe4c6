"""Distribution matching: synthetic images whose mean embedding meets the real one's, class by class (Algorithm 1).

Shapes: K classes, B real and I synthetic images a class, F features; (K, B or I, C, H, W) in the hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from condenset import augment, draws, networks
from condenset.data.store import ClassStore
from condenset.engine.memory import Need, classes_together, images_together, need, parts
from condenset.engine.place import Place
from condenset.engine.step import accelerate, by_hand, forward_of
from condenset.errors import UserError
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
from condenset.methods.pools import Pool
from condenset.recipes import DistributionRecipe, MatchingRecipe, PixelRecipe
from condenset.runs import Run, iterate
from condenset.sizes import shown
from condenset.types import CondensedSet, ImageData

Objective = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def mean_distance(
    real_KBF: Tensor, synthetic_KIF: Tensor, real_KB: Tensor | None = None, synthetic_KI: Tensor | None = None
) -> Tensor:
    """(K,) squared distance of the mean embeddings; weights sum to 1 a class, None: all images alike."""
    return (_mean(real_KBF, real_KB) - _mean(synthetic_KIF, synthetic_KI)).square().sum(1)


def _mean(features_KNF: Tensor, weight_KN: Tensor | None) -> Tensor:
    if weight_KN is None:
        return features_KNF.mean(1, dtype=torch.float32)
    return (features_KNF.float() * weight_KN[:, :, None]).sum(1)


def dm(data: ImageData, recipe: MatchingRecipe, run: Run) -> CondensedSet:
    """Dataset condensation with distribution matching (Zhao and Bilen, WACV 2023)."""
    counts = images_per_class(data, recipe)
    run.place.reset_peak_memory()
    return Matching(data, recipe, run, counts, mean_distance).solve("dm", data)


def check_memory(data: ImageData, recipe: MatchingRecipe, place: Place, memory: int | None, pool: int = 0) -> None:
    """Refuse a bound that cannot be kept by smaller chunks: with batch norm all classes pass together."""
    network = embedding(recipe.network, data)
    if memory is None or not networks.uses_batch_norm(network):
        return
    least = _need(network, data, recipe, place, pool=pool).of(data.num_classes)
    if least > memory:
        raise UserError(
            f"batch norm needs all {data.num_classes} classes in one pass, which takes about {shown(least)}, "
            f"but got memory of {shown(memory)}"
        )


class Chunk(NamedTuple):
    """Classes that pass through the network together."""

    rows: slice
    classes_K: Tensor
    real_KB: Tensor | None  # weights of the real images, 0 for padding; None: there is none
    synthetic_KI: Tensor | None
    real_index: Tensor | None  # places that are no padding; None: all
    synthetic_index: Tensor | None


class Matching:
    """The state of a matching run, and the step that advances it."""

    network: nn.Module
    operations: tuple[str, ...]

    def __init__(
        self,
        data: ImageData,
        recipe: MatchingRecipe | PixelRecipe,
        run: Run,
        counts: list[int],
        objective: Objective,
        memory_beside: int = 0,
    ) -> None:
        """memory_beside: bytes a class that the objective takes beyond the features."""
        device = run.place.device
        self.recipe, self.run, self.objective, self.size, self.counts = recipe, run, objective, data.size, counts
        if isinstance(recipe, PixelRecipe):
            self.network, self.dtype, self.operations = nn.Flatten(), torch.float32, ()
        else:
            self.network, self.dtype = embedding(recipe.network, data), run.place.dtype
            self.operations = augment.parse(recipe.augment, can_flip=data.can_flip)
        self.keys = {use: draws.make_key(run.seed, use, device=device) for use in ("network", "augment", "real")}
        self.store = ClassStore(data, device)
        self.batch = min(recipe.batch, max(data.class_counts))

        self.parameters = networks.Parameters(self.network, device)
        self.forward = forward_of(self.network, run.place)
        self.batch_norm = networks.uses_batch_norm(self.network)
        self.slice = _slice(self.network, data, run.place)
        self.pool_GP, self.about = self._pool(data)
        self.chunks = self._split(data, counts, self._classes_together(data, memory_beside))

        self.images_KICHW = initial_images(self.store, recipe.init, run.seed, max(counts))
        self.velocity = torch.zeros_like(self.images_KICHW)
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def state(self) -> dict[str, Tensor]:
        """All that changes from one iteration to the next."""
        return {"images": self.images_KICHW, "velocity": self.velocity, "losses": self.losses, "clock": self.clock}

    def _pool(self, data: ImageData) -> tuple[Tensor | None, dict[str, Any]]:
        """(G, P) the weights of the networks to draw from, and what provenance says of them; None: fresh ones."""
        recipe, run = self.recipe, self.run
        if not (isinstance(recipe, DistributionRecipe) and recipe.pool):
            return None, {}
        pool = Pool.load(recipe.pool)
        pool.check_fits(recipe.network, data)
        pool_GP = pool.weights(recipe.group, self.network, run.place)
        run.recipe = {**run.recipe, "pool": pool.fingerprint}  # a checkpoint asks which networks, not where they lie
        return pool_GP, {"pool": {"fingerprint": pool.fingerprint, "group": recipe.group, "networks": len(pool_GP)}}

    def _split(self, data: ImageData, counts: list[int], most: int) -> list[Chunk]:
        device = self.run.place.device
        real_KB = weights_of([min(self.batch, count) for count in data.class_counts], self.batch)
        synthetic_KI = weights_of(counts, max(counts))
        chunks = []
        for rows in parts(data.num_classes, most):
            weights = [None if bool(w.all()) else w.to(device) for w in (real_KB[rows], synthetic_KI[rows])]
            index = [None if w is None else w.flatten().nonzero()[:, 0] for w in weights]
            chunks.append(Chunk(rows, torch.arange(rows.start, rows.stop, device=device), *weights, *index))
        return chunks

    def _classes_together(self, data: ImageData, beside: int) -> int:
        """How many classes may pass together: all with batch norm, else what was asked for or what fits."""
        run, num = self.run, data.num_classes
        pool = 0 if self.pool_GP is None else self.pool_GP.nbytes
        if self.batch_norm:
            if run.chunk is not None and run.chunk < num:
                raise UserError(f"batch norm needs all {num} classes in one pass, but got chunks of {run.chunk}")
            assert isinstance(self.recipe, MatchingRecipe)
            check_memory(data, self.recipe, run.place, run.memory, pool)
            return num
        wanted = _need(self.network, data, self.recipe, run.place, beside, pool)
        return run.chunk or classes_together(wanted, run.place, run.memory)

    def solve(self, method: str, data: ImageData) -> CondensedSet:
        """Run to the last iteration; the finished set, without padding."""
        recipe, run = self.recipe, self.run
        labels = labels_of(self.counts)

        def made(seconds: float) -> CondensedSet:
            chosen = unpadded(self.images_KICHW, self.counts)
            return finished(chosen, labels, data, method, recipe, run, seconds, **self.about)

        text = f"{method}, {recipe.ipc} a class"
        return made(iterate(run, self.state, recipe.iterations, self.prepare, text, made))

    def prepare(self) -> Callable[[int], None]:
        """The step, ready to run; made once the state stands where it will go on from."""
        step = accelerate(self.step, list(self.state.values()), self.run.place)
        return lambda _: step()

    def step(self) -> None:
        """One iteration over all classes, chunk by chunk; the clock says which."""
        weights = self.draw_network()
        total = torch.zeros((), device=self.losses.device)
        for chunk in self.chunks:
            images, velocity = self.images_KICHW[chunk.rows], self.velocity[chunk.rows]
            leaf = images.detach().clone().requires_grad_()
            loss = self.loss(leaf, chunk, weights).sum()
            (gradient,) = torch.autograd.grad(loss, leaf)
            velocity.mul_(self.recipe.momentum).add_(gradient)
            images.sub_(velocity, alpha=self.recipe.lr)
            total += loss.detach()
        tick(self.clock, self.losses, total)

    def draw_network(self) -> Tensor:
        """(P,) the weights of this iteration's network: fresh ones, or those of a network of the pool."""
        key = self.keys["network"]
        if self.pool_GP is None:
            return self.parameters.initial(draws.flat_uniform(key, self.clock, self.parameters.num))
        return self.pool_GP.index_select(0, draws.choice(key, self.clock, len(self.pool_GP)))[0]

    def loss(self, images_KICHW: Tensor, chunk: Chunk, weights: Tensor) -> Tensor:
        """(K,) the objective of each class in the embedding the weights give, under one augmentation draw a class."""
        ordered = chunk.real_KB is not None  # padding comes last; a mean does not ask
        places_KB = self.store.choose(self.keys["real"], self.clock, chunk.classes_K, self.batch, ordered=ordered)
        if self.operations:
            rows_K = self.store.rows(chunk.classes_K)
            uniform_KU = draws.uniform(self.keys["augment"], self.clock, rows_K, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform_KU, self.operations, self.size)
            real_KBCHW = self.store.take_augmented(places_KB, transform, self.dtype)
            images_KICHW = augment.apply(transform, images_KICHW, self.dtype)
        else:
            real_KBCHW = self.store.take(places_KB)
        views = self.parameters.views(weights, self.dtype)
        with torch.no_grad():
            real_KBF = self._embed(views, real_KBCHW, chunk.real_index, self.slice)
        synthetic_KIF = self._embed(views, images_KICHW, chunk.synthetic_index)
        return self.objective(real_KBF, synthetic_KIF, chunk.real_KB, chunk.synthetic_KI)

    def _embed(
        self, views: dict[str, Tensor], images_KNCHW: Tensor, index: Tensor | None, images_together: int | None = None
    ) -> Tensor:
        """(K, N, F) features; padding never enters the network, since batch norm would see it."""
        shape = images_KNCHW.shape[:2]
        images = images_KNCHW.flatten(0, 1).to(self.dtype)
        filled = images if index is None else images[index]
        parts = filled.split(images_together or len(filled))
        found = [self.forward(views, part) for part in parts]
        features = torch.cat(found) if len(found) > 1 else found[0]
        if index is not None:
            features = features.new_zeros(len(images), features.shape[1]).index_copy(0, index, features)
        return features.view(*shape, -1)


def embedding(spec: str, data: ImageData) -> nn.Module:
    """The network without its classifier, on the meta device: every iteration draws new weights."""
    with torch.device("meta"):
        network = networks.build(spec, channels=data.channels, size=data.size, num_classes=data.num_classes)
    return networks.headless(networks.batch_statistics(network))


def _need(
    network: nn.Module,
    data: ImageData,
    recipe: MatchingRecipe | PixelRecipe,
    place: Place,
    beside: int = 0,
    pool: int = 0,
) -> Need:
    """beside: bytes a class of the objective; pool: bytes of the networks to draw from."""
    synthetic = min(recipe.ipc, max(data.class_counts))
    if isinstance(recipe, PixelRecipe):
        place = Place(place.device, torch.float32)  # whatever networks compute in
    wanted = need(
        network,
        place,
        (data.channels, data.size, data.size),
        real=min(recipe.batch, max(data.class_counts)),
        synthetic=synthetic,
        by_hand=by_hand(network, place),
        stored=len(data.images),
        learned=data.num_classes * synthetic,
        sliced=_slice(network, data, place),
        beside=beside,
    )
    return Need(wanted.held + pool, wanted.a_class)


def _slice(network: nn.Module, data: ImageData, place: Place) -> int | None:
    """How many real images pass at a time: on a CPU few, but all with batch norm."""
    image = (data.channels, data.size, data.size)
    return None if networks.uses_batch_norm(network) else images_together(network, place, image)
