"""Scores of sets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import nn

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.runs.context import RunContext
from condenset.training import evaluation
from condenset.training.evaluation import evaluation_hash
from condenset.training.protocol import Protocol
from condenset.training.scoring import protocol_for, score_set
from condenset.training.trainer import Trainer
from helpers.local_engine import LocalEngine
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
SPEC = "convnet(width=8, depth=2)"
ONE_NETWORK: dict[str, Any] = {"network": SPEC, "num_networks": 1, "epochs": 5, "device": "cpu"}


def make_protocol(**fields: Any) -> Protocol:
    return Protocol(**{"network": SPEC, "num_networks": 2, "epochs": 6, "batch_size": 8, "augment": "none", **fields})


def test_scores_are_a_function_of_the_seed() -> None:
    data, test_set = tiny_data([12, 12, 12]), tiny_data([20, 20, 20], seed=1)
    condensed = cs.condense(data, "random", ipc=6, device="cpu")
    fields = {**ONE_NETWORK, "num_networks": 3, "epochs": 10}
    first, again = (cs.evaluate(condensed, test_set, seed=4, **fields) for _ in range(2))
    assert first.accuracies == again.accuracies
    assert len(first.accuracies) == 3
    assert first.mean == pytest.approx(sum(first.accuracies) / 3)
    assert str(first).endswith("(3 × ConvNet)")
    assert first.protocol["epochs"] == 10
    fewer = cs.evaluate(condensed, test_set, seed=4, **{**fields, "num_networks": 2})
    assert fewer.accuracies == first.accuracies[:2]


def test_scores_can_be_repeated_from_their_protocol() -> None:
    data = tiny_data([6, 6])
    scores = cs.evaluate(data, data, device="cpu", **dataclasses.asdict(make_protocol(steps=7)))
    assert scores.protocol["steps"] == 7
    assert cs.evaluate(data, data, device="cpu", **scores.protocol).accuracies == scores.accuracies


def test_more_images_give_a_higher_accuracy() -> None:
    data = tiny_data([40] * 4)
    test_set = dataclasses.replace(data, images=data.images // 2 * 2)  # almost the same images
    fields = {"network": "convnet(width=16, depth=2)", "num_networks": 2, "epochs": 60, "device": "cpu"}
    condensed = cs.evaluate(cs.condense(data, "random", ipc=1, device="cpu"), test_set, **fields)
    whole = cs.evaluate(data, test_set, **fields)
    assert whole.mean > 0.9
    assert whole.mean > condensed.mean


def my_linear(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels * size**2, num_classes))


def test_network_may_be_a_builder(tmp_path: Path) -> None:
    data, test_set = tiny_data([12, 12]), tiny_data([20, 20], seed=1)
    fields = {"network": my_linear, "num_networks": 2, "epochs": 20, "lr": 0.05, "device": "cpu"}
    global_state = torch.get_rng_state()
    first, again, other = (cs.evaluate(data, test_set, seed=seed, **fields) for seed in (1, 1, 2))
    assert torch.equal(global_state, torch.get_rng_state())
    assert first.accuracies == again.accuracies != other.accuracies
    assert first.network == "my_linear"
    with pytest.raises(cs.UserError, match="a network that is already built"):
        cs.evaluate(data, test_set, **{**fields, "network": my_linear(3, 8, 2)})


def test_tested_networks_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([6, 6])
    run = RunContext(compute=CPU, directory=tmp_path, job="job")
    scores = score_set(data, data, make_protocol(num_networks=3), run)
    trained: list[object] = []
    iter_train = Trainer.iter_train

    def record_training(*args: Any, **options: Any) -> Any:
        trained.append(args[-1])
        return iter_train(*args, **options)

    monkeypatch.setattr(Trainer, "iter_train", record_training)
    run = RunContext(compute=CPU, directory=tmp_path, job="job")
    assert score_set(data, data, make_protocol(num_networks=3), run).accuracies == scores.accuracies
    assert score_set(data, data, make_protocol(num_networks=2), run).accuracies == scores.accuracies[:2]
    assert not trained
    assert score_set(data, data, make_protocol(num_networks=4), run).accuracies[:3] == scores.accuracies
    assert trained == [3]  # only the new network
    score_set(data, data, make_protocol(num_networks=2, epochs=1), run)
    assert trained == [3, 0, 1]  # networks of another protocol
    trained.clear()
    one, other_data = make_protocol(num_networks=1), tiny_data([6, 6], seed=5)
    score_set(data, data, one, RunContext(compute=CPU, directory=tmp_path, job="job", seed=1))
    score_set(other_data, data, one, run)
    score_set(data, other_data, one, run)
    assert trained == [0, 0, 0]  # networks of another seed, training set and test set
    seconds = sum(event["seconds"] for event in run.read_events("network")[:3])
    assert score_set(data, data, make_protocol(num_networks=3), run).seconds >= seconds


def test_hash_depends_on_everything_that_determines_an_accuracy() -> None:
    data, test_set = tiny_data([4, 4]), tiny_data([4, 4], seed=1)
    condensed = cs.condense(data, "random", ipc=2, device="cpu")
    soft_labels = torch.nn.functional.one_hot(condensed.labels).float()
    provenance = {**condensed.provenance, "allow_hflip": not condensed.allow_hflip}
    train_sets = [
        condensed,
        dataclasses.replace(condensed, images=condensed.images + 0.1),
        dataclasses.replace(condensed, labels=condensed.labels.flip(0)),
        dataclasses.replace(condensed, labels=soft_labels),
        dataclasses.replace(condensed, step_sizes=torch.ones(3)),
        dataclasses.replace(condensed, mean=(0.1,) * 3),
        dataclasses.replace(condensed, std=(0.1,) * 3),
        dataclasses.replace(condensed, provenance=provenance),
        data,
    ]
    hashes = [evaluation_hash(train_set, {"": test_set}, {}, 0, CPU) for train_set in train_sets]
    hashes.append(evaluation_hash(condensed, {"": data}, {}, 0, CPU))
    hashes.append(evaluation_hash(condensed, {"": test_set, "more": data}, {}, 0, CPU))
    hashes.append(evaluation_hash(condensed, {"": test_set}, {}, 1, CPU))
    hashes.append(evaluation_hash(condensed, {"": test_set}, {"lr": 0.5}, 0, CPU))
    hashes.append(evaluation_hash(condensed, {"": test_set}, {}, 0, dataclasses.replace(CPU, dtype=torch.bfloat16)))
    assert len(set(hashes)) == len(hashes)


def test_diverged_networks_give_a_warning(tmp_path: Path) -> None:
    data = tiny_data([6, 6])
    run = RunContext(compute=CPU, directory=tmp_path)
    for num_networks in (1, 2):  # the second time one network is read from the events
        with pytest.warns(UserWarning, match=f"{num_networks} of {num_networks} networks diverged"):
            score_set(data, data, make_protocol(num_networks=num_networks, lr=1e6, epochs=20), run)


def test_images_may_require_gradients() -> None:
    condensed, data = cs.condense(tiny_data([6, 6]), "random", ipc=2, device="cpu"), tiny_data([6, 6], seed=1)
    learned = dataclasses.replace(condensed, images=condensed.images.clone().requires_grad_())
    assert (
        cs.evaluate(learned, data, **ONE_NETWORK).accuracies == cs.evaluate(condensed, data, **ONE_NETWORK).accuracies
    )


def test_large_dataset_has_fewer_epochs() -> None:
    small, large = tiny_data([639, 640]), tiny_data([640, 640])
    condensed = cs.condense(small, "random", ipc=2, device="cpu")
    assert [protocol_for(train_set, small).epochs for train_set in (condensed, small, large)] == [1000, 1000, 200]


def test_network_that_only_the_set_names_has_a_size_limit() -> None:
    data = tiny_data([4, 4])
    condensed = cs.condense(data, "random", ipc=2, device="cpu")

    def learned_with(network: object) -> cs.CondensedSet:
        return dataclasses.replace(condensed, provenance={**condensed.provenance, "recipe": {"network": network}})

    large = "convnet(width=4096, depth=32, pooling='none')"
    assert protocol_for(learned_with("mlp(width=3)"), data).network == "mlp(width=3)"
    assert protocol_for(learned_with(large), data, network=large).network == large
    with pytest.raises(cs.UserError, match=r"at most 100,000,000 parameters, but got 4,68\d,\d{3},\d{3}: .* network="):
        protocol_for(learned_with(large), data)
    with pytest.raises(cs.UserError, match="a network must be"):
        protocol_for(learned_with(7), data)
    with_step_sizes = dataclasses.replace(learned_with(large), step_sizes=torch.ones(1))
    assert protocol_for(with_step_sizes, data).network == "convnet"


def test_other_shapes_and_classes_are_refused() -> None:
    condensed = cs.condense(tiny_data([4, 4]), "random", ipc=2, device="cpu")
    with pytest.raises(cs.UserError, match="image shape of the test set"):
        cs.evaluate(condensed, tiny_data([4, 4], size=16))
    with pytest.raises(cs.UserError, match="3 classes of the test set, but it lacks 'class 2': rename"):
        cs.evaluate(condensed, tiny_data([4, 4, 4]))
    with pytest.raises(cs.UserError, match=r"an option of the evaluation .*'epoch'; did you mean 'epochs'"):
        cs.evaluate(condensed, tiny_data([4, 4]), epoch=3)


def test_test_images_have_the_normalisation_of_the_set() -> None:
    data = tiny_data([12, 12, 12])
    test_set = dataclasses.replace(tiny_data([30, 30, 30], seed=1), mean=(0.1,) * 3, std=(0.9,) * 3)
    same = dataclasses.replace(test_set, mean=data.mean, std=data.std)
    assert cs.evaluate(data, test_set, **ONE_NETWORK).accuracies == cs.evaluate(data, same, **ONE_NETWORK).accuracies


@pytest.mark.parametrize("num_parallel", [2, 3])
def test_networks_in_parallel_have_the_same_accuracies(num_parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, test_set = tiny_data([6, 6]), tiny_data([9, 9])
    fields = {"network": "convnet(width=8, depth=2, norm='batch')", "num_networks": 4, "epochs": 3, "batch_size": 5}
    expected = cs.evaluate(data, test_set, device="cpu", **fields)
    monkeypatch.setattr(evaluation, "num_parallel", lambda *_: num_parallel)
    assert cs.evaluate(data, test_set, device="cpu", **fields).accuracies == expected.accuracies


@pytest.mark.parametrize("method", [None, "random"])
def test_networks_of_tasks_have_the_same_accuracies_and_events(method: str | None, tmp_path: Path) -> None:
    data, test_set = tiny_data([6, 6]), tiny_data([9, 9], seed=1)
    train_set = cs.condense(data, method, ipc=2, device="cpu", verbose=False) if method else data
    protocol = Protocol(network=SPEC, num_networks=3, epochs=3)
    compute = ComputeDevice.select("cpu")
    expected = score_set(train_set, test_set, protocol, RunContext(compute=compute))
    run = RunContext(compute=compute, directory=tmp_path, engine=LocalEngine())
    scores = score_set(train_set, test_set, protocol, run)
    assert scores.accuracies == expected.accuracies
    assert scores.confusion is not None and torch.equal(scores.confusion, expected.confusion)
    assert sorted(event["net"] for event in run.network_events()) == [0, 1, 2]
    assert not (tmp_path / "tasks").exists()
    run.engine = None  # nothing remains to be trained
    assert score_set(train_set, test_set, protocol, run).accuracies == expected.accuracies
    assert len(run.network_events()) == 3


def test_scores_count_the_predictions_of_all_networks() -> None:
    data, test_set = tiny_data([12, 12, 12]), tiny_data([5, 6, 9], seed=1)
    scores = cs.evaluate(data, test_set, network=SPEC, num_networks=2, epochs=3, device="cpu")
    assert scores.confusion is not None
    assert scores.confusion.sum(1).tolist() == [10, 12, 18] and scores.test_images == (5, 6, 9)
    assert int(scores.confusion.trace()) / 40 == pytest.approx(scores.mean)
    shares = [(accuracy or 0) * num / 20 for accuracy, num in zip(scores.per_class_accuracy, (5, 6, 9), strict=True)]
    assert sum(shares) == pytest.approx(scores.mean)
    assert scores.balanced_accuracy == pytest.approx(fmean(accuracy or 0 for accuracy in scores.per_class_accuracy))


def test_test_images_that_the_set_was_made_from_are_a_warning() -> None:
    data = tiny_data([4, 4])
    condensed = cs.condense(data, "random", ipc=1, device="cpu")
    with pytest.warns(
        UserWarning, match="contain images that the set was made from: its accuracy is too high"
    ) as warned:
        cs.evaluate(condensed, data, **{**ONE_NETWORK, "epochs": 0})
    assert warned[0].filename == __file__


def test_a_set_of_an_unknown_network_needs_a_network() -> None:
    condensed = cs.condense(tiny_data([4, 4]), "random", ipc=1, device="cpu")
    learned = dataclasses.replace(condensed, provenance={"recipe": {"network": "mymlp"}})
    with pytest.raises(cs.UserError, match="learned with your own network 'mymlp': give network="):
        cs.evaluate(learned, tiny_data([4, 4], seed=1))
    assert len(cs.evaluate(learned, tiny_data([4, 4], seed=1), **ONE_NETWORK).accuracies) == 1
