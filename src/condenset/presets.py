"""Recipes and protocols by dataset and images a class: the paper's values, and quick ones for the digits."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from condenset.errors import UserError, check, check_choice, is_whole
from condenset.recipes import (
    RECIPES,
    DistributionRecipe,
    ForgettingRecipe,
    GradientRecipe,
    HerdingRecipe,
    KCenterRecipe,
    LabelRecipe,
    MatchingRecipe,
    PixelRecipe,
    Protocol,
    Recipe,
    UnrolledRecipe,
    default_loops,
)

T = TypeVar("T")


def make_recipe(method: str, *, ipc: int, name: str, size: int, **fields: Any) -> Recipe:
    """The recipe of a method for a dataset of this name and image size: the paper's values, then the fields given."""
    check_choice("method", method, RECIPES)
    kind = RECIPES[method]
    return _make(kind, f"an option of {method}", {"ipc": ipc, **_method_preset(kind, ipc, name, size), **fields})


def make_protocol(*, name: str, size: int, whole: bool = False, **fields: Any) -> Protocol:
    """The evaluation for a dataset of this name; a whole dataset gets fewer passes, each having many more steps."""
    preset: dict[str, Any] = {"epochs": 200} if whole else {}
    if (name, size) == DIGITS:
        preset = {"network": DIGITS_NETWORK, "nets": 3, "epochs": 40 if whole else 500}
    return _make(Protocol, "an option of the evaluation", {**preset, **fields})


def training_protocol(
    *, name: str, size: int, whole: bool = False, usual: Mapping[str, Any] = MappingProxyType({}), **fields: Any
) -> Protocol:
    """The same for networks that are trained to be used or ranked, not to score a set: by no steps that it carries.

    usual: fields, unless given.
    """
    own = fields.get("own_steps", False)
    check(own is False, "own_steps must be false: only a score is by the steps that a set carries", own)
    refuse_idle(fields)
    return make_protocol(name=name, size=size, whole=whole, **{**usual, **fields})


def refuse_idle(fields: Mapping[str, Any]) -> None:
    """Refuse fields of a protocol, as somebody gave them, that others of them leave without effect.

    All fields together are a protocol as a score tells it, to be repeated.
    """
    if {field.name for field in dataclasses.fields(Protocol)} <= fields.keys():
        return
    for name, others in REPLACED.items():
        idle = [other for other in others if other in fields]
        if fields.get(name) and idle:
            raise UserError(f"{name} stands in place of {', '.join(idle)}: give the one or the other")


REPLACED = {  # fields of a protocol, by the one that leaves them without effect
    "own_steps": ("epochs", "steps", "lr", "momentum", "weight_decay", "batch", "augment"),
    "steps": ("epochs",),
}

DIGITS = ("digits", 8)  # the demonstration: a minute or two on two cores
DIGITS_NETWORK = "convnet(width=64, depth=2)"
DIGITS_PRESETS: dict[type[Recipe], dict[str, Any]] = {
    DistributionRecipe: {"iterations": 500, "batch": 64, "network": DIGITS_NETWORK},
    HerdingRecipe: {"network": DIGITS_NETWORK, "epochs": 40},
    KCenterRecipe: {"network": DIGITS_NETWORK, "epochs": 40},
    ForgettingRecipe: {"network": DIGITS_NETWORK, "epochs": 40},
    PixelRecipe: {"iterations": 2_000, "batch": 64},
    UnrolledRecipe: {
        "iterations": 150,
        "batch": 256,
        "network": DIGITS_NETWORK,
        "steps": 10,
        "epochs": 1,
        "step_size": 0.2,
        "lr": 0.05,
        "init": "real",
    },
    LabelRecipe: {"iterations": 300, "batch": 512, "network": DIGITS_NETWORK},
}


def default_lr(ipc: int) -> float:
    """The paper's learning rate: larger sets have a smaller loss."""
    return 10.0 if ipc >= 100 else 1.0


def defaults_by_ipc(method: str, ipc: int) -> dict[str, Any]:
    """The defaults of a method that go with the number of images a class."""
    if issubclass(RECIPES[method], GradientRecipe):
        return dict(default_loops(ipc))
    return {"lr": default_lr(ipc)} if issubclass(RECIPES[method], MatchingRecipe) else {}


def _gradient_preset(kind: type[Recipe], ipc: int, name: str, size: int) -> dict[str, Any]:
    if (name, size) == DIGITS:
        preset = {"iterations": 20, "outer": 10, "inner": 5, "batch": 64, "network": DIGITS_NETWORK}
        return preset | ({"lr": 1.0} if kind is GradientRecipe else {})  # from noise it is a long way
    if name == "cifar100" and ipc >= 50 and kind is not GradientRecipe:
        return {"outer": 10, "inner": 10}  # as the paper ran dsa there
    return {}


def _method_preset(kind: type[Recipe], ipc: int, name: str, size: int) -> dict[str, Any]:
    if issubclass(kind, GradientRecipe):
        return _gradient_preset(kind, ipc, name, size) if is_whole(ipc) else {}
    preset: dict[str, Any] = {}
    if issubclass(kind, MatchingRecipe) and is_whole(ipc):
        preset["lr"] = default_lr(ipc)
    if issubclass(kind, MatchingRecipe | PixelRecipe) and size >= 64:
        preset["iterations"] = 10_000
    if kind is UnrolledRecipe and name in ("mnist", "fashionmnist"):
        preset["network"] = "lenet"
    if (name, size) == DIGITS:
        preset |= DIGITS_PRESETS.get(kind, {})
    return preset


def _make(kind: type[T], what: str, fields: dict[str, Any]) -> T:
    names = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in fields:
        check_choice(what, key, names)
    for key, value in fields.items():
        if names[key].type == "float" and is_whole(value):
            with contextlib.suppress(OverflowError):  # what no float can hold is refused as it is
                fields[key] = float(value)
        elif names[key].type == "str" and isinstance(value, os.PathLike):
            fields[key] = os.fspath(value)
        elif names[key].type == "str":
            check(isinstance(value, str), f"{key} must be text", value)
    return kind(**fields)
