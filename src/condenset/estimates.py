"""How long a run takes, told before it begins: the images that pass through its networks, and what one takes here.

The unit is an image forward through a network. Back again takes twice as long; derivatives of derivatives twice that.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Collection

import torch

from condenset.engine import Place
from condenset.plans import Job, Plan
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


def seconds_of(plan: Plan, jobs: Collection[Job], splits: Splits, place: Place) -> float:
    """About how long these jobs of a plan take; of what passes through no network, nothing is counted."""
    work = passes(plan, jobs, splits)
    if sum(work.values()) < SOON:
        return 0.0
    return sum(num * _seconds_each(spec, splits.train, place) for spec, num in work.items())


def passes(plan: Plan, jobs: Collection[Job], splits: Splits) -> Counter[str]:
    """Images that pass through networks, by these networks' specs."""
    data, found = splits.train, Counter[str]()
    trainings: set[Protocol] = set()  # of networks that coresets ask, which are trained once
    at_once: list[Job] = []  # those whose real images have been counted
    for job in jobs:
        if job.recipe is None:
            num, protocol = len(data), plan.whole
        else:
            num, protocol = job.recipe.ipc * data.num_classes, plan.protocol
            if isinstance(job.recipe, TrainedRecipe):
                trainings.add(job.recipe.protocol)
            else:
                found += _of_making(job.recipe, data, real=job not in at_once)
                at_once += plan.later_sizes(job)
        if protocol:
            found += _of_training(protocol, num) + Counter({protocol.network: protocol.nets * len(splits.test)})
    return sum((_of_training(each, len(data)) for each in trainings), found)


def _of_training(protocol: Protocol, num: int) -> Counter[str]:
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
    """What an image forward through this network takes, in a training step: two that follow the first are timed."""
    fitting = PIXELS.get(place.device.type, FEW_PIXELS) // data.size**2
    num = min(max(fitting, 2), MOST, len(data))  # batch norm needs two
    some = dataclasses.replace(data, images=data.images[:num], labels=data.labels[:num], known_fingerprint="")
    protocol = Protocol(network=spec, nets=1, batch=num, steps=3)
    trainer = Trainer(spec, TrainingSet.of(some, place.device), protocol, place, compiling=False)
    times = []
    for _ in trainer.training(0, "estimate"):
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)
        times.append(time.monotonic())
    trainer.release()
    return (times[-1] - times[0]) / (len(times) - 1) / (BACK * num)
