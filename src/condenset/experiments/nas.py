"""Architecture search by proxy sets (Table 5), and how well they rank networks (the appendix's scatter plot)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from condenset.data.validation import split_off
from condenset.estimates import Work
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome, Record, Table, made_on
from condenset.networks import search_space
from condenset.ranking import search
from condenset.recipes import Protocol, Recipe
from condenset.report.charts import new_panels
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLY, WHOLE = "early-stopping", "whole dataset"
VALIDATION = 0.1  # of the training images
TOP = 0.05  # of the space: what is trained on the whole set
BATCH = 250
TINY_SPACE = [
    f"convnet(width={width}, depth=1, norm={norm!r})"
    for width, norm in itertools.product((4, 8), ("none", "batch", "instance"))
]


def search_architectures(lab: Lab) -> Outcome:
    """Rank the space on every proxy, train the best of each on the whole set, and compare (Table 5).

    Architectures are chosen by validation accuracy alone; the accuracies told of and correlated are the test's.
    """
    train, validation = split_off(lab.splits.train, VALIDATION, seed=lab.run.seed)
    space = _space(lab)
    protocol = _proxy_protocol(lab)
    (ipc,) = lab.ipcs(tiny=(2,), small=(50,), paper=(50,))
    lab.check_enough(ipc, train)
    whole_protocol = _whole_protocol(lab, protocol)
    recipes = {method: lab.recipe(method, ipc, train) for method in lab.methods}
    num_top = max(lab.at(tiny=3, small=10, paper=1), math.ceil(TOP * len(space)))
    _foretell(lab, train, recipes, space, protocol, whole_protocol, num_top)
    storage, found, condensing = dict[str, int](), dict[str, Record](), dict[str, float]()
    for method, recipe in recipes.items():
        small = lab.condensed(method, method, recipe, train)
        storage[method], condensing[method] = len(small), small.provenance["seconds"]
        found[method] = _searched(lab, f"{method}-search", space, small, validation, protocol)
    if EARLY in lab.wishes.beside:
        early = _stopped_early(protocol, storage[lab.methods[0]])
        found[EARLY] = _searched(lab, f"{EARLY}-search", space, train, validation, early)
    tops = {name: _top(record, num_top) for name, record in found.items()}
    chosen = {row["name"] for top in tops.values() for row in top}
    candidates = [spec for spec in space if spec in chosen]
    whole = _searched(lab, "whole-search", candidates, train, validation, whole_protocol)
    records = [
        _compared(name, tops[name], found[name], whole)
        | {"images": storage.get(name, len(train)), "condense_seconds": condensing.get(name, 0.0)}
        for name in found
    ]
    *_, last = found.values()
    records.append(_reference(whole, last) | {"images": len(train), "condense_seconds": 0.0})
    return Outcome(records=records, table=_table(records), draw=lambda: _draw(records[:-1]), ipcs=(ipc,))


def _foretell(
    lab: Lab,
    train: ImageData,
    recipes: Mapping[str, Recipe],
    space: Sequence[str],
    proxy: Protocol,
    whole: Protocol,
    num_top: int,
) -> None:
    """Say how long it takes, if every search puts other networks at its top, and these are as heavy as the others."""
    sets, searched = {method: lab.work(recipe) for method, recipe in recipes.items()}, tuple(space)
    searches = {f"{name}-search": Work(None, proxy, work.num, networks=searched) for name, work in sets.items()}
    if EARLY in lab.wishes.beside:
        early = _stopped_early(proxy, sets[lab.methods[0]].num)
        searches[f"{EARLY}-search"] = Work(None, early, len(train), networks=searched)
    several = min(len(searches) * num_top, len(space)) / len(space)
    top = Work(None, whole, len(train), networks=searched, left=several)
    lab.expect({**sets, **searches, "whole-search": top})


def _space(lab: Lab) -> list[str]:
    """The architectures at this scale."""
    if lab.scale == "tiny":
        return TINY_SPACE
    # 7 shares no factor with the numbers of choices, so that every choice is there about as often as in the whole.
    return search_space(lab.splits.train.size)[:: lab.at(tiny=1, small=7, paper=1)]


def _proxy_protocol(lab: Lab) -> Protocol:
    fields: dict[str, Any] = lab.at(
        tiny={"nets": 1}, small={"nets": 1, "epochs": 200}, paper={"nets": 5, "epochs": 200}
    )
    return lab.protocol(batch=BATCH, **fields)


def _stopped_early(proxy: Protocol, num: int) -> Protocol:
    """As many steps as on a proxy set, of the same batches, under the same schedule: only on other images."""
    return dataclasses.replace(proxy, steps=proxy.length(num)[0])


def _whole_protocol(lab: Lab, proxy: Protocol) -> Protocol:
    fields: dict[str, Any] = lab.at(tiny={}, small={"epochs": 20}, paper={"epochs": 100})
    return lab.protocol(whole=True, batch=BATCH, nets=proxy.nets, **fields)


def _searched(
    lab: Lab,
    name: str,
    space: Sequence[str],
    small: CondensedSet | ImageData,
    validation: ImageData,
    protocol: Protocol,
) -> Record:
    """A ranking of the space as a record: `rows` from the best validation accuracy down, and the `seconds` it took."""

    def compute(run: Run) -> Record:
        also = {"test": lab.splits.test}
        ranking = search(space, small, validation, protocol, run, also=also, text=name.replace("-", " "))
        rows = [row.record() for row in ranking.rows]
        return {"protocol": dict(ranking.protocol), "rows": rows, "seconds": sum(row["seconds"] for row in rows)}

    return lab.remembered(name, compute, ("rows", "seconds"), space=space, protocol=dataclasses.asdict(protocol))


def _top(record: Mapping[str, Any], num: int) -> list[Record]:
    """The best rows of a ranking, best first; none that could not be trained."""
    return [row for row in record["rows"][:num] if not row["reason"]]


def _compared(name: str, top: Sequence[Record], found: Record, whole: Record) -> Record:
    """What a proxy's choice is worth: its best architecture's test accuracy after training on the whole set, and
    Spearman's correlation of the test accuracies on proxy and whole set over its top."""
    there = {row["name"]: row for row in whole["rows"] if not row["reason"]}
    pairs = [(row, there[row["name"]]) for row in top if row["name"] in there]
    points = [
        {
            "name": mine["name"],
            "validation": mine["accuracy"],
            "proxy": mine["also"]["test"],
            "whole": theirs["also"]["test"],
        }
        for mine, theirs in pairs
    ]
    best = top[0]["name"] if top else None
    return {
        "method": name,
        "best": best,
        "accuracy": next((point["whole"] for point in points if point["name"] == best), None),
        "correlation": spearman([each["proxy"] for each in points], [each["whole"] for each in points]),
        "seconds": found["seconds"],
        **made_on(found),
        "architectures": len(found["rows"]),
        "points": points,
    }


def _reference(whole: Record, search: Record) -> Record:
    """The same of training on the whole set itself, among those that any proxy put at its top.

    To train the whole space so would take longer than all else together; how long is told from the part that was, and
    from how much longer than that part the whole space took in a search, whose steps are of as many images.
    """
    best, there = whole["rows"][0], {row["name"] for row in whole["rows"]}
    part = sum(row["seconds"] for row in search["rows"] if row["name"] in there)
    return {
        "method": WHOLE,
        "best": None if best["reason"] else best["name"],
        "accuracy": best["also"].get("test"),
        "correlation": 1.0,
        "seconds": whole["seconds"] * search["seconds"] / part if part else whole["seconds"],
        **made_on(whole),
        "architectures": len(whole["rows"]),
        "estimated": len(whole["rows"]) < len(search["rows"]),
        "points": [],
    }


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equals sharing the mean of their ranks; None where one side has no order."""
    if min(len(set(first)), len(set(second))) < 2:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def _table(records: Sequence[Record]) -> Table:
    def cells(text: str, key: str, form: str, scale: float = 1.0, *, about: bool = False) -> tuple[str, ...]:
        values = [record[key] for record in records]
        told = ["-" if value is None else format(scale * value, form) for value in values]
        return (text, *told[:-1], ("≈ " if about else "") + told[-1])

    about = records[-1]["estimated"]  # of the whole set, which only some were trained on
    rows = [
        cells("performance, %", "accuracy", ".1f", 100, about=about),
        cells("correlation", "correlation", ".2f"),
        cells("time, min", "seconds", ".1f", 1 / 60, about=about),
        cells("condensing, min", "condense_seconds", ".1f", 1 / 60),
        cells("storage, images", "images", "d", 1),
    ]
    return Table(("", *(record["method"] for record in records)), rows)


def _draw(records: Sequence[Record]) -> Figure:
    figure, panels = new_panels(len(records), size=(3.5, 3.8), sharey=True)
    for axes, record in zip(panels, records, strict=True):
        mine, theirs = ([100 * each[key] for each in record["points"]] for key in ("proxy", "whole"))
        axes.scatter(mine, theirs, s=12)
        told = "none" if record["correlation"] is None else f"{record['correlation']:.2f}"
        axes.set_title(f"{record['method']}\nrank correlation: {told}", fontsize="medium")
        axes.set_xlabel("test accuracy on the proxy, %")
    panels[0].set_ylabel("test accuracy on the whole dataset, %")
    return figure
