"""Test images that are also training images."""

from __future__ import annotations

from pathlib import Path

import pytest

from condenset.pipeline.request import RunRequest
from condenset.pipeline.run import plan_run
from helpers.data_files import make_classes, save_image


def plan(dataset: str, *, evaluate: bool = True) -> None:
    plan_run(RunRequest(methods=("random",), ipcs=(1,), evaluate=evaluate), dataset=dataset, device="cpu")


def test_a_run_warns_about_test_images_that_are_training_images(tmp_path: Path) -> None:
    make_classes(tmp_path / "pets" / "train", count=3)
    make_classes(tmp_path / "pets" / "test", count=2, seed=1)
    plan("pets")
    save_image(tmp_path / "pets" / "test" / "a" / "9.png", value=2)
    with pytest.warns(UserWarning, match="pets: 1 of the 5 test images have the pixels of a training image"):
        plan("pets")
    plan("pets", evaluate=False)


def test_a_hold_out_of_repeated_images_is_a_warning(tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=5)
    save_image(tmp_path / "pets" / "a" / "1 copy.png", value=0)  # the first image again
    with pytest.warns(UserWarning, match="1 of the 3 test images"):
        plan("pets")
