from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from condenset.data import from_dataset
from helpers.data_files import ExpectUserError

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)


class CIFAR10:
    """A dataset like torchvision's: items are (image, label), names are in `classes`."""

    classes = ("bird", "cat", "deer")

    def __init__(self, transform: Any = None) -> None:
        self.data, self.targets, self.transform = PIXELS, [0, 1, 2, 0, 1, 2], transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = Image.fromarray(self.data[index])
        return (self.transform(image) if self.transform else image), self.targets[index]


class ClassLabel:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class HuggingFace:
    """A dataset like Hugging Face's: items are dicts, names are in `features`."""

    def __init__(self, image_key: str, label_key: str) -> None:
        self.keys = image_key, label_key
        self.features = {image_key: object(), label_key: ClassLabel(["bird", "cat", "deer"])}

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {self.keys[0]: Image.fromarray(PIXELS[index]), self.keys[1]: index % 3, "id": index}


class Items:
    """A dataset of these items."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1) / np.float32(255))


@pytest.mark.parametrize("transform", [None, to_tensor, np.asarray, lambda x: torch.tensor(np.asarray(x))])
def test_torchvision_like(transform: Any) -> None:
    data = from_dataset(CIFAR10(transform))
    assert (data.images.permute(0, 2, 3, 1).numpy() == PIXELS).all()
    assert data.class_names == ("bird", "cat", "deer") and data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.name == "cifar10"


@pytest.mark.parametrize("keys", [("image", "label"), ("img", "label"), ("img", "fine_label")])
def test_hugging_face_like(keys: tuple[str, str]) -> None:
    data = from_dataset(HuggingFace(*keys), name="beans", allow_hflip=False)
    assert (data.images.permute(0, 2, 3, 1).numpy() == PIXELS).all()
    assert data.class_names == ("bird", "cat", "deer") and data.name == "beans" and not data.allow_hflip


def test_torch_datasets() -> None:
    images, labels = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()), torch.tensor([0, 1, 0, 1, 0, 1])
    whole = torch.utils.data.TensorDataset(images, labels)
    assert (from_dataset(whole).images == images).all()
    subset = torch.utils.data.Subset(whole, [3, 0])
    assert (from_dataset(subset).images == images[[3, 0]]).all()
    assert from_dataset(subset).labels.tolist() == [1, 0]


def test_grey_images_become_colour_if_one_has_colour() -> None:
    grey, colour = Image.fromarray(PIXELS[0, :, :, 0]), Image.fromarray(PIXELS[1])
    assert from_dataset(Items((grey, 0), (grey, 1))).channels == 1
    data = from_dataset(Items((grey, 0), (colour, 1), (grey, 0)))
    assert data.channels == 3 and (data.images[0] == data.images[2]).all()
    assert (data.images[0].numpy() == PIXELS[0, :, :, 0]).all()
    assert (data.images[1].permute(1, 2, 0).numpy() == PIXELS[1]).all()


def test_mixed_sizes_need_a_size(user_error: ExpectUserError) -> None:
    small, wide = Image.new("RGB", (4, 4)), Image.new("RGB", (9, 5))
    with user_error("image 1 is 9x5, but the first image is 4x4"):
        from_dataset(Items((small, 0), (wide, 0)))
    with user_error("image 0 is 9x5, not square"):
        from_dataset(Items((wide, 0), (small, 0)))
    assert from_dataset(Items((wide, 0), (small, 0)), size=6).images.shape == (2, 3, 6, 6)
    assert from_dataset(Items((np.zeros((5, 9, 3), np.uint8), 0)), size=6).size == 6


def test_names_as_labels() -> None:
    image = Image.new("L", (2, 2))
    assert from_dataset(Items((image, "b"), (image, "a"))).class_names == ("a", "b")


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 2


IMAGE = Image.new("L", (2, 2))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (iter([]), "map-style"),
        (Stream(), "map-style"),
        ({"train": CIFAR10(), "test": CIFAR10()}, "must be one split, but got all of them: choose one of train, test"),
        (Items(), "at least one image"),
        (Items(IMAGE), "(image, label) or a dict"),
        (Items((IMAGE, 0, 1)), "(image, label) or a dict"),
        (Items({"picture": IMAGE, "label": 0}), "item 0 has picture, label"),
        (Items(("file.png", 0)), "image 0 is a str"),
        (Items((IMAGE, 0.5)), "label 0 is 0.5"),
        (Items((IMAGE, 0), (IMAGE, 2)), "no image has 1"),
        (Items((np.full((4, 4), 7.0), 0)), "image 0: float pixels must be in 0..1"),
        (Items((np.zeros((4, 4, 4), np.uint8), 0)), "1 or 3 channels"),
        (Items((np.zeros(4, np.uint8), 0)), "1 or 3 channels"),
        (Items((IMAGE, 0), (Image.new("F", (2, 2)), 0)), "image 1 must have pixels of 8 or 16 bits"),
    ],
)
def test_invalid_datasets_are_rejected(user_error: ExpectUserError, dataset: Any, message: str) -> None:
    with user_error(message):
        from_dataset(dataset)


def test_open_image_file_is_not_changed(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).resize((80, 80)).save(tmp_path / "x.jpg")
    with Image.open(tmp_path / "x.jpg") as image:
        from_dataset(Items((image, 0)), size=8)
        assert image.size == (80, 80)


def test_error_names_the_broken_image(tmp_path: Path, user_error: ExpectUserError) -> None:
    Image.fromarray(PIXELS[0]).resize((80, 80)).save(tmp_path / "x.jpg")
    (tmp_path / "x.jpg").write_bytes((tmp_path / "x.jpg").read_bytes()[:900])
    with Image.open(tmp_path / "x.jpg") as image, user_error("image 0 is not a readable image"):
        from_dataset(Items((image, 0)))
