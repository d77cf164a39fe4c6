"""The registry of networks, and the builders that users pass as networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from condenset.errors import UserError, check, describe_value
from condenset.networks.spec import Architecture, Option, parse_spec
from condenset.registry import Registry

NetworkBuilder = Callable[[int, int, int], nn.Module]
"""A function (channels, size, num_classes) -> nn.Module."""

Architectures = Sequence[str | NetworkBuilder] | Mapping[str, str | NetworkBuilder]
"""Specs and builders, or a mapping that names them."""

NETWORKS: Registry[Architecture] = Registry("network", Architecture, "condenset.networks")
"""Architectures by name."""

RANK_HINT = "define it with `def`, or give cs.rank a mapping {name: builder}"

_builders: dict[str, tuple[NetworkBuilder, Architecture]] = {}  # by spec, for the rest of the process


def register_network(architecture: Architecture) -> Architecture:
    """Add an architecture to the registry, so that its name is a valid network in Python and on the command line.

    Args:
        architecture: The architecture, with the function that builds its networks.

    Returns:
        The same object.

    Raises:
        UserError: The name is not a Python identifier or belongs to another architecture.

    Example:
        >>> import condenset as cs
        >>> from condenset.networks import Architecture
        >>> from torch import nn
        >>> def linear(channels, size, num_classes):
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, num_classes))
        >>> architecture = Architecture(name="my_linear", make=linear, title="Linear", description="one linear layer")
        >>> cs.register_network(architecture).name
        'my_linear'
        >>> cs.NETWORKS.unregister("my_linear")
    """
    return NETWORKS.register(architecture)


def as_spec(network: str | NetworkBuilder, *, name: str | None = None) -> str:
    """Return the spec of a network, which all other functions accept.

    A builder `(channels, size, num_classes) -> nn.Module` is made available under its name for the rest of this
    process. A later builder of the same name replaces it.

    Args:
        network: A spec, which is returned unchanged, or a builder.
        name: The name of a builder; by default its `__name__`.
    """
    check_network(network)
    if isinstance(network, str):
        return network
    name = builder_name(network) if name is None else name
    if name.partition("(")[0].strip() in NETWORKS:
        raise UserError(f"a builder must not have the name of a registered network, but got {name!r}: rename it")
    if name not in _builders or _builders[name][0] is not network:
        _builders[name] = network, _wrap_builder(name, network)
    return name


def check_network(network: object) -> None:
    """Raise a UserError unless this is a spec string or a builder."""
    rule = "a network must be a spec or a builder, called as builder(channels, size, num_classes)"
    if isinstance(network, nn.Module):
        raise UserError(f"{rule}, but got a network that is already built: {describe_value(network)}")
    if not (isinstance(network, str) or callable(network)):
        raise UserError(f"{rule}, but got {describe_value(network)}")


def builder_name(builder: NetworkBuilder, hint: str = "define it with `def`") -> str:
    """Return the `__name__` of a builder; refuse lambdas, partials and other objects without a name.

    Args:
        builder: The builder.
        hint: The way out in the error message.
    """
    name = getattr(builder, "__name__", "")
    if not name or name == "<lambda>":
        raise UserError(f"a builder must have a name, but got {name or type(builder).__name__}: {hint}")
    return str(name)


def _wrap_builder(name: str, builder: NetworkBuilder) -> Architecture:
    """Return an architecture that calls the builder with positional arguments."""

    def make(*, channels: int, size: int, num_classes: int) -> nn.Module:
        return builder(channels, size, num_classes)

    return Architecture(name=name, make=make, title=name, description="a builder of this process")


def name_architectures(architectures: Architectures, size: int) -> dict[str, str]:
    """Return the specs of architectures by name; a repeated architecture is left out.

    Args:
        architectures: Specs and builders, or a mapping from names to them.
        size: The image size. Two specs are the same if their options for this size are.
    """
    if isinstance(architectures, str | nn.Module) or not isinstance(architectures, Iterable):
        raise UserError(f"architectures must be a list of specs or builders, but got {describe_value(architectures)}")
    if isinstance(architectures, Mapping):
        specs = {str(name): as_spec(network, name=str(name)) for name, network in architectures.items()}
    else:
        specs = _name_list(list(architectures), size)
    check(bool(specs), "there must be at least one architecture", [])
    return specs


def _name_list(architectures: Sequence[str | NetworkBuilder], size: int) -> dict[str, str]:
    builders: dict[str, NetworkBuilder] = {}
    specs: dict[str, str] = {}  # by canonical spec, which also removes repetitions
    for network in architectures:
        check_network(network)
        name = None if isinstance(network, str) else builder_name(network, RANK_HINT)
        spec = as_spec(network, name=name)
        if not isinstance(network, str) and builders.setdefault(spec, network) is not network:
            raise UserError(f"two builders are called {spec!r}: give a mapping {{name: builder, …}}")
        try:
            specs.setdefault(canonical_spec(spec, size=size), spec)
        except UserError:  # an invalid spec gets its row in the ranking, with the reason
            specs.setdefault(spec, spec)
    return {spec: spec for spec in specs.values()}


def find_architecture(spec: str) -> tuple[Architecture, dict[str, Any]]:
    """Return the architecture that a spec names, and the options that the spec sets."""
    if isinstance(spec, str) and spec in _builders:
        return _builders[spec][1], {}
    name, options = parse_spec(spec)
    return (_builders[name][1] if name in _builders else NETWORKS.lookup(name)), options


def is_known(spec: str) -> bool:
    """Return whether a spec names a registered architecture or a builder of this process."""
    name = spec.partition("(")[0].strip()
    return spec in _builders or name in _builders or name in NETWORKS


def canonical_spec(spec: str, *, size: int) -> str:
    """Return the spec with all options for images of size x size, as provenance records it."""
    architecture, options = find_architecture(spec)
    resolved = architecture.resolve(options, size)
    name = architecture.name
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in resolved.items())})" if resolved else name


def has_default_init(spec: str) -> bool:
    """Return whether the parameters of this network can be sampled by PyTorch's default rules."""
    return find_architecture(spec)[0].default_init


def describe_networks() -> list[dict[str, Any]]:
    """Return name, description and options of every architecture; defaults are those for 32x32 images."""
    return [
        {
            "name": architecture.name,
            "description": architecture.description,
            "options": [_describe_option(name, option) for name, option in architecture.options.items()],
        }
        for architecture in NETWORKS.values()
    ]


def _describe_option(name: str, option: Option) -> dict[str, Any]:
    default = option.resolve(32)
    limits = {"choices": list(option.choices)} if option.choices else {"minimum": 1, "maximum": option.maximum}
    return {"name": name, "type": type(default).__name__, "default": default, **limits}
