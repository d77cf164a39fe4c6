"""How long runs take beside what was foretold of them; nothing is kept.

    python benchmarks/foretold.py                                # digits on 2 CPU cores, a minute and a half
    python benchmarks/foretold.py cifar10 --device cuda --ipc 50 --iterations 3000 --nets 5 --epochs 1000
    python benchmarks/foretold.py cifar10 --method dm --ipc 1 --iterations 2 --epochs 1 --nets 1

`making` is a set, `scoring` the networks trained on it; `trying` is how long it took to foretell.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated, Any

import torch
import typer

import condenset as cs
from condenset.console import print_table
from condenset.engine import Place
from condenset.estimates import Work, seconds_of
from condenset.plans import Wishes, make_plan
from condenset.recipes import RECIPES
from condenset.runs import Run
from condenset.types import Splits
from condenset.workflow import execute

COLUMNS = ("method", "trying", "making", "took", "ratio", "scoring", "took", "ratio")
METHODS = ("random", "herding", "dm", "dc", "dsa", "dd", "ld")
ITERATIONS = {"dm": 200, "dc": 2, "dsa": 2, "dd": 20, "ld": 200}  # a few seconds on digits


def row_of(
    method: str, splits: Splits, place: Place, ipc: int, iterations: int | None, protocol: dict[str, Any]
) -> tuple[str, ...]:
    iterations = iterations or ITERATIONS.get(method)
    has = "iterations" in {field.name for field in dataclasses.fields(RECIPES[method])}
    recipe = {"iterations": iterations} if has and iterations else {}
    wishes = Wishes(methods=(method,), ipcs=(ipc,), recipe=recipe, protocol=protocol, whole=False)
    where = {"device": str(place.device), "precision": place.precision}
    plan = make_plan(splits.train, wishes, dataset=splits.train.name, seed=0, **where)
    (job,), num = plan.jobs, ipc * splits.train.num_classes
    began = time.perf_counter()
    foretold = seconds_of([Work(job.recipe, None, num), Work(None, plan.protocol, num)], splits, place)
    trying = time.perf_counter() - began
    began = time.perf_counter()
    (record,) = execute(plan, splits, Run(seed=0, place=place))
    took = [record["condense_seconds"], time.perf_counter() - began - record["condense_seconds"]]
    cells = [
        (f"{before:.1f}", f"{after:.1f}", f"{after / before:.2f}" if before else "-")
        for before, after in zip(foretold, took, strict=True)
    ]
    return (method, f"{trying:.2f}", *cells[0], *cells[1])


def main(
    dataset: Annotated[str, typer.Argument(help="Such as cifar10.")] = "digits",
    method: Annotated[list[str] | None, typer.Option(help="Such as dm; repeatable.")] = None,
    ipc: int = 10,
    iterations: Annotated[int | None, typer.Option(help="Of methods that have them (default: a few).")] = None,
    nets: int = 2,
    epochs: int = 100,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best there is).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
) -> None:
    """Print a row for each method."""
    place, splits = Place.best(device, precision), cs.load(dataset)
    print(f"{place.hardware}, torch {torch.__version__}, {place.precision}, {dataset}, {ipc} images a class")
    protocol = {"nets": nets, "epochs": epochs}
    print_table(COLUMNS, [row_of(each, splits, place, ipc, iterations, protocol) for each in method or METHODS])


if __name__ == "__main__":
    typer.run(main)
