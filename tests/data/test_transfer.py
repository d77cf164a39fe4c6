"""Tests of sending images to workers."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest
import torch

import condenset as cs
from condenset.data import import_dataset
from condenset.data.class_selection import take_classes
from condenset.data.transfer import DataSender, has_file, open_shared, pack_images
from condenset.engine.tasks import MissingFileError
from helpers.command_line import write_npz
from helpers.local_engine import LocalEngine
from helpers.reference_dm import tiny_data


@pytest.fixture
def imported(tmp_path: Path) -> cs.ImageData:
    """The training images of a memory-mapped dataset of four classes."""
    import_dataset(write_npz(tmp_path / "toy.npz", (3, 4, 5, 6)), "toy")
    return cs.load("toy", verbose=False).train


def assert_same(first: cs.ImageData, second: cs.ImageData) -> None:
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    names = ("class_names", "mean", "std", "name", "class_stream_ids", "whole", "fingerprint", "class_counts")
    assert [getattr(first, name) for name in names] == [getattr(second, name) for name in names]


@pytest.mark.parametrize("classes", [None, range(1, 3)])
@pytest.mark.parametrize("by_file", [True, False])
def test_images_arrive_unchanged(classes: range | None, by_file: bool, imported: cs.ImageData) -> None:
    message = pack_images(imported, classes, by_file=by_file)
    expected = imported if classes is None else take_classes(imported, classes)
    assert_same(pickle.loads(pickle.dumps(message)).open(), expected)
    assert (message.images is None) == by_file


def test_classes_in_any_order_are_taken_with_local_labels() -> None:
    data = tiny_data([3, 4, 5])
    part = take_classes(data, range(1, 3))
    assert part.class_counts == (4, 5)
    assert (part.class_stream_ids, part.first_class, part.largest_class) == ((1, 2), 1, 5)
    assert part.all_class_names == data.class_names
    assert torch.equal(part.images[part.labels == 1], data.images[data.labels == 2])


def test_images_selected_from_a_file_are_not_sent_by_its_path(imported: cs.ImageData) -> None:
    assert has_file(imported)
    assert not has_file(cs.train_val_split(imported)[0])


@pytest.mark.parametrize("damaged", [False, True])
def test_worker_without_the_file_gets_the_pixels_in_the_next_attempt(
    damaged: bool, imported: cs.ImageData, tmp_path: Path
) -> None:
    engine, directory = LocalEngine(), Path(imported.file).parent
    sender, pixels = DataSender(imported, engine), imported.images.clone()
    first = sender.send()
    if damaged:
        (directory / "meta.json").write_text("{")
    else:
        shutil.move(directory, tmp_path / "elsewhere")
    with pytest.raises(MissingFileError, match=r"train-images\.npy does not exist on this machine, or has other"):
        open_shared(first)
    engine.shares_files = False
    assert torch.equal(open_shared(sender.send()).images, pixels)


def test_repeated_task_gets_the_file_while_workers_share_files(imported: cs.ImageData) -> None:
    sender = DataSender(imported, LocalEngine())
    messages = [sender.send(range(1)).get() for _ in range(3)]
    assert [message.images for message in messages] == [None] * 3
