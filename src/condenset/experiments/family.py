"""The distribution-matching family under both evaluation protocols (beyond the paper)."""

from __future__ import annotations

import functools

from condenset.experiments.context import ExperimentContext
from condenset.experiments.sets import score_repeatedly
from condenset.experiments.types import ExperimentResult, Table
from condenset.pipeline.results import Record, condense_cost
from condenset.report.charts import draw_bars
from condenset.training.protocol import PROTOCOLS, Protocol
from condenset.training.scores import format_accuracy


def run_family(context: ExperimentContext) -> ExperimentResult:
    """Score the sets of all methods by every protocol, or by the one that the user names."""
    ipcs, protocols = context.ipcs, _protocol_names(context)
    pairs = [(method, ipc) for ipc in ipcs for method in context.methods]
    context.num_parts = len(pairs) * (1 + len(protocols)) * context.num_sets
    context.condense_all({f"{method}-{ipc}": context.recipe(method, ipc) for method, ipc in pairs})
    parts = {
        f"{method}-{ipc}-{protocol}": (f"{method}-{ipc}", context.protocol(protocol=protocol))
        for method, ipc in pairs
        for protocol in protocols
    }
    score_repeatedly(context, parts)
    records = {
        (method, ipc, protocol): context.repeat(functools.partial(_measure, context, method, ipc, protocol))
        for method, ipc in pairs
        for protocol in protocols
    }
    titles = {(ipc, protocol): f"{ipc} per class, {protocol}" for ipc in ipcs for protocol in protocols}
    rows = [(method, *(format_accuracy(records[method, *cell]) for cell in titles)) for method in context.methods]
    bars = {(titles[ipc, protocol], method): record for (method, ipc, protocol), record in records.items()}
    return ExperimentResult(
        records=list(records.values()),
        table=Table(("method", *titles.values()), rows),
        draw=lambda: draw_bars(bars),
        ipcs=ipcs,
    )


def _protocol_names(context: ExperimentContext) -> tuple[str, ...]:
    requested = context.request.protocol_fields.get("protocol")
    return (requested,) if requested else tuple(PROTOCOLS)


def family_protocols(context: ExperimentContext) -> dict[str, Protocol]:
    """Return how the sets are scored, by label."""
    return {f"scoring, {name}": context.protocol(protocol=name) for name in _protocol_names(context)}


def _measure(context: ExperimentContext, method: str, ipc: int, protocol: str, suffix: str) -> Record:
    """Score a set by a protocol. The set exists already."""
    condensed = context.condense(f"{method}-{ipc}{suffix}", method, context.recipe(method, ipc))
    record = context.score(f"{method}-{ipc}-{protocol}{suffix}", condensed, context.protocol(protocol=protocol))
    sizes = {"images": len(condensed), "storage_bytes": condensed.storage_bytes}
    return {"method": method, "ipc": ipc, **sizes, **condense_cost(condensed.provenance), **record}
