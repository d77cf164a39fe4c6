"""Kernels of infinitely wide ReLU networks: the neural tangent kernel (NTK) and the Gaussian process kernel (NNGP).

A convolutional network has 3x3 convolutions with zero padding, and a linear layer on the flattened map. It has no
pooling, so a pair of images needs one number per position, and not one per pair of positions. A fully connected network
is the special case of one position. Weights have the variance 2 / inputs, and there are no biases.
Shapes: M and N images, H x W positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

KERNELS = ("ntk", "nngp")
LAYERS = ("conv", "fc")
MAX_COSINE = 1 - 1e-6  # the derivative of the angle is infinite at 1
MIN_VARIANCE = 1e-12

Kernel = Callable[[Tensor, Tensor], Tensor]  # (images of M, images of N) -> (M, N)


def neural_kernel(x_MCHW: Tensor, y_NCHW: Tensor, *, kernel: str, layers: str, depth: int) -> Tensor:
    """Return the (M, N) kernel of all pairs of images.

    Args:
        x_MCHW, y_NCHW: The images.
        kernel: "ntk" or "nngp".
        layers: "conv" or "fc": convolutions or fully connected layers.
        depth: Number of hidden layers.
    """
    if layers == "fc":
        x_MCHW, y_NCHW = (images.flatten(1)[:, :, None, None] for images in (x_MCHW, y_NCHW))
    mix = _average_patches if layers == "conv" else _identity
    covariance_MNHW = mix(torch.einsum("mchw,nchw->mnhw", x_MCHW, y_NCHW) / x_MCHW.shape[1])
    x_MHW, y_NHW = (mix(images.square().mean(1)) for images in (x_MCHW, y_NCHW))
    tangent_MNHW = covariance_MNHW
    for layer in range(depth):
        scale_MNHW = (x_MHW[:, None] * y_NHW).clamp(min=MIN_VARIANCE).sqrt()
        activation, derivative = _relu_expectations(covariance_MNHW / scale_MNHW)
        covariance_MNHW, inner = scale_MNHW * activation, derivative * tangent_MNHW
        if layer < depth - 1:  # the last layer is linear
            covariance_MNHW, inner, x_MHW, y_NHW = (mix(part) for part in (covariance_MNHW, inner, x_MHW, y_NHW))
        tangent_MNHW = covariance_MNHW + inner
    return (tangent_MNHW if kernel == "ntk" else covariance_MNHW).mean((2, 3))


def _relu_expectations(cosine: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2 E[relu(u) relu(v)] and 2 E[relu'(u) relu'(v)] of standard normal u and v with this correlation.

    With the angle θ = arccos(correlation), they are (sin θ + (π − θ) cos θ) / π and 1 − θ / π (Cho and Saul, 2009).
    """
    angle = torch.acos(cosine.clamp(-MAX_COSINE, MAX_COSINE))
    # Of an image and itself, the angle is 0. That of the bound would lower the diagonal by about the ridge.
    angle = angle.masked_fill(cosine >= MAX_COSINE, 0)
    derivative = 1 - angle / math.pi
    return angle.sin() / math.pi + derivative * angle.cos(), derivative


def _average_patches(maps: Tensor) -> Tensor:
    """Return the mean of every 3x3 patch; beyond the border there are zeros."""
    return F.avg_pool2d(maps, 3, stride=1, padding=1)


def _identity(maps: Tensor) -> Tensor:
    return maps


def compute_in_chunks(kernel: Kernel, x_MCHW: Tensor, y_NCHW: Tensor, rows_per_chunk: int) -> Tensor:
    """Return the (M, N) kernel, computed for some rows at once, without a graph."""
    with torch.no_grad():
        return torch.cat([kernel(rows, y_NCHW) for rows in x_MCHW.split(rows_per_chunk)])


def differentiate_in_chunks(
    kernel: Kernel,
    x_MCHW: Tensor,
    y_NCHW: Tensor,
    by_kernel_MN: Tensor,
    rows_per_chunk: int,
    after_chunk: Callable[[], None] = lambda: None,
) -> Tensor:
    """Return the gradient by the second images of a function whose gradient by the kernel is given.

    The kernel of each chunk is computed again, so that the memory does not grow with the number of rows.

    Args:
        kernel: The kernel.
        x_MCHW: The first images, which have no gradient.
        y_NCHW: The second images.
        by_kernel_MN: The gradient by the kernel.
        rows_per_chunk: Rows of the kernel that are computed at once.
        after_chunk: Called after every chunk.
    """
    total = torch.zeros_like(y_NCHW)
    chunks = zip(x_MCHW.split(rows_per_chunk), by_kernel_MN.split(rows_per_chunk), strict=True)
    for rows, by_rows in chunks:
        leaf = y_NCHW.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(kernel(rows, leaf), leaf, by_rows)
        total += gradient
        after_chunk()
    return total
