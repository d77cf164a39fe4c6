"""Streamed stores: the batches of images in memory, and when images are streamed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from condenset import UserError
from condenset.data.stores import streamed_store
from condenset.data.stores.class_store import ClassStore
from condenset.data.stores.streamed_store import StreamedStore, check_images_fit, is_streamed
from condenset.engine import ComputeDevice
from condenset.engine.memory import available_memory
from condenset.methods.registry import check_method_memory
from helpers.imports import tiny_import

CPU = ComputeDevice.select("cpu")


@pytest.mark.parametrize("block_bytes", [1, 1 << 30], ids=["image by image", "at once"])
def test_batches_equal_those_of_images_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(streamed_store, "BLOCK_BYTES", block_bytes)
    data = tiny_import(tmp_path / "a", [4, 2, 6])
    indices = torch.tensor([[11, 0, 3], [3, 5, 10]])
    expected = ClassStore(data, CPU.device).take_normalized(indices)
    assert torch.equal(StreamedStore(data, CPU.device).take_normalized(indices), expected)


def test_images_that_are_not_in_class_order_are_read_in_class_order(tmp_path: Path) -> None:
    data = tiny_import(tmp_path / "a", [4, 2, 6])
    shuffled = dataclasses.replace(data, labels=torch.tensor([2, 1, 0] * 4))
    indices = torch.arange(12)
    expected = ClassStore(shuffled, CPU.device).take_normalized(indices)
    assert torch.equal(StreamedStore(shuffled, CPU.device).take_normalized(indices), expected)


def test_memory_mapped_images_are_streamed_if_they_take_more_than_half_of_the_limit(tmp_path: Path) -> None:
    data = tiny_import(tmp_path / "a", [4, 4])
    num_bytes = data.images.numel()
    assert not is_streamed(data, CPU, 2 * num_bytes)
    assert is_streamed(data, CPU, 2 * num_bytes - 1)
    assert is_streamed(data, CPU, 8 * num_bytes - 1, zca=True)  # whitened images are float32
    assert not is_streamed(data, CPU, 8 * num_bytes, zca=True)
    assert not is_streamed(data, CPU, None)
    in_memory = dataclasses.replace(data, images=data.images.clone())
    assert not is_streamed(in_memory, CPU, 1)
    transposed = dataclasses.replace(data, images=data.images.transpose(2, 3))
    assert not is_streamed(transposed, CPU, 1)  # its rows are not those of the file


def test_images_that_do_not_fit_a_gpu_are_refused_with_a_way_out(tmp_path: Path) -> None:
    gpu, data = ComputeDevice(torch.device("cuda"), torch.float32), tiny_import(tmp_path / "a", [4, 4])
    num_bytes = data.images.numel()
    check_images_fit(data, gpu, num_bytes, "dc", "choose dm")
    expected = r"dc needs all images of tiny on the device \(1.5 KiB\), but 1 KiB is the memory limit: choose dm"
    with pytest.raises(UserError, match=expected):
        check_images_fit(data, gpu, 1024, "dc", "choose dm")
    check_images_fit(data, CPU, 1024, "dc", "choose dm")  # a CPU reads them from the file
    in_memory = dataclasses.replace(data, images=data.images.clone())
    check_images_fit(in_memory, gpu, 1024, "dc", "choose dm")


@pytest.mark.parametrize("method", ["dc", "herding", "dd", "ld"])
def test_methods_that_need_all_images_name_one_that_streams(tmp_path: Path, method: str) -> None:
    gpu, data = ComputeDevice(torch.device("cuda"), torch.float32), tiny_import(tmp_path / "a", [4, 4])
    with pytest.raises(UserError, match=f"{method} needs all images .* choose dm, which streams images from disk"):
        check_method_memory(method, data, gpu, 1024)
    check_method_memory(method, data, gpu, 2048)
    with pytest.raises(UserError, match=r"images of tiny on the device \(6 KiB\)"):
        check_method_memory(method, data, gpu, 2048, zca=True)
    for other in ("dm", "mmd", "random"):
        check_method_memory(other, data, gpu, 1024)


def test_available_memory_is_known() -> None:
    available = available_memory(CPU)
    assert available is not None and available > 0
