"""Groups of networks by their validation accuracy, such as "60-70" percent."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from condenset.errors import check

EDGES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)  # validation accuracy in percent, between the paper's groups


def group_names(edges: Sequence[float]) -> list[str]:
    """Return the names of the groups between edges in percent, and of the last group: 10-20, …, 60-70, 70-100."""
    bounds = [*edges, 100.0]
    valid = len(bounds) > 1 and all(isinstance(edge, int | float) and 0 <= edge <= 100 for edge in bounds)
    increasing = valid and all(low < high for low, high in itertools.pairwise(bounds))
    check(increasing, "edges must be increasing accuracies in percent, from 0 to below 100", list(edges))
    return [f"{low:g}-{high:g}" for low, high in itertools.pairwise(bounds)]


def in_group(accuracy: float, group: str) -> bool:
    """Return whether an accuracy, a fraction, is in a group: "60-70" is from 60% to below 70%; 100% is in the last."""
    low, high = parse_accuracy_range(group)
    percent = round(100 * accuracy, 6)
    return low <= percent < high or percent == high == 100


def parse_accuracy_range(group: str) -> tuple[float, float]:
    """Return the bounds in percent of a group of networks such as "60-70"; "all" has the bounds 0 and 100."""
    if group == "all":
        return 0.0, 100.0
    try:
        low, high = map(float, group.split("-"))
    except (AttributeError, ValueError):
        low, high = 1.0, 0.0
    check(0 <= low < high <= 100, "group must be all, or accuracies in percent such as 60-70", group)
    return low, high
