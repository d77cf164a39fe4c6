"""What methods count of the memory they need, and draw by what a class is known by."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import condenset as cs
from condenset import draws, networks, train
from condenset.engine import Place
from condenset.methods import METHODS, coreset
from condenset.methods.gradient import GradientMatching
from condenset.methods.matching import _need, embedding
from condenset.methods.pixels import _memory
from condenset.presets import make_recipe
from condenset.recipes import DistributionRecipe, GradientRecipe, Protocol
from condenset.runs import Run
from condenset.train import Trainer, TrainingSet, together
from plain import tiny_data

CPU = Place.best("cpu")


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_sets_that_pass_together_need_memory_for_all_of_them(norm: str) -> None:
    data = tiny_data([40] * 3)
    made = [
        DistributionRecipe(ipc=ipc, network=f"convnet(width=8, depth=2, norm={norm!r})", batch=1) for ipc in (5, 10, 15)
    ]
    network = embedding(made[0].network, data)
    both, largest, as_one = (_need(network, data, each, CPU) for each in (made[:2], made[1:2], made[2:]))
    assert both.a_class == (largest if norm == "batch" else as_one).a_class  # with batch norm one after the other
    assert both.held == as_one.held


def test_as_many_networks_train_side_by_side_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, whose free memory and kernels are made up here."""
    place, free = dataclasses.replace(CPU, device=torch.device("cuda")), 2**40
    monkeypatch.setattr(train, "by_hand", lambda network, _: isinstance(network, networks.ConvNet))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3 << 20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1 << 20)
    data = TrainingSet.of(tiny_data([40] * 2, size=32), CPU.device)

    def fitting(network: str = "convnet", **fields: int) -> int:
        return together(Protocol(network=network, **fields), data, place)  # type: ignore[arg-type]

    assert (fitting(), fitting("lenet")) == (5, 1)
    assert together(Protocol(), data, CPU) == 1
    free = 400 << 20
    some = fitting()
    assert 1 < some < 5
    assert fitting("convnet(width=256)") < some < fitting(batch=10)
    free = 0
    assert fitting() == 1


def gradient(counts: list[int], run: Run | None = None, **fields: object) -> GradientMatching:
    values = {"ipc": 3, "network": "convnet(width=8, depth=2)", "iterations": 2, "outer": 3, "inner": 2, "batch": 5}
    made = GradientRecipe(**{**values, **fields})  # type: ignore[arg-type]
    return GradientMatching(tiny_data(counts), made, run or Run(seed=3, place=CPU), [min(made.ipc, c) for c in counts])


def test_many_synthetic_images_mean_fewer_classes_at_once_however_few_real_ones() -> None:
    few, many = (len(gradient([40] * 6, Run(place=CPU, memory=3 << 20), ipc=ipc, batch=2).chunks) for ipc in (1, 40))
    assert few == 1
    assert many > 2, many


def test_pairs_of_images_count_as_memory() -> None:
    assert _memory("linear", 256, 50, 3072) == 0
    assert _memory("rbf", 256, 50, 3072) >= 4 * (256 + 50) ** 2
    assert _memory("laplacian", 256, 50, 3072) >= 4 * 256 * 50 * 3072  # its way back holds every pixel of every pair


def test_equally_forgotten_images_are_drawn_by_what_the_class_is_known_by(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []
    chosen = coreset.most_forgotten
    monkeypatch.setattr(
        coreset,
        "most_forgotten",
        lambda counts, order, num: (orders.append(order.tolist()), chosen(counts, order, num))[1],
    )
    data = dataclasses.replace(tiny_data([6, 6]), class_rows=(9, 4))
    made = make_recipe("forgetting", ipc=1, name="tiny", size=8, network="mlp(width=4)", epochs=0)
    METHODS["forgetting"](data, made, Run(place=CPU))
    assert orders == [draws.permutation(draws.make_key(0, "forgetting"), row, 6).tolist() for row in (9, 4)]


def test_own_steps_are_plain_descent_whatever_the_protocol_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Protocol] = []
    begin = Trainer.__init__

    def noted(
        self: Trainer, network: str, data: TrainingSet, protocol: Protocol, *rest: object, **more: object
    ) -> None:
        made.append(protocol)
        begin(self, network, data, protocol, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "__init__", noted)
    data = tiny_data([6, 6])
    small = cs.condense(data, "dd", ipc=1, network="mlp(width=4)", iterations=0, steps=1, epochs=1, device="cpu")
    cs.evaluate(small, data, nets=1, own_steps=True, device="cpu")
    assert [(each.momentum, each.weight_decay, each.augment) for each in made] == [(0.0, 0.0, "none")]
