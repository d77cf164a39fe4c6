from __future__ import annotations

from pathlib import Path

import pytest

from condenset.data import DATASETS, import_dataset, load
from helpers.data_files import ExpectUserError, make_classes, write_cifar10

pytestmark = pytest.mark.filterwarnings("ignore:.*should have")  # the test files have few images


def test_error_for_unknown_name_suggests_the_nearest_one(tmp_path: Path, user_error: ExpectUserError) -> None:
    with user_error("did you mean 'cifar10'?"):
        load("cifar11")
    with user_error("or a path that exists, but got 'xyzzy'"):
        load("xyzzy")
    make_classes(tmp_path / "pictures")
    import_dataset(tmp_path / "pictures", "flowers")
    with user_error("did you mean 'flowers'?"):
        load("flower")
    with user_error("must be a name or a path, but got ''"):
        load("")
    with user_error("no such folder or file"):
        load(tmp_path / "nowhere")
    (tmp_path / "set.csv").write_text("1,2")
    with user_error("must end in .npz"):
        load(tmp_path / "set.csv")
    (tmp_path / "small.safetensors").touch()
    with user_error("read a set with cs.CondensedSet.load"):
        load(tmp_path / "small.safetensors")
    (tmp_path / "run" / "sets").mkdir(parents=True)
    (tmp_path / "run" / "recipe.toml").write_text("# condenset 0.1.0")
    with user_error("contains a run, not a dataset; read a set with cs.CondensedSet.load"):
        load(tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_error_for_missing_files_explains_how_to_get_them(
    tmp_path: Path, user_error: ExpectUserError, name: str
) -> None:
    hint = "image-net.org" if name == "imagenet" else "download it with download=True"
    with user_error(f"{name} is not in {tmp_path}: ", hint, "data_dir="):
        load(name, data_dir=tmp_path)


def test_names_are_normalized(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    for name in ("cifar10", "CIFAR-10", "cifar_10"):
        assert load(name, data_dir=tmp_path).train.name == "cifar10"


def test_registered_name_takes_precedence_over_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_classes(tmp_path / "digits")
    assert load("digits").train.num_classes == 10
    assert load("./digits").train.num_classes == 2
    assert load(Path("digits")).train.num_classes == 2
    make_classes(tmp_path / "mine.set")
    assert load("mine.set").train.name == "mine.set"


def test_arrays_have_a_fixed_size(user_error: ExpectUserError) -> None:
    assert load("digits", size=8).train.size == 8
    with user_error(
        "the images of digits are 8x8, and only image files and .npz files can be resized, but got size 16"
    ):
        load("digits", size=16)
