"""The section of the classes: accuracy per class and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from condenset.report.html.answer import choose_headline
from condenset.report.html.content import Record, ReportContent, Section
from condenset.training.scores import name_accuracy

MAX_CELLS = 40_000  # of all confusion matrices in the page
MAX_LEVEL_LETTERS = 30  # of all class names together; longer names are rotated on the horizontal axis


def build_classes(content: ReportContent) -> Section:
    """Return the section of the classes, with a choice of the set."""
    section = Section(name="classes", title="Class by class")
    records = [record for record in content.scored if record.get("per_class_accuracy")]
    if not records:
        section.omitted = "the accuracies of the classes are not known."
        return section
    headline = choose_headline(content)
    records.sort(key=lambda record: record is not headline)
    section.data = {"classes": _collect(records)}
    section.charts = {
        "chart-classes": _make_accuracy_spec(name_accuracy(records)),
        "chart-confusion": _make_confusion_spec(records[0]["class_names"]),
    }
    section.values = {"labels": [record["label"] for record in records]}
    return section


def _collect(records: list[Record]) -> list[dict[str, Any]]:
    """Return names, accuracies and confusion matrices. Matrices beyond `MAX_CELLS` are left out."""
    entries, num_cells = [], 0
    for record in records:
        names, matrix = record["class_names"], record.get("confusion")
        accuracies = record["per_class_accuracy"]
        num_cells += len(names) ** 2 if matrix else 0
        entries.append(
            {
                "label": record["label"],
                "names": names,
                "accuracies": [None if value is None else round(100 * value, 1) for value in accuracies],
                "test_images": record["test_images"],
                "confusion": matrix if _is_matrix(matrix, len(names)) and num_cells <= MAX_CELLS else None,
            }
        )
    return entries


def _is_matrix(matrix: object, size: int) -> bool:
    """Return whether a value from a file is a square matrix of counts."""
    rows = matrix if isinstance(matrix, list) else []
    return len(rows) == size and all(
        isinstance(row, list) and len(row) == size and all(type(value) is int and value >= 0 for value in row)
        for row in rows
    )


def _make_accuracy_spec(name: str) -> dict[str, Any]:
    """Return the bars of the accuracies, which have this name. The script of the page fills the data set `chosen`."""
    y = {"field": "class", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 140}}
    x = {"field": "accuracy", "type": "quantitative", "title": f"{name}, %", "scale": {"domain": [0, 100]}}
    return {
        "description": f"{name.capitalize()} of each class.",
        "data": {"name": "chosen"},
        "encoding": {"y": y},
        "layer": [
            {
                "mark": {"type": "bar", "cornerRadiusEnd": 3, "color": "var-accent"},
                "encoding": {
                    "x": x,
                    "tooltip": [
                        {"field": "class"},
                        {"field": "accuracy", "title": "accuracy, %"},
                        {"field": "test_images", "title": f"{name.removesuffix('accuracy')}images"},
                    ],
                },
            }
        ],
    }


def _make_confusion_spec(names: Sequence[str]) -> dict[str, Any]:
    """Return the confusion matrix as a heat map. The script of the page fills the data set `chosen`."""
    axis = {"labelLimit": 110, "labelOverlap": False, "domain": False, "ticks": False}
    return {
        "description": "Share of the tested images of each class (rows) that networks assign to each class (columns).",
        "data": {"name": "chosen"},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {
                "field": "predicted",
                "type": "nominal",
                "sort": None,
                "title": "predicted class",
                "axis": {**axis, "labelAngle": 0 if sum(map(len, names)) <= MAX_LEVEL_LETTERS else -60},
            },
            "y": {"field": "class", "type": "nominal", "sort": None, "title": "true class", "axis": axis},
            "color": {
                "field": "share",
                "type": "quantitative",
                "scale": {"domain": [0, 100], "range": ["var-heat0", "var-heat1"]},
                "legend": {"title": "% of the class", "orient": "bottom", "gradientLength": 160},
            },
            "tooltip": [
                {"field": "class", "title": "true class"},
                {"field": "predicted", "title": "predicted class"},
                {"field": "share", "title": "% of the class", "format": ".1f"},
            ],
        },
    }
