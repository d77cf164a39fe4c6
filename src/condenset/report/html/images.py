"""The section of the images: one row per class, with a slider through the iterations."""

from __future__ import annotations

from typing import Any

from condenset.report.html.answer import find_set
from condenset.report.html.content import ReportContent, Section, format_seconds
from condenset.report.html.gallery import Gallery, ShownSet


def build_images(content: ReportContent, gallery: Gallery) -> Section:
    """Return the section of the images."""
    section = Section(name="images", title="The images")
    chosen = find_set(content)
    if chosen is None:
        section.omitted = "there are no condensed sets."
        return section
    section.data = {"sets": [_describe(shown, number) for number, shown in enumerate(gallery.sets)]}
    first = gallery.sets[0].item.condensed
    section.values = {
        "labels": [shown.item.label for shown in gallery.sets],
        "chosen": [shown.item for shown in gallery.sets].index(chosen),
        "class_names": list(first.class_names),
        "has_snapshots": any(shown.snapshots for shown in gallery.sets),
        "has_neighbours": content.train is not None,
        "data_problem": content.data_problem,
    }
    return section


def _describe(shown: ShownSet, number: int) -> dict[str, Any]:
    """Return what the script needs to show a set."""
    condensed, labels = shown.item.condensed, shown.labels.tolist()
    tiles: dict[int, list[int]] = {}
    for tile, label in enumerate(labels):
        tiles.setdefault(label, []).append(tile)
    steps = [
        {"sprite": f"set{number}-{step}", "label": _name_step(step, seconds)} for step, seconds, _ in shown.snapshots
    ]
    steps.append({"sprite": f"set{number}", "label": "final"})
    return {
        "label": shown.item.label,
        "synthetic": shown.item.is_synthetic,
        "rows": [
            {"label": label, "name": condensed.class_names[label], "tiles": numbers}
            for label, numbers in sorted(tiles.items())
        ],
        "steps": steps,
        "neighbours": shown.neighbours,
        "note": _note(shown),
    }


def _name_step(step: int, seconds: float) -> str:
    return f"iteration {step:,} ({format_seconds(seconds)})" if step else "initial"


def _note(shown: ShownSet) -> str:
    """Return one line about images that are not shown, or about a set without snapshots."""
    condensed, notes = shown.item.condensed, []
    if len(shown.positions) < len(condensed):
        notes.append(f"{len(shown.positions):,} of {len(condensed):,} images are shown.")
    if condensed.compact is not None:
        notes.append(f"The {len(condensed.compact):,} stored images decode to these images.")
    if not shown.item.is_synthetic:
        notes.append("This method selects real images, so they do not change.")
    elif not shown.snapshots:
        notes.append("The run kept no snapshots of earlier iterations.")
    return " ".join(notes)
