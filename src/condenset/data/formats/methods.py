"""The methods of CondensedSet that write other file formats."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from condenset.data.formats.content import SetContent
from condenset.data.formats.table import export_content
from condenset.data.whitening import Whitening
from condenset.io.progress import limit_progress


class ExportMethods:
    """Write a set in formats that other programs read. `cs.import_set` reads them again.

    All methods write decoded images, completely or not at all. Directories contain the set file set.safetensors too,
    which `import_set` reads. The methods raise a `UserError` if the path exists, unless `overwrite` is true.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    step_sizes: Tensor | None
    provenance: Mapping[str, Any]
    whitening: Whitening | None
    save: Callable[..., None]

    def to_folder(self, path: str | os.PathLike[str], *, overwrite: bool = False, verbose: bool = True) -> None:
        """Write PNG files by class, and exact values in images.npy and labels.npy."""
        self._export("folder", path, overwrite, verbose)

    def to_npz(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write an .npz file with the arrays images, labels, class_names, mean, std and metadata."""
        self._export("npz", path, overwrite)

    def to_hf(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        accuracy: str | None = None,
        verbose: bool = True,
    ) -> None:
        """Write a Hugging Face dataset, which `datasets.load_from_disk` reads, with a dataset card.

        Args:
            path: The directory.
            overwrite: Replace a directory that was exported before.
            accuracy: The accuracy to state on the card, such as `str(cs.evaluate(...))`.
            verbose: Show progress.
        """
        self._export("hf", path, overwrite, verbose, **({} if accuracy is None else {"accuracy": accuracy}))

    def to_webdataset(self, path: str | os.PathLike[str], *, overwrite: bool = False, verbose: bool = True) -> None:
        """Write a directory of tar shards with .png, .npy, .cls and .json files."""
        self._export("webdataset", path, overwrite, verbose)

    def to_pt(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write a .pt file with `data`, a list of [normalised images, labels], as published sets have it."""
        self._export("pt", path, overwrite)

    def _export(
        self, name: str, path: str | os.PathLike[str], overwrite: bool, verbose: bool = True, **provenance: str
    ) -> None:
        content = self._content(provenance)

        def save(file: Path) -> None:
            dataclasses.replace(cast(Any, self), provenance=content.provenance).save(file)

        with limit_progress(verbose):
            export_content(content, name, path, save, overwrite=overwrite)

    def _content(self, provenance: Mapping[str, str]) -> SetContent:
        images, labels = (tensor.detach().cpu().contiguous().numpy() for tensor in (self.images, self.labels))
        return SetContent(
            images=np.ascontiguousarray(images),
            labels=np.ascontiguousarray(labels),
            class_names=self.class_names,
            mean=self.mean,
            std=self.std,
            step_sizes=None if self.step_sizes is None else self.step_sizes.tolist(),
            provenance={**self.provenance, **provenance},
            is_whitened=self.whitening is not None,
        )
