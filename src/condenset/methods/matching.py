"""Distribution matching: synthetic images whose mean embedding meets the real one's, class by class (Algorithm 1).

Shapes: K classes, B real and I synthetic images a class, F features; (K, B or I, C, H, W) in the hot path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from condenset import augment, draws, networks
from condenset.data.store import ClassStore
from condenset.engine.memory import Need, bound, classes_together, images_together, need, parts
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
from condenset.recipes import DistributionRecipe, MatchingRecipe, PixelRecipe, Recipe
from condenset.runs import Run, iterate
from condenset.sizes import shown
from condenset.types import CondensedSet, ImageData

Recipes = Sequence[MatchingRecipe] | Sequence[PixelRecipe]
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
    return dm_sizes(data, [recipe], run)[0]


def dm_sizes(data: ImageData, recipes: Sequence[MatchingRecipe], run: Run) -> list[CondensedSet]:
    """Sets of several sizes at once: the real images, most of the work, pass through each network once for all.

    Each is what it would be alone, but for rounding: it sees the networks, images and augmentations it would see.
    """
    run.place.reset_peak_memory()
    return Matching(data, recipes, run, mean_distance).solve("dm", data)


def can_be_one(recipe: Recipe | None, other: Recipe | None) -> bool:
    """Whether `dm_sizes` can learn the sets of both recipes."""
    if not (isinstance(recipe, DistributionRecipe) and isinstance(other, DistributionRecipe)):
        return False
    return dataclasses.replace(other, ipc=recipe.ipc, lr=recipe.lr, allow_fewer=recipe.allow_fewer) == recipe


def fitting(data: ImageData, recipes: Sequence[MatchingRecipe], run: Run) -> int:
    """How many of the recipes, the first so many but one at least, can be learned at once in the memory there is."""
    network, most = embedding(recipes[0].network, data), bound(run.place, run.memory)
    least = data.num_classes if networks.uses_batch_norm(network) else 1
    needs = (_need(network, data, recipes[:num], run.place) for num in range(2, len(recipes) + 1))
    return 1 + sum(most is None or each.of(least) <= most for each in needs)


def check_memory(data: ImageData, recipes: Recipes, place: Place, memory: int | None, pool: int = 0) -> None:
    """Refuse a bound that cannot be kept by smaller chunks: with batch norm all classes pass together."""
    assert isinstance(recipes[0], MatchingRecipe)
    network = embedding(recipes[0].network, data)
    if memory is None or not networks.uses_batch_norm(network):
        return
    least = _need(network, data, recipes, place, pool=pool).of(data.num_classes)
    if least > memory:
        raise UserError(
            f"batch norm needs all {data.num_classes} classes in one pass, which takes about {shown(least)}, "
            f"but got memory of {shown(memory)}"
        )


class Filled(NamedTuple):
    """Which images of classes are there, where some have more than others."""

    weight_KN: Tensor | None  # of each image in its class's mean, 0 for padding; None: there is no padding
    places: Tensor | None  # that are no padding; None: all


class Learned(NamedTuple):
    """One of the sets that are learned: columns of the images."""

    recipe: MatchingRecipe | PixelRecipe
    counts: list[int]
    columns: slice


class Pass(NamedTuple):
    """Sets whose images pass through the network together."""

    sets: list[Learned]
    columns: slice
    lr: float | Tensor  # of each column, where they differ


class Chunk(NamedTuple):
    """Classes that pass through the network together."""

    rows: slice
    classes_K: Tensor
    real: Filled
    synthetic: list[Filled]  # by pass


class Seen(NamedTuple):
    """What a chunk's synthetic images of any size are matched with in an iteration."""

    views: dict[str, Tensor]  # the network's
    transform: augment.Transform | None
    real_KBF: Tensor
    real_KB: Tensor | None  # their weights


class Matching:
    """The state of a matching run, and the step that advances it; the sets' recipes differ in size and lr alone."""

    network: nn.Module
    operations: tuple[str, ...]

    def __init__(
        self,
        data: ImageData,
        recipes: Recipes,
        run: Run,
        objective: Objective,
        memory_beside: int = 0,
    ) -> None:
        """memory_beside: bytes a class that the objective takes beyond the features."""
        device, recipe = run.place.device, recipes[0]
        self.recipe, self.run, self.objective, self.size = recipe, run, objective, data.size
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

        self.sets, self.images_KICHW = self._start(data, recipes)
        self.velocity = torch.zeros_like(self.images_KICHW)
        self.passes = self._passes()
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)
        self.chunks = self._split(data, self._classes_together(data, recipes, memory_beside))

    @property
    def state(self) -> dict[str, Tensor]:
        """All that changes from one iteration to the next."""
        return {"images": self.images_KICHW, "velocity": self.velocity, "losses": self.losses, "clock": self.clock}

    def _start(self, data: ImageData, recipes: Recipes) -> tuple[list[Learned], Tensor]:
        """The sets, and their images side by side, (K, I of all, C, H, W)."""
        sets, images, first = [], [], 0
        for each in recipes:
            counts = images_per_class(data, each)
            sets.append(Learned(each, counts, slice(first, first + max(counts))))
            images.append(initial_images(self.store, each.init, self.run.seed, max(counts)))
            first += max(counts)
        return sets, torch.cat(images, 1)

    def _passes(self) -> list[Pass]:
        """All sets pass together, but not with batch norm, which would mix them."""
        passes = []
        for sets in [[each] for each in self.sets] if self.batch_norm else [self.sets]:
            rates = [each.recipe.lr for each in sets]
            lr: float | Tensor = rates[0]
            if len(set(rates)) > 1:
                columns = [torch.full((max(each.counts), 1, 1, 1), each.recipe.lr) for each in sets]
                lr = torch.cat(columns).to(self.run.place.device)
            passes.append(Pass(sets, slice(sets[0].columns.start, sets[-1].columns.stop), lr))
        return passes

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

    def _split(self, data: ImageData, most: int) -> list[Chunk]:
        device = self.run.place.device
        real_KB = weights_of([min(self.batch, count) for count in data.class_counts], self.batch)
        synthetic_KI = torch.cat([weights_of(each.counts, max(each.counts)) for each in self.sets], 1)
        chunks = []
        for rows in parts(data.num_classes, most):
            classes_K = torch.arange(rows.start, rows.stop, device=device)
            synthetic = [_filled(synthetic_KI[rows, each.columns], device) for each in self.passes]
            chunks.append(Chunk(rows, classes_K, _filled(real_KB[rows], device), synthetic))
        return chunks

    def _classes_together(self, data: ImageData, recipes: Recipes, beside: int) -> int:
        """How many classes may pass together: all with batch norm, else what was asked for or what fits."""
        run, num = self.run, data.num_classes
        pool = 0 if self.pool_GP is None else self.pool_GP.nbytes
        if self.batch_norm:
            if run.chunk is not None and run.chunk < num:
                raise UserError(f"batch norm needs all {num} classes in one pass, but got chunks of {run.chunk}")
            check_memory(data, recipes, run.place, run.memory, pool)
            return num
        wanted = _need(self.network, data, recipes, run.place, beside, pool)
        return run.chunk or classes_together(wanted, run.place, run.memory)

    def solve(self, method: str, data: ImageData) -> list[CondensedSet]:
        """Run to the last iteration; the finished sets, without padding."""
        run, ipcs = self.run, [each.recipe.ipc for each in self.sets]
        about = {**self.about, "together": ipcs} if len(ipcs) > 1 else self.about

        def made(each: Learned, seconds: float) -> CondensedSet:
            chosen, labels = unpadded(self.images_KICHW[:, each.columns], each.counts), labels_of(each.counts)
            return finished(chosen, labels, data, method, each.recipe, run, seconds, **about)

        text = f"{method}, {', '.join(map(str, ipcs))} a class"
        first = self.sets[0]
        taken = iterate(run, self.state, self.recipe.iterations, self.prepare, text, lambda s: made(first, s))
        return [made(each, taken) for each in self.sets]

    def prepare(self) -> Callable[[int], None]:
        """The step, ready to run; made once the state stands where it will go on from."""
        step = accelerate(self.step, list(self.state.values()), self.run.place)
        return lambda _: step()

    def step(self) -> None:
        """One iteration over all classes, chunk by chunk; the clock says which."""
        weights = self.draw_network()
        total = torch.zeros((), device=self.losses.device)
        for chunk in self.chunks:
            total += self._learn(chunk, weights)  # which forgets what it saw before the next chunk is seen
        tick(self.clock, self.losses, total)

    def _learn(self, chunk: Chunk, weights: Tensor) -> Tensor:
        """Move the images of a chunk's classes; the sum of their losses before."""
        seen, total = self.see(chunk, weights), torch.zeros((), device=self.losses.device)
        for each, filled in zip(self.passes, chunk.synthetic, strict=True):
            images, velocity = (tensor[chunk.rows, each.columns] for tensor in (self.images_KICHW, self.velocity))
            leaf = images.detach().clone().requires_grad_()
            loss = self.loss(leaf, each, filled, seen).sum()
            (gradient,) = torch.autograd.grad(loss, leaf)
            velocity.mul_(self.recipe.momentum).add_(gradient)
            if isinstance(each.lr, Tensor):
                images.sub_(each.lr * velocity)
            else:
                images.sub_(velocity, alpha=each.lr)
            total += loss.detach()
        return total

    def draw_network(self) -> Tensor:
        """(P,) the weights of this iteration's network: fresh ones, or those of a network of the pool."""
        key = self.keys["network"]
        if self.pool_GP is None:
            return self.parameters.initial(draws.flat_uniform(key, self.clock, self.parameters.num))
        return self.pool_GP.index_select(0, draws.choice(key, self.clock, len(self.pool_GP)))[0]

    def see(self, chunk: Chunk, weights: Tensor) -> Seen:
        """A chunk's real images in the embedding that the weights give, under one augmentation draw a class."""
        ordered = chunk.real.weight_KN is not None  # padding comes last; a mean does not ask
        places_KB = self.store.choose(self.keys["real"], self.clock, chunk.classes_K, self.batch, ordered=ordered)
        transform = None
        if self.operations:
            rows_K = self.store.rows(chunk.classes_K)
            uniform_KU = draws.uniform(self.keys["augment"], self.clock, rows_K, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform_KU, self.operations, self.size)
            real_KBCHW = self.store.take_augmented(places_KB, transform, self.dtype)
        else:
            real_KBCHW = self.store.take(places_KB)
        views = self.parameters.views(weights, self.dtype)
        with torch.no_grad():
            real_KBF = self._embed(views, real_KBCHW, chunk.real.places, self.slice)
        return Seen(views, transform, real_KBF, chunk.real.weight_KN)

    def loss(self, images_KICHW: Tensor, together: Pass, filled: Filled, seen: Seen) -> Tensor:
        """(K,) the objective of each class's synthetic images, seen as its real ones were, over the sets of a pass."""
        if seen.transform is not None:
            images_KICHW = augment.apply(seen.transform, images_KICHW, self.dtype)
        features_KIF = self._embed(seen.views, images_KICHW, filled.places)
        total = torch.zeros((), device=features_KIF.device)
        for each in together.sets:
            own = slice(each.columns.start - together.columns.start, each.columns.stop - together.columns.start)
            weight_KI = None if filled.weight_KN is None else filled.weight_KN[:, own]
            total = total + self.objective(seen.real_KBF, features_KIF[:, own], seen.real_KB, weight_KI)
        return total

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


def _filled(weight_KN: Tensor, device: torch.device) -> Filled:
    if bool(weight_KN.all()):
        return Filled(None, None)
    weight_KN = weight_KN.to(device)
    return Filled(weight_KN, weight_KN.flatten().nonzero()[:, 0])


def _need(
    network: nn.Module,
    data: ImageData,
    recipes: Recipes,
    place: Place,
    beside: int = 0,
    pool: int = 0,
) -> Need:
    """beside: bytes a class of the objective; pool: bytes of the networks to draw from."""
    recipe, most = recipes[0], max(data.class_counts)
    synthetic = [min(each.ipc, most) for each in recipes]
    if isinstance(recipe, PixelRecipe):
        place = Place(place.device, torch.float32)  # whatever networks compute in
    wanted = need(
        network,
        place,
        (data.channels, data.size, data.size),
        real=min(recipe.batch, most),
        synthetic=max(synthetic) if networks.uses_batch_norm(network) else sum(synthetic),
        by_hand=by_hand(network, place),
        stored=len(data.images),
        learned=data.num_classes * sum(synthetic),
        sliced=_slice(network, data, place),
        beside=beside,
    )
    return Need(wanted.held + pool, wanted.a_class)


def _slice(network: nn.Module, data: ImageData, place: Place) -> int | None:
    """How many real images pass at a time: on a CPU few, but all with batch norm."""
    image = (data.channels, data.size, data.size)
    return None if networks.uses_batch_norm(network) else images_together(network, place, image)
