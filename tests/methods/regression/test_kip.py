"""Kernel inducing points: the kernels against wide networks, the regression, and gradients in chunks."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.methods.regression.image_kernels import (
    NUM_NETWORKS,
    InfiniteKernel,
    RandomFeatureKernel,
    choose_rows_per_chunk,
)
from condenset.methods.regression.kip import (
    KernelInducingPoints,
    KIPRecipe,
    centered_targets,
    condense,
    regression_loss,
    targets_to_labels,
)
from condenset.methods.regression.neural_kernels import compute_in_chunks, neural_kernel
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
WIDTH, SIZE = 96, 3


def make_problem(counts: list[int], **fields: Any) -> KernelInducingPoints:
    settings = {"ipc": 2, "depth": 2, "iterations": 20, "batch_size": 8, **fields}
    recipe = KIPRecipe(**settings)
    return KernelInducingPoints(tiny_data(counts), recipe, RunContext(compute=CPU), [recipe.ipc] * len(counts))  # type: ignore[list-item]


def random_images(num: int, seed: int) -> Tensor:
    return torch.randn(num, 2, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def wide_network(weights: list[Tensor], image: Tensor, layers: str) -> Tensor:
    """Return the output of a network whose weights are standard normal, with the scales of the kernel."""
    *hidden, last = weights
    maps = image[None] if layers == "conv" else image.flatten()[None, :, None, None]
    for weight in hidden:
        maps = F.conv2d(maps, weight, padding=weight.shape[-1] // 2) / math.sqrt(weight[0].numel())
        maps = math.sqrt(2) * F.relu(maps)
    return (maps.flatten() @ last) / math.sqrt(last.numel())


def empirical_kernel(images: Tensor, layers: str, depth: int, num_networks: int) -> Tensor:
    """Return the products of the Jacobians, averaged over random networks."""
    generator = torch.Generator().manual_seed(1)
    side, channels = (3, images.shape[1]) if layers == "conv" else (1, images[0].numel())
    positions = SIZE**2 if layers == "conv" else 1
    kernel = torch.zeros(len(images), len(images))
    for _ in range(num_networks):
        widths = [channels, *([WIDTH] * depth)]
        shapes = [(widths[n + 1], widths[n], side, side) for n in range(depth)]
        weights = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
        weights.append(torch.randn(WIDTH * positions, generator=generator).requires_grad_())
        gradients = [torch.autograd.grad(wide_network(weights, image, layers), weights) for image in images]
        jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in gradients])
        kernel += jacobian @ jacobian.T / num_networks
    return kernel


@pytest.mark.parametrize("layers", ["fc", "conv"])
@pytest.mark.parametrize("depth", [1, 2])
def test_tangent_kernel_equals_the_jacobian_of_wide_networks(layers: str, depth: int) -> None:
    images = random_images(3, 0)
    kernel = neural_kernel(images, images, kernel="ntk", layers=layers, depth=depth)
    expected = empirical_kernel(images, layers, depth, num_networks=30)
    torch.testing.assert_close(kernel, expected, rtol=0.08, atol=0.05 * float(kernel.abs().max()))


@pytest.mark.parametrize("layers", ["fc", "conv"])
def test_process_kernel_equals_the_covariance_of_features(layers: str) -> None:
    """The last layer is linear: the gradient by its weights is the vector of features, whose products are the NNGP."""
    images, generator = random_images(3, 0), torch.Generator().manual_seed(2)
    kernel = neural_kernel(images, images, kernel="nngp", layers=layers, depth=1)
    side, channels = (3, 2) if layers == "conv" else (1, images[0].numel())
    weight = torch.randn(20_000, channels, side, side, generator=generator)
    maps = images if layers == "conv" else images.flatten(1)[:, :, None, None]
    features = math.sqrt(2) * F.relu(F.conv2d(maps, weight, padding=side // 2) / math.sqrt(weight[0].numel()))
    features = features.flatten(1)
    torch.testing.assert_close(kernel, features @ features.T / features.shape[1], rtol=0.05, atol=0.02)


def test_diagonal_of_the_tangent_kernel_is_exact() -> None:
    images, depth = random_images(3, 0), 10
    kernel = neural_kernel(images, images, kernel="ntk", layers="fc", depth=depth)
    torch.testing.assert_close(kernel.diagonal(), (depth + 1) * images.square().mean((1, 2, 3)), rtol=1e-5, atol=0)


def test_regression_loss_equals_a_direct_solve() -> None:
    generator = torch.Generator().manual_seed(0)
    features, real_features = (torch.randn(num, 9, generator=generator) for num in (5, 7))
    targets = centered_targets(torch.tensor([0, 0, 1, 1, 2]), 3)
    real_targets = centered_targets(torch.arange(7) % 3, 3)
    gram, ridge = features @ features.T, 0.1
    penalty = ridge * gram.diagonal().mean()
    # The primal form of the same regression has weights per feature.
    matrix = features.T @ features + penalty * torch.eye(9)
    predictions = real_features @ torch.linalg.solve(matrix, features.T @ targets)
    expected = 0.5 * (real_targets - predictions).square().sum() / 7
    torch.testing.assert_close(
        regression_loss(real_features @ features.T, gram, targets, real_targets, ridge), expected
    )


@pytest.mark.parametrize("layers", ["fc", "conv"])
def test_gradient_in_chunks_equals_autograd(layers: str) -> None:
    problem = make_problem([6, 6], layers=layers)
    assert isinstance(problem.kernel, InfiniteKernel)
    problem.kernel.rows_per_chunk = 3
    index = torch.arange(7)
    real, labels = problem.store.take_normalized(index), problem.store.labels_N[index]
    loss, by_images, by_targets = problem.gradient(real, labels)
    images, targets = problem.images_NCHW.clone().requires_grad_(), problem.targets_NK.clone().requires_grad_()
    kernel = functools.partial(neural_kernel, kernel="ntk", layers=layers, depth=2)
    expected = regression_loss(
        kernel(real, images), kernel(images, images), targets, centered_targets(labels, 2), problem.recipe.ridge
    )
    torch.testing.assert_close(loss, expected.detach())
    gradients = torch.autograd.grad(expected, (images, targets))
    torch.testing.assert_close(by_images, gradients[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(by_targets, gradients[1], rtol=1e-3, atol=1e-5)


def test_gradient_of_random_features_equals_autograd() -> None:
    problem = make_problem([6, 6], kernel="features", network="convnet(width=4, depth=1)")
    index = torch.arange(7)
    real, labels = problem.store.take_normalized(index), problem.store.labels_N[index]
    loss, by_images, _ = problem.gradient(real, labels)
    kernel = problem.kernel
    assert isinstance(kernel, RandomFeatureKernel)
    images = problem.images_NCHW.clone().requires_grad_()

    def embed(inputs: Tensor) -> Tensor:
        """Return the features of all networks of the step, side by side."""
        parts = [kernel.networks.sample(torch.tensor(number), torch.float32) for number in range(NUM_NETWORKS)]
        features = torch.cat([kernel.forward(parameters, inputs) for parameters in parts], dim=1)
        return features / math.sqrt(features.shape[1])

    features = embed(images)
    targets = centered_targets(labels, 2)
    expected = regression_loss(
        embed(real) @ features.T, features @ features.T, problem.targets_NK, targets, problem.recipe.ridge
    )
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(by_images, torch.autograd.grad(expected, images)[0], rtol=1e-3, atol=1e-5)


def test_random_networks_are_new_in_every_step() -> None:
    problem = make_problem([6, 6], kernel="features", network="convnet(width=4, depth=1)")
    first, second = (problem.kernel.compute(torch.tensor(step), *[problem.images_NCHW] * 2) for step in (0, 1))
    assert not torch.equal(first.real_BN, second.real_BN)


def test_chunks_do_not_change_the_kernel() -> None:
    x, y = random_images(7, 0), random_images(4, 1)
    kernel = functools.partial(neural_kernel, kernel="ntk", layers="conv", depth=2)
    torch.testing.assert_close(compute_in_chunks(kernel, x, y, 2), kernel(x, y))


def test_memory_limit_decides_the_rows_of_a_chunk() -> None:
    small, default = (
        choose_rows_per_chunk(CPU, limit, num_images=20, num_positions=64, depth=2) for limit in (10_000, None)
    )
    assert small == 1 < default


def test_loss_decreases() -> None:
    problem = make_problem([20, 20], layers="fc", batch_size=40, lr=0.05)
    for _ in range(30):
        problem.step()
    assert problem.losses[25:30].mean() < 0.7 * problem.losses[:3].mean()


def test_learned_labels_are_soft() -> None:
    data = tiny_data([6, 6, 6])
    recipe = KIPRecipe(ipc=2, iterations=3, batch_size=8, layers="fc", learn_labels=True)
    condensed = condense(data, recipe, RunContext(compute=CPU))
    assert condensed.labels.shape == (6, 3)
    torch.testing.assert_close(condensed.labels.sum(1), torch.ones(6))
    assert condensed.labels.argmax(1).tolist() == [0, 0, 1, 1, 2, 2]
    hard = torch.tensor([0, 2, 1])
    torch.testing.assert_close(targets_to_labels(centered_targets(hard, 3)), F.one_hot(hard).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kernel": "rbf"}, "kernel must be one of ntk, nngp, features, but got 'rbf'"),
        ({"layers": "lstm"}, "layers must be one of conv, fc, but got 'lstm'"),
        ({"depth": 0}, "depth must be a whole number"),
        ({"ridge": 0.0}, "ridge must be a number above 0"),
        ({"learn_labels": 1}, "learn_labels must be true or false"),
    ],
)
def test_invalid_recipes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        KIPRecipe(**fields)


def test_random_features_of_a_users_network() -> None:
    def build(channels: int, size: int, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, 8), nn.ReLU(), nn.Linear(8, num_classes))

    fields: dict[str, Any] = {"kernel": "features", "network": build, "iterations": 3, "batch_size": 8}
    first, second = (cs.condense(tiny_data([6, 6]), "kip", ipc=2, device="cpu", **fields) for _ in range(2))
    assert torch.equal(first.images, second.images)
    assert not torch.equal(
        first.images, cs.condense(tiny_data([6, 6]), "kip", ipc=2, **{**fields, "iterations": 0}).images
    )
