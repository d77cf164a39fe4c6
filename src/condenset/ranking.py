"""Architecture search: train many networks briefly on a small set, and rank them on validation images."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from condenset import draws, runs
from condenset.builders import Architectures, Builder, built, by_name
from condenset.data.validation import split_off
from condenset.engine import Place
from condenset.engine.memory import parts
from condenset.errors import UserError, check, check_kind
from condenset.evaluation import check_match, seen_as
from condenset.files import write_file
from condenset.presets import make_protocol
from condenset.progress import Shown
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run
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
        if small is data.train:
            raise UserError("validation images must be others than those trained on: cs.split_off gives two such parts")
        data = split_off(data.train, seed=seed)[1]
    protocol = make_protocol(name="", size=0, **{"nets": 1, "epochs": 200, "batch": 250, **fields})
    run = Run(seed=seed, place=Place.best(device, precision), job="rank", progress=Shown())
    if folder is None:
        return search(architectures, small, data, protocol, run)
    run.folder = Path(folder)
    runs.probe(run.folder)
    with runs.locked(run.folder):
        ranking = search(architectures, small, data, protocol, run)
        with runs.writable(run.folder):
            write_file(run.folder / "ranking.json", ranking.to_json().encode() + b"\n")
    return ranking


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
    """Rank within a run: an architecture that was trained before a stop is not trained again.

    also: images by name to measure on as well, such as the test's, which have no say in the order.
    """
    named = by_name(architectures, validation.size, kept=run.folder is not None)
    specs = {name: each if isinstance(each, str) else "" for name, each in named.items()}
    looks = {"": validation, **(also or {})}
    for images in looks.values():
        check_match(small, images)
    settings = _digest(small, looks, protocol, run)
    events = [event for event in run.events("architecture") if event.get("settings") == settings]
    rows = {event["name"]: _row(event) for event in events if _is_done(event, specs)}
    train_set = TrainingSet.of(small, run.place.device)
    seen = {name: seen_as(small, images, run.place.device) for name, images in looks.items()}
    run.progress.start(text or "ranking architectures", len(named), len(rows))
    run.listening = True
    try:
        for group in _groups([name for name in named if name not in rows], named, run.place):
            report = _reporter(run, [row.accuracy for row in rows.values() if not row.reason], len(rows))
            for row in _try_out_group({name: named[name] for name in group}, train_set, seen, protocol, run, report):
                rows[row.name] = row
                run.event("architecture", **row.record(), spec=specs[row.name], settings=settings)
                run.progress.update(len(rows))
    finally:
        run.listening = False
        run.progress.stop()
    ordered = sorted((rows[name] for name in named), key=lambda row: math.inf if row.reason else -row.accuracy)
    about = {key: value for key, value in dataclasses.asdict(protocol).items() if key != "network"}
    return Ranking(rows=tuple(ordered), protocol=about | {"seed": run.seed, "precision": run.place.precision})


def _groups(names: Sequence[str], named: Mapping[str, str | Builder], place: Place) -> Iterator[list[str]]:
    """Architectures that train side by side: on a GPU some of ours, whose steps leave part of it idle; others alone."""
    most = TOGETHER if place.device.type == "cuda" else 1
    for ours, some in itertools.groupby(names, lambda name: isinstance(named[name], str)):
        alike = list(some)
        yield from (alike[part] for part in parts(len(alike), most if ours else 1))


def _try_out_group(
    group: Mapping[str, str | Builder],
    train_set: TrainingSet,
    seen: Mapping[str, TrainingSet],
    protocol: Protocol,
    run: Run,
    report: Callable[[int], None],
) -> Iterator[Ranked]:
    """Train the networks of architectures side by side, or, where one of them cannot be trained, one by one."""
    began, specs = time.monotonic(), [each for each in group.values() if isinstance(each, str)]
    if len(specs) == len(group) > 1:
        with contextlib.suppress(UserError, torch.OutOfMemoryError):  # whose reason comes when each is tried alone
            found = _side_by_side(specs, train_set, seen, protocol, run, report)
            seconds = round((time.monotonic() - began) / len(group), 3)
            for name, means in zip(group, found, strict=True):
                yield Ranked(name=name, accuracy=means.pop(""), also=means, seconds=seconds)
            return
    for name, architecture in group.items():
        yield _try_out(name, architecture, train_set, seen, protocol, run, report)


def _side_by_side(
    specs: Sequence[str],
    train_set: TrainingSet,
    seen: Mapping[str, TrainingSet],
    protocol: Protocol,
    run: Run,
    report: Callable[[int], None],
) -> list[dict[str, float]]:
    """By architecture, the mean accuracies on what is looked at."""
    with contextlib.ExitStack() as stack:
        each = [stack.enter_context(contextlib.closing(_trainers(s, train_set, protocol, run))) for s in specs]
        found: list[list[dict[str, float]]] = [[] for _ in specs]
        for net, trainers in enumerate(zip(*each, strict=True)):
            trainings = [trainer.training(run.seed, "rank", net) for trainer in trainers]
            for number in side_by_side(trainings, run.place.device):
                if number < trainers[0].num_steps:  # what is trained is tested
                    report(number)
            for own, trainer in zip(found, trainers, strict=True):
                own.append(_looked(trainer, seen))
    return [_means(own) for own in found]


def _looked(trainer: Trainer, seen: Mapping[str, TrainingSet]) -> dict[str, float]:
    """The trained network's accuracies."""
    if not bool(trainer.weights.isfinite().all()):
        raise UserError("it diverged: its weights are no longer numbers")
    return {key: trainer.accuracy(images) for key, images in seen.items()}


def _means(accuracies: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: sum(each[key] for each in accuracies) / len(accuracies) for key in accuracies[0]}


def _try_out(
    name: str,
    architecture: str | Builder,
    train_set: TrainingSet,
    seen: Mapping[str, TrainingSet],
    protocol: Protocol,
    run: Run,
    report: Callable[[int], None],
) -> Ranked:
    """Train an architecture's networks; one that cannot be is told so, and the others go on."""
    began = time.monotonic()
    # What goes wrong in a network of ours is a bug, in a user's own it is anything.
    expected = (UserError, torch.OutOfMemoryError) if isinstance(architecture, str) else (Exception,)
    accuracies: list[dict[str, float]] = []
    try:
        with contextlib.closing(_trainers(architecture, train_set, protocol, run)) as trainers:
            for net, trainer in enumerate(trainers):
                trainer.train(run.seed, "rank", net, report=report)
                accuracies.append(_looked(trainer, seen))
    except expected as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return Ranked(name=name, reason=reason, seconds=round(time.monotonic() - began, 3))
    means = _means(accuracies)
    return Ranked(name=name, accuracy=means.pop(""), also=means, seconds=round(time.monotonic() - began, 3))


def _reporter(run: Run, accuracies: Sequence[float], done: int) -> Callable[[int], None]:
    note = f"best {100 * max(accuracies):.1f}%" if accuracies else ""

    def report(_: int) -> None:
        run.progress.update(done, note)
        if run.stop_requested:
            raise Interrupted

    return report


def _trainers(
    architecture: str | Builder, train_set: TrainingSet, protocol: Protocol, run: Run
) -> Generator[Trainer, None, None]:
    """A trainer for every network of an architecture; each is done with when the next is asked for."""
    if isinstance(architecture, str):
        steps = protocol.nets * protocol.length(len(train_set))[0]
        trainer = Trainer(architecture, train_set, protocol, run.place, compiling=steps >= WORTH_COMPILING)
        try:
            yield from [trainer] * protocol.nets
        finally:
            trainer.release()
        return
    for net in range(protocol.nets):
        with _seeded(int(draws.make_key(run.seed, "rank", net, "builder")[0]), run.place):
            trainer = Trainer(built(architecture, train_set, run.place), train_set, protocol, run.place)
            try:
                yield trainer
            finally:
                trainer.release()


@contextlib.contextmanager
def _seeded(seed: int, place: Place) -> Iterator[None]:
    """PyTorch's global generators, which others' code draws from, follow the seed meanwhile, and are as before then."""
    with torch.random.fork_rng([place.device] if place.device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _is_done(event: Mapping[str, Any], specs: Mapping[str, str]) -> bool:
    """Whether an event is of one of these architectures, trained: a mapping may have given its name to another spec."""
    spec = specs.get(event["name"])
    return spec is not None and not event["reason"] and bool(event.get("spec", spec) == spec)


def _row(event: Mapping[str, Any]) -> Ranked:
    return Ranked(**{each.name: event[each.name] for each in dataclasses.fields(Ranked)})


def _digest(small: CondensedSet | ImageData, looks: Mapping[str, ImageData], protocol: Protocol, run: Run) -> str:
    """A hash of all that decides an accuracy beside the architecture: work under other settings is not taken over."""
    if isinstance(small, ImageData):
        set_print = small.fingerprint
    else:
        digest = hashlib.sha256()
        for tensor in (small.images, small.labels):
            digest.update(tensor.cpu().contiguous().numpy().data)
        set_print = digest.hexdigest()
    about = {
        **{key: value for key, value in dataclasses.asdict(protocol).items() if key != "network"},
        "seed": run.seed,
        "precision": run.place.precision,
        "set": [set_print, small.mean, small.std, small.can_flip],
        "looks": {name: images.fingerprint for name, images in looks.items()},
    }
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=8).hexdigest()
