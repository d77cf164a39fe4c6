"""Users' own objectives and network samplers: functions of this process that recipes record by name.

Shapes: K classes, B real and I synthetic images per class, F features.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.engine.user_code import run_user_code
from condenset.errors import check, wrap_errors
from condenset.methods.samplers import NetworkSampler

UserSampler = Callable[[int], nn.Module]  # iteration -> the network of this iteration

_functions: dict[tuple[str, str], Callable[..., Any]] = {}  # by field and name, for the rest of the process


def register_function(field: str, function: Callable[..., Any], reserved: Collection[str]) -> str:
    """Make a function available under its name, and return the name.

    Args:
        field: The field of the recipe: "objective" or "sampler".
        function: The function. A later one of the same name replaces it.
        reserved: Names that it must not have.
    """
    name = getattr(function, "__name__", "")
    has_name = bool(name) and name != "<lambda>"
    check(has_name, f"your own {field} must have a name: define it with `def`", name or type(function).__name__)
    check(name not in reserved, f"your own {field} must not have the name of a built-in one", name)
    _functions[field, name] = function
    return str(name)


def find_function(field: str, name: str) -> Callable[..., Any] | None:
    """Return the user's function of this name, or None."""
    return _functions.get((field, name))


def has_own_sampler(recipe: Any) -> bool:
    """Return whether the networks come from a user's own sampler. The network of the recipe is then not used."""
    return find_function("sampler", getattr(recipe, "sampler", "")) is not None


def explain_own_function(recipe: Any) -> str:
    """Return why other machines cannot condense by a recipe with a user's own function. Empty: it has none."""
    has_own = any(find_function(field, getattr(recipe, field, "")) for field in ("objective", "sampler"))
    return "workers do not have your own function" if has_own else ""


def wrap_objective(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return a user's objective with float32 features and a checked result."""

    def objective(
        real_KBF: Tensor,
        synthetic_KIF: Tensor,
        real_weight_KB: Tensor | None = None,
        synthetic_weight_KI: Tensor | None = None,
    ) -> Tensor:
        # An error while a graph is captured means that the step runs without it.
        capturing = real_KBF.is_cuda and torch.cuda.is_current_stream_capturing()
        with contextlib.nullcontext() if capturing else wrap_errors(f"objective {name!r}"):
            distance_K: Tensor = function(real_KBF.float(), synthetic_KIF.float(), real_weight_KB, synthetic_weight_KI)
        shape = tuple(distance_K.shape) if isinstance(distance_K, Tensor) else type(distance_K).__name__
        rule = f"objective {name!r} must return one distance per class, of shape ({len(real_KBF)},)"
        check(shape == (len(real_KBF),), rule, shape)
        is_learnable = distance_K.requires_grad or not synthetic_KIF.requires_grad
        check(is_learnable, f"objective {name!r} must depend on the synthetic features", "a result without gradient")
        return distance_K

    return objective


class UserNetworks(NetworkSampler):
    """Use the network that a user's function returns for every iteration. Networks may differ in their architecture.

    Args:
        name: The name of the function.
        function: Return the network of an iteration.
        features: The features to match, as in `networks.to_embedding`.
        seed: The seed of the run.
        device: The device.
    """

    on_host = True

    def __init__(self, name: str, function: UserSampler, features: str, seed: int, device: torch.device) -> None:
        self.name, self.function, self.features, self.seed, self.device = name, function, features, seed, device
        with self.user_code(0):
            self.prepare(0)

    def prepare(self, iteration: int) -> None:
        network = self.function(iteration)
        is_module = isinstance(network, nn.Module)
        check(is_module, f"sampler {self.name!r} must return an nn.Module", type(network).__name__)
        self.network = self._copy(network)
        self.embedding = networks.to_embedding(self._copy(network), self.features)

    def _copy(self, network: nn.Module) -> nn.Module:
        """Return a copy in evaluation mode, so that the user's network stays as it is."""
        network = networks.use_batch_statistics(copy.deepcopy(network)).eval()
        return network.requires_grad_(False).to(self.device)

    def user_code(self, iteration: int) -> AbstractContextManager[None]:
        return run_user_code(f"sampler {self.name!r}", self.device, self.seed, "user code", iteration)

    def sample_weights(self, clock: Tensor) -> Tensor:
        return torch.zeros(0, device=clock.device)

    def sample(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return {}

    def sample_classifier(self, clock: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        return {}

    def embed(self, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        """Return the features of images in the network of this iteration, which has its own parameters."""
        with wrap_errors(f"the network of sampler {self.name!r}"):
            features: Tensor = self.embedding(images)
        return features

    def classify(self, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        """Return the logits of images, for the calibration."""
        with wrap_errors(f"the network of sampler {self.name!r}"):
            logits: Tensor = self.network(images)
        return logits
