"""MMD in pixel space: the objectives of dm on pixels; no network, no augmentation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.methods import make_recipe
from condenset.methods.matching import user_functions
from condenset.methods.matching.dm import DistributionMatching
from condenset.methods.matching.mmd import MMDRecipe, condense, estimate_memory, make_problem
from condenset.methods.matching.objectives import mean_distance
from condenset.methods.sharding import check_divisible
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")


def make_matching(recipe: MMDRecipe, precision: str = "float32") -> DistributionMatching:
    run = RunContext(compute=ComputeDevice.select("cpu", precision))
    return make_problem(tiny_data([9, 9]), recipe, run)


def test_loss_is_the_distance_of_mean_pixels() -> None:
    data = tiny_data([9, 9])
    pixels = (data.images.float() / 255 - 0.5) / 0.25
    matching = make_matching(MMDRecipe(ipc=2, batch_size=9, iterations=1))
    assert matching.objective is mean_distance
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
    data, recipe = tiny_data([6, 3, 5]), MMDRecipe(ipc=3, objective="kernel", iterations=5, batch_size=4)
    whole, chunked = (condense(data, recipe, RunContext(compute=CPU, classes_per_chunk=num)).images for num in (3, 1))
    torch.testing.assert_close(whole, chunked)


@pytest.mark.parametrize("fields", [{}, {"objective": "kernel", "lr": 10.0}], ids=["mean", "kernel"])
@pytest.mark.parametrize("ipc", [1, 5])
def test_learning_lowers_the_distance(fields: dict[str, Any], ipc: int) -> None:
    recipe = make_recipe("mmd", ipc=ipc, name="tiny", size=8, init="noise", iterations=60, **fields)
    assert isinstance(recipe, MMDRecipe)
    matching = make_problem(tiny_data([40, 40]), recipe, RunContext(compute=CPU))
    for _ in range(60):
        matching.step()
    assert matching.losses[50:60].mean() < 0.75 * matching.losses[0]


def test_invalid_recipes() -> None:
    with pytest.raises(cs.UserError, match=r"objective must be one of mean, .* but got 'gaussian'"):
        MMDRecipe(ipc=1, objective="gaussian")


def test_own_functions_cannot_be_divided_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(user_functions._functions, ("objective", "mean_gap"), lambda *_: None)
    with pytest.raises(cs.UserError, match="workers do not have your own function"):
        check_divisible(MMDRecipe(objective="mean_gap"))
    monkeypatch.setitem(user_functions._functions, ("sampler", "newest"), lambda *_: None)
    with pytest.raises(cs.UserError, match="workers do not have your own function"):
        check_divisible(cs.DMRecipe(sampler="newest"))


def test_memory_estimate_depends_on_the_objective_and_the_limit() -> None:
    data, recipe = tiny_data([9] * 6), MMDRecipe(ipc=3, objective="kernel")
    mean, kernel = (estimate_memory(data, one, CPU, None) for one in (MMDRecipe(ipc=3), recipe))
    assert kernel > mean
    assert estimate_memory(data, recipe, CPU, kernel // 2) <= kernel // 2
