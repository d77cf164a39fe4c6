"""Sets of other programs: .pt files of the field's repositories and arrays, with an explicit normalisation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import condenset as cs
from helpers.condensed_sets import export, make_set
from helpers.data_files import ExpectUserError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of CIFAR-10
IMAGES, LABELS = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(10).repeat(2)


@pytest.mark.parametrize("content", [{"data": [[IMAGES, LABELS]]}, [IMAGES, LABELS], (IMAGES, LABELS)])
def test_layouts_of_published_files(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pt")
    condensed = cs.import_set(tmp_path / "x.pt", normalization="CIFAR-10", dataset="cifar10")
    assert (condensed.mean, condensed.std) == (MEAN, STD)
    torch.testing.assert_close(condensed.normalized(), IMAGES)
    assert torch.equal(condensed.labels, LABELS)
    assert condensed.class_names == tuple("0123456789")
    assert condensed.provenance == {"source": "x.pt", "dataset": "cifar10", "allow_hflip": True}


def test_files_with_accuracies_of_numpy(tmp_path: Path) -> None:
    accuracies = {"ConvNet": [np.float64(0.5), np.float32(0.4), np.array([0.1])]}
    torch.save({"data": [[IMAGES, LABELS]], "accs_all_exps": accuracies}, tmp_path / "x.pt")
    assert len(cs.import_set(tmp_path / "x.pt", normalization="cifar10")) == 20


def test_one_of_several_sets(tmp_path: Path, user_error: ExpectUserError) -> None:
    torch.save({"data": [[torch.full((20, 3, 8, 8), i / 3), LABELS] for i in range(3)]}, tmp_path / "x.pt")
    condensed = cs.import_set(tmp_path / "x.pt", normalization="none", index=1)
    assert float(condensed.images.max()) == pytest.approx(1 / 3)
    with user_error("has 3 sets: choose one of 0 to 2 with index=0"):
        cs.import_set(tmp_path / "x.pt", normalization="none")
    for index in (3, -1, True):
        with user_error("index must be"):
            cs.import_set(tmp_path / "x.pt", normalization="none", index=index)


@pytest.mark.parametrize(("factor", "total"), [(4.0, "4.0"), (1.01, "1.01")])
def test_soft_labels_that_are_no_probabilities_are_refused(
    factor: float, total: str, tmp_path: Path, user_error: ExpectUserError
) -> None:
    labels = torch.rand(20, 10).softmax(1)
    labels[7] *= factor
    torch.save({"data": [[torch.rand(20, 3, 8, 8), labels]]}, tmp_path / "x.pt")
    with user_error(f"x.pt: soft labels must be probabilities, which sum to 1 for each image, but got {total}"):
        cs.import_set(tmp_path / "x.pt", normalization="none")


def test_images_and_labels_in_two_files(tmp_path: Path, user_error: ExpectUserError) -> None:
    soft = torch.rand(20, 10).softmax(1).bfloat16()
    pixels = torch.rand(20, 3, 8, 8)
    torch.save(pixels.double(), tmp_path / "images_best.pt")
    torch.save(soft, tmp_path / "labels_best.pt")
    paths = tmp_path / "images_best.pt", tmp_path / "labels_best.pt"
    condensed = cs.import_set(*paths, mean=(0, 0, 0), std=(1, 1, 1))
    assert torch.equal(condensed.images, pixels) and torch.equal(condensed.labels, soft.float())
    with user_error("one .pt file, or one with images and one with labels"):
        cs.import_set(*paths, paths[0], normalization="none")
    with user_error("only .pt files can be divided"):
        cs.import_set(paths[0], export(make_set(), "npz", tmp_path), normalization="none")


def test_arrays_of_other_programs(tmp_path: Path) -> None:
    pixels = np.arange(4 * 3 * 8 * 8, dtype=np.uint8).reshape(4, 3, 8, 8)
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.array([0, 1, 1, 0], np.int8))
    condensed = cs.import_set(tmp_path / "x.npz", mean=MEAN, std=STD)
    torch.testing.assert_close(condensed.images, torch.from_numpy(pixels) / 255)
    assert condensed.labels.tolist() == [0, 1, 1, 0]


def test_the_normalisation_must_be_explicit(tmp_path: Path, user_error: ExpectUserError) -> None:
    torch.save([IMAGES, LABELS], path := tmp_path / "x.pt")
    with user_error("does not contain its normalisation: give normalization='cifar10' or mean= with std="):
        cs.import_set(path, dataset="cifar10")
    with user_error("give normalization="):
        cs.import_set(path, mean=MEAN)
    with user_error("exclude each other"):
        cs.import_set(path, normalization="cifar10", mean=MEAN, std=STD)
    with user_error("dataset cannot be 'cifar'", "did you mean 'cifar10'?"):
        cs.import_set(path, normalization="cifar")
    with user_error("the dataset digits has no fixed normalisation"):
        cs.import_set(path, normalization="digits")
    with user_error("mean must be a number for each channel (3)"):
        cs.import_set(path, normalization="mnist")
    with user_error("contains its normalisation: leave out"):
        cs.import_set(export(make_set(), "pt", tmp_path), normalization="cifar10")


def test_a_wrong_normalisation_is_reported(tmp_path: Path) -> None:
    torch.save([IMAGES, LABELS], tmp_path / "x.pt")
    with pytest.warns(UserWarning, match="far from 0 to 1: check the normalisation"):
        cs.import_set(tmp_path / "x.pt", normalization="none")
    np.savez(tmp_path / "x.npz", images=255 * torch.rand(4, 3, 8, 8).numpy(), labels=np.arange(4))
    with pytest.warns(UserWarning, match="far from 0 to 1"):
        cs.import_set(tmp_path / "x.npz", normalization="cifar10")


def test_paths_without_a_known_format(tmp_path: Path, user_error: ExpectUserError) -> None:
    with user_error("must be a directory or end in .npz, .pt, .pth, but got"):
        cs.import_set(tmp_path / "x.txt")
    with user_error("It is a set file already."):
        cs.import_set(tmp_path / "x.safetensors")
    with user_error("no such file"):
        cs.import_set(tmp_path / "x.npz")
    with user_error("is not an exported set: it has no set.safetensors"):
        cs.import_set(tmp_path)
    with user_error("index= is for .pt files"):
        cs.import_set(export(make_set(), "npz", tmp_path), index=0)
    with user_error("at least one path"):
        cs.import_set()


@pytest.mark.parametrize("name", ["folder", "npz"])
def test_the_dataset_of_an_export_can_be_replaced(name: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(class_names=tuple("abcdefghij")), name, tmp_path)
    provenance = cs.import_set(path, dataset="mnist").provenance
    assert (provenance["dataset"], provenance["allow_hflip"], provenance["seed"]) == ("mnist", False, 3)
    with user_error(f"{path}: cifar100 has 100 classes, but got 10"):
        cs.import_set(path, dataset="cifar100")
    with user_error("contains its normalisation: leave out normalization='mnist'"):
        cs.import_set(path, normalization="mnist")


def test_the_dataset_must_have_the_classes(tmp_path: Path, user_error: ExpectUserError) -> None:
    torch.save([IMAGES, LABELS + 1], tmp_path / "x.pt")
    with user_error("cifar10 has 10 classes, but got 11"):
        cs.import_set(tmp_path / "x.pt", normalization="cifar10", dataset="cifar10")
