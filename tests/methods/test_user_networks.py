"""Methods that learn with networks of users: a new network per iteration, seeded, resumable, with one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset import networks
from condenset.engine import ComputeDevice
from condenset.methods import METHODS, Method, make_recipe
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.interruption import StopAtStep
from helpers.reference_dm import tiny_data

FAST: dict[str, Any] = {"device": "cpu", "verbose": False, "ipc": 1, "seed": 1}
FIELDS: dict[str, dict[str, Any]] = {
    "dm": {"iterations": 2, "batch_size": 4},
    "dc": {"iterations": 2, "batch_size": 4, "outer_steps": 2, "inner_epochs": 1},
    "dsa": {"iterations": 2, "batch_size": 4, "outer_steps": 2, "inner_epochs": 1},
    "dd": {"iterations": 2, "batch_size": 8, "steps": 4, "epochs": 1},
    "ld": {"iterations": 2, "batch_size": 8},
}
DATA = tiny_data([6, 6])
tags_seen: set[float] = set()


class UserNetwork(nn.Module):
    """A network with dropout, batch norm, a shared layer, a frozen layer and a random buffer.

    It records the buffer of every network that sees real or synthetic images.
    """

    tag: Tensor

    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels * size**2, 6)
        self.shared, self.frozen, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, num_classes)
        self.norm, self.dropout = nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.frozen.requires_grad_(False)
        self.register_buffer("tag", torch.rand(1, 6))

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "meta" and images.any():  # a new network is checked with images of zeros
            tags_seen.add(float(self.tag.sum()))
        features = self.norm(self.first(images.flatten(1))) + self.tag
        features = self.shared(torch.tanh(self.shared(features)))
        logits: Tensor = self.last(self.dropout(torch.tanh(self.frozen(features))))
        return logits


def failing_network(channels: int, size: int, num_classes: int) -> nn.Module:
    class Failing(UserNetwork):
        def forward(self, images: Tensor) -> Tensor:
            if images.device.type != "meta" and images.any():
                raise RuntimeError("out of paint")
            return super().forward(images)

    return Failing(channels, size, num_classes)


@pytest.mark.parametrize("method", FIELDS)
def test_every_iteration_has_a_new_network(method: str) -> None:
    tags_seen.clear()
    cs.condense(DATA, method, network=UserNetwork, **FIELDS[method], **FAST)
    assert len(tags_seen) == FIELDS[method]["iterations"]


@pytest.mark.parametrize("method", FIELDS)
def test_the_global_generator_has_no_effect_on_dropout(method: str) -> None:
    results = []
    for seed in range(2):
        torch.manual_seed(seed)
        condensed = cs.condense(DATA, method, network=UserNetwork, **FIELDS[method], **FAST)
        results.append((condensed.images, condensed.labels))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("method", FIELDS)
def test_an_error_in_a_network_is_one_line(method: str) -> None:
    with pytest.raises(cs.UserError, match=r"^network 'failing_network' failed: out of paint$"):
        cs.condense(DATA, method, network=failing_network, **FIELDS[method], **FAST)


@pytest.mark.parametrize("method", FIELDS)
def test_a_resumed_run_has_the_same_result(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    fields = FIELDS[method] | ({"outer_steps": 3} if "outer_steps" in FIELDS[method] else {"iterations": 3})
    recipe = make_recipe(method, ipc=1, name="tiny", size=8, network=networks.as_spec(UserNetwork), **fields)
    compute = ComputeDevice.select("cpu")
    expected = METHODS[method].condense(DATA, recipe, RunContext(seed=1, compute=compute))
    run = RunContext(seed=1, compute=compute, directory=tmp_path)
    run.progress = StopAtStep(run, 2)  # within the use of the first network of dc and dsa
    with pytest.raises(Interrupted):
        METHODS[method].condense(DATA, recipe, run)
    resumed = METHODS[method].condense(DATA, recipe, RunContext(seed=1, compute=compute, directory=tmp_path))
    assert torch.equal(resumed.images, expected.images) and torch.equal(resumed.labels, expected.labels)


def test_a_pool_needs_a_built_in_network(tmp_path: Path) -> None:
    with pytest.raises(cs.UserError, match="must be a spec of a built-in network, but got 'UserNetwork'"):
        cs.train_pool(DATA, tmp_path / "pool", num_networks=1, network=UserNetwork, device="cpu")
    assert not (tmp_path / "pool").exists()


def test_two_methods_cannot_share_a_recipe_class() -> None:
    method = Method(name="other", recipe=cs.DMRecipe, condense=METHODS["dm"].condense, summary="A second dm.")
    with pytest.raises(cs.UserError, match="'other' must have its own recipe class, but got DMRecipe of 'dm'"):
        cs.register_method(method)
    assert "other" not in cs.METHODS
