"""Imports that are stopped, killed or find unreadable files."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from condenset.data import import_dataset, list_datasets, load
from condenset.data.folders.image_decoding import UnreadableImageError
from condenset.data.imports.importing import write_import
from condenset.data.reading import lazy
from condenset.data.reading.lazy import LazyDataset, LazySplit, Pixels, Rows
from condenset.io.locks import try_lock
from helpers.command_line import CommandProcess, CommandRunner
from helpers.data_files import ExpectUserError, make_classes, save_image
from helpers.interrupted_import import BLOCK_BYTES, SignalAtBlock


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "BLOCK_BYTES", BLOCK_BYTES)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A tree like that of ImageNet: 200 training and 60 test images."""
    for split, count in (("train", 100), ("val", 30)):
        for number, name in enumerate(("n01", "n02")):
            for image in range(count):
                save_image(tmp_path / "photos" / split / name / f"{image}.JPEG", value=1000 * number + image)
    return tmp_path / "photos"


def read_import(directory: Path) -> dict[str, bytes]:
    """Return the files of an import, without its name, which is in the metadata."""
    contents = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
    metadata = json.loads(contents["meta.json"])
    return {**contents, "meta.json": json.dumps({**metadata, "name": ""}).encode()}


def partial(tmp_path: Path) -> Path:
    return tmp_path / "data" / "imported" / ".mine.partial"


@pytest.mark.parametrize(
    ("number", "sent", "first_image"),
    [(2, signal.SIGKILL, 41), (7, signal.SIGKILL, 241), (3, signal.SIGINT, 81), (8, signal.SIGKILL, 260)],
    ids=["training images", "test images", "stopped", "labels"],
)
@pytest.mark.usefixtures("small_blocks")
def test_interrupted_import_continues_to_the_same_files(
    condenset: CommandRunner, tmp_path: Path, photos: Path, number: int, sent: int, first_image: int
) -> None:
    arguments = ("data", "import", photos, "mine", "--size", 4, "--data-dir", tmp_path / "data")
    setup = SignalAtBlock(number, sent)
    result = CommandProcess(arguments, tmp_path / "output", setup).wait()
    assert result.code == (-sent if sent == signal.SIGKILL else 128 + sent)
    assert sent == signal.SIGKILL or "Repeat the command to continue" in result.err
    assert partial(tmp_path).exists()
    assert "mine" not in [entry.name for entry in list_datasets()]
    assert "must be one of" in condenset("data", "check", "mine").error_line
    result = condenset(*arguments)
    assert result.code == 0
    assert f"importing mine: continuing at image {first_image} of 260" in result.err
    undisturbed = import_dataset(photos, "undisturbed", size=4, verbose=False)
    assert read_import(undisturbed.with_name("mine")) == read_import(undisturbed)
    assert sorted(path.name for path in undisturbed.parent.iterdir()) == ["mine", "undisturbed"]


def test_a_stopped_import_that_replaces_another_leaves_nothing(tmp_path: Path, photos: Path) -> None:
    arguments = ("data", "import", photos, "mine", "--size", 4, "--overwrite", "--data-dir", tmp_path / "data")
    result = CommandProcess(arguments, tmp_path / "output", SignalAtBlock(1, signal.SIGINT)).wait()
    assert result.code == 128 + signal.SIGINT
    assert "stopped" in result.err and "continue" not in result.err
    assert list((tmp_path / "data" / "imported").iterdir()) == []


def test_a_stopped_import_of_arrays_promises_no_continuation(tmp_path: Path, toy: Path) -> None:
    arguments = ("data", "import", toy, "mine", "--data-dir", tmp_path / "data")
    result = CommandProcess(arguments, tmp_path / "output", SignalAtBlock(1, signal.SIGINT)).wait()
    assert result.code == 128 + signal.SIGINT
    assert "stopped" in result.err and "continue" not in result.err


@pytest.fixture
def killed_import(tmp_path: Path, photos: Path, small_blocks: None) -> Path:
    """The hidden directory of an import of `photos` that was killed in its second block."""
    arguments = ("data", "import", photos, "mine", "--size", 4, "--data-dir", tmp_path / "data")
    CommandProcess(arguments, tmp_path / "output", SignalAtBlock(2, signal.SIGKILL)).wait()
    return partial(tmp_path)


@pytest.mark.parametrize("change", ["file", "option", "overwrite", "journal", "rows", "images"])
def test_an_import_that_differs_starts_again(
    condenset: CommandRunner, photos: Path, killed_import: Path, change: str
) -> None:
    options: list[object] = ["--size", 4]
    if change == "file":
        save_image(photos / "train" / "n01" / "0.JPEG", value=77)
    elif change == "journal":
        (killed_import / "journal.json").write_text("[" * 100_000)
    elif change == "rows":
        journal = json.loads((killed_import / "journal.json").read_text())
        (killed_import / "journal.json").write_text(json.dumps({**journal, "rows": {"train": 201}}))
    elif change == "images":
        os.truncate(killed_import / "mine" / "train-images.npy", 128 + BLOCK_BYTES - 1)  # a header and one block
    else:
        options = ["--size", 4, "--overwrite"] if change == "overwrite" else ["--size", 4, "--no-flip"]
    result = condenset("data", "import", photos, "mine", *options)
    assert result.code == 0 and "continuing" not in result.err
    assert load("mine").train.fingerprint == load(photos, size=4).train.fingerprint
    assert not killed_import.exists()


def test_only_one_process_imports_a_name(photos: Path, killed_import: Path, user_error: ExpectUserError) -> None:
    with try_lock(killed_import) as has_lock:
        assert has_lock
        with user_error("another process is using ", ".mine.partial: wait until it ends, or stop it"):
            import_dataset(photos, "mine", size=4)
    assert killed_import.exists()


def test_killed_imports_that_cannot_continue_are_removed(killed_import: Path) -> None:
    (killed_import / "journal.json").unlink()
    list_datasets()
    assert not killed_import.exists()


def damage(photos: Path) -> list[str]:
    """Damage four files: one without a header, and three with a complete header but incomplete pixels."""
    names = ["train/n01/50.JPEG", "train/n01/99.JPEG", "train/n02/3.JPEG", "val/n02/0.JPEG"]
    for name in names:
        content = (photos / name).read_bytes()
        (photos / name).write_bytes(b"text" if name.endswith("50.JPEG") else content[:-20])
    return [str(photos / name) for name in names]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.filterwarnings("ignore:4 unreadable image files are left out")
def test_unreadable_files_are_named_or_left_out(condenset: CommandRunner, tmp_path: Path, photos: Path) -> None:
    paths = damage(photos)
    result = condenset("data", "import", photos, "mine", "--size", 4)
    assert result.code == 2 and "50.JPEG is not a readable image" in result.error_line  # its header is missing
    os.unlink(paths[0])
    result = condenset("data", "import", photos, "mine", "--size", 4)
    assert result.code == 2 and f"{paths[1]} is not a readable image" in result.error_line
    assert "; leave out unreadable files with --skip-bad" in result.error_line
    assert not partial(tmp_path).exists() and "mine" not in [entry.name for entry in list_datasets()]
    Path(paths[0]).write_bytes(b"text")
    assert condenset("data", "import", photos, "mine", "--size", 4, "--skip-bad").code == 0
    directory = tmp_path / "data" / "imported" / "mine"
    lines = (directory / "bad-images.txt").read_text().splitlines()
    assert [line.split(" is not a readable image")[0] for line in lines] == paths
    for path in paths:
        os.unlink(path)
    expected = load(photos, size=4)
    assert load("mine").train.fingerprint == expected.train.fingerprint
    assert load("mine").test.fingerprint == expected.test.fingerprint


def test_an_unreadable_image_without_a_file_is_an_error(tmp_path: Path, user_error: ExpectUserError) -> None:
    def fill(out: Pixels, rows: Rows) -> None:
        raise UnreadableImageError("image 3 is damaged")

    train = LazySplit((2, 1, 2, 2), np.arange(2), fill)
    dataset = LazyDataset(train, None, ("a", "b"), "source")
    with user_error("image 3 is damaged"):
        write_import(dataset, tmp_path / "mine", arguments={})
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_option_is_an_error_although_another_file_is_damaged(
    tmp_path: Path, user_error: ExpectUserError
) -> None:
    for name in ("a/0", "a/1", "a/2", "b/0"):
        pixels = np.random.default_rng(0).integers(0, 200, (8, 8)).astype(np.uint16)
        path = tmp_path / "scans" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels * (100 if name == "a/1" else 1)).save(path)
    damaged = tmp_path / "scans" / "a" / "0.png"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    with user_error("pixels must be at most the white level 255", "1.png"):
        import_dataset(tmp_path / "scans", "mine", white_level=255, skip_bad=True)
    assert list((tmp_path / "data" / "imported").iterdir()) == []


@pytest.mark.usefixtures("small_blocks")
def test_warning_names_ten_unreadable_files(photos: Path) -> None:
    for number in range(12):
        (photos / "train" / "n01" / f"{number}.JPEG").write_bytes(b"text")
    with pytest.warns(UserWarning, match="12 unreadable image files are left out: .*bad-images.txt") as warned:
        directory = import_dataset(photos, "mine", size=4, skip_bad=True)
    assert str(warned[0].message).count(".JPEG") == 10
    assert len((directory / "bad-images.txt").read_text().splitlines()) == 12


def test_an_import_of_arrays_leaves_nothing_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_error: ExpectUserError
) -> None:
    def raise_disk_full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    np.savez(tmp_path / "toy.npz", x_train=np.zeros((4, 4, 4), np.uint8), y_train=[0, 0, 1, 1])
    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with user_error("cannot write", "No space left on device"):
        import_dataset(tmp_path / "toy.npz", "mine")
    assert list((tmp_path / "data" / "imported").iterdir()) == []


@pytest.mark.usefixtures("small_blocks")
def test_import_continues_after_a_full_disk(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, user_error: ExpectUserError
) -> None:
    real, num_calls = os.fsync, 0

    def fail_later(handle: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls > 5:
            raise OSError(28, "No space left on device")
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_later)
        with user_error("cannot write", "No space left on device"):
            import_dataset(photos, "mine", size=4)
    assert json.loads((partial(tmp_path) / "journal.json").read_text())["rows"] == {"train": 80}
    assert load(import_dataset(photos, "mine", size=4)).train.fingerprint == load(photos, size=4).train.fingerprint


def test_scanning_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    make_classes(tmp_path / "photos", "ab", count=3)
    monkeypatch.setattr("condenset.io.progress.LINE_SECONDS", 0.0)
    monkeypatch.setattr("condenset.io.progress.MIN_LINE_SECONDS", 0.0)
    load(tmp_path / "photos", skip_bad=True, verbose=False)
    assert capsys.readouterr().err == ""
    load(tmp_path / "photos", skip_bad=True)
    lines = capsys.readouterr().err
    for text in (
        "listing the files of photos: 2 of 2",
        "reading image headers: 6 of 6",
        "searching for unreadable images",
    ):
        assert text in lines
    import_dataset(tmp_path / "photos", "mine")
    assert "checking file times: 6 of 6" in capsys.readouterr().err
