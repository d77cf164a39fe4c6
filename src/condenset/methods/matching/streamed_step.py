"""Capture a step whose images are read ahead by threads.

A graph cannot wait for threads. Every chunk of classes is therefore a separate graph, and its batch is copied to
fixed memory before the graph is replayed. Without capture, launching the kernels takes longer than running them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from condenset.data.stores.batch_stream import BatchStream
from condenset.data.stores.class_store import ImageBatch
from condenset.engine.cuda_graph import capture_parts
from condenset.engine.device import ComputeDevice


def capture_streamed_step(
    match: Callable[[int, ImageBatch], Tensor],
    end_step: Callable[[Tensor], None],
    batch_shapes: Sequence[tuple[int, int]],
    image_shape: tuple[int, ...],
    state: Sequence[Tensor],
    compute: ComputeDevice,
) -> Callable[[BatchStream], None]:
    """Return a function that runs one step on the next batches of a stream.

    Args:
        match: Match the chunk of this number with its batch of real images, and return the loss.
        end_step: Called with the sum of the losses.
        batch_shapes: The number of classes and of images per class of every batch.
        image_shape: The shape of an image.
        state: All tensors that `match` and `end_step` change.
        compute: Device and precision.
    """
    max_images = max(num_classes * batch_size for num_classes, batch_size in batch_shapes)
    images_NCHW = torch.zeros(max_images, *image_shape, dtype=torch.uint8, device=compute.device)
    indices_N = torch.zeros(max_images, dtype=torch.int64, device=compute.device)
    total_loss = torch.zeros((), device=compute.device)
    batches = [
        ImageBatch(images_NCHW[: num_classes * batch_size], indices_N[: num_classes * batch_size].view(-1, batch_size))
        for num_classes, batch_size in batch_shapes
    ]

    def add_loss(number: int) -> None:
        total_loss.add_(match(number, batches[number]))

    def end() -> None:
        end_step(total_loss)
        total_loss.zero_()

    parts: list[Callable[[], None]] = [functools.partial(add_loss, number) for number in range(len(batches))]
    *captured_chunks, captured_end = capture_parts([*parts, end], [*state, total_loss], compute)

    def step(stream: BatchStream) -> None:
        for batch, captured_chunk in zip(batches, captured_chunks, strict=True):
            with stream.next_batch() as next_batch:
                batch.images_NCHW.copy_(next_batch.images_NCHW)
                batch.indices.copy_(next_batch.indices)
            captured_chunk()
        captured_end()

    return step
