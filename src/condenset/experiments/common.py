"""What experiments share: a workbench whose every step is done once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import Any, TypeVar

from condenset import plans
from condenset.estimates import Work, seconds_of
from condenset.evaluation import score
from condenset.experiments.outcomes import Record, read_record
from condenset.files import write_file
from condenset.folders import writable
from condenset.methods.common import images_per_class
from condenset.methods.matching import can_be_one
from condenset.presets import make_protocol, make_recipe
from condenset.progress import LONG, span
from condenset.recipes import RECIPES, GradientRecipe, Protocol, Recipe
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData, Splits
from condenset.version import VERSION
from condenset.workflow import SCORED, cost_of, made_set

T = TypeVar("T")

SCALES = {
    "tiny": "a minute on two CPU cores: whether it works, not what comes out",
    "small": "minutes on a GPU",
    "paper": "the full protocol",
}
TINY_NETWORK = "convnet(width=16, depth=2)"
# What a scale changes of every method that has such a field, then of single methods.
RECIPES_AT: dict[str, dict[str, Any]] = {
    "tiny": {"network": TINY_NETWORK, "iterations": 5, "batch": 32, "epochs": 2, "steps": 2, "outer": 2, "inner": 1},
    "small": {"iterations": 2_000},
    "paper": {},
}
METHODS_AT: dict[tuple[str, str], dict[str, Any]] = {
    ("tiny", "dc"): {"iterations": 2},
    ("tiny", "dsa"): {"iterations": 2},
}
PROTOCOLS_AT: dict[str, dict[str, Any]] = {
    "tiny": {"network": TINY_NETWORK, "nets": 2, "epochs": 10},
    "small": {"nets": 3, "epochs": 300},
    "paper": {},
}
WHOLE_EPOCHS_AT = {"tiny": 3, "small": 100}
SOME = 0.05  # of what there is to do: less of it tells little of how long the rest takes
LEAST_IMAGE_STEPS = 1_000  # of gradient matching at the scale small: it has few for small sets, many for large ones


@dataclass(kw_only=True)
class Lab:
    """An experiment's workbench: its data, scale and folder.

    What `remembered`, `condensed` and `scored` do is kept under parts/ by name, and not done again. wishes: the methods
    to compare, and what was asked for beside the scale: it wins over that, and over what is not the experiment's point.
    """

    dataset: str
    scale: str
    wishes: plans.Wishes
    splits: Splits
    run: Run
    folder: Path
    sets: int | None = None  # that each accuracy is of; None: 5 at the scale `paper`, else 1

    def __post_init__(self) -> None:
        self.run.folder = self.run.root = self.folder
        self.num_parts = 0  # that there will be, once the experiment knows: progress tells which of them is under way
        self._begun: dict[str, int] = {}  # their places, by name
        self._foretold: dict[tuple[str, Path], float] = {}  # seconds, of what ends with a part's set or with its record
        self._resumed: set[str] = set()  # parts that were half done before that, whose seconds tell nothing
        self._measured = self._took = 0.0  # seconds foretold of what was done since, and those that it took

    @property
    def num_sets(self) -> int:
        """Sets, each of a seed of its own, that an accuracy is of."""
        return self.sets or self.at(tiny=1, small=1, paper=5)

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that are compared."""
        return self.wishes.methods

    @property
    def made_on(self) -> Record:
        """What a record says of where and by what it came about."""
        place = self.run.place
        known = {"device": str(place.device), "hardware": place.hardware, "precision": place.precision}
        return known | {"version": VERSION}

    def at(self, *, tiny: T, small: T, paper: T) -> T:
        """What goes with the scale."""
        return {"tiny": tiny, "small": small, "paper": paper}[self.scale]

    def ipcs(self, *, tiny: Sequence[int], small: Sequence[int], paper: Sequence[int]) -> tuple[int, ...]:
        """The sizes of sets, images a class, that were wished, or go with the scale; every class must have as many."""
        found = tuple(sorted(self.wishes.ipcs)) or tuple(self.at(tiny=tiny, small=small, paper=paper))
        self.check_enough(found[-1], self.splits.train)
        return found

    def expect(self, parts: Mapping[str, Work]) -> None:
        """Say which parts there will be, before the first, and how long those take that are not done yet."""
        self.num_parts, self._foretold, self._measured, self._took = len(parts), {}, 0.0, 0.0
        sets = {name: self._set_path(name) for name in parts}
        self._resumed = {name for name, path in sets.items() if path.parent.exists() and not path.exists()}
        making = {(name, sets[name]): work._replace(protocol=None) for name, work in parts.items()}
        scoring = {(name, self._record_path(name)): work._replace(recipe=None) for name, work in parts.items()}
        left = {key: work for key, work in {**making, **scoring}.items() if not self._is_there(*key)}

        def seconds() -> float:
            self._foretold = dict(zip(left, seconds_of([*left.values()], self.splits, self.run.place), strict=True))
            return sum(self._foretold.values())

        self.run.progress.foretell(seconds)

    def _is_there(self, name: str, path: Path) -> bool:
        return self.is_done(name) or path.exists()

    def _left(self) -> float:
        """Seconds foretold of what is not done by now."""
        return sum(seconds for key, seconds in self._foretold.items() if not self._is_there(*key))

    def is_done(self, name: str) -> bool:
        """Whether a part has come to its record."""
        return self._record_path(name).exists()

    def expect_sets(self, works: Callable[[str], Mapping[str, Work]], **beside: Work) -> None:
        """The same of an experiment that does works(end), named with that end, for every set, and others once."""
        found = dict(beside)
        for mine, seed in self.each_set(lambda end: (works(end), self.run.seed)):
            found |= {name: work._replace(seed=seed) for name, work in mine.items()}
        self.expect(found)

    def expect_pairs(self, pairs: Collection[tuple[str, int]]) -> None:
        """The same of one that makes and scores sets by these methods and sizes, and scores the whole dataset."""
        whole, protocol = Work(None, self.protocol(whole=True), len(self.splits.train)), self.protocol()
        recipes = {(method, ipc): self.recipe(method, ipc) for method, ipc in pairs}
        self.expect_sets(
            lambda end: {f"{m}-{ipc}{end}": self.work(each, protocol) for (m, ipc), each in recipes.items()},
            **{plans.WHOLE: whole},
        )

    def work(self, recipe: Recipe, protocol: Protocol | None = None) -> Work:
        """To make a set of the training images, and to score it unless no protocol is given."""
        return Work(recipe, protocol, recipe.ipc * self.splits.train.num_classes)

    def scoring(self, recipe: Recipe, protocol: Protocol) -> Work:
        """Only to score such a set."""
        return self.work(recipe, protocol)._replace(recipe=None)

    def check_enough(self, ipc: int, data: ImageData) -> None:
        """Classes with too few images for a set of this size are told of before anything is made."""
        for method in self.methods:
            images_per_class(data, self.recipe(method, ipc, data))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[Run]:
        """The run, at work in the folder of one part: checkpoints and events of parts keep apart."""
        run, began, left = self.run, time.monotonic(), self._left()
        before = run.folder, run.job, run.recipe, run.seconds_before, run.snapshots
        run.progress.part = self._told(name)
        run.folder, run.job, run.seconds_before = self.folder / "parts" / name, name, 0.0
        with writable(run.folder):
            run.folder.mkdir(parents=True, exist_ok=True)
        try:
            yield run
        finally:
            run.folder, run.job, run.recipe, run.seconds_before, run.snapshots = before
            if name not in self._resumed and (done := left - self._left()):
                self._measured, self._took = self._measured + done, self._took + time.monotonic() - began

    def _place(self, name: str) -> int:
        return self._begun.setdefault(name, len(self._begun) + 1)

    def _told(self, name: str) -> str:
        """Which part it is of how many and, if that is long, about how much longer all take, going by what was foretold
        and how long what was done took beside it."""
        place, enough = self._place(name), SOME * sum(self._foretold.values())
        left = self._left() * self._took / self._measured if self._measured > enough else 0.0
        told = f"{place}/{self.num_parts}" if self.num_parts else ""
        return f"{told} (about {span(left)} for all that are left)" if told and left > LONG else told

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """The run under another seed, for an experiment that repeats itself."""
        before, self.run.seed = self.run.seed, seed
        try:
            yield
        finally:
            self.run.seed = before

    def each_set(self, do: Callable[[str], T]) -> list[T]:
        """What do(end) gives for every set, each under a seed of its own; the names of its parts end in `end`."""
        found = []
        for number in range(self.num_sets):
            with self.seeded(self.run.seed + number):
                found.append(do(f"-set{number + 1}" if number else ""))
        return found

    def repeated(self, do: Callable[[str], Record]) -> Record:
        """The same as one record: the accuracies of all sets, the seconds that they took."""
        found = self.each_set(do)
        accuracies = [each for record in found for each in record["accuracies"]]
        timed = [key for key in ("seconds", "condense_seconds") if key in found[0]]
        return {
            **found[0],
            **{key: sum(record[key] for record in found) for key in timed},
            "accuracies": accuracies,
            "accuracy_mean": fmean(accuracies),
            "accuracy_std": pstdev(accuracies),
            "sets": len(found),
        }

    def remembered(
        self, name: str, compute: Callable[[Run], Record], needed: Collection[str] = (), **settings: Any
    ) -> Record:
        """What `compute` gives under these settings, a JSON record; done once, and read from then on.

        needed: fields that it must have.
        """
        self._place(name)
        path, settings = self._record_path(name), json.loads(json.dumps(settings))
        if not path.exists() or read_record(path).get("settings") != settings:
            with self.part(name) as run:
                began = time.monotonic()
                record = compute(run)
                record.setdefault("seconds", round(time.monotonic() - began, 3))
                record |= self.made_on
                record["settings"] = settings
                with writable(path):
                    write_file(path, json.dumps(record, indent=1).encode() + b"\n")
        return read_record(path, needed)

    def recipe(self, method: str, ipc: int, data: ImageData | None = None, **fields: Any) -> Recipe:
        """A method's recipe at this scale, as was wished; fields given win."""
        data = data or self.splits.train
        names = {item.name for item in dataclasses.fields(RECIPES[method])}
        usual = {**RECIPES_AT[self.scale], **METHODS_AT.get((self.scale, method), {})}
        wished = self.wishes.fields_of(method)
        taken = {key: value for key, value in {**usual, **wished, **fields}.items() if key in names}
        made = make_recipe(method, name=data.name, size=data.size, **{**taken, "ipc": ipc})
        if self.scale == "small" and "iterations" in names and "iterations" not in {*wished, *fields}:
            preset: Any = make_recipe(method, name=data.name, size=data.size, ipc=ipc)
            enough = taken["iterations"]
            if isinstance(made, GradientRecipe):
                enough = max(50, LEAST_IMAGE_STEPS // made.loops[0])
            made = dataclasses.replace(made, **{"iterations": min(enough, preset.iterations)})
        return made

    def protocol(self, *, whole: bool = False, **fields: Any) -> Protocol:
        """The scoring at this scale, on the network that was wished for `dm`; fields given win, and over these what was
        wished of the scoring."""
        usual, wished = dict(PROTOCOLS_AT[self.scale]), dict(self.wishes.protocol)
        if network := self.wishes.fields_of("dm").get("network"):
            usual["network"] = network
        if whole:
            usual |= {"epochs": WHOLE_EPOCHS_AT[self.scale]} if self.scale in WHOLE_EPOCHS_AT else {}
            wished = self.wishes.protocol_of_whole
        data = self.splits.train
        return make_protocol(name=data.name, size=data.size, whole=whole, **{**usual, **fields, **wished})

    def condensed(
        self,
        name: str,
        method: str,
        recipe: Recipe,
        data: ImageData | None = None,
        *,
        snapshots: Collection[int] = (),
        others: Mapping[str, Recipe] = MappingProxyType({}),
    ) -> CondensedSet:
        """The set that a method makes, kept in the part's folder; `data` is the training set unless given.

        snapshots: iterations after which the set is kept as it stands, too; `snapshot` reads it. others: recipes of
        other parts, whose sets are made at once with it.
        """
        data = data or self.splits.train
        with self.part(name) as run:
            run.snapshots = frozenset(snapshots)
            beside = {self._set_path(each): wanted for each, wanted in others.items()}
            return made_set(self._set_path(name), method, recipe, data, run, beside)

    def condensed_sizes(self, method: str, recipes: Mapping[str, Recipe]) -> dict[str, CondensedSet]:
        """The sets of several parts, by their names; each is learned at once with those after it that can be."""
        names = list(recipes)

        def later(name: str) -> dict[str, Recipe]:
            after = names[names.index(name) + 1 :]
            return {each: recipes[each] for each in after if can_be_one(recipes[name], recipes[each])}

        return {name: self.condensed(name, method, each, others=later(name)) for name, each in recipes.items()}

    def make_sizes(self, pairs: Collection[tuple[str, int]]) -> None:
        """Make the sets of these methods and sizes, for `made_and_scored` to find; those that can be, at once."""

        def make(end: str) -> None:
            for method in dict.fromkeys(method for method, _ in pairs):
                mine = {f"{m}-{ipc}{end}": self.recipe(m, ipc) for m, ipc in pairs if m == method}
                self.condensed_sizes(method, mine)

        self.each_set(make)

    def _set_path(self, name: str) -> Path:
        return self.folder / "parts" / name / "condensed.safetensors"

    def _record_path(self, name: str) -> Path:
        return self.folder / "parts" / name / "record.json"

    def snapshot(self, name: str, step: int) -> CondensedSet:
        """The set of a part as it stood after so many iterations."""
        with self.part(name) as run:
            return CondensedSet.load(run.snapshot_path(step))

    def scored(
        self, name: str, small: CondensedSet | ImageData, protocol: Protocol, test: ImageData | None = None
    ) -> Record:
        """The accuracies of networks trained on a set: `accuracies`, `accuracy_mean`, `accuracy_std`, `seconds`."""

        def compute(run: Run) -> Record:
            scores = score(small, test or self.splits.test, protocol, run, f"{name}: testing")
            return {
                "accuracies": list(scores.accuracies),
                "accuracy_mean": scores.mean,
                "accuracy_std": scores.std,
                "network": protocol.network,
                "seconds": round(scores.seconds, 3),
            }

        return self.remembered(name, compute, SCORED, protocol=dataclasses.asdict(protocol))

    def made_and_scored(
        self,
        name: str,
        method: str,
        ipc: int,
        protocol: Protocol | None = None,
        **fields: Any,
    ) -> Record:
        """Condense and score, all sets: a record with what both took. `whole` scores the dataset itself."""
        if method == plans.WHOLE:
            record = self.scored(name, self.splits.train, protocol or self.protocol(whole=True))
            return {"method": method, "ipc": None, "condense_seconds": 0.0, **record}

        def produce(end: str) -> Record:
            small = self.condensed(name + end, method, self.recipe(method, ipc, **fields))
            record = self.scored(name + end, small, protocol or self.protocol())
            return {"method": method, "ipc": ipc, **cost_of(small.provenance), **record}

        return self.repeated(produce)
