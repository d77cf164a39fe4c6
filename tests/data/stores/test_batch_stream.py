"""Batches that are read ahead: order, errors, and the end of the threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from condenset import UserError
from condenset.data.stores.batch_stream import NUM_BUFFERS, BatchStream
from condenset.data.stores.class_store import ClassStore
from condenset.data.stores.streamed_store import StreamedStore
from condenset.engine import ComputeDevice
from helpers.imports import tiny_import, truncate_images

CPU = ComputeDevice.select("cpu")


@pytest.fixture
def store(tmp_path: Path) -> StreamedStore:
    return StreamedStore(tiny_import(tmp_path / "a", [5, 7]), CPU.device)


def stream_threads() -> list[str]:
    """Return the names of the threads that read images."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("condenset-")]


def test_batches_come_in_order_and_have_the_requested_images(tmp_path: Path, store: StreamedStore) -> None:
    generator = torch.Generator().manual_seed(0)
    requests = [torch.randint(0, 12, (2, 3), generator=generator) for _ in range(4 * NUM_BUFFERS)]
    requests.append(torch.tensor([[11, 0, 3]]))  # a smaller last batch
    in_memory = ClassStore(tiny_import(tmp_path / "b", [5, 7]), CPU.device)
    stream = BatchStream(store, iter(requests), 6)
    for indices in requests:
        with stream.next_batch() as batch:
            assert torch.equal(store.normalize(batch), in_memory.take_normalized(indices))
    stream.close()
    assert not stream_threads()


def test_an_error_of_the_reader_is_raised_where_the_batch_is_used(tmp_path: Path, store: StreamedStore) -> None:
    first_is_used = threading.Event()  # the second batch is sampled while the first one is read

    def indices() -> Iterator[Tensor]:
        yield torch.tensor([[0, 1]])
        first_is_used.wait(10)
        truncate_images(tmp_path / "a", 1000)
        yield torch.tensor([[2, 3]])

    stream = BatchStream(store, indices(), 2)
    with stream.next_batch() as batch:
        assert batch.indices.shape == (1, 2)
        first_is_used.set()
    with pytest.raises(UserError, match="must keep its"), stream.next_batch():
        pass
    stream.close()
    assert not stream_threads()


def test_a_batch_after_the_last_one_is_an_error(store: StreamedStore) -> None:
    stream = BatchStream(store, iter([]), 2)
    for _ in range(2):  # the second call does not wait
        with pytest.raises(RuntimeError, match="all batches"), stream.next_batch():
            pass
    stream.close()


def test_closing_ends_threads_that_wait_for_a_buffer(store: StreamedStore) -> None:
    num_started = 0

    def indices() -> Iterator[Tensor]:
        nonlocal num_started
        while True:
            num_started += 1
            yield torch.tensor([[0, 1]])

    stream = BatchStream(store, indices(), 2)
    with stream.next_batch():
        assert stream_threads()
    stream.close()
    assert not stream_threads()
    assert num_started <= NUM_BUFFERS + 2
