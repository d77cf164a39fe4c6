"""Kernels of images for a regression, and gradients through them with bounded memory.

Both classes compute the kernels of a step first, without a graph. The gradient computes them again, part by part.
Shapes: B real images, N synthetic images, F features.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.engine.device import ComputeDevice
from condenset.methods.regression.neural_kernels import compute_in_chunks, differentiate_in_chunks, neural_kernel
from condenset.methods.samplers import NetworkSampler, NoNetworks, build_on_meta, make_forward, sample_new_networks
from condenset.runs.context import RunContext

CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**31}  # of the graph of a chunk, by device
TENSORS_PER_LAYER = 12  # that the graph of a layer stores, measured
NUM_NETWORKS = 8  # per step, whose features approximate the kernel


class KernelPair(NamedTuple):
    """The kernel of real and synthetic images, and that of synthetic images; or the gradients by both."""

    real_BN: Tensor
    synthetic_NN: Tensor


class ImageKernel(ABC):
    """A kernel that may change from step to step.

    Attributes:
        networks: The sampler of the networks that define the kernel of a step.
    """

    networks: NetworkSampler

    @abstractmethod
    def compute(self, clock: Tensor, real_BCHW: Tensor, images_NCHW: Tensor) -> KernelPair:
        """Return the kernels of a step, without a graph."""

    @abstractmethod
    def differentiate(self, clock: Tensor, real_BCHW: Tensor, images_NCHW: Tensor, gradients: KernelPair) -> Tensor:
        """Return the gradient by the synthetic images, given the gradients by the kernels."""


class InfiniteKernel(ImageKernel):
    """The kernel of an infinitely wide network, in chunks of rows.

    Args:
        kernel, layers, depth: As in `neural_kernel`.
        run: The run.
        rows_per_chunk: Rows that are computed at once.
    """

    def __init__(self, kernel: str, layers: str, depth: int, run: RunContext, rows_per_chunk: int) -> None:
        self.run, self.rows_per_chunk, self.networks = run, rows_per_chunk, NoNetworks()
        self.kernel = functools.partial(neural_kernel, kernel=kernel, layers=layers, depth=depth)

    def compute(self, clock: Tensor, real_BCHW: Tensor, images_NCHW: Tensor) -> KernelPair:
        real_BN, synthetic_NN = (
            compute_in_chunks(self.kernel, first, images_NCHW, self.rows_per_chunk)
            for first in (real_BCHW, images_NCHW)
        )
        return KernelPair(real_BN, synthetic_NN)

    def differentiate(self, clock: Tensor, real_BCHW: Tensor, images_NCHW: Tensor, gradients: KernelPair) -> Tensor:
        rows = self.rows_per_chunk
        share = rows / (len(real_BCHW) + len(images_NCHW) + 2 * rows)
        total = torch.zeros_like(images_NCHW)
        # The second kernel is symmetric, so its gradients by the first and by the second images are equal.
        both_NN = gradients.synthetic_NN + gradients.synthetic_NN.mT
        for first, by_kernel in ((real_BCHW, gradients.real_BN), (images_NCHW, both_NN)):
            total += differentiate_in_chunks(
                self.kernel, first, images_NCHW, by_kernel, rows, lambda: self.run.check_stop(share)
            )
        return total


def choose_rows_per_chunk(
    compute: ComputeDevice, memory_limit: int | None, *, num_images: int, num_positions: int, depth: int
) -> int:
    """Return the rows of the kernel of an infinitely wide network whose graph fits the memory."""
    row_bytes = 4 * num_images * num_positions * TENSORS_PER_LAYER * (depth + 1)
    limit = CHUNK_BYTES.get(compute.device.type, CHUNK_BYTES["cpu"])
    return max(1, min(limit, memory_limit or limit) // row_bytes)


class RandomFeatureKernel(ImageKernel):
    """The kernel of the embeddings of a few random networks, which are new in every step, one network at a time.

    Its expectation is the kernel of the Gaussian process of a network with norms and pooling (Loo et al., 2022).
    """

    def __init__(self, network: str, data: ImageData, run: RunContext) -> None:
        self.run = run
        self.networks = sample_new_networks(network, data, run.seed, run.compute, embedding=True)
        self.num_networks = 1 if self.networks.on_host else NUM_NETWORKS  # a user's network is built once per step
        embedding = build_on_meta(network, data, embedding=True)
        self.forward, self.dtype = make_forward(embedding, self.networks, run.compute)

    def compute(self, clock: Tensor, real_BCHW: Tensor, images_NCHW: Tensor) -> KernelPair:
        pairs = []
        with torch.no_grad():
            for parameters in self._sample(clock):
                real_BF, images_NF = (self._embed(parameters, images) for images in (real_BCHW, images_NCHW))
                scale = self.num_networks * real_BF.shape[1]
                pairs.append(KernelPair(real_BF @ images_NF.mT / scale, images_NF @ images_NF.mT / scale))
                self.run.check_stop(1 / (3 * self.num_networks))
        real_BN, synthetic_NN = (torch.stack(parts).sum(0) for parts in zip(*pairs, strict=True))
        return KernelPair(real_BN, synthetic_NN)

    def differentiate(self, clock: Tensor, real_BCHW: Tensor, images_NCHW: Tensor, gradients: KernelPair) -> Tensor:
        total = torch.zeros_like(images_NCHW)
        both_NN = gradients.synthetic_NN + gradients.synthetic_NN.mT
        for parameters in self._sample(clock):
            with torch.no_grad():
                real_BF = self._embed(parameters, real_BCHW)
            leaf = images_NCHW.detach().requires_grad_()
            images_NF = self._embed(parameters, leaf)
            by_features_NF = gradients.real_BN.mT @ real_BF + both_NN @ images_NF.detach()
            scale = self.num_networks * real_BF.shape[1]
            total += torch.autograd.grad(images_NF, leaf, by_features_NF / scale)[0]
            self.run.check_stop(1 / (3 * self.num_networks))
        return total

    def _sample(self, clock: Tensor) -> Iterator[dict[str, Tensor]]:
        """Yield the parameters of the networks of a step."""
        for number in range(self.num_networks):
            yield self.networks.sample(clock * self.num_networks + number, self.dtype)

    def _embed(self, parameters: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
        """Return (N, F) features in float32."""
        return self.forward(parameters, images_NCHW.to(self.dtype)).float()
