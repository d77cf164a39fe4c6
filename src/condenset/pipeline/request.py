"""Represent what the user asks for, before presets and the config file are applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from condenset import networks
from condenset.config import field_names, type_name
from condenset.data.ipc import check_ipc_share
from condenset.errors import UserError, check, check_choice
from condenset.methods import METHODS, DMRecipe, Recipe, make_recipe
from condenset.methods.matching.recipe import POOL_SAMPLERS
from condenset.methods.registry import check_schedule
from condenset.methods.unrolled.mtt_recipe import MTTRecipe
from condenset.training.protocol import make_protocol

DEFAULT_IPC = Recipe.ipc


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Options of a run as the user gave them. Invalid values raise a `UserError` before the data are read.

    Attributes:
        methods: Names of the methods. Empty: those of the config file.
        other_baselines: Baselines of an experiment that make no set, and therefore are not methods.
        ipcs: Numbers of images per class, one for each size of set. Empty: those of the config file, else 10.
        ipc_share: Share of the images of each class, in place of `ipcs`.
        schedule: Name of a schedule, for the methods that have it. None: the default of each method.
        pool: Directory of trained networks for the methods whose sampler needs them.
        recipe_fields: Recipe fields for every method that has them.
        method_fields: Recipe fields by method. They override `recipe_fields`.
        protocol_fields: Fields of the evaluation protocol, and its name as `protocol`.
        evaluate: Score the sets.
        whole: Score the whole dataset too. None: as in the config file, else yes.
        whole_epochs: Epochs on the whole dataset. Giving them implies `whole`.
    """

    methods: tuple[str, ...] = ()
    other_baselines: tuple[str, ...] = ()
    ipcs: tuple[int, ...] = ()
    ipc_share: float | None = None
    schedule: str | None = None
    pool: str = ""
    recipe_fields: dict[str, Any] = field(default_factory=dict)
    method_fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    protocol_fields: dict[str, Any] = field(default_factory=dict)
    evaluate: bool = True
    whole: bool | None = None
    whole_epochs: int | None = None

    def __post_init__(self) -> None:
        if self.whole is False and self.whole_epochs is not None:
            raise UserError("--whole-epochs has no effect with --no-whole: give one of the two")
        if self.ipc_share is not None:
            if self.ipcs:
                raise UserError("--ipc and --ipc-share exclude each other: give one of the two")
            check_ipc_share(self.ipc_share)
        if self.methods:
            self.check_fields(self.methods)
        for method in self.methods:
            for ipc in self.ipcs or (DEFAULT_IPC,):
                schedule = self.schedule_for(method)
                make_recipe(method, ipc=ipc, name="", size=0, schedule=schedule, **self.fields_for(method))
        make_protocol(name="", size=0, **self.protocol_fields)
        make_protocol(name="", size=0, **self.whole_protocol_fields)
        for fields in (self.recipe_fields, self.protocol_fields, *self.method_fields.values()):
            networks.display_name(fields.get("network", "convnet"))

    @property
    def whole_protocol_fields(self) -> dict[str, Any]:
        """Protocol fields for the whole dataset: those of the sets, but with its own number of epochs."""
        fields = {name: value for name, value in self.protocol_fields.items() if name != "epochs"}
        return fields if self.whole_epochs is None else fields | {"epochs": self.whole_epochs}

    def fields_for(self, method: str) -> dict[str, Any]:
        """Return the recipe fields that apply to a method."""
        names = field_names(METHODS.lookup(method).recipe)
        shared = {name: value for name, value in self.recipe_fields.items() if name in names}
        fields = shared | self.method_fields.get(method, {})
        return {"pool": self.pool, **fields} if self.pool and _uses_pool(method, fields) else fields

    def schedule_for(self, method: str, default: str | None = None) -> str | None:
        """Return the schedule that applies to a method: the one requested, else `default`. None: that of the method."""
        schedule = self.schedule or default
        return schedule if schedule in METHODS.lookup(method).schedules else None

    def check_fields(self, methods: Collection[str]) -> None:
        """Check that methods use every option: the schedule, the pool, each field, and each name in `method_fields`."""
        names = ", ".join(dict.fromkeys(methods))
        if self.schedule is not None:
            check_schedule(self.schedule, dict.fromkeys(methods))
        if self.pool and not any("pool" in self.fields_for(method) for method in methods):
            raise UserError(
                f"--pool must come with a method that matches with trained networks, such as dmplus, but got "
                f"{names}: for dm, use --set dm.pool={self.pool}"
            )
        recipes = [METHODS.lookup(method).recipe for method in methods]
        fields = {name for recipe in recipes for name in field_names(recipe)} | self.protocol_fields.keys()
        for name in self.recipe_fields:
            check_choice(f"an option of {names}", name, sorted(fields))
        for method in self.method_fields:
            check_choice("the method of a setting", method, dict.fromkeys(methods))


def _uses_pool(method: str, fields: Mapping[str, Any]) -> bool:
    """Return whether the networks of a method come from a pool."""
    recipe = METHODS.lookup(method).recipe
    if issubclass(recipe, MTTRecipe):
        return True
    return issubclass(recipe, DMRecipe) and fields.get("sampler", recipe.sampler) in POOL_SAMPLERS


def parse_settings(settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Parse settings such as "kernel=features" or "dsa.outer_steps=5".

    Returns:
        `recipe_fields` and `method_fields` of a `RunRequest`.
    """
    recipe_fields: dict[str, Any] = {}
    method_fields: dict[str, dict[str, Any]] = {}
    for setting in settings:
        target, equals, value = setting.partition("=")
        check(bool(equals), "a setting must be FIELD=VALUE or METHOD.FIELD=VALUE", setting)
        method, dot, name = target.strip().rpartition(".")
        recipes = [METHODS.lookup(method).recipe] if dot else [entry.recipe for entry in METHODS.values()]
        types = {item.name: type_name(item) for recipe in recipes for item in dataclasses.fields(recipe)}
        del types["ipc"]  # `--ipc` sets it
        check_choice(f"an option of {method or 'a method'}", name, sorted(types))
        fields = method_fields.setdefault(method, {}) if dot else recipe_fields
        check(name not in fields, "a setting must be given once", target.strip())
        fields[name] = _parse_value(name, types[name].removesuffix(" | None"), value.strip())
    return recipe_fields, method_fields


def _parse_value(name: str, expected_type: str, text: str) -> Any:
    """Convert the text of a setting to the type of its field."""
    parsers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "int": ("a whole number", int),
        "float": ("a number", float),
        "str": ("text", str),
        "bool": ("true or false", {"true": True, "false": False}.__getitem__),
    }
    if expected_type not in parsers:
        raise UserError(f"{name} cannot be set by --set: its type is {expected_type}, not {', '.join(parsers)}")
    expected, parse = parsers[expected_type]
    try:
        return parse(text)
    except (KeyError, ValueError):
        raise UserError(f"{name} must be {expected}, but got {text!r}") from None
