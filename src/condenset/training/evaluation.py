"""Train and test the networks of an evaluation, in this process or in a worker."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from condenset import augment, networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, hash_tensors
from condenset.engine import ComputeDevice
from condenset.io.files import json_hash
from condenset.runs.context import RunContext
from condenset.runs.events import is_fraction
from condenset.runs.loop import track_progress
from condenset.training.checkpoint import TrainingCheckpoint
from condenset.training.confusion import count_predictions, is_cell_counts
from condenset.training.dataset import DeviceDataset
from condenset.training.learned_steps import read_learned_lr, read_learned_steps
from condenset.training.network_file import write_network
from condenset.training.parallel import num_parallel, remaining_groups, train_in_parallel
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

SLOW_TEST_SECONDS = 2.0  # from this on, a stop interrupts the test of a network


class Evaluation:
    """The data of an evaluation and the results of its networks so far.

    `network_file` is where the weights of the first network are stored. None: nowhere.
    """

    def __init__(
        self, train_set: CondensedSet | ImageData, test_set: ImageData, protocol: Protocol, run: RunContext
    ) -> None:
        protocol = augment.remove_unused_flip(protocol, allow_hflip=train_set.allow_hflip)
        lr = read_learned_lr(train_set) if protocol.learned_steps else None
        if lr is not None:
            protocol = dataclasses.replace(protocol, lr=lr, learned_steps=False)
        self.run, self.compute, self.protocol = run, run.compute, protocol
        self.network_file: Path | None = None
        self.learned_steps = read_learned_steps(train_set) if protocol.learned_steps else None
        if self.learned_steps:  # learned in float32, with plain gradient descent
            self.compute = dataclasses.replace(run.compute, dtype=torch.float32)
            self.protocol = dataclasses.replace(protocol, momentum=0.0, weight_decay=0.0, augment="none", cutmix=0.0)
        fields = {key: value for key, value in dataclasses.asdict(protocol).items() if key != "num_networks"}
        channels, size = train_set.images.shape[1:3]
        shape = {"channels": channels, "size": size, "num_classes": train_set.num_classes}
        fields |= networks.describe_user_network(protocol.network, **shape)
        self.settings = evaluation_hash(train_set, {"": test_set}, fields, run.seed, self.compute)
        self.train_source, self.test_source, self.test_labels = train_set, test_set, test_set.labels
        events = {
            event["net"]: event
            for event in run.network_events(settings=self.settings)
            if event["net"] < self.protocol.num_networks
            and is_fraction(event.get("accuracy"))
            and is_cell_counts(event.get("confusion"), train_set.num_classes, len(test_set))
        }
        self.accuracies: dict[int, float] = {net: event["accuracy"] for net, event in events.items()}
        self.cell_counts: dict[int, list[int]] = {net: event["confusion"] for net, event in events.items()}
        self.diverged = {net for net, event in events.items() if event.get("diverged")}
        self.previous_seconds = sum(event["seconds"] for event in events.values())

    @functools.cached_property
    def train_set(self) -> DeviceDataset:
        """The set to train on, on the device."""
        return DeviceDataset.from_data(self.train_source, self.run.compute.device)

    @functools.cached_property
    def test_set(self) -> DeviceDataset:
        """The test images on the device."""
        return normalize_like(self.train_source, self.test_source, self.run.compute.device)

    @property
    def num_steps(self) -> int:
        """The number of steps per network."""
        if self.learned_steps:
            return len(self.learned_steps.batches)
        return self.protocol.training_steps(len(self.train_source))

    @property
    def num_steps_done(self) -> int:
        """The number of steps of the networks that have been tested."""
        return len(self.accuracies) * self.num_steps

    @property
    def remaining(self) -> list[int]:
        """The networks that have not been tested."""
        return [net for net in range(self.protocol.num_networks) if net not in self.accuracies]

    def run_all(self, nets: Sequence[int], description: str) -> None:
        """Train and test these networks in this process."""
        trainers, groups = self.plan(nets)
        total = self.num_steps_done + len(nets) * self.num_steps
        with track_progress(self.run, description, total, self.num_steps_done):
            for group in groups:
                self.train_and_test(trainers[: len(group)], group)
        if groups:  # otherwise the checkpoint may belong to another job
            self.run.delete_checkpoint()

    def record(self, event: Mapping[str, Any]) -> None:
        """Add the result of a network."""
        net = event["net"]
        self.accuracies[net], self.cell_counts[net] = event["accuracy"], event["confusion"]
        self.diverged |= {net} if event.get("diverged") else set()

    def plan(self, remaining: Sequence[int]) -> tuple[list[Trainer], list[list[int]]]:
        """Return trainers, and these networks in groups that train in parallel."""
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
        seconds = round(checkpoint.seconds / len(nets), 3)
        for net, trainer, predictions_N in zip(nets, trainers, predictions, strict=True):
            accuracy = int((predictions_N == self.test_labels).sum()) / len(self.test_labels)
            confusion = count_predictions(self.test_labels, predictions_N, self.train_set.num_classes)
            fields = {"net": net, "accuracy": accuracy, "seconds": seconds, "settings": self.settings}
            diverged = {} if trainer.is_finite() else {"diverged": True}
            event = {**fields, **diverged, "confusion": confusion}
            if net == 0 and self.network_file and not diverged:  # before the event, after which it is not trained again
                write_network(self.network_file, self.protocol.network, trainer.export_network(), run)
            run.log_event("network", **event)
            self.record(event)

    def _iter_train(
        self, trainers: Sequence[Trainer], nets: Sequence[int], checkpoint: TrainingCheckpoint
    ) -> Iterator[int]:
        """Train in parallel, and yield the number of steps that all networks have done."""
        steps = self.learned_steps
        if steps:
            trainings = [
                trainer.train_with_step_sizes(
                    self.run.seed, "evaluate", net, batches=steps.batches, step_sizes=steps.step_sizes
                )
                for trainer, net in zip(trainers, nets, strict=True)
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
    if isinstance(train_set, ImageData) and train_set.whitening is not None:  # not in its fingerprint
        metadata["whitening"] = hash_tensors((), *train_set.whitening.tensors.values())
    return json_hash(metadata)


def normalize_like(train_set: CondensedSet | ImageData, test_set: ImageData, device: torch.device) -> DeviceDataset:
    """Return test images on the device, with the normalisation or the whitening of the training set."""
    fields = {name: getattr(train_set, name) for name in ("mean", "std", "whitening")}
    return DeviceDataset.from_data(dataclasses.replace(test_set, **fields), device)
