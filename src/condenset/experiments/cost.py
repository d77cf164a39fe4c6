"""Accuracy against the seconds of condensing, on the way to the last iteration (the training-time figure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from condenset.errors import check
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome, Record, Table
from condenset.recipes import MatchingRecipe
from condenset.report.charts import COLOR_OF, new_chart, set_seconds
from condenset.types import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_SECONDS = 1e-3  # what took less is drawn there


def cost(lab: Lab) -> Outcome:
    """DM and DSA, unless told otherwise, scored at iterations that lie ever further apart."""
    (ipc,) = lab.ipcs(tiny=(1,), small=(50,), paper=(50,))
    num = lab.at(tiny=3, small=6, paper=10)
    records: list[Record] = []
    recipes = {method: cast(MatchingRecipe, lab.recipe(method, ipc)) for method in lab.methods}
    for method, recipe in recipes.items():
        check(recipe.image_steps > 0, f"iterations of {method} must be 1 or more, to be looked at", 0)
    steps = {method: log_spaced(recipe.image_steps, num) for method, recipe in recipes.items()}
    works = {f"{method}-{ipc}": lab.work(recipe) for method, recipe in recipes.items()}
    for method, recipe in recipes.items():
        works |= {f"{method}-{ipc}-{step}": lab.scoring(recipe, lab.protocol()) for step in steps[method]}
    lab.expect(works)
    for method, recipe in recipes.items():
        name = f"{method}-{ipc}"
        lab.condensed(name, method, recipe, snapshots=steps[method])
        for step in steps[method]:
            small = lab.snapshot(name, step)
            about = {"method": method, "ipc": ipc, "step": step, "condense_seconds": small.provenance["seconds"]}
            records.append({**about, **lab.scored(f"{name}-{step}", small, lab.protocol())})
    rows: list[tuple[str, ...]] = [
        (r["method"], str(r["step"]), f"{r['condense_seconds']:.3g}", percent(r)) for r in records
    ]
    table = Table(("method", "steps of the images", "seconds", "accuracy %"), rows)
    return Outcome(records=records, table=table, draw=lambda: _draw(records), ipcs=(ipc,))


def log_spaced(total: int, num: int) -> list[int]:
    """Up to `num` steps from a thousandth of `total` to `total`, each about as many times the one before."""
    first = max(1.0, total / 1000)
    steps = {round(first * (total / first) ** (place / (num - 1))) for place in range(num)}
    return sorted(step for step in steps if 1 <= step <= total)


def _draw(records: Sequence[Record]) -> Figure:
    figure, axes = new_chart()
    for method in dict.fromkeys(record["method"] for record in records):
        mine = [record for record in records if record["method"] == method]
        seconds = [max(record["condense_seconds"], LEAST_SECONDS) for record in mine]
        means, spreads = ([100 * record[key] for record in mine] for key in ("accuracy_mean", "accuracy_std"))
        axes.errorbar(seconds, means, yerr=spreads, fmt="o-", color=COLOR_OF[method], capsize=2, label=method)
    set_seconds(axes, [record["condense_seconds"] for record in records], LEAST_SECONDS)
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    return figure
