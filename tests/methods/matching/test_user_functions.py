"""Users' own objectives and samplers of networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from helpers.reference_dm import tiny_data

DATA = tiny_data([6, 4])
NETWORK = "convnet(width=4, depth=1)"
FAST: dict[str, Any] = {"ipc": 1, "network": NETWORK, "iterations": 3, "batch_size": 4, "device": "cpu"}


def condense(**options: Any) -> cs.CondensedSet:
    return cs.condense(DATA, "dm", verbose=False, **{**FAST, **options})


def squared_means(real: Tensor, synthetic: Tensor, real_weight: Tensor | None, weight: Tensor | None) -> Tensor:
    """Return the objective of dm."""

    def mean(features: Tensor, weights: Tensor | None) -> Tensor:
        return features.mean(1) if weights is None else (features * weights[:, :, None]).sum(1)

    return (mean(real, real_weight) - mean(synthetic, weight)).square().sum(1)


def test_an_objective_of_the_user(tmp_path: Path) -> None:
    by_name, by_function = condense(), condense(objective=squared_means)
    assert torch.allclose(by_name.images, by_function.images, atol=1e-6)
    assert by_function.provenance["recipe"]["objective"] == "squared_means"

    def tenfold(*arguments: Any) -> Tensor:
        return 10 * squared_means(*arguments)

    assert not torch.allclose(condense(objective=tenfold).images, by_name.images, atol=1e-6)
    first = condense(objective=squared_means, directory=tmp_path)
    assert torch.equal(condense(objective=squared_means, directory=tmp_path).images, first.images)


@pytest.mark.parametrize("calibration", [0.0, 1.0])
def test_a_sampler_of_the_user(calibration: float) -> None:
    iterations, trained = list[int](), nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh(), nn.Linear(5, 2))
    trained[1].weight.data.fill_(0.01)

    def alternate(iteration: int) -> nn.Module:
        iterations.append(iteration)
        width = 3 + iteration
        return trained if iteration == 1 else nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.Linear(width, 2))

    condensed = condense(sampler=alternate, calibration=calibration)
    assert iterations == [0, 0, 1, 2]  # the first network also gives the size of the embedding
    assert condensed.provenance["recipe"]["sampler"] == "alternate"
    assert condensed.provenance["networks"].startswith("those of your own sampler 'alternate', not the network")
    assert condense(sampler=alternate, calibration=calibration, network="resnet18").images.isfinite().all()
    del iterations[4:]
    assert trained.training and trained[1].weight.requires_grad
    assert torch.equal(condensed.images, condense(sampler=alternate, calibration=calibration).images)
    assert not torch.equal(condensed.images, condense(iterations=0).images)


def test_a_memory_takes_functions_too() -> None:
    memory = cs.Memory(method="dm", objective=squared_means, verbose=False, **FAST)
    memory.add(DATA)
    assert memory.set.provenance["recipe"]["objective"] == "squared_means"


def mean(*_: object) -> None: ...


def returns_a_number(*_: object) -> float:
    return 0.5


def returns_zeros(real: Tensor, *_: object) -> Tensor:
    return torch.zeros(len(real))


def builds_for_another_size(_: object) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 2))


def grows(iteration: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192 + iteration, 2))


def fails(*_: object) -> Tensor:
    raise ValueError("a reason")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": mean}, "your own objective must not have the name of a built-in one, but got 'mean'"),
        ({"objective": lambda *_: None}, "your own objective must have a name: define it with `def`"),
        ({"objective": returns_a_number}, r"must return one distance per class, of shape \(2,\), but got 'float'"),
        ({"objective": returns_zeros}, "must depend on the synthetic features, but got 'a result without gradient'"),
        ({"objective": "mean(x"}, "an objective must be written like mean or covariance"),
        ({"objective": fails}, "objective 'fails' failed: a reason"),
        ({"sampler": fails}, "sampler 'fails' failed: a reason"),
        ({"sampler": returns_a_number}, "'returns_a_number' must return an nn.Module, but got 'float'"),
        ({"sampler": builds_for_another_size}, "the network on images of 3x8x8 failed: mat1 and mat2"),
        ({"sampler": grows}, "the network of sampler 'grows' failed: mat1 and mat2"),
        ({"sampler": "unknown"}, "sampler must be one of random"),
        ({"sampler": fails, "pool": "nets"}, "the sampler fails must come without a pool, but got"),
    ],
)
def test_invalid_functions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        condense(**options)
