"""Whiten the images of a run whose recipe asks for it."""

from __future__ import annotations

import dataclasses

from condenset.data.image_data import ImageData
from condenset.data.whitening import fit_whitening
from condenset.methods.recipe import Recipe
from condenset.runs.context import RunContext
from condenset.runs.loop import track_progress


def whiten(data: ImageData, recipe: Recipe, run: RunContext) -> ImageData:
    """Return the data with the whitening of all training images, which the jobs of a run share, if the recipe has it.

    Methods get whitened data, so they need no code of their own.
    """
    if not recipe.zca or data.whitening is not None:
        return data
    key = f"whitening {data.fingerprint}"
    if key not in run.cache:
        with track_progress(run, "whitening the images", len(data)) as report:
            run.cache[key] = fit_whitening(data.images, run.compute.device, report)
    return dataclasses.replace(data, whitening=run.cache[key], stored_fingerprint=data.fingerprint)
