"""Distribution matching with trained networks, grouped by their accuracy (Table 4 and its figure)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.data.condensed_set import CondensedSet
from condenset.experiments.context import ExperimentContext
from condenset.experiments.sets import score_repeatedly
from condenset.experiments.types import ExperimentResult, Table
from condenset.methods import DMRecipe, Recipe
from condenset.methods.pools.accuracy_groups import EDGES
from condenset.methods.pools.pool import NetworkPool
from condenset.methods.pools.pool_training import fill_pool, pool_protocol
from condenset.pipeline.results import Record, condense_cost
from condenset.report.charts import new_panels, wrap_text
from condenset.report.grid import draw_grid
from condenset.runs.context import RunContext
from condenset.training.scores import format_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANDOM = "random"
FIGURE_IPC = 10  # the figure of the paper shows these sets


def run_network_groups(context: ExperimentContext) -> ExperimentResult:
    """Compare sets matched with random networks and with networks trained to some accuracy (Table 4)."""
    ipcs = context.ipcs
    recipe = context.recipe("dm", ipcs[0])
    assert isinstance(recipe, DMRecipe)
    pool = _load_or_train_pool(context, recipe)
    group_sizes: dict[str, int | None] = {RANDOM: None, **pool.group_sizes()}
    groups = [group for group, size in group_sizes.items() if size != 0]
    context.num_parts = len(groups) * len(ipcs) * context.num_sets + (0 if recipe.pool else 1)
    sets, scores = _score_groups(context, groups, ipcs, recipe.pool or str(_pool_directory(context)))
    fields = {"method": "dm", "pool": pool.fingerprint}
    records = [
        {**fields, "ipc": ipc, "group": group, "states": size, **scores.get((group, ipc), {})}
        for ipc in ipcs
        for group, size in group_sizes.items()
    ]
    rows = [
        (str(ipc), *(format_accuracy(scores[group, ipc]) if group in groups else "-" for group in group_sizes))
        for ipc in ipcs
    ]
    figure_ipc = FIGURE_IPC if FIGURE_IPC in ipcs else ipcs[-1]
    figure_sets = {_title(group): sets[group, figure_ipc] for group in groups}
    return ExperimentResult(
        records=records,
        table=Table(("images per class", *map(_title, group_sizes)), rows),
        draw=lambda: _draw(figure_sets),
        ipcs=ipcs,
        figure_ipcs=(figure_ipc,),
    )


def _score_groups(
    context: ExperimentContext, groups: list[str], ipcs: tuple[int, ...], pool: str
) -> tuple[dict[tuple[str, int], CondensedSet], dict[tuple[str, int], Record]]:
    """Condense and score with the networks of every group; return sets and records by (group, images per class)."""

    def make_recipe(group: str, ipc: int) -> Recipe:
        fields: dict[str, Any] = {"pool": "", "group": "all"} if group == RANDOM else {"pool": pool, "group": group}
        return context.recipe("dm", ipc, **fields)

    recipes = {f"dm-{ipc}-{group}": make_recipe(group, ipc) for group in groups for ipc in ipcs}

    @functools.cache  # loading a set compares its recipe with the pool, which can be large
    def condense(name: str, suffix: str) -> CondensedSet:
        return context.condense(name + suffix, "dm", recipes[name])

    def measure(name: str, suffix: str) -> Record:
        condensed = condense(name, suffix)
        return {**condense_cost(condensed.provenance), **context.score(name + suffix, condensed, context.protocol())}

    context.condense_all(recipes)
    score_repeatedly(context, {name: (name, context.protocol()) for name in recipes})
    sets: dict[tuple[str, int], CondensedSet] = {}
    records: dict[tuple[str, int], Record] = {}
    for group in groups:
        for ipc in ipcs:
            name = f"dm-{ipc}-{group}"
            records[group, ipc] = context.repeat(functools.partial(measure, name))
            sets[group, ipc] = condense(name, "")
    return sets, records


def _load_or_train_pool(context: ExperimentContext, recipe: DMRecipe) -> NetworkPool:
    """Return the requested pool, else one that a part of the experiment trains."""
    data = context.splits.train
    if recipe.pool:
        pool = NetworkPool.load(recipe.pool)
        pool.check_compatible(recipe.network, data)
        return pool
    num, epochs = context.for_scale(tiny=(2, 20), small=(20, 20), paper=(1000, 30))
    protocol, directory = pool_protocol(data, network=recipe.network, epochs=epochs), _pool_directory(context)

    def measure(run: RunContext) -> Record:
        pool = fill_pool(data, directory, num, protocol, run, edges=EDGES)
        seconds = round(sum(event["seconds"] for event in run.network_events()), 3)
        return {"networks": pool.num_networks, "states": pool.group_sizes(), "seconds": seconds}

    context.cached("pool", measure, num=num, protocol=dataclasses.asdict(protocol))
    return NetworkPool.load(directory)


def _pool_directory(context: ExperimentContext) -> Path:
    return context.part_directory("pool") / "networks"


def _title(group: str) -> str:
    """Return the name of a group as the paper spells it: the last one is ≥70."""
    low, _, high = group.partition("-")
    return f"≥{low}" if high == "100" else group


def _draw(sets: Mapping[str, CondensedSet]) -> Figure:
    """Draw the images of every group in a panel, which is as high as the number of classes needs."""
    images = {title: draw_grid([condensed], [""]) for title, condensed in sets.items()}
    width = 3.5
    height = width * max(image.height / image.width for image in images.values())
    figure, panels = new_panels(len(sets), columns=5, size=(width, min(max(width, height), 2 * width)))
    for axes, (title, image) in zip(panels, images.items(), strict=True):
        axes.imshow(image)
        axes.set_title(title)
        axes.set_axis_off()
    caption = "Matched networks by validation accuracy in %; random: new networks in every iteration"
    figure.supxlabel(wrap_text(figure, caption), fontsize="medium")
    return figure
