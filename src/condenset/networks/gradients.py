"""Weight gradients of many classes from one pass through a network whose images do not affect each other.

Every class has its own loss, so one backward pass gives the output gradients of every layer for all classes. The weight
gradient of a class then needs only the rows of that class in the layer's input and output gradient.
Shapes: K classes of N images.
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
"""A network as a function of its parameters and buffers by name, and of images."""


class _LayerCall(NamedTuple):
    """A call of a layer with weights."""

    compute_gradients: Callable[[_LayerCall, Tensor, int], list[Tensor]]
    arguments: dict[str, Any]
    input: Tensor
    weights: list[Tensor]
    output: Tensor


class _CallRecorder(TorchFunctionMode):
    """Record every call of a layer function, with those of its weights that have 2 or more dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_LayerCall] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in _LAYER_FUNCTIONS:
            names, compute_gradients = _LAYER_FUNCTIONS[func]
            arguments = dict(zip(names, args, strict=False)) | (kwargs or {})
            weights = [arguments[name] for name in ("weight", "bias") if arguments.get(name) is not None]
            weights = [weight for weight in weights if weight.dim() >= 2]
            self.calls.append(_LayerCall(compute_gradients, arguments, arguments["input"], weights, output))
        return output


def class_gradients(
    forward: Forward,
    parameters: dict[str, Tensor],
    images_KNCHW: Tensor,
    classes_K: Tensor,
    image_weight_KN: Tensor,
    *,
    create_graph: bool = False,
) -> dict[str, Tensor]:
    """Return the gradient of the loss of each class with respect to every weight.

    Args:
        forward: The network as a function of its parameters and images.
        parameters: The parameters by name. These or the images must require gradients.
        images_KNCHW: The images of each class.
        classes_K: The labels of the classes.
        image_weight_KN: The weight of each image in the loss of its class; 0 for padding, which then has no effect.
        create_graph: Whether the result can be differentiated.

    Returns:
        Float32 gradients (K, rows, columns) by name. One-dimensional parameters are left out.
    """
    num_classes = len(classes_K)
    with kernels.per_class_filters(num_classes) as copies, _CallRecorder() as recorder:
        logits = forward(parameters, images_KNCHW.flatten(0, 1))
    labels = classes_K[:, None].expand_as(image_weight_KN).flatten()
    loss = (F.cross_entropy(logits.float(), labels, reduction="none") * image_weight_KN.flatten()).sum()
    outputs = [call.output for call in recorder.calls]
    grads = torch.autograd.grad(loss, [*outputs, *copies.values()], create_graph=create_graph)
    names = {id(parameter): name for name, parameter in parameters.items()}
    copy_grads = zip(copies, grads[len(outputs) :], strict=True)
    gradients = {names[key]: grad.flatten(2).float() for key, grad in copy_grads}
    for call, grad in zip(recorder.calls, grads[: len(outputs)], strict=True):
        for weight, gradient in zip(call.weights, call.compute_gradients(call, grad, num_classes), strict=True):
            gradients[names[id(weight)]] = gradient.flatten(2).float()
    expected = {name for name, parameter in parameters.items() if parameter.dim() >= 2}
    assert gradients.keys() == expected, "the network has a weight in an unsupported layer"
    return gradients


def class_gradients_by_backward(
    forward: Forward,
    parameters: dict[str, Tensor],
    images_KNCHW: Tensor,
    classes_K: Tensor,
    image_weight_KN: Tensor,
    *,
    joint: bool = False,
    create_graph: bool = False,
) -> dict[str, Tensor]:
    """Return what `class_gradients` does, by one backward pass per class. The layers may be of any kind.

    The parameters must require gradients; those that do not, such as buffers, are left out. With `joint`, the result is
    the gradient of the sum of the losses of all classes, as if there were one class.
    """
    logits = forward(parameters, images_KNCHW.flatten(0, 1))
    labels = classes_K[:, None].expand_as(image_weight_KN).flatten()
    losses = F.cross_entropy(logits.float(), labels, reduction="none")
    loss_K = (losses.view_as(image_weight_KN) * image_weight_KN).sum(1)
    weights = {name: parameter for name, parameter in parameters.items() if parameter.dim() >= 2}
    weights = {name: parameter for name, parameter in weights.items() if parameter.requires_grad}
    grads_by_class = [
        torch.autograd.grad(
            loss, list(weights.values()), retain_graph=True, create_graph=create_graph, materialize_grads=True
        )
        for loss in ([loss_K.sum()] if joint else loss_K.unbind())
    ]
    grads_by_weight = zip(weights, zip(*grads_by_class, strict=True), strict=True)
    return {name: torch.stack(grads).flatten(2).float() for name, grads in grads_by_weight}


def _conv_gradients(call: _LayerCall, output_grad: Tensor, num_classes: int) -> list[Tensor]:
    """Compute one class after the other: a grouped convolution would need a different memory layout."""
    shape = call.weights[0].shape
    options = {name: call.arguments.get(name, default) for name, default in _CONV_DEFAULTS.items()}
    chunks = zip(call.input.chunk(num_classes), output_grad.chunk(num_classes), strict=True)
    return [torch.stack([conv2d_weight(inputs, shape, grads, **options) for inputs, grads in chunks])]


def _linear_gradients(call: _LayerCall, output_grad: Tensor, num_classes: int) -> list[Tensor]:
    inputs, grads = (rows.unflatten(0, (num_classes, -1)) for rows in (call.input, output_grad))
    return [grads.transpose(1, 2) @ inputs]


def _layer_norm_gradients(call: _LayerCall, output_grad: Tensor, num_classes: int) -> list[Tensor]:
    """Treat gain and bias as weights: over (C, H, W) they have three dimensions."""
    normalized = F.layer_norm(call.input, call.arguments["normalized_shape"], eps=call.arguments["eps"])
    products = (output_grad * normalized, output_grad)
    return [rows.unflatten(0, (num_classes, -1)).sum(1) for rows in products][: len(call.weights)]


_CONV_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_LAYER_FUNCTIONS: dict[Any, tuple[tuple[str, ...], Callable[[_LayerCall, Tensor, int], list[Tensor]]]] = {
    F.conv2d: (("input", "weight", "bias", *_CONV_DEFAULTS), _conv_gradients),
    F.linear: (("input", "weight", "bias"), _linear_gradients),
    F.layer_norm: (("input", "normalized_shape", "weight", "bias", "eps"), _layer_norm_gradients),
}
