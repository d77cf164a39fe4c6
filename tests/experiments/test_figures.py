"""The mathematics of the figures: where synthetic images lie, steps that grow; and stopping in their midst."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from condenset import experiments
from condenset.engine import Place
from condenset.experiments import common
from condenset.experiments.cost import log_spaced
from condenset.experiments.distribution import _draw, summary, tsne
from condenset.experiments.pooled import _title
from condenset.report.charts import draw_bars
from condenset.runs import Interrupted, Run
from condenset.types import Splits
from plain import StopAtLoop, tiny_data


def test_steps_grow_alike_to_the_last() -> None:
    assert log_spaced(20_000, 4) == [20, 200, 2000, 20_000]
    assert log_spaced(5, 3) == [1, 2, 5]
    assert log_spaced(1, 5) == [1]
    assert log_spaced(0, 5) == []


def test_summary_by_hand() -> None:
    real = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1], [21, 0], [19, 0], [20, 1], [20, -1]])
    labels = torch.tensor([0] * 4 + [1] * 4)
    # Class 0: on two of its images; class 1: one image at its centre, one lost among class 0.
    synthetic = torch.tensor([[1.0, 0], [-1, 0], [20, 0], [0.0, 0]])
    found = summary(real, labels, synthetic, torch.tensor([0, 0, 1, 1]))
    assert found["spread"] == pytest.approx((1 + (0 + 20) / 2) / 2)
    assert found["reach"] == pytest.approx(((0 + 0 + 2 * 2**0.5) / 4 + 1) / 2)
    perfect = summary(real, labels, real, labels)
    assert perfect["spread"] == pytest.approx(1)
    assert perfect["reach"] == pytest.approx(0, abs=1e-6)


def test_agreement_is_by_the_nearest_real_images() -> None:
    generator = torch.Generator().manual_seed(0)
    real = torch.randn(60, 5, generator=generator) + torch.arange(3).repeat_interleave(20)[:, None] * 30
    labels = torch.arange(3).repeat_interleave(20)
    synthetic = torch.tensor([0.0, 30, 60, 0])[:, None].expand(4, 5)
    found = summary(real, labels, synthetic, torch.tensor([0, 1, 2, 2]))
    assert found["agreement"] == pytest.approx((1 + 1 + 0.5) / 3)


def test_the_map_is_a_function_of_the_seed_and_keeps_clusters_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(25)
    features = torch.randn(75, 60, generator=generator) + 20 * torch.eye(3, 60)[labels]
    first, again = tsne(features, 0), tsne(features, 0)
    assert torch.equal(first, again)
    assert summary(first, labels, first, labels)["agreement"] == 1


def test_bars_stand_for_the_accuracies_that_are_there() -> None:
    def cell(mean: float) -> dict[str, float]:
        return {"accuracy_mean": mean, "accuracy_std": 0.01}

    cells = {("1", "dd"): cell(0.2), ("1", "dm"): cell(0.3), ("50", "dm"): cell(0.6)}  # dd has none of 50
    (axes,) = draw_bars(cells, bound=cell(0.8)).axes
    bars = {
        bar.get_label(): [patch.get_height() for patch in bar] for bar in axes.containers if hasattr(bar, "patches")
    }
    assert bars == {"dd": pytest.approx([20]), "dm": pytest.approx([30, 60])}
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "50"]
    assert 80 in axes.lines[-1].get_ydata()


def test_groups_are_written_as_in_the_paper() -> None:
    assert [_title(name) for name in ("random", "60-70", "70-100", "all")] == ["random", "60-70", "≥70", "all"]


def test_the_legend_tells_synthetic_images_from_real_ones() -> None:
    tensors = {name: torch.rand(4, 2) for name in ("real", "dm", "dsa")}
    tensors |= {f"{name}.labels": torch.tensor([0, 0, 1, 1]) for name in tensors}
    figure = _draw(tensors, ["cat", "dog"], ["dm", "dsa"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["cat", "dog", "of the set"]
    assert "t-SNE" in figure.get_supxlabel()


@pytest.mark.parametrize("name", ["networks", "cost", "distribution"])
def test_stopped_often_it_comes_out_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    monkeypatch.setitem(common.RECIPES_AT, "tiny", common.RECIPES_AT["tiny"] | {"iterations": 2, "batch": 8})
    monkeypatch.setitem(common.PROTOCOLS_AT, "tiny", common.PROTOCOLS_AT["tiny"] | {"epochs": 1, "nets": 1})
    splits = Splits(train=tiny_data([24, 24, 24]), test=tiny_data([8, 8, 8]))

    def go(folder: Path, stop: int) -> experiments.Outcome:
        run = Run(seed=1, place=Place.best("cpu"), folder=folder)
        run.progress = StopAtLoop(run, stop)
        return experiments.perform(name, splits, run, folder, dataset="tiny", scale="tiny")

    undisturbed = go(tmp_path / "whole", 999)
    stops = 0
    for stop in (1, 1, 2, 3, 999):
        try:
            again = go(tmp_path / "cut", stop)
        except Interrupted:
            stops += 1
    assert stops >= 3
    timed = {"seconds", "condense_seconds", "peak_memory_bytes"}
    for mine, theirs in zip(again.records, undisturbed.records, strict=True):
        assert {k: v for k, v in mine.items() if k not in timed} == {k: v for k, v in theirs.items() if k not in timed}
