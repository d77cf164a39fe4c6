"""Snapshots of the images while they are learned: small 8-bit copies that the report of a run shows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from condenset.data.ipc import name_set
from condenset.errors import UserError, is_number
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_tensors
from condenset.io.metadata import read_tensor_file

if TYPE_CHECKING:
    from condenset.data.condensed_set import CondensedSet

SNAPSHOTS = "snapshots"
MAX_SNAPSHOTS = 100
MAX_SIDE = 64  # pixels; larger images are reduced
MAX_BYTES = 2 << 20  # pixels of a set in a report, which shows the first images of every class of larger sets
MAX_WHOLE_BYTES = 8 << 20  # snapshots keep all images of sets up to this size, so that networks can train on them


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The images of a set after some iterations.

    Attributes:
        step: The number of iterations.
        seconds: The time spent on them.
        images: (N, C, H, W) uint8.
        indices: (N,) positions of the images in the set.
    """

    step: int
    seconds: float
    images: Tensor
    indices: Tensor

    def find_problem(self, condensed: CondensedSet) -> str:
        """Return why networks cannot train on it as they train on its set. Empty: they can."""
        if condensed.whitening is not None:
            return "they have pixels from 0 to 1, and the images of a set with ZCA whitening exceed this range"
        is_complete = self.images.shape == condensed.images.shape
        return "" if is_complete else "they have only some images of their set, or in a smaller size"


def spaced_steps(num: int, iterations: int) -> frozenset[int]:
    """Return `num` evenly spaced iterations. The first is 0; the last iterate is the set itself."""
    return frozenset(number * iterations // num for number in range(num))


def choose_images(condensed: CondensedSet) -> Tensor:
    """Return the positions of the images that a report shows, in class order: the first ones of every class."""
    channels, size = condensed.images.shape[1:3]
    max_images = max(1, MAX_BYTES // (channels * min(size, MAX_SIDE) ** 2))
    labels = hard_labels(condensed.labels)
    per_class = max(1, max_images // condensed.num_classes)
    parts = [(labels == label).nonzero()[:per_class, 0] for label in range(min(condensed.num_classes, max_images))]
    return torch.cat(parts)


def _choose_stored(condensed: CondensedSet) -> Tensor:
    """Return the positions of the images that a snapshot contains."""
    (channels, size), num = condensed.images.shape[1:3], len(condensed)
    if size <= MAX_SIDE and num * channels * size**2 <= MAX_WHOLE_BYTES:
        return class_order(condensed)
    return choose_images(condensed)


def class_order(condensed: CondensedSet) -> Tensor:
    """Return the positions of all images in class order."""
    return hard_labels(condensed.labels).argsort(stable=True)


def hard_labels(labels: Tensor) -> Tensor:
    """Return one class per image; for soft labels, the most likely one."""
    return labels if labels.ndim == 1 else labels.argmax(1)


def to_pixels(images: Tensor) -> Tensor:
    """Return (N, C, H, W) images in pixel space as uint8, reduced to at most 64 pixels per side."""
    if images.shape[-1] > MAX_SIDE:
        images = F.interpolate(images.float(), (MAX_SIDE, MAX_SIDE), mode="area")
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def set_name(condensed: CondensedSet) -> str:
    """Return the name of a set in a run, such as `dm-10`."""
    recipe = condensed.provenance.get("recipe", {})
    return name_set(str(condensed.provenance.get("method")), recipe.get("ipc"))


def write_snapshot(directory: Path, step: int, condensed: CondensedSet) -> None:
    """Write the images of a set after `step` iterations to the directory of a run."""
    indices, seconds = _choose_stored(condensed), condensed.provenance.get("seconds", 0.0)
    snapshot = Snapshot(step, seconds, to_pixels(condensed.images[indices]), indices)
    _write(directory / SNAPSHOTS / set_name(condensed), snapshot)


def join_snapshots(directory: Path, condensed: CondensedSet, shards: Sequence[tuple[Path, CondensedSet]]) -> None:
    """Write the snapshots of a set whose classes were condensed in shards, at the iterations that all shards saved.

    Args:
        directory: The directory of the run.
        condensed: The set.
        shards: Directory and set of each shard, in the order of the classes.
    """
    saved = [{snapshot.step: snapshot for snapshot in read_snapshots(path, part)} for path, part in shards]
    offsets = itertools.accumulate((len(part) for _, part in shards[:-1]), initial=0)
    starts, selected = list(offsets), _choose_stored(condensed)
    for step in set.intersection(*map(set, saved)):
        parts = [snapshots[step] for snapshots in saved]
        indices = torch.cat([part.indices + start for part, start in zip(parts, starts, strict=True)])
        if not torch.isin(selected, indices).all():  # shards of an earlier version stored fewer images
            continue
        images = torch.cat([part.images for part in parts])[torch.isin(indices, selected)]
        seconds = round(sum(part.seconds for part in parts), 3)
        _write(directory / SNAPSHOTS / set_name(condensed), Snapshot(step, seconds, images, selected))


def _write(directory: Path, snapshot: Snapshot) -> None:
    path = directory / f"{snapshot.step}.safetensors"
    info = {"step": snapshot.step, "seconds": snapshot.seconds}
    with wrap_os_errors(path):
        tensors = {"images": snapshot.images, "indices": snapshot.indices}
        write_tensors(path, tensors, {"snapshot": json.dumps(info)})


def read_snapshots(directory: Path, condensed: CondensedSet) -> list[Snapshot]:
    """Return the snapshots of a set in the order of their iterations.

    Raises:
        UserError: A file is damaged, or does not belong to the set.
    """
    paths = sorted((directory / SNAPSHOTS / set_name(condensed)).glob("*.safetensors"))
    snapshots = [_read_snapshot(path, condensed) for path in paths[:MAX_SNAPSHOTS]]
    return sorted(snapshots, key=lambda snapshot: snapshot.step)


def _read_snapshot(path: Path, condensed: CondensedSet) -> Snapshot:
    tensors, info = read_tensor_file(path, "snapshot", "a snapshot of condenset")
    images, indices = (tensors.get(name, torch.empty(0)) for name in ("images", "indices"))
    is_selection = any(torch.equal(indices, some) for some in (choose_images(condensed), class_order(condensed)))
    side = min(condensed.images.shape[-1], MAX_SIDE)
    shape = (len(indices), condensed.images.shape[1], side, side)
    is_valid = images.dtype == torch.uint8 and tuple(images.shape) == shape and is_selection
    step, seconds = _read_number(info, "step"), _read_number(info, "seconds")
    if not is_valid or step is None or seconds is None:
        raise UserError(f"{path} is not a snapshot of {set_name(condensed)}: delete it")
    return Snapshot(int(step), float(seconds), images, indices)


def _read_number(info: dict[str, Any], name: str) -> float | None:
    value: Any = info.get(name)
    return value if is_number(value) and value >= 0 else None
