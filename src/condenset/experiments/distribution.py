"""Where synthetic images lie among the real ones, as a trained network sees them (the figure of distributions).

Shapes: N real and M synthetic images, F features, 2 coordinates of the map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from condenset import draws
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome, Record, Table
from condenset.files import read_tensors, write_tensors
from condenset.folders import writable
from condenset.methods.trained import trained
from condenset.recipes import TrainedRecipe
from condenset.report.charts import new_panels, wrapped
from condenset.report.grid import short
from condenset.runs import Run
from condenset.train import TrainingSet
from condenset.types import CondensedSet, ImageData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_CLASSES = 3
NEIGHBOURS = 10  # real images that say which class a synthetic one is among
COLUMNS = {
    "spread": "to the class centre",
    "reach": "real to the nearest",
    "agreement": "among its class, %",
}


def distribution(lab: Lab) -> Outcome:
    """Three classes under a network trained on the whole set: one map for all methods, a panel each."""
    (ipc,) = lab.ipcs(tiny=(2,), small=(50,), paper=(50,))
    recipes = {method: lab.recipe(method, ipc) for method in lab.methods}
    works = {f"{method}-{ipc}": lab.work(recipe) for method, recipe in recipes.items()}
    lab.expect(works | {"map": lab.work(lab.recipe("herding", 1))})  # whose network it asks
    sets = {method: lab.condensed(f"{method}-{ipc}", method, recipe) for method, recipe in recipes.items()}
    path = lab.folder / "parts" / "map" / "coordinates.safetensors"
    found = lab.remembered("map", lambda run: _map(lab, sets, path, run), lab.methods, methods=lab.methods)
    records = [{"method": method, "ipc": ipc, **found[method]} for method in lab.methods]
    rows: list[tuple[str, ...]] = []
    for record in records:
        spread, reach, agreement = (record[key] for key in COLUMNS)
        rows.append((str(record["method"]), f"{spread:.2f}", f"{reach:.2f}", f"{100 * agreement:.1f}"))
    names = lab.splits.train.class_names[:NUM_CLASSES]
    return Outcome(
        records=records,
        table=Table(("method", *COLUMNS.values()), rows),
        draw=lambda: _draw(read_tensors(path)[0], names, lab.methods),
        ipcs=(ipc,),
    )


def _map(lab: Lab, sets: Mapping[str, CondensedSet], path: Path, run: Run) -> Record:
    """Features and their map; coordinates go to a file, their summary by method is the record."""
    data, device = lab.splits.train, run.place.device
    recipe = lab.recipe("herding", 1)
    assert isinstance(recipe, TrainedRecipe)
    network = trained(data, recipe.protocol, run)
    places, labels = _some(data, lab.at(tiny=30, small=500, paper=5000), run.seed)
    parts = [network.features(TrainingSet.of(data, device), places.to(device)).cpu()]
    all_labels = [labels]
    for small in sets.values():
        mine = (small.labels < NUM_CLASSES).nonzero()[:, 0]
        parts.append(network.features(TrainingSet.of(small, device), mine.to(device)).cpu())
        all_labels.append(small.labels[mine])
    sizes = [len(part) for part in parts]
    # It tells nothing on its way, and may be stopped at once.
    run.progress.start(f"t-SNE of {sum(sizes):,} images", 1)
    try:
        maps = tsne(torch.cat(parts), run.seed).split(sizes)
    finally:
        run.progress.stop()
    record: Record = {"real": sizes[0]}
    for number, method in enumerate(sets, start=1):
        mine, theirs = all_labels[number], all_labels[0]
        in_map = summary(maps[0], theirs, maps[number], mine)
        record[method] = summary(parts[0], theirs, parts[number], mine) | {f"map_{k}": v for k, v in in_map.items()}
    names = ("real", *sets)
    tensors = {name: each for name, each in zip(names, maps, strict=True)}
    tensors |= {f"{name}.labels": each for name, each in zip(names, all_labels, strict=True)}
    with writable(path):
        write_tensors(path, tensors, {})
    return record


def _some(data: ImageData, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Places and labels of at most so many real images of each of the first classes."""
    key, chosen = draws.make_key(seed, "map"), []
    for number in range(min(NUM_CLASSES, data.num_classes)):
        mine = (data.labels == number).nonzero()[:, 0]
        chosen.append(mine[draws.permutation(key, number, len(mine))[:most]])
    places = torch.cat(chosen)
    return places, data.labels[places]


def tsne(features_NF: Tensor, seed: int) -> Tensor:
    """(N, 2) a map in which near features lie near each other (van der Maaten and Hinton, 2008)."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    values = features_NF.double().numpy()
    if min(values.shape) > 50:  # the usual first step: distances stay nearly the same, at a fraction of the cost
        values = PCA(50, random_state=seed % 2**32).fit_transform(values)
    perplexity = min(30.0, (len(values) - 1) / 3)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=seed % 2**32).fit_transform(values)
    return torch.from_numpy(placed).float()


def summary(real_NF: Tensor, real_labels_N: Tensor, synthetic_MF: Tensor, labels_M: Tensor) -> dict[str, float]:
    """How synthetic images lie among real ones of their classes, as means over the classes.

    spread: their distance to the real images' centre beside the real images' own; reach: how far real images are from
    the nearest of them, beside the same; agreement: share of them whose nearest real images are mostly of their class.
    """
    spread, reach, agreement = [], [], []
    for label in labels_M.unique():
        real, mine = real_NF[real_labels_N == label], synthetic_MF[labels_M == label]
        centre = real.mean(0, keepdim=True)
        usual = torch.cdist(real, centre).mean().clamp(min=1e-12)
        spread.append(torch.cdist(mine, centre).mean() / usual)
        reach.append(torch.cdist(real, mine).min(1).values.mean() / usual)
        near = torch.cdist(mine, real_NF).topk(min(NEIGHBOURS, len(real_NF)), largest=False).indices
        agreement.append(((real_labels_N[near] == label).float().mean(1) > 0.5).float().mean())
    found = {"spread": spread, "reach": reach, "agreement": agreement}
    return {name: float(torch.stack(values).mean()) for name, values in found.items()}


def _label(name: str) -> str:
    """A class's name in a legend, which takes dollars for mathematics and leaves out what begins with _."""
    text = short(" ".join(name.split())).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _draw(tensors: Mapping[str, Tensor], names: Sequence[str], methods: Sequence[str]) -> Figure:
    """Real images as points, synthetic ones as stars, a colour a class."""
    figure, panels = new_panels(len(methods), columns=3, size=(4.5 if len(methods) > 1 else 6.5, 4.5))
    for axes, method in zip(panels, methods, strict=True):
        for number, name in enumerate(names):
            real, mine = (tensors[k][tensors[f"{k}.labels"] == number].numpy() for k in ("real", method))
            color = f"C{number}"
            label = _label(name)
            axes.plot(*real.T, ".", markersize=3, alpha=0.3, color=color, label=label, rasterized=True)  # a small SVG
            axes.plot(*mine.T, "*", markersize=9, color=color, markeredgecolor="black", markeredgewidth=0.5)
        axes.set_title(method)
        axes.set_xticks([])
        axes.set_yticks([])
    panels[0].plot([], [], "*", markersize=3, color="white", markeredgecolor="black", label="of the set")
    marks, texts = panels[0].get_legend_handles_labels()
    figure.legend(marks, texts, loc="outside right center", markerscale=3)
    caption = "t-SNE of the embedding by a network trained on the whole dataset"
    figure.supxlabel(wrapped(figure, caption), fontsize="medium")
    return figure
