"""Check the labels, the stored images, the step sizes and the whitening of a condensed set."""

from __future__ import annotations

import torch
from torch import Tensor

from condenset.data.partition import PartLayout, check_stored
from condenset.data.whitening import Whitening
from condenset.errors import UserError, check

BLOCK = 256  # stored images that are decoded at a time


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor contains neither NaN nor infinity, without a mask of its size."""
    return bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def check_labels(labels: Tensor, num_images: int, num_classes: int) -> None:
    """Raise a UserError unless labels are (N,) class indices, or (N, K) probabilities."""
    check(labels.ndim > 0, "labels must have the shape (images,) or (images, classes)", tuple(labels.shape))
    check(len(labels) == num_images, f"there must be {num_images} labels, one per image", len(labels))
    if labels.ndim == 1:
        check(labels.dtype == torch.int64, "hard labels must be int64", labels.dtype)
        in_range = bool(((labels >= 0) & (labels < num_classes)).all())
        check(in_range, f"hard labels must be in 0..{num_classes - 1}", sorted(set(labels.tolist())))
    else:
        shape = tuple(labels.shape)
        check(shape == (num_images, num_classes), "soft labels must have the shape (images, classes)", shape)
        check(labels.dtype == torch.float32, "soft labels must be float32", labels.dtype)
        check(is_finite(labels), "soft labels must be finite", "NaN or infinity")
        check(bool((labels >= 0).all()), "soft labels must be probabilities, not logits", float(labels.min()))


def check_stored_images(compact: Tensor | None, layout: PartLayout, num_images: int) -> None:
    """Raise a UserError unless stored images, if there are any, decode to this number of images."""
    if compact is None:
        check(layout.partition == 1, "partition must be 1 without stored images (compact)", layout.partition)
    else:
        check_stored(compact, layout)
        num = len(compact) * layout.num_parts
        check(num_images == num, f"images must be the {num} images that the stored ones decode to", num_images)


def check_decoded(images: Tensor, labels: Tensor, compact: Tensor, layout: PartLayout) -> None:
    """Raise a UserError if images or labels are not those that the stored images decode to. A file would lose them."""
    num_parts = layout.num_parts
    same_labels = torch.equal(labels, layout.decode_labels(labels[::num_parts]))
    pairs = zip(images.split(BLOCK * num_parts), compact.split(BLOCK), strict=True)
    if not same_labels or not all(torch.allclose(a, layout.decode(b), atol=1e-4) for a, b in pairs):
        way_out = "to keep the change, replace compact by None and partition by 1"
        raise UserError(f"images and labels must be those that the stored images decode to; {way_out}")


def check_step_sizes(steps: Tensor | None) -> None:
    """Raise a UserError unless step sizes, if there are any, are a float32 vector of numbers above 0."""
    if steps is None:
        return
    is_vector = steps.ndim == 1 and len(steps) > 0 and steps.dtype == torch.float32
    shape = f"{steps.dtype} of shape {tuple(steps.shape)}"
    check(is_vector, "step_sizes must be a float32 vector with at least one element", shape)
    check(bool((steps.isfinite() & (steps > 0)).all()), "step_sizes must be above 0", steps.tolist())


def check_whitening(whitening: Whitening | None, images: Tensor) -> None:
    """Raise a UserError unless a whitening, if there is one, fits the images."""
    if whitening is not None:
        num, expected = images[0].numel(), len(whitening.mean)
        check(num == expected, f"images must have the {expected} numbers of the whitening", num)
