"""The weight gradients of many classes from one pass through a network whose images do not affect each other.

Classes have losses of their own, so one backward pass gives every layer's output gradients for all of them; a class's
weight gradient then needs only its own rows of the layer's input and output gradient. Shapes: K classes of N images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight
from torch.overrides import TorchFunctionMode

from condenset import kernels

Forward = Callable[[dict[str, Tensor], Tensor], Tensor]


class _Call(NamedTuple):
    """A weight layer at work: what it was given and what came out."""

    gradients: Callable[[_Call, Tensor, int], list[Tensor]]
    options: dict[str, Any]
    given: Tensor
    weights: list[Tensor]
    out: Tensor


class _Record(TorchFunctionMode):
    """Notes every call of a function that has weights of 2 or more dimensions, whichever module makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _LAYERS:
            names, gradients = _LAYERS[func]
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            weights = [given[name] for name in ("weight", "bias") if given.get(name) is not None]
            self.calls.append(_Call(gradients, given, given["input"], [w for w in weights if w.dim() >= 2], out))
        return out


def class_gradients(
    forward: Forward,
    views: dict[str, Tensor],
    images_KNCHW: Tensor,
    classes_K: Tensor,
    share_KN: Tensor,
    *,
    create_graph: bool = False,
) -> dict[str, Tensor]:
    """By name, (K, rows, columns) float32: every weight's gradient of each class's loss; 1-D parameters are left out.

    share_KN: what an image counts in its class's loss; padding has 0, and then no effect and no gradient. The images or
    the weights in `views` must require gradients, or nothing would be kept to go back by.
    """
    with kernels.by_class(len(classes_K)) as copies, _Record() as record:
        logits = forward(views, images_KNCHW.flatten(0, 1))
    labels = classes_K[:, None].expand_as(share_KN).flatten()
    loss = (F.cross_entropy(logits.float(), labels, reduction="none") * share_KN.flatten()).sum()
    outs = [call.out for call in record.calls]
    slopes = torch.autograd.grad(loss, [*outs, *copies.values()], create_graph=create_graph)
    names = {id(view): name for name, view in views.items()}
    found = {names[key]: slope.flatten(2).float() for key, slope in zip(copies, slopes[len(outs) :], strict=True)}
    for call, slope in zip(record.calls, slopes[: len(outs)], strict=True):
        for weight, gradient in zip(call.weights, call.gradients(call, slope, len(classes_K)), strict=True):
            found[names[id(weight)]] = gradient.flatten(2).float()
    assert found.keys() == {name for name, view in views.items() if view.dim() >= 2}, "a weight of an unknown layer"
    return found


def _convolution(call: _Call, slope: Tensor, num_classes: int) -> list[Tensor]:
    """A class at a time: one convolution in groups would need the maps in another order."""
    shape, options = call.weights[0].shape, {key: call.options.get(key, value) for key, value in _CONVOLUTION.items()}
    parts = zip(call.given.chunk(num_classes), slope.chunk(num_classes), strict=True)
    return [torch.stack([conv2d_weight(given, shape, grads, **options) for given, grads in parts])]


def _linear(call: _Call, slope: Tensor, num_classes: int) -> list[Tensor]:
    given, slope = (rows.unflatten(0, (num_classes, -1)) for rows in (call.given, slope))
    return [slope.transpose(1, 2) @ given]


def _layer_norm(call: _Call, slope: Tensor, num_classes: int) -> list[Tensor]:
    """Over (C, H, W) its gain and bias have three dimensions, so they count as weights too."""
    normal = F.layer_norm(call.given, call.options["normalized_shape"], eps=call.options["eps"])
    return [rows.unflatten(0, (num_classes, -1)).sum(1) for rows in (slope * normal, slope)][: len(call.weights)]


_CONVOLUTION = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_LAYERS: dict[Any, tuple[tuple[str, ...], Callable[[_Call, Tensor, int], list[Tensor]]]] = {
    F.conv2d: (("input", "weight", "bias", *_CONVOLUTION), _convolution),
    F.linear: (("input", "weight", "bias"), _linear),
    F.layer_norm: (("input", "normalized_shape", "weight", "bias", "eps"), _layer_norm),
}
