from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from condenset.methods import METHODS, Recipe, register_method
from condenset.report import charts
from condenset.report.charts import (
    COLORS,
    draw_bars,
    method_color,
    new_chart,
    save_comparison,
    set_seconds_axis,
    set_title,
    spread_heights,
)

pytestmark = pytest.mark.charts


@pytest.mark.parametrize("dataset", ["toy", r"$\frac{1$"])
def test_comparison_is_drawn_for_any_dataset_name(tmp_path: Path, dataset: str) -> None:
    score = {"dataset": f"/folder/{dataset}.npz", "accuracy_mean": 0.5, "accuracy_std": 0.1}
    records: list[dict[str, object]] = [
        {**score, "method": m, "ipc": i, "condense_seconds": s} for m, i, s in (("random", 1, 0.0), ("dm", 2, 9))
    ]
    records.append({**records[-1], "ipc": [3, 5], "together": [2, [3, 5]]})
    whole = {**score, "method": "whole", "ipc": None, "condense_seconds": 0.0}
    save_comparison([*records, whole], dataset, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "a.svg").read_bytes()
    assert b"<svg" in svg and b"dm (sizes at once)" in svg
    assert "3–5 per class".encode() in svg
    assert f"<!-- {dataset} -->".encode() in svg and b"folder" not in svg  # the title
    assert b"drawn at 0.1" in svg


def test_axis_label_mentions_points_drawn_at_the_minimum() -> None:
    _, axes = new_chart()
    set_seconds_axis(axes, [0.2, 3.0], 0.1)
    assert axes.get_xlabel() == "seconds of condensing"
    set_seconds_axis(axes, [0.0, 3.0], 0.1)
    assert axes.get_xlabel() == "seconds of condensing (less than 0.1 drawn at 0.1)"


def test_comparison_is_in_percent_and_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    save = charts.save_chart
    monkeypatch.setattr(charts, "save_chart", lambda figure, path: (figures.append(figure), save(figure, path)))
    scores = {"accuracy_mean": 0.5, "accuracy_std": 0.1}
    record = {"method": "dm", "ipc": 1, **scores, "condense_seconds": 2.0, "pool_seconds": 1.0}
    whole = {**record, "method": "whole", "ipc": None, "accuracy_mean": 0.9}
    save_comparison([record, whole], "toy", tmp_path / "a.png")
    (axes,) = figures[0].axes
    points = {
        (float(x), float(y)) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert {(3.0, 50.0), (0.0, 90.0)} <= points  # the line of the whole dataset starts at the left edge
    (bar,) = axes.collections[0].get_segments()
    assert bar[:, 1].tolist() == pytest.approx([40, 60])
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()


def test_names_of_all_methods_are_visible_and_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(charts, "save_chart", lambda figure, path: figures.append(figure))
    scores = {"accuracy_mean": 0.9, "accuracy_std": 0.1, "ipc": 1, "condense_seconds": 2.0}
    save_comparison([{**scores, "method": method} for method in METHODS], "toy", tmp_path / "a.png")
    canvas = FigureCanvasAgg(figures[0])
    canvas.draw()
    names = figures[0].axes[0].texts
    boxes = [Text.get_window_extent(name, canvas.get_renderer()) for name in names]  # without the line to the point
    assert {name.get_text() for name in names} == set(METHODS)
    assert all(box.x0 >= 0 and box.x1 <= figures[0].bbox.width and box.y0 >= 0 for box in boxes)
    boxes.sort(key=lambda box: box.y0)
    assert all(lower.y1 - upper.y0 < 3 for lower, upper in itertools.pairwise(boxes))  # a box has a margin


def test_slow_machine_gives_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matplotlib warns if the search for the place of a legend takes more than a second."""
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=itertools.count(0, 2).__next__))
    figure, axes = charts.new_chart()
    axes.plot([0, 1], [0, 1], label="line")
    axes.legend()
    charts.save_chart(figure, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").exists()


def test_heights_move_apart_as_far_as_needed() -> None:
    assert spread_heights([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]
    assert spread_heights([0.5, 0.5, 0.6], 0.1) == pytest.approx([0.5, 0.6, 0.7])
    assert spread_heights([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert spread_heights([0.5] * 3, 0.9) == pytest.approx([0.0, 0.5, 1.0])
    assert spread_heights([], 0.1) == []


def test_built_in_methods_have_different_colors() -> None:
    colors = {name: method_color(name) for name in METHODS}
    assert len(set(colors.values())) == len(colors)
    assert colors["dm"] == COLORS[0]


def test_method_registered_later_has_a_color() -> None:
    class OtherRecipe(Recipe):
        pass

    before = {name: method_color(name) for name in METHODS}
    register_method(dataclasses.replace(METHODS["random"], name="registered_later", recipe=OtherRecipe))
    try:
        assert method_color("registered_later") in COLORS
        assert {name: method_color(name) for name in before} == before
    finally:
        METHODS.unregister("registered_later")


def test_bars_can_be_distinguished() -> None:
    """Methods keep their colours; with more series than colours, bars are hatched too."""

    def bar_styles(series: list[str]) -> list[tuple[object, object]]:
        record = {"accuracy_mean": 0.5, "accuracy_std": 0.1}
        bars = draw_bars({("group", name): record for name in series}).axes[0].patches
        return [(bar.get_facecolor(), bar.get_hatch()) for bar in bars]

    assert bar_styles(["dm", "random"]) == bar_styles(["random", "dm"])[::-1]
    styles = bar_styles(["random", *(f"dm, network {number}" for number in range(14))])
    assert len(set(styles)) == len(styles)


def test_bars_show_the_accuracies() -> None:
    def record(mean: float) -> dict[str, float]:
        return {"accuracy_mean": mean, "accuracy_std": 0.01}

    cells = {("1", "dd"): record(0.2), ("1", "dm"): record(0.3), ("50", "dm"): record(0.6)}  # no dd at 50
    (axes,) = draw_bars(cells, bound=record(0.8)).axes
    bars = {
        bar.get_label(): [patch.get_height() for patch in bar] for bar in axes.containers if hasattr(bar, "patches")
    }
    assert bars == {"dd": pytest.approx([20]), "dm": pytest.approx([30, 60])}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "50"]
    assert 80 in axes.lines[-1].get_ydata()


def test_long_titles_and_labels_fit_the_figure() -> None:
    record = {"accuracy_mean": 0.5, "accuracy_std": 0.1}
    figure = draw_bars({(f"some long name {number}", "a"): record for number in range(9)})
    set_title(figure, "sota: " + "my_photos_" * 20)
    figure.canvas.draw()
    assert figure._suptitle is not None
    box, labels = figure._suptitle.get_window_extent(), figure.axes[0].get_xticklabels()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
    assert [label.get_rotation() for label in labels] == [45] * 9
