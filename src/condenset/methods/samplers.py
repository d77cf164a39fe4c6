"""Network samplers: draw the network of each iteration.

Shapes: P parameters of a network, S states of E networks with T parameters each, including those of the classifier.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.engine.compile import Forward, functional_forward, with_autocast
from condenset.engine.device import ComputeDevice
from condenset.engine.user_code import run_user_code
from condenset.networks import FlatParameters

if TYPE_CHECKING:
    from condenset.methods.matching.sets import SyntheticSets


class NetworkSampler(ABC):
    """Sample the parameters of one network per iteration.

    Attributes:
        parameters: The layout of the parameters.
        on_host: Whether `prepare` must run on the host before every step, which then cannot be captured.
    """

    parameters: FlatParameters
    on_host = False

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors that `train` changes."""
        return {}

    def prepare(self, iteration: int) -> None:  # noqa: B027
        """Do the work of an iteration that cannot run on the device."""

    def user_code(self, iteration: int) -> AbstractContextManager[None]:
        """Run the code of a user's network in this iteration. Built-in networks need no protection."""
        return contextlib.nullcontext()

    def fixed_tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the buffers and frozen parameters of a user's network of this iteration, by name."""
        return {}

    @abstractmethod
    def sample_weights(self, clock: Tensor) -> Tensor:
        """Return the (P,) parameters of the network for the iteration that the clock shows."""

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the same parameters by name, in the dtype to compute with."""
        return self.unflatten(self.sample_weights(clock), dtype)

    def sample_classifier(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the parameters of a trained network with its classifier, which calibrates the images."""
        raise NotImplementedError

    def train(self, clock: Tensor, sets: SyntheticSets) -> None:  # noqa: B027
        """Train the networks on the synthetic images, if the sampler does so, at the end of an iteration."""

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
    """Sample a newly initialised network in every iteration, as Algorithm 1 does."""

    def __init__(self, network: nn.Module, seed: int, device: torch.device, *, xavier: bool = False) -> None:
        self.parameters = FlatParameters(network, device, xavier=xavier)
        self.key = rng.make_key(seed, "network", device=device)

    def sample_weights(self, clock: Tensor) -> Tensor:
        return self.parameters.initialize(rng.flat_uniform(self.key, clock, self.parameters.num))


class TrainedNetworks(NetworkSampler):
    """Sample networks that were trained on the real images, in some state of their training.

    Args:
        network: The network, with its classifier if the images are calibrated.
        weights_EST: S states of E networks with T parameters, in the order of their training. The last is trained.
        seed: The seed of the run.
        kind: "final": the trained state. "checkpoints": any state. "interpolated": between the first state, the
            initial one, and the last.
        lookahead: The calibration uses the state this number of states later, at most. None: the trained state.
    """

    def __init__(
        self, network: nn.Module, weights_EST: Tensor, seed: int, kind: str, *, lookahead: int | None = None
    ) -> None:
        self.weights_EST, self.kind, self.lookahead = weights_EST, kind, lookahead
        self.last_state, device = weights_EST.shape[1] - 1, weights_EST.device
        self.parameters = FlatParameters(network, device)
        self.network_key, self.state_key = (rng.make_key(seed, use, device=device) for use in ("network", "state"))

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return remove_classifier(self.unflatten(self.sample_weights(clock), dtype))

    def sample_weights(self, clock: Tensor) -> Tensor:
        if self.kind == "interpolated":
            fraction = rng.flat_uniform(self.state_key, clock, 1)[0]
            return torch.lerp(self._read(clock, self.last_state).float(), self._read(clock, 0).float(), fraction)
        return self._read(clock, self._sample_state(clock))

    def sample_classifier(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        state: int | Tensor = self.last_state
        if self.lookahead is not None:
            later = (rng.flat_uniform(self.state_key, clock, 2)[1] * (self.lookahead + 1)).long()
            state = (self._sample_state(clock) + later).clamp(max=self.last_state)
        return self.unflatten(self._read(clock, state), dtype)

    def _sample_state(self, clock: Tensor) -> int | Tensor:
        """Return the index of the state of this iteration."""
        if self.kind == "final":
            return self.last_state
        num_states = self.last_state + 1
        return (rng.flat_uniform(self.state_key, clock, 1)[0] * num_states).long().clamp(max=self.last_state)

    def _read(self, clock: Tensor, state: int | Tensor) -> Tensor:
        """Return the (T,) weights of a state of the network of this iteration."""
        num_networks, num_states, _ = self.weights_EST.shape
        row = rng.random_index(self.network_key, clock, num_networks) * num_states + state
        return self.weights_EST.flatten(0, 1).index_select(0, row)[0]


def remove_classifier(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of a built-in network without those of its classifier."""
    return {name: value for name, value in parameters.items() if not name.startswith("classifier.")}


class BuiltNetworks(NetworkSampler):
    """Build a new network on the host before every step, for users' networks, which initialise themselves.

    Args:
        spec: The network.
        build: Build the network, given the seed of its initialisation.
        seed: The seed of the run.
        device: The device of the parameters.
    """

    on_host = True

    def __init__(self, spec: str, build: Callable[[int], nn.Module], seed: int, device: torch.device) -> None:
        self.spec, self.build, self.seed = spec, build, seed
        self.network = build(0)
        self.parameters = FlatParameters(self.network, device, as_built=True)
        self.weights_P = torch.zeros(self.parameters.num, device=device)

    def prepare(self, iteration: int) -> None:
        self.network = self.build(int(rng.make_key(self.seed, "network", iteration)[0]))
        self.weights_P.copy_(networks.flatten_parameters(self.network))

    def user_code(self, iteration: int) -> AbstractContextManager[None]:
        return run_user_code(f"network {self.spec!r}", self.weights_P.device, self.seed, "user code", iteration)

    def sample_weights(self, clock: Tensor) -> Tensor:
        return self.weights_P

    def fixed_tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return networks.fixed_tensors(self.network, self.weights_P.device, dtype)


def build_network(
    spec: str, data: ImageData, *, seed: int = 0, embedding: bool = False, features: str = "last"
) -> nn.Module:
    """Build a network for the images of a dataset, in evaluation mode.

    Batch norm uses the statistics of its batch. Dropout is off: a method that computes a pass twice, or in chunks, must
    get the same result.

    Args:
        spec: The network.
        data: The dataset.
        seed: Seed of the initialisation.
        embedding: Remove the classifier, so that the network returns its embedding.
        features: The features of the embedding, as in `networks.to_embedding`.
    """
    num_classes = len(data.all_class_names)
    network = networks.build(spec, channels=data.channels, size=data.size, num_classes=num_classes, seed=seed)
    network = networks.use_batch_statistics(network).eval()
    return networks.to_embedding(network, features) if embedding else network


def build_on_meta(spec: str, data: ImageData, *, embedding: bool = False, features: str = "last") -> nn.Module:
    """Build a network without values: its parameters are sampled in every iteration."""
    with torch.device("meta"):
        return build_network(spec, data, embedding=embedding, features=features)


def sample_new_networks(
    spec: str, data: ImageData, seed: int, compute: ComputeDevice, *, embedding: bool = False, xavier: bool = False
) -> NetworkSampler:
    """Return a sampler of newly initialised networks.

    Args:
        spec: The network.
        data: The dataset, which determines image size and classes.
        seed: The seed of the run.
        compute: The device.
        embedding: Remove the classifier.
        xavier: Initialise networks without norms by Xavier's rule. A user's network initialises itself.
    """
    if networks.has_default_init(spec):
        network = build_on_meta(spec, data, embedding=embedding)
        return RandomNetworks(network, seed, compute.device, xavier=xavier)

    def build(network_seed: int) -> nn.Module:
        return build_network(spec, data, seed=network_seed, embedding=embedding)

    return BuiltNetworks(spec, build, seed, compute.device)


def make_forward(network: nn.Module, sampler: NetworkSampler, compute: ComputeDevice) -> tuple[Forward, torch.dtype]:
    """Return the network as a function of sampled parameters and images, and the dtype that both have."""
    if not sampler.on_host:
        return functional_forward(network, compute), compute.dtype
    # Users' networks may not support parameters in another precision, so they run in float32 under autocast.
    return with_autocast(functional_forward(network, compute, compiling=False), compute), torch.float32
