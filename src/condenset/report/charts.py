"""Charts of results, as PNG and SVG."""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.files import write_file
from condenset.recipes import RECIPES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_SECONDS = 0.1  # what took less is drawn there: on a logarithmic axis nothing is free
MARKERS = "osD^vP*X"
MOST_SIDE_BY_SIDE = 50  # letters below a plot, if all names were as long as the longest
LETTERS_AN_INCH = 11
# Matplotlib's own, but for gray, which the whole dataset has.
COLORS = [f"tab:{name}" for name in ("blue", "orange", "green", "red", "purple", "brown", "pink", "olive", "cyan")]
COLORS += ["black"]
# A method has its own in every figure, the last ones those that are seen best; what is no method takes them in turn.
COLOR_OF = dict(zip(reversed(RECIPES), itertools.cycle(COLORS)))

Record = Mapping[str, Any]


def save_comparison(records: Sequence[Record], dataset: str, path: Path) -> None:
    """Accuracy against the seconds of condensing, a point for every method and number of images a class."""
    figure, axes = new_chart()
    made = [record for record in records if record["ipc"]]
    methods, ipcs = (list(dict.fromkeys(record[key] for record in made)) for key in ("method", "ipc"))
    for method in methods:
        mine, color = [record for record in made if record["method"] == method], COLOR_OF[method]
        seconds = [max(record["condense_seconds"] or 0.0, LEAST_SECONDS) for record in mine]
        means, spreads = ([100 * record[key] for record in mine] for key in ("accuracy_mean", "accuracy_std"))
        name = method + (" (sizes at once)" if any("together" in record for record in mine) else "")
        axes.plot(seconds, means, "-", color=color, linewidth=0.7, alpha=0.5)
        for record, x, y, spread in zip(mine, seconds, means, spreads, strict=True):
            marker = MARKERS[ipcs.index(record["ipc"]) % len(MARKERS)]
            axes.errorbar(x, y, yerr=spread, fmt=marker, color=color, capsize=2)
        axes.plot([], [], "-", color=color, linewidth=4, label=name)
    for record in records:
        if not record["ipc"]:
            axes.axhline(100 * record["accuracy_mean"], color="gray", linestyle="--", label="whole dataset")
    for number, ipc in enumerate(ipcs):
        axes.plot([], [], MARKERS[number % len(MARKERS)], color="black", label=f"{ipc} a class")
    set_seconds(axes, [record["condense_seconds"] or 0.0 for record in made], LEAST_SECONDS)
    axes.set_ylabel("test accuracy, %")
    set_title(figure, dataset)
    figure.legend(loc="outside right center")  # names beside points would hide each other
    save_chart(figure, path)


def draw_bars(cells: Mapping[tuple[str, str], Record], bound: Record | None = None, axis: str = "") -> Figure:
    """Accuracies as bars, by the group along the axis and the series within it; bound: the whole dataset's, a line."""
    figure, axes = new_chart()
    groups, series = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    width, are_methods = 0.8 / len(series), COLOR_OF.keys() >= set(series)
    for number, name in enumerate(series):
        mine = {place: cells[group, name] for place, group in enumerate(groups) if (group, name) in cells}
        places = [place + (number - (len(series) - 1) / 2) * width for place in mine]
        means, spreads = ([100 * each[key] for each in mine.values()] for key in ("accuracy_mean", "accuracy_std"))
        color = COLOR_OF[name] if are_methods else COLORS[number % len(COLORS)]
        looks: dict[str, Any] = {"color": color, "hatch": "//" if number >= len(COLORS) else None, "ecolor": "0.4"}
        axes.bar(places, means, width, yerr=spreads, capsize=2, label=name, **looks)
    if bound:
        axes.axhline(100 * bound["accuracy_mean"], color="gray", linestyle="--", label="whole dataset")
    axes.set_xticks(range(len(groups)), groups)
    if len(groups) * max(map(len, groups)) > MOST_SIDE_BY_SIDE:
        axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel(axis)
    axes.set_ylabel("test accuracy, %")
    figure.legend(loc="outside right center")
    return figure


def set_title(figure: Figure, text: str) -> None:
    """Above all of it, in as many lines as it needs; a file's name may hold dollars."""
    figure.suptitle(wrapped(figure, text), fontsize="medium", parse_math=False)


def wrapped(figure: Figure, text: str) -> str:
    """The text in lines as wide as the figure."""
    return "\n".join(textwrap.wrap(text, int(figure.get_figwidth() * LETTERS_AN_INCH)))


def set_seconds(axes: Axes, seconds: Sequence[float], least: float) -> None:
    """A logarithmic axis of seconds, which says so where some are drawn at `least` because they are fewer."""
    moved = f" (fewer than {least:g}: drawn at {least:g})" if min(seconds, default=least) < least else ""
    axes.set_xscale("log")
    axes.set_xlabel(f"seconds of condensing{moved}")


def new_chart() -> tuple[Figure, Axes]:
    """A figure of one plot, that belongs to nobody's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(color=COLORS)
    return figure, axes


def new_panels(
    num: int, columns: int | None = None, *, size: tuple[float, float] = (5.0, 4.5), sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of `num` plots in rows (in one, unless told), each of this size in inches."""
    from matplotlib.figure import Figure

    columns = min(columns or num, num)
    rows = -(-num // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    panels: list[Axes] = []
    for place in range(num):
        panels.append(figure.add_subplot(rows, columns, place + 1, sharey=panels[0] if sharey and panels else None))
        panels[-1].set_prop_cycle(color=COLORS)
    return figure, panels


def save_chart(figure: Figure, path: Path) -> None:
    """Write a chart to `path` as PNG and beside it as SVG, each whole or not at all."""
    for kind in ("svg", "png"):
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        write_file(path.with_suffix(f".{kind}"), out.getvalue())
