"""The network that a memory trains: the one that is tested, of one's own, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset.types import of_classes
from plain import tiny_data
from remembered import TRAINING, tiny_memory


def test_training_gives_the_network_that_evaluate_tests() -> None:
    data = tiny_data([12, 12, 12])
    memory = tiny_memory(ipc=4)
    memory.add(of_classes(data, ["class 2", "class 1"]))
    trained = memory.train(**TRAINING, seed=7)
    scores = cs.evaluate(memory.set, memory.seen(data), nets=1, seed=7, device="cpu", **TRAINING)
    assert trained.accuracy(data) == pytest.approx(scores.mean)
    assert not trained.training
    mine = memory.seen(data)
    assert len(mine) == 24 and mine.class_names == ("class 2", "class 1")
    assert torch.equal(mine.images, data.images[data.labels > 0])
    names = trained.predict(mine.images)
    assert trained.predict(mine) == names
    right = [name == mine.class_names[label] for name, label in zip(names, mine.labels.tolist(), strict=True)]
    assert np.mean(right) == pytest.approx(scores.mean)
    assert trained(mine.images[:5].float() / 255).shape == (5, 2)
    memory.add(of_classes(data, ["class 0"]))
    assert memory.train(**TRAINING).class_names == ("class 2", "class 1", "class 0")
    assert trained.class_names == ("class 2", "class 1")


def test_the_network_of_learned_steps_is_not_taken_without_them() -> None:
    data = tiny_data([6, 6])
    memory = cs.Memory(ipc=1, method="dd", iterations=1, steps=1, epochs=1, network="mlp(width=8)", device="cpu")
    memory.add(data)
    scores = cs.evaluate(memory.set, data, nets=1, epochs=1, device="cpu")
    assert scores.network == "ConvNet"
    assert memory.train(epochs=1).accuracy(data) == pytest.approx(scores.mean)


def test_classes_without_a_test_image_are_told_and_the_rest_is_tested() -> None:
    data, memory = tiny_data([6] * 13), tiny_memory()
    memory.add(data)
    trained, half = memory.train(**TRAINING), of_classes(data, data.class_names[:2])
    for ask in (trained.accuracy, memory.seen):
        with pytest.warns(UserWarning, match=r"left out \(11 of 13\): 'class 2', .* 'class 11', …$"):
            ask(half)
    with pytest.warns(UserWarning, match=r"classes without a test image are left out \(1 of 13\): 'class 12'$"):
        assert len(memory.seen(of_classes(data, data.class_names[:12]))) == 72


def test_pixels_that_are_none_get_one_line() -> None:
    data, memory = tiny_data([6, 6]), tiny_memory()
    memory.add(data)
    trained, images = memory.train(**TRAINING), data.images
    with pytest.raises(cs.UserError, match="pixels must be a tensor"):
        trained(images.numpy())
    grey = tiny_memory()
    grey.add(tiny_data([6, 6], channels=1))
    with pytest.raises(cs.UserError, match=r"got \(12, 8, 8\); grey ones are given as images\[:, None\]"):
        grey.train(**TRAINING)(images[:, 0])
    with pytest.raises(cs.UserError, match=r"images must be \(N, 3, 8, 8\), but got \(2, 3, 16, 16\)"):
        trained.accuracy(tiny_data([1, 1], size=16))
    assert torch.equal(trained(images.float() / 255), trained(images))
    exported = torch.export.export(trained, (images.float() / 255,)).module()
    torch.testing.assert_close(exported(images.float() / 255), trained(images))
    alone = r"images must be \(N, 3, 8, 8\), but got \(3, 8, 8\); one image alone is given as image\[None\]"
    for ask in (trained, trained.predict):
        with pytest.raises(cs.UserError, match=alone):
            ask(images[0])
        with pytest.raises(cs.UserError, match=r"must be \(N, 3, 8, 8\), but got \(12, 1, 8, 8\)$"):
            ask(images[:, :1])
        assert len(ask(images[0][None])) == 1
    with pytest.raises(cs.UserError, match=r"got \(8, 8, 3\); one image alone is given as image\[None\]"):
        trained.predict(images[0].permute(1, 2, 0).numpy())


def linear(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels * size**2, num_classes))


def test_a_network_of_one_s_own_is_trained_too() -> None:
    data, memory = tiny_data([12, 12]), tiny_memory(ipc=4)
    memory.add(data)
    state = torch.get_rng_state()
    first, again, other = (memory.train(linear, epochs=20, lr=0.05, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    images = data.images[:5].float() / 255
    assert torch.equal(first(images), again(images))
    assert not torch.equal(first(images), other(images))
    assert first.accuracy(data) > 0.6
    with pytest.raises(cs.UserError, match=r"called as builder.*a network that is built already"):
        memory.train(linear(3, 8, 2))  # type: ignore[arg-type]


def broken(channels: int, size: int, num_classes: int) -> nn.Module:
    raise RuntimeError("no such\nlayer")


def training_fails(channels: int, size: int, num_classes: int) -> nn.Module:
    class Network(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward({False: images}[self.training].flatten(1))

    return Network(channels * size**2, num_classes)


FAULTY = {
    broken: "^no such layer$",
    training_fails: "^True$",
    linear.__get__(3): "takes 3 positional arguments but 4 were given",
    (lambda c, s, k: linear(c, s + 1, k)): "shapes cannot be multiplied",
    (lambda c, s, k: linear(c, s, k + 1)): r"must give \(images, 2\) numbers, but got \(2, 3\)",
}


@pytest.mark.parametrize("builder", FAULTY, ids=range(len(FAULTY)))
def test_a_faulty_builder_is_the_user_s_mistake_with_the_reason_that_rank_gives(builder: Any) -> None:
    data, memory = tiny_data([4, 4]), tiny_memory()
    memory.add(data)
    with pytest.raises(cs.UserError, match=FAULTY[builder]) as told:
        memory.train(builder, epochs=1)
    (row,) = cs.rank({"mine": builder}, memory.set, data, epochs=1, device="cpu").rows
    assert row.reason == str(told.value)


def test_a_fault_in_a_network_of_ours_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tiny_memory()
    memory.add(tiny_data([4, 4]))
    monkeypatch.setattr("condenset.train.Trainer.train", lambda *_, **__: {}["bug"])
    with pytest.raises(KeyError, match="bug"):
        memory.train(**TRAINING)
