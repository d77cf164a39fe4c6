from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import Refused, make_classes, write_cifar10

from condenset.data import SOURCES, check_files, describe, from_arrays, import_data, load
from condenset.data.imported import map_npy
from condenset.errors import UserError
from condenset.files import held
from condenset.types import Splits


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """An imported set called `mine`, made of a folder."""
    make_classes(tmp_path / "source", "abc", count=6)
    return import_data(tmp_path / "source", "mine")


def test_an_imported_set_is_the_set(tmp_path: Path, imported: Path) -> None:
    assert imported == tmp_path / "data" / "imported" / "mine"
    direct, opened = load(tmp_path / "source"), load("mine")
    for one, other in ((direct.train, opened.train), (direct.test, opened.test)):
        assert (one.images == other.images).all() and (one.labels == other.labels).all()
        assert one.fingerprint == other.known_fingerprint
        assert (one.class_names, one.mean, one.std, one.source) == (
            (other.class_names, other.mean, other.std, other.source)
        )
    assert opened.train.name == "mine"
    assert load(imported).train.fingerprint == direct.train.fingerprint
    plain = np.load(imported / "train-images.npy", mmap_mode="r")
    assert plain.shape == (12, 3, 8, 8) and (np.diff(np.load(imported / "train-labels.npy")) >= 0).all()


def test_a_known_set_keeps_its_constants(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    with refused("cifar10 must have 50000 train and 10000 test images, but got 100 and 20"):
        import_data("cifar10", "small", data_dir=tmp_path)
    monkeypatch.setitem(SOURCES, "cifar10", dataclasses.replace(SOURCES["cifar10"], num_train=100, num_test=20))
    import_data("cifar10", "small", data_dir=tmp_path)
    small, direct = load("small", data_dir=tmp_path), load("cifar10", data_dir=tmp_path)
    assert small.train.std == direct.train.std == (0.2023, 0.1994, 0.2010)
    assert small.train.fingerprint == direct.train.fingerprint
    assert not load(import_data("digits", "numbers", data_dir=tmp_path)).train.can_flip


def test_a_folder_of_ones_own_may_have_the_name_of_a_known_set(tmp_path: Path) -> None:
    make_classes(tmp_path / "mnist" / "train")
    assert load(import_data(tmp_path / "mnist", "mine", data_dir=tmp_path)).train.name == "mine"
    assert check_files(tmp_path / "mnist").name == "mnist"


def test_pixels_stay_on_disk_and_the_file_cannot_be_changed(imported: Path) -> None:
    before = (imported / "train-images.npy").read_bytes()
    images = load("mine").train.images
    images.zero_()  # a private copy of the pages: no crash, no harm
    assert (imported / "train-images.npy").read_bytes() == before


def test_a_map_that_cannot_be_private_is_read_only(imported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = np.memmap

    def no_private_map(path: Path, dtype: Any, mode: str, *rest: Any) -> Any:
        if mode == "c":
            raise OSError(12, "Cannot allocate memory")
        return real(path, dtype, mode, *rest)

    wanted = load("mine").train.images
    monkeypatch.setattr(np, "memmap", no_private_map)
    assert (load("mine").train.images == wanted).all()


def test_splits_can_be_imported(tmp_path: Path, refused: Refused) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
    data = from_arrays(x, ["b", "a", "b", "a", "b", "a"], can_flip=False)
    folder = import_data(Splits(train=data, test=data), "arrays")
    opened = load("arrays").train
    assert (opened.images[:, 0].numpy() == x[[1, 3, 5, 0, 2, 4]]).all() and not opened.can_flip
    with refused("only image files can be fitted"):
        import_data(Splits(train=data, test=data), "other", size=8)
    assert load(import_data(folder, "copy")).train.fingerprint == opened.fingerprint
    assert load(import_data("arrays", "flips", can_flip=True)).train.can_flip


def test_size_is_applied(tmp_path: Path, refused: Refused) -> None:
    make_classes(tmp_path / "source")
    import_data(tmp_path / "source", "small", size=4)
    assert load("small").train.size == 4
    with refused("only image files can be fitted"):
        load("small", size=8)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "-x", "x" * 101, "a b", "cifar10", "CIFAR-10"])
def test_bad_names_are_refused(tmp_path: Path, refused: Refused, name: str) -> None:
    make_classes(tmp_path / "source")
    with refused("a name must"):
        import_data(tmp_path / "source", name)
    assert not (tmp_path / "data").exists()


def test_overwriting_is_asked_for(tmp_path: Path, imported: Path, refused: Refused) -> None:
    before = load("mine").train.fingerprint
    make_classes(tmp_path / "other", "xy")
    with refused("exists already"):
        import_data(tmp_path / "other", "mine")
    assert load("mine").train.fingerprint == before
    import_data(tmp_path / "other", "mine", overwrite=True)
    assert load("mine").train.class_names == ("x", "y")
    import_data("mine", "mine", overwrite=True)
    assert load("mine").train.class_names == ("x", "y")
    assert [path.name for path in imported.parent.iterdir()] == ["mine"]


def test_a_failed_import_leaves_the_old_set_and_nothing_else(tmp_path: Path, imported: Path, refused: Refused) -> None:
    before = load("mine").train.fingerprint
    (tmp_path / "source" / "b" / "4.png").write_bytes(b"broken")
    with refused("4.png is not a readable image"):
        import_data(tmp_path / "source", "mine", overwrite=True)
    with refused("4.png is not a readable image"):
        import_data(tmp_path / "source", "new")
    assert [path.name for path in imported.parent.iterdir()] == ["mine"] and load("mine").train.fingerprint == before


def test_what_a_killed_import_left_goes_unless_it_is_new_at_work_or_the_only_copy(
    tmp_path: Path, imported: Path
) -> None:
    home = imported.parent
    left, new, at_work, other = (
        home / name for name in (".mine.abcd1234.tmp", ".mine.new_8765.tmp", ".mine.work0000.tmp", ".mine.20240101")
    )
    only = home / ".gone.abcd1234.tmp"
    for folder in (left, new, at_work, other, only / ".replaced"):
        folder.mkdir(parents=True)
        (folder / "half.npy").write_bytes(b"half")
    for folder in (left, at_work, other, only):
        os.utime(folder, (1e9, 1e9))
    with held(at_work) as free:
        assert free
        import_data(tmp_path / "source", "mine", overwrite=True)
        import_data(tmp_path / "source", "gone")
    assert {path.name for path in home.iterdir()} == {"mine", "gone", new.name, at_work.name, other.name, only.name}


def kill_between_the_renames(imported: Path) -> Path:
    """Leave what a kill there does: the old set and the new one, neither under its name."""
    left = imported.with_name(".mine.abcd1234.tmp")
    shutil.copytree(imported, left / "mine")
    imported.rename(left / ".replaced")
    return left


def is_listed() -> bool:
    return "mine" in [entry.name for entry in describe()]


def test_a_set_that_a_kill_left_without_its_name_has_it_again(tmp_path: Path, imported: Path, refused: Refused) -> None:
    before = load("mine").train.fingerprint
    left = kill_between_the_renames(imported)
    assert is_listed()
    shutil.rmtree(left)
    kill_between_the_renames(imported)
    assert load("mine").train.fingerprint == before
    shutil.rmtree(left)
    kill_between_the_renames(imported)
    with refused("exists already"):
        import_data(tmp_path / "source", "mine")
    assert {path.name for path in imported.parent.iterdir()} == {"mine", left.name}


def test_what_another_process_is_at_work_on_or_somebody_removed_is_not_given_its_name(imported: Path) -> None:
    left = kill_between_the_renames(imported)
    with held(left) as free:
        assert free and not is_listed()
    shutil.rmtree(left / "mine")  # as where a kill came later, and the set that had its name was then removed
    assert not is_listed() and (left / ".replaced").is_dir()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt("a stop")])
def test_a_rename_that_fails_puts_the_old_set_back(
    tmp_path: Path, imported: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if Path(target).name == "mine" and Path(source).name == "mine":
            raise error
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises((UserError, KeyboardInterrupt), match=r"Input/output error|a stop"):
        import_data(tmp_path / "source", "mine", overwrite=True)
    assert load("mine").train.num_classes == 3 and [p.name for p in imported.parent.iterdir()] == ["mine"]


def test_a_full_disk_takes_one_line(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path / "source")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused("cannot write", "No space left on device"):
        import_data(tmp_path / "source", "mine")
    assert list((tmp_path / "data" / "imported").iterdir()) == []


def test_blocks_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path / "source", "ab", count=50)
    monkeypatch.setattr("condenset.data.raw.BLOCK_BYTES", 7 * 3 * 8 * 8)
    sizes: list[int] = []
    import condenset.data.images as module

    real = module.decode
    monkeypatch.setattr(
        module, "decode", lambda paths, frame, out, **options: (sizes.append(len(out)), real(paths, frame, out))
    )
    import_data(tmp_path / "source", "mine")
    assert max(sizes) == 7 and sum(sizes) == 100  # never more than a block in memory
    monkeypatch.undo()
    monkeypatch.setenv("CONDENSET_DATA", str(tmp_path / "data"))
    assert load("mine").train.fingerprint == load(tmp_path / "source").train.fingerprint


def edit(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        meta.update(changes)
        (folder / "meta.json").write_text(json.dumps(meta))

    return apply


def save(name: str, array: Any) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, np.asarray(array))


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


LABELS = np.repeat(np.arange(3), 4)
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no json": (lambda folder: (folder / "meta.json").write_text("{"), "meta.json cannot be read"),
    "not utf-8": (lambda folder: (folder / "meta.json").write_bytes(b"\xff\xfe\xff"), "cannot be read"),
    "deep json": (lambda folder: (folder / "meta.json").write_text("[" * 10**5), "cannot be read"),
    "a list": (lambda folder: (folder / "meta.json").write_text("[]"), "an object with a 'format'"),
    "newer": (edit(format=2), "newer condenset"),
    "format text": (edit(format="1"), "an object with a 'format'"),
    "names": (edit(class_names=[1, 2, 3]), "class_names must be"),
    "no names": (edit(class_names=[]), "class_names must be"),
    "fewer names": (edit(class_names=["a", "b"]), "ascending labels in 0..1"),
    "more names": (edit(class_names=["a", "b", "c", "d"]), "an image of every class, but got 'd'"),
    "mean": (edit(mean="x"), "mean must be"),
    "nan": (edit(mean=[float("nan")] * 3), "mean must be"),
    "no mean": (edit(mean=None), "mean must be"),
    "one mean": (edit(mean=[0.5]), "mean must be a number for each channel (3)"),
    "a mean that no float can hold": (edit(mean=[10**400] * 3), "mean must be"),
    "std 0": (edit(std=[0, 0, 0]), "std must be a number above 0 for each channel"),
    "flip": (edit(can_flip="yes"), "can_flip must be"),
    "source": (edit(source=None), "source must be text"),
    "split": (edit(train=None), "train must be an object"),
    "count": (edit(train={"count": 11, "fingerprint": "0" * 16}), "must hold 11 images"),
    "count text": (edit(train={"count": "12", "fingerprint": "0" * 16}), "count must be"),
    "fingerprint": (edit(train={"count": 12, "fingerprint": "x"}), "16 hex"),
    "no labels": (lambda folder: (folder / "train-labels.npy").unlink(), "no such file"),
    "cut images": (cut("train-images.npy", 500), "its header promises (12, 3, 8, 8)"),
    "empty images": (cut("train-images.npy", 0), "cannot be read"),
    "cut labels": (cut("test-labels.npy", 130), "its header promises"),
    "float images": (save("train-images.npy", np.zeros((12, 3, 8, 8))), "its header promises"),
    "flat images": (save("train-images.npy", np.zeros((12, 192), np.uint8)), "its header promises"),
    "objects": (save("train-images.npy", np.array([{}])), "numbers or text"),
    "oblong": (save("train-images.npy", np.zeros((12, 3, 8, 4), np.uint8)), "square"),
    "no pixels": (save("train-images.npy", np.zeros((12, 3, 0, 0), np.uint8)), "must not be empty"),
    "int32 labels": (save("train-labels.npy", LABELS.astype(np.int32)), "its header promises"),
    "unsorted": (save("train-labels.npy", LABELS[::-1].copy()), "ascending labels"),
    "overflow": (save("train-labels.npy", [0, 0, 1, -(2**63), *[2] * 8]), "ascending labels"),
    "negative": (save("train-labels.npy", LABELS - 1), "ascending labels"),
    "beyond": (save("train-labels.npy", LABELS + 1), "ascending labels"),
    "gap": (save("train-labels.npy", LABELS // 2 * 2), "an image of every class, but got 'b'"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_set_is_refused(imported: Path, refused: Refused, kind: str) -> None:
    damage, part = DAMAGE[kind]
    damage(imported)
    with refused(part):
        load("mine")
    assert [entry.state for entry in describe() if entry.name == "mine"] == ["broken"]


def test_a_huge_header_allocates_nothing(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (2**40, 3, 2**10, 2**10)}
        np.lib.format.write_array_header_1_0(file, header)
    with refused("its header promises"):
        map_npy(path, np.dtype(np.uint8), 4)


def test_check_finds_a_changed_pixel(imported: Path, refused: Refused) -> None:
    report = check_files("mine")
    assert report.num_train == 12 and report.mean == report.measured_mean
    content = bytearray((imported / "test-images.npy").read_bytes())
    content[-1] ^= 1
    (imported / "test-images.npy").write_bytes(content)
    assert isinstance(load("mine").test.images, torch.Tensor)
    with refused("the test images of mine must have the fingerprint"):
        check_files("mine")
