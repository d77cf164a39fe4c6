"""Class-incremental learning: a replay memory of condensed images; networks are trained on it from scratch (GDumb).

The classes of a step are condensed from the data of that step alone. Stored images of other classes do not change.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch

from condenset import augment
from condenset.config import field_names
from condenset.continual.contents import MemoryContents
from condenset.continual.steps import ImageFormat, choose_format, read_step
from condenset.continual.training import train_classifier
from condenset.data.class_selection import select_classes
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, check_channel_stats
from condenset.engine import ComputeDevice, rng
from condenset.engine.defaults import torch_defaults
from condenset.errors import UserError, check, check_choice, check_int
from condenset.io.bytesize import parse_bytes
from condenset.io.progress import make_progress
from condenset.methods import METHODS, Recipe, make_recipe
from condenset.methods.common import images_per_class
from condenset.methods.make_sets import make_sets
from condenset.methods.options import RecipeOptions, name_functions
from condenset.networks import NetworkBuilder
from condenset.runs.context import RunContext
from condenset.training.classifier import Classifier, select_test_images
from condenset.training.options import TrainingOptions

FORMAT = 1  # version of the metadata of a replay memory in its file
REPEAT_CHOICES = ("refuse", "merge")
SETTINGS = ("ipc", "method", "schedule", "seed", "on_repeat")  # constructor arguments that the file stores


class Memory:
    """A replay memory of condensed images, for classes that arrive step by step.

    `add` condenses the images of a step to `ipc` per class and stores them. `train` trains a network on all stored
    images. A class is identified by its name. Its random numbers depend on the seed and the name, not on the step.

    Args:
        ipc: Images per class.
        method: Name of the method that condenses (see `METHODS`).
        schedule: For dm: "fast", or "paper" for the settings of the paper. None: "fast".
        seed: The same seed and steps give the same memory.
        device: "cpu", "cuda" or "mps". Default: the fastest one available.
        precision: "float32" or "bfloat16". Default: bfloat16 on GPUs that support it.
        memory_limit: Memory limit of condensing: bytes, or text such as "4GiB".
        mean: Mean of the normalisation, one number per channel. None: that of the first step.
        std: Standard deviation of the normalisation. None: that of the first step.
        allow_hflip: Allow horizontal flips. Disable for text and digits. None: as in the first step.
        on_repeat: For a class that is stored already: "refuse" raises an error, "merge" merges old and new images.
        verbose: Show progress.
        **fields: Fields of the method's recipe, such as `iterations` and `network`.

    Raises:
        UserError: If an argument is invalid.

    Example:
        >>> import condenset as cs
        >>> data = cs.load("digits", verbose=False)
        >>> images, labels = data.train.images, data.train.labels
        >>> memory = cs.Memory(ipc=5, method="random", device="cpu", allow_hflip=False, verbose=False)
        >>> for step in ([0, 1], [2, 3]):
        ...     selected = (labels == step[0]) | (labels == step[1])
        ...     memory.add(images[selected], labels[selected])
        >>> memory
        Memory(20 images of 4 classes: random, 5 per class)
        >>> classifier = memory.train(epochs=20)
        >>> 0.5 < classifier.accuracy(data.test) <= 1
        True
    """

    def __init__(
        self,
        *,
        ipc: int = 10,
        method: str = "dm",
        schedule: str | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
        precision: str | None = None,
        memory_limit: int | str | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        allow_hflip: bool | None = None,
        on_repeat: str = "refuse",
        verbose: bool = True,
        **fields: Unpack[RecipeOptions],
    ) -> None:
        check_choice("on_repeat", on_repeat, REPEAT_CHOICES)
        self.ipc, self.seed = check_int("ipc (images per class)", ipc, 1), check_int("seed", seed)
        self.method, self.schedule, self.on_repeat, self.verbose = method, schedule, on_repeat, verbose
        named = name_functions(fields)
        checked = make_recipe(method, ipc=self.ipc, name="", size=32, schedule=schedule, **named)  # before data arrive
        check(not checked.zca, "zca must be false, because every step would have its own whitening", checked.zca)
        self.fields = {name: getattr(checked, name) for name in named}  # validated, so that a file can store them
        self.compute = ComputeDevice.select(device, precision)
        self._memory_limit = None if memory_limit is None else parse_bytes(memory_limit)
        self._mean = None if mean is None else check_channel_stats("mean", mean)
        self._std = None if std is None else check_channel_stats("std", std)
        check(isinstance(allow_hflip, bool | None), "allow_hflip must be true or false", allow_hflip)
        self._allow_hflip, self._contents = allow_hflip, MemoryContents()

    def __len__(self) -> int:
        """Return the number of stored images. With a partition, `set` has more: those that they decode to."""
        return len(self._contents)

    def __repr__(self) -> str:
        return f"Memory({len(self)} images of {len(self.class_names)} classes: {self.method}, {self.ipc} per class)"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the stored classes; the position of a class is its label."""
        return tuple(self._contents.exemplars)

    @torch_defaults()
    def add(self, images: Any, labels: Any = None, class_names: Sequence[str] | None = None) -> None:
        """Condense the images of a step and store them. If an error is raised, nothing is stored.

        Args:
            images: ImageData, or an array of images as `from_arrays` takes it.
            labels: Class names or integers, for an array.
            class_names: Names of integer labels. None: the name of label 3 is "3".

        Raises:
            UserError: If the images are invalid, or a class is stored already and `on_repeat` is "refuse".
        """
        step = self.prepare_step(images, labels, class_names)
        (condensed,) = make_sets(METHODS[self.method], step, [self.recipe(step)], self._make_run(self.seed))
        self.store(condensed, step)

    @torch_defaults()
    def prepare_step(self, images: Any, labels: Any = None, class_names: Sequence[str] | None = None) -> ImageData:
        """Return the data of a step as they must be condensed: classes with images, with the memory's normalisation.

        Arguments and errors are those of `add`. To condense elsewhere, call `prepare_step`, condense the result with
        `recipe` and the seed of the memory, and call `store`. `add` does the same.
        """
        stored_format = self._contents.image_format
        mean, std = (stored_format.mean, stored_format.std) if stored_format else (self._mean, self._std)
        data = read_step(images, labels, class_names, mean=mean, std=std, allow_hflip=self._allow_hflip is not False)
        names = [name for name, count in zip(data.class_names, data.class_counts, strict=True) if count]
        check(len(set(data.class_names)) == data.num_classes, "class names must differ", data.class_names)
        image_format = stored_format or self._format_of(data)
        shape, expected = tuple(data.images.shape[1:]), image_format.shape
        check(shape == expected, f"images must have the shape {expected} of the earlier images", shape)
        self._check_repeats(names)
        stream_ids = tuple(rng.class_stream_id(name, self._contents.num_real(name)) for name in names)
        common = image_format._asdict()
        del common["shape"]
        return dataclasses.replace(select_classes(data, names), class_stream_ids=stream_ids, **common)

    def recipe(self, step: ImageData) -> Recipe:
        """Return the recipe that a step is condensed with."""
        return self._make_recipe(self._format_of(step))

    def _make_recipe(self, image_format: ImageFormat) -> Recipe:
        options = {"schedule": self.schedule, **self.fields, "zca": False}
        recipe = make_recipe(self.method, ipc=self.ipc, name=image_format.name, size=image_format.shape[-1], **options)
        if self._contents.exemplars:  # the presets may differ from those of earlier steps
            layout, names = dataclasses.asdict(self._contents.layout), field_names(type(recipe))
            recipe = dataclasses.replace(recipe, **{name: layout[name] for name in layout.keys() & names})
        return augment.remove_unused_flip(recipe, allow_hflip=image_format.allow_hflip)

    @torch_defaults()
    def store(self, condensed: CondensedSet, step: ImageData) -> None:
        """Store the set that was condensed from the result of `prepare_step`.

        A class that was stored before has at most `ipc` images afterwards, selected from old and new images in
        proportion to the real images that they represent.

        Args:
            condensed: The set.
            step: The result of `prepare_step`.

        Raises:
            UserError: If the set does not fit the step, or a class is stored already and `on_repeat` is "refuse".
        """
        self._check_repeats(step.class_names)
        counts = images_per_class(step, self.recipe(step))
        self._contents.store(condensed, step, counts, self.ipc, self.seed)
        self._contents.image_format = self._contents.image_format or self._format_of(step)

    @property
    def set(self) -> CondensedSet:
        """All stored images as one set."""
        return self._contents.to_set(self._provenance())

    def select_test(self, test_set: ImageData | None) -> ImageData:
        """Return the test images of the stored classes, with the labels of the memory, for `cs.evaluate`."""
        self._contents.require_format()
        return select_test_images(test_set, self.class_names)

    @torch_defaults()
    def train(
        self,
        network: str | NetworkBuilder | None = None,
        *,
        seed: int | None = None,
        **fields: Unpack[TrainingOptions],
    ) -> Classifier:
        """Train a new network on all stored images.

        Args:
            network: A spec, or a builder `(channels, size, num_classes) -> torch.nn.Module`. Default: the network that
                the method learns with, or the default of the dataset for methods without one and for "dd".
            seed: Default: the seed of the memory. With it, the network is the first one that `evaluate` trains.
            **fields: Fields of `Protocol` that decide the training, such as `epochs`, `lr` and `augment`.

        Returns:
            The trained network with its class names and normalisation.

        Raises:
            UserError: If the memory is empty, an argument is invalid, or training diverges.
        """
        run = self._make_run(self.seed if seed is None else seed)
        return train_classifier(self.set, self._contents.require_format(), network, run, **fields)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the memory to one .safetensors file, which `CondensedSet.load` reads too.

        Args:
            path: The file.
            overwrite: Replace an existing file.

        Raises:
            UserError: If the memory is empty, or the file exists or cannot be written.
        """
        self.set.save(path, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        precision: str | None = None,
        memory_limit: int | str | None = None,
        verbose: bool = True,
    ) -> Memory:
        """Read a memory from a file. It continues as the saved memory would.

        Args:
            path: The file.
            device: As for the constructor.
            precision: As for the constructor.
            memory_limit: As for the constructor.
            verbose: As for the constructor.

        Raises:
            UserError: If the file cannot be read or is not a replay memory.
        """
        options = {"device": device, "precision": precision, "memory_limit": memory_limit, "verbose": verbose}
        condensed = CondensedSet.load(path)
        if "memory" not in condensed.provenance:
            raise UserError(f"{path} is a condensed set, but not a replay memory")
        try:
            return cls._from_set(condensed, condensed.provenance["memory"], options)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            raise UserError(f"{path} is not a replay memory: {type(error).__name__} in its metadata") from None

    @classmethod
    def _from_set(cls, condensed: CondensedSet, metadata: Mapping[str, Any], options: Mapping[str, Any]) -> Memory:
        if metadata["format"] > FORMAT:
            raise UserError(f"a newer version of condenset wrote it (format {metadata['format']}): upgrade to read it")
        memory = cls(**{name: metadata[name] for name in SETTINGS}, **options, **metadata["fields"])
        memory._contents = MemoryContents.from_set(condensed, metadata)
        _ = memory.set  # raises if other metadata are missing
        return memory

    def _make_run(self, seed: int) -> RunContext:
        progress = make_progress(self.verbose)
        return RunContext(seed=seed, compute=self.compute, memory_limit=self._memory_limit, progress=progress)

    def _format_of(self, data: ImageData) -> ImageFormat:
        return choose_format(data, self._mean, self._std, self._allow_hflip)

    def _check_repeats(self, names: Sequence[str]) -> None:
        repeated = next((name for name in names if name in self.class_names), None)
        if repeated is not None and self.on_repeat == "refuse":
            raise UserError(f"class {repeated!r} is in memory already: use on_repeat='merge' to merge repeated classes")

    def _provenance(self) -> dict[str, Any]:
        image_format = self._contents.require_format()
        recipe = self._make_recipe(image_format).to_dict()
        if not METHODS[self.method].network_fits_evaluation:
            del recipe["network"]  # it fits only the learned step sizes, which each step has for its own classes
        settings = {name: getattr(self, name) for name in SETTINGS}
        return {
            "method": self.method,
            "recipe": recipe,
            "seed": self.seed,
            **self._contents.provenance(),
            "memory": {"format": FORMAT, **settings, "fields": self.fields, **self._contents.metadata()},
        }
