"""Find test images that are also training images."""

from __future__ import annotations

import hashlib

from condenset.data.image_data import ImageData, Splits
from condenset.data.reading.file_scan import DatasetWarning
from condenset.data.reading.lazy import Pixels
from condenset.errors import warn_user

MAX_BYTES = 1 << 30  # of images that are compared before a run; hashing them takes about a second


def hash_images(images: Pixels) -> list[bytes]:
    """Return a hash of the pixels of each image."""
    return [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in images]


def warn_about_shared_images(splits: Splits, scored_on: str = "test") -> None:
    """Warn if images to score on have the pixels of training images.

    Data that are large or memory-mapped are not compared.
    """
    train, test = splits.train, splits.test
    if test is None or train.stored_fingerprint or train.images.numel() + test.images.numel() > MAX_BYTES:
        return
    num_shared = _count_shared(train, test)
    if num_shared:
        count = f"{num_shared:,} of the {len(test):,} {scored_on} images"
        message = f"{train.name}: {count} have the pixels of a training image, so that accuracies are too high"
        warn_user(f"{message}: remove them", DatasetWarning)


def _count_shared(train: ImageData, test: ImageData) -> int:
    train_hashes = set(hash_images(train.images.numpy()))
    return sum(image_hash in train_hashes for image_hash in hash_images(test.images.numpy()))
