"""Estimates of the memory of a run, and the splits that follow from them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from condenset import networks
from condenset.engine import ComputeDevice
from condenset.engine.memory import (
    MemoryEstimate,
    estimate_memory,
    images_per_pass,
    num_classes_that_fit,
    split_evenly,
)
from condenset.methods import DMRecipe
from condenset.methods.gradient.chunks import classes_per_chunk
from condenset.methods.gradient.dc import DCRecipe
from condenset.methods.gradient.gradient_matching import GradientMatching
from condenset.methods.matching.memory import estimate_matching_memory
from condenset.methods.samplers import build_on_meta
from condenset.methods.zca import whiten
from condenset.networks.layers import Block
from condenset.runs.context import RunContext
from condenset.training.dataset import DeviceDataset
from condenset.training.parallel import num_parallel, remaining_groups
from condenset.training.protocol import Protocol
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")


def test_sets_learned_together_need_the_memory_of_all_of_them() -> None:
    data = tiny_data([40] * 3)
    network = "convnet(width=8, depth=2)"
    small, medium, large = (DMRecipe(ipc=ipc, network=network, batch_size=1) for ipc in (5, 10, 15))
    embedding = build_on_meta(network, data, embedding=True)
    together, as_one_set = (
        estimate_matching_memory(embedding, data, recipes, CPU) for recipes in ([small, medium], [large])
    )
    assert together.bytes_per_class == as_one_set.bytes_per_class
    assert together.fixed_bytes == as_one_set.fixed_bytes


def test_as_many_networks_train_in_parallel_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU, its free memory and its kernels are simulated."""
    gpu, free = dataclasses.replace(CPU, device=torch.device("cuda")), 2**40

    def has_kernels(network: nn.Module, _: ComputeDevice) -> bool:
        return any(isinstance(module, Block) for module in network.modules())

    monkeypatch.setattr("condenset.training.parallel.uses_custom_kernels", has_kernels)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3 << 20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1 << 20)
    data = DeviceDataset.from_data(tiny_data([40] * 2, size=32), CPU.device)

    def num_fitting(network: str = "convnet", **fields: int) -> int:
        return num_parallel(Protocol(network=network, **fields), data, gpu)  # type: ignore[arg-type]

    assert (num_fitting(), num_fitting("lenet")) == (10, 1)
    assert num_parallel(Protocol(), data, CPU) == 1
    free = 400 << 20
    several = num_fitting()
    assert 1 < several < 10
    assert num_fitting("convnet(width=256)") < several < num_fitting(batch_size=10)
    free = 0
    assert num_fitting() == 1


def test_more_synthetic_images_mean_fewer_classes_per_pass() -> None:
    data, network = tiny_data([40] * 6), "convnet(width=8, depth=2)"

    def num_chunks(ipc: int) -> int:
        recipe = DCRecipe(ipc=ipc, network=network, iterations=2, outer_steps=3, inner_epochs=2, batch_size=2)
        run = RunContext(compute=CPU, memory_limit=3 << 20)
        return len(GradientMatching(data, recipe, run, [ipc] * 6).chunks)

    assert num_chunks(1) == 1
    assert num_chunks(40) > 2


def test_images_to_be_whitened_count_four_bytes_per_pixel() -> None:
    data = tiny_data([200] * 3)
    fields: dict[str, Any] = {"ipc": 1, "network": "mlp(width=8)", "batch_size": 1}
    embedding = build_on_meta("mlp(width=8)", data, embedding=True)
    plain, planned = DMRecipe(**fields), DMRecipe(**fields, zca=True)
    expected = estimate_matching_memory(embedding, data, [plain], CPU).fixed_bytes + 3 * data.images.numel()
    for images in (data, whiten(data, planned, RunContext(compute=CPU))):
        assert estimate_matching_memory(embedding, images, [planned], CPU).fixed_bytes == expected
    limit = 4 * data.images.numel()
    assert classes_per_chunk(data, DCRecipe(**fields), CPU, limit) > 1
    with pytest.warns(UserWarning, match="one class needs about"):
        assert classes_per_chunk(data, DCRecipe(**fields, zca=True), CPU, limit) == 1


def test_the_memory_limit_bounds_the_number_of_classes() -> None:
    estimate = MemoryEstimate(fixed_bytes=100, bytes_per_class=10)
    assert estimate.total(3) == 130
    assert num_classes_that_fit(estimate, CPU, 139) == 3
    with pytest.warns(UserWarning, match="one class needs about 110 B.*more than the memory limit of 105 B"):
        assert num_classes_that_fit(estimate, CPU, 105) == 1


def test_buffers_of_streamed_images_count_within_the_limit_only() -> None:
    in_memory, streamed = MemoryEstimate(100, 10), MemoryEstimate(100, 10, buffer_bytes=3)
    assert num_classes_that_fit(streamed, CPU) == num_classes_that_fit(in_memory, CPU)  # the same chunks
    assert [num_classes_that_fit(estimate, CPU, 139) for estimate in (in_memory, streamed)] == [3, 3]
    assert [num_classes_that_fit(estimate, CPU, 138) for estimate in (in_memory, streamed)] == [3, 2]
    assert streamed.total(2) == 126


def test_networks_of_users_can_be_estimated() -> None:
    class Odd(nn.Module):
        """A network with batch norm of vectors, an index buffer and an output of several tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("order", torch.arange(64))
            self.norm, self.memory, self.head = nn.BatchNorm1d(64), nn.LSTM(64, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            rows = self.norm(images.flatten(1)[:, self.get_buffer("order")])
            logits: torch.Tensor = self.head(self.memory(rows[:, None])[0][:, 0])
            return logits

    network = networks.to_embedding(networks.use_batch_statistics(Odd().to("meta")))
    sizes = {"real_per_class": 1, "synthetic_per_class": 1, "num_stored": 1, "stored_bytes": 1, "num_learned": 1}
    assert estimate_memory(network, CPU, (1, 8, 8), custom_kernels=False, **sizes).total(1) > 0
    assert images_per_pass(network, CPU, (1, 8, 8)) == 2**22 // (2 * 64)


@given(num=st.integers(1, 60), max_size=st.integers(1, 20), remaining=st.sets(st.integers(0, 59)))
def test_splits_are_even_and_groups_do_not_depend_on_what_remains(num: int, max_size: int, remaining: set[int]) -> None:
    parts = split_evenly(num, max_size)
    sizes = [part.stop - part.start for part in parts]
    assert [index for part in parts for index in range(num)[part]] == list(range(num))
    assert len(parts) == -(-num // max_size)
    assert max(sizes) <= max_size
    groups = remaining_groups(num, max_size, remaining)
    assert [index for group in groups for index in group] == sorted(remaining & set(range(num)))
    part_of = {index: number for number, part in enumerate(parts) for index in range(num)[part]}
    assert all(len({part_of[index] for index in group}) == 1 for group in groups)
