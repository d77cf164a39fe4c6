"""Learning classes as they come: a memory of condensed images, from which networks are trained afresh (GDumb).

Every step's classes are condensed from that step's data alone, and what is stored of earlier ones is not touched.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from condenset import draws
from condenset.builders import Builder, built, check_builder, faults_told, seeded
from condenset.classifier import Classifier, tested
from condenset.data.arrays import from_arrays
from condenset.engine import Place
from condenset.errors import UserError, check, check_choice, whole
from condenset.evaluation import learned_with
from condenset.kept import Kept, in_parts, merged, taken_apart
from condenset.methods import METHODS
from condenset.methods.common import images_per_class
from condenset.presets import make_recipe, training_protocol
from condenset.progress import Shown
from condenset.recipes import Recipe, UnrolledRecipe
from condenset.runs import Run, reported
from condenset.sizes import in_bytes
from condenset.train import Trainer, TrainingSet
from condenset.types import CondensedSet, ImageData, constants, of_classes
from condenset.version import VERSION

FORMAT = 1  # of what a memory's file says beside its set
REPEATS = ("refuse", "merge")


class Form(NamedTuple):
    """What the images of all steps have in common."""

    name: str
    shape: tuple[int, int, int]  # C, H, W
    mean: tuple[float, ...]
    std: tuple[float, ...]
    can_flip: bool


class Memory:
    """A memory of `ipc` images a class, for classes that arrive step by step; fields are of the method's recipe.

    A class is known by its name, and its random draws are a function of seed and name: not of when it came. mean, std,
    can_flip: of the first step's data unless given. on_repeat: a class that comes again is refused, or merged.
    """

    def __init__(
        self,
        *,
        ipc: int,
        method: str = "dm",
        seed: int = 0,
        device: str | torch.device | None = None,
        precision: str | None = None,
        memory: int | str | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        can_flip: bool | None = None,
        on_repeat: str = "refuse",
        **fields: Any,
    ) -> None:
        check_choice("on_repeat", on_repeat, REPEATS)
        made = make_recipe(method, ipc=ipc, name="", size=32, **fields)  # mistakes are told now, not when data come
        self.ipc, self.method, self.seed, self.on_repeat = made.ipc, method, whole("seed", seed), on_repeat
        self.fields = {name: getattr(made, name) for name in fields}  # as a file can hold them
        self.place = Place.best(device, precision)
        self._bound = None if memory is None else in_bytes(memory)
        self._mean = None if mean is None else constants("mean", mean)
        self._std = None if std is None else constants("std", std)
        self._can_flip = can_flip
        self._form: Form | None = None  # known from the first step on
        self._kept: dict[str, Kept] = {}  # by class, in the order of labels
        self._steps: list[dict[str, Any]] = []  # what came when, for the record

    def __len__(self) -> int:
        """Images in memory."""
        return sum(map(len, self._kept.values()))

    def __repr__(self) -> str:
        return f"Memory({len(self)} images of {len(self._kept)} classes: {self.method}, {self.ipc} a class)"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes so far; a class's place is its label."""
        return tuple(self._kept)

    def add(self, images: Any, labels: Any = None, class_names: Sequence[str] | None = None) -> None:
        """Condense the classes of a step and store them; either all of it is stored or, with an error, nothing.

        images: an ImageData, or as `from_arrays` takes them, with labels: (N,) names, or whole numbers, which stand
        for their text unless class_names has names for them.
        """
        step = self.arriving(images, labels, class_names)
        run = Run(seed=self.seed, place=self.place, memory=self._bound, progress=Shown())
        self.keep(METHODS[self.method](step, self.recipe(step), run), step)

    def arriving(self, images: Any, labels: Any = None, class_names: Sequence[str] | None = None) -> ImageData:
        """A step's data as they are to be condensed: its classes alone, under the memory's normalisation.

        With `recipe` and `keep`, what `add` does can be done in parts, and the condensing elsewhere.
        """
        data = self._read(images, labels, class_names)
        names = [name for name, count in zip(data.class_names, data.class_counts, strict=True) if count]
        check(len(set(data.class_names)) == data.num_classes, "class names must differ", data.class_names)
        form = self._form or self._form_of(data)
        shape = tuple(data.images.shape[1:])
        check(shape == form.shape, f"images must have the shape of those before, {form.shape}", shape)
        self._check_repeats(names)
        mine = of_classes(data, names)
        rows = tuple(draws.row_of(name, self._seen(name)) for name in names)
        common = form._asdict()
        del common["shape"]
        return dataclasses.replace(mine, class_rows=rows, **common)

    def recipe(self, step: ImageData) -> Recipe:
        """How a step is condensed."""
        return make_recipe(self.method, ipc=self.ipc, name=step.name, size=step.size, **self.fields)

    def keep(self, small: CondensedSet, step: ImageData) -> None:
        """Store the set that was made of `arriving` data.

        A class that is here already keeps its number of images, of the stored and the new ones in proportion to the
        real images that each stand for.
        """
        self._check_repeats(step.class_names)
        counts = images_per_class(step, self.recipe(step))
        arrived = taken_apart(small, step, counts, self.class_names)
        kinds = {kept.soft_IK is None for kept in (*self._kept.values(), *arrived.values())}
        check(len(kinds) == 1, "labels must be all hard or all soft", "both")
        for name, kept in arrived.items():
            old = self._kept.get(name)
            self._kept[name] = merged(name, old, kept, self.ipc, self.seed) if old else kept
        self._form = self._form or self._form_of(step)
        about = {key: small.provenance.get(key) for key in ("seconds", "fingerprint", "hardware", "precision")}
        self._steps.append({"classes": list(step.class_names), "images": len(step), **about})

    @property
    def set(self) -> CondensedSet:
        """All that is in memory, as one set."""
        form, kept, num = self._known_form(), list(self._kept.values()), len(self._kept)
        counts = [len(each) for each in kept]
        softs = [soft for each in kept if (soft := each.soft(num)) is not None]
        hard = torch.repeat_interleave(torch.arange(num), torch.tensor(counts))
        return CondensedSet(
            images=torch.cat([each.images_ICHW for each in kept]),
            labels=torch.cat(softs) if softs else hard,
            class_names=self.class_names,
            mean=form.mean,
            std=form.std,
            provenance=self._provenance(form, counts),
        )

    def seen(self, test: ImageData) -> ImageData:
        """The test images of the classes in memory, labelled as it labels them."""
        self._known_form()
        return tested(test, self.class_names)

    def train(self, network: str | Builder | None = None, *, seed: int | None = None, **fields: Any) -> Classifier:
        """A fresh network trained on all that is in memory; fields are of the evaluation's protocol.

        network: a spec, or a builder `(channels, size, num_classes) -> nn.Module` of your own. Without it, it is the
        one that the method learns with, else (and for dd, whose steps a memory cannot keep) the dataset's usual one;
        the same network, for the same seed (the memory's unless given), as the first that `evaluate` trains.
        """
        form, small = self._known_form(), self.set
        run = Run(seed=self.seed if seed is None else seed, place=self.place, progress=Shown())
        check("nets" not in fields, "one network is trained: nets is an option of evaluate", fields.get("nets"))
        spec = learned_with(small) if network is None else network
        chosen = {"network": spec, **fields} if isinstance(spec, str) else fields
        protocol = training_protocol(name=form.name, size=form.shape[-1], **chosen)
        train_set = TrainingSet.of(small, self.place.device)
        architecture = protocol.network if network is None else network
        check_builder(architecture)
        with faults_told(architecture), seeded(run.seed, self.place):  # which only a user's own network draws from
            fresh = architecture if isinstance(architecture, str) else built(architecture, train_set, self.place)
            trainer = Trainer(fresh, train_set, protocol, self.place)
            with reported(run, "training a network", trainer.num_steps) as report:
                trainer.train(run.seed, "evaluate", 0, report=report)
            if not trainer.is_finite():
                raise UserError("the network is no longer numbers: a smaller lr may help")
            trained = trainer.result()
        size = form.shape[-1] if isinstance(architecture, str) else None  # somebody's own may take any
        return Classifier(trained, self.class_names, form.mean, form.std, size)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one .safetensors file, whole or not at all; it is a set's too, and `CondensedSet.load` reads it."""
        self.set.save(path, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        precision: str | None = None,
        memory: int | str | None = None,
    ) -> Memory:
        """Read a memory's file; it goes on as the one that was saved would have."""
        place = {"device": device, "precision": precision, "memory": memory}
        small = CondensedSet.load(path)
        if "memory" not in small.provenance:
            raise UserError(f"{path} is a set, but not of a memory")
        try:
            return cls._of(small, small.provenance["memory"], place)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            raise UserError(f"{path} is not a memory of condenset: {type(error).__name__} in its metadata") from None

    @classmethod
    def _of(cls, small: CondensedSet, about: Mapping[str, Any], place: Mapping[str, Any]) -> Memory:
        if about["format"] > FORMAT:
            raise UserError(f"it was written by a newer condenset (format {about['format']}); upgrade to read it")
        names = ("ipc", "method", "seed", "on_repeat")
        memory = cls(**{name: about[name] for name in names}, **place, **about["fields"])
        counts, seen, num = list(about["counts"]), list(map(int, about["seen"])), small.num_classes
        fits = len(counts) == len(seen) == num == len(set(small.class_names)) and sum(counts) == len(small)
        check(fits and min(*counts, *seen) >= 1, "a memory must say what it holds of each class", (counts, seen))
        memory._kept = dict(zip(small.class_names, in_parts(small.images, small.labels, counts, seen), strict=True))
        channels, height, width = small.images.shape[1:]
        name, shape = str(small.provenance["dataset"]), (channels, height, width)
        memory._form = Form(name, shape, small.mean, small.std, small.can_flip)
        memory._steps = [dict(step) for step in about["steps"]]
        check(len(memory._steps) > 0, "a memory must say when its classes came", memory._steps)
        _ = memory.set  # which asks for the rest of what it needs
        return memory

    def _read(self, images: Any, labels: Any, class_names: Sequence[str] | None) -> ImageData:
        if isinstance(images, ImageData):
            check(labels is None and class_names is None, "an ImageData has its own labels and class names", "others")
            return images
        if labels is None:
            raise UserError("labels must come with the images, unless these are an ImageData")
        array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
        names: list[str] | None = None
        check(array.size > 0, "a step must have images", array.size)
        if array.dtype.kind in "iu":
            values, places = np.unique(array, return_inverse=True)
            labels, names = places.reshape(array.shape), [_name(value, class_names) for value in values.tolist()]
        else:
            check(class_names is None, "class_names name labels that are whole numbers", str(array.dtype))
        form = self._form
        mean, std = (form.mean, form.std) if form else (self._mean, self._std)
        return from_arrays(images, labels, class_names=names, mean=mean, std=std, can_flip=self._can_flip is not False)

    def _form_of(self, data: ImageData) -> Form:
        """The form that the first data, and what was given, decide for all that follow."""
        channels, height, width = data.images.shape[1:]
        can_flip = data.can_flip if self._can_flip is None else self._can_flip
        mean, std = self._mean or data.mean, self._std or data.std
        return Form(data.name, (channels, height, width), mean, std, can_flip)

    def _known_form(self) -> Form:
        if self._form is None:
            raise UserError("the memory is empty: add images first")
        return self._form

    def _check_repeats(self, names: Sequence[str]) -> None:
        known = next((name for name in names if name in self._kept), None)
        if known is not None and self.on_repeat == "refuse":
            raise UserError(f"class {known!r} is in memory already; on_repeat='merge' merges a class that comes again")

    def _seen(self, name: str) -> int:
        return self._kept[name].seen if name in self._kept else 0

    def _provenance(self, form: Form, counts: list[int]) -> dict[str, Any]:
        config = {"ipc": self.ipc, "method": self.method, "seed": self.seed, "on_repeat": self.on_repeat}
        held = {"counts": counts, "seen": [each.seen for each in self._kept.values()], "steps": self._steps}
        made = make_recipe(self.method, ipc=self.ipc, name=form.name, size=form.shape[-1], **self.fields)
        recipe = dataclasses.asdict(made)
        if isinstance(made, UnrolledRecipe):
            del recipe["network"]  # which is of use with the learned steps alone, and these are of one step's classes
        return {
            "method": self.method,
            "recipe": recipe,
            "seed": self.seed,
            "dataset": form.name,
            "can_flip": form.can_flip,
            "version": VERSION,
            "seconds": round(sum(step["seconds"] or 0.0 for step in self._steps), 3),
            "hardware": self._steps[-1]["hardware"],
            "precision": self._steps[-1]["precision"],
            "memory": {"format": FORMAT, **config, "fields": self.fields, **held},
        }


def _name(label: int, class_names: Sequence[str] | None) -> str:
    if class_names is None:
        return str(label)
    check(0 <= label < len(class_names), f"labels must lie in 0..{len(class_names) - 1}", label)
    return str(class_names[label])
