"""Forgetting orders images with equal counts by the random stream of their class."""

from __future__ import annotations

import dataclasses

import pytest

from condenset.engine import ComputeDevice, rng
from condenset.methods import METHODS
from condenset.methods.coresets import forgetting
from condenset.methods.registry import make_recipe
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data


def test_ties_are_broken_by_the_stream_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []
    most_forgotten = forgetting.most_forgotten
    monkeypatch.setattr(
        forgetting,
        "most_forgotten",
        lambda counts, order, num: (orders.append(order.tolist()), most_forgotten(counts, order, num))[1],
    )
    data = dataclasses.replace(tiny_data([6, 6]), class_stream_ids=(9, 4))
    recipe = make_recipe("forgetting", ipc=1, name="tiny", size=8, network="mlp(width=4)", epochs=0)
    METHODS["forgetting"].condense(data, recipe, RunContext(compute=ComputeDevice.select("cpu")))
    assert orders == [rng.permutation(rng.make_key(0, "forgetting"), row, 6).tolist() for row in (9, 4)]
