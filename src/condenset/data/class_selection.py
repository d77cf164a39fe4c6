"""Select classes of a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from condenset.data.image_data import ImageData, WholeDataset
from condenset.errors import UserError, format_names


def select_classes(data: ImageData, names: Sequence[str]) -> ImageData:
    """Return the images of the classes `names`, labelled by their position in `names`."""
    label_of = {name: label for label, name in enumerate(names)}
    labels = torch.tensor([label_of.get(name, -1) for name in data.class_names])[data.labels]
    selected = labels >= 0
    if not bool(selected.any()):
        raise UserError(f"{data.name} has no images of the classes {format_names(names, 3)}")
    all_selected = bool(selected.all())
    return dataclasses.replace(
        data,
        images=data.images if all_selected else data.images[selected],
        labels=labels if all_selected else labels[selected],
        class_names=tuple(names),
        stored_fingerprint=data.stored_fingerprint if tuple(names) == data.class_names else "",
        class_stream_ids=(),
    )


def take_classes(data: ImageData, classes: range) -> ImageData:
    """Return the images of consecutive classes, which are condensed as they would be in the whole dataset.

    Images in class order are not copied. The fingerprint is that of the whole dataset.
    """
    if len(classes) == data.num_classes:
        return data
    labels = data.labels - classes.start
    selected = (labels >= 0) & (labels < len(classes))
    indices = selected.nonzero()[:, 0]
    first, last = int(indices[0]), int(indices[-1])
    is_contiguous = last - first + 1 == len(indices)
    return dataclasses.replace(
        data,
        images=data.images[first : last + 1] if is_contiguous else data.images[selected],
        labels=labels[selected],
        class_names=data.class_names[classes.start : classes.stop],
        class_stream_ids=(data.class_stream_ids or tuple(range(data.num_classes)))[classes.start : classes.stop],
        stored_fingerprint=data.fingerprint,
        whole=WholeDataset(class_names=data.class_names, class_counts=data.class_counts, first_class=classes.start),
    )
