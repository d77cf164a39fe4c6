"""Network samplers: draw the network of each iteration, and run the step that uses it.

Shapes: P parameters of a network, G networks of a pool.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.engine.compile import Forward, functional_forward, with_autocast
from condenset.engine.cuda_graph import capture_step
from condenset.engine.device import ComputeDevice
from condenset.networks import FlatParameters


class NetworkSampler(ABC):
    """Sample the parameters of one network per iteration.

    Attributes:
        parameters: The layout of the parameters.
        on_host: Whether `prepare` must run on the host before every step, which then cannot be captured.
    """

    parameters: FlatParameters
    on_host = False

    def prepare(self, iteration: int) -> None:  # noqa: B027
        """Do the work of an iteration that cannot run on the device."""

    @contextlib.contextmanager
    def user_code(self, iteration: int) -> Iterator[None]:
        """Run the code of a user's network in this iteration. Built-in networks need no protection."""
        yield

    def fixed_tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the buffers and frozen parameters of a user's network of this iteration, by name."""
        return {}

    @abstractmethod
    def sample_weights(self, clock: Tensor) -> Tensor:
        """Return the (P,) parameters of the network for the iteration that the clock shows."""

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the same parameters by name, in the dtype to compute with."""
        return self.unflatten(self.sample_weights(clock), dtype)

    def unflatten(self, weights_P: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return parameters and fixed tensors by name, for `torch.func.functional_call`."""
        return self.parameters.unflatten(weights_P, dtype) | self.fixed_tensors(dtype)


class NoNetworks(NetworkSampler):
    """Sample nothing, for an embedding without parameters."""

    def sample_weights(self, clock: Tensor) -> Tensor:
        return torch.zeros(0, device=clock.device)

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return {}


class RandomNetworks(NetworkSampler):
    """Sample a newly initialised network in every iteration, as Algorithm 1 does; with `fixed`, always the first."""

    def __init__(
        self, network: nn.Module, seed: int, device: torch.device, *, xavier: bool = False, fixed: bool = False
    ) -> None:
        self.parameters, self.fixed = FlatParameters(network, device, xavier=xavier), fixed
        self.key = rng.make_key(seed, "network", device=device)

    def sample_weights(self, clock: Tensor) -> Tensor:
        step = torch.zeros_like(clock) if self.fixed else clock
        return self.parameters.initialize(rng.flat_uniform(self.key, step, self.parameters.num))


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

    Args:
        spec: The network.
        build: Build the network, given the seed of its initialisation.
        seed: The seed of the run.
        device: The device of the parameters.
        fixed: Use one network in all iterations: the one that a `Model` initialises for this seed without tags.
    """

    on_host = True

    def __init__(
        self, spec: str, build: Callable[[int], nn.Module], seed: int, device: torch.device, *, fixed: bool = False
    ) -> None:
        self.spec, self.build, self.seed, self.fixed = spec, build, seed, fixed
        self.network = build(0)
        self.parameters = FlatParameters(self.network, device, as_built=True)
        self.weights_P = torch.zeros(self.parameters.num, device=device)

    def prepare(self, iteration: int) -> None:
        tags = ("builder",) if self.fixed else ("network", iteration)
        self.network = self.build(int(rng.make_key(self.seed, *tags)[0]))
        self.weights_P.copy_(networks.flatten_parameters(self.network))

    @contextlib.contextmanager
    def user_code(self, iteration: int) -> Iterator[None]:
        """Run the code under global generators seeded for this iteration. Its errors become one line."""
        seed = int(rng.make_key(self.seed, "user code", iteration)[0])
        with networks.wrap_user_errors(self.spec), networks.seed_global_rng(seed, self.weights_P.device):
            yield

    def sample_weights(self, clock: Tensor) -> Tensor:
        return self.weights_P

    def fixed_tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return networks.fixed_tensors(self.network, self.weights_P.device, dtype)


def build_network(spec: str, data: ImageData, *, seed: int = 0, embedding: bool = False) -> nn.Module:
    """Build a network for the images of a dataset, in evaluation mode.

    Batch norm uses the statistics of its batch. Dropout is off: a method that computes a pass twice, or in chunks, must
    get the same result.

    Args:
        spec: The network.
        data: The dataset.
        seed: Seed of the initialisation.
        embedding: Remove the classifier, so that the network returns its embedding.
    """
    network = networks.build(spec, channels=data.channels, size=data.size, num_classes=data.num_classes, seed=seed)
    network = networks.use_batch_statistics(network).eval()
    return networks.to_embedding(network) if embedding else network


def build_on_meta(spec: str, data: ImageData, *, embedding: bool = False) -> nn.Module:
    """Build a network without values: its parameters are sampled in every iteration."""
    with torch.device("meta"):
        return build_network(spec, data, embedding=embedding)


def sample_new_networks(
    spec: str,
    data: ImageData,
    seed: int,
    compute: ComputeDevice,
    *,
    embedding: bool = False,
    xavier: bool = False,
    fixed: bool = False,
) -> NetworkSampler:
    """Return a sampler of newly initialised networks.

    Args:
        spec: The network.
        data: The dataset, which determines image size and classes.
        seed: The seed of the run.
        compute: The device.
        embedding: Remove the classifier.
        xavier: Initialise networks without norms by Xavier's rule. A user's network initialises itself.
        fixed: Use one network in all iterations.
    """
    if networks.has_default_init(spec):
        network = build_on_meta(spec, data, embedding=embedding)
        return RandomNetworks(network, seed, compute.device, xavier=xavier, fixed=fixed)

    def build(network_seed: int) -> nn.Module:
        return build_network(spec, data, seed=network_seed, embedding=embedding)

    return BuiltNetworks(spec, build, seed, compute.device, fixed=fixed)


def make_loop_step(
    step: Callable[[], None], state: Mapping[str, Tensor], sampler: NetworkSampler, compute: ComputeDevice
) -> Callable[[int], None]:
    """Return the step that `run_loop` calls with the number of the iteration, captured if possible.

    Args:
        step: Run the iteration that the clock shows.
        state: All tensors that the step changes, already restored from the checkpoint.
        sampler: The sampler of the step's networks. If it works on the host, the step cannot be captured.
        compute: Device and precision.
    """
    if not sampler.on_host:
        captured = capture_step(step, list(state.values()), compute)
        return lambda iteration: captured()

    def step_on_host(iteration: int) -> None:
        with sampler.user_code(iteration):
            sampler.prepare(iteration)
            step()

    return step_on_host


def make_forward(network: nn.Module, sampler: NetworkSampler, compute: ComputeDevice) -> tuple[Forward, torch.dtype]:
    """Return the network as a function of sampled parameters and images, and the dtype that both have.

    Users' networks may not support parameters in another precision, so they run in float32 under autocast.
    """
    if not sampler.on_host:
        return functional_forward(network, compute), compute.dtype
    return with_autocast(functional_forward(network, compute, compiling=False), compute), torch.float32
