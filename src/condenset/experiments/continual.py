"""Class-incremental learning with a condensed memory, in 5 and in 10 steps (two figures of the paper)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from condenset.continual.memory import Memory
from condenset.data.class_selection import select_classes
from condenset.engine import rng
from condenset.experiments.context import ExperimentContext
from condenset.experiments.types import ExperimentResult, Table, summarize_accuracies
from condenset.pipeline.results import Record, condense_cost
from condenset.report.charts import draw_curve, new_panels
from condenset.training.scores import format_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_continual(context: ExperimentContext) -> ExperimentResult:
    """Train networks from scratch on the memory after each step, and test them on the classes so far.

    Classes arrive in random orders, the same for every method and number of steps. Each order and number of steps has
    its own seed; otherwise methods that learn classes independently would build the same memory in 5 and in 10 steps.
    The networks of herding and DSA are trained on the real images of the step alone, as in the paper.
    """
    num_classes = context.splits.train.num_classes
    step_counts = sorted(
        {min(steps, num_classes) for steps in context.for_scale(tiny=(2, 5), small=(5, 10), paper=(5, 10))}
    )
    (ipc,) = context.choose_ipcs(tiny=(2,), small=(20,), paper=(20,))
    num_orders = context.for_scale(tiny=1, small=2, paper=5)
    context.num_parts = sum(step_counts) * len(context.methods) * num_orders
    records = [
        record
        for steps in step_counts
        for method in context.methods
        for order in range(num_orders)
        for record in _run_stream(context, method, ipc, steps, order)
    ]
    rows = []
    for steps in step_counts:
        for title, summarize in (("final", final_accuracy), ("average over steps", average_accuracy)):
            cells = [format_accuracy(summarize(_select(records, steps, method))) for method in context.methods]
            rows.append((str(steps), title, *cells))
    table = Table(("steps", "accuracy", *context.methods), rows)
    return ExperimentResult(records=records, table=table, draw=lambda: _draw(records, step_counts), ipcs=(ipc,))


def _run_stream(context: ExperimentContext, method: str, ipc: int, steps: int, order: int) -> list[Record]:
    """Feed one memory with the classes of one order, and return a record per step."""
    compute, records = context.run.compute, []
    protocol = context.protocol(num_networks=context.for_scale(tiny=2, small=3, paper=3))  # per order
    seed = int(rng.make_key(context.run.seed, "order", order, steps)[0])
    recipe = dataclasses.asdict(context.recipe(method, ipc))
    memory = Memory(method=method, seed=seed, device=str(compute.device), precision=compute.precision, **recipe)
    for number, class_names in enumerate(_classes_by_step(context, steps, order), start=1):
        name = f"{method}-{steps}-{order}-{number}"
        step_data = memory.prepare_step(select_classes(context.splits.train, class_names))
        with context.with_seed(seed):
            condensed = context.condense(name, method, memory.recipe(step_data), step_data)
            memory.store(condensed, step_data)
            record = context.score(name, memory.set, protocol, memory.select_test(context.splits.require_test()))
        fields = {"method": method, "ipc": memory.ipc, "steps": steps, "order": order, "step": number}
        fields |= {"classes": list(condensed.class_names), "classes_seen": len(memory.class_names)}
        records.append({**fields, **condense_cost(condensed.provenance), **record})
    return records


def _classes_by_step(context: ExperimentContext, steps: int, order: int) -> list[list[str]]:
    """Return the names of the classes that arrive in each step."""
    names = context.splits.train.class_names
    classes = rng.permutation(rng.make_key(context.run.seed, "classes", order), 0, len(names))
    return [[names[index] for index in indices.tolist()] for indices in torch.tensor_split(classes, steps)]


def _select(records: Sequence[Record], steps: int, method: str) -> list[Record]:
    return [record for record in records if (record["steps"], record["method"]) == (steps, method)]


def final_accuracy(records: Sequence[Record]) -> Record:
    """Return mean and standard deviation, over orders and networks, of the accuracy after the last step."""
    last = max(record["step"] for record in records)
    return summarize_accuracies(
        [accuracy for record in records if record["step"] == last for accuracy in record["accuracies"]]
    )


def average_accuracy(records: Sequence[Record]) -> Record:
    """Return mean and standard deviation, over orders and networks, of the accuracy averaged over the steps."""
    orders = sorted({record["order"] for record in records})
    streams = [[record["accuracies"] for record in records if record["order"] == order] for order in orders]
    return summarize_accuracies([fmean(steps) for stream in streams for steps in zip(*stream, strict=True)])


def _draw(records: Sequence[Record], step_counts: Sequence[int]) -> Figure:
    """Draw the accuracy by the number of classes, one panel per number of steps."""
    figure, panels = new_panels(len(step_counts), sharey=True)
    for axes, steps in zip(panels, step_counts, strict=True):
        for method in dict.fromkeys(record["method"] for record in records):
            accuracies: dict[int, list[float]] = {}
            for record in _select(records, steps, method):
                accuracies.setdefault(record["classes_seen"], []).extend(record["accuracies"])
            class_counts = sorted(accuracies)
            draw_curve(axes, class_counts, [summarize_accuracies(accuracies[num]) for num in class_counts], method)
            axes.set_xticks(class_counts)
        axes.set_title(f"{steps} steps")
        axes.set_xlabel("classes so far")
    panels[0].set_ylabel("test accuracy on these classes, %")
    panels[-1].legend()
    return figure
