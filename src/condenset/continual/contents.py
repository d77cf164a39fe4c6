"""The contents of a replay memory, and their form in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from condenset import __version__
from condenset.continual.exemplars import ClassExemplars, merge_exemplars, split_by_class, split_exemplars
from condenset.continual.steps import ImageFormat
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.partition import UNPARTITIONED, PartLayout
from condenset.errors import UserError, check


@dataclass
class MemoryContents:
    """The images of a replay memory by class, and a record of the steps in which they arrived.

    Attributes:
        image_format: What all images have in common. None until the first step.
        layout: How a stored image holds several images.
        exemplars: Images by class name, in the order of labels.
        steps: A record of each step.
    """

    image_format: ImageFormat | None = None
    layout: PartLayout = UNPARTITIONED
    exemplars: dict[str, ClassExemplars] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.exemplars.values()))

    def require_format(self) -> ImageFormat:
        """Return the image format; raise a UserError if nothing is stored."""
        if self.image_format is None:
            raise UserError("the memory is empty: add images first")
        return self.image_format

    def num_real(self, name: str) -> int:
        """Return the number of real images of a class so far."""
        return self.exemplars[name].num_real if name in self.exemplars else 0

    def store(self, condensed: CondensedSet, step: ImageData, counts: Sequence[int], ipc: int, seed: int) -> None:
        """Store the set of a step, `counts` images per class; merge the images of classes that are stored already."""
        arrived = split_by_class(condensed, step, counts, list(self.exemplars))
        kinds = {exemplars.soft_IK is None for exemplars in (*self.exemplars.values(), *arrived.values())}
        check(len(kinds) == 1, "labels must be all hard or all soft", "both")
        expected = self.layout if self.exemplars else condensed.layout
        rule = f"the set must have partition {expected.partition} and decoder {expected.decoder} as in earlier steps"
        check(condensed.layout == expected, rule, f"{condensed.partition} and {condensed.decoder}")
        self.layout = expected
        for name, new in arrived.items():
            old = self.exemplars.get(name)
            self.exemplars[name] = merge_exemplars(name, old, new, ipc, seed) if old else new
        record = {key: condensed.provenance.get(key) for key in ("seconds", "fingerprint", "hardware", "precision")}
        self.steps.append({"classes": list(step.class_names), "images": len(step), **record})

    def to_set(self, provenance: dict[str, Any]) -> CondensedSet:
        """Return all images as one set."""
        image_format, stored = self.require_format(), list(self.exemplars.values())
        soft_labels = [soft for exemplars in stored if (soft := exemplars.soft_labels(len(stored))) is not None]
        hard_labels = torch.repeat_interleave(torch.arange(len(stored)), torch.tensor(list(map(len, stored))))
        return CondensedSet.decode(
            torch.cat([exemplars.images_ICHW for exemplars in stored]),
            partition=self.layout.partition,
            decoder=self.layout.decoder,
            labels=torch.cat(soft_labels) if soft_labels else hard_labels,
            class_names=tuple(self.exemplars),
            mean=image_format.mean,
            std=image_format.std,
            provenance=provenance,
        )

    def provenance(self) -> dict[str, Any]:
        """Return the provenance that does not depend on the settings of the memory."""
        image_format = self.require_format()
        return {
            "dataset": image_format.name,
            "allow_hflip": image_format.allow_hflip,
            "version": __version__,
            "seconds": round(sum(step["seconds"] or 0.0 for step in self.steps), 3),
            "hardware": self.steps[-1]["hardware"],
            "precision": self.steps[-1]["precision"],
        }

    def metadata(self) -> dict[str, Any]:
        """Return what a file stores beyond the set, as JSON values."""
        stored = self.exemplars.values()
        return {
            "counts": [len(exemplars) for exemplars in stored],
            "num_real": [exemplars.num_real for exemplars in stored],
            "steps": self.steps,
        }

    @classmethod
    def from_set(cls, condensed: CondensedSet, metadata: Mapping[str, Any]) -> MemoryContents:
        """Restore the contents from the set and the metadata of a file."""
        counts, num_real = list(metadata["counts"]), list(map(int, metadata["num_real"]))
        num_classes = len(set(condensed.class_names))
        num_stored = len(condensed.stored_images)
        fits = len(counts) == len(num_real) == num_classes == condensed.num_classes and sum(counts) == num_stored
        rule = "the metadata must give the number of images of each class"
        check(fits and min(*counts, *num_real) >= 1, rule, (counts, num_real))
        exemplars = split_exemplars(condensed.stored_images, condensed.stored_labels, counts, num_real)
        channels, height, width = condensed.images.shape[1:]
        name, shape = str(condensed.provenance["dataset"]), (channels, height, width)
        steps = [dict(step) for step in metadata["steps"]]
        check(len(steps) > 0, "the metadata must have at least one step", steps)
        return cls(
            image_format=ImageFormat(name, shape, condensed.mean, condensed.std, condensed.allow_hflip),
            layout=condensed.layout,
            exemplars=dict(zip(condensed.class_names, exemplars, strict=True)),
            steps=steps,
        )
