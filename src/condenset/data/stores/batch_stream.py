"""Read batches ahead of the steps that use them, so that the device does not wait for the disk."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from condenset.data.stores.class_store import ImageBatch
from condenset.data.stores.streamed_store import StreamedStore

NUM_BUFFERS = 3  # batches on the device: one in use, one ready, one being read


class BatchStream:
    """Read batches of a `StreamedStore` in threads, in the order in which `next_batch` yields them.

    One thread samples the indices of the next batch while others read the current one. On CUDA, indices are sampled on
    the device and images are copied from pinned memory, both in streams of their own. Events order the streams: a batch
    is used after it is copied, and its buffer is filled after it is used.

    Args:
        store: The store.
        indices: Yields the (K, B) indices of every batch, on the device of the store. It runs in a thread.
        max_images: The number of images of the largest batch.
    """

    def __init__(self, store: StreamedStore, indices: Iterator[Tensor], max_images: int) -> None:
        self._store, self._indices = store, indices
        self._index_stream, self._copy_stream = (_make_stream(store.device) for _ in range(2))
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[_Buffer | BaseException] = queue.SimpleQueue()
        self._buffers = [_Buffer.allocate(store, max_images) for _ in range(NUM_BUFFERS)]
        for buffer in self._buffers:
            self._free.put(buffer)
        self._is_closed = False
        self._sampler = ThreadPoolExecutor(1, "condenset-sample")
        self._readers = ThreadPoolExecutor(store.num_threads, "condenset-read")
        self._thread = threading.Thread(target=self._run, name="condenset-stream", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def next_batch(self) -> Iterator[ImageBatch]:
        """Yield the next batch. Its buffer is reused after the block.

        Raises:
            UserError: The images cannot be read.
        """
        buffer = self._wait_for_buffer()
        yield buffer.batch
        if buffer.used:
            buffer.used.record(torch.cuda.current_stream(self._store.device))
        self._free.put(buffer)

    def _wait_for_buffer(self) -> _Buffer:
        """Return the next buffer. Work that is queued on the device after this call waits for its images."""
        buffer = self._ready.get()
        if isinstance(buffer, BaseException):
            self._ready.put(buffer)  # a further call must not wait
            raise buffer
        if buffer.copied:
            torch.cuda.current_stream(self._store.device).wait_event(buffer.copied)
        return buffer

    def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        self._free.put(self._buffers[0])  # the thread may wait for a buffer
        self._thread.join()
        self._sampler.shutdown()
        self._readers.shutdown()
        if self._copy_stream:
            self._copy_stream.synchronize()  # the buffers are freed after this

    def _run(self) -> None:
        """Read all batches, in the thread."""
        try:
            with torch.cuda.stream(self._copy_stream):
                sampled = self._sampler.submit(self._sample)
                while (rows := sampled.result()) is not None:
                    sampled = self._sampler.submit(self._sample)
                    buffer = self._free.get()
                    if self._is_closed:
                        return
                    self._fill(buffer, rows)
                    self._ready.put(buffer)
            self._ready.put(RuntimeError("all batches have been used"))
        except BaseException as error:  # raised where the batch is used
            self._ready.put(error)

    def _sample(self) -> _SortedRows | None:
        """Sample the next batch; return None after the last one."""
        with torch.cuda.stream(self._index_stream):
            indices_KB = next(self._indices, None)
            return None if indices_KB is None else _SortedRows.sort(indices_KB.cpu())

    def _fill(self, buffer: _Buffer, rows: _SortedRows) -> None:
        """Read the images of a batch, and copy them to the device."""
        num = len(rows.rows_N)
        if buffer.copied:
            buffer.copied.synchronize()  # the copy of an earlier batch reads the pinned memory
        buffer.host_indices_N[:num] = rows.positions_KB.flatten()
        self._store.read(rows.rows_N, buffer.host_NCHW[:num], self._readers)
        if self._copy_stream and buffer.used:
            self._copy_stream.wait_event(buffer.used)
        for host, device in ((buffer.host_NCHW, buffer.images_NCHW), (buffer.host_indices_N, buffer.indices_N)):
            if device is not host:
                device[:num].copy_(host[:num], non_blocking=self._copy_stream is not None)
        if buffer.copied:
            buffer.copied.record(self._copy_stream)
        buffer.batch = ImageBatch(buffer.images_NCHW[:num], buffer.indices_N[:num].view_as(rows.positions_KB))


def _make_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a CUDA stream that begins after the queued work. Its few small kernels do not wait for the steps."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device, priority=-1)
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


class _SortedRows(NamedTuple):
    """A batch, sorted: reading in the order of the file is faster. The positions restore the order of the batch."""

    rows_N: Tensor
    positions_KB: Tensor

    @classmethod
    def sort(cls, indices_KB: Tensor) -> _SortedRows:
        """Sort a batch of indices on the host."""
        rows_N, order_N = indices_KB.flatten().sort()
        positions_N = torch.empty_like(order_N)
        positions_N[order_N] = torch.arange(len(order_N))
        return cls(rows_N, positions_N.view_as(indices_KB))


@dataclass
class _Buffer:
    """Memory of one batch: pinned if the device is a GPU. On a CPU, host and device are the same."""

    host_NCHW: Tensor
    host_indices_N: Tensor
    images_NCHW: Tensor
    indices_N: Tensor
    copied: torch.cuda.Event | None  # to the device
    used: torch.cuda.Event | None  # by a step
    batch: ImageBatch = field(init=False)

    @classmethod
    def allocate(cls, store: StreamedStore, num: int) -> _Buffer:
        """Allocate the memory of a batch of `num` images."""
        is_cuda = store.device.type == "cuda"
        host_NCHW = torch.empty(num, *store.image_shape, dtype=torch.uint8, pin_memory=is_cuda)
        host_indices_N = torch.empty(num, dtype=torch.int64, pin_memory=is_cuda)
        device_tensors = host_NCHW.to(store.device), host_indices_N.to(store.device)  # on a CPU, the same tensors
        events = (torch.cuda.Event(), torch.cuda.Event()) if is_cuda else (None, None)
        return cls(host_NCHW, host_indices_N, *device_tensors, *events)
