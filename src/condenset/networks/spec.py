"""Spec strings such as convnet(width=128, norm='batch'), and the architectures and options that they name."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from condenset.errors import UserError, check, check_choice, is_int

RULE = "a network must be written like convnet or convnet(width=128, norm=batch)"
MAX_LENGTH = 200  # characters; a longer spec could exhaust the parser


def parse_spec(spec: str) -> tuple[str, dict[str, object]]:
    """Return name and keyword arguments of a spec. Only literals and words are accepted; nothing is evaluated."""
    check(isinstance(spec, str), RULE, spec)
    check(len(spec) <= MAX_LENGTH, f"{RULE} in at most {MAX_LENGTH} characters", spec[:20] + "…")
    try:
        with warnings.catch_warnings(action="ignore"):  # Python warns about unusual literals
            node = ast.parse(spec.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
        names = [keyword.arg for keyword in call.keywords]
        if not isinstance(call.func, ast.Name) or call.args or len(set(names)) < len(names):
            raise ValueError
        return call.func.id, {str(keyword.arg): _literal(keyword) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UserError(f"{RULE}, but got {spec!r}") from None


def _literal(keyword: ast.keyword) -> object:
    """Return the value of `name=literal` or `name=word`, where quotes are optional; otherwise raise ValueError."""
    if keyword.arg is None:  # **options
        raise ValueError
    return keyword.value.id if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)


@dataclass(frozen=True)
class Option:
    """An option of an architecture.

    Args:
        default: The default value, or a function that computes it from the image size.
        choices: The valid values; empty for an integer from 1 to `maximum`.
        maximum: The largest valid integer.
    """

    default: int | str | Callable[[int], int]
    choices: tuple[str, ...] = ()
    maximum: int = 4096

    def check(self, name: str, value: object) -> None:
        """Raise a UserError unless the option called `name` accepts the value."""
        if self.choices:
            check_choice(name, value, self.choices)
        else:
            fits = is_int(value) and 1 <= value <= self.maximum  # type: ignore[operator]
            check(fits, f"{name} must be a whole number from 1 to {self.maximum}", value)

    def resolve(self, size: int) -> int | str:
        """Return the default for images of size x size."""
        return self.default(size) if callable(self.default) else self.default


@dataclass(frozen=True, eq=False)
class Architecture:
    """A network architecture. `register_network` makes it available by name.

    Args:
        name: The name in spec strings.
        make: Builds the network: make(channels=…, size=…, num_classes=…, **options) -> nn.Module. The network maps
            images (N, C, H, W) to logits (N, num_classes).
        title: The name to display.
        description: One line for `condenset networks`.
        options: The options that a spec may set.
        default_init: Whether all parameters belong to convolutions, linear layers and norms with PyTorch's default
            initialisation. Such networks are initialised on the device, within captured steps. Others initialise
            themselves, from PyTorch's global generator.
    """

    name: str
    make: Callable[..., nn.Module]
    title: str
    description: str
    options: Mapping[str, Option] = field(default_factory=dict)
    default_init: bool = False

    def __call__(self, *, channels: int, size: int, num_classes: int, **options: object) -> nn.Module:
        """Build a network, initialised from PyTorch's global generator."""
        return self.make(channels=channels, size=size, num_classes=num_classes, **self.resolve(options, size))

    def resolve(self, options: Mapping[str, object], size: int) -> dict[str, object]:
        """Check the options and return them with the defaults of the others, in the order of the declaration."""
        for name, value in options.items():
            check(bool(self.options), f"{self.title} takes no options", name)
            check_choice(f"an option of {self.title}", name, self.options)
            self.options[name].check(name, value)
        return {name: options.get(name, option.resolve(size)) for name, option in self.options.items()}
