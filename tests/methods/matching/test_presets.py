"""Published methods as combinations of parts, and the combination of this project."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import torch

from condenset.engine import ComputeDevice
from condenset.methods import METHODS, DMRecipe, make_recipe
from condenset.methods.registry import method_of
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import FAMILY, tiny_recipe

CPU = ComputeDevice.select("cpu")
PRESETS = [name for name in FAMILY if name != "dm"]
SETTINGS: dict[str, dict[str, Any]] = {  # that distinguish the published methods
    "idm": {"sampler": "queue", "partition": 2, "calibration": 0.5, "objective": "mean"},
    "datadam": {"sampler": "random", "partition": 1, "features": "attention", "calibration": 0},
    "m3d": {"sampler": "random", "partition": 2, "objective": "kernel(bandwidths=5)", "calibration": 0},
    "dsdm": {"sampler": "checkpoints", "partition": 2, "objective": "covariance(weight=50)", "calibration": 0},
    "dance": {"sampler": "interpolated", "partition": 2, "objective": "mean", "calibration": 1, "pool_size": 5},
    "tgdd": {"sampler": "checkpoints", "partition": 2, "objective": "mean", "calibration": 2.5},
    "ncfm": {"sampler": "interpolated", "partition": 2, "objective": "characteristic(frequencies=4096)"},
}


def test_presets_are_those_of_the_family() -> None:
    assert set(PRESETS) == {*SETTINGS, "dmplus"}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_published_methods(name: str) -> None:
    recipe = make_recipe(name, ipc=10, name="cifar10", size=32)
    assert {field: getattr(recipe, field) for field in SETTINGS[name]} == SETTINGS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_module_states_source_and_settings(name: str) -> None:
    text = importlib.import_module(f"condenset.methods.matching.{name}").__doc__ or ""
    assert re.search(r"\((\w+ et al\., )+.*20\d\d\)", text) or name == "dmplus"
    assert "ettings" in text


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"idm", "dmplus"}))  # the contract tests cover these
def test_preset_learns(name: str) -> None:
    """Every preset is a recipe of distribution matching, and changes all images that it starts from."""
    learned, initial = (
        METHODS[name].condense(
            tiny_data([6, 5]),
            tiny_recipe(name, iterations=iterations, ipc=1),
            RunContext(seed=1, compute=CPU),
        )
        for iterations in (1, 0)
    )
    recipe = tiny_recipe(name)
    assert isinstance(recipe, DMRecipe) and method_of(recipe) is METHODS[name]
    assert learned.provenance["method"] == name
    assert learned.images.isfinite().all()
    assert (learned.images != initial.images).flatten(1).any(1).all()
    assert learned.partition == recipe.partition
    assert torch.equal(learned.labels, initial.labels)


@pytest.mark.parametrize("method", ["idm", "m3d", "dsdm", "dance", "tgdd", "ncfm", "dmplus"])
def test_digits_are_not_partitioned(method: str) -> None:
    assert make_recipe(method, ipc=10, name="digits", size=8).partition == 1
    assert make_recipe(method, ipc=10, name="own", size=32).partition == 2


def test_partition_of_dmplus_divides_every_image_size() -> None:
    for size in range(8, 66):
        for ipc in (1, 10):
            assert size % make_recipe("dmplus", ipc=ipc, name="own", size=size).partition == 0
