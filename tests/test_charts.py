from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from condenset.recipes import RECIPES
from condenset.report import charts
from condenset.report.charts import COLOR_OF, draw_bars, new_chart, save_comparison, set_seconds, set_title


@pytest.mark.parametrize("dataset", ["toy", r"$\frac{1$"])
def test_a_chart_is_drawn_whatever_the_dataset_is_called(tmp_path: Path, dataset: str) -> None:
    score = {"dataset": f"/folder/{dataset}.npz", "accuracy_mean": 0.5, "accuracy_std": 0.1}
    records: list[dict[str, object]] = [
        {**score, "method": m, "ipc": i, "condense_seconds": s} for m, i, s in (("random", 1, 0.0), ("dm", 2, 9))
    ]
    records.append({**records[-1], "ipc": 3, "together": [2, 3]})
    whole = {**score, "method": "whole", "ipc": None, "condense_seconds": 0.0}
    save_comparison([*records, whole], dataset, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "a.svg").read_bytes()
    assert b"<svg" in drawn and b"dm (sizes at once)" in drawn
    assert f"<!-- {dataset} -->".encode() in drawn and b"folder" not in drawn  # the title
    assert b"drawn at 0.1" in drawn


def test_the_axis_speaks_of_points_that_were_moved_where_there_are_some() -> None:
    _, axes = new_chart()
    set_seconds(axes, [0.2, 3.0], 0.1)
    assert axes.get_xlabel() == "seconds of condensing"
    set_seconds(axes, [0.0, 3.0], 0.1)
    assert axes.get_xlabel() == "seconds of condensing (fewer than 0.1: drawn at 0.1)"


def test_a_chart_is_in_percent_and_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    save = charts.save_chart
    monkeypatch.setattr(charts, "save_chart", lambda figure, path: (kept.append(figure), save(figure, path)))
    record = {"method": "dm", "ipc": 1, "accuracy_mean": 0.5, "accuracy_std": 0.1, "condense_seconds": 3.0}
    whole = {**record, "method": "whole", "ipc": None, "accuracy_mean": 0.9}
    save_comparison([record, whole], "toy", tmp_path / "a.png")
    (axes,) = kept[0].axes
    drawn = {
        (float(x), float(y)) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert {(3.0, 50.0), (0.0, 90.0)} <= drawn  # the whole dataset's line goes from side to side
    (bar,) = axes.collections[0].get_segments()
    assert bar[:, 1].tolist() == pytest.approx([40, 60])
    assert b"<dc:date>" not in (tmp_path / "a.svg").read_bytes()


def test_every_method_has_a_colour_of_its_own() -> None:
    assert COLOR_OF.keys() == RECIPES.keys() and len(set(COLOR_OF.values())) == len(RECIPES)


def test_bars_are_told_apart() -> None:
    """Methods by the colours that they have everywhere; more series than there are colours by a hatch, too."""

    def looks(series: list[str]) -> list[tuple[object, object]]:
        record = {"accuracy_mean": 0.5, "accuracy_std": 0.1}
        bars = draw_bars({("here", name): record for name in series}).axes[0].patches
        return [(bar.get_facecolor(), bar.get_hatch()) for bar in bars]

    assert looks(["dm", "random"]) == looks(["random", "dm"])[::-1]
    many = looks(["random", *(f"dm, network {number}" for number in range(14))])
    assert len(set(many)) == len(many)


def test_long_titles_and_many_names_stay_within_the_figure() -> None:
    record = {"accuracy_mean": 0.5, "accuracy_std": 0.1}
    figure = draw_bars({(f"some long name {number}", "a"): record for number in range(9)})
    set_title(figure, "sota: " + "my_photos_" * 20)
    figure.canvas.draw()
    width = figure.bbox.width
    assert figure._suptitle is not None
    box, names = figure._suptitle.get_window_extent(), figure.axes[0].get_xticklabels()
    assert box.x0 >= 0 and box.x1 <= width
    assert [name.get_rotation() for name in names] == [45] * 9
