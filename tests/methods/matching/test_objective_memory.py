"""The memory estimate includes that of the objective, and a memory limit leads to more chunks."""

from __future__ import annotations

import pytest
import torch

from condenset.engine import ComputeDevice
from condenset.methods import DMRecipe
from condenset.methods.matching.dm import DistributionMatching, estimate_memory, make_problem
from condenset.methods.matching.objectives import estimate_objective_memory
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
DATA = tiny_data([40] * 7)
SIZES = {"num_real": 40, "num_synthetic": 36, "num_features": 16}


def make_recipe(objective: str, **fields: int) -> DMRecipe:
    values = {"ipc": 9, "iterations": 4, "batch_size": 40, **fields}
    return DMRecipe(network="convnet(width=4, depth=1)", objective=objective, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("mean", "covariance"),
        ("mean", "kernel(bandwidths=1)"),
        ("kernel(bandwidths=1)", "kernel(bandwidths=9)"),
        ("mean", "characteristic(frequencies=8)"),
        ("characteristic(frequencies=8)", "characteristic(frequencies=64)"),
    ],
)
def test_objectives_with_more_numbers_need_more_memory(small: str, large: str) -> None:
    first, second = (estimate_memory(DATA, make_recipe(objective), CPU, None) for objective in (small, large))
    assert first < second


@pytest.mark.parametrize("objective", ["covariance", "kernel", "characteristic"])
def test_memory_of_the_objective_grows_with_its_images_and_features(objective: str) -> None:
    estimate = estimate_objective_memory(objective, **SIZES)
    for name, size in SIZES.items():
        larger = estimate_objective_memory(objective, **{**SIZES, name: 2 * size})
        assert larger.bytes_per_class > estimate.bytes_per_class
    assert (estimate.fixed_bytes > 0) == (objective == "characteristic")  # its frequencies serve all classes


def test_memory_of_the_objective_includes_all_parts() -> None:
    whole, parts = (estimate_memory(DATA, make_recipe("kernel", partition=factor), CPU, None) for factor in (1, 2))
    kernel_bytes = [estimate_objective_memory("kernel", **{**SIZES, "num_synthetic": num}) for num in (9, 36)]
    assert parts - whole >= 7 * (kernel_bytes[1].bytes_per_class - kernel_bytes[0].bytes_per_class)


def test_memory_limit_leads_to_more_chunks_with_the_same_result() -> None:
    def make_limited(objective: str, memory_limit: int | None) -> DistributionMatching:
        return make_problem(DATA, [make_recipe(objective)], RunContext(compute=CPU, memory_limit=memory_limit))

    memory_limit = estimate_memory(DATA, make_recipe("mean"), CPU, None)
    assert len(make_limited("mean", memory_limit).chunks) == 1
    unlimited, limited = (make_limited("kernel(bandwidths=2)", limit) for limit in (None, memory_limit))
    assert len(unlimited.chunks) < len(limited.chunks)
    for _ in range(3):
        unlimited.step()
        limited.step()
    torch.testing.assert_close(limited.sets.images_KICHW, unlimited.sets.images_KICHW, rtol=1e-3, atol=1e-4)
