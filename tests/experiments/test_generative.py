"""The experiment `generative`: its table, its figure, and one generator for all sizes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import Splits
from condenset.experiments.generative import draw_rows
from condenset.methods import METHODS
from condenset.methods.coresets.random import RandomRecipe
from helpers.experiment_recorder import Recorder, make_context, run_in
from helpers.experiment_runs import make_run, run_tiny, skip_scoring
from helpers.reference_dm import tiny_data

METHOD_NAMES = ("random", "gmmn", "vae", "gan", "mmd", "dm")


def test_every_method_is_scored_at_every_size(recorder: Recorder, tmp_path: Path) -> None:
    context = make_context("generative", tmp_path, ipcs=(1, 2))
    result = run_in(context, "generative")
    assert set(recorder.scored) == {f"{method}-{ipc}" for method in METHOD_NAMES for ipc in (1, 2)}
    assert context.num_parts == len(recorder.scored)
    assert result.table.columns == ("images per class", *METHOD_NAMES)
    assert [row[0] for row in result.table.rows] == ["1", "2"]
    assert result.figure_ipcs == (2,)


@pytest.mark.usefixtures("fast_tiny")
def test_sizes_share_their_generator(splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_scoring(monkeypatch)
    run_tiny("generative", splits, tmp_path, methods=("gmmn",), ipcs=(1, 2), num_sets=2)
    assert len(list((tmp_path / "networks").glob("*.safetensors"))) == 2  # one per seed


@pytest.mark.charts
@pytest.mark.parametrize("channels", [1, 3])
def test_figure_has_a_row_per_method_and_an_image_per_class(channels: int, tmp_path: Path) -> None:
    data = tiny_data([3] * 12, channels=channels, size=16)

    def select(seed: int) -> CondensedSet:
        run = make_run(tmp_path)
        run.seed = seed
        return METHODS["random"].condense(data, RandomRecipe(ipc=2), run)

    sets = {"first": select(0), "second": select(1)}
    (axes,) = draw_rows(sets).axes
    pixels = torch.as_tensor(axes.images[0].get_array())
    assert pixels.shape == (2 * 17 - 1, 10 * 17 - 1, 3)
    for row, condensed in enumerate(sets.values()):
        expected = condensed.images[2 * 3].clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0)
        torch.testing.assert_close(pixels[17 * row : 17 * row + 16, 17 * 3 : 17 * 3 + 16], expected)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    assert len(axes.get_xticklabels()) == 10


@pytest.mark.charts
def test_a_class_without_an_image_is_white(tmp_path: Path) -> None:
    condensed = METHODS["random"].condense(tiny_data([3] * 3, size=8), RandomRecipe(ipc=1), make_run(tmp_path))
    soft_labels = torch.tensor([[0.6, 0.4, 0.0], [0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])  # class 1 is never the largest
    (axes,) = draw_rows({"ld": dataclasses.replace(condensed, labels=soft_labels)}).axes
    pixels = torch.as_tensor(axes.images[0].get_array())
    assert (pixels[:, 9:17] == 1).all()
    for label in (0, 2):
        expected = condensed.images[label].clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0)
        torch.testing.assert_close(pixels[:, 9 * label : 9 * label + 8], expected)
