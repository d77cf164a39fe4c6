"""The feature map and its measures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import Splits
from condenset.experiments import ExperimentResult, scales
from condenset.experiments.feature_map import _draw, compare_distributions, sample_real_images, tsne
from condenset.experiments.network_groups import _title
from condenset.experiments.training_time import log_spaced
from condenset.io.files import read_tensors
from condenset.runs.loop import Interrupted
from helpers.experiment_runs import make_run, run_tiny
from helpers.interruption import StopAtLoop
from helpers.reference_dm import tiny_data


def test_log_spaced_steps_end_at_the_total() -> None:
    assert log_spaced(20_000, 4) == [20, 200, 2000, 20_000]
    assert log_spaced(5, 3) == [1, 2, 5]
    assert log_spaced(1, 5) == [1]
    assert log_spaced(0, 5) == []


def test_spread_and_reach_of_known_points() -> None:
    real = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1], [21, 0], [19, 0], [20, 1], [20, -1]])
    labels = torch.tensor([0] * 4 + [1] * 4)
    # Class 0: on two real images. Class 1: one image at the centre, one in class 0.
    synthetic = torch.tensor([[1.0, 0], [-1, 0], [20, 0], [0.0, 0]])
    values = compare_distributions(real, labels, synthetic, torch.tensor([0, 0, 1, 1]))
    assert values["spread"] == pytest.approx((1 + (0 + 20) / 2) / 2)
    assert values["reach"] == pytest.approx(((0 + 0 + 2 * 2**0.5) / 4 + 1) / 2)
    identical = compare_distributions(real, labels, real, labels)
    assert identical["spread"] == pytest.approx(1)
    assert identical["reach"] == pytest.approx(0, abs=1e-6)


def test_agreement_uses_the_nearest_real_images() -> None:
    generator = torch.Generator().manual_seed(0)
    real = torch.randn(60, 5, generator=generator) + torch.arange(3).repeat_interleave(20)[:, None] * 30
    labels = torch.arange(3).repeat_interleave(20)
    synthetic = torch.tensor([0.0, 30, 60, 0])[:, None].expand(4, 5)
    values = compare_distributions(real, labels, synthetic, torch.tensor([0, 1, 2, 2]))
    assert values["agreement"] == pytest.approx((1 + 1 + 0.5) / 3)


def test_tsne_is_deterministic_and_separates_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(25)
    features = torch.randn(75, 60, generator=generator) + 20 * torch.eye(3, 60)[labels]
    first, second = tsne(features, 0), tsne(features, 0)
    assert torch.equal(first, second)
    assert compare_distributions(first, labels, first, labels)["agreement"] == 1


def test_seed_decides_the_real_images_of_the_map() -> None:
    data = tiny_data([9, 9, 9, 9])
    first, second, other = (sample_real_images(data, 4, seed) for seed in (0, 0, 1))
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert data.labels[first].bincount().tolist() == [4, 4, 4]


def test_groups_have_the_names_of_the_paper() -> None:
    assert [_title(name) for name in ("random", "60-70", "70-100", "all")] == ["random", "60-70", "≥70", "all"]


def test_legend_has_an_entry_for_synthetic_images() -> None:
    tensors = {name: torch.rand(4, 2) for name in ("real", "dm", "dsa")}
    tensors |= {f"{name}.labels": torch.tensor([0, 0, 1, 1]) for name in tensors}
    figure = _draw(tensors, ["cat", "dog"], ["dm", "dsa"])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["cat", "dog", "synthetic"]
    assert "t-SNE" in figure.get_supxlabel()


@pytest.mark.usefixtures("fast_tiny")
@pytest.mark.parametrize(("method", "settings"), [("ld", ()), ("kip", ("learn_labels=true",))])
def test_an_image_with_soft_labels_has_its_most_likely_class(
    method: str, settings: tuple[str, ...], splits: Splits, tmp_path: Path
) -> None:
    run_tiny("distribution", splits, tmp_path, methods=(method,), settings=settings)
    condensed = CondensedSet.load(tmp_path / "parts" / f"{method}-2" / "condensed.safetensors")
    assert condensed.labels.ndim == 2
    tensors = read_tensors(tmp_path / "parts/map/coordinates.safetensors")[0]
    assert tensors[f"{method}.labels"].equal(condensed.labels.argmax(1))  # all images: there are three classes


@pytest.mark.usefixtures("fast_tiny")
@pytest.mark.parametrize("name", ["networks", "cost", "distribution"])
def test_repeatedly_interrupted_experiment_gives_the_same_result(
    name: str, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    monkeypatch.setitem(scales.PROTOCOL_FIELDS["tiny"], "num_networks", 1)

    def run_until(directory: Path, num_loops: int) -> ExperimentResult:
        run = make_run(directory)
        run.progress = StopAtLoop(run, num_loops)
        return run_tiny(name, splits, directory, run)

    undisturbed = run_until(tmp_path / "undisturbed", 999)
    num_stops = 0
    for num_loops in (1, 1, 2, 3, 999):
        try:
            result = run_until(tmp_path / "stopped", num_loops)
        except Interrupted:
            num_stops += 1
    assert num_stops >= 3
    volatile = {"seconds", "condense_seconds", "pool_seconds", "peak_memory_bytes"}
    for record, expected in zip(result.records, undisturbed.records, strict=True):
        assert {key: record[key] for key in record.keys() - volatile} == {
            key: expected[key] for key in expected.keys() - volatile
        }
