"""Files in the run directory with what a method trained, so that a run trains it once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from condenset import networks
from condenset.data.image_data import ImageData
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.io.files import json_hash, write_tensors
from condenset.io.metadata import read_tensor_file
from condenset.runs.context import RunContext
from condenset.training.protocol import Protocol

Result = TypeVar("Result")


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


def training_metadata(data: ImageData, protocol: Protocol, run: RunContext) -> dict[str, Any]:
    """Return everything that decides the weights of a network trained on the data, as JSON values."""
    shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
    return {
        **{key: value for key, value in dataclasses.asdict(protocol).items() if key != "num_networks"},
        "network": networks.canonical_spec(protocol.network, size=data.size),
        **networks.describe_user_network(protocol.network, **shape),
        **describe_inputs(data, run),
        **({"zca": True} if data.whitening is not None else {}),
    }


def load_or_train(
    noun: str,
    metadata: Mapping[str, Any],
    run: RunContext,
    *,
    train: Callable[[], tuple[Mapping[str, Tensor], float]],
    make_expected: Callable[[], Mapping[str, Tensor]],
    restore: Callable[[Mapping[str, Tensor], float], Result],
) -> Result:
    """Return what was trained with this metadata, from the memory of the run or from its directory; else train it.

    Args:
        noun: What is trained, "network" or "generator".
        metadata: Everything that decides the tensors, as JSON values.
        run: The run.
        train: Return the trained tensors by name, and the seconds of the training.
        make_expected: Return tensors with the names, types and shapes of those in the file.
        restore: Build the result from the tensors and the seconds.
    """
    name = json_hash(metadata)[:12]
    if name not in run.cache:
        path = run.networks_directory / f"{name}.safetensors" if run.networks_directory else None
        if path and path.exists():
            tensors, seconds = read_trained(path, noun, metadata, make_expected())
        else:
            tensors, seconds = train()
            if path:
                run.verify_identity()
                with wrap_os_errors(path):
                    write_tensors(path, dict(tensors), {noun: json.dumps({**metadata, "seconds": seconds})})
                run.delete_checkpoint()  # of the training
        run.cache[name] = restore(tensors, seconds)
    result: Result = run.cache[name]
    return result


def read_trained(
    path: Path, noun: str, metadata: Mapping[str, Any], expected: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], float]:
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
