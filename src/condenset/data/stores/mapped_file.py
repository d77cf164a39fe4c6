"""Images that stay in a file: find the memory map behind a tensor, and read rows of it with few pages in memory."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import warnings
import weakref
from concurrent.futures import Executor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condenset.errors import UserError, format_error

MappedArray = np.memmap[Any, Any]

HUGE_PAGE_BYTES = 2 << 20  # that Linux maps, at most, when one byte is read
PAGES_PER_PART = 16  # huge pages that a thread maps before it releases them

_arrays: weakref.WeakValueDictionary[int, MappedArray] = weakref.WeakValueDictionary()  # by address


def to_tensor(array: MappedArray) -> Tensor:
    """Return a memory-mapped array as a tensor, which `find_memmap` recognises."""
    tensor = from_numpy(array)
    _arrays[tensor.untyped_storage().data_ptr()] = array
    return tensor


def from_numpy(array: NDArray[Any]) -> Tensor:
    """Return an array, which may be read-only, as a tensor."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def find_memmap(tensor: Tensor) -> MappedArray | None:
    """Return the memory-mapped array that a tensor is, or is a view of; None if it is in memory."""
    return _arrays.get(tensor.untyped_storage().data_ptr()) if tensor.device.type == "cpu" else None


class MappedImages:
    """Read images of a memory-mapped tensor by row. Mapped pages count as memory of the process, so it releases them.

    The pages stay in the cache of the operating system, which frees them when other programs need memory.

    Args:
        images_NCHW: A contiguous memory-mapped tensor.
    """

    def __init__(self, images_NCHW: Tensor) -> None:
        array = find_memmap(images_NCHW)
        assert array is not None and images_NCHW.is_contiguous()  # else NumPy would copy all images
        self._images_NCHW, self._array = images_NCHW, array  # the tensor keeps the map open
        self._map: mmap.mmap = array._mmap  # type: ignore[attr-defined]
        self._pixels = images_NCHW.numpy()
        self._bytes_per_row = images_NCHW[0].nbytes
        self._offset = array.offset % mmap.ALLOCATIONGRANULARITY + images_NCHW.data_ptr() - array.ctypes.data

    def read(self, rows_N: Tensor, out_NCHW: Tensor, threads: Executor | None = None) -> None:
        """Copy the images at these rows to a tensor on the host.

        Args:
            rows_N: The rows, on the host. Ascending rows are faster.
            out_NCHW: Where the images are written.
            threads: Threads that share the work. None: the calling thread.

        Raises:
            UserError: The file is shorter than it was.
        """
        self._check_size()
        rows, out = rows_N.numpy(), out_NCHW.numpy()

        def read_part(part: slice) -> None:  # without Python's lock; "clip" writes to `out` without a buffer
            np.take(self._pixels, rows[part], axis=0, out=out[part], mode="clip")
            self._release(rows[part])

        list((threads.map if threads else map)(read_part, self._split(rows)))

    def _split(self, rows: NDArray[np.int64]) -> list[slice]:
        """Split rows into parts that map few pages."""
        pages = rows * self._bytes_per_row // HUGE_PAGE_BYTES
        num_pages = np.cumsum(pages[1:] != pages[:-1])
        stops = np.flatnonzero(np.diff(num_pages // PAGES_PER_PART, prepend=0)) + 1
        bounds = [0, *stops.tolist(), len(rows)]
        return [slice(start, stop) for start, stop in itertools.pairwise(bounds)]

    def _check_size(self) -> None:
        """Check that the file has all its bytes: reading beyond its end would end the process."""
        expected = self._array.offset + self._array.nbytes
        try:
            size = self._map.size()
        except OSError as error:
            raise UserError(f"cannot read {self._array.filename}: {format_error(error)}") from None
        if size < expected:
            rule = f"must keep its {expected:,} bytes during a run, but has {size:,} now"
            raise UserError(f"{self._array.filename} {rule}: import the dataset again")

    def _release(self, rows: NDArray[np.int64]) -> None:
        """Remove the pages of these rows from the memory of the process, where the platform allows it."""
        if len(rows) and hasattr(mmap, "MADV_DONTNEED"):
            start = self._offset + int(rows.min()) * self._bytes_per_row
            stop = self._offset + (int(rows.max()) + 1) * self._bytes_per_row
            start -= start % mmap.PAGESIZE
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)
