"""Find out whether test images contain images that a set was made from."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.reading.options import LoadOptions
from condenset.data.split import describe_overlap
from condenset.errors import UserError, option, warn_user
from condenset.pipeline.datasets import is_same_dataset
from condenset.pipeline.evaluation.config import EvaluationSource, parse_origin
from condenset.pipeline.evaluation.images import TestImageCache


def check_overlap(
    condensed: CondensedSet,
    origin: EvaluationSource | None,
    source: EvaluationSource | None,
    test: ImageData,
    cache: TestImageCache,
    file: Path | None = None,
) -> bool:
    """Return whether the test images contain images that a set was made from, or may do so, with a warning if so.

    Args:
        condensed: The set.
        origin: Where the images are that it was made from. None: unknown.
        source: The dataset with the test images. None: unknown.
        test: The test images.
        cache: Loads the images of `source` if it may be a copy of the origin that is divided differently.
        file: The file of the set, for messages. None: the set and the images are arguments in Python.

    Raises:
        UserError: The test images are a hold-out of images that were all used to make the set.
    """
    fingerprint = condensed.provenance.get("fingerprint")
    overlap = describe_overlap(condensed, test)
    if overlap != "contain" and source is not None and _has_common_images(fingerprint, origin, source, cache):
        overlap = "contain"
    if not overlap:
        return False
    name, other = file or "the set", "give other images"
    if file is not None:
        other += f" with {option('dataset')} or {option('test')}"
    made_from_part = condensed.provenance.get("parent_fingerprint") or (origin and origin.options.test_share)
    if source is not None and source.options.test_share is not None and not made_from_part:
        raise UserError(f"{name} was made from all images of {source.dataset}, so that none can be held out: {other}")
    is_high = "is" if overlap == "contain" else "may be"
    images = f"{source.options.scored_on if source else 'test'} images"
    warn_user(f"the {images} {overlap} images that {name} was made from: its accuracy {is_high} too high; {other}")
    return True


def check_overlap_in_memory(condensed: CondensedSet, test: ImageData) -> None:
    """Check the arguments of `cs.evaluate` by what they record about their images. See `check_overlap`."""
    origin = parse_origin(condensed.provenance.get("origin"), "the provenance of the set")
    source = parse_origin({**test.origin, "test": None} if test.origin else None, "the test images")
    check_overlap(condensed, origin, source, test, TestImageCache())


def _has_common_images(
    fingerprint: object, origin: EvaluationSource | None, source: EvaluationSource, cache: TestImageCache
) -> bool:
    """Return whether the test images are from the images of the origin, and not the part that it holds out."""
    tested, origin_options = source, origin.options if origin else LoadOptions()
    if source.options.test is not None:  # all images of this path
        options = dataclasses.replace(source.options, test=None)
        tested = dataclasses.replace(source, dataset=source.options.test, options=options)
    if tested.options.test_share == origin_options.test_share:
        return False  # `describe_overlap` compares parts of the training images
    if origin is not None and is_same_dataset(tested.dataset, origin.dataset):
        return True
    test_share, val_share = origin_options.test_share, origin_options.val_share
    options = dataclasses.replace((origin or tested).options, test=None, test_share=test_share, val_share=val_share)
    return _train_fingerprint(dataclasses.replace(tested, every_image=False, options=options), cache) == fingerprint


def _train_fingerprint(source: EvaluationSource, cache: TestImageCache) -> str | None:
    """Return the fingerprint of the training images, or None if the dataset cannot be read in this way."""
    with warnings.catch_warnings(action="ignore"):  # they came when the test images were loaded
        try:
            return cache.load(source)[1]
        except UserError:  # such as a dataset with a test split, where nothing can be held out
            return None
