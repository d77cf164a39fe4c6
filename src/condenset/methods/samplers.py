"""Network samplers: where the network of an iteration comes from.

Shapes: P parameters of a network, G networks of a pool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.engine.compile import Forward, functional_forward, with_autocast
from condenset.engine.device import ComputeDevice
from condenset.networks import FlatParameters


class NetworkSampler(ABC):
    """Samples the parameters of one network per iteration.

    Attributes:
        parameters: The layout of the parameters.
        on_host: `prepare` must run before every step, so the step cannot be captured.
    """

    parameters: FlatParameters
    on_host = False

    def prepare(self, iteration: int) -> None:  # noqa: B027
        """Do the work of an iteration that cannot run on the device."""

    @abstractmethod
    def sample_weights(self, clock: Tensor) -> Tensor:
        """Return the (P,) parameters of the network for the iteration that the clock shows."""

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the same parameters by name, in the dtype to compute with."""
        return self.unflatten(self.sample_weights(clock), dtype)

    def unflatten(self, weights_P: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return parameters by name, for `torch.func.functional_call`."""
        return self.parameters.unflatten(weights_P, dtype)


class NoNetworks(NetworkSampler):
    """Sample nothing, for an embedding without parameters."""

    def sample_weights(self, clock: Tensor) -> Tensor:
        return torch.zeros(0, device=clock.device)

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return {}


class RandomNetworks(NetworkSampler):
    """Sample a newly initialised network in every iteration, as Algorithm 1 does."""

    def __init__(self, network: nn.Module, seed: int, device: torch.device, *, xavier: bool = False) -> None:
        self.parameters = FlatParameters(network, device, xavier=xavier)
        self.key = rng.make_key(seed, "network", device=device)

    def sample_weights(self, clock: Tensor) -> Tensor:
        return self.parameters.initialize(rng.flat_uniform(self.key, clock, self.parameters.num))


class PoolNetworks(NetworkSampler):
    """Sample one of the (G, P) trained networks of a pool in every iteration."""

    def __init__(self, network: nn.Module, weights_GP: Tensor, seed: int) -> None:
        self.parameters, self.weights_GP = FlatParameters(network, weights_GP.device), weights_GP
        self.key = rng.make_key(seed, "network", device=weights_GP.device)

    def sample_weights(self, clock: Tensor) -> Tensor:
        return self.weights_GP.index_select(0, rng.random_index(self.key, clock, len(self.weights_GP)))[0]


class BuiltNetworks(NetworkSampler):
    """Build a new network in every iteration, for users' networks, which initialise themselves.

    The initialisation may be any Python code, so it runs on the host before the step.
    """

    on_host = True

    def __init__(self, build: Callable[[int], nn.Module], seed: int, device: torch.device) -> None:
        self.build, self.seed = build, seed
        self.network = build(0)
        self.parameters = FlatParameters(self.network, device, as_built=True)
        self.weights_P = torch.zeros(self.parameters.num, device=device)

    def prepare(self, iteration: int) -> None:
        self.network = self.build(int(rng.make_key(self.seed, "network", iteration)[0]))
        self.weights_P.copy_(networks.flatten_parameters(self.network))

    def sample_weights(self, clock: Tensor) -> Tensor:
        return self.weights_P

    def unflatten(self, weights_P: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        fixed = networks.fixed_tensors(self.network, weights_P.device, dtype)  # buffers and frozen parameters
        return super().unflatten(weights_P, dtype) | fixed


def build_network(spec: str, data: ImageData, *, seed: int = 0, embedding: bool = False) -> nn.Module:
    """Build a network for the images of a dataset, with batch norm that uses the statistics of its batch.

    Args:
        spec: The network.
        data: The dataset.
        seed: Seed of the initialisation.
        embedding: Remove the classifier, so that the network returns its embedding.
    """
    network = networks.build(spec, channels=data.channels, size=data.size, num_classes=data.num_classes, seed=seed)
    network = networks.use_batch_statistics(network)
    return networks.to_embedding(network) if embedding else network


def build_on_meta(spec: str, data: ImageData, *, embedding: bool = False) -> nn.Module:
    """Build a network without values: its parameters are sampled in every iteration."""
    with torch.device("meta"):
        return build_network(spec, data, embedding=embedding)


def sample_new_networks(
    spec: str, data: ImageData, seed: int, compute: ComputeDevice, *, embedding: bool = False, xavier: bool = False
) -> NetworkSampler:
    """Return a sampler of newly initialised networks; see `build_network` and `FlatParameters` for the arguments."""
    if networks.has_default_init(spec):
        return RandomNetworks(build_on_meta(spec, data, embedding=embedding), seed, compute.device, xavier=xavier)

    def build(network_seed: int) -> nn.Module:
        return build_network(spec, data, seed=network_seed, embedding=embedding)

    return BuiltNetworks(build, seed, compute.device)


def make_forward(network: nn.Module, sampler: NetworkSampler, compute: ComputeDevice) -> tuple[Forward, torch.dtype]:
    """Return the network as a function of sampled parameters and images, and the dtype that both have.

    Users' networks may not support parameters in another precision, so they run in float32 under autocast.
    """
    if not sampler.on_host:
        return functional_forward(network, compute), compute.dtype
    return with_autocast(functional_forward(network, compute, compiling=False), compute), torch.float32
