"""TinyImageNet and ImageNet-1K: image files in class folders named by WordNet ids."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from condenset.data.datasets.sources import DatasetSource, Download
from condenset.data.folders.image_decoding import TargetShape
from condenset.data.folders.reading import ImageFiles, list_class_files, make_folder_dataset
from condenset.data.reading.lazy import LazyDataset
from condenset.data.reading.options import LoadOptions
from condenset.errors import UserError
from condenset.io.files import read_file

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE = 64  # pixels
MAX_TEXT_BYTES = 1 << 24  # of words.txt and val_annotations.txt; the official ones have at most 2.5 MiB


def read_imagenet(directory: Path, options: LoadOptions) -> LazyDataset:
    """Read ImageNet-1K from DIRECTORY/train/WNID and DIRECTORY/val/WNID, with images resized to 64x64 by default."""
    train, test = list_class_files(directory / "train"), list_class_files(directory / "val")
    target = _make_target(options, resize=True)
    return make_folder_dataset(train, test, str(directory), options, target)


def read_tinyimagenet(directory: Path, options: LoadOptions) -> LazyDataset:
    """Read TinyImageNet, with classes in the order of their WordNet ids; val/ is the test split."""
    train = list_class_files(directory / "train")
    is_annotated = (directory / "val" / "val_annotations.txt").is_file()
    val = directory / "val"
    test = _read_annotated(val, train.class_names) if is_annotated else list_class_files(val)
    target = _make_target(options, resize=options.size is not None)
    dataset = make_folder_dataset(train, test, str(directory), options, target)
    names = read_class_names(directory / "words.txt", train.class_names)
    return dataclasses.replace(dataset, class_names=names)


def _make_target(options: LoadOptions, *, resize: bool) -> TargetShape:
    return TargetShape(
        3,
        options.size or SIZE,
        resize=resize,
        fit=options.fit,
        background=options.background,
        white_level=options.white_level,
        use_exif=False,  # as in published results
    )


def _read_annotated(directory: Path, class_names: tuple[str, ...]) -> ImageFiles:
    """Return the images of TinyImageNet's val/, which are in one folder with their classes in val_annotations.txt."""
    label_of = {name: label for label, name in enumerate(class_names)}
    annotations = directory / "val_annotations.txt"
    labelled: list[tuple[int, str]] = []
    for number, line in enumerate(_read_lines(annotations), start=1):
        name, wnid = (*line.split("\t"), "", "")[:2]
        if wnid not in label_of:
            raise UserError(
                f"{annotations}, line {number}: {wnid!r} is not one of the {len(label_of)} classes of train"
            )
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise UserError(f"{annotations}, line {number}: {name!r} is not a file name")
        labelled.append((label_of[wnid], str(directory / "images" / name)))
    labelled.sort()
    labels = np.array([label for label, _ in labelled], np.int64)
    return ImageFiles([path for _, path in labelled], labels, class_names)


def _read_lines(path: Path) -> list[str]:
    return [line for line in read_file(path, MAX_TEXT_BYTES).decode("utf-8", "replace").splitlines() if line.strip()]


def read_class_names(words: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first word of each id in words.txt, or the id itself if two classes would share a word."""
    if not words.is_file():
        return wnids
    table = {wnid: text for wnid, _, text in (line.partition("\t") for line in _read_lines(words))}
    first = [table.get(wnid, "").split(",")[0].strip() for wnid in wnids]
    return tuple(word if word and first.count(word) == 1 else wnid for wnid, word in zip(wnids, first, strict=True))


TINYIMAGENET = DatasetSource(
    name="tinyimagenet",
    title="TinyImageNet photographs",
    num_classes=200,
    num_train=100_000,
    num_test=10_000,
    shape=(3, SIZE, SIZE),
    read=read_tinyimagenet,
    mean=MEAN,
    std=STD,
    directories=("tiny-imagenet-200", ""),
    files=("wnids.txt", "train", "val"),
    downloads=(
        Download(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
            "tiny-imagenet-200.zip",
            "tiny-imagenet-200",
            400_000_000,
        ),
    ),
)
IMAGENET = DatasetSource(
    name="imagenet",
    title="ImageNet-1K photographs, resized to 64x64",
    num_classes=1000,
    num_train=1_281_167,
    num_test=50_000,
    shape=(3, SIZE, SIZE),
    read=read_imagenet,
    mean=MEAN,
    std=STD,
    directories=("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", ""),
    files=("train", "val"),
    instructions="request it at image-net.org, then put its train/CLASS and val/CLASS folders in",
)
SOURCES = (TINYIMAGENET, IMAGENET)
