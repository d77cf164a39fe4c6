"""The layers of the built-in networks, by their names in specs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import kernels
from condenset.kernels.conv_norm_pool import MAX_CHANNELS, conv_norm_relu_pool, conv_norm_relu_pool_eval
from condenset.kernels.norm_pool import norm_relu_pool, norm_relu_pool_eval

MAX_MATRIX_WIDTH = 64  # for wider maps, the zeros of the pooling matrix cost more than the matrix product saves


class AveragePool(nn.AvgPool2d):
    """2x2 average pooling. On a CPU it is a matrix product, which is several times faster than nn.AvgPool2d."""

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C, H // 2, W // 2)."""
        height, width = maps.shape[-2:]
        unsuitable = height % 2 or width % 2 or width > MAX_MATRIX_WIDTH
        if unsuitable or maps.device.type != "cpu" or not maps.is_contiguous() or torch.compiler.is_compiling():
            return super().forward(maps)
        means = maps.view(-1, 2 * width) @ _pooling_matrix(width, maps.dtype)
        return means.view(*maps.shape[:-2], height // 2, width // 2)


@functools.cache
def _pooling_matrix(width: int, dtype: torch.dtype) -> Tensor:
    """Return the (2 * width, width // 2) matrix that maps two rows of a map to the means of their 2x2 squares."""
    with torch.inference_mode(False):  # gradients cannot pass through a matrix from inference mode
        square = torch.eye(width // 2, dtype=dtype, device="cpu") / 4
        return square.repeat_interleave(2, dim=0).repeat(2, 1)


# (channels, side of the map) -> module
NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "none": lambda channels, size: nn.Identity(),
    "batch": lambda channels, size: nn.BatchNorm2d(channels),
    "layer": lambda channels, size: nn.LayerNorm([channels, size, size]),
    "instance": lambda channels, size: nn.GroupNorm(channels, channels),
    "group": lambda channels, size: nn.GroupNorm(4, channels),
}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.01),
    "swish": nn.SiLU,
}
POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "max": lambda: nn.MaxPool2d(2),
    "average": lambda: AveragePool(2),
}


class Block(nn.Module):
    """Convolution, norm, activation and pooling.

    Attributes:
        conv_size: Side of the convolution's output.
        size: Side of the block's output.
        has_kernel: Whether a fused kernel exists for this combination of layers.
        fuses_convolution: Whether the fused kernel also computes the convolution, as it can for blocks with 1
            or 3 input channels.
        is_flattened: Whether the output is flattened next. The fused kernel then writes the layout for that.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        size: int,
        kernel: int = 3,
        padding: int | None = None,
        norm: str,
        activation: str = "relu",
        pooling: str = "none",
        is_flattened: bool = False,
    ) -> None:
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        size = size + 2 * padding - kernel + 1
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=padding)
        self.norm = NORMS[norm](out_channels, size)
        self.activation = ACTIVATIONS[activation]()
        self.pool = POOLINGS[pooling]()
        self.conv_size, self.is_flattened = size, is_flattened
        self.size = size if pooling == "none" else size // 2
        self.has_kernel = norm in ("instance", "batch") and (activation, pooling) == ("relu", "average")
        self.fuses_convolution = (
            kernel == 3 and in_channels in (1, 3) and out_channels <= MAX_CHANNELS and size % 2 == 0
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, self.size, self.size)."""
        if self.has_kernel and kernels.available_for_blocks(maps):
            if not self._uses_running_statistics():
                return self._forward_fused(maps)
            if not (torch.is_grad_enabled() and (maps.requires_grad or self.conv.weight.requires_grad)):
                return self._forward_fused_eval(maps)
        maps = self.pool(self.activation(self.norm(self.conv(maps))))
        return maps

    def _uses_running_statistics(self) -> bool:
        norm = self.norm
        return isinstance(norm, nn.BatchNorm2d) and not norm.training and norm.running_mean is not None

    def _forward_fused(self, maps: Tensor) -> Tensor:
        """Compute the block with kernels. The bias of the convolution has no effect before a norm."""
        conv, norm = self.conv, self.norm
        assert isinstance(norm, nn.GroupNorm | nn.BatchNorm2d)
        batch_norm = isinstance(norm, nn.BatchNorm2d)
        if self.fuses_convolution:
            weight, padding = kernels.copy_filters_per_class(conv.weight), int(conv.padding[0])
            out, means, rstds = conv_norm_relu_pool(
                maps, weight, norm.weight, norm.bias, padding, batch_norm=batch_norm
            )
        else:
            maps = maps.contiguous(memory_format=torch.channels_last)
            maps = F.conv2d(maps, conv.weight, padding=conv.padding)
            layout = torch.contiguous_format if self.is_flattened else torch.channels_last
            out, means, rstds = norm_relu_pool(maps, norm.weight, norm.bias, batch_norm=batch_norm, layout=layout)
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            _update_running_statistics(norm, means[0], rstds[0], conv.bias, len(maps) * self.conv_size**2)
        return out

    def _forward_fused_eval(self, maps: Tensor) -> Tensor:
        """Compute the block with kernels and the running statistics of batch norm."""
        conv, norm = self.conv, self.norm
        assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
        assert conv.bias is not None
        mean, rstd = norm.running_mean - conv.bias.float(), (norm.running_var + norm.eps).rsqrt()
        if self.fuses_convolution:
            padding = int(conv.padding[0])
            return conv_norm_relu_pool_eval(maps, conv.weight, norm.weight, norm.bias, padding, mean, rstd)
        maps = F.conv2d(maps.contiguous(memory_format=torch.channels_last), conv.weight, padding=conv.padding)
        return norm_relu_pool_eval(maps, norm.weight, norm.bias, mean, rstd)


@torch.no_grad()
def _update_running_statistics(norm: nn.BatchNorm2d, mean: Tensor, rstd: Tensor, bias: Tensor | None, num: int) -> None:
    """Update the running statistics with those of a batch of `num` values per channel, as PyTorch does."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    assert bias is not None
    variance = (rstd.square().reciprocal() - norm.eps).clamp(min=0) * (num / max(num - 1, 1))
    norm.running_mean.lerp_(mean + bias.float(), norm.momentum)
    norm.running_var.lerp_(variance, norm.momentum)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked += 1
