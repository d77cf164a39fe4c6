"""Tables of accuracies: methods, norms and architectures; and the figure of larger sets."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from condenset import networks
from condenset.errors import check
from condenset.experiments.context import ExperimentContext
from condenset.experiments.sets import score_pairs, score_repeatedly
from condenset.experiments.types import ExperimentResult, Table
from condenset.methods import Recipe
from condenset.pipeline.results import Record, condense_cost
from condenset.report.charts import draw_bars, draw_curve, new_chart
from condenset.training.protocol import Protocol
from condenset.training.scores import format_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_DD_IPC = 49  # the paper has no larger sets of dd, whose unrolled training takes too much memory


def run_sota(context: ExperimentContext) -> ExperimentResult:
    """Compare methods by images per class, with the whole dataset as the upper bound (Table 1)."""
    ipcs = context.ipcs
    records, whole = _score_pairs(context, _sota_pairs(context))
    rows = []
    for ipc in ipcs:
        cells = [
            format_accuracy(records[method, ipc]) if (method, ipc) in records else "-" for method in context.methods
        ]
        rows.append((str(ipc), *cells, format_accuracy(whole)))
    bars = {(f"{ipc} per class", method): record for (method, ipc), record in records.items()}
    return ExperimentResult(
        records=[*records.values(), whole],
        table=Table(("images per class", *context.methods, "whole dataset"), rows),
        draw=lambda: draw_bars(bars, bound=whole),
        ipcs=ipcs,
    )


def _sota_pairs(context: ExperimentContext) -> list[tuple[str, int]]:
    """Return (method, images per class) of every set of Table 1."""
    ipcs = context.ipcs
    pairs = [(method, ipc) for ipc in ipcs for method in context.methods if not (method == "dd" and ipc > MAX_DD_IPC)]
    check(bool(pairs), f"dd takes at most {MAX_DD_IPC} images per class in this table, as in the paper", ipcs)
    return pairs


def sota_recipes(context: ExperimentContext) -> dict[str, Recipe]:
    """Return the recipes of Table 1, by label."""
    return {f"{method}, {ipc} per class": context.recipe(method, ipc) for method, ipc in _sota_pairs(context)}


def _score_pairs(
    context: ExperimentContext, pairs: Sequence[tuple[str, int]]
) -> tuple[dict[tuple[str, int], Record], Record]:
    """Score sets by (method, images per class), and the whole dataset."""
    context.num_parts = len(pairs) * context.num_sets + 1
    return score_pairs(context, pairs, whole=True), context.score_whole()


def run_batchnorm(context: ExperimentContext) -> ExperimentResult:
    """Compare networks with instance norm and with batch norm (Table 2)."""
    (ipc,) = context.ipcs
    specs = _specs_by_norm(context, ipc)
    context.num_parts = len(specs) * len(context.methods) * context.num_sets
    recipes = {
        f"{method}-{norm}": context.recipe(method, ipc, network=spec)
        for norm, spec in specs.items()
        for method in context.methods
    }
    context.condense_all(recipes)
    protocols = {norm: context.protocol(network=spec) for norm, spec in specs.items()}
    parts = {f"{method}-{norm}": protocol for norm, protocol in protocols.items() for method in context.methods}
    score_repeatedly(context, {name: (name, protocol) for name, protocol in parts.items()})
    records: dict[tuple[str, str], Record] = {}
    for norm, spec in specs.items():
        for method in context.methods:
            record = context.condense_and_score(f"{method}-{norm}", method, ipc, protocols[norm], network=spec)
            records[norm, method] = {**record, "norm": norm}
    rows = [(norm, *(format_accuracy(records[norm, method]) for method in context.methods)) for norm in specs]
    bars = {(method, f"{norm} norm"): record for (norm, method), record in records.items()}
    return ExperimentResult(
        records=list(records.values()),
        table=Table(("norm", *context.methods), rows),
        draw=lambda: draw_bars(bars),
        ipcs=(ipc,),
    )


def batchnorm_recipes(context: ExperimentContext) -> dict[str, Recipe]:
    """Return the recipes of Table 2, by label."""
    (ipc,) = context.ipcs
    return {
        f"{method}, {norm} norm, {ipc} per class": context.recipe(method, ipc, network=spec)
        for norm, spec in _specs_by_norm(context, ipc).items()
        for method in context.methods
    }


def batchnorm_protocols(context: ExperimentContext) -> dict[str, Protocol]:
    """Return how the sets of Table 2 are scored, by label."""
    specs = _specs_by_norm(context, *context.ipcs)
    return {f"scoring, {norm} norm": context.protocol(network=spec) for norm, spec in specs.items()}


def _specs_by_norm(context: ExperimentContext, ipc: int) -> dict[str, str]:
    """Return the spec of the network with instance norm and with batch norm."""
    methods = [name for name, fields in context.request.method_fields.items() if name != "dm" and "network" in fields]
    check(not methods, "all methods share one network in this experiment: use --set network=SPEC", methods)
    recipe = context.recipe("dm", ipc)
    spec = networks.canonical_spec(recipe.network, size=context.splits.train.size)  # type: ignore[attr-defined]
    check("norm='instance'" in spec, "the network must have instance norm, which batch norm replaces", spec)
    return {norm: spec.replace("norm='instance'", f"norm={norm!r}") for norm in ("instance", "batch")}


def run_architectures(context: ExperimentContext) -> ExperimentResult:
    """Condense on one architecture and test on others, all with batch norm (Table 3)."""
    (ipc,) = context.ipcs
    train_specs, test_specs = _specs_by_architecture(context)
    recipes = _recipes_by_source(context, ipc, train_specs)
    pairs = list(recipes)
    context.num_parts = len(pairs) * (1 + len(test_specs)) * context.num_sets
    protocols = {target: context.protocol(network=spec) for target, spec in test_specs.items()}
    sets = {f"{method}-{source}": recipe for (method, source), recipe in recipes.items()}
    context.condense_all(sets)
    score_repeatedly(context, {f"{name}-{target}": (name, protocols[target]) for name in sets for target in test_specs})

    def measure(method: str, source: str, target: str, suffix: str) -> Record:
        condensed = context.condense(f"{method}-{source}{suffix}", method, recipes[method, source])
        record = context.score(f"{method}-{source}-{target}{suffix}", condensed, protocols[target])
        return {**condense_cost(condensed.provenance), **record}

    records: list[Record] = []
    rows, bars = [], dict[tuple[str, str], Record]()
    for method, source in pairs:
        source_name = source if hasattr(recipes[method, source], "network") else None  # random images use no network
        series = f"{method}, {source_name}" if source_name else method
        cells = []
        for target in test_specs:
            record = context.repeat(functools.partial(measure, method, source, target))
            fields = {"method": method, "ipc": ipc, "condensed_on": source_name, "tested_on": target}
            records.append({**fields, **record})
            bars[target, series] = record
            cells.append(format_accuracy(record))
        rows.append((method, source_name or "-", *cells))
    table = Table(("method", "condensed on", *test_specs), rows)
    return ExperimentResult(records=records, table=table, draw=lambda: draw_bars(bars, xlabel="tested on"), ipcs=(ipc,))


def _recipes_by_source(context: ExperimentContext, ipc: int, specs: Mapping[str, str]) -> dict[tuple[str, str], Recipe]:
    """Return the recipes by method and architecture: dm learns a set on each architecture, other methods on one."""
    pairs = [(method, "ConvNet") for method in context.methods if method != "dm"]
    pairs += [("dm", name) for name in specs if "dm" in context.methods]
    return {(method, source): context.recipe(method, ipc, network=specs[source]) for method, source in pairs}


def architecture_recipes(context: ExperimentContext) -> dict[str, Recipe]:
    """Return the recipes of Table 3, by label."""
    (ipc,) = context.ipcs
    recipes = _recipes_by_source(context, ipc, _specs_by_architecture(context)[0])
    return {f"{method}, {source}, {ipc} per class": recipe for (method, source), recipe in recipes.items()}


def architecture_protocols(context: ExperimentContext) -> dict[str, Protocol]:
    """Return how the sets of Table 3 are scored, by label."""
    specs = _specs_by_architecture(context)[1]
    return {f"scoring, {target}": context.protocol(network=spec) for target, spec in specs.items()}


def _specs_by_architecture(context: ExperimentContext) -> tuple[dict[str, str], dict[str, str]]:
    """Return the specs of the networks that sets are learned with, and of those that they are tested on.

    Raises:
        UserError: The images are too small for an architecture.
    """
    if context.scale == "tiny":
        test_specs = {"ConvNet": "convnet(width=16, depth=2, norm='batch')", "MLP": "mlp(width=32)"}
        train_specs = test_specs
    else:
        names = {"ConvNet": "convnet", "AlexNet": "alexnet", "VGG": "vgg11", "ResNet": "resnet18"}
        test_specs = {title: f"{name}(norm='batch')" for title, name in names.items()}
        # The paper condenses with average pooling in place of strides.
        train_specs = {**test_specs, "ResNet": "resnet18_ap(norm='batch')"}
    data = context.splits.train
    with torch.device("meta"):  # only to check that they can be built
        for spec in (*train_specs.values(), *test_specs.values()):
            networks.build(spec, channels=data.channels, size=data.size, num_classes=data.num_classes)
    return {title: networks.canonical_spec(spec, size=data.size) for title, spec in train_specs.items()}, test_specs


def run_sizes(context: ExperimentContext) -> ExperimentResult:
    """Compare larger sets with random images. Accuracies are also given in % of that of the whole dataset (figure)."""
    ipcs = context.ipcs
    pairs = [(method, ipc) for ipc in ipcs for method in context.methods]
    records, whole = _score_pairs(context, pairs)
    for record in records.values():
        record["relative"] = record["accuracy_mean"] / whole["accuracy_mean"]
    rows = []
    for ipc in ipcs:
        cells = [records[method, ipc] for method in context.methods]
        rows.append((str(ipc), *map(format_accuracy, cells), *(f"{100 * cell['relative']:.1f}" for cell in cells)))
    columns = ("images per class", *context.methods, *(f"{method}, % of whole" for method in context.methods))
    return ExperimentResult(
        records=[*records.values(), whole],
        table=Table(columns, rows),
        draw=lambda: _draw_sizes(list(records.values()), whole),
        ipcs=ipcs,
    )


def _draw_sizes(records: Sequence[Record], whole: Record) -> Figure:
    """Draw the accuracies by images per class, with a second axis relative to the whole dataset."""
    figure, axes = new_chart()
    for method in dict.fromkeys(record["method"] for record in records):
        method_records = [record for record in records if record["method"] == method]
        draw_curve(axes, [record["ipc"] for record in method_records], method_records, method)
    bound = 100 * whole["accuracy_mean"]
    axes.axhline(bound, color="gray", linestyle="--", label="whole dataset")
    relative = axes.twinx()
    relative.set_ylim(*(100 * limit / bound for limit in axes.get_ylim()))
    relative.set_ylabel("% of the accuracy with the whole dataset")
    axes.set_xlabel("images per class")
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    return figure
