"""What the scales `small` and `paper` request; the experiments are recorded, not run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.experiments import EXPERIMENTS, ExperimentContext, ExperimentResult, feature_map
from condenset.methods import DMRecipe
from helpers.experiment_recorder import PoolCall, RankCall, Recorder, make_context, run_in
from helpers.reference_dm import tiny_data

SCALES = ("small", "paper")


class Expected(NamedTuple):
    ipcs: list[int]
    num_sets: int
    protocol: tuple[int, int] | None  # number of networks and epochs
    whole_epochs: int | None = None


SMALL, PAPER = (3, 300), (20, 1000)
EXPECTED = {
    "sota": (Expected([1, 10], 1, SMALL, 100), Expected([1, 10, 50], 5, PAPER, 200)),
    "batchnorm": (Expected([50], 1, SMALL), Expected([50], 5, PAPER)),
    "architectures": (Expected([50], 1, SMALL), Expected([50], 5, PAPER)),
    "networks": (Expected([10], 1, SMALL), Expected([1, 10, 50], 5, PAPER)),
    "sizes": (Expected([100, 200, 500], 1, SMALL, 100), Expected([100, 200, 500, 1000, 1250], 5, PAPER, 200)),
    "cost": (Expected([50], 1, SMALL), Expected([50], 1, PAPER)),
    "continual": (Expected([20], 1, SMALL), Expected([20], 1, (3, 1000))),
    "nas": (Expected([50], 1, None), Expected([50], 1, None)),
    "distribution": (Expected([50], 1, None), Expected([50], 1, None)),
    "generative": (Expected([1, 10], 1, SMALL), Expected([1, 10, 50], 5, PAPER)),
    "family": (Expected([10], 1, SMALL), Expected([1, 10, 50], 5, (20, 1500))),  # by the modern protocol
}


def make_recorded_context(name: str, directory: Path, scale: str, **request_fields: Any) -> ExperimentContext:
    """Return the context of an experiment on enough images for its scale."""
    size = 32 if name in ("architectures", "nas") else 8
    counts = {"sota": [430] * 3, "sizes": [1250] * 2, "continual": [20] * 10}.get(name, [60] * 3)
    return make_context(name, directory, scale, size=size, counts=counts, num_sets=0, **request_fields)


def run_recorded(name: str, directory: Path, scale: str, **request_fields: Any) -> ExperimentResult:
    """Run an experiment on enough images for its scale."""
    return run_in(make_recorded_context(name, directory, scale, **request_fields), name)


@pytest.fixture
def map_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of real images per class of each map instead of computing it."""
    sizes: list[int] = []

    def sample_real_images(data: ImageData, per_class: int, seed: int) -> Tensor:
        sizes.append(per_class)
        return torch.arange(len(data))

    class ZeroNetwork:
        def features(self, data: object, indices_N: Tensor) -> Tensor:
            return torch.zeros(len(indices_N), 2)

    monkeypatch.setattr(feature_map, "sample_real_images", sample_real_images)
    monkeypatch.setattr(feature_map, "get_reference_network", lambda *_: ZeroNetwork())
    monkeypatch.setattr(feature_map, "tsne", lambda features_NF, seed: features_NF)
    return sizes


@pytest.mark.usefixtures("rank_calls", "pool_calls", "map_sizes")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_sets_and_protocols_of_a_scale(name: str, scale: str, recorder: Recorder, tmp_path: Path) -> None:
    result, expected = run_recorded(name, tmp_path, scale), EXPECTED[name][SCALES.index(scale)]
    assert sorted({call.recipe.ipc for call in recorder.condensed.values()}) == expected.ipcs
    figure_ipcs = {"networks": (10,), "generative": tuple(expected.ipcs[-1:])}.get(name, ())
    assert result.ipcs == tuple(expected.ipcs) and result.figure_ipcs == figure_ipcs
    suffixes = {part.partition("-set")[2] for part in recorder.condensed}
    assert suffixes == {"", *(str(number) for number in range(2, expected.num_sets + 1))}
    protocols = {part == "whole": (p.num_networks, p.epochs) for part, (_, p) in recorder.scored.items()}
    assert protocols.get(False) == expected.protocol
    whole = expected.protocol and expected.whole_epochs and (expected.protocol[0], expected.whole_epochs)
    assert protocols.get(True) == whole


@pytest.mark.usefixtures("pool_calls", "map_sizes")
@pytest.mark.parametrize("scale", ("tiny", *SCALES))
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_states_its_recipes_and_protocols(
    name: str, scale: str, recorder: Recorder, rank_calls: dict[str, RankCall], tmp_path: Path
) -> None:
    context = make_recorded_context(name, tmp_path, scale)
    recipes, protocols = (get(context).values() for get in (EXPERIMENTS[name].recipes_for, EXPERIMENTS[name].protocols))
    run_in(context, name)
    if name not in ("continual", "networks"):  # their recipes depend on the step and on the pool
        assert {call.recipe for call in recorder.condensed.values()} == set(recipes)
    used = {call.protocol for call in recorder.scored.values()}
    used |= {
        dataclasses.replace(call.protocol, network=call.space[0])
        for description, call in rank_calls.items()
        if not description.startswith("early")  # its steps depend on the images of the first set
    }
    assert used == set(protocols)


@pytest.mark.parametrize(("scale", "num_points"), [("small", 6), ("paper", 10)])
def test_points_of_the_cost(scale: str, num_points: int, recorder: Recorder, tmp_path: Path) -> None:
    run_recorded("cost", tmp_path, scale)
    num_steps = {name: len(call.exact_steps) for name, call in recorder.condensed.items()}
    assert num_steps == {"dsa-50": num_points, "dm-50": num_points}
    assert len(recorder.scored) == 2 * num_points


@pytest.mark.parametrize(("scale", "num_orders"), [("small", 2), ("paper", 5)])
def test_orders_and_steps_of_continual(scale: str, num_orders: int, recorder: Recorder, tmp_path: Path) -> None:
    run_recorded("continual", tmp_path, scale, methods=("random",))
    assert list(recorder.scored) == [
        f"random-{steps}-{order}-{step + 1}"
        for steps in (5, 10)
        for order in range(num_orders)
        for step in range(steps)
    ]


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize(("scale", "num", "epochs"), [("small", 20, 20), ("paper", 1000, 30)])
def test_networks_of_the_pool(scale: str, num: int, epochs: int, pool_calls: list[PoolCall], tmp_path: Path) -> None:
    run_recorded("networks", tmp_path, scale, ipcs=(1,))
    assert [(call.num_networks, call.protocol.epochs) for call in pool_calls] == [(num, epochs)]


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize(
    ("scale", "num_architectures", "num_networks", "num_top", "epochs"),
    [("small", 103, 1, 10, 20), ("paper", 720, 5, 36, 100)],
)
def test_architectures_of_the_search(
    scale: str,
    num_architectures: int,
    num_networks: int,
    num_top: int,
    epochs: int,
    rank_calls: dict[str, RankCall],
    tmp_path: Path,
) -> None:
    run_recorded("nas", tmp_path, scale)
    whole = rank_calls.pop("whole search")
    assert {len(call.space) for call in rank_calls.values()} == {num_architectures}
    protocols = {(call.protocol.num_networks, call.protocol.epochs) for call in rank_calls.values()}
    assert protocols == {(num_networks, 200)}
    assert whole.space == rank_calls["dm search"].space[:num_top]  # all proxies have the same ranking here
    assert (whole.protocol.num_networks, whole.protocol.epochs) == (num_networks, epochs)


@pytest.mark.usefixtures("recorder")
def test_real_images_of_the_map(map_sizes: list[int], tmp_path: Path) -> None:
    for scale in SCALES:
        run_recorded("distribution", tmp_path / scale, scale)
    assert map_sizes == [500, 5000]


@pytest.mark.usefixtures("rank_calls", "pool_calls", "map_sizes")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_keep_the_schedule_of_the_paper(name: str, recorder: Recorder, tmp_path: Path) -> None:
    run_recorded(name, tmp_path, "paper")
    recipes = [call.recipe for call in recorder.condensed.values() if type(call.recipe) is DMRecipe]
    assert recipes
    for recipe in recipes:
        assert (recipe.iterations, recipe.average, recipe.lr_decay, recipe.batch_size) == (20_000, 0.0, False, 256)
        assert recipe.lr == (10.0 if recipe.ipc >= 100 else 1.0)


def test_iterations_of_learning(tmp_path: Path) -> None:
    contexts = [make_context("sota", tmp_path, scale) for scale in SCALES]
    assert [context.recipe("dm", 10).iterations for context in contexts] == [2000, 20_000]  # type: ignore[attr-defined]
    digits = dataclasses.replace(tiny_data([2, 2], channels=1, size=8), name="digits")  # its presets are short
    for method, expected in (("dm", 500), ("ld", 300)):
        iterations = [context.recipe(method, 10, digits).iterations for context in contexts]  # type: ignore[attr-defined]
        assert iterations == [expected, expected]
