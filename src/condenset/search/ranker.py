"""Train and test the networks of a ranking."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from condenset import networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import ComputeDevice
from condenset.engine.memory import split_evenly
from condenset.errors import UserError, format_error
from condenset.runs.context import RunContext
from condenset.runs.directory import RANKING_CHECKPOINT
from condenset.runs.events import is_fraction
from condenset.training.checkpoint import TrainingCheckpoint
from condenset.training.dataset import DeviceDataset
from condenset.training.evaluation import evaluation_hash, normalize_like
from condenset.training.parallel import train_in_parallel
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

VALIDATION = "validation"  # name of the images that decide the ranking
MAX_PARALLEL = 5  # architectures
MIN_STEPS_TO_COMPILE = 20_000  # per architecture; for fewer steps, compiling takes longer than it saves


def max_parallel(compute: ComputeDevice) -> int:
    """Return how many built-in architectures train in parallel: several on a GPU, because one does not fill it."""
    return MAX_PARALLEL if compute.device.type == "cuda" else 1


class Ranker:
    """Trains the networks of several architectures and records their accuracies.

    Networks that the run has trained before, with the same settings, are not trained again.

    Args:
        specs: Specs of the architectures by name.
        train_set: The set to train on.
        eval_sets: Test images by name. Those named VALIDATION decide the ranking.
        protocol: How the networks are trained.
        run: The run.
    """

    def __init__(
        self,
        specs: Mapping[str, str],
        train_set: CondensedSet | ImageData,
        eval_sets: Mapping[str, ImageData],
        protocol: Protocol,
        run: RunContext,
    ) -> None:
        self.specs, self.protocol, self.run = specs, protocol, run
        fields = dataclasses.asdict(protocol)
        del fields["network"], fields["num_networks"]  # events store the spec and the number of a network
        self.settings = evaluation_hash(train_set, eval_sets, fields, run.seed, run.compute)
        self.train_source, self.eval_sources = train_set, eval_sets
        self.accuracies: dict[str, dict[int, dict[str, float]]] = {name: {} for name in specs}  # by number of network
        self.seconds = dict.fromkeys(specs, 0.0)
        self.reasons: dict[str, str] = {}  # why architectures could not be trained
        self.identities = {name: self._identify(spec) for name, spec in specs.items()}
        self._read_events()

    def _identify(self, spec: str) -> dict[str, str]:
        """Return the fields of events that identify an architecture."""
        channels, size = self.train_source.images.shape[1:3]
        shape = {"channels": channels, "size": size, "num_classes": self.train_source.num_classes}
        with contextlib.suppress(UserError):  # it is reported when the network is trained
            return {"spec": spec, **networks.describe_user_network(spec, **shape)}
        return {"spec": spec}

    def _read_events(self) -> None:
        """Restore the results of an earlier run with the same settings; ignore invalid events."""
        for event in self.run.network_events(settings=self.settings):
            name, number, accuracies = event.get("name"), event["net"], event.get("accuracies")
            if not isinstance(name, str) or not isinstance(accuracies, dict) or number >= self.protocol.num_networks:
                continue
            is_same = name in self.specs and self.identities[name].items() <= event.items()  # a name can be reused
            complete = accuracies.keys() == self.eval_sources.keys() and all(map(is_fraction, accuracies.values()))
            if is_same and complete and number not in self.accuracies[name]:
                self.accuracies[name][number] = accuracies
                self.seconds[name] += event["seconds"]
        for event in self.run.read_events("failed"):
            name, reason = str(event.get("name")), str(event.get("reason"))
            is_same = name in self.specs and self.identities[name].items() <= event.items()
            if event.get("settings") == self.settings and is_same:
                self.reasons[name] = reason

    @functools.cached_property
    def train_set(self) -> DeviceDataset:
        """The set to train on, on the device."""
        return DeviceDataset.from_data(self.train_source, self.run.compute.device)

    @functools.cached_property
    def eval_sets(self) -> dict[str, DeviceDataset]:
        """The test images on the device, by name."""
        device = self.run.compute.device
        return {name: normalize_like(self.train_source, data, device) for name, data in self.eval_sources.items()}

    @property
    def num_done(self) -> int:
        """Number of networks that are trained or cannot be trained."""
        num_networks = self.protocol.num_networks
        return sum(num_networks if name in self.reasons else len(self.accuracies[name]) for name in self.specs)

    def missing(self, name: str) -> list[int]:
        """Return the numbers of the networks of an architecture that remain to be trained."""
        if name in self.reasons:
            return []
        return [number for number in range(self.protocol.num_networks) if number not in self.accuracies[name]]

    def mean_accuracies(self, name: str) -> dict[str, float]:
        """Return the mean accuracies of an architecture, whose networks are all trained, by name of the test images."""
        records = [self.accuracies[name][number] for number in range(self.protocol.num_networks)]
        return {key: sum(record[key] for record in records) / len(records) for key in self.eval_sources}

    def train_all(self) -> None:
        """Train and test all missing networks."""
        for group in self.groups():  # the same groups after a resume, so that checkpoints fit
            self.train_group([name for name in group if self.missing(name)])
        self.run.derive(checkpoint_name=RANKING_CHECKPOINT).delete_checkpoint()

    def groups(self) -> Iterator[list[str]]:
        """Yield names of architectures that train in parallel; networks of users train alone."""
        size = max_parallel(self.run.compute)
        for is_user_network, names in itertools.groupby(self.specs, key=self.is_user_network):
            consecutive = list(names)
            for part in split_evenly(len(consecutive), 1 if is_user_network else size):
                yield consecutive[part]

    def is_user_network(self, name: str) -> bool:
        """Return whether an architecture is a builder of the user."""
        try:
            return not networks.has_default_init(self.specs[name])
        except UserError:  # an invalid spec; the error is reported when the network is built
            return False

    def train_group(self, group: Sequence[str]) -> None:
        """Train the missing networks of architectures in parallel, or one after another if the memory is too small."""
        if len(group) > 1:
            with contextlib.suppress(torch.OutOfMemoryError):  # each may fit alone
                self._train_missing(group)
        for name in filter(self.missing, group):
            start, seconds_before = time.monotonic(), self.seconds[name]
            try:
                self._train_missing([name])
            except torch.OutOfMemoryError as error:
                recorded = self.seconds[name] - seconds_before  # of its networks that fitted
                self._record_failure(name, error, time.monotonic() - start - recorded)

    def _train_missing(self, group: Sequence[str]) -> None:
        with contextlib.ExitStack() as stack:
            trainers: dict[str, Trainer] = {}
            for name in group:
                try:
                    trainers[name] = stack.enter_context(self._trainer(self.specs[name]))
                except UserError as error:
                    self._record_failure(name, error, 0.0)
            for number in range(self.protocol.num_networks):
                remaining = {name: trainer for name, trainer in trainers.items() if number in self.missing(name)}
                if remaining:
                    self._train_networks(remaining, number)

    def _train_networks(self, trainers: Mapping[str, Trainer], number: int) -> None:
        """Train network `number` of each architecture, or continue its training, and record the accuracies."""
        specs = {name: self.specs[name] for name in trainers}
        job = f"{self.run.job}: networks {number} of {specs} by {self.settings}"
        checkpoint = TrainingCheckpoint(
            self.run, list(trainers.values()), job=job, recipe={}, checkpoint_name=RANKING_CHECKPOINT
        )
        trainings = [
            trainer.iter_train(self.run.seed, "rank", number, load_state=load_state)
            for trainer, load_state in zip(trainers.values(), checkpoint.state_loaders, strict=True)
        ]
        report = self._reporter(trainers.values(), checkpoint.save_if_due)
        results: dict[str, dict[str, float] | UserError] = {}
        try:
            for step in train_in_parallel(trainings, self.run.compute.device):
                if step < checkpoint.trainers[0].num_steps:  # trained networks are tested even after a stop request
                    report(step)
        except UserError as error:
            if any(trainer.is_resumable for trainer in trainers.values()):
                raise  # a checkpoint that cannot be read or written; built-in networks raise no UserError
            results = dict.fromkeys(trainers, error)
        for name, trainer in trainers.items():
            if name not in results:
                results[name] = self._test(trainer)
        seconds = checkpoint.seconds / len(trainers)
        for name, result in results.items():  # after all tests, because the checkpoint has all networks of the group
            if isinstance(result, UserError):
                self._record_failure(name, result, seconds)
            else:
                self._record(name, number, result, seconds)

    @contextlib.contextmanager
    def _trainer(self, spec: str) -> Iterator[Trainer]:
        """Yield a trainer, and free its memory afterwards."""
        steps = self.protocol.num_networks * self.protocol.training_steps(len(self.train_set))
        compiling = steps >= MIN_STEPS_TO_COMPILE
        trainer = Trainer(spec, self.train_set, self.protocol, self.run.compute, compiling=compiling)
        try:
            yield trainer
        finally:
            trainer.release()

    def _test(self, trainer: Trainer) -> dict[str, float] | UserError:
        """Return the accuracies of a trained network, or why it cannot be tested."""
        if not trainer.is_finite():
            return UserError("Training diverged: the weights contain NaN or infinity. Try a smaller lr.")
        try:
            return {name: trainer.accuracy(images) for name, images in self.eval_sets.items()}
        except UserError as error:
            return error

    def _record(self, name: str, number: int, accuracies: dict[str, float], seconds: float) -> None:
        self.accuracies[name][number] = accuracies
        self.seconds[name] += seconds
        fields = {"name": name, **self.identities[name], "settings": self.settings}
        self.run.log_event("network", net=number, accuracies=accuracies, seconds=round(seconds, 3), **fields)
        self.run.progress.update(self.num_done)

    def _record_failure(self, name: str, error: Exception, seconds: float) -> None:
        """Record why an architecture cannot be trained.

        Only lasting reasons are logged: memory may be free another time, and users may correct their networks.
        """
        self.reasons[name] = format_error(error)
        self.seconds[name] += seconds
        if isinstance(error, UserError) and not self.is_user_network(name):
            fields = {"name": name, **self.identities[name], "settings": self.settings}
            self.run.log_event("failed", reason=self.reasons[name], **fields)
        self.run.progress.update(self.num_done)

    def _reporter(self, trainers: Collection[Trainer], save_if_due: Callable[[int], None]) -> Callable[[int], None]:
        """Return a function that shows progress, counted in networks, and saves a checkpoint if one is due."""
        complete = [name for name in self.specs if name not in self.reasons and not self.missing(name)]
        best = max((self.mean_accuracies(name)[VALIDATION] for name in complete), default=None)
        note = "" if best is None else f"best {100 * best:.1f}%"
        done, networks_per_step = self.num_done, sum(1 / trainer.num_steps for trainer in trainers)

        def report(step: int) -> None:
            self.run.progress.update(done + step * networks_per_step, note)
            save_if_due(step)

        return report
