"""The figures of the experiments: points, lines and images."""

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

from condenset.experiments.continual import final_accuracy
from condenset.experiments.training_time import MIN_SECONDS
from condenset.io.files import read_tensors
from condenset.report.grid import draw_grid
from helpers.experiment_recorder import RankCall, Recorder, make_context, run_in

Points = list[tuple[float, ...]]


def read_curves(axes: Axes) -> dict[str, Points]:
    """Return the points of each curve by its label: x, y and half the length of the error bar."""
    curves: dict[str, Points] = {}
    for curve in axes.containers:
        assert isinstance(curve, ErrorbarContainer)
        line, _, (bars,) = curve.lines
        assert line is not None and line in axes.lines and line.get_marker() == "o" and line.get_linestyle() == "-"
        errors = [(high[1] - low[1]) / 2 for low, high in bars.get_segments()]
        curves[str(curve.get_label())] = round_points(zip(*line.get_data(), errors, strict=True))  # type: ignore[arg-type]
    return curves


def round_points(points: Iterable[Iterable[float]]) -> Points:
    return [tuple(round(float(value), 6) for value in point) for point in points]


def in_percent(record: Mapping[str, Any]) -> tuple[float, float]:
    return 100 * record["accuracy_mean"], 100 * record["accuracy_std"]


@pytest.mark.usefixtures("recorder")
def test_cost_draws_accuracy_by_seconds(tmp_path: Path) -> None:
    result = run_in(make_context("cost", tmp_path, "small", ipcs=(1,)), "cost")
    (axes,) = result.draw().axes
    assert read_curves(axes) == {
        method: round_points(
            (record["step"], *in_percent(record))  # a step takes a second here
            for record in result.records
            if record["method"] == method
        )
        for method in ("dsa", "dm")
    }
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "seconds of condensing"


@pytest.mark.usefixtures("recorder")
def test_cost_draws_zero_seconds_at_the_minimum(tmp_path: Path) -> None:
    result = run_in(make_context("cost", tmp_path, "tiny", methods=("dm",)), "cost")
    for record in result.records:
        record["condense_seconds"] = 0.0  # type: ignore[index]
    (axes,) = result.draw().axes
    assert {x for x, *_ in read_curves(axes)["dm"]} == {MIN_SECONDS}


@pytest.mark.usefixtures("recorder")
def test_sizes_draws_methods_and_the_whole_dataset(tmp_path: Path) -> None:
    result = run_in(make_context("sizes", tmp_path, "tiny"), "sizes")
    *records, whole = result.records
    axes, relative_axes = result.draw().axes
    assert read_curves(axes) == {
        method: round_points((record["ipc"], *in_percent(record)) for record in records if record["method"] == method)
        for method in ("random", "dm")
    }
    bound, _ = in_percent(whole)
    (line,) = (line for line in axes.lines if line.get_label() == "whole dataset")
    assert line.get_ydata() == [bound, bound]
    assert relative_axes.get_ylim() == pytest.approx([100 * limit / bound for limit in axes.get_ylim()])


@pytest.mark.usefixtures("recorder")
def test_continual_draws_a_panel_per_number_of_steps(tmp_path: Path) -> None:
    methods = ("random", "dm")
    context = make_context("continual", tmp_path, "small", counts=[2] * 10, ipcs=(1,), methods=methods)
    result = run_in(context, "continual")
    panels = result.draw().axes
    assert [axes.get_title() for axes in panels] == ["5 steps", "10 steps"]
    for axes, steps in zip(panels, (5, 10), strict=True):
        expected: dict[str, Points] = {}
        for method in methods:
            records = [dict(r) for r in result.records if (r["method"], r["steps"]) == (method, steps)]
            assert {record["order"] for record in records} == {0, 1}
            class_counts = range(10 // steps, 11, 10 // steps)
            by_count = {num: [record for record in records if record["classes_seen"] == num] for num in class_counts}
            expected[method] = round_points((num, *in_percent(final_accuracy(both))) for num, both in by_count.items())
        assert read_curves(axes) == expected


@pytest.mark.usefixtures("recorder")
def test_nas_draws_a_point_per_top_architecture(rank_calls: dict[str, RankCall], tmp_path: Path) -> None:
    result = run_in(make_context("nas", tmp_path, "tiny", size=8), "nas")
    panels = result.draw().axes
    assert len(panels) == len(result.records) - 1 == 4  # the whole dataset has no panel
    for number, axes in enumerate(panels, start=1):  # of the ranking; the fifth is on the whole dataset
        (points,) = axes.collections
        expected = [((70 * number + 30 * index) % 100, (70 * 5 + 30 * index) % 100) for index in range(3)]
        assert round_points(np.asarray(points.get_offsets())) == expected


@pytest.mark.usefixtures("pool_calls")
def test_networks_draws_the_images_of_every_group(recorder: Recorder, tmp_path: Path) -> None:
    result = run_in(make_context("networks", tmp_path, "tiny", ipcs=(1, 10, 11)), "networks")
    panels = result.draw().axes
    titles = ["random", *(f"{low}-{low + 10}" for low in range(10, 70, 10)), "≥70", "all"]
    assert [axes.get_title() for axes in panels] == titles
    for axes, title in zip(panels, titles, strict=True):
        condensed = recorder.scored[f"dm-10-{title.replace('≥70', '70-100')}"].train_set
        (image,) = axes.images
        assert np.array_equal(np.asarray(image.get_array()), np.asarray(draw_grid([condensed], [""])))  # type: ignore[list-item]


@pytest.mark.usefixtures("recorder")
def test_distribution_draws_real_images_as_points_and_synthetic_images_as_stars(tmp_path: Path) -> None:
    methods = ("dsa", "dm")
    context = make_context("distribution", tmp_path, "tiny", size=8, counts=[20] * 4, methods=methods)
    panels = run_in(context, "distribution").draw().axes
    coordinates, _ = read_tensors(tmp_path / "parts" / "map" / "coordinates.safetensors")
    assert [axes.get_title() for axes in panels] == list(methods)
    for axes, method in zip(panels, methods, strict=True):
        for marker, name, num in ((".", "real", 20), ("*", method, 2)):
            lines = [np.asarray(line.get_xydata()) for line in axes.lines if line.get_marker() == marker]
            lines = [points for points in lines if len(points)]  # the entry of the legend has no points
            assert len(lines) == 3  # classes
            for label, points in enumerate(lines):
                expected = coordinates[name][coordinates[f"{name}.labels"] == label]
                assert len(expected) == num and np.array_equal(points, expected)


@pytest.mark.usefixtures("recorder")
def test_legend_shows_unusual_class_names(tmp_path: Path) -> None:
    context = make_context("distribution", tmp_path, "tiny", size=8, counts=[20] * 3, methods=("dm",))
    train = dataclasses.replace(context.splits.train, class_names=("10$ to 20$", "_a", "b\nc"))
    context.splits = dataclasses.replace(context.splits, train=train)
    figure = run_in(context, "distribution").draw()
    figure.savefig(io.BytesIO())  # invalid mathematics would fail here
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [r"10\$ to 20\$", " _a", "b c", "synthetic"]
