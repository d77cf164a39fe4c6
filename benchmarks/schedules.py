"""Accuracy by seconds of condensing for the schedules of dm: the time to reach the paper's accuracy.

    python benchmarks/schedules.py digits --ipc 10 --iterations fast=50,100,200 --iterations paper=100,500
    python benchmarks/schedules.py cifar10 --ipc 50 --device cuda --target 63.0 --out schedules

Every point is a separate run, because the fast schedule averages over the second half of its iterations. Seconds are
iterations times the seconds per iteration of the longest run, without start-up. Accuracies are those of test images, so
use them to report, not to choose settings.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import condenset as cs
from condenset.cli.console import print_table
from condenset.report.charts import accuracies_in_percent, new_chart, save_chart, set_seconds_axis

DEFAULT_ITERATIONS = ["fast=250,500,1000,2000,3000", "paper=500,1000,2000,5000,10000,20000"]
COLUMNS = ("schedule", "iterations", "lr", "seconds", "accuracy %")


def seconds_per_iteration(train: cs.ImageData, schedule: str, most: int, options: dict[str, Any]) -> float:
    """Return the seconds per iteration: the difference of a long and a short run, so that start-up is left out."""
    short, times = max(most // 10, 1), []
    for iterations in (short, short, most):  # the first run builds the kernels
        began = time.perf_counter()
        cs.condense(train, "dm", schedule=schedule, iterations=iterations, verbose=False, **options)
        times.append(time.perf_counter() - began)
    return max(times[2] - times[1], 0.0) / max(most - short, 1)


def measure(
    splits: cs.Splits, schedule: str, numbers: list[int], num_networks: int, options: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return one record per number of iterations."""
    seconds, records = seconds_per_iteration(splits.train, schedule, max(numbers), options), []
    for iterations in numbers:
        condensed = cs.condense(splits.train, "dm", schedule=schedule, iterations=iterations, verbose=False, **options)
        scores = cs.evaluate(condensed, splits.test, num_networks=num_networks, device=options["device"], verbose=False)
        records.append(
            {
                "schedule": schedule,
                "iterations": iterations,
                "lr": condensed.provenance["recipe"]["lr"],
                "seconds": iterations * seconds,
                "accuracy_mean": scores.mean,
                "accuracy_std": scores.std,
            }
        )
        print(f"{schedule}, {iterations} iterations: {scores}", flush=True)
    return records


def draw(records: list[dict[str, Any]], target: float | None, path: Path) -> None:
    """Draw the accuracies by seconds, a curve per schedule, and the accuracy to reach."""
    figure, axes = new_chart()
    for schedule in dict.fromkeys(record["schedule"] for record in records):
        points = [record for record in records if record["schedule"] == schedule]
        means, stds = accuracies_in_percent(points)
        axes.errorbar([record["seconds"] for record in points], means, yerr=stds, fmt="o-", capsize=2, label=schedule)
    if target is not None:
        axes.axhline(target, color="gray", linestyle="--", label="paper")
    set_seconds_axis(axes, [record["seconds"] for record in records], 1e-3)
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    save_chart(figure, path)


def main(
    dataset: str,
    ipc: int = 50,
    iterations: Annotated[list[str] | None, typer.Option(help="Iterations of a schedule: NAME=N,N,...")] = None,
    nets: Annotated[int, typer.Option(help="Networks per set.")] = 5,
    device: str | None = None,
    data_dir: Path | None = None,
    target: Annotated[float | None, typer.Option(help="Accuracy to reach, in percent.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write OUT.json, OUT.png and OUT.svg.")] = None,
) -> None:
    splits = cs.load(dataset, data_dir=data_dir, verbose=False)
    records = []
    for text in iterations or DEFAULT_ITERATIONS:
        schedule, _, numbers = text.partition("=")
        options = {"ipc": ipc, "device": device}
        records += measure(splits, schedule, sorted(map(int, numbers.split(","))), nets, options)
    rows = [
        (
            record["schedule"],
            str(record["iterations"]),
            f"{record['lr']:g}",
            f"{record['seconds']:.2f}",
            f"{100 * record['accuracy_mean']:.1f} ± {100 * record['accuracy_std']:.1f}",
        )
        for record in records
    ]
    print_table(COLUMNS, rows)
    if out is not None:
        out.with_suffix(".json").write_text(json.dumps(records, indent=1) + "\n")
        draw(records, target, out.with_suffix(".png"))


if __name__ == "__main__":
    typer.run(main)
