"""MMD in pixel space: equal to the sum over all pairs; no network, no augmentation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.data.class_store import ClassStore
from condenset.engine import ComputeDevice
from condenset.methods import MMDRecipe, make_recipe
from condenset.methods.matching.dm import DistributionMatching
from condenset.methods.matching.mmd import (
    KERNELS,
    condense,
    estimate_memory,
    make_problem,
    median_distance,
    pixel_kernel_distance,
)
from condenset.methods.matching.objectives import mean_distance
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
KERNEL_NAMES = ("linear", *KERNELS)
BANDWIDTH = 7.0


def reference_kernel(kernel: str, x: Tensor, y: Tensor) -> Tensor:
    if kernel == "linear":
        return (x * y).sum()
    if kernel == "polynomial":
        return len(x) / 36 * (1 + (x * y).sum() / len(x)) ** 3
    if kernel == "rbf":
        return BANDWIDTH**2 * torch.exp(-((x - y) ** 2).sum() / (2 * BANDWIDTH**2))
    return BANDWIDTH * torch.exp(-(x - y).abs().sum() / BANDWIDTH)


def reference_mmd(kernel: str, real: list[Tensor], synthetic: list[Tensor]) -> Tensor:
    """Return the squared MMD: means over all pairs, including each image with itself."""

    def mean(first: list[Tensor], second: list[Tensor]) -> Tensor:
        values = [reference_kernel(kernel, x, y) for x, y in itertools.product(first, second)]
        return torch.stack(values).mean()

    return mean(real, real) - 2 * mean(real, synthetic) + mean(synthetic, synthetic)


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@pytest.mark.parametrize("counts", [[(5, 3), (5, 3)], [(4, 3), (5, 2), (1, 1)]], ids=["equal", "unequal"])
def test_pixel_kernel_distance_is_the_sum_over_all_pairs(kernel: str, counts: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    real_KBF, initial_KIF = (torch.randn(len(counts), num, 12, generator=generator) for num in (5, 3))
    weights: list[Tensor | None] = [None, None]
    if len(counts) == 3:  # padding has weight 0
        weights = [
            torch.stack([(torch.arange(num) < row[column]).float() / row[column] for row in counts])
            for column, num in ((0, 5), (1, 3))
        ]
    synthetic_KIF = initial_KIF.clone().requires_grad_()
    distance = pixel_kernel_distance(kernel, BANDWIDTH)(real_KBF, synthetic_KIF, *weights)
    (gradient,) = torch.autograd.grad(distance.sum(), synthetic_KIF)

    reference_KIF = initial_KIF.clone().requires_grad_()
    expected = torch.stack(
        [
            reference_mmd(kernel, list(real_KBF[label][:num_real]), list(reference_KIF[label][:num_synthetic]))
            for label, (num_real, num_synthetic) in enumerate(counts)
        ]
    )
    (expected_gradient,) = torch.autograd.grad(expected.sum(), reference_KIF)
    torch.testing.assert_close(distance, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


def make_matching(recipe: MMDRecipe, precision: str = "float32") -> DistributionMatching:
    run = RunContext(compute=ComputeDevice.select("cpu", precision))
    return make_problem(tiny_data([9, 9]), recipe, run)


def test_linear_kernel_is_the_distance_of_mean_pixels() -> None:
    assert pixel_kernel_distance("linear") is mean_distance
    data = tiny_data([9, 9])
    pixels = (data.images.float() / 255 - 0.5) / 0.25
    matching = make_matching(MMDRecipe(ipc=2, batch_size=9, iterations=1))
    real_KF = torch.stack([pixels[data.labels == label].mean(0).flatten() for label in range(2)])
    expected = (real_KF - matching.sets.images_KICHW.flatten(2).mean(1)).square().sum()
    matching.step()
    torch.testing.assert_close(matching.losses[0], expected)


def test_pixels_are_float32_in_any_precision() -> None:
    recipe = MMDRecipe(ipc=2, batch_size=5)
    fine, coarse = (make_matching(recipe, precision) for precision in ("float32", "bfloat16"))
    fine.step()
    coarse.step()
    assert torch.equal(coarse.sets.images_KICHW, fine.sets.images_KICHW)


def test_chunks_of_classes_do_not_change_the_result() -> None:
    data, recipe = tiny_data([6, 3, 5]), MMDRecipe(ipc=3, kernel="rbf", iterations=5, batch_size=4)
    whole, chunked = (condense(data, recipe, RunContext(compute=CPU, classes_per_chunk=num)).images for num in (3, 1))
    torch.testing.assert_close(whole, chunked)


@pytest.mark.parametrize(("kernel", "norm"), [("rbf", 2), ("laplacian", 1)])
def test_default_bandwidth_is_the_median_of_the_kernels_distance(kernel: str, norm: int) -> None:
    data = tiny_data([6, 6])
    median = median_distance(ClassStore(data, CPU.device), 0, norm)
    by_default, by_median, other = (
        condense(
            data,
            MMDRecipe(ipc=2, kernel=kernel, iterations=2, batch_size=4, bandwidth=bandwidth),
            RunContext(compute=CPU),
        ).images
        for bandwidth in (0, median, 3.0)
    )
    assert torch.equal(by_default, by_median)
    assert not torch.equal(by_default, other)


def test_median_is_over_pairs_within_classes() -> None:
    data = tiny_data([6, 3, 1])
    images = (data.images.float() / 255 - 0.5) / 0.25
    distances = [
        float((x - y).abs().sum())
        for label in range(3)
        for x, y in itertools.combinations(images[data.labels == label], 2)
    ]
    median = median_distance(ClassStore(data, CPU.device), 0, 1)
    assert median == pytest.approx(sorted(distances)[(len(distances) - 1) // 2], rel=1e-5)
    without_pairs = median_distance(ClassStore(tiny_data([1, 1]), CPU.device), 0, 2)
    assert without_pairs == pytest.approx(math.sqrt(3 * 8 * 8))


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@pytest.mark.parametrize("ipc", [1, 5])
def test_default_learning_rate_lowers_the_distance(kernel: str, ipc: int) -> None:
    recipe = make_recipe("mmd", ipc=ipc, name="tiny", size=8, kernel=kernel, init="noise", iterations=60)
    assert isinstance(recipe, MMDRecipe)
    matching = make_problem(tiny_data([40, 40]), recipe, RunContext(compute=CPU))
    for _ in range(60):
        matching.step()
    assert matching.losses[50:60].mean() < 0.75 * matching.losses[0]


def test_invalid_recipes() -> None:
    with pytest.raises(cs.UserError, match=r"kernel must be one of linear, .* but got 'gaussian'"):
        MMDRecipe(ipc=1, kernel="gaussian")
    with pytest.raises(cs.UserError, match=r"the linear kernel has no bandwidth, but got 2\.0"):
        MMDRecipe(ipc=1, bandwidth=2.0)
    with pytest.raises(cs.UserError, match="bandwidth must be a number, 0"):
        MMDRecipe(ipc=1, bandwidth=-1.0)


def test_memory_estimate_depends_on_the_kernel_and_the_limit() -> None:
    data = tiny_data([9] * 6)
    linear, laplacian = (
        estimate_memory(data, MMDRecipe(ipc=3, kernel=kernel), CPU, None) for kernel in ("linear", "laplacian")
    )
    assert laplacian > linear
    assert estimate_memory(data, MMDRecipe(ipc=3, kernel="laplacian"), CPU, laplacian // 2) <= laplacian // 2
