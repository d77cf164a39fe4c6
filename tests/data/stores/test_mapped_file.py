"""Memory-mapped images: recognised, also as views, read by row, with few pages in memory."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from condenset import UserError
from condenset.data.stores import mapped_file
from condenset.data.stores.mapped_file import MappedImages, find_memmap
from helpers.imports import tiny_import, truncate_images


def test_a_memory_mapped_tensor_and_its_views_are_recognised(tmp_path: Path) -> None:
    images = tiny_import(tmp_path / "a", [4, 5]).images
    array = find_memmap(images)
    assert array is not None and Path(str(array.filename)).name == "train-images.npy"
    assert find_memmap(images[2:5]) is array
    assert find_memmap(images.clone()) is None
    assert find_memmap(images[[0, 1]]) is None


def test_a_map_is_forgotten_with_its_tensor(tmp_path: Path) -> None:
    images = tiny_import(tmp_path / "a", [4, 5]).images
    address = images.untyped_storage().data_ptr()
    assert address in mapped_file._arrays
    del images
    gc.collect()
    assert address not in mapped_file._arrays


@pytest.mark.parametrize("num_threads", [0, 3])
@pytest.mark.parametrize("page_bytes", [100, 400, 1 << 30], ids=["row by row", "two rows", "at once"])
def test_rows_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_threads: int, page_bytes: int
) -> None:
    monkeypatch.setattr(mapped_file, "HUGE_PAGE_BYTES", page_bytes)  # images have 192 bytes
    monkeypatch.setattr(mapped_file, "PAGES_PER_PART", 1)
    images = tiny_import(tmp_path / "a", [4, 5]).images[1:]
    rows, out = torch.tensor([7, 0, 3, 3, 2]), torch.empty(5, *images.shape[1:], dtype=torch.uint8)
    expected = images[rows]
    if num_threads:
        with ThreadPoolExecutor(num_threads) as threads:
            MappedImages(images).read(rows, out, threads)
    else:
        MappedImages(images).read(rows, out)
    assert torch.equal(out, expected)


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    images = tiny_import(tmp_path / "a", [4, 5]).images
    file, out = MappedImages(images), torch.empty(1, *images.shape[1:], dtype=torch.uint8)
    file.read(torch.tensor([0]), out)
    truncate_images(tmp_path / "a", 10)
    with pytest.raises(UserError, match=r"train-images.npy must keep its [0-9,]+ bytes during a run, but has [0-9,]+"):
        file.read(torch.tensor([0]), out)
