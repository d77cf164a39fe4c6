"""Architectures as users give them: specs of ours, or builders of their own networks."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.engine import Place
from condenset.errors import UserError, check, one_line, told
from condenset.train import TrainingSet

Builder = Callable[[int, int, int], nn.Module]  # (channels, side of the images, classes) -> network
Architectures = Sequence[str | Builder] | Mapping[str, str | Builder]

ADDRESS = r" at 0x[0-9a-fA-F]+"  # in what Python prints of an object


def by_name(architectures: Architectures, size: int, *, kept: bool) -> dict[str, str | Builder]:
    """Every architecture by a name of its own; a spec that means the same as one before it is left out.

    kept: the names are what a folder knows them by, so they must not depend on the order.
    """
    if isinstance(architectures, str | nn.Module) or not isinstance(architectures, Iterable):
        raise UserError(f"architectures must be a list of specs or builders, but got {told(architectures)}")
    pairs: list[tuple[str, str | Builder]] = (
        list(architectures.items())
        if isinstance(architectures, Mapping)
        else [(each if isinstance(each, str) else _name(each), each) for each in architectures]
    )
    check(bool(pairs), "there must be at least one architecture", [])
    named: dict[str, str | Builder] = {}
    known: set[str] = set()
    for name, architecture in pairs:
        check_builder(architecture)
        if isinstance(architecture, str) and not isinstance(architectures, Mapping):
            meaning = architecture
            with contextlib.suppress(UserError):  # whose reason comes when it is built
                meaning = networks.canonical(architecture, size=size)
            if meaning in known:
                continue
            known.add(meaning)
        if kept and not isinstance(architectures, Mapping) and (name in named or _is_nameless(architecture)):
            what = f"two architectures are called {name!r}" if name in named else f"{name} has no name of its own"
            raise UserError(f"{what}, and a folder knows them by their names: give a mapping {{name: builder, …}}")
        named[_free(name, named)] = architecture
    return named


def _free(name: str, taken: Mapping[str, object]) -> str:
    """The name, or `name-2`, `name-3`, … whichever is not taken."""
    later = (f"{name}-{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([name], later) if each not in taken)


def check_builder(architecture: object) -> None:
    built = isinstance(architecture, nn.Module)
    if built or not (isinstance(architecture, str) or callable(architecture)):
        rule = "an architecture must be a spec or a builder, called as builder(channels, size, num_classes)"
        raise UserError(f"{rule}, but got {'a network that is built already: ' * built}{told(architecture)}")


def _name(builder: object) -> str:
    """What a builder is called; that of a functools.partial is its function with the arguments given."""
    if isinstance(builder, functools.partial):
        given = [*map(_told, builder.args), *(f"{key}={_told(value)}" for key, value in builder.keywords.items())]
        return f"{_name(builder.func)}({', '.join(given)})" if given else _name(builder.func)
    return str(getattr(builder, "__name__", type(builder).__name__))


def _is_nameless(builder: object) -> bool:
    """Whether another builder may be called the same: a lambda, an object, what an object was given to."""
    if isinstance(builder, functools.partial):
        given = [each for each in (*builder.args, *builder.keywords.values()) if not hasattr(each, "__name__")]
        return _is_nameless(builder.func) or any(re.search(ADDRESS, repr(each)) for each in given)
    name = builder if isinstance(builder, str) else getattr(builder, "__name__", "")
    return not name or "<lambda>" in name or hasattr(builder, "__self__")


def _told(value: object) -> str:
    """An argument in a line, without where in memory it lies: that differs in every process."""
    text = str(getattr(value, "__name__", None) or repr(value))
    return re.sub(ADDRESS, "", " ".join(text.split()))


def built(builder: Builder, train_set: TrainingSet, place: Place) -> nn.Module:
    """A user's own network, which must give a number for every class."""
    num_classes, shape = train_set.num_classes, train_set.images_NCHW.shape
    network = builder(shape[1], shape[-1], num_classes)
    check(isinstance(network, nn.Module), "a builder must give an nn.Module", type(network).__name__)
    network = network.to(place.device)
    with torch.no_grad():
        logits = network.eval()(train_set.images(slice(0, 2)).clone())  # which it may change in place
    fits = isinstance(logits, Tensor) and logits.shape == (min(2, len(train_set)), num_classes)
    found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    check(fits, f"a network must give (images, {num_classes}) numbers", found)
    learned = [each for each in network.parameters() if each.requires_grad]
    check(bool(learned), "a network must have parameters to learn", 0)
    check(all(each.dtype == torch.float32 for each in learned), "parameters must be float32", learned[0].dtype)
    return network


@contextlib.contextmanager
def faults_told(architecture: object) -> Iterator[None]:
    """What goes wrong in a network of ours is a bug; in a user's own it is anything, and theirs to mend: one line."""
    try:
        yield
    except Exception as error:
        if isinstance(architecture, str) or isinstance(error, UserError):
            raise
        raise UserError(one_line(error)) from error


@contextlib.contextmanager
def seeded(seed: int, place: Place) -> Iterator[None]:
    """PyTorch's global generators, which others' code draws from, follow the seed meanwhile, and are as before then."""
    with torch.random.fork_rng([place.device] if place.device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
