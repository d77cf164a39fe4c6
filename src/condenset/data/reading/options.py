"""How to read a dataset: the options of `cs.load` and of the command line."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from PIL import ImageColor

from condenset.config import check_bool_fields
from condenset.errors import (
    UserError,
    check,
    check_choice,
    check_int,
    check_path_encoding,
    check_type,
    is_int,
    is_number,
    option,
)

FITS = ("crop", "pad")
MAX_IMAGE_SIZE = 4096  # pixels
WHITE_LEVEL = 65535  # the largest value of 16 bits
ARRAY_OPTIONS = frozenset({"fit", "background"})  # fields that say how arrays are read, besides `size`
FILE_OPTIONS = ARRAY_OPTIONS | {"white_level", "nested", "skip_bad"}  # the same for folders of image files


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How to read a dataset: everything except its name and the data directory.

    Attributes:
        size: Image size in pixels. None: that of the files.
        fit: How images that are not square become square: "crop" cuts the central square, "pad" adds borders. None:
            "crop" if `size` is given, else such images are refused.
        background: Colour under transparent pixels and of borders: a colour name or #rrggbb.
        white_level: The value of 16-bit files that becomes white, such as 4095 for 12-bit data.
        nested: Every folder that contains images is a class, named by its relative path.
        skip_bad: Leave out image files that cannot be read.
        test: Path of the test images, in place of the dataset's test split.
        test_share: Share of each class to hold out for the test if there is no test split.
        val_share: Share of each class of the training images to hold out and test on, in place of the test images.
            0 or None: test on the test images.
    """

    size: int | None = None
    fit: str | None = None
    background: str = "white"
    white_level: int = WHITE_LEVEL
    nested: bool = False
    skip_bad: bool = False
    test: str | None = None
    test_share: float | None = None
    val_share: float | None = None

    def __post_init__(self) -> None:
        check_image_size(self.size)
        if self.size is not None:
            object.__setattr__(self, "size", int(self.size))  # a file cannot store a NumPy integer
        if self.fit is not None:
            check_choice("fit", self.fit, FITS)
        object.__setattr__(self, "white_level", check_int("white_level", self.white_level, 1))
        check(self.white_level <= WHITE_LEVEL, f"white_level must be at most {WHITE_LEVEL}", self.white_level)
        check_bool_fields(self, "nested", "skip_bad")
        _check_color("background", self.background)
        self._check_test()

    def _check_test(self) -> None:
        if self.test is not None:
            check_type(self.test, (str, os.PathLike), "test must be a path")
            check(os.fspath(self.test) != "", "test must be a path", self.test)
            check_path_encoding(self.test)
            object.__setattr__(self, "test", os.fspath(self.test))
        if self.test_share is not None:
            share = self.test_share
            check(is_number(share) and 0 < share < 1, "test_share must be a number between 0 and 1", share)
            object.__setattr__(self, "test_share", float(share))
        if self.test is not None and self.test_share is not None:
            raise UserError(f"{option('test')} and {option('test_share')} exclude each other: give one of the two")
        if self.val_share is not None:
            share = self.val_share
            check(is_number(share) and 0 <= share < 1, "val_share must be 0 or a number between 0 and 1", share)
            object.__setattr__(self, "val_share", float(share) or None)
        if self.test is not None and self.val_share is not None:
            raise UserError(f"{option('test')} and {option('val_share')} exclude each other: give one of the two")

    @property
    def scored_on(self) -> str:
        """The kind of images that sets are scored on: "test", or "validation" for held-out training images."""
        return "test" if self.val_share is None else "validation"

    def changed_fields(self) -> dict[str, Any]:
        """Return the fields that do not have their default, by name."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }


class ImageKeywords(TypedDict, total=False):
    """The fields of `LoadOptions` that say how image files are read, as keywords."""

    size: int | None
    fit: str | None
    background: str
    white_level: int
    nested: bool
    skip_bad: bool


class LoadKeywords(ImageKeywords, total=False):
    """The fields of `LoadOptions` as keywords of `cs.load`."""

    test: str | os.PathLike[str] | None
    test_share: float | None
    val_share: float | None


def override_fields(recorded: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded fields of `LoadOptions` with those that the user gives.

    Another choice of test images replaces the recorded one. Validation images stay, as scores on test images must be
    asked for, unless `test` is given, which excludes them.
    """
    replaced = {"test"} if fields.get("val_share") else set[str]()
    if {"test", "test_share"} & fields.keys():
        replaced = {"test", "test_share"} | ({"val_share"} if fields.get("test") is not None else set())
    return {**{name: value for name, value in recorded.items() if name not in replaced}, **fields}


def check_no_val_share(options: LoadOptions, work: str) -> None:
    """Check that no training images are held out for validation, such as by an import."""
    if options.val_share is not None:
        raise UserError(f"{work} does not divide the training images: leave out {option('val_share')}")


def check_image_size(size: int | None) -> None:
    """Check an image size in pixels; None is valid and means the size of the images."""
    in_range = size is None or (is_int(size) and 1 <= size <= MAX_IMAGE_SIZE)
    check(in_range, f"size must be a whole number in 1..{MAX_IMAGE_SIZE}", size)


def _check_color(name: str, value: object) -> None:
    rule = f"{name} must be a colour name or #rrggbb"
    check(isinstance(value, str), rule, value)
    try:
        ImageColor.getrgb(str(value))
    except ValueError:
        raise UserError(f"{rule}, but got {value!r}") from None
