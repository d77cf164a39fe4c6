"""Match the classes of test images with those of a training set."""

from __future__ import annotations

from condenset.data.class_selection import select_classes
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.reading.arrays import DEFAULT_NAME
from condenset.errors import UserError, format_names, option, warn_user

MAX_NAMES = 3  # class names that a message lists


def align_classes(train_set: CondensedSet | ImageData, test_set: ImageData) -> ImageData:
    """Return the test images with the labels of the training set, with a warning if classes have no test images.

    Classes are matched by name. Test images of classes that a replay memory does not have yet are left out. If one
    side has the numbers 0..K-1 in place of names, classes are matched by position, with a warning unless both
    sides name the same dataset.

    Raises:
        UserError: If the image shapes or the classes do not match.
    """
    _check_shapes(train_set, test_set)
    aligned = _match_classes(train_set, test_set)
    warn_about_empty_classes(aligned)
    return aligned


def warn_about_empty_classes(test_set: ImageData) -> None:
    """Warn if classes have no test images."""
    missing = [name for name, count in zip(test_set.class_names, test_set.class_counts, strict=True) if not count]
    if missing:
        share = f"{len(missing)} of {test_set.num_classes} classes"
        warn_user(f"{share} have no test images and are left out: {format_names(missing, 10)}")


def _match_classes(train_set: CondensedSet | ImageData, test_set: ImageData) -> ImageData:
    """Return the test images with the labels of the training set. See `align_classes`."""
    if train_set.class_names == test_set.class_names:
        return test_set
    provenance = train_set.provenance if isinstance(train_set, CondensedSet) else {}
    train_names, test_names = set(train_set.class_names), set(test_set.class_names)
    if test_names <= train_names or ("memory" in provenance and train_names < test_names):
        return select_classes(test_set, train_set.class_names)
    numbers = tuple(map(str, range(test_set.num_classes)))  # the class names of data without names
    is_numbered = numbers in (train_set.class_names, test_set.class_names)
    if train_set.num_classes != test_set.num_classes or not is_numbered or train_names & test_names:
        raise UserError(_describe_mismatch(train_set, test_set))
    dataset = train_set.name if isinstance(train_set, ImageData) else provenance.get("dataset", test_set.name)
    if dataset != test_set.name:
        warn_user(
            f"the set was made from {dataset!r}, not from {test_set.name!r}, and their class names differ: the classes "
            "are matched by position"
        )
    elif dataset == DEFAULT_NAME:
        warn_user(
            "the class names of the set and of the test images differ: the classes are matched by position; give "
            "cs.from_arrays the same class_names for both"
        )
    return test_set


def _check_shapes(train_set: CondensedSet | ImageData, test_set: ImageData) -> None:
    train_shape, test_shape = tuple(train_set.images.shape[1:]), tuple(test_set.images.shape[1:])
    if train_shape != test_shape:
        hint = f"; load a folder of images at this size with {option('size', train_shape[-1])}"
        hint = hint if train_shape[0] == test_shape[0] else ""
        raise UserError(f"the set must have the image shape of the test set, {test_shape}, but got {train_shape}{hint}")


def _describe_mismatch(train_set: CondensedSet | ImageData, test_set: ImageData) -> str:
    """Return an error message with the classes that only one of the two has."""
    missing = [name for name in test_set.class_names if name not in train_set.class_names]
    extra = [name for name in train_set.class_names if name not in test_set.class_names]
    differences = {"lacks": missing, "adds": extra}
    parts = [f"{verb} {format_names(names, MAX_NAMES)}" for verb, names in differences.items() if names]
    rule = f"the set must have the {test_set.num_classes} classes of the test set, but it {' and '.join(parts)}"
    return f"{rule}: rename the classes of the test set, or choose other test images"
