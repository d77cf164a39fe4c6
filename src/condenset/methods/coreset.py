"""Coresets: real images, chosen.

Herding, k-center and forgetting choose by a network trained on the whole set; how they choose is a function of N
features or counts of one class, `herd`, `farthest_first`, `most_forgotten`, that gives places among the N in the order
of choice. Shapes: N images of a class, F features, I chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from condenset.data.store import ClassStore
from condenset.draws import make_key, permutation
from condenset.methods.common import finished, images_per_class, labels_of, unpadded
from condenset.methods.trained import Trained, trained
from condenset.recipes import RandomRecipe, TrainedRecipe
from condenset.runs import Run, reported
from condenset.train import TrainingSet
from condenset.types import CondensedSet, ImageData


def random(data: ImageData, recipe: RandomRecipe, run: Run) -> CondensedSet:
    """Class-balanced random real images."""
    start = time.monotonic()
    counts = images_per_class(data, recipe)
    run.place.reset_peak_memory()
    store = ClassStore(data, torch.device("cpu"))
    classes = torch.arange(data.num_classes)
    images_KICHW = store.take(store.choose(make_key(run.seed, "init"), 0, classes, max(counts)))
    chosen, labels = unpadded(images_KICHW, counts), labels_of(counts)
    return finished(chosen, labels, data, "random", recipe, run, time.monotonic() - start)


def herding(data: ImageData, recipe: TrainedRecipe, run: Run) -> CondensedSet:
    """Herding in the embedding of a trained network (Welling, 2009; Rebuffi et al., 2017)."""
    return _coreset(data, recipe, run, "herding", lambda one: herd(one.features(), one.num))


def kcenter(data: ImageData, recipe: TrainedRecipe, run: Run) -> CondensedSet:
    """Greedy k-center in the embedding of a trained network (Gonzalez, 1985; Sener and Savarese, 2018)."""
    return _coreset(data, recipe, run, "kcenter", lambda one: farthest_first(one.features(), one.num))


def forgetting(data: ImageData, recipe: TrainedRecipe, run: Run) -> CondensedSet:
    """The images that a network most often unlearned in training (Toneva et al., 2019)."""
    key = make_key(run.seed, "forgetting", device=run.place.device)

    def choose(one: OneClass) -> Tensor:
        row = data.class_rows[one.number] if data.class_rows else one.number
        order_N = permutation(key, row, len(one.places_N))
        return most_forgotten(one.known.forgetting_N[one.places_N], order_N, one.num)

    return _coreset(data, recipe, run, "forgetting", choose)


def herd(features_NF: Tensor, num: int) -> Tensor:
    """(I,) greedily, each image that brings the mean of those chosen nearest the mean of all; none twice.

    With features g centred at that mean and S the sum of those chosen, it is the image least in ‖S + g‖².
    """
    centred_NF = features_NF - features_NF.mean(0)
    square_N = centred_NF.square().sum(1)
    sum_F = torch.zeros_like(centred_NF[0])
    chosen_I = torch.zeros(num, dtype=torch.int64, device=features_NF.device)
    for place in range(num):
        best = torch.argmin(square_N + 2 * (centred_NF @ sum_F), dim=0, keepdim=True)
        chosen_I[place : place + 1] = best
        sum_F += centred_NF[best][0]
        square_N.index_fill_(0, best, torch.inf)
    return chosen_I


def farthest_first(features_NF: Tensor, num: int) -> Tensor:
    """(I,) greedily, each image farthest from those chosen: no image is then farther than twice the least possible.

    The first is the one nearest the mean: that bound holds whichever is first, and so a set of one is a typical image
    and the choice hangs on no draw.
    """
    best = torch.argmin(_distances(features_NF, features_NF.mean(0)), dim=0, keepdim=True)
    gap_N = torch.full_like(features_NF[:, 0], torch.inf)  # to the nearest of those chosen
    chosen_I = torch.zeros(num, dtype=torch.int64, device=features_NF.device)
    for place in range(num):
        if place:
            best = torch.argmax(gap_N, dim=0, keepdim=True)
        chosen_I[place : place + 1] = best
        gap_N = torch.minimum(gap_N, _distances(features_NF, features_NF[best][0]))
        gap_N.index_fill_(0, best, -1.0)  # never again, not even where all that is left are copies of it
    return chosen_I


def most_forgotten(counts_N: Tensor, order_N: Tensor, num: int) -> Tensor:
    """(I,) the images of the highest counts; among equals, those that come first in `order_N`."""
    return order_N[torch.argsort(counts_N[order_N], descending=True, stable=True)][:num]


def _distances(features_NF: Tensor, centre_F: Tensor) -> Tensor:
    """(N,) by differences, not by products: equal features are then 0 apart."""
    return torch.cdist(features_NF, centre_F[None], compute_mode="donot_use_mm_for_euclid_dist")[:, 0]


class OneClass(NamedTuple):
    """A class to choose from."""

    number: int
    places_N: Tensor  # of its images in the data
    num: int  # to choose
    data: TrainingSet
    known: Trained

    def features(self) -> Tensor:
        """(N, F) embeddings of all its images, each scaled to length 1 (Rebuffi et al., 2017).

        Else the image nearest the mean is one of a short embedding, of which the network sees little.
        """
        return normalize(self.known.features(self.data, self.places_N), dim=1)


def _coreset(
    data: ImageData, recipe: TrainedRecipe, run: Run, method: str, choose: Callable[[OneClass], Tensor]
) -> CondensedSet:
    """The images that `choose` takes of every class; the seconds have the training in them, whichever job did it."""
    counts, device = images_per_class(data, recipe), run.place.device
    run.place.reset_peak_memory()
    known = trained(data, recipe.protocol, run)
    start = time.monotonic()
    real = TrainingSet.of(data, device)
    places = torch.argsort(data.labels, stable=True).to(device).split(data.class_counts)
    chosen = []
    with reported(run, f"{method}, {recipe.ipc} a class", data.num_classes) as report:
        for number, (places_N, num) in enumerate(zip(places, counts, strict=True)):
            chosen.append(places_N[choose(OneClass(number, places_N, num, real, known))])
            report(number + 1)
    index = torch.cat(chosen)
    images_NCHW, labels = real.images(index).cpu(), real.labels[index]
    return finished(images_NCHW, labels, data, method, recipe, run, known.seconds + time.monotonic() - start)
