"""Score a set: train new networks on it, and test each once, after its last epoch."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from condenset import augment, networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import ComputeDevice
from condenset.engine.memory import check_network_fits, remaining_groups
from condenset.errors import UserError, option
from condenset.io.files import json_hash
from condenset.runs.context import RunContext
from condenset.runs.events import is_fraction
from condenset.runs.loop import track_progress
from condenset.training.checkpoint import TrainingCheckpoint
from condenset.training.class_matching import align_classes
from condenset.training.confusion import confusion_matrix, count_predictions, is_cell_counts
from condenset.training.dataset import DeviceDataset
from condenset.training.learned_steps import read_learned_steps
from condenset.training.parallel import num_parallel, train_in_parallel
from condenset.training.protocol import Protocol, check_ignored_options, make_protocol
from condenset.training.scores import Scores
from condenset.training.trainer import Trainer

SLOW_TEST_SECONDS = 2.0  # from this on, a stop interrupts the test of a network
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
    check_ignored_options(fields)
    if isinstance(train_set, CondensedSet) and "network" not in fields:
        network = network_of_set(train_set) if train_set.step_sizes is None or fields.get("learned_steps") else None
        fields = {**fields, "network": network} if network else fields
    return make_protocol(name=test_set.name, size=test_set.size, whole=isinstance(train_set, ImageData), **fields)


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


def score_set(
    train_set: CondensedSet | ImageData,
    test_set: ImageData,
    protocol: Protocol,
    run: RunContext,
    description: str = "training networks",
) -> Scores:
    """Train networks on a set and return their test accuracies.

    With `run.directory`, networks that were tested before an interruption are not trained again, and those in
    training are resumed.
    """
    began = time.monotonic()
    channels, size = train_set.images.shape[1:3]
    check_network_fits(protocol.network, run.compute, channels=channels, size=size, num_classes=train_set.num_classes)
    evaluation = _Evaluation(train_set, align_classes(train_set, test_set), protocol, run)
    trainers, groups = evaluation.plan()
    num_networks = evaluation.protocol.num_networks
    with track_progress(run, description, num_networks * evaluation.num_steps, evaluation.num_steps_done):
        for group in groups:
            evaluation.train_and_test(trainers[: len(group)], group)
    if groups:  # otherwise the checkpoint may belong to another job
        run.delete_checkpoint()
    if evaluation.diverged:
        warnings.warn(
            f"{len(evaluation.diverged)} of {num_networks} networks diverged, so that their accuracies do not describe "
            "the set. Try a smaller lr.",
            stacklevel=2,
        )
    return Scores(
        accuracies=tuple(evaluation.accuracies[net] for net in range(num_networks)),
        network=networks.display_name(protocol.network),
        protocol=dataclasses.asdict(evaluation.protocol)
        | {"seed": run.seed, "precision": evaluation.compute.precision},
        seconds=evaluation.previous_seconds + time.monotonic() - began,
        confusion=confusion_matrix(evaluation.cell_counts.values(), train_set.num_classes),
    )


class _Evaluation:
    """The data of an evaluation and the results of its networks so far."""

    def __init__(
        self, train_set: CondensedSet | ImageData, test_set: ImageData, protocol: Protocol, run: RunContext
    ) -> None:
        protocol = augment.remove_unused_flip(protocol, allow_hflip=train_set.allow_hflip)
        self.run, self.compute, self.protocol = run, run.compute, protocol
        self.learned_steps = read_learned_steps(train_set, protocol) if protocol.learned_steps else None
        if self.learned_steps:  # learned in float32, with plain gradient descent
            self.compute = dataclasses.replace(run.compute, dtype=torch.float32)
            num_networks = protocol.num_networks if self.learned_steps.seed is None else 1
            self.protocol = dataclasses.replace(
                protocol, num_networks=num_networks, momentum=0.0, weight_decay=0.0, augment="none"
            )
        fields = {key: value for key, value in dataclasses.asdict(protocol).items() if key != "num_networks"}
        self.settings = evaluation_hash(train_set, {"": test_set}, fields, run.seed, self.compute)
        self.train_set = DeviceDataset.from_data(train_set, run.compute.device)
        self.test_set, self.test_labels = normalize_like(train_set, test_set, run.compute.device), test_set.labels
        events = {
            event["net"]: event
            for event in run.network_events(settings=self.settings)
            if event["net"] < self.protocol.num_networks
            and is_fraction(event.get("accuracy"))
            and is_cell_counts(event.get("confusion"), self.train_set.num_classes, len(self.test_set))
        }
        self.accuracies: dict[int, float] = {net: event["accuracy"] for net, event in events.items()}
        self.cell_counts: dict[int, list[int]] = {net: event["confusion"] for net, event in events.items()}
        self.diverged = {net for net, event in events.items() if event.get("diverged")}
        self.previous_seconds = sum(event["seconds"] for event in events.values())

    @property
    def num_steps(self) -> int:
        """The number of steps per network."""
        if self.learned_steps:
            return len(self.learned_steps.batches)
        return self.protocol.training_steps(len(self.train_set))

    @property
    def num_steps_done(self) -> int:
        """The number of steps of the networks that have been tested."""
        return len(self.accuracies) * self.num_steps

    def plan(self) -> tuple[list[Trainer], list[list[int]]]:
        """Return trainers, and the remaining networks in groups that train in parallel."""
        remaining = [net for net in range(self.protocol.num_networks) if net not in self.accuracies]
        if not remaining:
            return [], []
        group_size = num_parallel(self.protocol, self.train_set, self.compute)
        groups = remaining_groups(self.protocol.num_networks, group_size, remaining)
        compiling = self.learned_steps is None  # learned steps are too few
        trainers = [
            Trainer(self.protocol.network, self.train_set, self.protocol, self.compute, compiling=compiling)
            for _ in range(max(map(len, groups)))
        ]
        return trainers, groups

    def train_and_test(self, trainers: Sequence[Trainer], nets: Sequence[int]) -> None:
        """Train these networks in parallel, test them, and log their accuracies."""
        run, done = self.run, self.num_steps_done
        job = f"{run.job}: evaluation {self.settings}, networks {list(nets)}"
        directory = None if self.learned_steps else run.directory  # learned steps are too few for a checkpoint
        checkpoint = TrainingCheckpoint(run, trainers, job=job, recipe={}, directory=directory)
        self.previous_seconds += checkpoint.previous_seconds
        note = f"{100 * fmean(self.accuracies.values()):.1f}% so far" if self.accuracies else ""
        for step in self._iter_train(trainers, nets, checkpoint):
            run.progress.update(done + step * len(nets), note)
            if step < self.num_steps:  # trained networks are tested even after a stop request, unless that takes long
                checkpoint.save_if_due(step)
        testing = time.monotonic()

        def after_batch() -> None:
            run.progress.update(done + self.num_steps * len(nets), "testing")
            if checkpoint.can_save and time.monotonic() - testing >= SLOW_TEST_SECONDS:
                checkpoint.save_if_due(self.num_steps)

        predictions = [trainer.predict(self.test_set, after_batch).cpu() for trainer in trainers]
        self.diverged |= {net for net, trainer in zip(nets, trainers, strict=True) if not trainer.is_finite()}
        seconds = round(checkpoint.seconds / len(nets), 3)
        for net, predictions_N in zip(nets, predictions, strict=True):
            accuracy = int((predictions_N == self.test_labels).sum()) / len(self.test_labels)
            confusion = count_predictions(self.test_labels, predictions_N, self.train_set.num_classes)
            fields = {"net": net, "accuracy": accuracy, "seconds": seconds, "settings": self.settings}
            diverged = {"diverged": True} if net in self.diverged else {}
            run.log_event("network", **fields, **diverged, confusion=confusion)
            self.accuracies[net], self.cell_counts[net] = accuracy, confusion

    def _iter_train(
        self, trainers: Sequence[Trainer], nets: Sequence[int], checkpoint: TrainingCheckpoint
    ) -> Iterator[int]:
        """Train in parallel, and yield the number of steps that all networks have done."""
        steps = self.learned_steps
        if steps:
            keys: list[tuple[Any, ...]] = [(self.run.seed, "evaluate", net) for net in nets]
            keys = keys if steps.seed is None else [(steps.seed,)]
            trainings = [
                trainer.train_with_step_sizes(*key, batches=steps.batches, step_sizes=steps.step_sizes)
                for trainer, key in zip(trainers, keys, strict=True)
            ]
        else:
            trainings = [
                trainer.iter_train(self.run.seed, "evaluate", net, load_state=load_state)
                for trainer, net, load_state in zip(trainers, nets, checkpoint.state_loaders, strict=True)
            ]
        return train_in_parallel(trainings, self.compute.device)


def evaluation_hash(
    train_set: CondensedSet | ImageData,
    eval_sets: Mapping[str, ImageData],
    fields: Mapping[str, Any],
    seed: int,
    compute: ComputeDevice,
) -> str:
    """Return a hash of everything, except its number, that determines the accuracies of a network.

    Args:
        train_set: The set that the networks train on.
        eval_sets: The sets that they are tested on, by name.
        fields: Fields of the protocol.
        seed: The seed of the run.
        compute: The precision of the computation.
    """
    metadata = {
        **fields,
        "seed": seed,
        "precision": compute.precision,
        "set": [train_set.fingerprint, train_set.mean, train_set.std, train_set.allow_hflip],
        "eval_sets": {name: images.fingerprint for name, images in eval_sets.items()},
    }
    return json_hash(metadata)


def normalize_like(train_set: CondensedSet | ImageData, test_set: ImageData, device: torch.device) -> DeviceDataset:
    """Return test images on the device, with the normalisation of the training set."""
    return DeviceDataset.from_data(dataclasses.replace(test_set, mean=train_set.mean, std=train_set.std), device)
