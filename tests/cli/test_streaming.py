"""`--memory` below the size of an imported dataset: its images are streamed, with the same result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from condenset import ImageData
from helpers.command_line import TINY_NETWORK, CommandRunner, sets_equal
from helpers.imports import truncate_images, write_import

OPTIONS = (*TINY_NETWORK, "--iterations", 3, "--ipc", "1,2", "--set", "batch_size=8")
LIMIT = ("--memory", "40MB")  # the images have 23 MB


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """The directory of an import."""
    directory = tmp_path / "imported" / "mine"
    counts = torch.tensor([700, 600, 600])
    generator = torch.Generator().manual_seed(0)
    data = ImageData(
        images=torch.randint(0, 256, (1900, 3, 64, 64), dtype=torch.uint8, generator=generator),
        labels=torch.arange(3).repeat_interleave(counts),
        class_names=("a", "b", "c"),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )
    write_import(data, directory)
    return directory


def test_a_limit_below_the_dataset_gives_the_same_sets(condenset: CommandRunner, imported: Path) -> None:
    for limit, out in ((LIMIT, "a"), ((), "b")):
        assert condenset("condense", imported, *OPTIONS, *limit, "--out", out).code == 0
    for name in ("dm-1", "dm-2"):
        first, second = (Path(out, "sets", f"{name}.safetensors") for out in "ab")
        assert sets_equal(first, second)


def test_the_plan_says_that_images_are_streamed(condenset: CommandRunner, imported: Path) -> None:
    text = "images streamed from disk"
    assert text in condenset("condense", imported, *OPTIONS, *LIMIT, "--dry-run").out
    assert text not in condenset("condense", imported, *OPTIONS, "--dry-run").out
    assert text not in condenset("condense", imported, "--method", "random", "--ipc", 1, *LIMIT, "--dry-run").out


def test_a_damaged_import_ends_a_streamed_run_with_one_line(condenset: CommandRunner, imported: Path) -> None:
    truncate_images(imported, 1)
    assert "train-images.npy" in condenset("condense", imported, *OPTIONS, *LIMIT, "--out", "a").error_line
