"""Sample batches per class from memory-mapped images that do not fit the memory of the device."""

from __future__ import annotations

import math
import os
from concurrent.futures import Executor

import torch
from torch import Tensor

from condenset.data.datasets.outline import DatasetOutline
from condenset.data.image_data import ImageData
from condenset.data.stores.class_store import ClassStore, ImageBatch, class_order
from condenset.data.stores.mapped_file import MappedImages, find_memmap
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import USABLE_SHARE, available_memory
from condenset.errors import UserError
from condenset.io.bytesize import format_bytes

STORED_SHARE = 0.5  # of the memory that the images of a dataset may take; larger ones are streamed
BLOCK_BYTES = 64 << 20  # of images that are read at once when they are not read ahead
MAX_THREADS = 12  # that read images for a GPU; on a CPU they would take the time of the computation


def is_streamed(data: ImageData, compute: ComputeDevice, memory_limit: int | None, *, zca: bool = False) -> bool:
    """Return whether methods that can stream images leave them on disk: if they are memory-mapped and do not fit."""
    return is_mapped(data) and not fits_memory(data, compute, memory_limit, STORED_SHARE, zca=zca)


def is_mapped(data: ImageData) -> bool:
    """Return whether the images are memory-mapped. A dataset that does not exist yet will be."""
    return isinstance(data, DatasetOutline) or (find_memmap(data.images) is not None and data.images.is_contiguous())


def fits_memory(
    data: ImageData, compute: ComputeDevice, memory_limit: int | None, share: float, *, zca: bool = False
) -> bool:
    """Return whether the images take at most a share of the memory limit; without a limit, of the free memory."""
    usable = available_memory(compute) if memory_limit is None else memory_limit
    return stored_bytes(data, zca=zca) <= share * usable


def stored_bytes(data: ImageData, *, zca: bool = False) -> int:
    """Return the size of the images on a device: whitened ones are stored as float32.

    Args:
        data: The images.
        zca: Whether a run will whiten the images. They may be whitened already.
    """
    return data.images.numel() * (torch.float32.itemsize if zca or data.whitening is not None else 1)


def check_images_fit(
    data: ImageData, compute: ComputeDevice, memory_limit: int | None, user: str, way_out: str, *, zca: bool = False
) -> None:
    """Raise a UserError if memory-mapped images do not fit the device. A CPU reads them from the file instead.

    Args:
        data: The images.
        compute: The device.
        memory_limit: The bytes that the run may use. None: most of the free memory.
        user: What needs all images.
        way_out: What the user can do instead.
        zca: Whether the run will whiten the images.
    """
    share = USABLE_SHARE if memory_limit is None else 1.0
    if compute.device.type == "cpu" or not is_mapped(data) or fits_memory(data, compute, memory_limit, share, zca=zca):
        return
    usable = available_memory(compute) if memory_limit is None else memory_limit
    room = f"{format_bytes(usable)} {'are free' if memory_limit is None else 'is the memory limit'}"
    needed = format_bytes(stored_bytes(data, zca=zca))
    raise UserError(f"{user} needs all images of {data.name} on the device ({needed}), but {room}: {way_out}")


class StreamedStore(ClassStore):
    """The images of a dataset in their file. Batches are read when they are taken, or ahead by a `BatchStream`."""

    def _store_images(self, data: ImageData, device: torch.device) -> None:
        self.device, self._file, self._order = device, MappedImages(data.images), class_order(data.labels)
        self.num_threads = min(MAX_THREADS, os.cpu_count() or 1) if device.type == "cuda" else 1

    def batch(self, indices: Tensor) -> ImageBatch:
        """Read the images at these indices of the dataset in class order, and copy them to the device."""
        rows_N = indices.flatten().cpu()
        images_NCHW = torch.empty(len(rows_N), *self.image_shape, dtype=torch.uint8, device=self.device)
        num = max(1, BLOCK_BYTES // math.prod(self.image_shape))
        for part_N, out_NCHW in zip(rows_N.split(num), images_NCHW.split(num), strict=True):
            block_NCHW = torch.empty(out_NCHW.shape, dtype=torch.uint8)
            self.read(part_N, block_NCHW)
            out_NCHW.copy_(block_NCHW)
        return ImageBatch(images_NCHW, torch.arange(len(rows_N), device=self.device).view_as(indices))

    def read(self, indices_N: Tensor, out_NCHW: Tensor, threads: Executor | None = None) -> None:
        """Read the images at these indices into a tensor on the host.

        Args:
            indices_N: Indices of the dataset in class order, on the host.
            out_NCHW: Where the images are written.
            threads: Threads that share the work. None: the calling thread.
        """
        rows_N = indices_N if self._order is None else self._order[indices_N]
        self._file.read(rows_N, out_NCHW, threads)
