"""The section of the feature map: t-SNE of real and synthetic images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.data.transform import normalize, to_unit_range
from condenset.report.html.answer import find_set
from condenset.report.html.content import FeatureNetwork, ReportContent, Section, Update
from condenset.report.html.gallery import Gallery, ShownSet
from condenset.report.html.neighbours import sample_evenly
from condenset.report.tsne import tsne

MAX_CLASSES = 10  # more colours look too similar
MAX_REAL = 300  # of all classes; t-SNE of more points takes seconds
MAX_SYNTHETIC = 300
MAX_LARGE = 150  # real, and synthetic, images of more than 64 pixels, which take long to embed
BATCH = 50  # images per pass; larger batches do not fit into the caches of a CPU
NUM_ITERATIONS = 500  # of t-SNE: enough for a picture
EMBEDDING_SHARE = 0.5  # of the time that the map takes


def build_feature_map(content: ReportContent, gallery: Gallery, update: Update) -> Section:
    """Return the section of the feature map, for the set that the answer is about."""
    section = Section(name="map", title="Map of the images")
    item, data, features = find_set(content), content.train, content.features
    if item is None or data is None or features is None:
        section.omitted = content.data_problem or "there are no condensed sets."
        return section
    number = [shown.item for shown in gallery.sets].index(item)
    shown = gallery.sets[number]
    points = _make_points(shown, number, data, features, gallery, update)
    if len(points) < 5:
        section.omitted = "there are too few images."
        return section
    section.charts = {"chart-map": _make_spec(points, data.class_names[:MAX_CLASSES], item.label)}
    section.values = {
        "label": item.label,
        "network": features.description,
        "num_real": sum(point["kind"] == "real" for point in points),
        "num_set": sum(point["kind"] != "real" for point in points),
        "kind": "synthetic" if item.is_synthetic else "selected",
        "num_classes": data.num_classes if data.num_classes > MAX_CLASSES else 0,
        "max_classes": MAX_CLASSES,
    }
    return section


def _make_points(
    shown: ShownSet, number: int, data: ImageData, features: FeatureNetwork, gallery: Gallery, update: Update
) -> list[dict[str, Any]]:
    """Return the points of the chart, each with the tile of its image."""
    num_classes, condensed = min(data.num_classes, MAX_CLASSES), shown.item.condensed
    is_large = data.size > 64
    per_class = (MAX_LARGE if is_large else MAX_REAL) // num_classes
    classes = [(data.labels == label).nonzero()[:, 0] for label in range(num_classes)]
    real = torch.cat([sample_evenly(indices, per_class) for indices in classes])
    tiles = (shown.labels < num_classes).nonzero()[:, 0]
    tiles = sample_evenly(tiles, MAX_LARGE if is_large else MAX_SYNTHETIC)
    images = [
        *normalize(to_unit_range(data.images[real]), data.mean, data.std).split(BATCH),
        *normalize(condensed.images[shown.positions[tiles]], data.mean, data.std).split(BATCH),
    ]
    values = _embed(images, features, lambda share: update(EMBEDDING_SHARE * share))
    if len(values) < 5:
        return []
    labels = torch.cat([data.labels[real], shown.labels[tiles]]).tolist()
    kinds = ["real"] * len(real) + ["synthetic" if shown.item.is_synthetic else "selected"] * len(tiles)
    sprites = [("real", tile) for tile in gallery.add_real(real.tolist())]
    sprites += [(f"set{number}", tile) for tile in tiles.tolist()]
    with threadpool_limits(1):  # threads slow down so few points, in particular on a busy machine
        points = tsne(values, seed=0, max_iter=NUM_ITERATIONS)
    update(1.0)
    return [
        {
            "x": round(x, 2),
            "y": round(y, 2),
            "class": data.class_names[label],
            "kind": kind,
            "sprite": sprite,
            "tile": tile,
        }
        for (x, y), label, kind, (sprite, tile) in zip(points.tolist(), labels, kinds, sprites, strict=True)
    ]


def _embed(batches: Sequence[Tensor], features: FeatureNetwork, update: Update) -> Tensor:
    """Return the (N, F) features of batches of normalised images."""
    parts = []
    with torch.no_grad():
        for number, batch in enumerate(batches, start=1):
            parts.append(features.embed(batch).float().flatten(1).cpu())
            update(number / len(batches))
    return torch.cat(parts)


def _make_spec(points: list[dict[str, Any]], class_names: tuple[str, ...], label: str) -> dict[str, Any]:
    """Return the chart: small discs for real images, larger diamonds with an outline for those of the set."""
    color = {
        "field": "class",
        "type": "nominal",
        "scale": {"domain": list(class_names)},
        "sort": None,
        "legend": {
            "title": "class",
            "orient": "bottom",
            "symbolStrokeWidth": 0,
            "columns": {"expr": "width < 500 ? 3 : 5"},
        },
    }
    axis = {"type": "quantitative", "axis": None, "scale": {"zero": False}}
    real = {"filter": {"field": "kind", "equal": "real"}}
    diamond = {"type": "point", "shape": "diamond", "filled": True, "size": 110, "strokeWidth": 1.2}
    other = {"filter": {"not": {"field": "kind", "equal": "real"}}}
    return {
        "description": f"Map of real images and the images of {label}: similar images are close to each other.",
        "data": {"values": points},
        "height": 460,
        "encoding": {"x": {"field": "x", **axis}, "y": {"field": "y", **axis}, "color": color},
        "params": [
            {"name": "chosen", "select": {"type": "point", "fields": ["class"]}, "bind": "legend", "views": ["real"]}
        ],
        "layer": [
            {
                "name": "real",
                "transform": [real],
                "mark": {"type": "circle", "size": 28, "aria": False, "tooltip": {"content": "data"}},
                "encoding": {"opacity": {"condition": {"param": "chosen", "value": 0.45}, "value": 0.04}},
            },
            {
                "transform": [other],
                "mark": {**diamond, "tooltip": {"content": "data"}},
                "encoding": {
                    "stroke": {"value": "var-ink"},
                    "opacity": {"condition": {"param": "chosen", "value": 1}, "value": 0.08},
                },
            },
        ],
    }
