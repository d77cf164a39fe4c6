"""How coresets choose, against brute force."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import condenset as cs
from condenset import networks
from condenset.draws import make_key, permutation
from condenset.engine import Place
from condenset.methods import METHODS
from condenset.methods.coreset import farthest_first, herd, most_forgotten
from condenset.presets import make_recipe
from condenset.runs import Run
from condenset.train import Forgetting, Trainer, TrainingSet
from plain import tiny_data

CPU = Place.best("cpu")
DEVICE = torch.device("cpu")
BY_NETWORK = ("herding", "kcenter", "forgetting")
FIELDS = {"network": "convnet(width=8, depth=2)", "epochs": 3, "batch": 8}


@st.composite
def clouds(draw: st.DrawFn) -> np.ndarray:
    """A few points on a coarse lattice: ties and copies are frequent, and every distance is exact."""
    num, width = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    values = draw(st.lists(st.integers(-4, 4), min_size=num * width, max_size=num * width))
    return np.array(values, dtype=np.float64).reshape(num, width)


@settings(deadline=None)
@given(clouds(), st.data())
def test_herding_takes_what_brings_the_mean_nearest(points: np.ndarray, data: st.DataObject) -> None:
    num = data.draw(st.integers(1, len(points)))
    found = herd(torch.tensor(points, dtype=torch.float64), num).tolist()
    assert len(set(found)) == num
    for place in range(num):
        gaps = {
            other: np.linalg.norm(points[[*found[:place], other]].mean(0) - points.mean(0))
            for other in set(range(len(points))) - set(found[:place])
        }
        assert gaps[found[place]] <= min(gaps.values()) + 1e-9
    assert herd(torch.tensor(points, dtype=torch.float64), len(points)).tolist()[:num] == found


@settings(deadline=None)
@given(clouds(), st.data())
def test_kcenter_is_farthest_first_and_within_twice_the_best_radius(points: np.ndarray, data: st.DataObject) -> None:
    num = data.draw(st.integers(1, len(points)))
    found = farthest_first(torch.tensor(points, dtype=torch.float64), num).tolist()
    assert len(set(found)) == num
    between = np.linalg.norm(points[:, None] - points[None], axis=2)
    from_mean = np.linalg.norm(points - points.mean(0), axis=1)
    assert from_mean[found[0]] <= from_mean.min() + 1e-9
    for place in range(1, num):
        left = sorted(set(range(len(points))) - set(found[:place]))
        gaps = between[:, found[:place]].min(1)
        assert gaps[found[place]] == gaps[left].max()
    best = min(between[:, list(centres)].min(1).max() for centres in itertools.combinations(range(len(points)), num))
    assert between[:, found].min(1).max() <= 2 * best + 1e-9


def test_herding_in_float32_is_not_led_astray_by_a_mean_far_from_zero() -> None:
    points = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    exact = herd(points.double() + 1000, 10)
    assert torch.equal(herd((points.double() + 1000).float(), 10), exact)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_the_most_forgotten_come_first_and_equals_as_the_order_has_them(counts: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    num = data.draw(st.integers(1, len(counts)))
    expected = sorted(range(len(counts)), key=lambda place: (-counts[place], order.index(place)))[:num]
    assert most_forgotten(torch.tensor(counts), torch.tensor(order), num).tolist() == expected


def tiny_recipe(method: str, **fields: object) -> object:
    return make_recipe(method, **{"ipc": 2, "name": "tiny", "size": 8, **FIELDS, **fields})  # type: ignore[arg-type]


def places_of(small: cs.CondensedSet, data: cs.ImageData) -> list[int]:
    pixels = (small.images * 255).round().to(torch.uint8)
    return [int((data.images == image).flatten(1).all(1).nonzero()[0, 0]) for image in pixels]


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("method", BY_NETWORK)
def test_a_coreset_is_its_rule_on_the_embedding_of_the_trained_network(method: str, norm: str) -> None:
    data = tiny_data([9, 4, 7])
    recipe = tiny_recipe(method, ipc=5, allow_fewer=True, network=f"convnet(width=8, depth=2, norm={norm!r})")
    run = Run(seed=3, place=CPU)
    small = METHODS[method](data, recipe, run)
    assert small.labels.tolist() == [0] * 5 + [1] * 4 + [2] * 5
    found = torch.tensor(places_of(small, data))
    assert len(set(found.tolist())) == 14

    protocol = recipe.protocol  # type: ignore[attr-defined]
    seen = Forgetting(len(data), DEVICE)
    trainer = Trainer(protocol.network, TrainingSet.of(data, DEVICE), protocol, CPU, forgetting=seen)
    trainer.train(3, "trained")
    network = networks.build(protocol.network, channels=3, size=8, num_classes=3)
    views = trainer.parameters.views(trainer.weights, torch.float32)
    network.load_state_dict({**views, **trainer.buffers})
    with torch.no_grad():
        features = network.eval().embed((data.images.float() / 255 - 0.5) / 0.25)
        features /= features.norm(dim=1, keepdim=True)
    for number, part in enumerate(found.split([5, 4, 5])):
        mine = (data.labels == number).nonzero()[:, 0]
        if method == "forgetting":
            counts = seen.counts_N[part]
            assert (counts[:-1] >= counts[1:]).all()
            assert sorted(seen.counts_N[mine].tolist())[-len(part) :] == sorted(counts.tolist())
        else:
            rule = herd if method == "herding" else farthest_first
            assert torch.equal(mine[rule(features[mine], len(part))], part)


def test_equally_forgotten_images_are_drawn_by_the_seed() -> None:
    data = tiny_data([30, 30])
    recipe = tiny_recipe("forgetting", ipc=30, epochs=0)  # one pass: nothing can be forgotten yet
    first, again, other = (
        places_of(METHODS["forgetting"](data, recipe, Run(seed=seed, place=CPU)), data) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)


def test_ties_go_by_what_a_class_is_known_as_wherever_it_stands() -> None:
    data, recipe = tiny_data([20, 20]), tiny_recipe("forgetting", ipc=3, epochs=0, network_lr=1e-9)
    known = dataclasses.replace(data, class_rows=(7, 3))
    found = places_of(METHODS["forgetting"](known, recipe, Run(place=CPU)), data)
    for number, row in enumerate(known.class_rows):
        order = permutation(make_key(0, "forgetting"), row, 20)
        chosen = (data.labels == number).nonzero()[:, 0][order[:3]]
        assert sorted(found[3 * number : 3 * number + 3]) == sorted(chosen.tolist())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"network_lr": 0}, "network_lr must be a number above 0, but got 0"),
        ({"network_lr": float("inf")}, "network_lr must be a number above 0, but got inf"),
        ({"epochs": -1}, "epochs must be a whole number, 0 or more, but got -1"),
        ({"batch": 0}, "batch must be a whole number, 1 or more, but got 0"),
        ({"augment": "blur"}, "augmentation must be one of"),
        ({"lr": 1.0}, "an option of herding must be one of"),
    ],
)
def test_recipes_validate_themselves(fields: dict[str, object], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        tiny_recipe("herding", **fields)
