"""Published methods as combinations of parts, and the combination of this project."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from condenset.engine import ComputeDevice
from condenset.methods import METHODS, DMRecipe, make_recipe, make_recipe_for
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
    assert f"({METHODS[name].source})" in text or name == "dmplus"
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


@pytest.mark.parametrize("method", ["idm", "m3d", "dsdm", "dance", "tgdd", "ncfm", "idc"])
def test_partition_depends_on_the_image_size(method: str) -> None:
    """Parts of images below 16 pixels show too little, and the parts must divide the size."""
    sizes = (8, 14, 15, 16, 27, 28, 32, 64, 75)
    partitions = [make_recipe(method, ipc=10, name="own", size=size).partition for size in sizes]
    assert partitions == [1, 1, 1, 2, 1, 2, 2, 2, 1]
    assert make_recipe(method, ipc=10, name="digits", size=8).partition == 1


def test_dmplus_stores_more_images_in_small_sets() -> None:
    sizes = (8, 15, 16, 27, 32, 64)
    for ipc, partition in ((1, 5), (10, 3), (50, 2)):
        recipes = [make_recipe("dmplus", ipc=ipc, name="own", size=size) for size in sizes]
        assert [recipe.layout.num_parts for recipe in recipes] == [1, 1] + [partition**2] * 4


@pytest.mark.parametrize(("channels", "size"), [(1, 16), (3, 17)])
def test_dmplus_decodes_images_of_any_size_and_number_of_channels(channels: int, size: int) -> None:
    data = tiny_data([9, 9], channels=channels, size=size)
    recipe = make_recipe_for("dmplus", data, ipc=1, **{**METHODS["dmplus"].tiny, "partition": 3})
    condensed = METHODS["dmplus"].condense(data, recipe, RunContext(compute=CPU))
    assert condensed.images.shape == (18, channels, size, size)


def test_large_images_of_dmplus_have_smaller_batches() -> None:
    recipes = [make_recipe("dmplus", ipc=10, name="own", size=size) for size in (32, 64)]
    assert [(recipe.batch_size, recipe.iterations) for recipe in recipes] == [(256, 10_000), (128, 2_000)]


def test_calibration_of_dmplus_falls_with_the_size_of_the_set_and_grows_with_the_number_of_classes() -> None:
    weights = {
        name: [make_recipe("dmplus", ipc=ipc, name=name, size=32).calibration for ipc in (1, 10, 50)]
        for name in ("cifar10", "cifar100", "tinyimagenet")
    }
    assert weights == {"cifar10": [3.0, 1.0, 0.2], "cifar100": [3.0, 1.0, 0.6], "tinyimagenet": [3.0, 3.0, 0.6]}


def test_dmplus_scales_and_rotates_large_images() -> None:
    augments = {size: make_recipe("dmplus", ipc=10, name="own", size=size).augment for size in (32, 63, 64, 128)}
    assert [size for size, augment in augments.items() if augment.endswith("+scale+rotate")] == [64, 128]


def test_learning_rates_by_the_number_of_images_per_class() -> None:
    by_method = {
        "datadam": [1.0, 1.0, 10.0],
        "idm": [0.2, 10.0, 20.0],
        "m3d": [10.0, 500.0, 1000.0],
        "dsdm": [0.25, 12.5, 25.0],
        "dance": [0.25, 12.5, 25.0],
        "tgdd": [0.25, 12.5, 25.0],
        "ncfm": [0.25, 12.5, 25.0],
        "dmplus": [5.0, 50.0, 100.0],
        "idc": [0.0125, 0.625, 1.25],
    }
    recipes: dict[str, list[Any]] = {
        method: [make_recipe(method, ipc=ipc, name="own", size=32) for ipc in (1, 50, 100)] for method in by_method
    }
    assert {method: [recipe.lr for recipe in group] for method, group in recipes.items()} == by_method
    assert [recipe.calibration for recipe in recipes["tgdd"]] == [2.5, 0.5, 0.5]
    assert {method for method in by_method if METHODS[method].variant_of != "dm"} == {"dmplus", "idc"}
