"""The paper's tables of accuracies: methods, norms, architectures; and the figure of larger sets."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from condenset import networks
from condenset.errors import check
from condenset.estimates import Work
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome, Record, Table
from condenset.report.charts import COLOR_OF, draw_bars, new_chart
from condenset.types import percent
from condenset.workflow import cost_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPARED = ("random", "herding", "forgetting", "dd", "ld", "dc", "dsa", "dm")
WHOLE = "whole"


def sota(lab: Lab) -> Outcome:
    """Accuracy by method and images a class, with the whole dataset's as the bound (Table 1)."""
    ipcs = lab.ipcs(tiny=(1, 2), small=(1, 10), paper=(1, 10, 50))
    pairs = [(method, ipc) for ipc in ipcs for method in lab.methods if not (method == "dd" and ipc >= 50)]
    check(bool(pairs), "the table has dd for sets below 50 images a class, as the paper's has", ipcs)
    lab.expect_pairs(pairs)
    lab.make_sizes(pairs)
    found = {pair: lab.made_and_scored(f"{pair[0]}-{pair[1]}", *pair) for pair in pairs}
    whole = lab.made_and_scored(WHOLE, WHOLE, 0)
    rows = []
    for ipc in ipcs:
        row = [percent(found[method, ipc]) if (method, ipc) in found else "-" for method in lab.methods]
        rows.append((str(ipc), *row, percent(whole)))
    table = Table(("images a class", *lab.methods, "whole dataset"), rows)
    cells = {(f"{ipc} a class", method): record for (method, ipc), record in found.items()}
    return Outcome(records=[*found.values(), whole], table=table, draw=lambda: draw_bars(cells, bound=whole), ipcs=ipcs)


def batchnorm(lab: Lab) -> Outcome:
    """Instance against batch norm at 50 images a class (Table 2)."""
    (ipc,) = lab.ipcs(tiny=(2,), small=(50,), paper=(50,))
    methods = lab.methods
    own = [method for method, fields in lab.wishes.by_method.items() if method != "dm" and "network" in fields]
    check(not own, "all methods have one network here, which --set network gives; none is of a method alone", own)
    base = networks.canonical(lab.recipe("dm", ipc).network, size=lab.splits.train.size)  # type: ignore[attr-defined]
    check("norm='instance'" in base, "the network must have instance norm, in whose place batch norm is put", base)
    with_norm = {norm: base.replace("norm='instance'", f"norm={norm!r}") for norm in ("instance", "batch")}
    protocols = {norm: lab.protocol(network=network) for norm, network in with_norm.items()}
    recipes = {
        (method, norm): lab.recipe(method, ipc, network=network)
        for norm, network in with_norm.items()
        for method in methods
    }
    lab.expect_sets(
        lambda end: {f"{m}-{norm}{end}": lab.work(each, protocols[norm]) for (m, norm), each in recipes.items()}
    )
    records: list[Record] = []
    for method, norm in recipes:
        found = lab.made_and_scored(f"{method}-{norm}", method, ipc, protocols[norm], network=with_norm[norm])
        records.append({**found, "norm": norm})
    rows = [
        (norm, *(percent(next(r for r in records if (r["norm"], r["method"]) == (norm, m))) for m in methods))
        for norm in with_norm
    ]
    bars = {(record["method"], f"{record['norm']} norm"): record for record in records}
    return Outcome(records=records, table=Table(("norm", *methods), rows), draw=lambda: draw_bars(bars), ipcs=(ipc,))


def architectures(lab: Lab) -> Outcome:
    """Condensed on one architecture, tested on others, all with batch norm (Table 3)."""
    (ipc,) = lab.ipcs(tiny=(1,), small=(50,), paper=(50,))
    size = lab.splits.train.size
    tested = {"ConvNet": "convnet(norm='batch')", "AlexNet": "alexnet(norm='batch')"}
    if lab.scale == "tiny":
        tested = {"ConvNet": "convnet(width=16, depth=2, norm='batch')", "MLP": "mlp(width=32)"}
    else:
        tested |= {"VGG": "vgg11(norm='batch')", "ResNet": "resnet18(norm='batch')"}
    learned = dict(tested)
    if "ResNet" in learned:  # the paper learns with average pooling for strides
        learned["ResNet"] = "resnet18_ap(norm='batch')"
    shape = {"channels": lab.splits.train.channels, "size": size, "num_classes": lab.splits.train.num_classes}
    for spec in (*learned.values(), *tested.values()):
        with torch.device("meta"):
            networks.build(spec, **shape)  # images too small for one are told of before the first set is made
    pairs = [(method, "ConvNet") for method in lab.methods if method != "dm"]
    pairs += [("dm", name) for name in learned if "dm" in lab.methods]
    recipes = {
        (method, source): lab.recipe(method, ipc, network=networks.canonical(learned[source], size=size))
        for method, source in pairs
    }
    protocols = {target: lab.protocol(network=spec) for target, spec in tested.items()}

    def works(end: str) -> dict[str, Work]:
        made = {f"{method}-{source}{end}": lab.work(recipe) for (method, source), recipe in recipes.items()}
        return made | {
            f"{method}-{source}-{target}{end}": lab.scoring(recipe, protocol)
            for (method, source), recipe in recipes.items()
            for target, protocol in protocols.items()
        }

    lab.expect_sets(works)

    def score(method: str, source: str, target: str, end: str) -> Record:
        small = lab.condensed(f"{method}-{source}{end}", method, recipes[method, source])
        record = lab.scored(f"{method}-{source}-{target}{end}", small, protocols[target])
        return {**cost_of(small.provenance), **record}

    records: list[Record] = []
    rows, bars = [], dict[tuple[str, str], Record]()
    for method, source in pairs:
        origin = source if hasattr(lab.recipe(method, ipc), "network") else None  # random images are of no network
        about = {"method": method, "ipc": ipc, "condensed_on": origin}
        mine = [
            {**about, "tested_on": target, **lab.repeated(functools.partial(score, method, source, target))}
            for target in tested
        ]
        records += mine
        rows.append((method, origin or "-", *map(percent, mine)))
        bars |= {(r["tested_on"], f"{method}, {origin}" if origin else method): r for r in mine}
    table = Table(("method", "condensed on", *tested), rows)
    return Outcome(records=records, table=table, draw=lambda: draw_bars(bars, axis="tested on"), ipcs=(ipc,))


def sizes(lab: Lab) -> Outcome:
    """Larger sets against random images, absolute and relative to the whole dataset (figure)."""
    ipcs = lab.ipcs(tiny=(5, 10), small=(100, 200, 500), paper=(100, 200, 500, 1000, 1250))
    pairs = [(method, ipc) for ipc in ipcs for method in lab.methods]
    lab.expect_pairs(pairs)
    lab.make_sizes(pairs)
    records = [lab.made_and_scored(f"{method}-{ipc}", method, ipc) for method, ipc in pairs]
    whole = lab.made_and_scored(WHOLE, WHOLE, 0)
    for record in records:
        record["relative"] = record["accuracy_mean"] / whole["accuracy_mean"]
    by = {(record["method"], record["ipc"]): record for record in records}
    rows = []
    for ipc in ipcs:
        pair = [by[method, ipc] for method in lab.methods]
        rows.append((str(ipc), *map(percent, pair), *(f"{100 * record['relative']:.1f}" for record in pair)))
    columns = ("images a class", *lab.methods, *(f"{method}, % of whole" for method in lab.methods))
    return Outcome(
        records=[*records, whole],
        table=Table(columns, rows),
        draw=lambda: _draw_sizes(records, whole, ipcs),
        ipcs=ipcs,
    )


def _draw_sizes(records: Sequence[Record], whole: Record, ipcs: Sequence[int]) -> Figure:
    figure, axes = new_chart()
    for method in dict.fromkeys(record["method"] for record in records):
        mine = [record for record in records if record["method"] == method]
        means, spreads = ([100 * record[key] for record in mine] for key in ("accuracy_mean", "accuracy_std"))
        axes.errorbar(ipcs, means, yerr=spreads, fmt="o-", color=COLOR_OF[method], capsize=2, label=method)
    bound = 100 * whole["accuracy_mean"]
    axes.axhline(bound, color="gray", linestyle="--", label="whole dataset")
    relative = axes.twinx()
    relative.set_ylim(*(100 * limit / bound for limit in axes.get_ylim()))
    relative.set_ylabel("% of the whole dataset's")
    axes.set_xlabel("images a class")
    axes.set_ylabel("test accuracy, %")
    axes.legend()
    return figure
