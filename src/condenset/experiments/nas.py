"""Architecture search with proxy sets (Table 5), and how well they rank networks (the scatter plot of the appendix)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.split import train_val_split
from condenset.experiments.context import ExperimentContext
from condenset.experiments.types import ExperimentResult, Table, environment_fields
from condenset.networks import search_space
from condenset.pipeline.results import Record, condense_cost
from condenset.report.charts import new_panels, total_seconds
from condenset.runs.context import RunContext
from condenset.search.ranking import rank_architectures
from condenset.training.protocol import Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EARLY_STOPPING = "early-stopping"  # name of the baseline
WHOLE_TITLE = "whole dataset"  # of the last column of the table
VAL_SHARE = 0.1  # of the training images
TOP_SHARE = 0.05  # of the architectures: these are trained on the whole dataset
BATCH_SIZE = 250
TINY_SPACE = [
    f"convnet(width={width}, depth=1, norm={norm!r})"
    for width, norm in itertools.product((4, 8), ("none", "batch", "instance"))
]


def run_nas(context: ExperimentContext) -> ExperimentResult:
    """Rank all architectures on every proxy, train the best of each on the whole dataset, and compare (Table 5).

    Architectures are chosen by validation accuracy. The table and the correlations use test accuracy.
    """
    train, val = train_val_split(context.splits.train, VAL_SHARE, seed=context.run.seed)
    (ipc,) = context.ipcs
    context.check_class_sizes(train)
    num_searches = len(context.methods) + len(context.request.other_baselines)
    context.num_parts = len(context.methods) + num_searches + 1
    space, proxy_protocol = _space(context), _proxy_protocol(context)
    rankings, costs = _rank_on_proxies(context, ipc, space, train, val, proxy_protocol)
    num_top = max(context.for_scale(tiny=3, small=10, paper=1), math.ceil(TOP_SHARE * len(space)))
    tops = {name: _top_rows(ranking, num_top) for name, ranking in rankings.items()}
    names = {row["name"] for top in tops.values() for row in top}
    candidates = [spec for spec in space if spec in names]
    whole = _rank(context, "whole-search", candidates, train, val, _whole_protocol(context, proxy_protocol))
    records = [_compare(name, tops[name], ranking, whole) | costs[name] for name, ranking in rankings.items()]
    last_ranking = list(rankings.values())[-1]
    records.append(_reference_record(whole, last_ranking) | {"images": len(train), "condense_seconds": 0.0})
    return ExperimentResult(records=records, table=_make_table(records), draw=lambda: _draw(records[:-1]), ipcs=(ipc,))


def _rank_on_proxies(
    context: ExperimentContext, ipc: int, space: Sequence[str], train: ImageData, val: ImageData, protocol: Protocol
) -> tuple[dict[str, Record], dict[str, Record]]:
    """Rank the architectures on the set of every method and with early stopping; return rankings and costs by name."""
    rankings, costs = dict[str, Record](), dict[str, Record]()
    num_images: list[int] = []
    recipes = {method: context.recipe(method, ipc, train) for method in context.methods}
    context.condense_all(recipes, train)
    for method, recipe in recipes.items():
        condensed = context.condense(method, method, recipe, train)
        costs[method] = {"images": len(condensed.stored_images), **condense_cost(condensed.provenance)}
        num_images.append(len(condensed))
        rankings[method] = _rank(context, f"{method}-search", space, condensed, val, protocol)
    if EARLY_STOPPING in context.request.other_baselines:
        early_protocol = _early_stopping_protocol(protocol, num_images[0])
        costs[EARLY_STOPPING] = {"images": len(train), "condense_seconds": 0.0}
        rankings[EARLY_STOPPING] = _rank(context, f"{EARLY_STOPPING}-search", space, train, val, early_protocol)
    return rankings, costs


def _space(context: ExperimentContext) -> list[str]:
    """Return the architectures to search among."""
    if context.scale == "tiny":
        return TINY_SPACE
    # 7 has no common factor with the numbers of choices: each choice appears about as often as in the full space.
    return search_space(context.splits.train.size)[:: context.for_scale(tiny=1, small=7, paper=1)]


def _proxy_protocol(context: ExperimentContext) -> Protocol:
    """Return how architectures are trained on a proxy set."""
    fields: dict[str, Any] = context.for_scale(
        tiny={"num_networks": 1}, small={"num_networks": 1, "epochs": 200}, paper={"num_networks": 5, "epochs": 200}
    )
    return context.protocol(batch_size=BATCH_SIZE, **fields)


def _early_stopping_protocol(proxy_protocol: Protocol, num_images: int) -> Protocol:
    """Return the protocol with as many steps on the whole dataset as on a proxy set of `num_images`."""
    return dataclasses.replace(proxy_protocol, steps=proxy_protocol.training_steps(num_images))


def _whole_protocol(context: ExperimentContext, proxy_protocol: Protocol) -> Protocol:
    """Return how the best architectures are trained on the whole dataset."""
    fields: dict[str, Any] = context.for_scale(tiny={"epochs": 3}, small={"epochs": 20}, paper={"epochs": 100})
    num_networks = proxy_protocol.num_networks
    return context.protocol(whole=True, batch_size=BATCH_SIZE, num_networks=num_networks, **fields)


def search_protocols(context: ExperimentContext) -> dict[str, Protocol]:
    """Return how the architectures are trained, by label. The network of a protocol is the first architecture."""
    space, proxy_protocol = _space(context), _proxy_protocol(context)
    protocols = {
        f"scoring, {len(space)} networks such as": proxy_protocol,
        "whole dataset, the best such as": _whole_protocol(context, proxy_protocol),
    }
    return {label: dataclasses.replace(protocol, network=space[0]) for label, protocol in protocols.items()}


def _rank(
    context: ExperimentContext,
    name: str,
    space: Sequence[str],
    train_set: CondensedSet | ImageData,
    val: ImageData,
    protocol: Protocol,
) -> Record:
    """Rank architectures; return `rows` from the best validation accuracy down, and the total `seconds`."""

    def measure(run: RunContext) -> Record:
        other_sets = {"test": context.splits.require_test()}
        ranking = rank_architectures(
            space, train_set, val, protocol, run, other_sets=other_sets, description=name.replace("-", " ")
        )
        rows = [row.record() for row in ranking.rows]
        return {"protocol": dict(ranking.protocol), "rows": rows, "seconds": sum(row["seconds"] for row in rows)}

    return context.cached(name, measure, ("rows", "seconds"), space=space, protocol=dataclasses.asdict(protocol))


def _top_rows(ranking: Mapping[str, Any], num: int) -> list[Record]:
    """Return the best `num` rows of a ranking, without architectures that could not be trained."""
    return [row for row in ranking["rows"][:num] if not row["reason"]]


def _compare(name: str, top: Sequence[Record], ranking: Record, whole: Record) -> Record:
    """Compare the top of a proxy's ranking with training on the whole dataset.

    Returns:
        A record with the test accuracy of the best architecture after training on the whole dataset, and Spearman's
        correlation between test accuracies on the proxy and on the whole dataset.
    """
    whole_rows = {row["name"]: row for row in whole["rows"] if not row["reason"]}
    points = [
        {
            "name": row["name"],
            "validation": row["accuracy"],
            "proxy": row["other_accuracies"]["test"],
            "whole": whole_rows[row["name"]]["other_accuracies"]["test"],
        }
        for row in top
        if row["name"] in whole_rows
    ]
    best = top[0]["name"] if top else None
    return {
        "method": name,
        "best": best,
        "accuracy": next((point["whole"] for point in points if point["name"] == best), None),
        "correlation": spearman([point["proxy"] for point in points], [point["whole"] for point in points]),
        "seconds": ranking["seconds"],
        **environment_fields(ranking),
        "architectures": len(ranking["rows"]),
        "points": points,
    }


def _reference_record(whole: Record, search: Record) -> Record:
    """Return the record of training on the whole dataset.

    Only the candidates, the best architectures of every proxy, are trained on it, because all architectures would take
    longer than the rest of the experiment. The time for all of them is estimated with `search`, the ranking of all
    architectures on a proxy: the time of the candidates on the whole dataset, times the ratio of the times of all
    architectures and of the candidates on the proxy.
    """
    best, candidates = whole["rows"][0], {row["name"] for row in whole["rows"]}
    candidate_seconds = sum(row["seconds"] for row in search["rows"] if row["name"] in candidates)
    ratio = search["seconds"] / candidate_seconds if candidate_seconds else 1.0
    return {
        "method": WHOLE_TITLE,
        "best": None if best["reason"] else best["name"],
        "accuracy": best["other_accuracies"].get("test"),
        "correlation": 1.0,
        "seconds": whole["seconds"] * ratio,
        **environment_fields(whole),
        "architectures": len(whole["rows"]),
        "estimated": len(whole["rows"]) < len(search["rows"]),
        "points": [],
    }


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None if all values of one side are equal."""
    if min(len(set(first)), len(set(second))) < 2:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first, second).statistic)


def _make_table(records: Sequence[Record]) -> Table:
    """Return the table with a column per record. The last record is that of the whole dataset."""

    def row(title: str, name: str, spec: str, scale: float = 1.0, *, estimated: bool = False) -> tuple[str, ...]:
        values = [total_seconds(record) if name == "condense_seconds" else record[name] for record in records]
        cells = ["-" if value is None else format(scale * value, spec) for value in values]
        return (title, *cells[:-1], ("≈ " if estimated else "") + cells[-1])

    estimated = records[-1]["estimated"]  # of the whole dataset: only the candidates were trained on it
    rows = [
        row("performance, %", "accuracy", ".1f", 100, estimated=estimated),
        row("correlation", "correlation", ".2f"),
        row("time, min", "seconds", ".1f", 1 / 60, estimated=estimated),
        row("condensing, min", "condense_seconds", ".1f", 1 / 60),
        row("storage, images", "images", "d", 1),  # an integer scale, because "d" formats integers
    ]
    return Table(("", *(record["method"] for record in records)), rows)


def _draw(records: Sequence[Record]) -> Figure:
    """Draw the test accuracies on the whole dataset by those on the proxy, a panel per proxy."""
    figure, panels = new_panels(len(records), size=(3.5, 3.8), sharey=True)
    for axes, record in zip(panels, records, strict=True):
        proxy, whole = ([100 * point[name] for point in record["points"]] for name in ("proxy", "whole"))
        axes.scatter(proxy, whole, s=12)
        correlation = "none" if record["correlation"] is None else f"{record['correlation']:.2f}"
        axes.set_title(f"{record['method']}\nrank correlation: {correlation}", fontsize="medium")
        axes.set_xlabel("test accuracy on the proxy, %")
    panels[0].set_ylabel("test accuracy on the whole dataset, %")
    return figure
