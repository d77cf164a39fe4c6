"""The gradients of all classes in one pass, against one backward pass per class."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from condenset.networks import NETWORKS, build
from condenset.networks.gradients import class_gradients, class_gradients_by_backward

SPECS = [
    ("convnet(width=8, depth=2)", 8),
    ("convnet(width=8, depth=2, norm='none', pooling='max', activation='swish')", 8),
    ("convnet(width=8, depth=2, norm='layer', activation='sigmoid')", 8),
    ("convnet(width=8, depth=2, norm='group', pooling='none')", 8),
    ("convnet(width=8, depth=2, norm='batch')", 8),
    ("alexnet", 8),
    ("alexnet_small", 8),
    ("vgg11", 32),
    ("resnet18", 16),
    ("resnet18(norm='batch')", 16),
    ("resnet18_ap", 16),
    ("lenet", 12),
    ("mlp(width=8)", 8),
]
COUNTS = (3, 2, 1)  # images per class; the others are padding


def test_every_architecture_is_covered() -> None:
    assert {spec.partition("(")[0] for spec, _ in SPECS} == NETWORKS.keys()


def make_problem(spec: str, size: int) -> tuple[nn.Module, Tensor, Tensor]:
    network = build(spec, channels=3, size=size, num_classes=3).double()  # float32 is too inexact in deep networks
    images = torch.randn(3, 3, 3, size, size, generator=torch.Generator().manual_seed(0)).double()
    network.train()
    network(images.flatten(0, 1))  # gives batch norm running statistics
    network.eval()
    weights = torch.tensor([[1 / count] * count + [0.0] * (3 - count) for count in COUNTS])
    return network, images, weights


def reference_gradients(
    network: nn.Module, images_NCHW: Tensor, label: int, create_graph: bool = False
) -> dict[str, Tensor]:
    weights = {name: weight for name, weight in network.named_parameters() if weight.dim() > 1}
    loss = F.cross_entropy(network(images_NCHW), torch.full((len(images_NCHW),), label))
    gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
    return dict(zip(weights, gradients, strict=True))


@pytest.mark.parametrize(
    ("spec", "size", "compute_gradients"),
    [(*row, class_gradients) for row in SPECS] + [(*row, class_gradients_by_backward) for row in SPECS[:3]],
)
def test_one_pass_computes_the_gradients_of_every_class(
    spec: str, size: int, compute_gradients: Callable[..., dict[str, Tensor]]
) -> None:
    network, images, weights = make_problem(spec, size)

    def forward(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(network, parameters, (inputs,))
        return logits

    gradients = compute_gradients(forward, dict(network.named_parameters()), images, torch.arange(3), weights)
    for label, count in enumerate(COUNTS):
        for name, expected in reference_gradients(network, images[label, :count], label).items():
            assert gradients[name].dtype == torch.float32
            tolerance = 1e-5 * float(expected.abs().max())
            torch.testing.assert_close(gradients[name][label], expected.flatten(1).float(), rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize(("spec", "size"), [row for row in SPECS if row[1] == 8])
def test_gradients_can_be_differentiated_and_padding_has_none(spec: str, size: int) -> None:
    network, images, weights = make_problem(spec, size)

    def forward(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(network, parameters, (inputs,))
        return logits

    parameters = {name: weight.detach() for name, weight in network.named_parameters()}
    leaf = images.clone().requires_grad_()
    gradients = class_gradients(forward, parameters, leaf, torch.arange(3), weights, create_graph=True)
    (actual,) = torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients.values()), leaf)
    for label, count in enumerate(COUNTS):
        class_leaf = images[label, :count].clone().requires_grad_()
        reference = reference_gradients(network, class_leaf, label, create_graph=True)
        (expected,) = torch.autograd.grad(sum(gradient.square().sum() for gradient in reference.values()), class_leaf)
        tolerance = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(actual[label, :count], expected, rtol=1e-4, atol=tolerance)
        assert not actual[label, count:].any()
