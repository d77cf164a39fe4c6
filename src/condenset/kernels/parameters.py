"""Cast the parameters of a network and put its filters into channels-last layout in one launch instead of three.

In the backward pass, two launches assemble the gradient instead of one per parameter.
Shapes: P parameters.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels.runtime import jit, launch, tl, triton

BLOCK_SIZE = 1024


@jit
def _reorder(values, order, out, num, INVERSE: tl.constexpr, BLOCK: tl.constexpr):
    """Write out[i] = values[order[i]], or with INVERSE out[order[i]] = values[i], cast to the dtype of `out`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num
    other = tl.load(order + i, mask=inside, other=0)
    source, target = (i, other) if INVERSE else (other, i)
    tl.store(out + target, tl.load(values + source, mask=inside, other=0.0).to(out.dtype.element_ty), mask=inside)


def _launch_reorder(values_P: Tensor, order_P: Tensor, dtype: torch.dtype, *, inverse: bool) -> Tensor:
    out = torch.empty_like(values_P, dtype=dtype)
    num = len(values_P)
    launch(_reorder, (triton.cdiv(num, BLOCK_SIZE),), values_P, order_P, out, num, INVERSE=inverse, BLOCK=BLOCK_SIZE)
    return out


class ChannelsLastLayout:
    """Where the parameters of a network are in a vector whose filters are in channels-last layout.

    Args:
        shapes: The shapes of the parameters, in the order of the vector.
        are_filters: Whether each parameter is to be in channels-last layout.
        device: The device of the vector.
        dtype: The dtype of the vector.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], are_filters: Sequence[bool], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.shapes, self.are_filters, self.dtype = shapes, are_filters, dtype
        self.sizes = [shape.numel() for shape in shapes]
        positions = torch.arange(sum(self.sizes), dtype=torch.int32, device="cpu").split(self.sizes)
        self.order_P = self.concatenate([part.view(shape) for part, shape in zip(positions, shapes, strict=True)])
        self.order_P = self.order_P.to(device)
        self._zeros = torch.zeros(max(self.sizes), device=device, dtype=dtype)

    def cast(self, weights_P: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters of a vector in PyTorch's layout, with gradients."""
        parameters: tuple[Tensor, ...] = _Cast.apply(weights_P, self)
        return parameters

    def split(self, values_P: Tensor) -> tuple[Tensor, ...]:
        """Return the parameters as views of a vector in this layout."""
        return tuple(
            part.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2) if is_filter else part.view(shape)
            for part, shape, is_filter in zip(values_P.split(self.sizes), self.shapes, self.are_filters, strict=True)
        )

    def concatenate(self, parameters: Sequence[Tensor | None]) -> Tensor:
        """Return the vector in this layout, with zeros for each parameter that is None."""
        parts: list[Tensor] = []
        for parameter, size, is_filter in zip(parameters, self.sizes, self.are_filters, strict=True):
            if parameter is None:
                parts.append(self._zeros[:size])
            else:
                parts.append((parameter.permute(0, 2, 3, 1) if is_filter else parameter).reshape(-1))
        return torch.cat(parts)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights_P: Tensor, layout: ChannelsLastLayout) -> tuple[Tensor, ...]:
        ctx.layout, ctx.dtype = layout, weights_P.dtype
        ctx.set_materialize_grads(False)  # no zeros for unused parameters
        return layout.split(_launch_reorder(weights_P, layout.order_P, layout.dtype, inverse=False))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None]:
        gradient_P = ctx.layout.concatenate(grads)
        return _launch_reorder(gradient_P, ctx.layout.order_P, ctx.dtype, inverse=True), None
