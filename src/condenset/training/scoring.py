"""Score a set: train new networks on it, and test each once, after its last epoch."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from condenset import networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.memory import check_network_fits
from condenset.errors import UserError, option, warn_user
from condenset.runs.context import RunContext
from condenset.training.class_matching import align_classes
from condenset.training.confusion import confusion_matrix
from condenset.training.evaluation import Evaluation
from condenset.training.evaluation_tasks import run_on_engine
from condenset.training.learned_steps import overridden_fields
from condenset.training.protocol import Protocol, check_ignored_options, is_large, make_protocol
from condenset.training.scores import Scores

MAX_PARAMETERS = 100_000_000  # of a network that a set's file selects without the user; ResNet-18 has 11 million


def protocol_for(train_set: CondensedSet | ImageData, test_set: ImageData, **fields: Any) -> Protocol:
    """Return the protocol to score a set with.

    The default network is the one that the set was learned with. A set with learned step sizes uses it only together
    with them, since such networks learn little with other step sizes.

    Args:
        train_set: The set to score.
        test_set: The test images, whose name and image size select a preset.
        fields: Fields of the protocol, which override the defaults, and its name as `protocol`.
    """
    check_ignored_options(fields, overridden_fields(train_set))
    if isinstance(train_set, CondensedSet) and "network" not in fields:
        network = network_of_set(train_set) if train_set.step_sizes is None or fields.get("learned_steps") else None
        fields = {**fields, "network": network} if network else fields
    whole = isinstance(train_set, ImageData) and is_large(len(train_set))
    return make_protocol(name=test_set.name, size=test_set.size, whole=whole, **fields)


def network_of_set(train_set: CondensedSet) -> str | None:
    """Return the network that a set was learned with, by its provenance.

    Raises:
        UserError: If this process does not have the network, or the network is very large. The file may be untrusted,
            so the user has to name such a network.
    """
    spec: str | None = train_set.provenance.get("recipe", {}).get("network")
    if not spec:
        return None
    if isinstance(spec, str) and not networks.is_known(spec):
        raise UserError(f"the set was learned with your own network {spec!r}: give {option('network')}")
    channels, size = train_set.images.shape[1:3]
    with torch.device("meta"):  # to count the parameters without allocating them
        network = networks.build(spec, channels=channels, size=size, num_classes=train_set.num_classes)
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    if num_parameters > MAX_PARAMETERS:
        raise UserError(
            f"the network of the set, {spec}, must have at most {MAX_PARAMETERS:,} parameters, but got "
            f"{num_parameters:,}: to use it, name it with {option('network')}"
        )
    return spec


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """A set to score.

    Attributes:
        train_set: The set to train on.
        test_set: The images to test on.
        protocol: How to train.
        run: A separate run with a directory, and with the job and the seed of the scores.
    """

    train_set: CondensedSet | ImageData
    test_set: ImageData
    protocol: Protocol
    run: RunContext


def score_together(requests: Sequence[ScoreRequest], run: RunContext) -> None:
    """Train and test the networks of several sets as tasks of the engine of a run, all at the same time.

    The results are events in the directories of the requests. `score_set` finds them there, and trains only networks
    of users, which workers do not have.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # score_set gives the same warnings
        evaluations = [
            (_make_evaluation(request.train_set, request.test_set, request.protocol, request.run), request.protocol)
            for request in requests
            if networks.has_default_init(request.protocol.network)
        ]
    run_on_engine(evaluations, run, f"scoring {len(evaluations)} sets")


def score_set(
    train_set: CondensedSet | ImageData,
    test_set: ImageData,
    protocol: Protocol,
    run: RunContext,
    description: str = "training networks",
    network_file: Path | None = None,
) -> Scores:
    """Train networks on a set and return their test accuracies.

    With `run.directory`, networks that were tested before an interruption are not trained again, and those in
    training are resumed. The weights of the first network are written to `network_file`, except on an engine.
    """
    began = time.monotonic()
    evaluation = _make_evaluation(train_set, test_set, protocol, run)
    evaluation.network_file = network_file
    num_networks = evaluation.protocol.num_networks
    if run.engine is not None and networks.has_default_init(protocol.network):  # workers do not have a user's network
        run_on_engine([(evaluation, protocol)], run, description)
    else:
        evaluation.run_all(evaluation.remaining, description)
    if evaluation.diverged:
        warn_user(
            f"{len(evaluation.diverged)} of {num_networks} networks diverged, so that their accuracies do not describe "
            "the set. Try a smaller lr."
        )
    return Scores(
        accuracies=tuple(evaluation.accuracies[net] for net in range(num_networks)),
        network=networks.display_name(protocol.network),
        protocol=dataclasses.asdict(evaluation.protocol)
        | {"learned_steps": protocol.learned_steps, "seed": run.seed, "precision": evaluation.compute.precision},
        seconds=evaluation.previous_seconds + time.monotonic() - began,
        confusion=confusion_matrix(evaluation.cell_counts.values(), train_set.num_classes),
    )


def _make_evaluation(
    train_set: CondensedSet | ImageData, test_set: ImageData, protocol: Protocol, run: RunContext
) -> Evaluation:
    """Return the evaluation of a set, with the results of its networks so far."""
    channels, size = train_set.images.shape[1:3]
    check_network_fits(protocol.network, run.compute, channels=channels, size=size, num_classes=train_set.num_classes)
    return Evaluation(train_set, align_classes(train_set, test_set), protocol, run)
