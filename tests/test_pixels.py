"""MMD in pixel space against the sum over all pairs written out; no network, no augmentation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.data.store import ClassStore
from condenset.engine import Place
from condenset.methods.matching import Matching, mean_distance
from condenset.methods.pixels import kernel_distance, median_distance, mmd
from condenset.presets import make_recipe
from condenset.recipes import KERNELS, PixelRecipe
from condenset.runs import Run
from plain import tiny_data

CPU = Place.best("cpu")
BANDWIDTH = 7.0


def plain_kernel(kernel: str, x: Tensor, y: Tensor) -> Tensor:
    if kernel == "linear":
        return (x * y).sum()
    if kernel == "polynomial":
        return len(x) / 36 * (1 + (x * y).sum() / len(x)) ** 3
    if kernel == "rbf":
        return BANDWIDTH**2 * torch.exp(-((x - y) ** 2).sum() / (2 * BANDWIDTH**2))
    return BANDWIDTH * torch.exp(-(x - y).abs().sum() / BANDWIDTH)


def plain_mmd(kernel: str, real: list[Tensor], synthetic: list[Tensor]) -> Tensor:
    """Squared MMD of two lists of images: the mean over all pairs, an image with itself included."""

    def mean(first: list[Tensor], second: list[Tensor]) -> Tensor:
        values = [plain_kernel(kernel, x, y) for x, y in itertools.product(first, second)]
        return torch.stack(values).mean()

    return mean(real, real) - 2 * mean(real, synthetic) + mean(synthetic, synthetic)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("counts", [[(5, 3), (5, 3)], [(4, 3), (5, 2), (1, 1)]], ids=["equal", "unequal"])
def test_kernel_distance_is_the_sum_over_all_pairs(kernel: str, counts: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    real_KBF, start_KIF = (torch.randn(len(counts), num, 12, generator=generator) for num in (5, 3))
    weights = [None, None]
    if len(counts) == 3:  # padding has weight 0
        weights = [
            torch.stack([(torch.arange(num) < row[place]).float() / row[place] for row in counts])
            for place, num in ((0, 5), (1, 3))
        ]
    synthetic_KIF = start_KIF.clone().requires_grad_()
    found = kernel_distance(kernel, BANDWIDTH)(real_KBF, synthetic_KIF, *weights)
    (gradient,) = torch.autograd.grad(found.sum(), synthetic_KIF)

    plain_KIF = start_KIF.clone().requires_grad_()
    expected = torch.stack(
        [
            plain_mmd(kernel, list(real_KBF[number][:b]), list(plain_KIF[number][:i]))
            for number, (b, i) in enumerate(counts)
        ]
    )
    (wanted,) = torch.autograd.grad(expected.sum(), plain_KIF)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4)


def test_linear_is_the_distance_of_mean_pixels() -> None:
    assert kernel_distance("linear") is mean_distance
    matching = problem(PixelRecipe(ipc=2, batch=9, iterations=1))
    real_KF = torch.stack([mean_pixels(number) for number in range(2)])
    expected = (real_KF - matching.images_KICHW.flatten(2).mean(1)).square().sum()
    matching.step()
    torch.testing.assert_close(matching.losses[0], expected)


def problem(recipe: PixelRecipe, run: Run | None = None) -> Matching:
    return Matching(tiny_data([9, 9]), [recipe], run or Run(place=CPU), mean_distance)


def mean_pixels(label: int) -> Tensor:
    data = tiny_data([9, 9])
    return ((data.images[data.labels == label].float() / 255 - 0.5) / 0.25).mean(0).flatten()


def test_pixels_stay_float32_whatever_the_precision() -> None:
    coarse = problem(PixelRecipe(ipc=2, batch=5), Run(place=Place.best("cpu", "bfloat16")))
    fine = problem(PixelRecipe(ipc=2, batch=5))
    coarse.step()
    fine.step()
    assert torch.equal(coarse.images_KICHW, fine.images_KICHW)


def test_chunks_of_classes_give_the_same() -> None:
    data, recipe = tiny_data([6, 3, 5]), PixelRecipe(ipc=3, kernel="rbf", iterations=5, batch=4)
    whole, parts = (mmd(data, recipe, Run(place=CPU, chunk=chunk)).images for chunk in (3, 1))
    torch.testing.assert_close(whole, parts)


@pytest.mark.parametrize(("kernel", "norm"), [("rbf", 2), ("laplacian", 1)])
def test_the_bandwidth_is_the_median_of_the_kernels_own_distance_unless_given(kernel: str, norm: int) -> None:
    data = tiny_data([6, 6])
    median = median_distance(ClassStore(data, CPU.device), 0, norm)
    fields = {"ipc": 2, "kernel": kernel, "iterations": 2, "batch": 4}
    found = [mmd(data, PixelRecipe(**fields, bandwidth=width), Run(place=CPU)).images for width in (0, median, 3.0)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_median_is_over_pairs_of_a_class() -> None:
    data = tiny_data([6, 3, 1])
    normal = (data.images.float() / 255 - 0.5) / 0.25
    pairs = []
    for number in range(3):
        for x, y in itertools.combinations(normal[data.labels == number], 2):
            pairs.append(float((x - y).abs().sum()))
    found = median_distance(ClassStore(data, torch.device("cpu")), 0, 1)
    assert found == pytest.approx(sorted(pairs)[(len(pairs) - 1) // 2], rel=1e-5)
    alone = median_distance(ClassStore(tiny_data([1, 1]), torch.device("cpu")), 0, 2)
    assert alone == pytest.approx(math.sqrt(3 * 8 * 8))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("ipc", [1, 5])
def test_the_preset_learning_rate_lowers_the_distance(kernel: str, ipc: int) -> None:
    data = tiny_data([40, 40])
    recipe = make_recipe("mmd", ipc=ipc, name="tiny", size=8, kernel=kernel, init="noise", iterations=60)
    assert isinstance(recipe, PixelRecipe)
    store = ClassStore(data, torch.device("cpu"))
    matching = Matching(data, [recipe], Run(place=CPU), mean_distance)
    matching.objective = kernel_distance(kernel, median_distance(store, 0, 1 if kernel == "laplacian" else 2))
    for _ in range(60):
        matching.step()
    assert matching.losses[50:60].mean() < 0.75 * matching.losses[0]


def test_mistakes_are_one_line() -> None:
    with pytest.raises(cs.UserError, match=r"kernel must be one of linear, .* but got 'gaussian'"):
        PixelRecipe(ipc=1, kernel="gaussian")
    with pytest.raises(cs.UserError, match=r"the linear kernel has no bandwidth: leave it out, but got 2\.0"):
        PixelRecipe(ipc=1, bandwidth=2.0)
    with pytest.raises(cs.UserError, match="bandwidth must be a number, 0"):
        PixelRecipe(ipc=1, bandwidth=-1.0)
