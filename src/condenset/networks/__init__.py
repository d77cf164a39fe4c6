"""Networks by name: `build("convnet(width=128, norm='batch')", channels=3, size=32, num_classes=10)`."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import nn

from condenset.errors import check_choice
from condenset.networks.alexnet import AlexNet
from condenset.networks.base import Network
from condenset.networks.convnet import ConvNet, default_depth
from condenset.networks.layers import ACTIVATIONS, NORMS, POOLINGS
from condenset.networks.parameters import Parameters, batch_statistics, headless, initialise, parameter_starts
from condenset.networks.resnet import ResNet18
from condenset.networks.small import MLP, LeNet, SmallAlexNet
from condenset.networks.space import search_space
from condenset.networks.spec import Architecture, Option, read_spec
from condenset.networks.vgg import VGG11

__all__ = [
    "NETWORKS",
    "Architecture",
    "Network",
    "NetworkRow",
    "Parameters",
    "batch_statistics",
    "build",
    "canonical",
    "describe",
    "headless",
    "initialise",
    "parameter_starts",
    "search_space",
    "title",
    "uses_batch_norm",
]

_INSTANCE_OR_BATCH = {"norm": Option("instance", ("instance", "batch"))}

NETWORKS: dict[str, Architecture] = {
    "convnet": Architecture(
        ConvNet,
        "ConvNet",
        "blocks of 3x3 convolution, norm, activation and pooling; depth is 2 below 16x16 images and 4 from 64x64 on",
        {
            "width": Option(128),
            "depth": Option(default_depth, most=32),
            "norm": Option("instance", tuple(NORMS)),
            "activation": Option("relu", tuple(ACTIVATIONS)),
            "pooling": Option("average", tuple(POOLINGS)),
        },
    ),
    "alexnet": Architecture(
        AlexNet,
        "AlexNet",
        "five convolutions with max pooling, cut to small images",
        {"norm": Option("none", ("none", "batch", "instance"))},
    ),
    "alexnet_small": Architecture(
        SmallAlexNet, "small AlexNet", "two convolutions with max pooling, then linear: dataset distillation's own"
    ),
    "vgg11": Architecture(VGG11, "VGG-11", "eight 3x3 convolutions with max pooling", _INSTANCE_OR_BATCH),
    "resnet18": Architecture(
        ResNet18, "ResNet-18", "a 3x3 stem, eight residual blocks and the global average", _INSTANCE_OR_BATCH
    ),
    "resnet18_ap": Architecture(
        functools.partial(ResNet18, average_pooling=True),
        "ResNet-18AP",
        "ResNet-18 with average pooling for strides and the last map flattened, for learning images",
        _INSTANCE_OR_BATCH,
    ),
    "lenet": Architecture(LeNet, "LeNet", "LeNet-5 with ReLU and max pooling"),
    "mlp": Architecture(MLP, "MLP", "two hidden layers", {"width": Option(128)}),
}


class NetworkRow(NamedTuple):
    """What `describe` says of an architecture."""

    name: str
    options: str
    text: str


def build(spec: str, *, channels: int, size: int, num_classes: int, seed: int = 0) -> Network:
    """The network of a spec for (channels, size, size) images, its initialisation a function of the seed alone."""
    name, options = _parse(spec)
    device = torch.get_default_device()
    with torch.device("meta"):  # nothing is drawn from the global generator
        network = NETWORKS[name](channels=channels, size=size, num_classes=num_classes, **options)
    if device.type == "meta":
        return network
    generator = torch.Generator("cpu").manual_seed(seed)
    num = sum(parameter.numel() for parameter in network.parameters())
    uniform_P = torch.rand(num, generator=generator, device="cpu")
    return initialise(network.to_empty(device=device), uniform_P.to(device))


def canonical(spec: str, *, size: int) -> str:
    """The spec with every option spelled out as images of size x size get it: what provenance records."""
    name, options = _parse(spec)
    resolved = NETWORKS[name].resolve(options, size)
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in resolved.items())})" if resolved else name


def title(spec: str) -> str:
    """A readable name for scores: ConvNet, or ConvNetBN with batch norm."""
    return NETWORKS[_parse(spec)[0]].title + ("BN" if uses_batch_norm(spec) else "")


def uses_batch_norm(network: str | nn.Module) -> bool:
    """Whether the images of a batch affect each other, so that all classes must pass together."""
    if isinstance(network, nn.Module):
        return any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    name, options = _parse(network)
    return NETWORKS[name].resolve(options, size=32).get("norm") == "batch"


def describe() -> list[NetworkRow]:
    """A row for each architecture, its options with the defaults for 32x32 images and, in brackets, the choices."""
    return [
        NetworkRow(name, ", ".join(_option_text(*item) for item in architecture.options.items()), architecture.text)
        for name, architecture in NETWORKS.items()
    ]


def _option_text(name: str, option: Option) -> str:
    """`norm='instance' [none, batch, …]`."""
    return f"{name}={option.resolve(32)!r}" + (f" [{', '.join(option.choices)}]" if option.choices else "")


def _parse(spec: str) -> tuple[str, dict[str, object]]:
    """The name of a known architecture and the options given, which `Architecture.resolve` checks."""
    name, options = read_spec(spec)
    check_choice("network", name, NETWORKS)
    return name, options
