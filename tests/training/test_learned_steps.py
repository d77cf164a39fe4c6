"""Evaluation with the learned step sizes of a set."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.methods.common import class_labels
from condenset.training.dataset import DeviceDataset
from condenset.training.learned_steps import batch_schedule
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
SPEC = "mlp(width=16)"


def distill(data: cs.ImageData, iterations: int = 2) -> cs.CondensedSet:
    """Return a set with six learned step sizes: two epochs of three steps."""
    fields: dict[str, Any] = {"network": SPEC, "iterations": iterations, "batch_size": 32, "steps": 3, "epochs": 2}
    return cs.condense(data, "dd", ipc=2, device="cpu", **fields)


def test_evaluation_with_the_learning_rate_of_trajectory_matching() -> None:
    condensed = cs.condense(tiny_data([6, 6]), "random", ipc=2, device="cpu", verbose=False)
    learned = dataclasses.replace(condensed, provenance={**condensed.provenance, "step_size": 0.3})
    test = tiny_data([5, 5], seed=1)
    fields: dict[str, Any] = {"network": SPEC, "num_networks": 2, "device": "cpu", "verbose": False}
    scores = cs.evaluate(learned, test, learned_steps=True, epochs=29, **fields)
    expected = cs.evaluate(learned, test, lr=0.3, epochs=29, **fields)
    assert scores.accuracies == expected.accuracies and scores.protocol == {**expected.protocol, "learned_steps": True}
    assert str(scores).endswith(", own steps)")
    with pytest.raises(cs.UserError, match=r"learned_steps= replaces lr=: give only one of them"):
        cs.evaluate(learned, test, learned_steps=True, lr=0.1, **fields)
    assert scores.protocol["lr"] == 0.3 and scores.protocol["schedule"] == "paper"
    with_steps = dataclasses.replace(distill(test), provenance={**distill(test).provenance, "step_size": 0.3})
    assert cs.evaluate(with_steps, tiny_data([6, 6]), learned_steps=True, **fields).protocol["learned_steps"]
    with pytest.raises(cs.UserError, match="learned step sizes, such as those of the methods dd, gtn and mtt"):
        cs.evaluate(condensed, test, learned_steps=True, **fields)


def make_trainer(condensed: cs.CondensedSet, *, learned_steps: bool) -> Trainer:
    protocol = Protocol(network=SPEC, momentum=0, weight_decay=0, augment="none", learned_steps=learned_steps)
    return Trainer(SPEC, DeviceDataset.from_data(condensed, CPU.device), protocol, CPU)


def test_every_epoch_uses_every_image() -> None:
    for counts, steps in (([10, 10], 10), ([7, 3], 5), ([1, 1], 4), ([2, 9], 4)):
        schedule = batch_schedule(class_labels(counts), steps, 3)
        assert len(schedule) == 3 * steps
        num_uses = torch.cat(schedule[:steps]).bincount(minlength=sum(counts))
        assert len(num_uses) == sum(counts)
        assert (num_uses >= 1).all()
        assert all(len(index) for index in schedule)
    assert [index.tolist() for index in batch_schedule(class_labels([2, 2]), 2, 1)] == [[0, 2], [1, 3]]
    unsorted = torch.tensor([1, 0, 0, 1])
    assert [index.tolist() for index in batch_schedule(unsorted, 2, 1)] == [[0, 1], [2, 3]]


def test_evaluation_is_gradient_descent_with_the_step_sizes() -> None:
    data = tiny_data([6, 6])
    sizes = torch.linspace(0.01, 0.3, 6)
    condensed = dataclasses.replace(distill(data), step_sizes=sizes)
    trainer = make_trainer(condensed, learned_steps=True)
    batches = batch_schedule(condensed.labels, 3, 2)
    assert list(trainer.train_with_step_sizes(0, "evaluate", 1, batches=[], step_sizes=[])) == []
    weights = trainer.weights.clone()
    for index, size in zip(batches, sizes, strict=True):
        leaf = weights.clone().requires_grad_()
        logits = trainer.model.logits(leaf, trainer.data.images(index))
        loss = F.cross_entropy(logits, condensed.labels[index])
        weights = weights - size * torch.autograd.grad(loss, leaf)[0]
    steps = trainer.train_with_step_sizes(0, "evaluate", 1, batches=batches, step_sizes=sizes.tolist())
    assert list(steps) == [*range(1, 7)]
    torch.testing.assert_close(trainer.weights, weights)

    options: dict[str, Any] = {"num_networks": 2, "learned_steps": True, "device": "cpu"}
    test_set = tiny_data([6, 6], seed=1)
    scores = cs.evaluate(condensed, test_set, network=SPEC, **options)
    assert scores.accuracies[1] == trainer.accuracy(DeviceDataset.from_data(test_set, CPU.device))
    assert scores.accuracies == cs.evaluate(condensed, test_set, **options).accuracies
    assert scores.accuracies == cs.evaluate(condensed, test_set, **scores.protocol, device="cpu").accuracies
    with pytest.raises(cs.UserError, match=r"learned_steps= replaces epochs=, augment="):
        cs.evaluate(condensed, data, learned_steps=True, epochs=3, augment="flip", device="cpu")


def test_learned_steps_are_plain_gradient_descent_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([6, 6, 6])
    condensed = distill(data)
    trainers: list[tuple[torch.dtype, bool]] = []
    protocols: list[Protocol] = []
    init = Trainer.__init__

    def record(self: Trainer, spec: str, data: Any, protocol: Protocol, compute: ComputeDevice, **options: Any) -> None:
        protocols.append(protocol)
        trainers.append((compute.dtype, options["compiling"]))
        init(self, spec, data, protocol, compute, **options)

    monkeypatch.setattr(Trainer, "__init__", record)
    options: dict[str, Any] = {"device": "cpu", "precision": "bfloat16"}
    modern = Protocol.modern(network=SPEC, learned_steps=True, num_networks=1)
    fields: list[dict[str, Any]] = [{"protocol": modern}, {"epochs": 0, "num_networks": 1}]
    scores = [cs.evaluate(condensed, tiny_data([6, 6, 6], seed=1), **changes, **options) for changes in fields]
    assert trainers == [(torch.float32, False), (torch.bfloat16, True)]
    assert (protocols[0].momentum, protocols[0].weight_decay, protocols[0].cutmix) == (0.0, 0.0, 0.0)
    assert protocols[0].augment == "none"
    assert [score.protocol["precision"] for score in scores] == ["float32", "bfloat16"]
    assert [score.protocol["network"] for score in scores] == [SPEC, "convnet"]  # a network that needs no learned steps


def test_missing_or_invalid_steps() -> None:
    data = tiny_data([6, 6])
    with pytest.raises(cs.UserError, match="learned_steps needs a set with learned step sizes"):
        cs.evaluate(data, data, learned_steps=True, device="cpu")
    condensed = distill(data, iterations=0)
    for steps in (4, None, -1):
        invalid = dataclasses.replace(condensed, provenance={"recipe": {"steps": steps}})
        with pytest.raises(cs.UserError, match="must divide the number of step sizes, 6"):
            cs.evaluate(invalid, data, network="mlp", learned_steps=True, device="cpu")
    fixed = dataclasses.replace(condensed, provenance={"recipe": {"steps": 3, "fixed_network": True}})
    with pytest.raises(cs.UserError, match="must be learned for all initialisations of a network"):
        cs.evaluate(fixed, data, network="mlp", learned_steps=True, device="cpu")
    soft = dataclasses.replace(condensed, labels=F.one_hot(condensed.labels).float())
    with pytest.raises(cs.UserError, match="must have hard labels"):
        cs.evaluate(soft, tiny_data([6, 6], seed=1), network="mlp", learned_steps=True, device="cpu")


def test_xavier_initialisation_is_used_for_learned_steps_only() -> None:
    condensed = distill(tiny_data([6, 6]))
    for learned_steps, bound in ((True, (6 / (16 + 16)) ** 0.5), (False, 16**-0.5)):
        trainer = make_trainer(condensed, learned_steps=learned_steps)
        assert list(trainer.train_with_step_sizes(0, "evaluate", 0, batches=[], step_sizes=[])) == []
        parameters = trainer.parameters.unflatten(trainer.weights, torch.float32)
        assert 0.9 * bound < float(parameters["features.3.weight"].abs().max()) <= bound
        assert bool(parameters["features.3.bias"].any()) != learned_steps
