"""Find out whether test images contain images that a set was made from."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import UserError, option, warn_user
from condenset.pipeline.datasets import is_same_dataset
from condenset.pipeline.evaluation.config import EvaluationSource
from condenset.pipeline.evaluation.images import TestImageCache


def check_overlap(
    condensed: CondensedSet,
    file: Path,
    origin: EvaluationSource | None,
    source: EvaluationSource,
    test: ImageData,
    cache: TestImageCache,
) -> bool:
    """Return whether the test images contain images that a set was made from, with a warning if so.

    Args:
        condensed: The set.
        file: Its file.
        origin: Where the images are that it was made from. None: unknown.
        source: The dataset with the test images.
        test: The test images.
        cache: Loads images.

    Raises:
        UserError: The test images are a hold-out of images that were all used to make the set.
    """
    fingerprint = condensed.provenance.get("fingerprint")
    if test.fingerprint != fingerprint and not _has_common_images(fingerprint, origin, source, cache):
        return False
    other = f"give other images with {option('dataset')} or {option('test')}"
    made_from_all = origin is None or origin.options.test_share is None
    if source.options.test_share is not None and made_from_all:
        raise UserError(f"{file} was made from all images of {source.dataset}, so that none can be held out: {other}")
    warn_user(f"the test images contain images that {file} was made from: its accuracy is too high; {other}")
    return True


def is_made_from(condensed: CondensedSet, test: ImageData) -> bool:
    """Return whether a set was made from the test images, or from another part of the same dataset.

    No images are loaded: the fingerprints and the origins decide.
    """
    origin, test_origin = condensed.provenance.get("origin"), test.origin
    if test.fingerprint == condensed.provenance.get("fingerprint"):
        return True
    if not isinstance(origin, Mapping) or origin.get("test_share") == test_origin.get("test_share"):
        return False
    datasets = [origin.get("dataset"), test_origin.get("dataset")]
    return all(isinstance(dataset, str) for dataset in datasets) and is_same_dataset(*map(str, datasets))


def _has_common_images(
    fingerprint: object, origin: EvaluationSource | None, source: EvaluationSource, cache: TestImageCache
) -> bool:
    """Return whether the test images are from the images of the origin, and not the part that it holds out."""
    tested, origin_share = source, origin.options.test_share if origin else None
    if source.options.test is not None:  # all images of this path
        options = dataclasses.replace(source.options, test=None)
        tested = dataclasses.replace(source, dataset=source.options.test, options=options)
    if tested.options.test_share == origin_share:
        return False
    if origin is not None and is_same_dataset(tested.dataset, origin.dataset):
        return True
    options = dataclasses.replace((origin or tested).options, test=None, test_share=origin_share)
    return _train_fingerprint(dataclasses.replace(tested, every_image=False, options=options), cache) == fingerprint


def _train_fingerprint(source: EvaluationSource, cache: TestImageCache) -> str | None:
    """Return the fingerprint of the training images, or None if the dataset cannot be read in this way."""
    with warnings.catch_warnings(action="ignore"):  # they came when the test images were loaded
        try:
            return cache.load(source)[1]
        except UserError:  # such as a dataset with a test split, where nothing can be held out
            return None
