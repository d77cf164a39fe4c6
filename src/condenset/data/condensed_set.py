"""CondensedSet: a small training set with its provenance, stored as one .safetensors file."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from condenset.augment import DEFAULT_STRATEGY
from condenset.data.formats.content import encode_metadata
from condenset.data.formats.methods import ExportMethods
from condenset.data.image_data import (
    ImageData,
    check_class_names,
    check_dense,
    check_normalization,
    describe_images,
    hash_tensors,
    one_line,
)
from condenset.data.ipc import format_ipc
from condenset.data.partition import UNPARTITIONED, PartLayout, check_stored
from condenset.data.set_checks import (
    check_decoded,
    check_labels,
    check_step_sizes,
    check_stored_images,
    check_whitening,
    is_finite,
)
from condenset.data.transform import augment_inputs, normalize, normalize_pixels
from condenset.data.whitening import Whitening, read_whitening
from condenset.errors import UserError, check, check_type, option
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_tensors
from condenset.io.metadata import read_tensor_file
from condenset.io.user_directories import expand_user

SET_FORMAT = 2  # version of the file format: 2 has other decoders than bilinear upsampling


@dataclass(frozen=True, kw_only=True, eq=False)
class CondensedSet(ExportMethods, Dataset[tuple[Tensor, Tensor]]):
    """A small training set: `condensed[i]` is (image, label), with the image in pixel space.

    `cs.condense` returns one, and `CondensedSet.load` reads one from a file. Networks train on
    `augment(normalize(images))`, or on `normalized()` without augmentation.

    Methods with a partition store several images in one: `compact` has the stored images, and `images` those that they
    decode to.

    Attributes:
        images: (N, C, H, W) float32, nominally 0..1; values may overshoot.
        labels: (N,) int64 class indices, or (N, K) float32 probabilities (soft labels).
        class_names: K names.
        mean, std: Normalisation constants per channel.
        step_sizes: (T,) float32 sizes of the gradient-descent steps that were learned with the images, or None.
        provenance: How the set was made: method, recipe, seed, version, fingerprint of the source data, seconds, …
        compact: The stored images, each of which decodes to several of `images`. None: `images` are stored.
        partition: A stored image holds the square of this number of images.
        decoder: How stored images are decoded: "bilinear", "bicubic" or "dct".
        whitening: ZCA whitening that networks expect in place of the normalisation. None: images are normalised.

    Raises:
        UserError: A tensor has a wrong shape, dtype or value.

    Example:
        >>> import condenset as cs
        >>> condensed = cs.condense(cs.load("digits", verbose=False).train, "random", ipc=2, verbose=False)
        >>> condensed
        CondensedSet(digits: 20 images of 1x8x8, 10 classes; random, 2 per class)
        >>> image, label = condensed[0]
        >>> tuple(image.shape), int(label)
        ((1, 8, 8), 0)
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    step_sizes: Tensor | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    compact: Tensor | None = None
    partition: int = 1
    decoder: str = "bilinear"
    whitening: Whitening | None = None

    @classmethod
    def decode(
        cls, compact: Tensor, *, labels: Tensor, partition: int = 1, decoder: str = "bilinear", **fields: Any
    ) -> CondensedSet:
        """Build a set from its stored images.

        Args:
            compact: (N, C, H, W) stored images.
            labels: Their labels. All images that one of them holds have its label.
            partition: A stored image holds the square of this number of images.
            decoder: How they are decoded: "bilinear" or "bicubic" upsampling of parts, or "dct" from low frequencies.
            fields: The other fields.
        """
        layout = PartLayout(partition, decoder)
        if layout.num_parts == 1:
            return cls(images=compact, labels=labels, **fields)
        check_stored(compact, layout, labels)
        images, all_labels = layout.decode(compact), layout.decode_labels(labels)
        return cls(images=images, labels=all_labels, compact=compact, partition=partition, decoder=decoder, **fields)

    @property
    def layout(self) -> PartLayout:
        """How the stored images hold the images."""
        return PartLayout(self.partition, self.decoder)

    @property
    def stored_images(self) -> Tensor:
        """The images that a file contains: `compact`, or `images` without a partition."""
        return self.images if self.compact is None else self.compact

    @property
    def stored_labels(self) -> Tensor:
        """The labels of the stored images."""
        return self.labels[:: self.layout.num_parts].contiguous()

    @property
    def storage_bytes(self) -> int:
        """The size of the stored images."""
        return self.stored_images.nbytes

    def __post_init__(self) -> None:
        tensors = {"images": self.images, "labels": self.labels, "step_sizes": self.step_sizes}
        for name, tensor in tensors.items():
            if tensor is not None:
                check_dense(name, tensor)
        object.__setattr__(self, "class_names", check_class_names(self.class_names))
        check_type(self.provenance, Mapping, "provenance must be a mapping")
        images = self.images
        check(images.dtype == torch.float32, "images must be float32", images.dtype)
        check(images.ndim == 4 and images.shape[1] in (1, 3), "images must be (N, 1 or 3, H, W)", tuple(images.shape))
        check(images.shape[2] == images.shape[3], "images must be square", f"{images.shape[2]}x{images.shape[3]}")
        check(len(images) > 0, "a set must have at least one image", len(images))
        check(min(images.shape[2:]) > 0, "images must have at least one pixel", tuple(images.shape))
        check(self.num_classes > 0, "a set must have at least one class", self.num_classes)
        recipe = self.provenance.get("recipe", {})
        check(isinstance(recipe, Mapping), "the recipe in the provenance must be a mapping", type(recipe).__name__)
        check(is_finite(images), "images must be finite", "NaN or infinity")
        check_labels(self.labels, len(images), self.num_classes)
        check_stored_images(self.compact, self.layout, len(images))
        if self.compact is None:
            object.__setattr__(self, "decoder", UNPARTITIONED.decoder)
        check_normalization(self)
        check_whitening(self.whitening, images)
        check_step_sizes(self.step_sizes)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        provenance, ipc = self.provenance, self.provenance.get("recipe", {}).get("ipc")
        name = f"{one_line(provenance['dataset'])}: " if "dataset" in provenance else ""
        origin = [one_line(provenance["method"])] if "method" in provenance else []
        origin += [f"{one_line(format_ipc(ipc))} per class"] if ipc is not None else []
        suffix = f"; {', '.join(origin)}" if origin else ""
        stored = "" if self.compact is None else f", stored as {len(self.compact):,}"
        return f"CondensedSet({name}{len(self):,} images of {describe_images(self)}{stored}{suffix})"

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def allow_hflip(self) -> bool:
        """Whether horizontal flips are allowed, as in the source data."""
        return bool(self.provenance.get("allow_hflip", True))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all tensors, computed once. The source data's fingerprint is in `provenance`."""
        return hash_tensors(tuple(self.images.shape), self.labels, self.images, *self._optional_tensors.values())

    @property
    def _optional_tensors(self) -> dict[str, Tensor]:
        steps = {} if self.step_sizes is None else {"step_sizes": self.step_sizes}
        return steps if self.whitening is None else steps | self.whitening.tensors

    def normalized(self) -> Tensor:
        """Return the images as networks expect them, without augmentation: (images - mean) / std, or whitened."""
        return normalize(self.images, self.mean, self.std, self.whitening)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return (pixels - mean) / std, or whitened pixels, which networks expect.

        Args:
            pixels: (N, C, H, W), uint8 or floats in 0..1.

        Returns:
            Float inputs of the same shape.

        Raises:
            UserError: The pixels have another shape, dtype or range.
        """
        return normalize_pixels(pixels, self.mean, self.std, self.whitening)

    def augment(
        self, inputs: Tensor, strategy: str = DEFAULT_STRATEGY, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Augment normalised images as `cs.evaluate` does while it trains.

        One random operation applies to the whole batch, with random parameters per image. The result is differentiable
        in `inputs`. Flips are used only if `allow_hflip`.

        Args:
            inputs: (N, C, H, W) normalised images, as `normalize` returns them.
            strategy: The augmentation strategy, as in `Protocol.augment`.
            generator: Source of the random numbers; None for PyTorch's global generator.

        Returns:
            Float inputs of the same shape.

        Raises:
            UserError: The strategy or the shape is invalid.

        Example:
            >>> import condenset as cs
            >>> condensed = cs.condense(cs.load("digits", verbose=False).train, "random", ipc=1, verbose=False)
            >>> inputs = condensed.augment(condensed.normalize(condensed.images))
            >>> tuple(inputs.shape)
            (10, 1, 8, 8)
        """
        channels = self.images.shape[1]
        return augment_inputs(inputs, channels, strategy, allow_hflip=self.allow_hflip, generator=generator)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the set to a .safetensors file, completely or not at all.

        Args:
            path: The file, which must end in .safetensors. Missing parent directories are created.
            overwrite: Replace an existing file.

        Raises:
            UserError: The file has another suffix, exists already, or cannot be written. Or the images of a partitioned
                set were changed.

        Example:
            >>> import pathlib, tempfile
            >>> import condenset as cs
            >>> data = cs.load("digits", verbose=False).train
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "digits.safetensors"
            >>> cs.condense(data, "random", ipc=1, verbose=False).save(path)
            >>> cs.CondensedSet.load(path)
            CondensedSet(digits: 10 images of 1x8x8, 10 classes; random, 1 per class)
        """
        path = expand_user(path)
        if path.suffix != ".safetensors":
            hint = "for other formats use to_folder, to_npz, to_hf, to_webdataset or to_pt"
            raise UserError(f"a set file must end in .safetensors, but got '{path}'; {hint}")
        if self.compact is not None:
            check_decoded(self.images, self.labels, self.compact, self.layout)
        metadata = {
            "format": SET_FORMAT if self.decoder != "bilinear" else 1,  # older versions read format 1
            **({} if self.compact is None else {"partition": self.partition, "decoder": self.decoder}),
            "class_names": list(self.class_names),
            "mean": list(self.mean),
            "std": list(self.std),
            "provenance": dict(self.provenance),
        }
        if not overwrite and path.exists():
            replace = option("overwrite", True)
            raise UserError(f"{path} exists already; choose another name or overwrite it with {replace}")
        tensors = {"images": self.stored_images, "labels": self.stored_labels, **self._optional_tensors}
        text = encode_metadata(metadata)
        with wrap_os_errors(path):
            write_tensors(path, tensors, {"condenset": text})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CondensedSet:
        """Read a set from a .safetensors file that `save` wrote. No code in the file is run.

        Args:
            path: The file.

        Returns:
            The set, with all tensors on the CPU.

        Raises:
            UserError: The file does not exist or is not a complete, consistent set.
        """
        path = expand_user(path)
        tensors, metadata = read_tensor_file(path, "condenset", "a condensed set")
        try:
            if metadata["format"] > SET_FORMAT:
                newer = f"it was written by a newer version of condenset (format {metadata['format']})"
                raise UserError(f"{newer}; upgrade to read it")
            return cls.decode(
                tensors["images"].clone(),
                labels=tensors["labels"].clone(),
                partition=metadata.get("partition", 1),
                decoder=metadata.get("decoder", "bilinear"),  # the only one of format 1
                class_names=metadata["class_names"],
                mean=metadata["mean"],
                std=metadata["std"],
                step_sizes=tensors["step_sizes"].clone() if "step_sizes" in tensors else None,
                provenance=dict(metadata["provenance"]),
                whitening=read_whitening(tensors),
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is not a condensed set: {type(error).__name__} in its metadata") from None


def check_train_set(value: object) -> None:
    """Check that an argument is a set that networks can be trained on."""
    rule = "train_set must be a CondensedSet (from cs.condense or cs.CondensedSet.load) or ImageData"
    check_type(value, (CondensedSet, ImageData), rule)
