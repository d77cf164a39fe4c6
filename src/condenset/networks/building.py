"""Build networks from specs, and check the networks that users' builders return."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from condenset.errors import UserError, check, wrap_errors
from condenset.io.files import json_hash
from condenset.networks.parameters import allocate, contains_batch_norm, initialize
from condenset.networks.registry import find_architecture
from condenset.networks.spec import Architecture

ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)  # in the text of an object
PROBE_SIZES = (32, 64, 256, 1024, 4096)  # image sizes to build a network for, to look for batch norm in it


def build(spec: str, *, channels: int, size: int, num_classes: int, seed: int = 0) -> nn.Module:
    """Build the network of a spec for images (channels, size, size), on the default device.

    The initialisation is a function of the seed. The global generators are not changed.
    """
    architecture, options = find_architecture(spec)
    device = torch.get_default_device()
    if not architecture.default_init:
        with wrap_errors(f"network {spec!r}"), torch.device("cpu"), seed_global_rng(seed, torch.device("cpu")):
            network = architecture(channels=channels, size=size, num_classes=num_classes, **options)
            _check_built_network(network, channels, size, num_classes)
        return network.to(device)
    with torch.device("meta"):  # so that the constructors do not use the global generator
        network = architecture(channels=channels, size=size, num_classes=num_classes, **options)
    if device.type == "meta":
        return network
    num = sum(parameter.numel() for parameter in network.parameters())
    uniform_P = torch.rand(num, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return initialize(allocate(network, device), uniform_P.to(device))


def describe_user_network(spec: str, *, channels: int, size: int, num_classes: int) -> dict[str, str]:
    """Return `network_digest` for a network of a user, whose code can change while its name stays the same; else {}.

    The digest covers the printed modules, and the names, types and shapes of parameters and buffers. It leaves out
    their values, which may be random, and code that changes none of these, such as `forward`.
    """
    if find_architecture(spec)[0].default_init:
        return {}
    with torch.device("meta"):
        network = build(spec, channels=channels, size=size, num_classes=num_classes)
    named = itertools.chain(network.named_parameters(), network.named_buffers())
    tensors = [[name, str(tensor.dtype), list(tensor.shape), tensor.requires_grad] for name, tensor in named]
    return {"network_digest": json_hash([ADDRESS.sub("", repr(network)), tensors])}


def _check_built_network(network: object, channels: int, size: int, num_classes: int) -> None:
    """Check that a user's network is a module that computes logits and has float32 parameters to train."""
    check(isinstance(network, nn.Module), "a builder must return an nn.Module", type(network).__name__)
    assert isinstance(network, nn.Module)
    training = network.training
    with torch.no_grad():  # this also creates the parameters of lazy modules
        logits = network.eval()(torch.zeros(2, channels, size, size))
    network.train(training)
    fits = isinstance(logits, Tensor) and logits.shape == (2, num_classes)
    output = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    check(fits, f"a network must return logits of shape (2, {num_classes}) for 2 images", output)
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    check(bool(trainable), "a network must have trainable parameters", 0)
    dtypes = {parameter.dtype for parameter in trainable} - {torch.float32}
    check(not dtypes, "the parameters of a network must be float32", next(iter(dtypes), None))


@contextlib.contextmanager
def seed_global_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's global generators of the CPU and this device, and restore their states at the end.

    The code of users' networks draws from them, for initialisation and dropout.
    """
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if is_cuda else []):
        # torch.manual_seed would also seed devices whose state is not restored.
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield


def uses_batch_norm(network: str | nn.Module) -> bool:
    """Return whether a network contains batch norm, with which the images of a batch affect each other."""
    if isinstance(network, nn.Module):
        return contains_batch_norm(network)
    architecture, options = find_architecture(network)
    architecture.resolve(options, PROBE_SIZES[0])  # a spec that becomes a key of the cache must be valid
    return _spec_uses_batch_norm(architecture, network)


@functools.lru_cache(maxsize=64)
def _spec_uses_batch_norm(architecture: Architecture, spec: str) -> bool:
    """Build the network for the first image size that it accepts, and look for batch norm in it."""
    for size in PROBE_SIZES:
        with contextlib.suppress(UserError), torch.device("meta"):
            return contains_batch_norm(build(spec, channels=3, size=size, num_classes=10))
    with torch.device("meta"):
        return contains_batch_norm(build(spec, channels=3, size=PROBE_SIZES[0], num_classes=10))


def display_name(spec: str) -> str:
    """Return the name for scores: ConvNet, or ConvNetBN with batch norm; for a user's network its title."""
    architecture, _ = find_architecture(spec)
    return architecture.title + ("BN" if architecture.default_init and uses_batch_norm(spec) else "")
