"""Architecture search: train many networks briefly on a small set, and rank them on validation images."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from condenset import draws, folders
from condenset.builders import Architectures, Builder, built, by_name, faults_told, seeded
from condenset.data.validation import split_off
from condenset.engine import Place
from condenset.engine.memory import parts
from condenset.errors import UserError, check, check_kind, check_path, one_line
from condenset.evaluation import digest_of, matched, seen_as
from condenset.files import write_file
from condenset.midway import Midway
from condenset.presets import training_protocol
from condenset.progress import Shown
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run, is_share, reported
from condenset.train import TOGETHER, Trainer, TrainingSet, side_by_side
from condenset.types import CondensedSet, ImageData, Splits, check_set

WORTH_COMPILING = 20_000  # steps of an architecture; compiling takes as long as this saves


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """An architecture's place: the mean validation accuracy of its networks, or the reason why there is none."""

    name: str
    accuracy: float = math.nan
    seconds: float = 0.0
    reason: str = ""
    also: Mapping[str, float] = field(default_factory=dict)  # accuracies on other images, which decide nothing

    def record(self) -> dict[str, Any]:
        """The row as JSON has it: an accuracy that there is none of is null."""
        return dataclasses.asdict(self) | ({"accuracy": None} if self.reason else {})


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Architectures from the best to the worst; after them those that could not be trained."""

    rows: tuple[Ranked, ...]
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Ranked:
        """The architecture with the highest validation accuracy; of equals the first given."""
        if self.rows[0].reason:
            raise UserError(f"none of the architectures could be trained: {self.rows[0].reason}")
        return self.rows[0]

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps({"protocol": dict(self.protocol), "rows": [row.record() for row in self.rows]}, indent=1)

    def __str__(self) -> str:
        lines = ["place  accuracy %  seconds  architecture"]
        for place, row in enumerate(self.rows, start=1):
            accuracy = "-" if row.reason else f"{100 * row.accuracy:.1f}"
            reason = f": {row.reason}" if row.reason else ""
            lines.append(f"{place:5}  {accuracy:>10}  {row.seconds:7.1f}  {row.name}{reason}")
        return "\n".join(lines)


def rank(
    architectures: Architectures,
    small: CondensedSet | ImageData,
    data: ImageData | Splits,
    *,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    **fields: Any,
) -> Ranking:
    """Train every architecture on the small set and rank them by accuracy on validation images.

    architectures: specs, or builders `(channels, size, num_classes) -> nn.Module`; a mapping gives them names.
    data: validation images, or a dataset's splits, of which a tenth of the training images is taken; never test ones.
    folder: where what is done is kept, by name: called again with it, only the rest is trained.
    fields: of the protocol: nets (1), epochs (200), batch (250), lr, augment, …
    """
    check_set(small)
    check_kind(data, (ImageData, Splits), "data must be ImageData to validate on or Splits, such as cs.load('digits')")
    check("network" not in fields, "the networks are the architectures given", fields.get("network"))
    if isinstance(data, Splits):
        _check_apart(small, data.train)
        data = split_off(data.train, seed=seed)[1]
    protocol = training_protocol(name="", size=0, usual={"nets": 1, "epochs": 200, "batch": 250}, **fields)
    run = Run(seed=seed, place=Place.best(device, precision), job="rank", progress=Shown())
    if folder is None:
        return search(architectures, small, data, protocol, run)
    run.folder = Path(folder)
    _check_folder(run.folder, run)
    folders.probe(run.folder)
    with folders.locked(run.folder):
        with folders.writable(run.folder):
            folders.sweep(run.folder)
        ranking = search(architectures, small, data, protocol, run)
        with folders.writable(run.folder):
            write_file(run.folder / folders.RANKING, ranking.to_json().encode() + b"\n")
    return ranking


def _check_folder(folder: Path, run: Run) -> None:
    """Refuse a folder that holds something, unless that is a ranking, also a half done one, or a run."""
    check_path(folder)
    done, half = folder / folders.RANKING, folder / folders.HALF_RANKED
    known = folders.is_empty(folder) or folders.is_run(folder) or half.is_file()
    if not (_is_ranking(done) if done.exists() else known or run.events("network") or run.events("failed")):
        raise UserError(f"{folder} is not empty and not a ranking: choose another folder")


def _is_ranking(path: Path) -> bool:
    """Whether the file is what `Ranking.to_json` wrote."""
    found: object = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_bytes())
    return isinstance(found, dict) and {"protocol", "rows"} <= found.keys()


def _check_apart(small: CondensedSet | ImageData, train: ImageData) -> None:
    """See that a set was not made of the images that those to validate on are about to be taken from."""
    if isinstance(small, ImageData) and small.fingerprint == train.fingerprint:
        raise UserError("validation images must be others than those trained on: cs.split_off gives two such parts")
    if isinstance(small, CondensedSet) and small.provenance.get("fingerprint") == train.fingerprint:
        told = "the set was made of images some of which will validate, and may favour networks that remember them"
        warnings.warn(f"{told}: condense the first part of cs.split_off(data.train), and give the other", stacklevel=3)


def search(
    architectures: Architectures,
    small: CondensedSet | ImageData,
    validation: ImageData,
    protocol: Protocol,
    run: Run,
    *,
    also: Mapping[str, ImageData] | None = None,
    text: str = "",
) -> Ranking:
    """Rank within a run: networks that were trained before a stop are not trained again, others of ours go on.

    also: images by name to measure on as well, such as the test's, which have no say in the order.
    """
    named = by_name(architectures, validation.size, kept=run.folder is not None)
    looks = {name: matched(small, images) for name, images in {"": validation, **(also or {})}.items()}
    work = _Search(named, small, looks, protocol, run)
    with reported(run, text or "ranking architectures", len(named) * protocol.nets, work.num_done):
        for group in _groups(list(named), named, run.place):  # the same after a stop, whatever is done by then
            work.try_out([name for name in group if work.lacks(name)])
    run.aside(kept_as=folders.HALF_RANKED).drop_checkpoint()
    ordered = sorted(map(work.row, named), key=lambda row: math.inf if row.reason else -row.accuracy)
    about = {key: value for key, value in dataclasses.asdict(protocol).items() if key != "network"}
    return Ranking(rows=tuple(ordered), protocol=about | {"seed": run.seed, "precision": run.place.precision})


def _groups(names: Sequence[str], named: Mapping[str, str | Builder], place: Place) -> Iterator[list[str]]:
    """Architectures that train side by side: on a GPU some of ours, whose steps leave part of it idle; others alone."""
    most = TOGETHER if place.device.type == "cuda" else 1
    for ours, some in itertools.groupby(names, lambda name: isinstance(named[name], str)):
        alike = list(some)
        yield from (alike[part] for part in parts(len(alike), most if ours else 1))


class _Search:
    """A search at work: what all architectures are trained on and looked at by, and what is known of each."""

    def __init__(
        self,
        named: Mapping[str, str | Builder],
        small: CondensedSet | ImageData,
        looks: Mapping[str, ImageData],
        protocol: Protocol,
        run: Run,
    ) -> None:
        self.named, self.protocol, self.run = named, protocol, run
        fields = dataclasses.asdict(protocol)
        del fields["network"], fields["nets"]  # architectures are told apart by name
        self.settings = digest_of(small, looks, fields, run.seed, run.place)
        self.train_set = TrainingSet.of(small, run.place.device)
        self.seen = {name: seen_as(small, images, run.place.device) for name, images in looks.items()}
        self.found: dict[str, dict[int, dict[str, float]]] = {name: {} for name in named}  # by number of network
        self.seconds = dict.fromkeys(named, 0.0)
        self.reasons: dict[str, str] = {}  # of those that could not be trained
        for event in run.networks(settings=self.settings):
            name, net, found = event.get("name"), event["net"], event.get("accuracies")
            if not isinstance(name, str) or not isinstance(found, dict) or net >= protocol.nets:
                continue
            known = name in named and event.get("spec") == self._spec(name)  # a mapping may have given it to another
            whole = found.keys() == self.seen.keys() and all(map(is_share, found.values()))
            if known and whole and net not in self.found[name]:
                self.found[name][net] = found
                self.seconds[name] += event["seconds"]
        for event in run.events("failed"):
            name, reason = str(event.get("name")), str(event.get("reason"))
            if event.get("settings") == self.settings and name in named and event.get("spec") == named[name]:
                self.reasons[name] = reason

    def _spec(self, name: str) -> str:
        architecture = self.named[name]
        return architecture if isinstance(architecture, str) else ""

    @property
    def num_done(self) -> int:
        """Networks that are trained, or cannot be."""
        return sum(self.protocol.nets if name in self.reasons else len(mine) for name, mine in self.found.items())

    def lacks(self, name: str) -> list[int]:
        """The networks of an architecture that are still to be trained."""
        return [] if name in self.reasons else [n for n in range(self.protocol.nets) if n not in self.found[name]]

    def row(self, name: str) -> Ranked:
        """What was found of an architecture, all of whose networks are done."""
        seconds = round(self.seconds[name], 3)
        if name in self.reasons:
            return Ranked(name=name, reason=self.reasons[name], seconds=seconds)
        mine = [self.found[name][net] for net in range(self.protocol.nets)]
        means = {key: sum(each[key] for each in mine) / len(mine) for key in self.seen}
        return Ranked(name=name, accuracy=means.pop(""), also=means, seconds=seconds)

    def try_out(self, group: Sequence[str]) -> None:
        """Train the networks of architectures side by side; what cannot be trained so, one by one."""
        if len(group) > 1:
            with contextlib.suppress(torch.OutOfMemoryError):  # alone each may fit
                self._ours(group)
        for name in filter(self.lacks, group):
            architecture, began, before = self.named[name], time.monotonic(), self.seconds[name]
            try:
                if isinstance(architecture, str):
                    self._ours([name])
                else:
                    self._users_own(name, architecture)
            except torch.OutOfMemoryError as error:
                known = self.seconds[name] - before  # of its networks that fitted
                self._give_up(name, error, time.monotonic() - began - known)

    def _ours(self, group: Sequence[str]) -> None:
        """Train the networks that architectures of ours lack, side by side; one that cannot be built is told so."""
        with contextlib.ExitStack() as stack:
            trainers = dict[str, Trainer]()
            for name in group:
                try:
                    trainers[name] = stack.enter_context(self._trainer(self._spec(name)))
                except UserError as error:
                    self._give_up(name, error, 0.0)
            for net in range(self.protocol.nets):
                if mine := {name: trainer for name, trainer in trainers.items() if net in self.lacks(name)}:
                    self._train(mine, net)

    def _train(self, trainers: Mapping[str, Trainer], net: int) -> None:
        """Train network `net` of each architecture, or go on with it, and write down what it comes to."""
        names = {name: self._spec(name) for name in trainers}
        job = f"{self.run.job}: networks {net} of {names} by {self.settings}"
        midway = Midway(self.run, list(trainers.values()), job=job, recipe={}, kept_as=folders.HALF_RANKED)
        trainings = [
            trainer.training(self.run.seed, "rank", net, restore=restore)
            for trainer, restore in zip(trainers.values(), midway.restores, strict=True)
        ]
        report = self._reporter(trainers.values(), midway.rest)
        for number in side_by_side(trainings, self.run.place.device):
            if number < midway.trainers[0].num_steps:  # what is trained is tested
                report(number)
        found: dict[str, dict[str, float] | UserError] = {}
        for name, trainer in trainers.items():
            try:
                found[name] = self._look(trainer)
            except UserError as error:
                found[name] = error
        share = midway.seconds / len(trainers)
        for name, known in found.items():  # written when all are known, since the checkpoint is of all of them
            if isinstance(known, UserError):
                self._give_up(name, known, share)
            else:
                self._keep(name, net, known, share)

    def _users_own(self, name: str, builder: Builder) -> None:
        """Train the networks that a user's own architecture lacks; one that cannot be trained is told so.

        Half trained they are not kept: they may hold more than can be seen of them.
        """
        for net in self.lacks(name):
            began, seed, place = time.monotonic(), self.run.seed, self.run.place
            key = draws.make_key(seed, "rank", net, "builder")
            try:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(faults_told(builder))
                    stack.enter_context(seeded(int(key[0]), place))
                    trainer = stack.enter_context(self._trainer(built(builder, self.train_set, place)))
                    trainer.train(seed, "rank", net, report=self._reporter([trainer], self._stop_if_asked))
                    accuracies = self._look(trainer)
            except UserError as error:
                self._give_up(name, error, time.monotonic() - began)
                return
            self._keep(name, net, accuracies, time.monotonic() - began)

    @contextlib.contextmanager
    def _trainer(self, architecture: str | nn.Module) -> Iterator[Trainer]:
        """A trainer, whose memory is given back: there are many."""
        steps = self.protocol.nets * self.protocol.length(len(self.train_set))[0]
        compiling = steps >= WORTH_COMPILING
        trainer = Trainer(architecture, self.train_set, self.protocol, self.run.place, compiling=compiling)
        try:
            yield trainer
        finally:
            trainer.release()

    def _look(self, trainer: Trainer) -> dict[str, float]:
        """What a network has learned, by the images looked at."""
        if not trainer.is_finite():
            raise UserError("it diverged: its weights are no longer numbers")
        return {key: trainer.accuracy(images) for key, images in self.seen.items()}

    def _keep(self, name: str, net: int, accuracies: dict[str, float], seconds: float) -> None:
        """Write down what was found of a network; what cannot be written ends the search."""
        self.found[name][net] = accuracies
        self.seconds[name] += seconds
        about = {"name": name, "spec": self._spec(name), "settings": self.settings}
        self.run.event("network", net=net, accuracies=accuracies, seconds=round(seconds, 3), **about)
        self.run.progress.update(self.num_done)

    def _give_up(self, name: str, error: Exception, seconds: float) -> None:
        """Leave an architecture; why is written down where trying again comes to the same, not of a user's code."""
        self.reasons[name] = one_line(error)
        self.seconds[name] += seconds
        if isinstance(error, UserError) and (spec := self._spec(name)):
            self.run.event("failed", name=name, spec=spec, settings=self.settings, reason=self.reasons[name])
        self.run.progress.update(self.num_done)

    def _stop_if_asked(self, _: int) -> None:
        if self.run.stop_requested:
            raise Interrupted

    def _reporter(self, trainers: Collection[Trainer], rest: Callable[[int], None]) -> Callable[[int], None]:
        """Progress in networks, of which those that train have done a part, and then a rest."""
        complete = [name for name in self.named if name not in self.reasons and not self.lacks(name)]
        note = f"best {100 * max(self.row(name).accuracy for name in complete):.1f}%" if complete else ""
        done, a_step = self.num_done, sum(1 / trainer.num_steps for trainer in trainers)

        def report(number: int) -> None:
            self.run.progress.update(done + number * a_step, note)
            rest(number)

        return report
