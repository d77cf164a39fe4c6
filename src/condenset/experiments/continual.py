"""Class-incremental learning with a condensed memory, in 5 and in 10 steps (two figures of the paper)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from condenset.continual.memory import Memory
from condenset.data.class_selection import select_classes
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.experiments.context import ExperimentContext
from condenset.experiments.sets import make_score_request
from condenset.experiments.types import ExperimentResult, Table, summarize_accuracies
from condenset.pipeline.condensing import SetRequest, condense_missing
from condenset.pipeline.results import Record, condense_cost
from condenset.report.charts import draw_curve, new_panels
from condenset.training.protocol import Protocol
from condenset.training.scores import format_accuracy
from condenset.training.scoring import score_together

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
    (ipc,) = context.ipcs
    num_orders = context.for_scale(tiny=1, small=2, paper=5)
    context.num_parts = sum(step_counts) * len(context.methods) * num_orders
    streams = [
        Stream(method, ipc, steps, order)
        for steps in step_counts
        for method in context.methods
        for order in range(num_orders)
    ]
    if context.run.engine is not None:
        for order in range(num_orders):  # not all at once, because each order is a copy of the images
            _run_at_once(context, [stream for stream in streams if stream.order == order])
    records = [record for stream in streams for record in _run_stream(context, stream)]
    rows = []
    for steps in step_counts:
        for title, summarize in (("final", final_accuracy), ("average over steps", average_accuracy)):
            cells = [format_accuracy(summarize(_select(records, steps, method))) for method in context.methods]
            rows.append((str(steps), title, *cells))
    table = Table(("steps", "accuracy", *context.methods), rows)
    return ExperimentResult(records=records, table=table, draw=lambda: _draw(records, step_counts), ipcs=(ipc,))


def _run_stream(context: ExperimentContext, stream: Stream) -> list[Record]:
    """Feed one memory with the classes of one order, and return a record per step."""
    memory, protocol, records = stream.make_memory(context), memory_protocol(context), []
    for number, images in enumerate(stream.iter_steps(context), start=1):
        condensed = stream.add_step(context, memory, number, images)
        with context.with_seed(memory.seed):
            test_set = memory.select_test(context.splits.require_test())
            record = context.score(stream.part(number), memory.set, protocol, test_set)
        fields = {"method": stream.method, "ipc": memory.ipc, "steps": stream.steps, "order": stream.order}
        fields |= {"step": number, "classes": list(condensed.class_names), "classes_seen": len(memory.class_names)}
        records.append({**fields, **condense_cost(condensed.provenance), **record})
    return records


def _run_at_once(context: ExperimentContext, streams: Sequence[Stream]) -> None:
    """Condense the sets of several streams at the same time on the engine, then score their memories."""
    images = {stream.steps: list(stream.iter_steps(context)) for stream in streams}  # the same for all methods
    set_requests = [
        request for stream in streams for request in stream.make_set_requests(context, images[stream.steps])
    ]
    condense_missing(set_requests, context.run)
    test_sets: dict[tuple[str, ...], ImageData] = {}  # by classes so far, the same for all methods
    protocol, requests = memory_protocol(context), []
    for stream in streams:
        memory = stream.make_memory(context)
        for number, step_images in enumerate(images[stream.steps], start=1):
            stream.add_step(context, memory, number, step_images)
            if memory.class_names not in test_sets:
                test_sets[memory.class_names] = memory.select_test(context.splits.require_test())
            with context.with_seed(memory.seed):
                test_set = test_sets[memory.class_names]
                requests.append(make_score_request(context, stream.part(number), memory.set, protocol, test_set))
    score_together(requests, context.run)


def memory_protocol(context: ExperimentContext) -> Protocol:
    """Return how a memory is scored."""
    return context.protocol(num_networks=context.for_scale(tiny=2, small=3, paper=3))  # per order


@dataclass(frozen=True)
class Stream:
    """Classes that arrive in one random order, for one memory.

    Attributes:
        method: The method that condenses.
        ipc: Images per class.
        steps: Number of steps.
        order: Number of the order.
    """

    method: str
    ipc: int
    steps: int
    order: int

    def part(self, number: int) -> str:
        """Return the name of the part of a step."""
        return f"{self.method}-{self.steps}-{self.order}-{number}"

    def make_memory(self, context: ExperimentContext) -> Memory:
        """Return an empty memory."""
        compute, recipe = context.run.compute, dataclasses.asdict(context.recipe(self.method, self.ipc))
        seed = int(rng.make_key(context.run.seed, "order", self.order, self.steps)[0])
        return Memory(method=self.method, seed=seed, device=str(compute.device), precision=compute.precision, **recipe)

    def iter_steps(self, context: ExperimentContext) -> Iterator[ImageData]:
        """Yield the images of each step."""
        train = context.splits.train
        classes = rng.permutation(rng.make_key(context.run.seed, "classes", self.order), 0, train.num_classes)
        for indices in torch.tensor_split(classes, self.steps):
            yield select_classes(train, [train.class_names[index] for index in indices.tolist()])

    def add_step(self, context: ExperimentContext, memory: Memory, number: int, images: ImageData) -> CondensedSet:
        """Condense the images of a step, or load their set, and store it in the memory."""
        data = memory.prepare_step(images)
        with context.with_seed(memory.seed):
            condensed = context.condense(self.part(number), self.method, memory.recipe(data), data)
        memory.store(condensed, data)
        return condensed

    def make_set_requests(self, context: ExperimentContext, images: Sequence[ImageData]) -> list[SetRequest]:
        """Return the sets of all steps. None depends on another: the classes differ, and the normalisation does not."""
        memory = self.make_memory(context)
        steps = {self.part(number): memory.prepare_step(data) for number, data in enumerate(images, start=1)}
        with context.with_seed(memory.seed):
            return [context.make_set_request(name, memory.recipe(data), data, {}) for name, data in steps.items()]


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
