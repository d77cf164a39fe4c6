"""What the experiments draw: the points, lines and pictures of the figure that an outcome gives."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from watched import Asked, Search, lab, outcome_of

from condenset.experiments.continual import final
from condenset.experiments.cost import LEAST_SECONDS
from condenset.files import read_tensors
from condenset.report.grid import draw_grid

Curves = dict[str, list[tuple[float, ...]]]


def curves_of(axes: Axes) -> Curves:
    """By its label each curve's points, x, y and the reach of the bar there."""
    found: Curves = {}
    for curve in axes.containers:
        assert isinstance(curve, ErrorbarContainer)
        line, _, (bars,) = curve.lines
        assert line is not None and line in axes.lines and line.get_marker() == "o" and line.get_linestyle() == "-"
        reach = [(high[1] - low[1]) / 2 for low, high in bars.get_segments()]
        found[str(curve.get_label())] = rounded(zip(*line.get_data(), reach, strict=True))  # type: ignore[arg-type]
    return found


def rounded(points: Iterable[Iterable[float]]) -> list[tuple[float, ...]]:
    return [tuple(round(float(each), 6) for each in point) for point in points]


def in_percent(record: Mapping[str, Any]) -> tuple[float, float]:
    return 100 * record["accuracy_mean"], 100 * record["accuracy_std"]


@pytest.mark.usefixtures("asked")
def test_cost_draws_accuracies_against_seconds(tmp_path: Path) -> None:
    outcome = outcome_of("cost", lab("cost", tmp_path, "small", ipcs=(1,)))
    (axes,) = outcome.draw().axes
    assert curves_of(axes) == {
        method: rounded(
            (r["step"], *in_percent(r)) for r in outcome.records if r["method"] == method
        )  # a second a step
        for method in ("dsa", "dm")
    }
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "seconds of condensing"


@pytest.mark.usefixtures("asked")
def test_cost_draws_what_took_no_time_at_the_least(tmp_path: Path) -> None:
    outcome = outcome_of("cost", lab("cost", tmp_path, "tiny", methods=("dm",)))
    for record in outcome.records:
        record["condense_seconds"] = 0.0  # type: ignore[index]
    (axes,) = outcome.draw().axes
    assert {x for x, *_ in curves_of(axes)["dm"]} == {LEAST_SECONDS}


@pytest.mark.usefixtures("asked")
def test_sizes_draws_methods_and_the_whole_dataset(tmp_path: Path) -> None:
    outcome = outcome_of("sizes", lab("sizes", tmp_path, "tiny"))
    *made, whole = outcome.records
    axes, relative = outcome.draw().axes
    assert curves_of(axes) == {
        method: rounded((r["ipc"], *in_percent(r)) for r in made if r["method"] == method)
        for method in ("random", "dm")
    }
    bound, _ = in_percent(whole)
    (line,) = (each for each in axes.lines if each.get_label() == "whole dataset")
    assert line.get_ydata() == [bound, bound]
    assert relative.get_ylim() == pytest.approx([100 * each / bound for each in axes.get_ylim()])


@pytest.mark.usefixtures("asked")
def test_continual_draws_a_panel_for_either_number_of_steps(tmp_path: Path) -> None:
    methods = ("random", "dm")
    outcome = outcome_of("continual", lab("continual", tmp_path, "small", counts=[2] * 10, ipcs=(1,), methods=methods))
    panels = outcome.draw().axes
    assert [axes.get_title() for axes in panels] == ["5 steps", "10 steps"]
    for axes, steps in zip(panels, (5, 10), strict=True):
        wanted: Curves = {}
        for method in methods:
            mine = [r for r in outcome.records if (r["method"], r["steps"]) == (method, steps)]
            assert {record["order"] for record in mine} == {0, 1}
            at = {
                seen: [dict(r) for r in mine if r["classes_seen"] == seen]
                for seen in range(10 // steps, 11, 10 // steps)
            }
            wanted[method] = rounded((seen, *in_percent(final(both))) for seen, both in at.items())
        assert curves_of(axes) == wanted


@pytest.mark.usefixtures("asked")
def test_nas_draws_a_point_for_every_architecture_at_the_top(searched: dict[str, Search], tmp_path: Path) -> None:
    outcome = outcome_of("nas", lab("nas", tmp_path, "tiny", size=8))
    panels = outcome.draw().axes
    assert len(panels) == len(outcome.records) - 1 == 4  # the whole dataset has nothing to be compared with
    for number, axes in enumerate(panels, start=1):  # searches; the fifth is on the whole dataset
        (points,) = axes.collections
        drawn = rounded(np.asarray(points.get_offsets()))
        assert drawn == [((70 * number + 30 * place) % 100, (70 * 5 + 30 * place) % 100) for place in range(3)]


@pytest.mark.usefixtures("filled")
def test_networks_draws_the_images_of_every_group(asked: Asked, tmp_path: Path) -> None:
    outcome = outcome_of("networks", lab("networks", tmp_path, "tiny", ipcs=(1, 10, 11)))
    panels = outcome.draw().axes
    titles = ["random", *(f"{low}-{low + 10}" for low in range(10, 70, 10)), "≥70", "all"]
    assert [axes.get_title() for axes in panels] == titles
    for axes, title in zip(panels, titles, strict=True):
        small = asked.scored[f"dm-10-{title.replace('≥70', '70-100')}"].small
        (picture,) = axes.images
        assert np.array_equal(np.asarray(picture.get_array()), np.asarray(draw_grid([small], [""])))  # type: ignore[list-item]


@pytest.mark.usefixtures("asked")
def test_distribution_draws_real_images_as_points_and_synthetic_ones_as_stars(tmp_path: Path) -> None:
    methods = ("dsa", "dm")
    tiny = lab("distribution", tmp_path, "tiny", size=8, counts=[20] * 4, methods=methods)
    panels = outcome_of("distribution", tiny).draw().axes
    places, _ = read_tensors(tmp_path / "parts" / "map" / "coordinates.safetensors")
    assert [axes.get_title() for axes in panels] == list(methods)
    for axes, method in zip(panels, methods, strict=True):
        for marker, name, num in ((".", "real", 20), ("*", method, 2)):
            marked = (np.asarray(line.get_xydata()) for line in axes.lines if line.get_marker() == marker)
            drawn = [each for each in marked if len(each)]  # without the legend's
            assert len(drawn) == 3  # classes
            for number, each in enumerate(drawn):
                mine = places[name][places[f"{name}.labels"] == number]
                assert len(mine) == num and np.array_equal(each, mine)


def test_odd_names_of_classes_are_all_in_the_legend(asked: Asked, tmp_path: Path) -> None:
    tiny = lab("distribution", tmp_path, "tiny", size=8, counts=[20] * 3, methods=("dm",))
    names = ("10$ to 20$", "_a", "b\nc")
    train = dataclasses.replace(tiny.splits.train, class_names=names)
    tiny = dataclasses.replace(tiny, splits=dataclasses.replace(tiny.splits, train=train))
    figure = outcome_of("distribution", tiny).draw()
    figure.savefig(io.BytesIO())  # where mathematics that is none would fail
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [r"10\$ to 20\$", " _a", "b c", "of the set"]
