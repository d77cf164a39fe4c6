"""Images per class (ipc) of a condensed set: one number for all classes, or one per class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from condenset.data.image_data import ImageData
from condenset.errors import UserError, check, check_int, format_names, is_int, is_number

Ipc = int | tuple[int, ...]

MAX_NAMES = 5  # of classes in an error message


def check_ipc(ipc: Any) -> Ipc:
    """Check that `ipc` is a number, or a list of numbers, of at least 1; return an int, or a tuple."""
    value = ipc.tolist() if hasattr(ipc, "tolist") else ipc  # NumPy and torch
    if not isinstance(value, list | tuple):
        return check_int("ipc (images per class)", value, 1)
    check(len(value) > 0, "ipc must have one number per class", value)
    return tuple(check_int("ipc (images per class)", number, 1) for number in value)


def check_ipc_share(share: Any) -> float:
    """Check that a share is above 0 and at most 1, and return it as a Python float."""
    check(is_number(share) and 0 < share <= 1, "ipc_share must be a number above 0, at most 1", share)
    return float(share)


def expand_ipc(ipc: Ipc, num_classes: int) -> list[int]:
    """Return one number per class."""
    if isinstance(ipc, int):
        return [ipc] * num_classes
    check(len(ipc) == num_classes, f"ipc must have one number for each of the {num_classes} classes", list(ipc))
    return list(ipc)


def resolve_ipc(data: ImageData, ipc: Any = None, share: float | None = None, *, allow_fewer: bool = False) -> Ipc:
    """Return the images per class as a recipe stores them: one number if it is the same for all classes.

    Args:
        data: The training images.
        ipc: A number, a list with one number per class, or numbers by class name.
        share: Share of the images of each class, at least one image. It replaces `ipc`.
        allow_fewer: Reduce the number of a class with fewer images to the images that it has.
    """
    if share is not None:
        ipc = [max(1, round(check_ipc_share(share) * count)) for count in data.class_counts]
    elif isinstance(ipc, Mapping):
        ipc = _order_by_class(data, ipc)
    numbers = expand_ipc(check_ipc(ipc), data.num_classes)
    if allow_fewer:  # an empty class keeps 1, which is an error later
        numbers = [min(number, max(count, 1)) for number, count in zip(numbers, data.class_counts, strict=True)]
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _order_by_class(data: ImageData, ipc: Mapping[Any, Any]) -> list[Any]:
    """Return the numbers by class name in the order of the classes."""
    numbers = {str(name): number for name, number in ipc.items()}
    missing = [name for name in data.class_names if name not in numbers]
    if missing:
        raise UserError(f"ipc must have a number for every class, but lacks {format_names(missing, MAX_NAMES)}")
    unknown = sorted(numbers.keys() - set(data.class_names))
    if unknown:
        names = format_names(data.class_names, MAX_NAMES)
        raise UserError(f"ipc must name classes of the data ({names}), but got {format_names(unknown, MAX_NAMES)}")
    return [numbers[name] for name in data.class_names]


def mean_ipc(ipc: Ipc) -> int:
    """Return the mean over the classes, rounded: presets depend on it."""
    return ipc if isinstance(ipc, int) else round(sum(ipc) / len(ipc))


def format_ipc(ipc: object, separator: str = "–") -> str:
    """Return the number, or the range of the numbers, such as "3–47". Other values from files are returned as text."""
    if not isinstance(ipc, list | tuple) or not ipc or not all(map(is_int, ipc)):
        return str(ipc)
    low, high = min(ipc), max(ipc)
    return str(low) if low == high else f"{low}{separator}{high}"


def name_set(method: str, ipc: object) -> str:
    """Return METHOD-IPC, such as `dm-10`, or `dm-3to47` if the numbers differ by class; without ipc, the method."""
    return method if ipc is None else f"{method}-{format_ipc(ipc, 'to')}"
