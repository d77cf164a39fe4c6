"""Sets drawn from generative models, compared with random images and with distribution matching (appendix)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from condenset.data.condensed_set import CondensedSet
from condenset.experiments.context import ExperimentContext
from condenset.experiments.sets import score_pairs
from condenset.experiments.types import ExperimentResult, Table
from condenset.report.charts import new_chart
from condenset.report.fonts import displayable_names
from condenset.report.grid import shorten_name
from condenset.runs.snapshots import hard_labels
from condenset.training.scores import format_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_CLASSES = 10
GAP_SHARE = 1 / 16  # of the image size, between two images


def run_generative(context: ExperimentContext) -> ExperimentResult:
    """Score the sets of all methods. The figure shows a row of images per method, one image per class."""
    ipcs = context.ipcs
    pairs = [(method, ipc) for ipc in ipcs for method in context.methods]
    context.num_parts = len(pairs) * context.num_sets
    records = score_pairs(context, pairs)
    rows = [(str(ipc), *(format_accuracy(records[method, ipc]) for method in context.methods)) for ipc in ipcs]
    sets = {
        method: context.condense(f"{method}-{ipcs[-1]}", method, context.recipe(method, ipcs[-1]))
        for method in context.methods
    }
    return ExperimentResult(
        records=list(records.values()),
        table=Table(("images per class", *context.methods), rows),
        draw=lambda: draw_rows(sets),
        ipcs=ipcs,
        figure_ipcs=ipcs[-1:],
    )


def draw_rows(sets: Mapping[str, CondensedSet]) -> Figure:
    """Draw a row of images per method: the first image of each of the first classes."""
    first = next(iter(sets.values()))
    num_classes, size = min(FIGURE_CLASSES, first.num_classes), first.images.shape[-1]
    stride = size + max(1, round(size * GAP_SHARE))
    figure, axes = new_chart()
    axes.imshow(_join_images([_select_images(condensed, num_classes) for condensed in sets.values()], stride))
    centers = [size / 2 + stride * number - 0.5 for number in range(max(num_classes, len(sets)))]
    names = displayable_names([shorten_name(name).replace("$", r"\$") for name in first.class_names[:num_classes]])
    axes.set_xticks(centers[:num_classes], names, rotation=45)
    axes.set_yticks(centers[: len(sets)], list(sets))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _select_images(condensed: CondensedSet, num_classes: int) -> NDArray[np.float32]:
    """Return (K, H, W, 3) pixels of the first image of each of the first classes; white if a class has none."""
    labels = hard_labels(condensed.labels)
    images = torch.ones(num_classes, *condensed.images.shape[1:])
    for label in labels[labels < num_classes].unique().tolist():
        images[label] = condensed.images[(labels == label).nonzero()[0, 0]].clamp(0, 1)
    pixels: NDArray[np.float32] = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    return pixels


def _join_images(rows: Sequence[NDArray[np.float32]], stride: int) -> NDArray[np.float32]:
    """Return one white canvas with rows of images, `stride` pixels apart."""
    num_images, size = rows[0].shape[:2]
    gap = stride - size
    canvas = np.ones((len(rows) * stride - gap, num_images * stride - gap, 3), dtype=np.float32)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            top, left = row * stride, column * stride
            canvas[top : top + size, left : left + size] = image
    return canvas
