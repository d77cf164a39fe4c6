"""Class-incremental learning with a condensed memory, in 5 and in 10 steps (the paper's two figures)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import torch

from condenset import draws
from condenset.continual import Memory
from condenset.estimates import Work
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome, Record, Table
from condenset.recipes import Protocol
from condenset.report.charts import COLOR_OF, new_panels
from condenset.types import of_classes, percent
from condenset.workflow import cost_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def class_incremental(lab: Lab) -> Outcome:
    """Accuracy on the classes seen so far, of networks trained from scratch on the memory after each step.

    Classes come in random orders, the same for every method and number of steps; each order and number of steps has a
    seed of its own, or else methods that learn classes one by one would come to the same memory in 5 steps and in 10.
    Herding's network, like DSA's, is trained on the step's real images alone, as the paper does.
    """
    num_classes = lab.splits.train.num_classes
    several = sorted({min(steps, num_classes) for steps in lab.at(tiny=(2, 5), small=(5, 10), paper=(5, 10))})
    (ipc,) = lab.ipcs(tiny=(2,), small=(20,), paper=(20,))
    orders = range(lab.at(tiny=1, small=2, paper=5))
    streams = [(method, steps, order) for steps in several for method in lab.methods for order in orders]
    lab.expect(_works(lab, ipc, streams))
    records = [record for method, steps, order in streams for record in _stream(lab, method, ipc, steps, order)]
    rows = []
    for steps in several:
        for text, pick in (("final", final), ("average over steps", average)):
            cells = [percent(pick(_those(records, steps, method))) for method in lab.methods]
            rows.append((str(steps), text, *cells))
    table = Table(("steps", "accuracy", *lab.methods), rows)
    return Outcome(records=records, table=table, draw=lambda: _draw(records, several), ipcs=(ipc,))


def _works(lab: Lab, ipc: int, streams: Sequence[tuple[str, int, int]]) -> dict[str, Work]:
    """What is to be done, by parts: each step has images of its own, and so a seed that no other has."""
    found: dict[str, Work] = {}
    seeds: dict[tuple[int, int, int], int] = {}  # of all methods together, which may ask one network
    for method, steps, order in streams:
        recipe, seen = lab.recipe(method, ipc), 0
        for number, part in enumerate(_parts(lab, steps, order), start=1):
            seen += len(part)
            share = len(part) / lab.splits.train.num_classes
            seed = seeds.setdefault((steps, order, number), len(seeds))
            found[_name(method, steps, order, number)] = Work(recipe, _protocol(lab), ipc * seen, seed, share)
    return found


def _name(method: str, steps: int, order: int, number: int) -> str:
    return f"{method}-{steps}-{order}-{number}"


def _protocol(lab: Lab) -> Protocol:
    return lab.protocol(nets=lab.at(tiny=2, small=3, paper=3))  # networks an order


def _parts(lab: Lab, steps: int, order: int) -> list[list[str]]:
    """The classes that arrive, step by step."""
    names = lab.splits.train.class_names
    classes = draws.permutation(draws.make_key(lab.run.seed, "classes", order), 0, len(names))
    return [[names[each] for each in part.tolist()] for part in torch.tensor_split(classes, steps)]


def _stream(lab: Lab, method: str, ipc: int, steps: int, order: int) -> list[Record]:
    """One memory, fed with the classes of one order: a record after each step."""
    place, protocol, records = lab.run.place, _protocol(lab), []
    seed = int(draws.make_key(lab.run.seed, "order", order, steps)[0])
    recipe = dataclasses.asdict(lab.recipe(method, ipc))
    memory = Memory(method=method, seed=seed, device=str(place.device), precision=place.precision, **recipe)
    for number, part in enumerate(_parts(lab, steps, order), start=1):
        name = _name(method, steps, order, number)
        arriving = memory.arriving(of_classes(lab.splits.train, part))
        with lab.seeded(seed):
            small = lab.condensed(name, method, memory.recipe(arriving), arriving)
            memory.keep(small, arriving)
            record = lab.scored(name, memory.set, protocol, memory.seen(lab.splits.test))
        about = {"method": method, "ipc": memory.ipc, "steps": steps, "order": order, "step": number}
        about |= {"classes": list(small.class_names), "classes_seen": len(memory.class_names)}
        records.append({**about, **cost_of(small.provenance), **record})
    return records


def _those(records: Sequence[Record], steps: int, method: str) -> list[Record]:
    return [record for record in records if (record["steps"], record["method"]) == (steps, method)]


def final(records: Sequence[Record]) -> Record:
    """Mean and std, over orders and networks, of the accuracy on all classes."""
    last = max(record["step"] for record in records)
    return _spread([each for record in records if record["step"] == last for each in record["accuracies"]])


def average(records: Sequence[Record]) -> Record:
    """Mean and std, over orders and networks, of the accuracies averaged over the steps of an order."""
    orders = sorted({record["order"] for record in records})
    streams = [[record["accuracies"] for record in records if record["order"] == order] for order in orders]
    return _spread([fmean(steps) for stream in streams for steps in zip(*stream, strict=True)])


def _spread(accuracies: Sequence[float]) -> Record:
    return {"accuracies": accuracies, "accuracy_mean": fmean(accuracies), "accuracy_std": pstdev(accuracies)}


def _draw(records: Sequence[Record], several: Sequence[int]) -> Figure:
    figure, panels = new_panels(len(several), sharey=True)
    for axes, steps in zip(panels, several, strict=True):
        for method in dict.fromkeys(record["method"] for record in records):
            mine = _those(records, steps, method)
            seen = sorted({record["classes_seen"] for record in mine})
            found = [
                _spread([a for record in mine if record["classes_seen"] == num for a in record["accuracies"]])
                for num in seen
            ]
            means, spreads = ([100 * each[key] for each in found] for key in ("accuracy_mean", "accuracy_std"))
            axes.errorbar(seen, means, yerr=spreads, fmt="o-", color=COLOR_OF[method], capsize=2, label=method)
            axes.set_xticks(seen)
        axes.set_title(f"{steps} steps")
        axes.set_xlabel("classes seen")
    panels[0].set_ylabel("test accuracy on them, %")
    panels[-1].legend()
    return figure
