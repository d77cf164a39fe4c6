"""How a network is written, such as convnet(width=128, norm='batch'), and the options an architecture admits."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from condenset.errors import UserError, check, check_choice
from condenset.networks.base import Network

RULE = "a network must be written like convnet or convnet(width=128, norm='batch')"
LONGEST = 200  # characters of a spec: enough for any, too few to trouble the parser


def read_spec(spec: str) -> tuple[str, dict[str, object]]:
    """The name and the keyword arguments of a spec; literals only, nothing is evaluated."""
    check(isinstance(spec, str), RULE, spec)
    check(len(spec) <= LONGEST, f"{RULE} in at most {LONGEST} characters", spec[:20] + "…")
    try:
        with warnings.catch_warnings(action="ignore"):  # Python's remarks on odd literals
            node = ast.parse(spec.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
        names = [keyword.arg for keyword in call.keywords]
        if not isinstance(call.func, ast.Name) or call.args or len(set(names)) < len(names):
            raise ValueError
        return call.func.id, {str(keyword.arg): _literal(keyword) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UserError(f"{RULE}, but got {spec!r}") from None


def _literal(keyword: ast.keyword) -> object:
    """The value of `name=literal`; ValueError for anything else."""
    if keyword.arg is None:  # **options
        raise ValueError
    return ast.literal_eval(keyword.value)


@dataclass(frozen=True)
class Option:
    """A knob: its default, which may follow from the image size, and its choices, or none for a count in 1..most."""

    default: int | str | Callable[[int], int]
    choices: tuple[str, ...] = ()
    most: int = 4096

    def check(self, name: str, value: object) -> None:
        """Raise unless the knob called `name` can be set to value."""
        if self.choices:
            check_choice(name, value, self.choices)
        else:
            fits = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= self.most
            check(fits, f"{name} must be a whole number from 1 to {self.most}", value)

    def resolve(self, size: int) -> int | str:
        """The default for images of size x size."""
        return self.default(size) if callable(self.default) else self.default


@dataclass(frozen=True)
class Architecture:
    """A row of the table of networks; call it with an input's shape and options to build one."""

    make: Callable[..., Network]
    title: str
    text: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def __call__(self, *, channels: int, size: int, num_classes: int, **options: object) -> Network:
        """A network with PyTorch's own initialisation, drawn as PyTorch does from its global generator."""
        return self.make(channels=channels, size=size, num_classes=num_classes, **self.resolve(options, size))

    def resolve(self, given: Mapping[str, object], size: int) -> dict[str, object]:
        """Every option in the table's order: what was given, checked, or else the default."""
        for name, value in given.items():
            check(bool(self.options), f"{self.title} takes no options", name)
            check_choice(f"an option of {self.title}", name, self.options)
            self.options[name].check(name, value)
        return {name: given.get(name, option.resolve(size)) for name, option in self.options.items()}
