"""The context of an experiment: run its parts, store their results, and do not repeat complete parts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from condenset import __version__
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, Splits
from condenset.experiments.scales import NUM_SETS, scaled_protocol, scaled_recipe
from condenset.experiments.types import read_record, summarize_accuracies
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.methods import Recipe, method_of
from condenset.methods.common import images_per_class
from condenset.methods.registry import find_shared
from condenset.pipeline.condensing import SetRequest, condense_missing, load_or_condense
from condenset.pipeline.plan import WHOLE
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import SCORE_FIELDS, Record, condense_cost
from condenset.runs.context import RunContext
from condenset.training.protocol import Protocol, is_large
from condenset.training.scoring import score_set

T = TypeVar("T")


@dataclass(kw_only=True)
class ExperimentContext:
    """Run the parts of an experiment in a directory.

    A part is one set, one score or one measurement. Its files are in parts/NAME, and a part that is complete is read
    from there instead of running again. An experiment sets `num_parts` once it can count them, so that progress shows
    "3/21".

    Attributes:
        scale: One of `SCALES`.
        request: The methods to compare, and the options that override those of the scale.
        splits: Training and test images.
        run: The run; parts use its seed, device and progress display.
        directory: Directory of the experiment.
        ipcs: Numbers of images per class.
        num_sets: Number of sets, each with its own seed, behind an accuracy. 0: that of the scale.
        num_parts: Number of parts. 0: not known yet.
    """

    scale: str
    request: RunRequest
    splits: Splits
    run: RunContext
    directory: Path
    ipcs: tuple[int, ...] = ()
    num_sets: int = 0
    num_parts: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        self.num_sets = self.num_sets or NUM_SETS[self.scale]
        self.run.directory = self.run.shared_directory = self.directory
        self._part_numbers: dict[str, int] = {}

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods to compare."""
        return self.request.methods

    @property
    def environment(self) -> Record:
        """The fields of a record that describe where it was measured."""
        compute = self.run.compute
        machine = {"device": str(compute.device), "hardware": compute.hardware, "precision": compute.precision}
        return {**machine, "version": __version__}

    def for_scale(self, *, tiny: T, small: T, paper: T) -> T:
        """Return the value for the scale of the experiment."""
        return {"tiny": tiny, "small": small, "paper": paper}[self.scale]

    def check_class_sizes(self, data: ImageData) -> None:
        """Check that every class has enough images for the largest set, before the first set is made."""
        for method in self.methods:
            images_per_class(data, self.recipe(method, max(self.ipcs), data))

    def recipe(self, method: str, ipc: int, data: ImageData | None = None, **fields: Any) -> Recipe:
        """Return the recipe of a method: presets, then the scale, then the request, then `fields`.

        The schedule is the paper's, unless the request names another. Fields that the method does not have are ignored.
        """
        chosen = {**self.request.fields_for(method), **fields}
        schedule = self.request.schedule_for(method, default="paper")
        return scaled_recipe(self.scale, method, ipc, data or self.splits.train, chosen, schedule)

    def protocol(self, *, whole: bool = False, **fields: Any) -> Protocol:
        """Return the evaluation protocol: presets, then the scale, then `fields`, then the request.

        Sets are scored on the network that the request gives for `dm` or for all methods.

        Args:
            whole: Return the protocol of the whole dataset. A small dataset trains like a set.
            fields: Fields of the protocol that the experiment decides.
        """
        network = self.request.fields_for("dm").get("network")
        requested = self.request.whole_protocol_fields if whole else self.request.protocol_fields
        is_large_whole = whole and is_large(len(self.splits.train))
        defaults = self.request.protocol_fields if whole and not is_large_whole else {}  # its epochs are those of sets
        chosen = {**({"network": network} if network else {}), **defaults, **fields, **requested}
        return scaled_protocol(self.scale, self.splits.train, chosen, whole=is_large_whole)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[RunContext]:
        """Yield the run, set to the directory of one part, where its checkpoints and events are stored."""
        run = self.run
        previous = run.directory, run.job, run.recipe, run.previous_seconds, run.exact_steps
        number = self._part_number(name)
        run.progress.job_label = f"{number}/{self.num_parts}" if self.num_parts else ""
        run.directory, run.job, run.previous_seconds = self.part_directory(name), name, 0.0
        run.verify_identity()
        with wrap_os_errors(run.directory):
            run.directory.mkdir(parents=True, exist_ok=True)
        try:
            yield run
        finally:
            run.directory, run.job, run.recipe, run.previous_seconds, run.exact_steps = previous

    def part_directory(self, name: str) -> Path:
        """Return the directory of a part."""
        return self.directory / "parts" / name

    def _part_number(self, name: str) -> int:
        return self._part_numbers.setdefault(name, len(self._part_numbers) + 1)

    def set_path(self, name: str) -> Path:
        """Return the file of the set of a part."""
        return self.part_directory(name) / "condensed.safetensors"

    def _set_paths(self, recipes: Mapping[str, Recipe]) -> dict[Path, Recipe]:
        return {self.set_path(name): recipe for name, recipe in recipes.items()}

    @contextlib.contextmanager
    def with_seed(self, seed: int) -> Iterator[None]:
        """Run a block under another seed."""
        previous, self.run.seed = self.run.seed, seed
        try:
            yield
        finally:
            self.run.seed = previous

    def for_each_set(self, function: Callable[[str], T]) -> list[T]:
        """Call `function(suffix)` once per set, each time under another seed; names of parts end with the suffix."""
        results = []
        for number in range(self.num_sets):
            with self.with_seed(self.run.seed + number):
                results.append(function(f"-set{number + 1}" if number else ""))
        return results

    def repeat(self, measure: Callable[[str], Record]) -> Record:
        """Call `measure(suffix)` once per set and merge the records: all accuracies, and the sum of the seconds.

        Sets that share a pool of networks have the same `pool_seconds`, which count once.
        """
        records = self.for_each_set(measure)
        accuracies = [accuracy for record in records for accuracy in record["accuracies"]]
        durations = [name for name in ("seconds", "condense_seconds") if name in records[0]]
        pool_seconds = {record["pool_seconds"] for record in records if "pool_seconds" in record}
        return {
            **records[0],
            **{name: sum(record[name] for record in records) for name in durations},
            **({"pool_seconds": sum(pool_seconds)} if pool_seconds else {}),
            **summarize_accuracies(accuracies),
            "sets": len(records),
        }

    def cached(
        self, name: str, measure: Callable[[RunContext], Record], required: Collection[str] = (), **settings: Any
    ) -> Record:
        """Return the record of a part: read it if the part is complete, else measure and store it.

        Args:
            name: Name of the part.
            measure: Return the record, whose values must be JSON values.
            required: Fields that the record must have.
            settings: What the record depends on, in addition to the settings of the experiment. A part with other
                settings is measured again.
        """
        self._part_number(name)
        path = self.part_directory(name) / "record.json"
        settings = json.loads(json.dumps(settings | {"experiment": self.run.settings_hash}))
        if not path.exists() or read_record(path).get("settings") != settings:
            with self.part(name) as run:
                start = time.monotonic()
                record = measure(run)
                record.setdefault("seconds", round(time.monotonic() - start, 3))
                record |= {**self.environment, "settings": settings}
                run.verify_identity()
                with wrap_os_errors(path):
                    write_file(path, json.dumps(record, indent=1).encode() + b"\n")
        return read_record(path, required)

    def condense(
        self,
        name: str,
        method: str,
        recipe: Recipe,
        data: ImageData | None = None,
        *,
        exact_steps: Collection[int] = (),
        others: Mapping[str, Recipe] = MappingProxyType({}),
    ) -> CondensedSet:
        """Return the set of a part: load it if the part has one, else condense.

        Args:
            name: Name of the part.
            method: Name of the method.
            recipe: Its settings.
            data: The images to condense. None: the training images.
            exact_steps: Iterations after which the set is stored too; `load_exact_set` reads it.
            others: Recipes by name of other parts whose sets can be learned at once with this one.
        """
        with self.part(name) as run:
            run.exact_steps = frozenset(exact_steps)
            images, paths = data or self.splits.train, self._set_paths(others)
            return load_or_condense(self.set_path(name), method, recipe, images, run, paths)

    def load_exact_set(self, name: str, step: int) -> CondensedSet:
        """Return the set of a part after `step` iterations."""
        with self.part(name) as run:
            return CondensedSet.load(run.exact_set_path(step))

    def condense_all(self, recipes: Mapping[str, Recipe], data: ImageData | None = None) -> None:
        """Make the sets of all parts and seeds; on an engine, all at the same time. `condense` then loads them.

        Args:
            recipes: Recipes by name of their part, without the suffix of the seed.
            data: The images to condense. None: the training images.
        """
        requests: list[SetRequest] = []

        def condense_seed(suffix: str) -> None:
            parts = {name + suffix: recipe for name, recipe in recipes.items()}
            for part, others in find_shared(parts).items():
                if self.run.engine is None:
                    self.condense(part, method_of(parts[part]).name, parts[part], data, others=others)
                else:
                    requests.append(self.make_set_request(part, parts[part], data or self.splits.train, others))

        self.for_each_set(condense_seed)
        if requests:
            condense_missing(requests, self.run)

    def make_set_request(self, name: str, recipe: Recipe, data: ImageData, others: Mapping[str, Recipe]) -> SetRequest:
        """Return the request to make a set with the current seed. The arguments are those of `condense`."""
        with self.part(name) as run:
            request = SetRequest(self.set_path(name), recipe, data, run.derive(), self._set_paths(others))
        self.run.progress.job_label = ""  # all parts at once
        return request

    def score(
        self, name: str, train_set: CondensedSet | ImageData, protocol: Protocol, test_set: ImageData | None = None
    ) -> Record:
        """Train networks on a set, test them, and return the accuracies as the record of a part.

        Args:
            name: Name of the part.
            train_set: The set to train on.
            protocol: How to train.
            test_set: The images to test on. None: the test images.
        """

        def measure(run: RunContext) -> Record:
            scores = score_set(train_set, test_set or self.splits.require_test(), protocol, run, f"{name}: scoring")
            return {
                "accuracies": list(scores.accuracies),
                "accuracy_mean": scores.mean,
                "accuracy_std": scores.std,
                "network": protocol.network,
                "protocol": protocol.schedule,
                "seconds": round(scores.seconds, 3),
            }

        return self.cached(name, measure, SCORE_FIELDS, protocol=dataclasses.asdict(protocol))

    def condense_and_score(
        self, name: str, method: str, ipc: int, protocol: Protocol | None = None, **fields: Any
    ) -> Record:
        """Condense and score `num_sets` sets; return one record with all accuracies and the total cost."""

        def measure(suffix: str) -> Record:
            condensed = self.condense(name + suffix, method, self.recipe(method, ipc, **fields))
            record = self.score(name + suffix, condensed, protocol or self.protocol())
            return {"method": method, "ipc": ipc, **condense_cost(condensed.provenance), **record}

        return self.repeat(measure)

    def score_whole(self) -> Record:
        """Score the whole training data."""
        record = self.score(WHOLE, self.splits.train, self.protocol(whole=True))
        return {"method": WHOLE, "ipc": None, "condense_seconds": 0.0, **record}
