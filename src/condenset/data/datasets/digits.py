"""The digits of scikit-learn: 1,797 grey images of 8x8 pixels, part of an installed package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from condenset.data.datasets.sources import DatasetSource
from condenset.data.reading.hold_out import hold_out
from condenset.data.reading.lazy import LazyDataset, make_lazy_split
from condenset.data.reading.options import LoadOptions

CLASS_NAMES = tuple("0123456789")
FILE = "datasets/data/digits.csv.gz"  # in the package


def read_digits(directory: Path, options: LoadOptions) -> LazyDataset:
    """Read the digits, with pixel values scaled from 0..16 to 0..255."""
    package = find_spec("sklearn")  # not imported, which takes two seconds
    assert package is not None and package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / FILE, delimiter=",")
    images = np.rint(rows[:, :-1].reshape(-1, 1, 8, 8) * 255 / 16).astype(np.uint8)
    labels = rows[:, -1].astype(np.int64)
    train, test = hold_out(labels, CLASS_NAMES, "digits")
    return LazyDataset(
        make_lazy_split(images, labels, train),
        make_lazy_split(images, labels, test),
        CLASS_NAMES,
        "the digits of scikit-learn; every fifth image of a class is held out for the test",
    )


DIGITS = DatasetSource(
    name="digits",
    title="scikit-learn's handwritten digits",
    num_classes=10,
    num_train=1433,
    num_test=364,
    shape=(1, 8, 8),
    read=read_digits,
    allow_hflip=False,
)
SOURCES = (DIGITS,)
