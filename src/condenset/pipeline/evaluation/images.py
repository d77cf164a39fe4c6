"""Load the test images of an evaluation."""

from __future__ import annotations

import dataclasses

from condenset.data.image_data import ImageData
from condenset.data.reading.loading import load_splits, load_test_images
from condenset.data.reading.opening import absolute_dataset_path
from condenset.errors import UserError
from condenset.pipeline.datasets import add_path_hint, ignore_dataset_warnings, resolve_load_options
from condenset.pipeline.evaluation.config import EvaluationSource


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

    def reload(self, source: EvaluationSource, fingerprint: str) -> ImageData:
        """Return the test images that a job of a resumed evaluation began with.

        The new paths are tried first: the jobs may have several datasets, of which one has moved.

        Args:
            source: Where the test images were when the evaluation began.
            fingerprint: Their fingerprint.

        Raises:
            UserError: They are missing or have changed.
        """
        errors: list[UserError] = []
        for candidate in dict.fromkeys((self._relocate(source), source)):
            try:
                with ignore_dataset_warnings():
                    test, _ = self.load(candidate)
            except UserError as error:
                errors.append(add_path_hint(error, candidate.options))
                continue
            if test is not None and test.fingerprint == fingerprint:
                return test
            reason = "has changed since the evaluation began: start a new evaluation"
            if candidate != source:
                reason = "has other test images than the evaluation began with"
            errors.append(UserError(f"{candidate.options.test or candidate.dataset} {reason}"))
        raise errors[0]

    def _relocate(self, source: EvaluationSource) -> EvaluationSource:
        """Return a source with the paths that its data have now."""
        dataset, options = source.dataset, source.options
        if self._moved_to is not None:
            dataset = absolute_dataset_path(self._moved_to, source.data_dir)
        if options.test is not None and self._test_moved_to is not None:
            options = resolve_load_options(options.changed_fields() | {"test": self._test_moved_to})
        return dataclasses.replace(source, dataset=dataset, options=options)

    def _load(self, source: EvaluationSource) -> tuple[ImageData | None, str]:
        if source.every_image and source.options.val_share is None:
            return load_test_images(source.dataset, source.data_dir, source.options), ""
        splits, _ = load_splits(source.dataset, source.data_dir, source.options)
        return splits.test, splits.train.fingerprint
