"""The queue of networks that train on the synthetic images: training, replacement, resuming."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import augment, networks
from condenset.engine import ComputeDevice, rng
from condenset.methods import DMRecipe
from condenset.methods.matching import queue
from condenset.methods.matching.dm import DistributionMatching, can_share, condense, make_problem
from condenset.methods.matching.queue import NetworkQueue
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.interruption import StopAtStep
from helpers.loops import checkpoint_tensors
from helpers.reference_dm import augment_class, decode_image, tiny_data

CPU = ComputeDevice.select("cpu")
SPEC = "convnet(width=4, depth=1)"
SEED, NUM_CLASSES = 3, 3


@pytest.fixture(autouse=True)
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a queue in which every network is sampled and replaced within a few iterations."""
    monkeypatch.setattr(queue, "NUM_NETWORKS", 2)
    monkeypatch.setattr(queue, "MAX_STEPS", 4)


def make_recipe(**fields: Any) -> DMRecipe:
    values = {"ipc": 2, "network": SPEC, "iterations": 12, "batch_size": 4, "sampler": "queue", "calibration": 0.5}
    return DMRecipe(**{**values, **fields})


def make_matching(**fields: Any) -> tuple[DistributionMatching, NetworkQueue]:
    matching = make_problem(tiny_data([6] * NUM_CLASSES), [make_recipe(**fields)], RunContext(seed=SEED, compute=CPU))
    assert isinstance(matching.networks, NetworkQueue)
    return matching, matching.networks


def classify(weights: Tensor, networks_queue: NetworkQueue, images: Tensor) -> Tensor:
    network = networks.build(SPEC, channels=3, size=8, num_classes=NUM_CLASSES)
    return torch.func.functional_call(network, networks_queue.parameters.unflatten(weights, torch.float32), images)


def reference_training(matching: DistributionMatching, networks_queue: NetworkQueue, step: int) -> tuple[int, Tensor]:
    """Return the number of the trained network, and its weights after a step of SGD on the current images."""
    images = torch.cat(
        [decode_image(image, matching.recipe.partition) for image in matching.sets.images_KICHW.flatten(0, 1)]
    )
    labels = torch.arange(NUM_CLASSES).repeat_interleave(len(images) // NUM_CLASSES)
    stages = augment.parse_strategy(matching.recipe.augment)
    uniforms = rng.uniform(rng.make_key(SEED, "queue augment"), step, torch.arange(len(images)), augment.NUM_UNIFORMS)
    columns = list(augment.CHOICE_COLUMNS)
    uniforms[:, columns] = uniforms[0, columns]  # one choice per batch
    if stages:
        images = torch.cat([augment_class(x[None], stages, u) for x, u in zip(images, uniforms, strict=True)])
    number = int(rng.random_index(rng.make_key(SEED, "queue"), step, 2))
    weights = networks_queue.weights_QT[number].clone().requires_grad_()
    loss = F.cross_entropy(classify(weights, networks_queue, images), labels)
    optimizer = torch.optim.SGD([weights], lr=queue.LR)
    loss.backward()
    optimizer.step()
    return number, weights.detach()


@pytest.mark.parametrize(("partition", "strategy"), [(1, "none"), (2, "color+crop_flip")])
def test_training_is_a_step_of_sgd_on_the_decoded_images(partition: int, strategy: str) -> None:
    matching, networks_queue = make_matching(partition=partition, augment=strategy)
    for step in range(2):
        before = networks_queue.weights_QT.clone()
        number, expected = reference_training(matching, networks_queue, step)
        networks_queue.train(matching.clock, matching.sets)
        torch.testing.assert_close(networks_queue.weights_QT[number], expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(networks_queue.weights_QT[1 - number], before[1 - number])
        matching.clock += 1


def test_loss_of_the_networks_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "MAX_STEPS", 1000)
    matching, networks_queue = make_matching(augment="none")
    images, labels = matching.sets.decode_images(torch.arange(len(matching.sets.labels_N)))

    def mean_loss() -> float:
        losses = [F.cross_entropy(classify(row, networks_queue, images), labels) for row in networks_queue.weights_QT]
        return float(torch.stack(losses).mean())

    first = mean_loss()
    for _ in range(60):
        networks_queue.train(matching.clock, matching.sets)
        matching.clock += 1
    assert mean_loss() < 0.8 * first


def test_old_networks_are_replaced_by_new_ones() -> None:
    matching, networks_queue = make_matching(augment="none")
    assert networks_queue.ages_Q.tolist() == [0, 2]  # they do not end at the same time
    expected_ages, num_replaced = [0, 2], 0
    for step in range(12):
        number = int(rng.random_index(rng.make_key(SEED, "queue"), step, 2))
        expected_ages[number] += 1
        networks_queue.train(matching.clock, matching.sets)
        if expected_ages[number] == 4:
            expected_ages[number], num_replaced = 0, num_replaced + 1
            uniform = rng.flat_uniform(rng.make_key(SEED, "network"), step + 2, networks_queue.parameters.num)
            assert torch.equal(networks_queue.weights_QT[number], networks_queue.parameters.initialize(uniform))
        assert networks_queue.ages_Q.tolist() == expected_ages
        matching.clock += 1
    assert num_replaced >= 2


def test_calibration_uses_the_sampled_network() -> None:
    matching, networks_queue = make_matching()
    embedding = networks_queue.sample(matching.clock, torch.float32)
    classifier = networks_queue.sample_classifier(matching.clock, torch.float32)
    assert set(classifier) - set(embedding) == {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(value, classifier[name]) for name, value in embedding.items())


def test_networks_train_after_every_iteration() -> None:
    matching, networks_queue = make_matching(augment="none")
    changed = []
    for _ in range(6):
        before = networks_queue.weights_QT.clone()
        matching.step()
        changed.append((networks_queue.weights_QT != before).any(1).sum().item())
    assert changed == [1] * 6


def test_interrupted_run_resumes_with_its_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    data, recipe = tiny_data([6, 6]), make_recipe(partition=2, average=0.5, iterations=9)
    expected = condense(data, recipe, RunContext(seed=1, compute=CPU))
    for stop in (3, 7):
        run = RunContext(seed=1, compute=CPU, directory=tmp_path, job="job")
        run.progress = StopAtStep(run, stop)
        with pytest.raises(Interrupted):
            condense(data, recipe, run)
        assert {"queue.weights", "queue.ages", "average"} <= checkpoint_tensors(tmp_path).keys()
    resumed = condense(data, recipe, RunContext(seed=1, compute=CPU, directory=tmp_path, job="job"))
    assert torch.equal(resumed.images, expected.images)


def test_large_sets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "BATCH_SIZE", 4)
    batches = []
    matching, networks_queue = make_matching(augment="none")
    apply_network = networks_queue.classify
    monkeypatch.setattr(
        networks_queue, "classify", lambda network, images: batches.append(images) or apply_network(network, images)
    )
    for _ in range(2):
        networks_queue.train(matching.clock, matching.sets)
        matching.clock += 1
    images, _ = matching.sets.decode_images(torch.arange(len(matching.sets.labels_N)))
    for batch in batches:
        rows = [(images == image).flatten(1).all(1).nonzero().item() for image in batch]
        assert len(set(rows)) == 4
    assert not torch.equal(*batches)


def test_sets_of_several_sizes_do_not_share_a_queue() -> None:
    for recipe, other in itertools.product((make_recipe(ipc=1), make_recipe(ipc=2)), repeat=2):
        assert not can_share(recipe, other)
