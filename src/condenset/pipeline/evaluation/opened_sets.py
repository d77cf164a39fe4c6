"""Open the sets of an evaluation, and load the images to test them on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.reading.opening import is_known_name
from condenset.data.reading.options import override_fields
from condenset.data.split import is_subset_source
from condenset.errors import UserError, check, option, warn_user
from condenset.io.metadata import holds_config
from condenset.io.user_directories import absolute_path
from condenset.pipeline.config import read_plan
from condenset.pipeline.datasets import resolve_load_options
from condenset.pipeline.evaluation.config import EvaluationSource, parse_origin
from condenset.pipeline.evaluation.images import TestImageCache
from condenset.pipeline.evaluation.overlap import check_overlap
from condenset.pipeline.plan import Plan
from condenset.training.class_matching import align_classes


@dataclass(frozen=True, kw_only=True)
class OpenedSet:
    """A set to score.

    Attributes:
        file: The set file, as the user names it.
        condensed: The set.
        plan: The run that made the set. None: unknown.
        source: The dataset with the test images.
        test: The test images.
        made_from: Name or path of the dataset that the set was made from. Empty: unknown.
    """

    file: Path
    condensed: CondensedSet
    plan: Plan | None
    source: EvaluationSource
    test: ImageData
    made_from: str


def open_set(
    file: Path,
    cache: TestImageCache,
    source: EvaluationSource | None,
    data_dir: str | None,
    load_fields: Mapping[str, Any],
) -> OpenedSet:
    """Load a set and its test images.

    Args:
        file: The set file.
        cache: Loads test images.
        source: The dataset that the user gave. None: the one that the set was made from.
        data_dir: Directory of the datasets that the user gave.
        load_fields: Fields of `LoadOptions` that the user gave.

    Raises:
        UserError: The dataset is missing, has no test images, or does not fit the set.
    """
    condensed = CondensedSet.load(file)
    plan = find_run(condensed, file)
    origin = read_origin(condensed, file, plan)
    train_fingerprint = ""
    if source is not None:
        test, _ = cache.load(source)
        assert test is not None
    else:
        try:
            source = _find_source(condensed, file, origin, data_dir, load_fields)
            test, train_fingerprint = _load_own_test_images(file, source, origin, cache)
        except UserError:
            if "test" not in load_fields:
                raise
            source = _make_test_source(origin, data_dir, load_fields)  # the dataset of the set is not needed
            test, _ = cache.load(source)
            assert test is not None
    _check_classes(condensed, file, test)  # first: images of another shape have another fingerprint
    has_overlap = check_overlap(condensed, origin, source, test, cache, file)
    if train_fingerprint and not has_overlap and (origin is None or origin.options == source.options):
        _warn_about_changed_images(condensed, file, source, train_fingerprint)
    made_from = origin.dataset if origin else str(condensed.provenance.get("dataset", ""))
    return OpenedSet(file=file, condensed=condensed, plan=plan, source=source, test=test, made_from=made_from)


def find_run(condensed: CondensedSet, file: Path) -> Plan | None:
    """Return the plan of the run that made a set, if the set file is in the directory of this run."""
    for directory in file.absolute().parents[:2]:
        if (directory / "recipe.toml").is_file() and holds_config(directory):
            plan = read_plan(directory / "recipe.toml")
            if plan.fingerprint == condensed.provenance.get("fingerprint"):
                return plan
    return None


def read_origin(condensed: CondensedSet, file: Path, plan: Plan | None) -> EvaluationSource | None:
    """Return where the images that a set was made from are: by its provenance, else by the recipe of its run.

    The provenance has the present path if the dataset had moved when the run was resumed.

    Returns:
        None if neither states it: sets that are made from arrays have the name of the dataset only.
    """
    origin = condensed.provenance.get("origin")
    if origin is None and plan is not None:
        return EvaluationSource(dataset=plan.dataset, data_dir=plan.data_dir, options=plan.load_options)
    return parse_origin(origin, f"the provenance of {file}")


def _find_source(
    condensed: CondensedSet,
    file: Path,
    origin: EvaluationSource | None,
    data_dir: str | None,
    load_fields: Mapping[str, Any],
) -> EvaluationSource:
    """Return the dataset that a set was made from: by its origin, else by the name in its provenance.

    Raises:
        UserError: The provenance has neither an absolute path nor the name of a known dataset.
    """
    dataset = origin.dataset if origin else condensed.provenance.get("dataset")
    other = f"give {option('dataset')} or {option('test')}"
    is_named = isinstance(dataset, str) and dataset != ""
    check(is_named, f"{file} must name its dataset in its provenance; or {other}", dataset)
    data_dir = data_dir or (origin.data_dir if origin else None)
    if not os.path.isabs(str(dataset)) and not is_known_name(str(dataset), data_dir):
        raise UserError(f"the provenance of {file} names the dataset {dataset!r}, which is not known here: {other}")
    recorded = origin.options.changed_fields() if origin else {}
    options = resolve_load_options(override_fields(recorded, load_fields))
    return EvaluationSource(dataset=str(dataset), data_dir=data_dir, options=options)


def _make_test_source(
    origin: EvaluationSource | None, data_dir: str | None, load_fields: Mapping[str, Any]
) -> EvaluationSource:
    """Return the images of `--test` as a dataset. They are read with the recorded options."""
    recorded = origin.options.changed_fields() if origin else {}
    fields = {**override_fields(recorded, load_fields), "test": None}
    test = absolute_path(load_fields["test"])
    return EvaluationSource(dataset=test, data_dir=data_dir, every_image=True, options=resolve_load_options(fields))


def _load_own_test_images(
    file: Path, source: EvaluationSource, origin: EvaluationSource | None, cache: TestImageCache
) -> tuple[ImageData, str]:
    """Load the test images of the dataset that a set was made from; return the fingerprint of its training images."""
    dataset = source.dataset
    try:
        test, train_fingerprint = cache.load(source)
    except UserError as error:
        other = f"or give {option('dataset')} or {option('test')}"
        message = f"the provenance of {file} names the dataset {dataset}: {error}; {other}"
        raise UserError(message, details=error.details) from None
    if test is None:
        images = "all images of " if origin else ""
        raise UserError(
            f"{file} was made from {images}{dataset}, which has no test images: give other images with "
            f"{option('dataset')} or {option('test')}, or condense again with {option('test_share', 0.2)}"
        )
    return test, train_fingerprint


def _warn_about_changed_images(
    condensed: CondensedSet, file: Path, source: EvaluationSource, train_fingerprint: str
) -> None:
    """Warn if the dataset that a set was made from has other training images now."""
    fingerprint = condensed.provenance.get("fingerprint")
    is_subset = is_subset_source(str(condensed.provenance.get("source")))
    if fingerprint and fingerprint != train_fingerprint and not is_subset:
        warn_user(
            f"{file} was made from other training images than {source.dataset} has now: some of them may be among the "
            "test images now"
        )


def _check_classes(condensed: CondensedSet, file: Path, test: ImageData) -> None:
    """Check that image shape and classes of a set match the test images, before any network is trained."""
    with warnings.catch_warnings(action="ignore"):  # they come again when the set is scored
        try:
            align_classes(condensed, test)
        except UserError as error:
            raise UserError(f"{file}: {error}") from None
