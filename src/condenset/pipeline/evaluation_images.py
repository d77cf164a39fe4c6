"""Load the test images of an evaluation."""

from __future__ import annotations

from condenset.data.image_data import ImageData
from condenset.data.loading import load_splits, load_test_images
from condenset.pipeline.datasets import resolve_load_options
from condenset.pipeline.evaluation_config import EvaluationSource


class TestImageCache:
    """Load the test images of each source once.

    Args:
        moved_to: Path of the dataset now, if it has moved.
        test_moved_to: Path of the test images now, if they were given by their own path and have moved.
    """

    __test__ = False  # not a test class of pytest

    def __init__(self, moved_to: str | None = None, test_moved_to: str | None = None) -> None:
        self._moved_to, self._test_moved_to = moved_to, test_moved_to
        self._loaded: dict[EvaluationSource, tuple[ImageData | None, str]] = {}

    def load(self, source: EvaluationSource) -> tuple[ImageData | None, str]:
        """Return the test images, or None if the dataset has none, and the fingerprint of its training images.

        The fingerprint is empty if the training images are not needed to know the test images.
        """
        if source not in self._loaded:
            self._loaded[source] = self._load(source)
        return self._loaded[source]

    def _load(self, source: EvaluationSource) -> tuple[ImageData | None, str]:
        dataset, options = self._moved_to or source.dataset, source.options
        if options.test is not None and self._test_moved_to is not None:
            options = resolve_load_options(options.changed_fields() | {"test": self._test_moved_to})
        if source.every_image:
            return load_test_images(dataset, source.data_dir, options), ""
        splits, _ = load_splits(dataset, source.data_dir, options)
        return splits.test, splits.train.fingerprint
