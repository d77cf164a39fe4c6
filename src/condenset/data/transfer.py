"""Send images to another machine: by the path of their file if it has the same file, else pixel by pixel."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset.data.class_selection import take_classes
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.imports.memmap import map_images
from condenset.data.reading.lazy import Labels, Pixels
from condenset.data.stores.mapped_file import from_numpy
from condenset.engine.tasks import Engine, MissingFileError, SharedValue
from condenset.errors import UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageMessage:
    """Images on their way to a worker.

    Attributes:
        fields: The fields of `ImageData` except images and labels.
        labels: The labels.
        images: The images. None: they are in the file that `fields` names.
        first_row: The row of the first image in the file.
    """

    fields: dict[str, Any]
    labels: Labels
    images: Pixels | None
    first_row: int = 0

    def open(self) -> ImageData:
        """Return the images.

        Raises:
            MissingFileError: This machine does not have the file.
        """
        if self.images is not None:
            images = from_numpy(self.images)
        else:
            file, fingerprint = Path(self.fields["file"]), self.fields["stored_fingerprint"]
            mapped = None
            with contextlib.suppress(UserError, OSError):  # a file that cannot be read is as good as none
                mapped = map_images(file, fingerprint)
            if mapped is None:
                raise MissingFileError(f"{file} does not exist on this machine, or has other images")
            images = mapped[self.first_row : self.first_row + len(self.labels)]
        return ImageData(images=images, labels=from_numpy(self.labels), **self.fields)


def has_file(data: ImageData) -> bool:
    """Return whether the images are those of a memory-mapped file, so that a path is enough to send them."""
    return bool(data.file) and data.whole is None and map_images(Path(data.file), data.fingerprint) is not None


def pack_images(data: ImageData, classes: range | None = None, *, by_file: bool) -> ImageMessage:
    """Return a message with the images of consecutive classes.

    Args:
        data: The images of all classes.
        classes: The classes. None: all.
        by_file: Send the path of the file in place of the pixels; only if `has_file`.
    """
    part = data if classes is None else take_classes(data, classes)
    names = [field.name for field in dataclasses.fields(part) if field.name not in ("images", "labels")]
    fields = {name: getattr(part, name) for name in names} | {"stored_fingerprint": data.fingerprint}
    first_row = sum(data.class_counts[: classes.start]) if classes else 0
    images = None if by_file else part.images.contiguous().numpy()
    return ImageMessage(fields=fields, labels=part.labels.numpy(), images=images, first_row=first_row)


class DataSender:
    """Sends images or a condensed set to tasks.

    Images of a file are sent by its path, or as pixels once a worker did not have the file. All other data reach each
    machine once.

    Args:
        data: The images of all classes, or the set.
        engine: The engine of the tasks.
    """

    def __init__(self, data: ImageData | CondensedSet, engine: Engine) -> None:
        self.data, self.engine = data, engine
        self._has_file = isinstance(data, ImageData) and has_file(data)
        self._whole: SharedValue | None = None

    def send(self, classes: range | None = None) -> SharedValue:
        """Return the data for a task. `classes` selects images of consecutive classes; None: all."""
        data, by_file = self.data, self._has_file and self.engine.shares_files
        if isinstance(data, ImageData) and (by_file or classes is not None):
            return SharedValue(pack_images(data, classes, by_file=by_file))
        if self._whole is None:  # not before the first task is handed out, because there may be many sets
            content = pack_images(data, by_file=False) if isinstance(data, ImageData) else data
            self._whole = self.engine.share(content)
        return self._whole


def open_shared(shared: SharedValue) -> Any:
    """Return the images or the set that a sender sent."""
    content = shared.get()
    return content.open() if isinstance(content, ImageMessage) else content
