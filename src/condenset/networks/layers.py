"""The parts that networks are made of, by the names that specs use."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import kernels
from condenset.kernels.first_block import MAX_WIDTH, first_block, first_block_known
from condenset.kernels.norm_pool import norm_relu_pool, norm_relu_pool_known

WIDEST = 64  # from there on the zeros of the matrix cost more than it wins


class AveragePool(nn.AvgPool2d):
    """2x2 average pooling; on a CPU a matrix product, which is several times as fast there, backward even more."""

    def forward(self, maps: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C, H // 2, W // 2)."""
        height, width = maps.shape[-2:]
        odd = height % 2 or width % 2 or width > WIDEST
        if odd or maps.device.type != "cpu" or not maps.is_contiguous() or torch.compiler.is_compiling():
            return super().forward(maps)
        means = maps.view(-1, 2 * width) @ _pairs(width, maps.dtype)
        return means.view(*maps.shape[:-2], height // 2, width // 2)


@functools.cache
def _pairs(width: int, dtype: torch.dtype) -> Tensor:
    """(2 * width, width // 2): two rows of a map, one after the other, to the means of their 2x2 squares."""
    with torch.inference_mode(False):  # it may be asked for in there first, and then be needed with gradients
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
    """Convolution, norm, activation, pooling; takes a map of side `size`, gives one of side `self.size`."""

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
    ) -> None:
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        size = size + 2 * padding - kernel + 1
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=padding)
        self.norm = NORMS[norm](out_channels, size)
        self.activation = ACTIVATIONS[activation]()
        self.pool = POOLINGS[pooling]()
        self.side = size  # of the convolution's map
        self.size = size if pooling == "none" else size // 2
        self.has_kernel = norm in ("instance", "batch") and (activation, pooling) == ("relu", "average")
        self.is_first = kernel == 3 and in_channels in (1, 3) and out_channels <= MAX_WIDTH and size % 2 == 0

    def forward(self, maps: Tensor) -> Tensor:
        """(N, in_channels, H, W) -> (N, out_channels, self.size, self.size)."""
        if self.has_kernel and kernels.available_for_blocks(maps):
            if self._uses_running_statistics():
                if not (torch.is_grad_enabled() and (maps.requires_grad or self.conv.weight.requires_grad)):
                    return self.fused_known(maps)
            else:
                return self.fused(maps)
        maps = self.pool(self.activation(self.norm(self.conv(maps))))
        return maps

    def _uses_running_statistics(self) -> bool:
        norm = self.norm
        return isinstance(norm, nn.BatchNorm2d) and not norm.training and norm.running_mean is not None

    def fused(self, maps: Tensor) -> Tensor:
        """The same by hand-written kernels; the convolution's bias has no effect before a norm."""
        conv, norm = self.conv, self.norm
        assert isinstance(norm, nn.GroupNorm | nn.BatchNorm2d)
        batch = isinstance(norm, nn.BatchNorm2d)
        if self.is_first:
            weight = kernels.copies_by_class(conv.weight)
            out, means, rstds = first_block(maps, weight, norm.weight, norm.bias, int(conv.padding[0]), batch=batch)
        else:
            maps = maps.contiguous(memory_format=torch.channels_last)
            maps = F.conv2d(maps, conv.weight, padding=conv.padding)
            out, means, rstds = norm_relu_pool(maps, norm.weight, norm.bias, batch=batch)
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            _follow(norm, means[0], rstds[0], conv.bias, len(maps) * self.side**2)
        return out

    def fused_known(self, maps: Tensor) -> Tensor:
        """Batch norm with the statistics it has kept, by hand-written kernels."""
        conv, norm = self.conv, self.norm
        assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
        assert conv.bias is not None
        mean, rstd = norm.running_mean - conv.bias.float(), (norm.running_var + norm.eps).rsqrt()
        if self.is_first:
            return first_block_known(maps, conv.weight, norm.weight, norm.bias, int(conv.padding[0]), mean, rstd)
        maps = F.conv2d(maps.contiguous(memory_format=torch.channels_last), conv.weight, padding=conv.padding)
        return norm_relu_pool_known(maps, norm.weight, norm.bias, mean, rstd)


@torch.no_grad()
def _follow(norm: nn.BatchNorm2d, mean: Tensor, rstd: Tensor, bias: Tensor | None, num: int) -> None:
    """Let batch norm's running statistics follow a batch of `num` values a channel, as PyTorch does."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    assert bias is not None
    variance = (rstd.square().reciprocal() - norm.eps).clamp(min=0) * (num / max(num - 1, 1))
    norm.running_mean.lerp_(mean + bias.float(), norm.momentum)
    norm.running_var.lerp_(variance, norm.momentum)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked += 1
