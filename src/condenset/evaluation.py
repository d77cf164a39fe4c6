"""The protocol: train fresh networks on a set, test each once, on its last epoch."""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from condenset import networks
from condenset.engine import Place
from condenset.engine.memory import groups_left
from condenset.errors import UserError, check, whole
from condenset.files import hashed
from condenset.midway import Midway
from condenset.presets import make_protocol, refuse_idle
from condenset.progress import Shown
from condenset.recipes import Protocol
from condenset.runs import Run, is_share, reported
from condenset.train import Trainer, TrainingSet, dealt, side_by_side, together
from condenset.types import CondensedSet, ImageData, Scores, check_data, check_set, of_classes

MOST_PARAMETERS = 100_000_000  # of a network that nobody named but a set's file: nine times those of ResNet-18


def evaluate(
    small: CondensedSet | ImageData,
    test: ImageData,
    *,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    **fields: Any,
) -> Scores:
    """Train `nets` networks on a set and test them; any field of the protocol is a keyword.

    Without `network` it is the one the set was learned with (of dd's only for its own steps); a whole dataset
    (ImageData) is scored the same way.
    """
    check_set(small)
    check_data("test", test, "test")
    run = Run(seed=seed, place=Place.best(device, precision), progress=Shown())
    return score(small, test, protocol_for(small, test, **fields), run)


def protocol_for(small: CondensedSet | ImageData, test: ImageData, **fields: Any) -> Protocol:
    """The dataset's protocol with the network that the set was learned with, then the fields given.

    That of a set with steps of its own only where these are taken: by others such networks learn little.
    """
    refuse_idle(fields)
    given = "network" in fields
    if isinstance(small, CondensedSet) and not given and (small.step_sizes is None or fields.get("own_steps")):
        learned = learned_with(small)
        fields = {**fields, "network": learned} if learned else fields
    return make_protocol(name=test.name, size=test.size, whole=isinstance(small, ImageData), **fields)


def learned_with(small: CondensedSet) -> str | None:
    """The network that a set says it was learned with; one so large that somebody should ask for it is refused."""
    spec: str | None = small.provenance.get("recipe", {}).get("network")
    if not spec:
        return None
    channels, size = small.images.shape[1:3]
    with torch.device("meta"):  # only to count its parameters
        network = networks.build(spec, channels=channels, size=size, num_classes=small.num_classes)
    num = sum(parameter.numel() for parameter in network.parameters())
    if num > MOST_PARAMETERS:
        told = f"the set says it was learned with {spec}, of {num:,} parameters"
        raise UserError(f"{told}: above {MOST_PARAMETERS:,} name the network with --network (network= in Python)")
    return spec


def score(small: CondensedSet | ImageData, test: ImageData, protocol: Protocol, run: Run, text: str = "") -> Scores:
    """Score a set within a run: networks that were tested before a stop are not trained again, others go on."""
    test = matched(small, test)
    began, work = time.monotonic(), _Scoring(small, test, protocol, run)
    trainers, groups = work.plan()
    nets = work.protocol.nets
    with reported(run, text or "training networks", nets * work.num_steps, work.num_done):
        for group in groups:
            work.train_and_test(trainers[: len(group)], group)
    if groups:  # else it would be another job's
        run.drop_checkpoint()
    if work.diverged:
        which = f"{len(work.diverged)} of {nets} networks diverged"
        warnings.warn(f"{which}, and their accuracy tells nothing of the set: a smaller lr may help", stacklevel=2)
    return Scores(
        accuracies=tuple(work.found[net] for net in range(nets)),
        network=networks.title(protocol.network),
        protocol=dataclasses.asdict(work.protocol) | {"seed": run.seed, "precision": work.place.precision},
        seconds=work.seconds_before + time.monotonic() - began,
    )


class _Scoring:
    """A scoring at work: what its networks are trained on and tested by, and what is known of each."""

    def __init__(self, small: CondensedSet | ImageData, test: ImageData, protocol: Protocol, run: Run) -> None:
        self.run, self.place, self.protocol = run, run.place, protocol
        self.own = _own_steps(small) if protocol.own_steps else None
        self.learned_from = _learned_from(small, protocol)
        if self.own:  # which were learned in that precision, and plainly descended by
            self.place = dataclasses.replace(run.place, dtype=torch.float32)
            nets = protocol.nets if self.learned_from is None else 1
            self.protocol = dataclasses.replace(protocol, nets=nets, momentum=0.0, weight_decay=0.0, augment="none")
        fields = {key: value for key, value in dataclasses.asdict(protocol).items() if key != "nets"}
        self.way = digest_of(small, {"": test}, fields, run.seed, self.place)
        self.train_set = TrainingSet.of(small, run.place.device)
        self.test_set = seen_as(small, test, run.place.device)
        tested = [event for event in run.networks(way=self.way) if is_share(event.get("accuracy"))]
        known = {event["net"]: event for event in tested if event["net"] < self.protocol.nets}
        self.found = {net: event["accuracy"] for net, event in known.items()}
        self.diverged = {net for net, event in known.items() if event.get("diverged")}
        self.seconds_before = sum(event["seconds"] for event in known.values())

    @property
    def num_steps(self) -> int:
        """Steps of a network."""
        return len(self.own["schedule"]) if self.own else self.protocol.length(len(self.train_set))[0]

    @property
    def num_done(self) -> int:
        """Steps of the networks that were tested."""
        return len(self.found) * self.num_steps

    def plan(self) -> tuple[list[Trainer], list[list[int]]]:
        """Trainers, and the networks still to be trained, in groups of at most as many that train side by side."""
        left = [net for net in range(self.protocol.nets) if net not in self.found]
        if not left:
            return [], []
        most = together(self.protocol, self.train_set, self.place)
        groups = groups_left(self.protocol.nets, most, left)
        made = (self.protocol.network, self.train_set, self.protocol, self.place)
        return [Trainer(*made, compiling=not self.own) for _ in range(max(map(len, groups)))], groups

    def train_and_test(self, trainers: Sequence[Trainer], nets: Sequence[int]) -> None:
        """Train these networks side by side, or go on with them, and write down their accuracies."""
        run, own, done = self.run, self.own, self.num_done
        job, folder = f"{run.job}: networks {list(nets)} that score {self.way}", None if own else run.folder
        midway = Midway(run, trainers, job=job, recipe={}, folder=folder)  # steps of a set's own are few
        self.seconds_before += midway.kept.seconds_before
        note = f"{100 * fmean(self.found.values()):.1f}% so far" if self.found else ""
        keys: list[tuple[int, *tuple[str | int, ...]]] = [(run.seed, "evaluate", net) for net in nets]
        if self.learned_from is not None:
            keys = [(self.learned_from,)]
        trainings = [
            trainer.descending(*key, **own) if own else trainer.training(*key, restore=restore)
            for trainer, key, restore in zip(trainers, keys, midway.restores, strict=True)
        ]
        for number in side_by_side(trainings, self.place.device):
            run.progress.update(done + number * len(nets), note)
            if number < self.num_steps:  # what is trained is tested, come what may
                midway.rest(number)
        look = functools.partial(run.progress.update, done + self.num_steps * len(nets), "testing")
        right = [trainer.accuracy(self.test_set, look) for trainer in trainers]
        self.diverged |= {net for net, trainer in zip(nets, trainers, strict=True) if not trainer.is_finite()}
        seconds = round(midway.seconds / len(nets), 3)
        for net, accuracy in zip(nets, right, strict=True):
            broken = {"diverged": True} if net in self.diverged else {}
            run.event("network", net=net, accuracy=accuracy, seconds=seconds, way=self.way, **broken)
            self.found[net] = accuracy


def _own_steps(small: CondensedSet | ImageData) -> dict[str, Any]:
    """The steps that a set carries, for `Trainer.descending`."""
    sizes = None if isinstance(small, ImageData) else small.step_sizes
    if sizes is None or isinstance(small, ImageData):
        raise UserError("own_steps needs a set that carries steps of its own: those of dd do")
    steps = small.provenance.get("recipe", {}).get("steps")
    fit = isinstance(steps, int) and steps > 0 and len(sizes) % steps == 0
    check(fit, f"the steps of a pass must divide the set's {len(sizes)}", steps)
    check(small.labels.ndim == 1, "a set with steps of its own must have hard labels", "soft ones")
    return {"schedule": dealt(small.labels, steps, len(sizes) // steps), "step_sizes": sizes.tolist()}


def _learned_from(small: CondensedSet | ImageData, protocol: Protocol) -> int | None:
    """The seed of the one network that a set's own steps were learned for, where it was always the same."""
    if isinstance(small, ImageData) or not protocol.own_steps:
        return None
    recipe = small.provenance.get("recipe", {})
    if recipe.get("fixed_network") is not True or recipe.get("network") != protocol.network:
        return None
    return whole("the set's seed", small.provenance.get("seed"))


def digest_of(
    small: CondensedSet | ImageData, looks: Mapping[str, ImageData], fields: Mapping[str, Any], seed: int, place: Place
) -> str:
    """A hash of all that decides a network's accuracies beside its number: what another set, other images to look at
    by name, other fields of the protocol, seed or precision have come to is not taken over."""
    about = {
        **fields,
        "seed": seed,
        "precision": place.precision,
        "set": [small.fingerprint, small.mean, small.std, small.can_flip],
        "looks": {name: images.fingerprint for name, images in looks.items()},
    }
    return hashed(about)


def seen_as(small: CondensedSet | ImageData, test: ImageData, device: torch.device) -> TrainingSet:
    """A network sees test images as it saw those it learned from: under the set's own mean and std."""
    return TrainingSet.of(dataclasses.replace(test, mean=small.mean, std=small.std), device)


def matched(small: CondensedSet | ImageData, test: ImageData) -> ImageData:
    """The test images, labelled as the set labels its own: classes of the same names may come in another order, and
    those that a memory has not seen are left out.

    A set that is not of their shape and classes is refused; a warning is where that is taken on trust.
    """
    mine, theirs = tuple(small.images.shape[1:]), tuple(test.images.shape[1:])
    if mine != theirs:
        hint = f"; a folder of images is read at that size with --size {mine[-1]}" if mine[0] == theirs[0] else ""
        raise UserError(f"the set's images must have the shape of the test images {theirs}, but got {mine}{hint}")
    if small.class_names == test.class_names:
        return test
    is_memory = isinstance(small, CondensedSet) and "memory" in small.provenance
    mine_named, named = set(small.class_names), set(test.class_names)
    if mine_named == named or (is_memory and mine_named < named):
        return of_classes(test, small.class_names)
    if small.num_classes != test.num_classes:
        raise UserError(f"the set must have the test data's {test.num_classes} classes, but got {small.num_classes}")
    numbers = tuple(map(str, range(test.num_classes)))  # what classes are called where nobody named them
    if numbers not in (small.class_names, test.class_names):
        own, wanted = next((a, b) for a, b in zip(small.class_names, test.class_names, strict=True) if a != b)
        raise UserError(f"the set's classes must be the test data's: where that has {wanted!r}, it has {own!r}")
    origin = small.provenance.get("dataset", test.name) if isinstance(small, CondensedSet) else test.name
    if origin != test.name:
        warnings.warn(
            f"the set is of {origin!r}, not of {test.name!r}, and their classes have other names: they are taken as "
            "the same in their order",
            stacklevel=2,
        )
    return test
