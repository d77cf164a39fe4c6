"""Every knob of a method and of the evaluation, validated on construction, with the paper's values as defaults."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypeVar

from condenset import augment
from condenset.errors import UserError, check, check_choice

INITS = ("real", "noise")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every method takes: how many images a class to make."""

    ipc: int
    allow_fewer: bool = False  # a class with fewer images than ipc gives all it has, instead of an error

    def __post_init__(self) -> None:
        check(_whole(self.ipc) and self.ipc >= 1, "ipc (images per class) must be a whole number from 1 up", self.ipc)
        check(isinstance(self.allow_fewer, bool), "allow_fewer must be true or false", self.allow_fewer)


@dataclass(frozen=True, kw_only=True)
class RandomRecipe(Recipe):
    """Class-balanced random real images."""


@dataclass(frozen=True, kw_only=True)
class MatchingRecipe(Recipe):
    """Distribution matching (Algorithm 1 of the paper)."""

    network: str = "convnet"
    iterations: int = 20_000
    lr: float = 1.0
    momentum: float = 0.5
    batch: int = 256  # real images a class in every iteration
    init: str = "real"
    augment: str = augment.STRATEGY

    def __post_init__(self) -> None:
        super().__post_init__()
        check(_whole(self.iterations) and self.iterations >= 0, "iterations must be 0 or more", self.iterations)
        check(_whole(self.batch) and self.batch >= 1, "batch must be 1 or more", self.batch)
        check(_number(self.lr) and self.lr > 0, "lr must be above 0", self.lr)
        check(_number(self.momentum) and 0 <= self.momentum < 1, "momentum must lie in 0..1", self.momentum)
        check_choice("init", self.init, INITS)
        augment.parse(self.augment)


@dataclass(frozen=True, kw_only=True)
class GradientRecipe(MatchingRecipe):
    """Gradient matching (DC): images whose loss gradients meet the real ones' while a network is trained on them."""

    iterations: int = 1000  # each with a fresh network
    outer: int | None = None  # steps of the images with each network; None: by ipc
    inner: int | None = None  # passes of the network over the images between two of those; None: by ipc
    lr: float = 0.1
    network_lr: float = 0.01
    init: str = "noise"
    augment: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(_number(self.network_lr) and self.network_lr > 0, "network_lr must be above 0", self.network_lr)
        for name, usual in default_loops(self.ipc).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)  # so that the record says what was done
        check(_whole(self.outer) and self.loops[0] >= 1, "outer must be 1 or more", self.outer)
        check(_whole(self.inner) and self.loops[1] >= 0, "inner must be 0 or more", self.inner)

    @property
    def loops(self) -> tuple[int, int]:
        """outer and inner, which are numbers once the recipe is made."""
        assert self.outer is not None and self.inner is not None
        return self.outer, self.inner

    @property
    def steps(self) -> int:
        """Steps of the images in all: what progress counts."""
        return self.iterations * self.loops[0]


@dataclass(frozen=True, kw_only=True)
class SiameseRecipe(GradientRecipe):
    """Gradient matching under differentiable Siamese augmentation (DSA)."""

    init: str = "real"
    augment: str = augment.STRATEGY


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a set is scored: train fresh networks on it, test each once (the paper's evaluation)."""

    network: str = "convnet"
    nets: int = 20
    epochs: int = 1000
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch: int = 256
    augment: str = augment.STRATEGY

    def __post_init__(self) -> None:
        check(_whole(self.nets) and self.nets >= 1, "nets must be 1 or more", self.nets)
        check(_whole(self.epochs) and self.epochs >= 0, "epochs must be 0 or more", self.epochs)
        check(_whole(self.batch) and self.batch >= 1, "batch must be 1 or more", self.batch)
        check(_number(self.lr) and self.lr > 0, "lr must be above 0", self.lr)
        check(_number(self.momentum) and 0 <= self.momentum < 1, "momentum must lie in 0..1", self.momentum)
        check(
            _number(self.weight_decay) and self.weight_decay >= 0, "weight_decay must be 0 or more", self.weight_decay
        )
        augment.parse(self.augment)

    @property
    def passes(self) -> int:
        """Passes over the set: the paper's code counts from 0 to `epochs` inclusive."""
        return self.epochs + 1

    @property
    def drop_after(self) -> int:
        """The pass after which the learning rate falls to a tenth and the momentum starts anew."""
        return self.epochs // 2 + 1


RECIPES: dict[str, type[Recipe]] = {
    "random": RandomRecipe,
    "dm": MatchingRecipe,
    "dc": GradientRecipe,
    "dsa": SiameseRecipe,
}


def describe() -> list[tuple[str, str, str]]:
    """Name, what it does, and options with defaults of every method."""
    rows = []
    for name, kind in RECIPES.items():
        fields = [field for field in dataclasses.fields(kind) if field.name not in ("ipc", "allow_fewer")]
        rows.append((name, str(kind.__doc__), ", ".join(f"{field.name}={field.default!r}" for field in fields)))
    return rows


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


DIGITS = ("digits", 8)  # the demonstration: a minute or two on two cores
DIGITS_NETWORK = "convnet(width=64, depth=2)"


def default_lr(ipc: int) -> float:
    """The paper's learning rate: larger sets have a smaller loss."""
    return 10.0 if ipc >= 100 else 1.0


# images a class -> outer, inner
LOOPS = {1: (1, 1), 10: (10, 50), 20: (20, 25), 30: (30, 20), 40: (40, 15), 50: (50, 10)}


def default_loops(ipc: int) -> dict[str, int]:
    """Gradient matching's outer and inner steps: the published ones, on straight lines between them, level beyond."""
    known = sorted(LOOPS)
    after = next((each for each in known if each >= ipc), known[-1])
    before = max((each for each in known if each <= ipc), default=known[0])
    along = (ipc - before) / (after - before) if after > before else 0.0
    outer, inner = (round(a + along * (b - a)) for a, b in zip(LOOPS[before], LOOPS[after], strict=True))
    return {"outer": outer, "inner": inner}


def defaults_by_ipc(method: str, ipc: int) -> dict[str, Any]:
    """The defaults of a method that go with the number of images a class."""
    if issubclass(RECIPES[method], GradientRecipe):
        return dict(default_loops(ipc))
    return {"lr": default_lr(ipc)} if issubclass(RECIPES[method], MatchingRecipe) else {}


def _gradient_preset(ipc: int, name: str, size: int) -> dict[str, Any]:
    if (name, size) == DIGITS:
        return {"iterations": 20, "outer": 10, "inner": 5, "batch": 64, "network": DIGITS_NETWORK}
    if name == "cifar100" and ipc >= 50:
        return {"outer": 10, "inner": 10}  # as the paper ran it there
    return {}


def _method_preset(kind: type[Recipe], ipc: int, name: str, size: int) -> dict[str, Any]:
    if issubclass(kind, GradientRecipe):
        return _gradient_preset(ipc, name, size) if _whole(ipc) else {}
    if not issubclass(kind, MatchingRecipe):
        return {}
    preset: dict[str, Any] = {}
    if _whole(ipc):
        preset["lr"] = default_lr(ipc)
    if size >= 64:
        preset["iterations"] = 10_000
    if (name, size) == DIGITS:
        preset |= {"iterations": 500, "batch": 64, "network": DIGITS_NETWORK}
    return preset


def _make(kind: type[T], what: str, fields: dict[str, Any]) -> T:
    names = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in fields:
        check_choice(what, key, names)
    for key, value in fields.items():
        if names[key].type == "float" and _whole(value):
            fields[key] = float(value)
        elif names[key].type == "str" and not isinstance(value, str):
            raise UserError(f"{key} must be text, but got {value!r}")
    return kind(**fields)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
