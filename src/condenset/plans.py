"""A run's plan: everything that decides its result, and its written form, recipe.toml."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from condenset import networks
from condenset.engine import Place
from condenset.errors import UserError, check, check_choice, whole
from condenset.methods.common import images_per_class
from condenset.methods.matching import can_be_one, check_memory
from condenset.methods.pools import Pool
from condenset.presets import defaults_by_ipc, make_protocol, make_recipe
from condenset.recipes import RECIPES, DistributionRecipe, MatchingRecipe, Protocol, Recipe, UnrolledRecipe
from condenset.sizes import in_bytes
from condenset.types import ImageData
from condenset.version import VERSION

WHOLE = "whole"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One set to make and score; without a recipe it is the whole dataset, which is only scored."""

    method: str
    recipe: Recipe | None = None
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)  # what a config file says of it

    @property
    def ipc(self) -> int | None:
        return self.recipe.ipc if self.recipe else None

    @property
    def name(self) -> str:
        return f"{self.method}-{self.ipc}" if self.recipe else self.method


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that decides a run's result."""

    dataset: str
    jobs: tuple[Job, ...]
    protocol: Protocol | None = None  # None: condense only
    whole: Protocol | None = None  # how the whole dataset is scored
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    memory: int | None = None  # bytes; it does not decide the result, but a resumed run keeps to it too
    size: int | None = None
    data_dir: str | None = None
    fingerprint: str = ""  # of the training images
    test_fingerprint: str = ""  # of those that sets are scored on; none: they are not, or it is an older run's
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)  # a config file's own tables

    def __post_init__(self) -> None:
        for name in ("dataset", "device", "precision", "data_dir", "fingerprint", "test_fingerprint"):
            value = getattr(self, name)
            check(isinstance(value, str) or (name, value) == ("data_dir", None), f"{name} must be text", value)
        whole("seed", self.seed)
        check(bool(self.made), "a run must have at least one job", list(self.jobs))
        names = [job.name for job in self.jobs]
        twice = [name for name in names if names.count(name) > 1]
        check(not twice, "jobs must differ in method or ipc", twice)

    @property
    def made(self) -> list[Job]:
        """The jobs that make a set."""
        return [job for job in self.jobs if job.recipe]

    def later_sizes(self, job: Job) -> list[Job]:
        """The jobs after this one whose sets can be learned at once with its own."""
        return [each for each in self.made[self.made.index(job) + 1 :] if can_be_one(job.recipe, each.recipe)]

    def set_path(self, job: Job, folder: Path) -> Path:
        """condensed.safetensors is the set of the last job that makes one; those of the others lie in sets/."""
        last = job == self.made[-1]
        return folder / "condensed.safetensors" if last else folder / "sets" / f"{job.name}.safetensors"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user asked for, before presets: the fields given and nothing else; what can be refused at once, is."""

    methods: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # what an experiment compares with them that makes no set
    ipcs: tuple[int, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)  # of every method that has such a field
    by_method: dict[str, dict[str, Any]] = field(default_factory=dict)  # of one method, and there they win
    protocol: dict[str, Any] = field(default_factory=dict)
    evaluate: bool = True
    whole: bool | None = None  # score the whole dataset too; None: as the config file has it, else yes
    whole_epochs: int | None = None  # which asks for that too

    def __post_init__(self) -> None:
        if self.whole is False and self.whole_epochs is not None:
            raise UserError("--whole-epochs is of the whole dataset, which --no-whole leaves out: give one of the two")
        if self.methods:
            self.check_fields(self.methods)
        for method in self.methods:
            for ipc in self.ipcs or (1,):
                make_recipe(method, ipc=ipc, name="", size=0, **self.fields_of(method))
        make_protocol(name="", size=0, **self.protocol)
        make_protocol(name="", size=0, **self.protocol_of_whole)
        for fields in (self.recipe, self.protocol, *self.by_method.values()):
            networks.title(fields.get("network", "convnet"))

    @property
    def protocol_of_whole(self) -> dict[str, Any]:
        """What was given of how the whole dataset is scored."""
        alike = {key: value for key, value in self.protocol.items() if key != "epochs"}
        return alike if self.whole_epochs is None else alike | {"epochs": self.whole_epochs}

    def fields_of(self, method: str) -> dict[str, Any]:
        """What was given of a method's recipe."""
        general = {key: value for key, value in self.recipe.items() if key in _names(method)}
        return general | self.by_method.get(method, {})

    def check_fields(self, methods: Collection[str]) -> None:
        """Refuse a field that none of the methods has, and fields of a method that is not among them."""
        taken = {name for method in methods for name in _names(method)} | self.protocol.keys()
        for key in self.recipe:
            check_choice(f"an option of {', '.join(dict.fromkeys(methods))}", key, sorted(taken))
        for method in self.by_method:
            check_choice("the method of a setting", method, dict.fromkeys(methods))


def read_settings(texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings such as "kernel=rbf" or "dsa.outer=5" as Wishes has them: for all methods, and by method."""
    general: dict[str, Any] = {}
    by_method: dict[str, dict[str, Any]] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        check(bool(equals), "a setting must be FIELD=VALUE or METHOD.FIELD=VALUE", text)
        method, dot, name = target.strip().rpartition(".")
        kinds = [RECIPES[method]] if dot and _names(method) else list(RECIPES.values())
        types = {each.name: str(each.type) for kind in kinds for each in dataclasses.fields(kind) if each.name != "ipc"}
        check_choice(f"an option of {method or 'a method'}", name, sorted(types))
        fields = by_method.setdefault(method, {}) if dot else general
        check(name not in fields, "a setting must be given once", target.strip())
        fields[name] = _read(name, types[name], value.strip())
    return general, by_method


def _read(name: str, kind: str, text: str) -> Any:
    if kind == "str":
        return text
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "int": ("a whole number", int),
        "float": ("a number", float),
        "bool": ("true or false", {"true": True, "false": False}.__getitem__),
    }
    what, reader = readers[kind.removesuffix(" | None")]
    try:
        return reader(text)
    except (KeyError, ValueError):
        raise UserError(f"{name} must be {what}, but got {text!r}") from None


def make_plan(data: ImageData, wishes: Wishes, base: Plan | None = None, **fields: Any) -> Plan:
    """Presets, then the plan of a config file (`base`), then the wishes; what cannot work is refused now."""
    if base and base.dataset == fields["dataset"]:
        other = base.fingerprint not in ("", data.fingerprint)
        if other or (wishes.evaluate and base.test_fingerprint not in ("", fields.get("test_fingerprint"))):
            raise UserError(
                f"{base.dataset} is no longer the data that the config file is of: to run on what it is now, take "
                "'fingerprint' and 'test_fingerprint' out of the file"
            )
    pairs, jobs = _pairs(wishes, base), []
    wishes.check_fields([method for method, _ in pairs])
    for method, ipc in pairs:
        given = {**_known(base, method, ipc), **wishes.fields_of(method), "ipc": ipc}
        jobs.append(Job(method=method, recipe=make_recipe(method, name=data.name, size=data.size, **given)))
    protocol: Protocol | None = None
    whole: Protocol | None = None
    if wishes.evaluate:
        matched = [job.recipe.network for job in jobs if isinstance(job.recipe, MatchingRecipe)]
        fit = [job.recipe for job in jobs if not isinstance(job.recipe, UnrolledRecipe)]
        others = [network for recipe in fit if (network := getattr(recipe, "network", None))]
        # Sets are compared on one network: matching's, which the paper scores with, before that of other methods; never
        # that of `dd`, whose networks without norms learn little but by the steps that they were unrolled for.
        known = {"network": (matched or others)[-1]} if others else {}
        known |= base.given.get("protocol", _fields(base.protocol)) if base else {}
        protocol = make_protocol(name=data.name, size=data.size, **{**known, **wishes.protocol})
    usual = base is None or base.whole or wishes.whole_epochs is not None
    if protocol and (usual if wishes.whole is None else wishes.whole):
        known = {"network": protocol.network}
        known |= base.given.get("whole", _fields(base.whole)) if base else {}
        whole = make_protocol(name=data.name, size=data.size, whole=True, **{**known, **wishes.protocol_of_whole})
        jobs.append(Job(method=WHOLE))
    plan = Plan(jobs=tuple(jobs), protocol=protocol, whole=whole, fingerprint=data.fingerprint, **fields)
    check_plan(plan, data)
    for recipe in [job.recipe for job in plan.jobs if isinstance(job.recipe, DistributionRecipe) and job.recipe.pool]:
        pool = Pool.load(recipe.pool)
        with warnings.catch_warnings(action="ignore"):  # it warns when it is used
            pool.check_fits(recipe.network, data)
        pool.check_has(recipe.group)
    return plan


def check_plan(plan: Plan, data: ImageData) -> None:
    """Refuse now what would fail after hours: networks that do not fit, sets larger than a class."""
    specs = [getattr(job.recipe, "network", None) for job in plan.jobs]
    specs += [protocol.network for protocol in (plan.protocol, plan.whole) if protocol]
    with torch.device("meta"):  # only to see that they can be built
        for spec in dict.fromkeys(spec for spec in specs if spec):
            networks.build(spec, channels=data.channels, size=data.size, num_classes=data.num_classes)
    for job in plan.jobs:
        if job.recipe:
            images_per_class(data, job.recipe)
        if isinstance(job.recipe, DistributionRecipe) and plan.memory is not None:
            check_memory(data, [job.recipe], Place.best(plan.device, plan.precision), plan.memory)


def to_toml(plan: Plan) -> str:
    """The plan as recipe.toml."""
    command = "run" if plan.protocol else "condense"
    lines = [f"# condenset {VERSION}: 'condenset {command} --config' with this file repeats the run"]
    plain = ("dataset", "seed", "device", "precision", "memory", "size", "data_dir", "fingerprint", "test_fingerprint")
    lines += toml_lines({name: getattr(plan, name) for name in plain})
    for job in plan.made:
        lines += ["", "[[jobs]]", *toml_lines({"method": job.method, **_fields(job.recipe)})]
    for name, protocol in (("protocol", plan.protocol), ("whole", plan.whole)):
        if protocol:
            lines += ["", f"[{name}]", *toml_lines(_fields(protocol))]
    return "\n".join(lines) + "\n"


def from_toml(path: Path) -> Plan:
    """Read a plan back; whatever is not one is refused in a line."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # ValueError: of TOML, UTF-8, or a number of thousands of digits
        raise UserError(f"{path} is not TOML: {error}") from None
    try:
        return _from_table(table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is not a recipe of condenset; a run's recipe.toml is one") from None


def _from_table(table: dict[str, Any]) -> Plan:
    for key in table:
        check_choice("a key of the recipe", key, [f.name for f in dataclasses.fields(Plan) if f.name != "given"])
    jobs = [_job(dict(row)) for row in table.pop("jobs")]
    given: dict[str, dict[str, Any]] = {key: dict(table[key]) for key in ("protocol", "whole") if key in table}
    for key in ("protocol", "whole"):
        table[key] = make_protocol(name="", size=0, whole=key == "whole", **table[key]) if key in table else None
    if table["whole"]:
        jobs.append(Job(method=WHOLE))
    if "memory" in table:
        table["memory"] = in_bytes(table["memory"])
    return Plan(jobs=tuple(jobs), given=given, **table)


def _job(row: dict[str, Any]) -> Job:
    method = row.pop("method")
    names = sorted(_names(method))
    for key in row:
        check_choice(f"an option of {method}", key, names)
    return Job(method=method, recipe=make_recipe(method, name="", size=0, **row), given=row)


def _pairs(wishes: Wishes, base: Plan | None) -> list[tuple[str, int]]:
    """Every method at every number of images a class, as wished, else as the config file has them."""
    known = [(job.method, job.recipe.ipc) for job in base.made if job.recipe] if base else []
    if known and not wishes.methods and not wishes.ipcs:
        return known
    methods = wishes.methods or tuple(method for method, _ in known)
    ipcs = wishes.ipcs or tuple(ipc for _, ipc in known)
    if not ipcs:
        raise UserError("how many images a class? give --ipc, such as --ipc 10")
    return [(method, ipc) for ipc in dict.fromkeys(ipcs) for method in dict.fromkeys(methods)]


def _known(base: Plan | None, method: str, ipc: int) -> dict[str, Any]:
    """What a config file says of a method: at this number of images a class, else at the first it has.

    Some defaults go with the number of images, such as the learning rate: another number's are not taken over.
    """
    jobs = [job for job in base.made if job.method == method] if base else []
    job = next((job for job in jobs if job.ipc == ipc), jobs[0] if jobs else None)
    if job is None or job.ipc is None:
        return {}
    known = dict(job.given) or _fields(job.recipe)
    usual = defaults_by_ipc(method, job.ipc) if job.ipc != ipc else {}
    return {key: value for key, value in known.items() if key not in usual or value != usual[key]}


def _names(method: str) -> set[str]:
    """The fields that a method's recipe has: random has no iterations."""
    check_choice("method", method, RECIPES)
    return {each.name for each in dataclasses.fields(RECIPES[method])}


def _fields(record: Recipe | Protocol | None) -> dict[str, Any]:
    return dataclasses.asdict(record) if record else {}


def toml_lines(values: dict[str, Any]) -> list[str]:
    """Lines of TOML; what is None is left out."""
    # JSON's numbers and text are TOML's too, but for the escapes of what lies beyond 16 bits, and DEL.
    texts = {key: json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") for key, value in values.items()}
    return [f"{key} = {text}" for key, text in texts.items() if text != "null"]
