"""Keep trained generators in the run directory, so that sets of all sizes are drawn from the same one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from condenset.data.image_data import ImageData
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.io.files import json_hash, write_tensors
from condenset.io.metadata import read_tensor_file
from condenset.methods.generative.generators import ImageGenerator
from condenset.methods.generative.recipe import GenerativeRecipe
from condenset.methods.registry import method_of
from condenset.runs.context import RunContext

StoredGenerator = tuple[ImageGenerator, float]
"""A generator in evaluation mode, and the seconds of its training."""


def find_generator(
    data: ImageData, recipe: GenerativeRecipe, run: RunContext, build: Callable[[], ImageGenerator]
) -> StoredGenerator | None:
    """Return the generator that data, settings and seed define, or None if the run does not have it."""
    metadata = _describe_training(data, recipe, run)
    if stored := run.cache.get(_name(metadata)):
        generator: StoredGenerator = stored
        return generator
    path = _path(metadata, run)
    return _read(path, metadata, build, run) if path and path.exists() else None


def store_generator(
    data: ImageData, recipe: GenerativeRecipe, run: RunContext, generator: ImageGenerator, seconds: float
) -> StoredGenerator:
    """Keep a generator for the other sets of the run, and in the run directory if there is one."""
    metadata = _describe_training(data, recipe, run)
    if path := _path(metadata, run):
        run.verify_identity()
        with wrap_os_errors(path):
            write_tensors(path, generator.state_dict(), {"generator": json.dumps(metadata | {"seconds": seconds})})
    run.cache[_name(metadata)] = generator, seconds
    return generator, seconds


def _describe_training(data: ImageData, recipe: GenerativeRecipe, run: RunContext) -> dict[str, Any]:
    """Return everything that decides the weights of a generator, as JSON values."""
    return {
        "method": method_of(recipe).name,
        **recipe.training_fields(),
        "seed": run.seed,
        "precision": run.compute.precision,
        "fingerprint": data.fingerprint,
        "mean": list(data.mean),
        "std": list(data.std),
        "allow_hflip": data.allow_hflip,
    }


def _name(metadata: dict[str, Any]) -> str:
    return json_hash(metadata)[:12]


def _path(metadata: dict[str, Any], run: RunContext) -> Path | None:
    return run.networks_directory / f"{_name(metadata)}.safetensors" if run.networks_directory else None


def _read(
    path: Path, metadata: dict[str, Any], build: Callable[[], ImageGenerator], run: RunContext
) -> StoredGenerator:
    """Read a generator; raise a UserError if it is not the one that `metadata` describes."""
    hint = "delete it to train the generator again"
    tensors, stored = read_tensor_file(path, "generator", "a generator of condenset", hint=hint)
    try:
        seconds = float(stored.pop("seconds"))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{path} is not a generator of condenset; {hint}") from None
    if stored != metadata:
        raise UserError(f"{path} is a generator that was trained with other settings; {hint}")
    generator = build()
    expected = {name: (tensor.dtype, tensor.shape) for name, tensor in generator.state_dict().items()}
    layout = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    if layout != expected or not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise UserError(f"{path} does not contain the tensors of this generator; {hint}")
    generator.load_state_dict(tensors)
    return generator.to(run.compute.device).eval(), seconds
