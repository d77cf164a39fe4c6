"""The protocol: train fresh networks on a set, test each once, on its last epoch."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from condenset import networks
from condenset.engine import Place
from condenset.errors import UserError
from condenset.recipes import Protocol, make_protocol
from condenset.runs import Run, reported
from condenset.train import Trainer, TrainingSet
from condenset.types import CondensedSet, ImageData, Scores


def evaluate(
    small: CondensedSet | ImageData,
    test: ImageData,
    *,
    seed: int = 0,
    device: str | None = None,
    precision: str | None = None,
    **fields: Any,
) -> Scores:
    """Train `nets` networks on a set and test them; any field of the protocol is a keyword.

    Without `network` it is the one the set was learned with; a whole dataset (ImageData) is scored the same way.
    """
    return score(small, test, protocol_for(small, test, **fields), Run(seed=seed, place=Place.best(device, precision)))


def protocol_for(small: CondensedSet | ImageData, test: ImageData, **fields: Any) -> Protocol:
    """The dataset's protocol with the network that the set was learned with, then the fields given."""
    if isinstance(small, CondensedSet) and (learned := small.provenance.get("recipe", {}).get("network")):
        fields = {"network": learned, **fields}
    return make_protocol(name=test.name, size=test.size, whole=isinstance(small, ImageData), **fields)


def score(small: CondensedSet | ImageData, test: ImageData, protocol: Protocol, run: Run, text: str = "") -> Scores:
    """Score a set within a run: networks that were tested before a stop are not trained again."""
    _check_match(small, test)
    start, device = time.monotonic(), run.place.device
    known = {event["net"]: event for event in run.events("network")}
    # A network sees test images as it saw those it learned from: under the set's own mean and std.
    same = dataclasses.replace(test, mean=small.mean, std=small.std)
    train_set, test_set = TrainingSet.of(small, device), TrainingSet.of(same, device)
    trainer = Trainer(protocol.network, train_set, protocol, run.place)
    accuracies: list[float] = []
    spent = sum(event["seconds"] for event in known.values())
    passes = protocol.passes
    with reported(run, text or "training networks", protocol.nets * passes, len(known) * passes) as report:
        for net in range(protocol.nets):
            if net not in known:
                began, before = time.monotonic(), net * passes
                note = f"{100 * sum(accuracies) / net:.1f}% so far" if net else ""
                trainer.train(run.seed, "evaluate", net, after_pass=lambda n: report(before + n, note))  # noqa: B023
                accuracy = trainer.accuracy(test_set)
                run.event("network", net=net, accuracy=accuracy, seconds=round(time.monotonic() - began, 3))
            else:
                accuracy = known[net]["accuracy"]
            accuracies.append(accuracy)
    return Scores(
        accuracies=tuple(accuracies),
        network=networks.title(protocol.network),
        protocol=dataclasses.asdict(protocol) | {"seed": run.seed, "precision": run.place.precision},
        seconds=spent + time.monotonic() - start,
    )


def _check_match(small: CondensedSet | ImageData, test: ImageData) -> None:
    mine, theirs = tuple(small.images.shape[1:]), tuple(test.images.shape[1:])
    if mine != theirs:
        raise UserError(f"the set's images must have the shape of the test images {theirs}, but got {mine}")
    if small.num_classes != test.num_classes:
        raise UserError(f"the set must have the test data's {test.num_classes} classes, but got {small.num_classes}")
    numbers = tuple(map(str, range(test.num_classes)))  # what classes are called where nobody named them
    if small.class_names != test.class_names and numbers not in (small.class_names, test.class_names):
        own, wanted = next((a, b) for a, b in zip(small.class_names, test.class_names, strict=True) if a != b)
        raise UserError(f"the set's classes must be the test data's: where that has {wanted!r}, it has {own!r}")
