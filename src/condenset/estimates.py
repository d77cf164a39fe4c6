"""How long a run takes, told before it begins: the images that pass through its networks, and what one takes here.

The unit is an image forward through a network. Back again takes twice as long; derivatives of derivatives twice that.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.engine import Place
from condenset.engine.memory import parts
from condenset.methods.matching import can_be_one
from condenset.recipes import (
    DistributionRecipe,
    GradientRecipe,
    LabelRecipe,
    Protocol,
    Recipe,
    TrainedRecipe,
    UnrolledRecipe,
)
from condenset.train import Trainer, TrainingSet
from condenset.types import ImageData, Splits

BACK = 3  # forward and back, beside forward
AGAIN = 9  # and back through that
SOON = 10_000  # images through a network: fewer take no time that one would want to know of
PIXELS = {"cuda": 262_144}  # in a channel of all images of the step that is timed
FEW_PIXELS = 32_768  # elsewhere, where it may take seconds
MOST = 256  # images in it
SUMS = 1_000_000_000  # multiplications in it, forward, there: half a second
FEWEST = 4  # images in it, or else what a step takes whatever it has would weigh too much
STRETCH = {"cuda": 20}  # steps that are timed at once, where to wait for one takes as long as it does; elsewhere one
ENOUGH = 1.0  # seconds of a stretch, after which no other is tried
LOOKED_AT = 60  # networks of many, which are reckoned
TRIED = 9  # of these, which are timed and stand for the others


class Work(NamedTuple):
    """A set to make, if there is a recipe, and networks to train on so many images, if there is a protocol.

    share: of the classes, which the set is made of. networks: specs in place of the protocol's own. left: how much of
    the training there is to do.
    """

    recipe: Recipe | None
    protocol: Protocol | None
    num: int
    seed: int = 0
    share: float = 1.0
    networks: tuple[str, ...] = ()
    left: float = 1.0


def seconds_of(works: Sequence[Work], splits: Splits, place: Place) -> list[float]:
    """About how long each of them takes; of what passes through no network, nothing is counted."""
    found, none = passes(works, splits), [0.0] * len(works)
    if sum(images.total() for images in found) < SOON:
        return none
    try:
        each = {spec: _seconds_each(spec, splits.train, place) for spec in set[str]().union(*found)}
    except RuntimeError:  # out of memory, in which the run itself may find a way
        return none
    return [sum(num * each[spec] for spec, num in images.items()) for images in found]


def passes(works: Sequence[Work], splits: Splits) -> list[Counter[str]]:
    """Images that go through networks in each work, by the networks' specs; what several need is the first one's."""
    data, all_found = splits.train, list[Counter[str]]()
    trained = set[tuple[Protocol, int]]()  # networks that coresets ask
    for number, work in enumerate(works):
        recipe, protocol, found = work.recipe, work.protocol, Counter[str]()
        if isinstance(recipe, TrainedRecipe):
            if (recipe.protocol, work.seed) not in trained:
                found[recipe.protocol.network] += _of_training(recipe.protocol, round(work.share * len(data)))
            trained.add((recipe.protocol, work.seed))
        elif recipe:
            at_once = [each for each in works[:number] if each.seed == work.seed and can_be_one(each.recipe, recipe)]
            found += _of_making(recipe, data, work.share, real=not at_once)
        if protocol:
            images = work.left * (_of_training(protocol, work.num) + protocol.nets * len(splits.test))
            for spec, alike in _some(work.networks or (protocol.network,), data).items():
                found[spec] += round(alike * images)
        all_found.append(found)
    return all_found


def _some(specs: Sequence[str], data: ImageData) -> dict[str, float]:
    """Of many networks some, from the lightest to the heaviest, and how many of it those come to that it stands for."""
    if len(specs) <= TRIED:
        return dict.fromkeys(specs, 1.0)
    drawn = random.Random(0).sample(specs, min(LOOKED_AT, len(specs)))  # by place, one choice might always come up
    sums = {spec: _sums(spec, data) for spec in drawn}
    order, found = sorted(drawn, key=sums.__getitem__), dict[str, float]()
    for part in parts(len(order), -(-len(order) // TRIED)):
        alike = order[part]
        tried = alike[len(alike) // 2]
        found[tried] = sum(sums[spec] for spec in alike) / sums[tried] * len(specs) / len(drawn)
    return found


def _sums(spec: str, data: ImageData) -> int:
    """Multiplications and additions that an image takes on its way through a network."""
    return _sums_of(spec, data.channels, data.size, data.num_classes)


@functools.lru_cache(maxsize=1024)  # every search of a space asks for the same
def _sums_of(spec: str, channels: int, size: int, num_classes: int) -> int:
    found = 0

    def see(layer: nn.Module, _: object, maps: object) -> None:
        nonlocal found
        if isinstance(layer, nn.Conv2d | nn.Linear) and isinstance(maps, Tensor):
            found += layer.weight.numel() * maps.numel() // layer.weight.shape[0]

    with torch.device("meta"), torch.no_grad():
        network = networks.build(spec, channels=channels, size=size, num_classes=num_classes)
        for layer in network.modules():
            layer.register_forward_hook(see)
        network(torch.empty(1, channels, size, size))
    return found


def _of_training(protocol: Protocol, num: int) -> int:
    if protocol.own_steps:  # few
        return 0
    steps = protocol.length(num)[0]
    images = steps * num // -(-num // protocol.batch)  # the last batch of a pass is smaller
    return BACK * protocol.nets * images


def _of_making(recipe: Recipe, data: ImageData, share: float, *, real: bool) -> Counter[str]:
    """share: of the classes. real: with the real images, which other sizes of a set may have been matched with at
    once."""
    num, most = round(share * recipe.ipc * data.num_classes), round(share * len(data))
    match recipe:
        case DistributionRecipe():
            images = real * _of_each_class(data, share, recipe.batch) + BACK * num
            return Counter({recipe.network: recipe.iterations * images})
        case GradientRecipe():
            matched = BACK * _of_each_class(data, share, recipe.batch) + AGAIN * num
            outer, inner = recipe.loops
            between = (outer - 1) * inner * BACK * num  # after the last step of a network it is not trained on
            return Counter({recipe.network: recipe.iterations * (outer * matched + between)})
        case UnrolledRecipe():
            # Every step's share of the set goes there and back twice, since it is forgotten in between.
            each = max(num // recipe.steps, round(share * data.num_classes))
            unrolled = recipe.steps * recipe.epochs * (BACK + AGAIN) * each
            return Counter({recipe.network: recipe.iterations * (unrolled + BACK * min(recipe.batch, most))})
        case LabelRecipe():
            return Counter({recipe.network: recipe.iterations * (min(recipe.batch, most) + num)})
    return Counter()


def _of_each_class(data: ImageData, share: float, batch: int) -> int:
    """Real images of such a share of the classes, so many of each that has as many."""
    return round(share * sum(min(batch, count) for count in data.class_counts))


def _seconds_each(spec: str, data: ImageData, place: Place) -> float:
    """What an image forward through this network takes, in a training step: in three stretches of them the fastest,
    if that is soon, and not in the first, which begins slowly.

    On a GPU it is the most that it takes: side by side, in larger batches and compiled, networks are faster.
    """
    fitting = PIXELS.get(place.device.type, FEW_PIXELS) // data.size**2
    if place.device.type != "cuda":
        fitting = min(fitting, max(SUMS // _sums(spec, data), FEWEST))
    num = min(max(fitting, 1), MOST, len(data))
    stretch = STRETCH.get(place.device.type, 1)
    some = dataclasses.replace(data, images=data.images[:num], labels=data.labels[:num], known_fingerprint="")
    protocol = Protocol(network=spec, nets=1, batch=num, steps=4 * stretch)
    trainer = Trainer(spec, TrainingSet.of(some, place.device), protocol, place, compiling=False)
    seconds, began = list[float](), 0.0
    for done in trainer.training(0, "estimate"):
        if done % stretch == 0:
            trainer.is_finite()  # which waits for the device
            if began:
                seconds.append(time.perf_counter() - began)
            if seconds and seconds[-1] > ENOUGH:
                break
            began = time.perf_counter()
    trainer.release()
    return min(seconds) / (BACK * num * stretch)
