"""The gradients of all classes in one pass, against one backward pass a class."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from condenset.networks import NETWORKS, build
from condenset.networks.gradients import class_gradients

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
COUNTS = (3, 2, 1)  # images of each class that are no padding


def test_every_architecture_is_here() -> None:
    assert {spec.partition("(")[0] for spec, _ in SPECS} == NETWORKS.keys()


def problem(spec: str, size: int) -> tuple[nn.Module, Tensor, Tensor]:
    network = build(spec, channels=3, size=size, num_classes=3).double()  # float32 shows its rounding in deep networks
    images = torch.randn(3, 3, 3, size, size, generator=torch.Generator().manual_seed(0)).double()
    network.train()
    network(images.flatten(0, 1))  # so that batch norm holds some statistics
    network.eval()
    share = torch.tensor([[1 / count] * count + [0.0] * (3 - count) for count in COUNTS])
    return network, images, share


def expected(network: nn.Module, images_NCHW: Tensor, label: int, keep: bool = False) -> dict[str, Tensor]:
    weights = {name: weight for name, weight in network.named_parameters() if weight.dim() > 1}
    loss = F.cross_entropy(network(images_NCHW), torch.full((len(images_NCHW),), label))
    found = torch.autograd.grad(loss, list(weights.values()), create_graph=keep)
    return dict(zip(weights, found, strict=True))


@pytest.mark.parametrize(("spec", "size"), SPECS)
def test_one_pass_gives_every_classes_gradients(spec: str, size: int) -> None:
    network, images, share = problem(spec, size)
    views = dict(network.named_parameters())
    found = class_gradients(
        lambda views, given: functional_call(network, views, (given,)), views, images, torch.arange(3), share
    )
    for number, count in enumerate(COUNTS):
        for name, gradient in expected(network, images[number, :count], number).items():
            assert found[name].dtype == torch.float32
            tolerance = 1e-5 * float(gradient.abs().max())
            torch.testing.assert_close(found[name][number], gradient.flatten(1).float(), rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize(("spec", "size"), [row for row in SPECS if row[1] == 8])
def test_they_can_be_differentiated_and_padding_has_no_gradient(spec: str, size: int) -> None:
    network, images, share = problem(spec, size)
    views = {name: weight.detach() for name, weight in network.named_parameters()}
    leaf = images.clone().requires_grad_()
    found = class_gradients(
        lambda views, given: functional_call(network, views, (given,)),
        views,
        leaf,
        torch.arange(3),
        share,
        create_graph=True,
    )
    (slope,) = torch.autograd.grad(sum(each.square().sum() for each in found.values()), leaf)
    for number, count in enumerate(COUNTS):
        own = images[number, :count].clone().requires_grad_()
        plain = expected(network, own, number, keep=True)
        (wanted,) = torch.autograd.grad(sum(each.square().sum() for each in plain.values()), own)
        tolerance = 1e-5 * float(wanted.abs().max())
        torch.testing.assert_close(slope[number, :count], wanted, rtol=1e-4, atol=tolerance)
        assert not slope[number, count:].any()
