"""A network as a function of a flat vector of weights."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.engine import ComputeDevice, rng
from condenset.engine.compile import build_functional, functional_forward, with_autocast
from condenset.engine.user_code import run_user_code
from condenset.training.dataset import DeviceDataset

TEST_BATCH = 1000  # of images of at most 64 pixels


def max_test_batch(image_size: int) -> int:
    """Return how many images to test at once: fewer of a larger size, which bounds the memory."""
    return max(1, TEST_BATCH * 64**2 // max(image_size, 64) ** 2)


class Model:
    """The networks of one architecture, for the images of one dataset.

    Networks of users (those without a default initialisation) may contain any code. `initialize` builds a new module
    for each of them. They run under autocast and seeded global generators, and are neither compiled nor captured.

    Args:
        spec: The network.
        data: The dataset, which determines image size and classes.
        compute: The device and precision.
        batch_sizes: The batch sizes of the training steps. Models with equal batch sizes share compiled code.
        xavier: Initialise networks without norms by Xavier's rule.
        compiling: Whether to compile the network, which takes 10 to 20 seconds on a GPU.
    """

    def __init__(
        self,
        spec: str,
        data: DeviceDataset,
        compute: ComputeDevice,
        *,
        batch_sizes: frozenset[int],
        xavier: bool = False,
        compiling: bool = True,
    ) -> None:
        self.spec, self.compute = spec, compute
        self.has_default_init = networks.has_default_init(spec)
        self._shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
        self.dtype = compute.dtype if self.has_default_init else torch.float32
        self.network: nn.Module
        if self.has_default_init:
            shape = (data.channels, data.size, data.num_classes)
            self.network, self.forward = build_functional(
                spec, *shape, compute, batch_sizes=batch_sizes, compiling=compiling
            )
            self.eval_forward = functional_forward(self.network, compute, compiling=False)
            self.network.train()
        else:
            self._build_user_network(seed=0)
        # Models share compiled modules, so each needs its own buffers. The module of a user's network is not shared.
        as_built = not self.has_default_init
        buffers = {} if as_built else dict(self.network.named_buffers())
        self._initial_buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        self._own_buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        self.parameters = networks.FlatParameters(self.network, compute.device, xavier=xavier, as_built=as_built)

    def _build_user_network(self, seed: int) -> None:
        self.network = networks.build(self.spec, **self._shape, seed=seed).to(self.compute.device)
        self.network.train()
        self.forward = with_autocast(functional_forward(self.network, self.compute, compiling=False), self.compute)
        self.eval_forward = self.forward

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The current buffers, such as the running statistics of batch norm."""
        return self._own_buffers if self.has_default_init else dict(self.network.named_buffers())

    def reset_buffers(self) -> None:
        """Set the buffers to their initial values. Those of a user's network belong to its new module."""
        for name, buffer in self._own_buffers.items():
            buffer.copy_(self._initial_buffers[name])

    def initialize(self, seed: int, *tags: str | int) -> Tensor:
        """Return the weights of a new network."""
        if not self.has_default_init:
            self._build_user_network(int(rng.make_key(seed, *tags, "builder")[0]))
            return networks.flatten_parameters(self.network)
        key = rng.make_key(seed, *tags, "network", device=self.compute.device)
        return self.parameters.initialize(rng.flat_uniform(key, 0, self.parameters.num))

    def logits(self, weights_P: Tensor, images_NCHW: Tensor) -> Tensor:
        """Return the logits of normalised images in training mode, which may change the buffers."""
        weights = self.parameters.cast(weights_P, self.dtype)
        return self.forward(weights | self._own_buffers, images_NCHW.to(self.dtype))

    @torch.no_grad()
    def predict(
        self, weights_P: Tensor, test_set: DeviceDataset, after_batch: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Return the predicted class of each test image, (N,) int64 on the device."""
        weights = self.parameters.unflatten(weights_P, self.dtype) | self._own_buffers
        batch_size = max_test_batch(test_set.size)
        predictions = torch.empty(len(test_set), dtype=torch.int64, device=self.compute.device)
        self.network.eval()
        try:
            for first in range(0, len(test_set), batch_size):
                part = slice(first, first + batch_size)
                with self.user_code(0, "accuracy", first):
                    logits = self.eval_forward(weights, test_set.images(part).to(self.dtype))
                predictions[part] = logits.argmax(1)
                after_batch()
        finally:
            self.network.train()
        return predictions

    @torch.no_grad()
    def export(self, weights_P: Tensor) -> nn.Module:
        """Return a copy of the network with these weights, in float32 and evaluation mode."""
        network = copy.deepcopy(self.network)
        weights = self.parameters.unflatten(weights_P, torch.float32)
        for name, parameter in network.named_parameters():
            if name in weights:  # a user's network may have frozen parameters
                parameter.copy_(weights[name])
        for name, buffer in network.named_buffers():
            buffer.copy_(self.buffers[name])
        return network.eval()

    def user_code(self, seed: int, *tags: str | int) -> AbstractContextManager[None]:
        """Run the code of a user's network. Built-in networks need no protection."""
        if self.has_default_init:
            return contextlib.nullcontext()
        return run_user_code(f"network {self.spec!r}", self.compute.device, seed, *tags)
