"""Keep trained generators in the run directory, so that sets of all sizes are drawn from the same one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from condenset.data.image_data import ImageData
from condenset.io.files import json_hash
from condenset.methods.generative.generators import ImageGenerator
from condenset.methods.generative.recipe import GenerativeRecipe
from condenset.methods.registry import method_of
from condenset.methods.trained_files import describe_inputs, read_trained, write_trained
from condenset.runs.context import RunContext

NOUN = "generator"
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
        write_trained(path, NOUN, generator.state_dict(), metadata, seconds, run)
    run.cache[_name(metadata)] = generator, seconds
    return generator, seconds


def _describe_training(data: ImageData, recipe: GenerativeRecipe, run: RunContext) -> dict[str, Any]:
    """Return everything that decides the weights of a generator, as JSON values."""
    return {
        "method": method_of(recipe).name,
        **recipe.training_fields(),
        **describe_inputs(data, run),
    }


def _name(metadata: dict[str, Any]) -> str:
    return json_hash(metadata)[:12]


def _path(metadata: dict[str, Any], run: RunContext) -> Path | None:
    return run.networks_directory / f"{_name(metadata)}.safetensors" if run.networks_directory else None


def _read(
    path: Path, metadata: dict[str, Any], build: Callable[[], ImageGenerator], run: RunContext
) -> StoredGenerator:
    """Read a generator; raise a UserError if it is not the one that `metadata` describes."""
    generator = build()
    tensors, seconds = read_trained(path, NOUN, metadata, generator.state_dict())
    generator.load_state_dict(tensors)
    return generator.to(run.compute.device).eval(), seconds
