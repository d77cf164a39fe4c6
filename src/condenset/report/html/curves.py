"""The section of the curves: loss and accuracy against iterations and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from condenset.report.html.content import Record, ReportContent, Section
from condenset.training.scores import name_accuracy

MAX_POINTS = 150  # of each curve
HEIGHT = 260


def build_curves(content: ReportContent) -> Section:
    """Return the section of the curves."""
    section = Section(name="curves", title="Learning the images")
    points = [point for label in _labels(content.steps) for point in _thin(content.steps, label)]
    if not points:
        section.omitted = "no method of this report learns in iterations."
        return section
    section.charts = {
        "chart-loss-steps": _make_loss_spec(points, "step", "iteration"),
        "chart-loss-seconds": _make_loss_spec(points, "seconds", "seconds"),
    }
    accuracies, name = content.snapshot_scores, name_accuracy(content.scored)
    if accuracies:
        section.charts["chart-accuracy-steps"] = _make_accuracy_spec(accuracies, "step", "iteration", name)
        section.charts["chart-accuracy-seconds"] = _make_accuracy_spec(accuracies, "seconds", "seconds", name)
    section.values = {"has_accuracies": bool(accuracies), "command": content.curve_command}
    return section


def _labels(points: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(point["label"] for point in points))


def _thin(points: Sequence[Record], label: str) -> list[Record]:
    """Return at most `MAX_POINTS` points of a curve, in order. A resumed run repeats steps: the last ones count."""
    by_step = {point["step"]: point for point in points if point["label"] == label}
    curve = _spread_seconds([by_step[step] for step in sorted(by_step)])
    stride = max(1, -(-len(curve) // MAX_POINTS))
    thinned = curve[::stride]
    return thinned if thinned[-1] is curve[-1] else [*thinned, curve[-1]]


def _spread_seconds(curve: Sequence[Record]) -> list[Record]:
    """Interpolate the seconds of points that were read at the same moment. The last one of them has that time."""
    known = {point["seconds"]: point["step"] for point in curve}
    seconds = np.interp([point["step"] for point in curve], [0, *known.values()], [0.0, *known])
    return [{**point, "seconds": round(float(time), 3)} for point, time in zip(curve, seconds, strict=True)]


def _make_loss_spec(points: Sequence[Record], x: str, title: str) -> dict[str, Any]:
    positive = all(point["loss"] > 0 for point in points)
    return {
        "description": f"Loss of each method against {title}. Lower is better.",
        "data": {"values": [{name: point[name] for name in ("label", x, "loss")} for point in points]},
        "height": HEIGHT,
        "mark": {"type": "line", "strokeWidth": 1.5, "clip": True},
        "encoding": {
            "x": {"field": x, "type": "quantitative", "title": title},
            "y": {
                "field": "loss",
                "type": "quantitative",
                "title": "loss",
                "scale": {"type": "log", "nice": False, "padding": 10} if positive else {"zero": False},
                "axis": {"tickCount": 5, "format": "~g"},
            },
            "color": _make_color(_labels(points)),
            "tooltip": [
                {"field": "label", "title": "set"},
                {"field": x, "title": title},
                {"field": "loss", "format": ".4g"},
            ],
        },
    }


def _make_accuracy_spec(points: Sequence[Record], x: str, title: str, name: str) -> dict[str, Any]:
    values = [{"label": point["label"], x: point[x], "accuracy": round(100 * point["accuracy"], 2)} for point in points]
    return {
        "description": f"{name.capitalize()} of networks trained on the images at each snapshot against {title}.",
        "data": {"values": values},
        "height": HEIGHT,
        "mark": {"type": "line", "point": True, "strokeWidth": 1.5},
        "encoding": {
            "x": {"field": x, "type": "quantitative", "title": title},
            "y": {"field": "accuracy", "type": "quantitative", "title": f"{name}, %", "scale": {"zero": False}},
            "color": _make_color(_labels(points)),
            "tooltip": [
                {"field": "label", "title": "set"},
                {"field": x, "title": title},
                {"field": "accuracy", "title": "accuracy, %", "format": ".1f"},
            ],
        },
    }


def _make_color(labels: list[str]) -> dict[str, Any]:
    legend = {"title": None, "orient": "bottom", "columns": 2, "labelLimit": 300} if len(labels) > 1 else None
    return {"field": "label", "type": "nominal", "scale": {"domain": labels}, "legend": legend}
