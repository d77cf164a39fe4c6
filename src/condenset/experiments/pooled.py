"""Distribution matching with trained networks: does it matter how good they are? (Table 4 and its figure)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.estimates import Work
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome, Record, Table
from condenset.methods.pool_training import fill_pool, pool_protocol
from condenset.methods.pools import EDGES, Pool, group_names
from condenset.recipes import DistributionRecipe, Protocol, Recipe
from condenset.report.charts import new_panels, wrapped
from condenset.report.grid import draw_grid
from condenset.runs import Run
from condenset.types import CondensedSet, percent
from condenset.workflow import cost_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANDOM = "random"
SHOWN_IPC = 10  # that the appendix shows images of, if it is made


def networks(lab: Lab) -> Outcome:
    """Accuracy by the networks whose embeddings were matched: random ones, or trained to some accuracy (Table 4)."""
    ipcs = lab.ipcs(tiny=(1,), small=(10,), paper=(1, 10, 50))
    recipe = lab.recipe("dm", ipcs[0])
    assert isinstance(recipe, DistributionRecipe)
    folder = recipe.pool or str(_pool_folder(lab))

    def recipes(group: str, end: str) -> dict[str, Recipe]:
        fields: dict[str, Any] = {"pool": "", "group": "all"} if group == RANDOM else {"pool": folder, "group": group}
        return {f"dm-{ipc}-{group}{end}": lab.recipe("dm", ipc, **fields) for ipc in ipcs}

    def expect(groups: Iterable[str], **beside: Work) -> None:
        def works(end: str) -> dict[str, Work]:
            found = [(name, recipe) for group in groups for name, recipe in recipes(group, end).items()]
            return {name: lab.work(recipe, lab.protocol()) for name, recipe in found}

        lab.expect_sets(works, **beside)

    training = {} if recipe.pool else {"pool": _training(lab, recipe)}
    if training and not lab.is_done("pool"):
        expect([RANDOM, *group_names(EDGES), "all"], **training)
        lab.num_parts = 0  # groups may be empty
    pool = _pool(lab, recipe)
    sizes: dict[str, int | None] = {RANDOM: None, **pool.group_sizes()}
    groups = [name for name, size in sizes.items() if size != 0]
    expect(groups, **training)

    @functools.cache  # each asks a pool, as large as it may be, whether it is the one that it was made by
    def made(group: str, end: str) -> list[CondensedSet]:
        return list(lab.condensed_sizes("dm", recipes(group, end)).values())

    def score(group: str, place: int, end: str) -> Record:
        small = made(group, end)[place]
        record = lab.scored(f"dm-{ipcs[place]}-{group}{end}", small, lab.protocol())
        return {**cost_of(small.provenance), **record}

    sets: dict[tuple[str, int], CondensedSet] = {}
    by: dict[tuple[str, int], Record] = {}
    for group, (place, ipc) in itertools.product(groups, enumerate(ipcs)):
        by[group, ipc] = lab.repeated(functools.partial(score, group, place))
        sets[group, ipc] = made(group, "")[place]
    rows = [(str(ipc), *(percent(by[name, ipc]) if name in groups else "-" for name in sizes)) for ipc in ipcs]
    about = {"method": "dm", "pool": pool.fingerprint}
    records = [
        {**about, "ipc": ipc, "group": name, "states": size, **by.get((name, ipc), {})}
        for ipc, (name, size) in itertools.product(ipcs, sizes.items())
    ]
    shown = SHOWN_IPC if SHOWN_IPC in ipcs else ipcs[-1]
    pictured = {_title(group): sets[group, shown] for group in groups}
    return Outcome(
        records=records,
        table=Table(("images a class", *map(_title, sizes)), rows),
        draw=lambda: _draw(pictured),
        ipcs=ipcs,
        shown=(shown,),
    )


def _training(lab: Lab, recipe: DistributionRecipe) -> Work:
    """Of the networks that the pool still lacks."""
    num, protocol = _wanted(lab, recipe)
    known = len(list(_pool_folder(lab).glob("*.safetensors")))
    return Work(None, dataclasses.replace(protocol, nets=num), len(lab.splits.train), left=max(0, 1 - known / num))


def _wanted(lab: Lab, recipe: DistributionRecipe) -> tuple[int, Protocol]:
    """How many networks a pool has, and how they are trained, if none was wished for."""
    num, epochs = lab.at(tiny=(2, 20), small=(20, 20), paper=(1000, 30))
    return num, pool_protocol(lab.splits.train, network=recipe.network, epochs=epochs)


def _pool(lab: Lab, recipe: DistributionRecipe) -> Pool:
    """The trained networks: those that were wished for, or else trained in the folder of a part."""
    data = lab.splits.train
    if recipe.pool:
        given = Pool.load(recipe.pool)
        given.check_fits(recipe.network, data)
        return given
    (num, protocol), folder = _wanted(lab, recipe), _pool_folder(lab)

    def compute(run: Run) -> Record:
        pool = fill_pool(data, folder, num, protocol, EDGES, run)
        seconds = round(sum(event["seconds"] for event in run.networks()), 3)
        return {"networks": pool.num_networks, "states": pool.group_sizes(), "seconds": seconds}

    lab.remembered("pool", compute, num=num, protocol=dataclasses.asdict(protocol))
    return Pool.load(folder)


def _pool_folder(lab: Lab) -> Path:
    return lab.folder / "parts" / "pool" / "networks"


def _title(group: str) -> str:
    """As the paper writes it: the last group is ≥70."""
    low, _, high = group.partition("-")
    return f"≥{low}" if high == "100" else group


def _draw(sets: dict[str, CondensedSet]) -> Figure:
    """The images by group, a panel each, as high as a picture of so many classes needs."""
    pictures = {title: draw_grid([small], [""]) for title, small in sets.items()}
    width = 3.5
    height = width * max(picture.height / picture.width for picture in pictures.values())
    figure, panels = new_panels(len(sets), columns=5, size=(width, min(max(width, height), 2 * width)))
    for axes, (title, picture) in zip(panels, pictures.items(), strict=True):
        axes.imshow(picture)
        axes.set_title(title)
        axes.set_axis_off()
    caption = "networks that were matched, by their validation accuracy in %; random: fresh ones in every iteration"
    figure.supxlabel(wrapped(figure, caption), fontsize="medium")
    return figure
