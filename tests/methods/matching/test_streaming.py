"""Streamed images: the set is bitwise that of images in memory, also after an interruption."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset import ImageData, UserError
from condenset.engine import ComputeDevice
from condenset.methods import METHODS, DMRecipe
from condenset.methods.matching.dm import condense, condense_sizes, make_problem
from condenset.methods.matching.memory import estimate_matching_memory
from condenset.methods.samplers import build_on_meta
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.graph_replay import capture_on_cpu
from helpers.imports import tiny_import, truncate_images
from helpers.tiny_recipes import DISTINCT_METHODS, FAMILY, tiny_recipe

CPU = ComputeDevice.select("cpu")
EQUAL, UNEQUAL = [6, 6, 6, 6], [7, 2, 5, 4]
NETWORK = "convnet(width=8, depth=2)"


def make_run(data: ImageData | None = None, **fields: Any) -> RunContext:
    """Return a run; with data, its memory limit is below their size, so that they are streamed."""
    limit = None if data is None else data.images.numel()
    return RunContext(**{"seed": 3, "compute": CPU, "memory_limit": limit, "classes_per_chunk": 3, **fields})


def make_recipe(**fields: Any) -> DMRecipe:
    return DMRecipe(**{"ipc": 3, "network": NETWORK, "iterations": 5, "batch_size": 5, "allow_fewer": True, **fields})


@pytest.mark.filterwarnings("ignore:one class needs")
@pytest.mark.parametrize("counts", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    "fields", [{}, {"augment": "none"}, {"partition": 2, "init": "noise"}], ids=["default", "plain", "partition"]
)
def test_streamed_images_give_the_same_set(tmp_path: Path, counts: list[int], fields: dict[str, Any]) -> None:
    data = tiny_import(tmp_path / "a", counts)
    assert make_problem(data, [make_recipe()], make_run(data)).memory.is_streamed
    streamed = condense(data, make_recipe(**fields), make_run(data))
    in_memory = condense(data, make_recipe(**fields), make_run())
    assert torch.equal(streamed.stored_images, in_memory.stored_images)
    assert streamed.provenance["recipe"] == in_memory.provenance["recipe"]
    assert "stream" not in str(streamed.provenance)


@pytest.mark.filterwarnings("ignore:one class needs")
def test_streamed_images_give_the_same_sets_of_several_sizes(tmp_path: Path) -> None:
    data, recipes = tiny_import(tmp_path / "a", UNEQUAL), [make_recipe(ipc=1), make_recipe(ipc=4, lr=10.0)]
    streamed, in_memory = (condense_sizes(data, recipes, run) for run in (make_run(data), make_run()))
    for one, other in zip(streamed, in_memory, strict=True):
        assert torch.equal(one.images, other.images)


@pytest.mark.filterwarnings("ignore:one class needs")
@pytest.mark.parametrize("method", [name for name in DISTINCT_METHODS if name in (*FAMILY, "mmd")])
def test_all_methods_of_the_family_stream(tmp_path: Path, method: str) -> None:
    data, fields = tiny_import(tmp_path / "a", UNEQUAL), {"objective": "kernel"} if method == "mmd" else {}
    recipe = tiny_recipe(method, **fields)
    streamed, in_memory = (METHODS[method].condense(data, recipe, run) for run in (make_run(data), make_run()))
    assert torch.equal(streamed.images, in_memory.images)


@pytest.mark.filterwarnings("ignore:one class needs")
def test_a_resumed_run_reads_the_batches_of_its_iterations(tmp_path: Path) -> None:
    data, recipe = tiny_import(tmp_path / "a", UNEQUAL), make_recipe()
    expected = condense(data, recipe, make_run())
    run = make_run(data, directory=tmp_path, job="dm-3")
    problem = make_problem(data, [recipe], run)
    step, num_steps = problem.step, 0

    def stop_after_two() -> None:
        nonlocal num_steps
        step()
        num_steps += 1
        run.stop.requested = int(num_steps == 2)

    problem.step = stop_after_two  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        problem.solve()
    resumed = condense(data, recipe, make_run(data, directory=tmp_path, job="dm-3"))
    assert torch.equal(resumed.images, expected.images)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("condenset-")]


@pytest.mark.filterwarnings("ignore:one class needs")
def test_a_file_that_becomes_shorter_ends_the_run_with_an_error(tmp_path: Path) -> None:
    data = tiny_import(tmp_path / "a", UNEQUAL)
    problem = make_problem(data, [make_recipe(iterations=1000)], make_run(data))
    step = problem.step

    def truncate_and_step() -> None:
        truncate_images(tmp_path / "a", 1)
        step()

    problem.step = truncate_and_step  # type: ignore[method-assign]
    with pytest.raises(UserError, match="must keep its"):
        problem.solve()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("condenset-")]


@pytest.mark.filterwarnings("ignore:one class needs")
@pytest.mark.parametrize("counts", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_a_streamed_step_is_captured_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    data, recipe = tiny_import(tmp_path / "a", counts), make_recipe()
    expected = condense(data, recipe, make_run())
    graphs = capture_on_cpu(monkeypatch)
    problem = make_problem(data, [recipe], make_run(data))
    assert torch.equal(problem.solve()[0].images, expected.images)
    assert len(graphs) == len(problem.chunks) + 1


def test_the_estimate_counts_buffers_instead_of_the_dataset(tmp_path: Path) -> None:
    data, recipe = tiny_import(tmp_path / "a", EQUAL), make_recipe()
    network = build_on_meta(NETWORK, data, embedding=True)
    in_memory, streamed = (
        estimate_matching_memory(network, data, [recipe], CPU, memory_limit=limit) for limit in (None, 1000)
    )
    assert in_memory.fixed_bytes - streamed.fixed_bytes == data.images.numel()
    whitened = make_recipe(zca=True)
    assert estimate_matching_memory(network, data, [whitened], CPU, memory_limit=1000) == streamed
    assert (in_memory.buffer_bytes, streamed.buffer_bytes) == (0, 3 * 5 * 3 * 8 * 8)
    assert streamed.total(2) == streamed.fixed_bytes + 2 * (streamed.bytes_per_class + streamed.buffer_bytes)
    assert (streamed.is_streamed, in_memory.is_streamed) == (True, False)
