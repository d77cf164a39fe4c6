"""Coreset methods: their selection rules, compared with brute force."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.engine.rng import make_key, permutation
from condenset.methods import METHODS
from condenset.methods.coresets.coreset import NetworkCoresetRecipe
from condenset.methods.coresets.forgetting import most_forgotten
from condenset.methods.coresets.herding import herd
from condenset.methods.coresets.kcenter import farthest_first
from condenset.methods.registry import make_recipe
from condenset.runs.context import RunContext
from condenset.training.dataset import DeviceDataset
from condenset.training.forgetting import ForgettingCounter
from condenset.training.trainer import Trainer
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
NETWORK_METHODS = ("herding", "kcenter", "forgetting")
FIELDS = {"network": "convnet(width=8, depth=2)", "epochs": 3, "batch_size": 8}


@st.composite
def point_sets(draw: st.DrawFn) -> np.ndarray:
    """Draw a few points on a coarse lattice: ties and copies are frequent, and distances are exact."""
    num, width = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    values = draw(st.lists(st.integers(-4, 4), min_size=num * width, max_size=num * width))
    return np.array(values, dtype=np.float64).reshape(num, width)


@given(point_sets(), st.data())
def test_herding_brings_the_mean_nearest(points: np.ndarray, data: st.DataObject) -> None:
    num = data.draw(st.integers(1, len(points)))
    selected = herd(torch.tensor(points, dtype=torch.float64), num).tolist()
    assert len(set(selected)) == num
    for position in range(num):
        before = selected[:position]
        distances = {
            index: np.linalg.norm(points[[*before, index]].mean(0) - points.mean(0))
            for index in set(range(len(points))) - set(before)
        }
        assert distances[selected[position]] <= min(distances.values()) + 1e-9
    assert herd(torch.tensor(points, dtype=torch.float64), len(points)).tolist()[:num] == selected


@given(point_sets(), st.data())
def test_kcenter_selects_the_farthest_and_is_within_twice_the_optimum(points: np.ndarray, data: st.DataObject) -> None:
    num = data.draw(st.integers(1, len(points)))
    selected = farthest_first(torch.tensor(points, dtype=torch.float64), num).tolist()
    assert len(set(selected)) == num
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    from_mean = np.linalg.norm(points - points.mean(0), axis=1)
    assert from_mean[selected[0]] <= from_mean.min() + 1e-9
    for position in range(1, num):
        remaining = sorted(set(range(len(points))) - set(selected[:position]))
        gaps = distances[:, selected[:position]].min(1)
        assert gaps[selected[position]] == gaps[remaining].max()
    optimum = min(
        distances[:, list(centres)].min(1).max() for centres in itertools.combinations(range(len(points)), num)
    )
    assert distances[:, selected].min(1).max() <= 2 * optimum + 1e-9


def test_herding_in_float32_is_exact_for_a_mean_far_from_zero() -> None:
    points = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    exact = herd(points.double() + 1000, 10)
    assert torch.equal(herd((points.double() + 1000).float(), 10), exact)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_most_forgotten_breaks_ties_by_the_given_order(counts: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    num = data.draw(st.integers(1, len(counts)))
    expected = sorted(range(len(counts)), key=lambda index: (-counts[index], order.index(index)))[:num]
    assert most_forgotten(torch.tensor(counts), torch.tensor(order), num).tolist() == expected


def tiny_recipe(method: str, **fields: Any) -> NetworkCoresetRecipe:
    recipe = make_recipe(method, **{"ipc": 2, "name": "tiny", "size": 8, **FIELDS, **fields})
    assert isinstance(recipe, NetworkCoresetRecipe)
    return recipe


def find_images(condensed: cs.CondensedSet, data: cs.ImageData) -> list[int]:
    """Return the indices of the selected images in the dataset."""
    pixels = (condensed.images * 255).round().to(torch.uint8)
    return [int((data.images == image).flatten(1).all(1).nonzero()[0, 0]) for image in pixels]


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_coreset_applies_its_rule_to_the_trained_network(method: str, norm: str) -> None:
    data = tiny_data([9, 4, 7])
    recipe = tiny_recipe(method, ipc=5, allow_fewer=True, network=f"convnet(width=8, depth=2, norm={norm!r})")
    condensed = METHODS[method].condense(data, recipe, RunContext(seed=3, compute=CPU))
    assert condensed.labels.tolist() == [0] * 5 + [1] * 4 + [2] * 5
    selected = torch.tensor(find_images(condensed, data))
    assert len(set(selected.tolist())) == 14

    protocol = recipe.protocol
    forgetting = ForgettingCounter(len(data), CPU.device)
    dataset = DeviceDataset.from_data(data, CPU.device)
    trainer = Trainer(protocol.network, dataset, protocol, CPU, forgetting=forgetting)
    trainer.train(3, "trained")
    with torch.no_grad():
        network: Any = trainer.export_network()
        features = network.embed((data.images.float() / 255 - 0.5) / 0.25)
        features /= features.norm(dim=1, keepdim=True)
    for label, class_selection in enumerate(selected.split([5, 4, 5])):
        candidates = (data.labels == label).nonzero()[:, 0]
        if method == "forgetting":
            counts = forgetting.counts_N[class_selection]
            assert (counts[:-1] >= counts[1:]).all()
            highest = sorted(forgetting.counts_N[candidates].tolist())[-len(class_selection) :]
            assert highest == sorted(counts.tolist())
        else:
            rule = herd if method == "herding" else farthest_first
            assert torch.equal(candidates[rule(features[candidates], len(class_selection))], class_selection)


def test_equally_forgotten_images_are_selected_by_the_seed() -> None:
    data = tiny_data([30, 30])
    recipe = tiny_recipe("forgetting", ipc=30, epochs=0)  # in one epoch no image can be forgotten
    first, second, other = (
        find_images(METHODS["forgetting"].condense(data, recipe, RunContext(seed=seed, compute=CPU)), data)
        for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other
    assert sorted(first) == sorted(other)


def test_ties_depend_on_the_stream_of_a_class_not_on_its_position() -> None:
    data, recipe = tiny_data([20, 20]), tiny_recipe("forgetting", ipc=3, epochs=0, network_lr=1e-9)
    with_streams = dataclasses.replace(data, class_stream_ids=(7, 3))
    condensed = METHODS["forgetting"].condense(with_streams, recipe, RunContext(compute=CPU))
    selected = find_images(condensed, data)
    for label, stream_id in enumerate(with_streams.class_stream_ids):
        order = permutation(make_key(0, "forgetting"), stream_id, 20)
        expected = (data.labels == label).nonzero()[:, 0][order[:3]]
        assert sorted(selected[3 * label : 3 * label + 3]) == sorted(expected.tolist())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"network_lr": 0}, "network_lr must be a number above 0, but got 0"),
        ({"network_lr": float("inf")}, "network_lr must be a number above 0, but got inf"),
        ({"epochs": -1}, "epochs must be .*, but got -1"),
        ({"batch_size": 0}, "batch_size must be .*, but got 0"),
        ({"augment": "blur"}, "augment.* must be one of"),
        ({"lr": 1.0}, "an option of herding must be one of"),
    ],
)
def test_invalid_recipes(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        tiny_recipe("herding", **fields)
