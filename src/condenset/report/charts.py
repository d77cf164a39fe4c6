"""Charts of accuracies, written as PNG and SVG."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.data.ipc import format_ipc
from condenset.io.files import write_file
from condenset.methods import METHODS
from condenset.report.fonts import choose_chart_fonts
from condenset.training.scores import name_accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_SECONDS = 0.1  # shorter times are drawn here, because a logarithmic axis has no zero
MARKERS = "osD^vP*X"
MAX_LABEL_CHARACTERS = 50  # of all labels of the x axis together; longer ones are rotated
CHARACTERS_PER_INCH = 11
LABEL_POSITION, MIN_LABEL_GAP = 1.06, 0.04  # of the names of methods, as fractions of the width and height of a plot
# Matplotlib's colours except gray, which marks the whole dataset.
COLORS = [f"tab:{name}" for name in ("blue", "orange", "green", "red", "purple", "brown", "pink", "olive", "cyan")]
COLORS += ["black"]
# Of methods in the order of their registration: the paper's, where the learned sets get the clearest, then later ones.
METHOD_COLORS = [*COLORS[::-1], "navy", "gold", "lime", "darkred", "violet", "sandybrown", "teal", "magenta"]
METHOD_COLORS += ["darkkhaki", "steelblue", "tomato", "darkgreen", "indigo", "hotpink", "turquoise", "chocolate"]
METHOD_COLORS += ["yellowgreen"]

Record = Mapping[str, Any]


def method_color(method: str) -> str:
    """Return the colour of a registered method, the same in every chart."""
    return METHOD_COLORS[list(METHODS).index(method) % len(METHOD_COLORS)]


def save_comparison(records: Sequence[Record], dataset: str, path: Path) -> None:
    """Draw accuracy by seconds of condensing, one point per method and number of images per class."""
    figure, axes = new_chart()
    set_records = [record for record in records if record["ipc"]]
    methods = dict.fromkeys(record["method"] for record in set_records)
    sizes = dict.fromkeys(format_ipc(record["ipc"]) for record in set_records)
    markers = {size: MARKERS[number % len(MARKERS)] for number, size in enumerate(sizes)}
    by_method = {method: [record for record in set_records if record["method"] == method] for method in methods}
    for method_records in by_method.values():
        _draw_method(axes, method_records, markers)
    for record in records:
        if not record["ipc"]:
            _draw_bound(axes, record)
    for size, marker in markers.items():
        axes.plot([], [], marker, color="black", label=f"{size} per class")
    set_seconds_axis(axes, [total_seconds(record) for record in set_records], MIN_SECONDS)
    axes.set_ylabel(f"{name_accuracy(records)}, %")
    set_title(figure, dataset)
    figure.legend(loc="outside lower center", ncols=4)
    _name_methods(axes, by_method)
    save_chart(figure, path)


def _draw_method(axes: Axes, records: Sequence[Record], markers: Mapping[str, str]) -> None:
    """Draw the points of one method and a thin line through them; the marker shows the number of images per class."""
    method = records[0]["method"]
    color = method_color(method)
    seconds = [max(total_seconds(record), MIN_SECONDS) for record in records]
    means, stds = accuracies_in_percent(records)
    axes.plot(seconds, means, "-", color=color, linewidth=0.7, alpha=0.5)
    for record, x, y, std in zip(records, seconds, means, stds, strict=True):
        axes.errorbar(x, y, yerr=std, fmt=markers[format_ipc(record["ipc"])], color=color, capsize=2)


def _name_methods(axes: Axes, by_method: Mapping[str, Sequence[Record]]) -> None:
    """Write the methods to the right of the plot, by accuracy, each with a line to its most accurate point."""
    best = {method: max(records, key=lambda record: record["accuracy_mean"]) for method, records in by_method.items()}
    order = sorted(best, key=lambda method: best[method]["accuracy_mean"])
    points = [(max(total_seconds(best[method]), MIN_SECONDS), 100 * best[method]["accuracy_mean"]) for method in order]
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = spread_heights([to_axes.transform(point)[1] for point in points], MIN_LABEL_GAP)
    for method, point, height in zip(order, points, heights, strict=True):
        color = method_color(method)
        together = " (sizes at once)" if any("together" in record for record in by_method[method]) else ""
        axes.annotate(
            method + together,
            point,
            (LABEL_POSITION, height),
            textcoords="axes fraction",
            color=color,
            fontsize="small",
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "alpha": 0.6, "relpos": (0, 0.5)},
        )


def spread_heights(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights from 0 to 1 apart, so that neighbours differ by `gap`, or by what fits."""
    gap = min(gap, 1 / max(len(heights) - 1, 1))
    spread: list[float] = []
    for height in heights:
        spread.append(max(height, spread[-1] + gap) if spread else max(height, 0.0))
    limit = 1.0
    for index in reversed(range(len(spread))):
        spread[index] = min(spread[index], limit)
        limit = spread[index] - gap
    return spread


def _draw_bound(axes: Axes, record: Record) -> None:
    """Draw the accuracy of the whole dataset as a horizontal line."""
    axes.axhline(100 * record["accuracy_mean"], color="gray", linestyle="--", label="whole dataset")


def total_seconds(record: Record) -> float:
    """Return the seconds of condensing, including those of training the networks of the method."""
    return float((record["condense_seconds"] or 0.0) + (record.get("pool_seconds") or 0.0))


def accuracies_in_percent(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Return the mean accuracies and their standard deviations, in percent."""
    return [100 * record["accuracy_mean"] for record in records], [100 * record["accuracy_std"] for record in records]


def draw_curve(axes: Axes, x: Sequence[float], records: Sequence[Record], method: str) -> None:
    """Draw the accuracies of a method as a line with error bars."""
    means, stds = accuracies_in_percent(records)
    axes.errorbar(x, means, yerr=stds, fmt="o-", color=method_color(method), capsize=2, label=method)


def draw_bars(cells: Mapping[tuple[str, str], Record], bound: Record | None = None, xlabel: str = "") -> Figure:
    """Draw accuracies as bars.

    Args:
        cells: Records by (group along the axis, series within the group). If all series are methods, each has the
            colour of its method.
        bound: Record of the whole dataset, drawn as a line.
        xlabel: Label of the axis.
    """
    figure, axes = new_chart()
    groups, series = (list(dict.fromkeys(key[index] for key in cells)) for index in (0, 1))
    width, are_methods = 0.8 / len(series), METHODS.keys() >= set(series)
    for number, name in enumerate(series):
        records = {position: cells[group, name] for position, group in enumerate(groups) if (group, name) in cells}
        positions = [position + (number - (len(series) - 1) / 2) * width for position in records]
        means, stds = accuracies_in_percent(list(records.values()))
        color = method_color(name) if are_methods else COLORS[number % len(COLORS)]
        hatch = "//" if number >= len(COLORS) else None
        axes.bar(positions, means, width, yerr=stds, capsize=2, label=name, color=color, hatch=hatch, ecolor="0.4")
    if bound:
        _draw_bound(axes, bound)
    axes.set_xticks(range(len(groups)), groups)
    if len(groups) * max(map(len, groups)) > MAX_LABEL_CHARACTERS:
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("test accuracy, %")
    figure.legend(loc="outside right center")
    return figure


def set_title(figure: Figure, title: str) -> None:
    """Set the title of a figure, in as many lines as it needs."""
    figure.suptitle(wrap_text(figure, title), fontsize="medium", parse_math=False)  # file names may contain dollars


def wrap_text(figure: Figure, text: str) -> str:
    """Return the text in lines that fit the width of the figure."""
    return "\n".join(textwrap.wrap(text, int(figure.get_figwidth() * CHARACTERS_PER_INCH)))


def set_seconds_axis(axes: Axes, seconds: Sequence[float], minimum: float) -> None:
    """Make the x axis logarithmic. If there are times below `minimum`, its label says that they are drawn there."""
    note = f" (less than {minimum:g} drawn at {minimum:g})" if min(seconds, default=minimum) < minimum else ""
    axes.set_xscale("log")
    axes.set_xlabel(f"seconds of condensing{note}")


def new_chart() -> tuple[Figure, Axes]:
    """Create a figure with one plot, without the global state of pyplot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(color=COLORS)
    return figure, axes


def new_panels(
    num: int, columns: int | None = None, *, size: tuple[float, float] = (5.0, 4.5), sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Create a figure with several plots.

    Args:
        num: Number of plots.
        columns: Plots per row. None: all in one row.
        size: Width and height of a plot in inches.
        sharey: Use one scale of the y axis for all plots.
    """
    from matplotlib.figure import Figure

    columns = min(columns or num, num)
    rows = -(-num // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    panels: list[Axes] = []
    for index in range(num):
        panels.append(figure.add_subplot(rows, columns, index + 1, sharey=panels[0] if sharey and panels else None))
        panels[-1].set_prop_cycle(color=COLORS)
    return figure, panels


def save_chart(figure: Figure, path: Path) -> None:
    """Write a chart to `path` as PNG, and as SVG with the same name."""
    choose_chart_fonts(figure)
    for file_format in ("svg", "png"):
        buffer = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else None  # the same chart gives the same file
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Creating legend with loc")  # on a busy machine
            figure.savefig(buffer, format=file_format, dpi=150, metadata=metadata)
        write_file(path.with_suffix(f".{file_format}"), buffer.getvalue())
