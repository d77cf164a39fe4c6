"""The images of a report: which ones it shows, and how they fit into the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.report.html.content import ReportContent, ReportedSet, Update, ignore_update
from condenset.report.html.neighbours import find_neighbours, read_pixels, sample_evenly
from condenset.report.html.sprites import LOSSLESS, Sprite
from condenset.runs.snapshots import choose_images, hard_labels, to_pixels

MAX_PIXEL_BYTES = 4 << 20  # of all sets together; beyond it, the first images of every class are shown
MAX_SNAPSHOT_BYTES = 20 << 20  # beyond it, every second snapshot is left out
MAX_PAGE_BYTES = 2_850_000  # of encoded images; base64 adds a third
SAMPLE_BYTES = 1 << 18  # of the pixels that are encoded to estimate a size
# Quality of the final images, the snapshots and the real images. The first level that fits the page is used.
QUALITIES = ((LOSSLESS, 75, 75), (LOSSLESS, 50, 50), (90, 50, 50), (75, 35, 35), (60, 20, 20), (40, 10, 10), (20, 0, 0))


class ShownSet:
    """The images of one set that the page shows, in class order.

    Args:
        item: The set.
        positions: Positions of the images in the set.
    """

    def __init__(self, item: ReportedSet, positions: Tensor) -> None:
        self.item, self.positions = item, positions
        condensed = item.condensed
        self.labels = hard_labels(condensed.labels)[positions]
        self.pixels = to_pixels(condensed.images[positions])
        self.snapshots = [
            (snapshot.step, snapshot.seconds, snapshot.images[torch.isin(snapshot.indices, positions)])
            for snapshot in item.snapshots
        ]
        self.neighbours: list[list[int]] = []

    @property
    def per_class(self) -> int:
        """The number of images of the largest class that are shown."""
        return int(self.labels.bincount().max())

    def halve_snapshots(self) -> None:
        """Leave out every second snapshot. The first one stays."""
        self.snapshots = self.snapshots[::2]


class Gallery:
    """All images of a page, in sprites.

    Args:
        content: The content of the report.
        update: Called with the share of the search for similar real images that is complete.
    """

    def __init__(self, content: ReportContent, update: Update = ignore_update) -> None:
        self.train: ImageData | None = content.train
        self.sets = _choose_shown(content.sets)
        while sum(_count_snapshot_bytes(shown) for shown in self.sets) > MAX_SNAPSHOT_BYTES:
            for shown in self.sets:
                shown.halve_snapshots()
        self.tiles: dict[int, int] = {}  # of the sprite of real images, by index in the dataset
        if self.train is not None and self.sets:
            pixels, labels = [shown.pixels for shown in self.sets], [shown.labels for shown in self.sets]
            neighbours = find_neighbours(pixels, labels, self.train, update)
            for shown, indices in zip(self.sets, neighbours, strict=True):
                shown.neighbours = [self.add_real([index for index in row if index >= 0]) for row in indices.tolist()]

    def add_real(self, indices: Sequence[int]) -> list[int]:
        """Add real images to the page, and return their tiles in the sprite of real images."""
        return [self.tiles.setdefault(index, len(self.tiles)) for index in indices]

    def encode(self, update: Update) -> dict[str, Any]:
        """Return all sprites by name for the script of the page."""
        real = []
        if self.train is not None and self.tiles:
            real = [("real", Sprite(read_pixels(self.train, torch.tensor(list(self.tiles)))))]
        finals = [(f"set{number}", Sprite(shown.pixels)) for number, shown in enumerate(self.sets)]
        steps = [
            (f"set{number}-{step}", Sprite(pixels))
            for number, shown in enumerate(self.sets)
            for step, _, pixels in shown.snapshots
        ]
        groups = (finals, steps, real)
        for qualities in QUALITIES:
            sizes = [_estimate_bytes(group, quality) for group, quality in zip(groups, qualities, strict=True)]
            if sum(sizes) <= MAX_PAGE_BYTES:
                break
        num_sprites, encoded = sum(map(len, groups)), dict[str, Any]()
        for group, quality in zip(groups, qualities, strict=True):
            for name, sprite in group:
                encoded[name] = sprite.to_json(sprite.encode(quality))
                update(len(encoded) / num_sprites)
        return encoded


def _estimate_bytes(group: Sequence[tuple[str, Sprite]], quality: int) -> float:
    """Estimate the encoded bytes of sprites from images of the largest one, the last of them.

    Early iterates are smoother. Encoding all images at all qualities would take seconds.
    """
    if not group:
        return 0.0
    images = max(reversed(group), key=lambda item: item[1].images.numel())[1].images
    sample = Sprite(images[sample_evenly(torch.arange(len(images)), max(1, SAMPLE_BYTES // images[0].nbytes))])
    num_pixels = sum(sprite.images.numel() for _, sprite in group)
    return len(sample.encode(quality)) * num_pixels / sample.images.numel()


def _count_snapshot_bytes(shown: ShownSet) -> int:
    return sum(pixels.nbytes for _, _, pixels in shown.snapshots) if len(shown.snapshots) > 1 else 0


def _choose_shown(sets: Sequence[ReportedSet]) -> list[ShownSet]:
    """Return the images to show: all, or the first ones of every class if there are too many."""
    chosen = [choose_images(item.condensed) for item in sets]
    shown = [ShownSet(item, positions) for item, positions in zip(sets, chosen, strict=True)]
    limit = max((item.per_class for item in shown), default=1)
    while limit > 1 and sum(item.pixels.nbytes for item in shown) > MAX_PIXEL_BYTES:
        limit = max(1, limit * 3 // 4)
        shown = [ShownSet(item.item, _limit_classes(item, limit)) for item in shown]
    return shown


def _limit_classes(shown: ShownSet, limit: int) -> Tensor:
    """Return the positions of the first `limit` images of every class."""
    parts = [shown.positions[shown.labels == label][:limit] for label in shown.labels.unique()]
    return torch.cat(parts)
