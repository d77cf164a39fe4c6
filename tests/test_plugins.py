"""Methods, networks and datasets of other packages work like the built-in ones."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.config import field_names
from condenset.methods import make_recipe, make_recipe_for
from condenset.methods.common import build_condensed_set, class_labels
from condenset.methods.coresets import random
from condenset.methods.registry import RESERVED_FIELDS, describe_methods
from condenset.pipeline.request import parse_settings
from helpers.reports import make_data

PLUGIN = '''
"""An installed package that adds a method, a network and a dataset."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import condenset as cs
from condenset.data import DatasetSource, LazyDataset, make_lazy_split
from condenset.methods import Method, Recipe
from condenset.methods.common import build_condensed_set, class_labels, images_per_class
from condenset.networks import Architecture


@dataclass(frozen=True, kw_only=True)
class FirstRecipe(Recipe):
    """Settings of the method `first`."""

    offset: int = 0
    weight: float = 1.0
    note: str | None = None
    ratios: tuple[float, ...] = ()


def condense(data, recipe, run):
    """Select the first images of every class, after an offset."""
    counts = images_per_class(data, recipe)
    first = recipe.offset
    rows = [(data.labels == label).nonzero()[first : first + num, 0] for label, num in enumerate(counts)]
    pixels = data.images[torch.cat(rows)].float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    return build_condensed_set((pixels - mean) / std, class_labels(counts), data, recipe, run, 0.0)


METHOD = Method(
    name="first", recipe=FirstRecipe, condense=condense, summary="Select the first images.", is_coreset=True
)


class Linear(nn.Module):
    def __init__(self, *, channels, size, num_classes):
        super().__init__()
        self.layer = nn.Linear(channels * size**2, num_classes)

    def forward(self, images):
        return self.layer(images.flatten(1))


NETWORK = Architecture(name="linear", make=Linear, title="Linear", description="one linear layer")


def read(directory, options):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 8)
    images = (labels[:, None, None, None] * 60 + generator.integers(0, 60, (24, 1, 8, 8))).astype(np.uint8)
    train, test = make_lazy_split(images, labels), make_lazy_split(images + 1, labels)
    return LazyDataset(train, test, ("a", "b", "c"), "made up")


DATASET = DatasetSource(
    name="stripes", title="Made-up images", num_classes=3, num_train=24, num_test=24, shape=(1, 8, 8), read=read
)
'''
ENTRY_POINTS = """
[condenset.methods]
first = condenset_plugin:METHOD

[condenset.networks]
linear = condenset_plugin:NETWORK

[condenset.datasets]
stripes = condenset_plugin:DATASET
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory of installed packages with the plugin, laid out as an installer does."""
    site = tmp_path / "site"
    metadata = site / "condenset_plugin-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "condenset_plugin.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: condenset-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the method, the network and the dataset in this process."""
    (tmp_path / "condenset_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    import condenset_plugin

    cs.register_method(condenset_plugin.METHOD)
    cs.register_network(condenset_plugin.NETWORK)
    cs.register_dataset(condenset_plugin.DATASET)
    yield
    cs.METHODS.unregister("first")
    cs.NETWORKS.unregister("linear")
    cs.DATASETS.unregister("stripes")
    del sys.modules["condenset_plugin"]


@pytest.mark.usefixtures("registered")
def test_registered_items_work_from_python() -> None:
    data = cs.load("stripes", verbose=False)
    condensed = cs.condense(data.train, "first", ipc=2, offset=1, verbose=False)
    assert condensed.provenance["method"] == "first" and condensed.provenance["recipe"]["offset"] == 1
    scores = cs.evaluate(condensed, data.test, network="linear", num_networks=1, epochs=30, device="cpu", verbose=False)
    assert scores.mean > 0.5
    matched = cs.condense(data.train, "dm", ipc=1, network="linear", iterations=2, device="cpu", verbose=False)
    assert matched.provenance["recipe"]["network"] == "linear"


@pytest.mark.usefixtures("registered")
def test_settings_of_a_method_whose_module_evaluates_annotations() -> None:
    assert parse_settings(("first.offset=5", "first.weight=2", "first.note=a")) == (
        {},
        {"first": {"offset": 5, "weight": 2.0, "note": "a"}},
    )
    weight = make_recipe("first", ipc=1, name="", size=0, weight=2).weight  # type: ignore[attr-defined]
    assert (weight, type(weight)) == (2.0, float)
    fields = next(entry["fields"] for entry in describe_methods() if entry["name"] == "first")
    assert [field["type"] for field in fields if field["name"] == "offset"] == ["int"]
    types = r"its type is tuple\[float, ...\], not int, float, str, bool"  # which the guide lists
    with pytest.raises(cs.UserError, match=f"ratios cannot be set by --set: {types}"):
        parse_settings(("ratios=1",))


def test_an_installed_package_adds_items_to_the_command_line(site: Path, tmp_path: Path) -> None:
    options = "--method first --ipc 1 --network linear --nets 1 --epochs 2 --no-whole --device cpu"
    command = [sys.executable, "-m", "condenset", "run", "stripes", *options.split(), "--out", "out", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    records = json.loads(process.stdout)
    assert [(record["method"], record["network"]) for record in records] == [("first", "linear")]


def test_reserved_fields_are_the_arguments_of_the_functions_that_take_fields_as_keywords() -> None:
    signatures = [inspect.signature(function) for function in (cs.condense, make_recipe, make_recipe_for)]
    parameters = [item for signature in signatures for item in signature.parameters.values()]
    names = {item.name for item in parameters if item.kind is not item.VAR_KEYWORD}
    assert names - field_names(cs.Recipe) | {"fingerprint"} == RESERVED_FIELDS
    guide = (Path(__file__).parents[1] / "docs" / "guides" / "own-method.md").read_text()
    (line,) = [line for line in guide.splitlines() if line.startswith("- Fields cannot have")]
    assert set(line.split("`")) >= RESERVED_FIELDS


def test_a_recipe_with_a_reserved_field_is_refused() -> None:
    fields: list[tuple[str, type, object]] = [("seed", int, 1), ("name", str, "")]
    recipe = dataclasses.make_dataclass("OwnRecipe", fields, bases=(cs.Recipe,), frozen=True, kw_only=True)
    method = cs.Method(name="own", recipe=recipe, condense=random.condense, summary="Own.")
    with pytest.raises(cs.UserError, match=r"^the recipe of the method 'own' .* but got name, seed: rename them$"):
        cs.register_method(method)
    assert "own" not in cs.METHODS


def make_images(data: cs.ImageData, recipe: Any, run: Any, value: float, labels: torch.Tensor) -> cs.CondensedSet:
    """Return a set of constant images with these labels."""
    images = torch.full((len(labels), *data.images.shape[1:]), value)
    return build_condensed_set(images, labels, data, recipe, run, 0.0)


@pytest.mark.parametrize(
    ("value", "labels", "message"),
    [
        (0.0, None, "the method own must return a CondensedSet, but got None"),
        (0.0, class_labels([2, 1, 2]), "the method own must return 2 images of class 'b', but got 1"),
        (0.0, torch.full((5, 3), 1 / 3), "the method own must return 6 images, but got 5"),
        (
            float("nan"),
            class_labels([2, 2, 2]),
            "the images of the method own must be finite, but got 'NaN or infinity'",
        ),
    ],
)
def test_the_set_of_a_method_is_checked(value: float, labels: torch.Tensor | None, message: str) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OwnRecipe(cs.Recipe):
        """Settings."""

    def condense(data: cs.ImageData, recipe: Any, run: Any) -> Any:
        return None if labels is None else make_images(data, recipe, run, value, labels)

    cs.register_method(cs.Method(name="own", recipe=OwnRecipe, condense=condense, summary="Own."))
    data = make_data(class_names=("a", "b", "c"))
    try:
        with pytest.raises(cs.UserError, match=f"^{message}$"):
            cs.condense(data, "own", ipc=2, verbose=False)
        if "of class" in message:
            assert len(cs.condense(data, "own", ipc=2, allow_fewer=True, verbose=False)) == 5
    finally:
        cs.METHODS.unregister("own")
