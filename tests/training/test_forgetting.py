"""Forgetting events: equal to a count per image, and no effect on the training."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from condenset.engine import ComputeDevice
from condenset.training.dataset import DeviceDataset
from condenset.training.forgetting import ForgettingCounter
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")


def count_events(history: list[bool]) -> tuple[int, bool]:
    """Return the number of changes from right to wrong, and whether the image was ever right."""
    return sum(before and not after for before, after in itertools.pairwise(history)), any(history)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=9), st.data())
def test_events_are_counted_per_image_in_any_order(epochs: list[list[bool]], data: st.DataObject) -> None:
    counter = ForgettingCounter(3, CPU.device)
    counter.update(torch.tensor([0, 2]), torch.tensor([True, False]))
    counter.reset()  # removes the counts of an earlier network
    for right in epochs:
        order = torch.tensor(data.draw(st.permutations(range(3))))
        for batch in order.split(2):
            counter.update(batch, torch.tensor(right)[batch])
    expected = [count_events([right[image] for right in epochs]) for image in range(3)]
    highest = max(events for events, _ in expected)
    assert counter.counts_N.tolist() == [events if learned else highest + 1 for events, learned in expected]


def test_known_example() -> None:
    counter = ForgettingCounter(4, CPU.device)
    for epoch in ("0110", "1010", "0110", "1000"):  # one digit per image
        counter.update(torch.arange(4), torch.tensor([digit == "1" for digit in epoch]))
    assert counter.events_N.tolist() == [1, 2, 1, 0]
    assert counter.counts_N.tolist() == [1, 2, 1, 3]  # the last image was never learned


@pytest.mark.parametrize("batch_size", [8, 21])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_trainer_counts_the_predictions_of_its_steps(norm: str, batch_size: int) -> None:
    data = tiny_data([7, 7, 7])
    data = dataclasses.replace(data, labels=data.labels.roll(1))  # hard to learn, so that images are forgotten
    spec = f"convnet(width=8, depth=2, norm={norm!r})"
    protocol = Protocol(network=spec, epochs=20, batch_size=batch_size, augment="none", lr=0.1)
    counter, dataset = ForgettingCounter(len(data), CPU.device), DeviceDataset.from_data(data, CPU.device)
    trainer = Trainer(spec, dataset, protocol, CPU, forgetting=counter)
    epochs: list[list[bool]] = []
    weights: list[Tensor] = []

    def after_epoch(number: int) -> None:
        epochs.append(counter.right_N.tolist())
        if number > 1 and batch_size == len(data):  # one step per epoch, which uses the weights before it
            logits = trainer.model.logits(weights[-1], dataset.images(slice(None)))
            assert (logits.argmax(1) == data.labels).tolist() == epochs[-1]
        weights.append(trainer.weights.clone())

    for number in range(2):
        epochs.clear()
        trainer.train(0, number, after_epoch=after_epoch)
        expected = [count_events([right[image] for right in epochs]) for image in range(len(data))]
        assert counter.events_N.tolist() == [events for events, _ in expected]
        assert counter.learned_N.tolist() == [learned for _, learned in expected]
        assert sum(counter.events_N) > 0
    if norm == "instance" or batch_size == 8:  # the forward pass above changes the statistics of batch norm
        without_counter = Trainer(spec, dataset, protocol, CPU)
        without_counter.train(0, 1)
        assert torch.equal(trainer.weights, without_counter.weights)
