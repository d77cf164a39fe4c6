from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from condenset.data import check_dataset, from_arrays, import_dataset, list_datasets, load
from condenset.data.image_data import Splits
from condenset.data.imports.memmap import map_npy
from condenset.errors import UserError
from condenset.io.locks import try_lock
from helpers.data_files import ExpectUserError, make_classes, replace_dataset, write_cifar10


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Return the directory of an imported dataset named `mine`."""
    make_classes(tmp_path / "source", "abc", count=6)
    return import_dataset(tmp_path / "source", "mine", test_share=0.2)


def test_imported_dataset_equals_its_source(tmp_path: Path, imported: Path) -> None:
    assert imported == tmp_path / "data" / "imported" / "mine"
    direct, opened = load(tmp_path / "source", test_share=0.2), load("mine")
    for source, copy in ((direct.train, opened.train), (direct.test, opened.test)):
        assert (source.images == copy.images).all() and (source.labels == copy.labels).all()
        assert source.fingerprint == copy.stored_fingerprint
        assert (source.class_names, source.mean, source.std) == (copy.class_names, copy.mean, copy.std)
        assert source.source == copy.source
    assert opened.train.name == "mine"
    assert load(imported).train.fingerprint == direct.train.fingerprint
    plain = np.load(imported / "train-images.npy", mmap_mode="r")
    assert plain.shape == (12, 3, 8, 8) and (np.diff(np.load(imported / "train-labels.npy")) >= 0).all()


def test_imported_dataset_has_the_registered_constants(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    with user_error("cifar10 must have 50000 train and 10000 test images, but got 100 and 20"):
        import_dataset("cifar10", "small", data_dir=tmp_path)
    replace_dataset(monkeypatch, "cifar10", num_train=100, num_test=20)
    import_dataset("cifar10", "small", data_dir=tmp_path)
    small, direct = load("small", data_dir=tmp_path), load("cifar10", data_dir=tmp_path)
    assert small.train.std == direct.train.std == (0.2023, 0.1994, 0.2010)
    assert small.train.fingerprint == direct.train.fingerprint
    assert not load(import_dataset("digits", "numbers", data_dir=tmp_path)).train.allow_hflip


def test_folder_may_have_the_name_of_a_registered_dataset(tmp_path: Path) -> None:
    make_classes(tmp_path / "mnist" / "train")
    assert load(import_dataset(tmp_path / "mnist", "mine", data_dir=tmp_path)).train.name == "mine"
    assert check_dataset(tmp_path / "mnist").name == "mnist"


def test_writing_to_images_does_not_change_the_file(imported: Path) -> None:
    before = (imported / "train-images.npy").read_bytes()
    images = load("mine").train.images
    images.zero_()  # changes a private copy of the pages
    assert (imported / "train-images.npy").read_bytes() == before


def test_map_is_read_only_if_it_cannot_be_private(imported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = np.memmap

    def no_private_map(path: Path, dtype: Any, mode: str, *arguments: Any) -> Any:
        if mode == "c":
            raise OSError(12, "Cannot allocate memory")
        return real(path, dtype, mode, *arguments)

    expected = load("mine").train.images
    monkeypatch.setattr(np, "memmap", no_private_map)
    assert (load("mine").train.images == expected).all()


def test_splits_can_be_imported(tmp_path: Path, user_error: ExpectUserError) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
    data = from_arrays(x, ["b", "a", "b", "a", "b", "a"], allow_hflip=False)
    test = from_arrays(x[:4], ["b", "a", "b", "a"])
    directory = import_dataset(Splits(train=data, test=test), "arrays")
    opened = load("arrays").train
    assert (opened.images[:, 0].numpy() == x[[1, 3, 5, 0, 2, 4]]).all() and not opened.allow_hflip
    with user_error("can be resized"):
        import_dataset(Splits(train=data, test=test), "other", size=8)
    assert load(import_dataset(directory, "copy")).train.fingerprint == opened.fingerprint
    assert load(import_dataset("arrays", "flips", allow_hflip=True)).train.allow_hflip


def test_import_keeps_the_home_directory_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path / "source")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(import_dataset(Path("~/source"), "mine")).train.source == str(tmp_path / "source")


@pytest.mark.parametrize("name", [5, None, Path("mine")])
def test_name_of_an_import_must_be_text(name: Any, user_error: ExpectUserError) -> None:
    with user_error("a name must be text"):
        import_dataset("digits", name)


def test_size_is_applied(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path / "source")
    import_dataset(tmp_path / "source", "small", size=4)
    assert load("small").train.size == 4
    with user_error("can be resized"):
        load("small", size=8)


def test_errors_do_not_name_the_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_dataset(monkeypatch, "digits", mean=(0.5,) * 3)
    with pytest.raises(UserError, match="mine: mean must be a number for each channel") as caught:
        import_dataset("digits", "mine")
    assert ".tmp" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "-x", "x" * 101, "a b", "cifar10", "CIFAR-10"])
def test_invalid_names_are_rejected(tmp_path: Path, user_error: ExpectUserError, name: str) -> None:
    make_classes(tmp_path / "source")
    with user_error("a name must"):
        import_dataset(tmp_path / "source", name)
    assert not (tmp_path / "data").exists()


def test_overwriting_needs_an_option(tmp_path: Path, imported: Path, user_error: ExpectUserError) -> None:
    before = load("mine").train.fingerprint
    make_classes(tmp_path / "other", "xy")
    with user_error("exists already"):
        import_dataset(tmp_path / "other", "mine")
    assert load("mine").train.fingerprint == before
    import_dataset(tmp_path / "other", "mine", overwrite=True)
    assert load("mine").train.class_names == ("x", "y")
    import_dataset("mine", "mine", overwrite=True)
    assert load("mine").train.class_names == ("x", "y")
    assert [path.name for path in imported.parent.iterdir()] == ["mine"]


def test_failed_import_leaves_the_old_dataset(tmp_path: Path, imported: Path, user_error: ExpectUserError) -> None:
    before = load("mine").train.fingerprint
    (tmp_path / "source" / "b" / "4.png").write_bytes(b"broken")
    with user_error("4.png is not a readable image"):
        import_dataset(tmp_path / "source", "mine", overwrite=True)
    with user_error("4.png is not a readable image"):
        import_dataset(tmp_path / "source", "new")
    names = sorted(path.name for path in imported.parent.iterdir())
    assert names == ["mine"] and load("mine").train.fingerprint == before


def test_leftovers_of_a_killed_import_are_removed_at_once_unless_locked_or_the_only_copy(
    tmp_path: Path, imported: Path
) -> None:
    parent = imported.parent
    leftover, locked, other = (parent / name for name in (".mine.abcd1234.tmp", ".mine.work0000.tmp", ".mine.20240101"))
    only_copy = parent / ".gone.abcd1234.tmp"
    for directory in (leftover, locked, other, only_copy / ".replaced"):
        directory.mkdir(parents=True)
        (directory / "half.npy").write_bytes(b"half")
    with try_lock(locked) as has_lock:
        assert has_lock
        import_dataset(tmp_path / "source", "mine", overwrite=True)
        import_dataset(tmp_path / "source", "gone")
    assert {path.name for path in parent.iterdir()} == {
        "mine",
        "gone",
        *(path.name for path in (locked, other, only_copy)),
    }


def simulate_kill_between_renames(imported: Path) -> Path:
    """Rename the dataset as a kill between the two renames would; return the temporary directory."""
    workspace = imported.with_name(".mine.abcd1234.tmp")
    shutil.copytree(imported, workspace / "mine")
    imported.rename(workspace / ".replaced")
    return workspace


def is_listed() -> bool:
    return "mine" in [entry.name for entry in list_datasets()]


def test_dataset_is_restored_after_a_kill_between_the_renames(
    tmp_path: Path, imported: Path, user_error: ExpectUserError
) -> None:
    before = load("mine").train.fingerprint
    simulate_kill_between_renames(imported)
    assert is_listed()
    simulate_kill_between_renames(imported)
    assert load("mine").train.fingerprint == before
    simulate_kill_between_renames(imported)
    with user_error("exists already"):
        import_dataset(tmp_path / "source", "mine")
    assert [path.name for path in imported.parent.iterdir()] == ["mine"]


@pytest.mark.parametrize("command", [list_datasets, lambda: load("mine")])
def test_reading_removes_what_an_import_left_that_was_killed_after_the_renames(
    imported: Path, command: Callable[[], object]
) -> None:
    leftover, locked = (imported.with_name(f".mine.{letter * 8}.tmp") for letter in "ab")
    for workspace in (leftover, locked):
        shutil.copytree(imported, workspace / ".replaced")
    with try_lock(locked) as has_lock:
        assert has_lock
        command()
    assert {path.name for path in imported.parent.iterdir()} == {"mine", locked.name}


def test_dataset_is_not_restored_if_another_process_works_on_it_or_it_was_removed(imported: Path) -> None:
    workspace = simulate_kill_between_renames(imported)
    with try_lock(workspace) as has_lock:
        assert has_lock and not is_listed()
    shutil.rmtree(workspace / "mine")  # as if the kill came later, and the new dataset was then removed
    assert not is_listed() and (workspace / ".replaced").is_dir()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt("interrupted")])
def test_old_dataset_is_restored_if_the_rename_fails(
    tmp_path: Path, imported: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if Path(target).name == "mine" and Path(source).name == "mine":
            raise error
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises((UserError, KeyboardInterrupt), match=r"Input/output error|interrupted"):
        import_dataset(tmp_path / "source", "mine", overwrite=True)
    assert load("mine").train.num_classes == 3 and [p.name for p in imported.parent.iterdir()] == ["mine"]


def test_full_disk_is_a_user_error(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_classes(tmp_path / "source")

    def raise_disk_full(handle: int) -> None:
        raise OSError(28, "No space workspace on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with user_error("cannot write", "No space workspace on device"):
        import_dataset(tmp_path / "source", "mine")
    assert list((tmp_path / "data" / "imported").iterdir()) == []


def test_import_reads_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path / "source", "ab", count=50)
    monkeypatch.setattr("condenset.data.reading.lazy.BLOCK_BYTES", 7 * 3 * 8 * 8)
    sizes: list[int] = []
    import condenset.data.folders.reading as module

    real = module.decode_images
    monkeypatch.setattr(
        module, "decode_images", lambda paths, target, out, **_: (sizes.append(len(out)), real(paths, target, out))
    )
    import_dataset(tmp_path / "source", "mine")
    assert max(sizes) == 7 and sum(sizes) == 100  # never more than a block in memory
    monkeypatch.undo()
    monkeypatch.setenv("CONDENSET_DATA", str(tmp_path / "data"))
    assert load("mine").train.fingerprint == load(tmp_path / "source").train.fingerprint


def edit_metadata(**changes: Any) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        metadata = json.loads((directory / "meta.json").read_text())
        metadata.update(changes)
        (directory / "meta.json").write_text(json.dumps(metadata))

    return apply


def save_array(name: str, array: Any) -> Callable[[Path], None]:
    return lambda directory: np.save(directory / name, np.asarray(array))


def truncate(name: str, size: int) -> Callable[[Path], None]:
    return lambda directory: os.truncate(directory / name, size)


LABELS = np.repeat(np.arange(3), 4)
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no json": (
        lambda directory: (directory / "meta.json").write_text("{"),
        "meta.json is not the metadata of an imported dataset; import the dataset again",
    ),
    "not utf-8": (lambda directory: (directory / "meta.json").write_bytes(b"\xff\xfe\xff"), "is not the metadata"),
    "deep json": (lambda directory: (directory / "meta.json").write_text("[" * 10**5), "is not the metadata"),
    "a list": (lambda directory: (directory / "meta.json").write_text("[]"), "is not the metadata"),
    "newer": (edit_metadata(format=2), "newer version of condenset"),
    "format text": (edit_metadata(format="1"), "is not the metadata"),
    "names": (edit_metadata(class_names=[1, 2, 3]), "is not the metadata"),
    "no names": (edit_metadata(class_names=[]), "is not the metadata"),
    "fewer names": (edit_metadata(class_names=["a", "b"]), "ascending labels in 0..1"),
    "more names": (edit_metadata(class_names=["a", "b", "c", "d"]), "an image of every class, but has none of 'd'"),
    "mean": (edit_metadata(mean="x"), "mean must be"),
    "nan": (edit_metadata(mean=[float("nan")] * 3), "mean must be"),
    "no mean": (edit_metadata(mean=None), "mean must be"),
    "one mean": (edit_metadata(mean=[0.5]), "mean must be a number for each channel (3)"),
    "a mean that no float can hold": (edit_metadata(mean=[10**400] * 3), "mean must be"),
    "std 0": (edit_metadata(std=[0, 0, 0]), "std must be a number above 0 for each channel"),
    "flip": (edit_metadata(allow_hflip="yes"), "is not the metadata"),
    "source": (edit_metadata(source=None), "is not the metadata"),
    "split": (edit_metadata(train=None), "is not the metadata"),
    "count": (edit_metadata(train={"count": 11, "fingerprint": "0" * 16}), "must have 11 images"),
    "count text": (edit_metadata(train={"count": "12", "fingerprint": "0" * 16}), "is not the metadata"),
    "fingerprint": (edit_metadata(train={"count": 12, "fingerprint": 7}), "is not the metadata"),
    "no labels": (lambda directory: (directory / "train-labels.npy").unlink(), "no such file"),
    "cut images": (truncate("train-images.npy", 500), "its header declares shape (12, 3, 8, 8)"),
    "empty images": (truncate("train-images.npy", 0), "header cannot be read"),
    "cut labels": (truncate("test-labels.npy", 130), "its header declares"),
    "float images": (save_array("train-images.npy", np.zeros((12, 3, 8, 8))), "its header declares"),
    "flat images": (save_array("train-images.npy", np.zeros((12, 192), np.uint8)), "its header declares"),
    "objects": (save_array("train-images.npy", np.array([{}])), "numbers or text"),
    "oblong": (save_array("train-images.npy", np.zeros((12, 3, 8, 4), np.uint8)), "square"),
    "no pixels": (save_array("train-images.npy", np.zeros((12, 3, 0, 0), np.uint8)), "must not be empty"),
    "int32 labels": (save_array("train-labels.npy", LABELS.astype(np.int32)), "its header declares"),
    "unsorted": (save_array("train-labels.npy", LABELS[::-1].copy()), "ascending labels"),
    "overflow": (save_array("train-labels.npy", [0, 0, 1, -(2**63), *[2] * 8]), "ascending labels"),
    "negative": (save_array("train-labels.npy", LABELS - 1), "ascending labels"),
    "beyond": (save_array("train-labels.npy", LABELS + 1), "ascending labels"),
    "gap": (save_array("train-labels.npy", LABELS // 2 * 2), "an image of every class, but has none of 'b'"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_dataset_is_rejected(imported: Path, user_error: ExpectUserError, kind: str) -> None:
    damage, message = DAMAGE[kind]
    damage(imported)
    with user_error(message):
        load("mine")
    assert [entry.state for entry in list_datasets() if entry.name == "mine"] == ["broken"]


def test_huge_header_is_rejected_before_allocation(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (2**40, 3, 2**10, 2**10)}
        np.lib.format.write_array_header_1_0(file, header)
    with user_error("its header declares"):
        map_npy(path, np.dtype(np.uint8), 4)


def test_check_finds_a_changed_pixel(imported: Path, user_error: ExpectUserError) -> None:
    report = check_dataset("mine")
    assert report.num_train == 12 and report.mean == report.measured_mean
    content = bytearray((imported / "test-images.npy").read_bytes())
    content[-1] ^= 1
    (imported / "test-images.npy").write_bytes(content)
    assert isinstance(load("mine").test.images, torch.Tensor)
    with user_error("the test images of mine must have the fingerprint"):
        check_dataset("mine")


def test_too_large_metadata_file_is_not_read(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path / "source", "abc", count=6)
    directory = import_dataset(tmp_path / "source", "mine")
    with (directory / "meta.json").open("rb+") as file:
        file.truncate((1 << 26) + 1)  # sparse: takes no disk
    with user_error("meta.json must have at most"):
        load("mine")
