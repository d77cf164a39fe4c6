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
STRETCH = {"cuda": 20}  # steps that are timed at once, where to wait for one takes as long as it does; elsewhere one
ENOUGH = 1.0  # seconds that a stretch may take for others to be tried after it


class Work(NamedTuple):
    """A set to make, if there is a recipe, and networks to train on so many images, if there is a protocol."""

    recipe: Recipe | None
    protocol: Protocol | None
    num: int
    seed: int = 0


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
    trainings: set[tuple[Protocol, int]] = set()  # of networks that coresets ask, which are trained once
    for place, work in enumerate(works):
        recipe, protocol = work.recipe, work.protocol
        if isinstance(recipe, TrainedRecipe):
            trainings.add((recipe.protocol, work.seed))
        elif recipe:
            at_once = [each for each in works[:place] if each.seed == work.seed and can_be_one(each.recipe, recipe)]
            found += _of_making(recipe, data, real=not at_once)
        if protocol:
            found += _of_training(protocol, work.num) + Counter({protocol.network: protocol.nets * len(splits.test)})
    return sum((_of_training(protocol, len(data)) for protocol, _ in trainings), found)


def _of_training(protocol: Protocol, num: int) -> Counter[str]:
    if protocol.own_steps:  # few
        return Counter()
    steps = protocol.length(num)[0]
    images = steps * num // -(-num // protocol.batch)  # the last batch of a pass is smaller
    return Counter({protocol.network: BACK * protocol.nets * images})


def _of_making(recipe: Recipe, data: ImageData, *, real: bool) -> Counter[str]:
    """real: with the real images, which other sizes of a set may have been matched with at once."""
    num = recipe.ipc * data.num_classes
    match recipe:
        case DistributionRecipe():
            images = real * _of_each_class(data, recipe.batch) + BACK * num
            return Counter({recipe.network: recipe.iterations * images})
        case GradientRecipe():
            matched = BACK * _of_each_class(data, recipe.batch) + AGAIN * num
            between = recipe.loops[1] * BACK * num
            return Counter({recipe.network: recipe.image_steps * (matched + between)})
        case UnrolledRecipe():
            # Every step's share of the set goes there and back twice, since it is forgotten in between.
            share = max(num // recipe.steps, data.num_classes)
            unrolled = recipe.steps * recipe.epochs * (BACK + AGAIN) * share
            return Counter({recipe.network: recipe.iterations * (unrolled + BACK * min(recipe.batch, len(data)))})
        case LabelRecipe():
            return Counter({recipe.network: recipe.iterations * (min(recipe.batch, len(data)) + num)})
    return Counter()


def _of_each_class(data: ImageData, batch: int) -> int:
    """Real images of all classes, so many of each that has as many."""
    return sum(min(batch, count) for count in data.class_counts)


def _seconds_each(spec: str, data: ImageData, place: Place) -> float:
    """What an image forward through this network takes, in a training step: of three stretches the fastest, if that
    is soon.

    On a GPU it is the most that it takes: side by side, in larger batches and compiled, networks are faster.
    """
    fitting = PIXELS.get(place.device.type, FEW_PIXELS) // data.size**2
    num = min(max(fitting, 1), MOST, len(data))
    some = dataclasses.replace(data, images=data.images[:num], labels=data.labels[:num], known_fingerprint="")
    stretch = STRETCH.get(place.device.type, 1)
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
    return min(seconds) / (BACK * num * stretch)
