"""How long a run takes, told before it begins: the images that pass through its networks, and what one takes here.

The unit is an image forward through a network. Back again takes twice as long; derivatives of derivatives twice that.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from condenset.engine import Place
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
TRIED = 7  # networks of many, which stand for the others
STRETCH = {"cuda": 20}  # steps that are timed at once, where to wait for one takes as long as it does; elsewhere one
ENOUGH = 1.0  # seconds of a stretch, after which no other is tried, nor more images in it


class Work(NamedTuple):
    """A set to make, if there is a recipe, and networks to train on so many images, if there is a protocol.

    share: of the training images, which the set is made of. networks: specs in place of the protocol's own.
    """

    recipe: Recipe | None
    protocol: Protocol | None
    num: int
    seed: int = 0
    share: float = 1.0
    networks: tuple[str, ...] = ()


def seconds_of(works: Sequence[Work], splits: Splits, place: Place) -> float:
    """About how long all of them take; of what passes through no network, nothing is counted."""
    found = passes(works, splits)
    if sum(found.values()) < SOON:
        return 0.0
    try:
        return sum(num * _seconds_each(spec, splits.train, place) for spec, num in found.items())
    except RuntimeError:  # out of memory, in which the run itself may find a way
        return 0.0


def passes(works: Sequence[Work], splits: Splits) -> Counter[str]:
    """Images that pass through networks, by these networks' specs."""
    data, found = splits.train, Counter[str]()
    trainings: dict[tuple[Protocol, int], float] = {}  # of networks that coresets ask, which are trained once
    for place, work in enumerate(works):
        recipe, protocol = work.recipe, work.protocol
        if isinstance(recipe, TrainedRecipe):
            trainings[recipe.protocol, work.seed] = work.share
        elif recipe:
            at_once = [each for each in works[:place] if each.seed == work.seed and can_be_one(each.recipe, recipe)]
            for spec, num in _of_making(recipe, data, real=not at_once).items():
                found[spec] += round(work.share * num)
        if protocol:
            images = _of_training(protocol, work.num) + protocol.nets * len(splits.test)
            for spec, alike in _some(work.networks or (protocol.network,)).items():
                found[spec] += alike * images
    for (protocol, _), share in trainings.items():
        found[protocol.network] += _of_training(protocol, round(share * len(data)))
    return found


def _some(specs: Sequence[str]) -> Counter[str]:
    """Of many networks some, from all over their order, and how many each of them stands for."""
    num, num_tried = len(specs), min(TRIED, len(specs))
    tried = [specs[(2 * place + 1) * num // (2 * num_tried)] for place in range(num_tried)]
    return Counter(tried[place * num_tried // num] for place in range(num))


def _of_training(protocol: Protocol, num: int) -> int:
    if protocol.own_steps:  # few
        return 0
    steps = protocol.length(num)[0]
    images = steps * num // -(-num // protocol.batch)  # the last batch of a pass is smaller
    return BACK * protocol.nets * images


def _of_making(recipe: Recipe, data: ImageData, *, real: bool) -> dict[str, int]:
    """real: with the real images, which other sizes of a set may have been matched with at once."""
    num = recipe.ipc * data.num_classes
    match recipe:
        case DistributionRecipe():
            return {recipe.network: recipe.iterations * (real * _of_each_class(data, recipe.batch) + BACK * num)}
        case GradientRecipe():
            matched = BACK * _of_each_class(data, recipe.batch) + AGAIN * num
            between = recipe.loops[1] * BACK * num
            return {recipe.network: recipe.image_steps * (matched + between)}
        case UnrolledRecipe():
            # Every step's share of the set goes there and back twice, since it is forgotten in between.
            share = max(num // recipe.steps, data.num_classes)
            unrolled = recipe.steps * recipe.epochs * (BACK + AGAIN) * share
            return {recipe.network: recipe.iterations * (unrolled + BACK * min(recipe.batch, len(data)))}
        case LabelRecipe():
            return {recipe.network: recipe.iterations * (min(recipe.batch, len(data)) + num)}
    return {}


def _of_each_class(data: ImageData, batch: int) -> int:
    """Real images of all classes, so many of each that has as many."""
    return sum(min(batch, count) for count in data.class_counts)


def _seconds_each(spec: str, data: ImageData, place: Place) -> float:
    """What an image forward through this network takes, in a training step of as many as are soon done.

    On a GPU it is the most that it takes: side by side, in larger batches and compiled, networks are faster.
    """
    fitting = PIXELS.get(place.device.type, FEW_PIXELS) // data.size**2
    num = min(max(fitting, 1), MOST, len(data))
    if place.device.type != "cuda":
        one = _seconds_of_step(spec, data, 1, place)
        num = min(num, int(ENOUGH / one))
        if num < 2:
            return one / BACK
    return _seconds_of_step(spec, data, num, place) / (BACK * num)


def _seconds_of_step(spec: str, data: ImageData, num: int, place: Place) -> float:
    """What a training step of so many images takes: in three stretches the fastest, if that is soon."""
    stretch = STRETCH.get(place.device.type, 1)
    some = dataclasses.replace(data, images=data.images[:num], labels=data.labels[:num], known_fingerprint="")
    protocol = Protocol(network=spec, nets=1, batch=num, steps=3 * stretch)
    trainer = Trainer(spec, TrainingSet.of(some, place.device), protocol, place, compiling=False)
    trainer.ready()  # kernels are built and steps captured, which takes longer than many of them
    seconds, began = [], time.monotonic()
    for done in trainer.training(0, "estimate"):
        if done % stretch == 0:
            trainer.is_finite()  # which waits for the device
            seconds.append(time.monotonic() - began)
            if seconds[-1] > ENOUGH:
                break
            began = time.monotonic()
    trainer.release()
    return min(seconds) / stretch
