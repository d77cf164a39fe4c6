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


class CIFAR10(torch.utils.data.Dataset[Any]):
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


def test_subsets_keep_class_names() -> None:
    subset = torch.utils.data.Subset(CIFAR10(), [5, 1, 0, 2])
    assert from_dataset(subset).class_names == ("bird", "cat", "deer")
    assert from_dataset(subset).labels.tolist() == [2, 1, 0, 2]
    nested = torch.utils.data.Subset(subset, [0, 1, 2])
    assert from_dataset(nested).class_names == ("bird", "cat", "deer")
    parts = torch.utils.data.random_split(CIFAR10(), [6, 0], generator=torch.Generator().manual_seed(0))
    assert from_dataset(parts[0]).class_names == ("bird", "cat", "deer")
    with pytest.warns(UserWarning, match="1 of the 3 classes have no images and are left out: 'cat'"):
        data = from_dataset(torch.utils.data.Subset(CIFAR10(), [5, 0]))
    assert data.class_names == ("bird", "deer") and data.labels.tolist() == [1, 0]


def test_columns_can_be_named(user_error: ExpectUserError) -> None:
    dataset = HuggingFace("picture", "kind")
    data = from_dataset(dataset, image_column="picture", label_column="kind")
    assert (data.images.permute(0, 2, 3, 1).numpy() == PIXELS).all()
    assert data.class_names == ("bird", "cat", "deer")
    with user_error("items must have photo, but item 0 has picture, kind, id; give image_column"):
        from_dataset(dataset, image_column="photo", label_column="kind")
    with user_error("image_column and label_column need items that are dicts, but got tuple"):
        from_dataset(CIFAR10(), label_column="kind")


@pytest.mark.parametrize("test_name", ["test", "validation", "val", "valid"])
def test_mapping_of_splits(test_name: str) -> None:
    test = torch.utils.data.Subset(CIFAR10(), [4, 3])
    mapping = {"train": CIFAR10(), test_name: test} | ({"validation": CIFAR10()} if test_name == "test" else {})
    splits = from_dataset(mapping, name="pets")
    assert splits.test is not None and splits.test.class_names == splits.train.class_names == ("bird", "cat", "deer")
    assert (splits.test.images.permute(0, 2, 3, 1).numpy() == PIXELS[[4, 3]]).all()
    assert splits.test.labels.tolist() == [1, 0]
    assert splits.test.mean == splits.train.mean and splits.test.name == "pets"
    assert from_dataset({"train": CIFAR10()}).test is None


def test_splits_have_one_shape_and_one_list_of_classes(user_error: ExpectUserError) -> None:
    grey, colour = Image.fromarray(PIXELS[0, :, :, 0]), Image.fromarray(PIXELS[1])
    splits = from_dataset({"train": Items((grey, 7), (grey, 3)), "test": Items((colour, 7))})
    assert splits.train.channels == 3 and splits.train.class_names == ("3", "7")
    assert splits.test is not None and splits.test.labels.tolist() == [1]
    with user_error("the train split has an empty class: no image of '9'"):
        from_dataset({"train": Items((grey, 7), (grey, 3)), "test": Items((grey, 9))})
    with user_error("the splits must have the same image size; give a size, but got [4, 8]"):
        from_dataset({"train": Items((grey, 7), (grey, 3)), "test": Items((grey.resize((4, 4)), 7))})


def test_real_hugging_face_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"pic": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b"])})
    rows = {"pic": [Image.fromarray(PIXELS[0]), Image.fromarray(PIXELS[1])], "kind": [1, 0]}
    split = datasets.Dataset.from_dict(rows, features=features)
    splits = from_dataset(datasets.DatasetDict({"train": split}), image_column="pic", label_column="kind")
    assert splits.train.class_names == ("a", "b") and splits.train.labels.tolist() == [1, 0]


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
        from_dataset(Items((small, 0), (wide, 1)))
    with user_error("image 0 is 9x5, not square: give size="):
        from_dataset(Items((wide, 0), (small, 1)))
    assert from_dataset(Items((wide, 0), (small, 1)), size=6).images.shape == (2, 3, 6, 6)
    arrays = Items(*((np.zeros((5, 9, 3), np.uint8), label) for label in (0, 1)))
    assert from_dataset(arrays, size=6).size == 6
    assert from_dataset(arrays, fit="crop").size == 5 and from_dataset(arrays, fit="pad").size == 9
    padded = from_dataset(arrays, size=9, fit="pad", background="red").images[0]
    assert padded[:, 0, 0].tolist() == [255, 0, 0] and padded[:, 4, 4].tolist() == [0, 0, 0]


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
        ({"train": CIFAR10(), "extra": CIFAR10()}, "splits must be named train and test or validation or val or valid"),
        ({"train": CIFAR10(), "extra": CIFAR10()}, "but got 'train', 'extra'; give them as {'train': …, 'test': …}"),
        ({"test": CIFAR10()}, "but got 'test'"),
        ({}, "but got none"),
        ({"train": Stream()}, "map-style"),
        (Items(), "at least one image"),
        (Items(IMAGE), "(image, label) or a dict"),
        (Items((IMAGE, 0, 1)), "(image, label) or a dict"),
        (
            Items({"picture": IMAGE, "label": 0}),
            "must have image or img, but item 0 has picture, label; give image_column",
        ),
        (Items({"image": IMAGE, "kind": 0}), "must have label or fine_label, but item 0 has image, kind; give label_c"),
        (Items(("file.png", 0)), "image 0 is a str"),
        (Items((IMAGE, 0.5)), "label 0 is 0.5"),
        (Items((np.full((4, 4), 7.0), 0)), "image 0: float pixels must be in 0..1"),
        (Items((np.zeros((4, 4, 4), np.uint8), 0)), "1 or 3 channels"),
        (Items((np.zeros(4, np.uint8), 0)), "1 or 3 channels"),
        (Items((IMAGE, 0), (Image.new("F", (2, 2)), 0)), "image 1 must have pixels of 8 or 16 bits"),
    ],
)
def test_invalid_datasets_are_rejected(user_error: ExpectUserError, dataset: Any, message: str) -> None:
    with user_error(message):
        from_dataset(dataset, verbose=False)


def test_open_image_file_is_not_changed(tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).resize((80, 80)).save(tmp_path / "x.jpg")
    with Image.open(tmp_path / "x.jpg") as image:
        from_dataset(Items((image, 0), (image, 1)), size=8)
        assert image.size == (80, 80)


def test_error_names_the_broken_image(tmp_path: Path, user_error: ExpectUserError) -> None:
    Image.fromarray(PIXELS[0]).resize((80, 80)).save(tmp_path / "x.jpg")
    (tmp_path / "x.jpg").write_bytes((tmp_path / "x.jpg").read_bytes()[:900])
    with Image.open(tmp_path / "x.jpg") as image, user_error("image 0 is not a readable image"):
        from_dataset(Items((image, 0)))


def test_concatenated_datasets_keep_class_names_that_agree() -> None:
    joined = torch.utils.data.ConcatDataset([CIFAR10(), torch.utils.data.Subset(CIFAR10(), [2, 1])])
    assert from_dataset(joined).class_names == ("bird", "cat", "deer")
    assert from_dataset(joined).labels.tolist() == [0, 1, 2, 0, 1, 2, 2, 1]
    other = CIFAR10()
    other.classes = ("ant", "bee", "fly")
    assert from_dataset(torch.utils.data.ConcatDataset([CIFAR10(), other])).class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("labels", "class_names"),
    [
        ((2.0, torch.tensor(5.0)), ("2", "5")),
        ((np.bool_(False), True), ("False", "True")),
        ((torch.tensor(False), torch.tensor(True)), ("False", "True")),
    ],
)
def test_whole_floats_and_booleans_are_labels(labels: tuple[Any, Any], class_names: tuple[str, ...]) -> None:
    data = from_dataset(Items((PIXELS[0], labels[0]), (PIXELS[1], labels[1])))
    assert data.class_names == class_names and data.labels.tolist() == [0, 1]


def test_items_of_0_and_1_give_a_warning() -> None:
    with pytest.warns(UserWarning, match="all pixels are 0 or 1"):
        from_dataset(Items((PIXELS[0] // 128, 0), (PIXELS[1] // 128, 1)))
