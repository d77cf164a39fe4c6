"""Synthetic and real images in the feature space of a trained network (the figure of distributions).

Shapes: N real and M synthetic images, F features, 2 coordinates of the map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.experiments.context import ExperimentContext
from condenset.experiments.types import ExperimentResult, Table
from condenset.io.directories import wrap_os_errors
from condenset.io.files import read_tensors, write_tensors
from condenset.methods.coresets.coreset import NetworkCoresetRecipe
from condenset.methods.reference_network import get_reference_network
from condenset.pipeline.results import Record
from condenset.report.charts import new_panels, wrap_text
from condenset.report.fonts import displayable_names
from condenset.report.grid import shorten_name
from condenset.report.tsne import tsne
from condenset.runs.context import RunContext
from condenset.runs.snapshots import hard_labels
from condenset.training.dataset import DeviceDataset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_CLASSES = 3  # of the figure
NUM_NEIGHBOURS = 10  # real images that decide whether a synthetic image is among its class
COLUMNS = {
    "spread": "distance to class centre",
    "reach": "distance from real images",
    "agreement": "among their class, %",
}


def run_feature_map(context: ExperimentContext) -> ExperimentResult:
    """Map three classes with a network trained on the whole dataset: one map for all methods, a panel for each."""
    (ipc,) = context.ipcs
    context.num_parts = len(context.methods) + 1
    recipes = {method: context.recipe(method, ipc) for method in context.methods}
    context.condense_all({f"{method}-{ipc}": recipe for method, recipe in recipes.items()})
    sets = {method: context.condense(f"{method}-{ipc}", method, recipe) for method, recipe in recipes.items()}
    path = context.part_directory("map") / "coordinates.safetensors"
    summaries = context.cached(
        "map", lambda run: _make_map(context, sets, path, run), context.methods, methods=context.methods
    )
    records = [{"method": method, "ipc": ipc, **summaries[method]} for method in context.methods]
    rows: list[tuple[str, ...]] = []
    for record in records:
        spread, reach, agreement = (record[name] for name in COLUMNS)
        rows.append((str(record["method"]), f"{spread:.2f}", f"{reach:.2f}", f"{100 * agreement:.1f}"))
    class_names = context.splits.train.class_names[:NUM_CLASSES]
    return ExperimentResult(
        records=records,
        table=Table(("method", *COLUMNS.values()), rows),
        draw=lambda: _draw(read_tensors(path)[0], class_names, context.methods),
        ipcs=(ipc,),
    )


def _make_map(context: ExperimentContext, sets: Mapping[str, CondensedSet], path: Path, run: RunContext) -> Record:
    """Compute the map, write its coordinates to a file, and return a summary by method."""
    data, device = context.splits.train, run.compute.device
    recipe = context.recipe("herding", 1)
    assert isinstance(recipe, NetworkCoresetRecipe)
    network = get_reference_network(data, recipe.protocol, run)
    indices = sample_real_images(data, context.for_scale(tiny=30, small=500, paper=5000), run.seed)
    features = {"real": network.features(DeviceDataset.from_data(data, device), indices.to(device)).cpu()}
    labels = {"real": data.labels[indices]}
    for method, condensed in sets.items():
        set_labels = hard_labels(condensed.labels)
        indices = (set_labels < NUM_CLASSES).nonzero()[:, 0]
        features[method] = network.features(DeviceDataset.from_data(condensed, device), indices.to(device)).cpu()
        labels[method] = set_labels[indices]
    sizes = [len(part) for part in features.values()]
    # t-SNE reports no progress. It is short enough to repeat after a stop.
    run.progress.start(f"t-SNE of {sum(sizes):,} images", 1)
    try:
        coordinates = dict(zip(features, tsne(torch.cat(list(features.values())), run.seed).split(sizes), strict=True))
    finally:
        run.progress.stop()
    run.verify_identity()
    with wrap_os_errors(path):
        write_tensors(path, coordinates | {f"{name}.labels": part for name, part in labels.items()}, {})
    record: Record = {"real": sizes[0]}
    for method in sets:
        in_features, in_map = (
            compare_distributions(points["real"], labels["real"], points[method], labels[method])
            for points in (features, coordinates)
        )
        record[method] = in_features | {f"map_{name}": value for name, value in in_map.items()}
    return record


def sample_real_images(data: ImageData, per_class: int, seed: int) -> Tensor:
    """Return the indices of at most `per_class` random images of each of the first classes."""
    key, selected = rng.make_key(seed, "map"), []
    for label in range(min(NUM_CLASSES, data.num_classes)):
        indices = (data.labels == label).nonzero()[:, 0]
        selected.append(indices[rng.permutation(key, label, len(indices))[:per_class]])
    return torch.cat(selected)


def compare_distributions(
    real_NF: Tensor, real_labels_N: Tensor, synthetic_MF: Tensor, labels_M: Tensor
) -> dict[str, float]:
    """Compare synthetic images with the real images of their classes.

    Distances are relative to the mean distance of real images from the centre of their class.

    Returns:
        Means over the classes. spread: distance of synthetic images from the centre of the real images. reach: distance
        of real images from the nearest synthetic image. agreement: share of synthetic images whose nearest real images
        are mostly of the same class.
    """
    values: dict[str, list[Tensor]] = {"spread": [], "reach": [], "agreement": []}
    for label in labels_M.unique():
        real, synthetic = real_NF[real_labels_N == label], synthetic_MF[labels_M == label]
        centre = real.mean(0, keepdim=True)
        unit = torch.cdist(real, centre).mean().clamp(min=1e-12)
        values["spread"].append(torch.cdist(synthetic, centre).mean() / unit)
        values["reach"].append(torch.cdist(real, synthetic).min(1).values.mean() / unit)
        nearest = torch.cdist(synthetic, real_NF).topk(min(NUM_NEIGHBOURS, len(real_NF)), largest=False).indices
        values["agreement"].append(((real_labels_N[nearest] == label).float().mean(1) > 0.5).float().mean())
    return {name: float(torch.stack(per_class).mean()) for name, per_class in values.items()}


def _legend_label(class_name: str) -> str:
    """Return a class name for a legend, which reads text between dollars as mathematics and skips a leading _."""
    label = shorten_name(" ".join(class_name.split())).replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label


def _draw(tensors: Mapping[str, Tensor], class_names: Sequence[str], methods: Sequence[str]) -> Figure:
    """Draw real images as points and synthetic images as stars, with one colour per class."""
    figure, panels = new_panels(len(methods), columns=3, size=(4.5 if len(methods) > 1 else 6.5, 4.5))
    for axes, method in zip(panels, methods, strict=True):
        for number, class_name in enumerate(displayable_names(class_names)):
            real, synthetic = (tensors[name][tensors[f"{name}.labels"] == number].numpy() for name in ("real", method))
            color, label = f"C{number}", _legend_label(class_name)
            # Thousands of points as a bitmap keep the SVG small.
            axes.plot(*real.T, ".", markersize=3, alpha=0.3, color=color, label=label, rasterized=True)
            axes.plot(*synthetic.T, "*", markersize=9, color=color, markeredgecolor="black", markeredgewidth=0.5)
        axes.set_title(method)
        axes.set_xticks([])
        axes.set_yticks([])
    panels[0].plot([], [], "*", markersize=3, color="white", markeredgecolor="black", label="synthetic")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", markerscale=3)
    caption = "t-SNE of the embedding by a network trained on the whole dataset"
    figure.supxlabel(wrap_text(figure, caption), fontsize="medium")
    return figure
