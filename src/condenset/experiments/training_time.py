"""Accuracy by seconds of condensing (the figure of training time)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from condenset.errors import check
from condenset.experiments.context import ExperimentContext
from condenset.experiments.sets import score_once
from condenset.experiments.types import ExperimentResult, Table
from condenset.pipeline.results import Record, condense_cost
from condenset.report.charts import draw_curve, new_chart, set_seconds_axis, total_seconds
from condenset.training.scores import format_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_SECONDS = 1e-3  # shorter times are drawn here


def run_training_time(context: ExperimentContext) -> ExperimentResult:
    """Score the set of every method after a number of iterations that grows geometrically.

    Sets are condensed one after the other in this process, also with an engine, because their seconds are measured.
    """
    (ipc,) = context.ipcs
    num_points = context.for_scale(tiny=3, small=6, paper=10)
    recipes = {method: context.recipe(method, ipc) for method in context.methods}
    for method, recipe in recipes.items():
        check(recipe.image_steps > 0, f"iterations of {method} must be 1 or more in this experiment", 0)
    steps = {method: log_spaced(recipe.image_steps, num_points) for method, recipe in recipes.items()}
    context.num_parts = len(recipes) + sum(map(len, steps.values()))
    for method, recipe in recipes.items():
        context.condense(f"{method}-{ipc}", method, recipe, exact_steps=steps[method])
    sets = {
        (method, step): context.load_exact_set(f"{method}-{ipc}", step) for method in recipes for step in steps[method]
    }
    score_once(context, {f"{method}-{ipc}-{step}": condensed for (method, step), condensed in sets.items()})
    records: list[Record] = []
    for (method, step), condensed in sets.items():
        fields = {"method": method, "ipc": ipc, "step": step, **condense_cost(condensed.provenance)}
        records.append({**fields, **context.score(f"{method}-{ipc}-{step}", condensed, context.protocol())})
    rows: list[tuple[str, ...]] = [
        (record["method"], str(record["step"]), f"{total_seconds(record):.3g}", format_accuracy(record))
        for record in records
    ]
    table = Table(("method", "image steps", "seconds", "accuracy %"), rows)
    return ExperimentResult(records=records, table=table, draw=lambda: _draw(records), ipcs=(ipc,))


def log_spaced(total: int, num: int) -> list[int]:
    """Return up to `num` steps from a thousandth of `total` to `total`, with a constant ratio between them."""
    first = max(1.0, total / 1000)
    steps = {round(first * (total / first) ** (index / (num - 1))) for index in range(num)}
    return sorted(step for step in steps if 1 <= step <= total)


def _draw(records: Sequence[Record]) -> Figure:
    """Draw the accuracies by seconds of condensing, a curve per method."""
    figure, axes = new_chart()
    for method in dict.fromkeys(record["method"] for record in records):
        method_records = [record for record in records if record["method"] == method]
        seconds = [max(total_seconds(record), MIN_SECONDS) for record in method_records]
        draw_curve(axes, seconds, method_records, method)
    set_seconds_axis(axes, [total_seconds(record) for record in records], MIN_SECONDS)
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    return figure
