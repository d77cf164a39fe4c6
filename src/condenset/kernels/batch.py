"""The indices and the labels of the next batch in one launch instead of four."""

from torch import Tensor

from condenset.kernels.runtime import jit, launch, tl, triton

BLOCK_SIZE = 256


@jit
def _take_batch(order, position, labels, index, batch_labels, num, batch_size, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < batch_size
    place = tl.minimum(tl.load(position) + offset, num - 1)
    image = tl.load(order + place, mask=inside, other=0)
    tl.store(index + offset, image, mask=inside)
    tl.store(batch_labels + offset, tl.load(labels + image, mask=inside, other=0), mask=inside)


def take_batch(order: Tensor, position: Tensor, labels: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return indices and labels as `condenset.training.dataset.take_batch` does, for labels that are classes."""
    index, batch_labels = order.new_empty(batch_size), labels.new_empty(batch_size)
    launch(
        _take_batch, (triton.cdiv(batch_size, BLOCK_SIZE),), order, position, labels, index, batch_labels, len(order),
        batch_size, BLOCK=BLOCK_SIZE,
    )  # fmt: skip
    return index, batch_labels
