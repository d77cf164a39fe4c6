"""Files in the run directory with what a method trained, so that a run trains it once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_tensors
from condenset.io.metadata import read_tensor_file
from condenset.runs.context import RunContext


def describe_inputs(data: ImageData, run: RunContext) -> dict[str, Any]:
    """Return everything except the settings that decides the result of a training, as JSON values."""
    return {
        "seed": run.seed,
        "precision": run.compute.precision,
        "fingerprint": data.fingerprint,
        "mean": list(data.mean),
        "std": list(data.std),
        "allow_hflip": data.allow_hflip,
    }


def write_trained(
    path: Path, noun: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], seconds: float, run: RunContext
) -> None:
    """Write trained tensors.

    Args:
        path: The file.
        noun: What the tensors belong to, "network" or "generator".
        tensors: The tensors by name.
        metadata: Everything that decides the tensors, as JSON values.
        seconds: The time of the training.
        run: The run.
    """
    run.verify_identity()
    with wrap_os_errors(path):
        write_tensors(path, dict(tensors), {noun: json.dumps({**metadata, "seconds": seconds})})


def read_trained(
    path: Path, noun: str, metadata: Mapping[str, Any], expected: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], float]:
    """Read trained tensors and the seconds of their training.

    Args:
        path: The file.
        noun: What the tensors belong to, "network" or "generator".
        metadata: Everything that decides the tensors.
        expected: Tensors with the names, types and shapes of those in the file.

    Raises:
        UserError: The file was written by another program or with other metadata, or its tensors are invalid.
    """
    hint = f"delete it to train the {noun} again"
    tensors, stored = read_tensor_file(path, noun, f"a {noun} of condenset", hint=hint)
    try:
        seconds = float(stored.pop("seconds"))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{path} is not a {noun} of condenset; {hint}") from None
    if stored != metadata:
        raise UserError(f"{path} is a {noun} that was trained with other settings; {hint}")
    if _layout(tensors) != _layout(expected) or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise UserError(f"{path} does not contain the tensors of this {noun}; {hint}")
    return tensors, seconds


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return type and shape of tensors by name."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
