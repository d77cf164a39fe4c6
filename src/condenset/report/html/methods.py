"""The section that compares methods: a sortable table, and accuracy against time."""

from __future__ import annotations

from typing import Any, NamedTuple

from condenset.data.ipc import format_ipc, mean_ipc
from condenset.io.bytesize import format_bytes
from condenset.report.charts import total_seconds
from condenset.report.html.content import Record, ReportContent, Section, format_percent, format_seconds
from condenset.training.scores import format_accuracy, is_unbalanced, name_accuracy, name_protocol

MIN_SECONDS = 0.1  # of the axis, which is logarithmic
COLUMNS = (
    "method",
    "images per class",
    "accuracy, %",  # on a phone, the first columns are visible without scrolling
    "balanced, %",
    "images",
    "networks",
    "condensing",
    "scoring",
    "storage",
)


class Cell(NamedTuple):
    """A cell of the table: its text, and the value that it is sorted by."""

    text: str
    value: float | str


def build_methods(content: ReportContent) -> Section:
    """Return the section that compares methods; the table of an experiment replaces that of a run."""
    section = Section(name="methods", title="Methods compared")
    if content.table:
        columns, *rows = content.table
        section.title = "The table"
        section.values = {"columns": columns, "rows": [[Cell(text, _sort_value(text)) for text in row] for row in rows]}
        return section
    if not content.records:
        section.omitted = "no set has been scored yet."
        return section
    rows_by_column = [_make_row(record) for record in content.records]
    columns = [name for name in COLUMNS if any(row[name].text != "–" for row in rows_by_column)]
    if not any(map(is_unbalanced, content.records)):
        columns = [name for name in columns if name != "balanced, %"]
    section.values = {"columns": columns, "rows": [[row[name] for name in columns] for row in rows_by_column]}
    points = [record for record in content.scored if record.get("ipc") is not None]
    if len(points) > 1:
        section.charts = {"chart-methods": _make_spec(points, content)}
    return section


def _make_row(record: Record) -> dict[str, Cell]:
    """Return the cells of a record by column."""
    ipc, is_scored = record.get("ipc"), "accuracy_mean" in record
    size = mean_ipc(tuple(ipc) if isinstance(ipc, list) else ipc) if ipc else float(record.get("images") or 0)
    network = name_protocol(str(record.get("network") or "–"), record.get("protocol"), record.get("learned_steps"))
    networks = f"{len(record['accuracies'])} × {network}" if is_scored else network
    balanced, storage = record.get("balanced_accuracy"), record.get("storage_bytes") or 0
    seconds = total_seconds(record) if record.get("condense_seconds") is not None else 0.0
    run = f" ({record['run']})" if record.get("run") else ""
    name = record["label"].removesuffix(run).removesuffix(f", {format_ipc(ipc)} per class")
    return {
        "method": Cell(name + run, name),
        "images per class": Cell(format_ipc(ipc) if ipc else "all", size),
        "images": Cell(f"{record.get('images') or 0:,}", record.get("images") or 0),
        "accuracy, %": Cell(format_accuracy(record), record["accuracy_mean"]) if is_scored else Cell("–", -1.0),
        "balanced, %": Cell(format_percent(balanced), -1.0 if balanced is None else balanced),
        "networks": Cell(networks, networks),
        "condensing": Cell(format_seconds(seconds) if seconds else "–", seconds),
        "scoring": Cell(format_seconds(record.get("evaluate_seconds")), record.get("evaluate_seconds") or 0.0),
        "storage": Cell(format_bytes(storage) if storage else "–", storage),
    }


def _sort_value(text: str) -> float | str:
    """Return the number at the beginning of a text such as `63.0 ± 0.4`, else the text."""
    try:
        return float(text.replace(",", "").split("±")[0].strip().rstrip("%"))
    except ValueError:
        return text


def _make_spec(points: list[Record], content: ReportContent) -> dict[str, Any]:
    """Return the chart of accuracy against the seconds of condensing, with the whole dataset as a line."""
    values = [
        {
            "method": str(record["method"]),
            "ipc": format_ipc(record["ipc"]),
            "label": record["label"],
            "seconds": max(total_seconds(record), MIN_SECONDS),
            "time": format_seconds(total_seconds(record)),
            "accuracy": round(100 * record["accuracy_mean"], 2),
            "text": f"{format_accuracy(record)}%",
        }
        for record in points
    ]
    legend = {"orient": "bottom", "columns": 4}
    is_moved = any(total_seconds(record) < MIN_SECONDS for record in points)
    note = [f"(less than {MIN_SECONDS:g} drawn at {MIN_SECONDS:g})"] if is_moved else []
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "point", "filled": True, "size": 120, "opacity": 0.9},
            "encoding": {
                "x": {
                    "field": "seconds",
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False, "padding": 20},
                    "title": ["seconds of condensing", *note],
                    "axis": {"format": "~g", "tickCount": 5, "labelOverlap": True, "labelBound": True},
                },
                "color": {"field": "method", "type": "nominal", "sort": None, "legend": legend},
                "shape": {
                    "field": "ipc",
                    "type": "nominal",
                    "sort": None,
                    "legend": {**legend, "title": "images per class"},
                },
                "tooltip": [
                    {"field": "label", "title": "set"},
                    {"field": "text", "title": "accuracy"},
                    {"field": "time", "title": "condensing"},
                ],
            },
        }
    ]
    layers += _make_whole_layers(content)
    name = name_accuracy(content.scored)
    return {
        "description": f"{name.capitalize()} of each set against the seconds of condensing.",
        "data": {"values": values},
        "height": 320,
        "encoding": {
            "y": {"field": "accuracy", "type": "quantitative", "title": f"{name}, %", "scale": {"zero": False}}
        },
        "layer": layers,
    }


def _make_whole_layers(content: ReportContent) -> list[dict[str, Any]]:
    """Return a dashed line at each accuracy of the whole dataset, with a label."""
    wholes = [record for record in content.scored if record.get("method") == "whole"]
    if not wholes:
        return []
    data = {"values": [{"accuracy": round(100 * item["accuracy_mean"], 2), "label": item["label"]} for item in wholes]}
    text = {"type": "text", "align": "center", "x": {"expr": "width / 2"}, "dy": -7}
    style = {"color": "var-quiet", "tooltip": None}
    return [
        {"data": data, "mark": {"type": "rule", "strokeDash": [5, 4], **style}},
        {"data": data, "mark": {**text, **style}, "encoding": {"text": {"field": "label"}}},
    ]
