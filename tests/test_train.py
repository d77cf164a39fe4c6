"""The training loop against PyTorch's own optimiser, and the evaluation protocol."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import condenset as cs
from condenset import augment, draws, evaluation, networks
from condenset.engine import Place
from condenset.engine.step import _compiled_network
from condenset.evaluation import digest_of, protocol_for, score
from condenset.recipes import Protocol
from condenset.runs import Run
from condenset.train import Trainer, TrainingSet, side_by_side
from condenset.types import of_classes
from plain import augment_class, tiny_data

CPU = Place.best("cpu")
DEVICE = torch.device("cpu")


def protocol(**fields: object) -> Protocol:
    values = {"network": "convnet(width=8, depth=2)", "nets": 2, "epochs": 6, "batch": 8, "augment": "none", **fields}
    return Protocol(**values)  # type: ignore[arg-type]


def plain_training(made: Protocol, data: cs.ImageData, *tags: str | int) -> torch.nn.Module:
    """The same network, order and augmentation, trained with torch.optim.SGD as the paper's code does it."""
    network = networks.build(made.network, channels=3, size=8, num_classes=data.num_classes)
    parameters = networks.Parameters(network, DEVICE)
    uniform = draws.flat_uniform(draws.make_key(0, *tags, "network"), 0, parameters.num)
    network.load_state_dict(parameters.views(parameters.initial(uniform), torch.float32), strict=False)
    images = (data.images.float() / 255 - 0.5) / 0.25
    operations, step, lr = augment.parse(made.augment), 0, made.lr

    def optimiser() -> torch.optim.SGD:
        return torch.optim.SGD(network.parameters(), lr=lr, momentum=made.momentum, weight_decay=made.weight_decay)

    sgd = optimiser()
    network.train()
    for number in range(1, made.epochs + 2):
        order = torch.arange(len(data))
        if len(data) > made.batch:
            order = draws.permutation(draws.make_key(0, *tags, "order"), number, len(data))
        for places in order.split(made.batch):
            batch = images[places]
            if operations:
                key = draws.make_key(0, *tags, "augment")
                uniforms = draws.uniform(key, step, torch.arange(len(batch)), augment.NUM_UNIFORMS)
                uniforms[:, 0] = uniforms[0, 0]  # the operation is the batch's, its parameters the image's
                batch = torch.cat([augment_class(x[None], operations, u) for x, u in zip(batch, uniforms, strict=True)])
            sgd.zero_grad()
            F.cross_entropy(network(batch), data.labels[places]).backward()
            sgd.step()
            step += 1
        if number == made.epochs // 2 + 1:
            lr *= 0.1
            sgd = optimiser()
    return network.eval()


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("strategy", ["none", augment.STRATEGY])
@pytest.mark.parametrize("batch", [8, 32])  # of 21 images: the last one is smaller; one has them all
def test_trainer_is_sgd(norm: str, strategy: str, batch: int) -> None:
    data = tiny_data([7, 7, 7])
    made = protocol(network=f"convnet(width=8, depth=2, norm={norm!r})", augment=strategy, lr=0.05, batch=batch)
    trainer = Trainer(made.network, TrainingSet.of(data, DEVICE), made, CPU)
    for net in range(2):  # the second must not remember the first
        trainer.train(0, "test", net)
        expected = plain_training(made, data, "test", net)
        views = trainer.parameters.views(trainer.weights, torch.float32)
        for name, parameter in expected.named_parameters():
            torch.testing.assert_close(views[name], parameter.detach(), rtol=2e-3, atol=2e-4)
        for (name, buffer), mine in zip(expected.named_buffers(), trainer.buffers.values(), strict=True):
            torch.testing.assert_close(mine, buffer, rtol=2e-3, atol=2e-4, msg=name)
        test = tiny_data([9, 9, 9], seed=1)
        images = (test.images.float() / 255 - 0.5) / 0.25
        right = (expected(images).argmax(1) == test.labels).float().mean()
        assert trainer.accuracy(TrainingSet.of(test, DEVICE)) == pytest.approx(float(right), abs=0.08)


def test_trainers_may_share_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do where it is compiled: each has weights and running statistics of its own."""
    data, made = (
        TrainingSet.of(tiny_data([7, 7, 7]), DEVICE),
        protocol(network="convnet(width=8, depth=2, norm='batch')"),
    )

    def trained() -> list[Trainer]:
        trainers = [Trainer(made.network, data, made, CPU) for _ in range(2)]
        for _ in side_by_side([each.training(0, "test", net) for net, each in enumerate(trainers)], DEVICE):
            pass
        return trainers

    apart = trained()
    module = apart[0].network, apart[0].plain
    before = copy.deepcopy(module[0].state_dict())
    monkeypatch.setattr("condenset.train.network_for", lambda *_, **__: module)
    for mine, other in zip(trained(), apart, strict=True):
        assert torch.equal(mine.weights, other.weights)
        for buffer, expected in zip(mine.result().buffers(), other.result().buffers(), strict=True):
            assert torch.equal(buffer, expected)
        assert mine.accuracy(data) == other.accuracy(data)
    assert all(torch.equal(value, before[name]) for name, value in module[0].state_dict().items())


def test_what_is_compiled_is_shared_by_trainings_on_such_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.engine.step._to_compile", lambda *_: True)  # as it is for some networks on a GPU
    _compiled_network.cache_clear()
    made, sizes = protocol(), (21, 21, 22)
    first, same, other = (Trainer(made.network, TrainingSet.of(tiny_data([n]), DEVICE), made, CPU) for n in sizes)
    assert first.network is same.network and first.forward is same.forward
    assert other.network is not first.network  # its last batch is another
    alone = Trainer(made.network, TrainingSet.of(tiny_data([21]), DEVICE), made, CPU, compiling=False)
    assert alone.network is not first.network
    _compiled_network.cache_clear()


def test_protocol_drops_the_rate_after_pass_501_of_1001() -> None:
    made = Protocol()
    assert (made.epochs, made.passes, made.drop_after) == (1000, 1001, 501)
    assert (made.nets, made.lr, made.momentum, made.weight_decay, made.batch) == (20, 0.01, 0.9, 5e-4, 256)


def test_soft_labels_are_trained_on_as_they_are() -> None:
    data = tiny_data([4, 4])
    small = cs.condense(data, "random", ipc=4, device="cpu")
    fields = {"images": small.images, "class_names": small.class_names, "mean": small.mean, "std": small.std}
    hard = cs.CondensedSet(labels=small.labels, **fields)
    same = cs.CondensedSet(labels=F.one_hot(small.labels, 2).float(), **fields)
    leaning = cs.CondensedSet(labels=F.one_hot(small.labels, 2) * 0.2 + 0.4, **fields)
    made = protocol(epochs=30)
    weights = []
    for each in (hard, same, leaning):
        trainer = Trainer(made.network, TrainingSet.of(each, DEVICE), made, CPU)
        trainer.train(0)
        weights.append(trainer.weights)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)
    assert not torch.allclose(weights[0], weights[2], rtol=1e-2, atol=1e-3)


def test_scores_are_a_function_of_the_seed() -> None:
    data, test = tiny_data([12, 12, 12]), tiny_data([20, 20, 20], seed=1)
    small = cs.condense(data, "random", ipc=6, device="cpu")
    fields = {"network": "convnet(width=8, depth=2)", "nets": 3, "epochs": 10, "device": "cpu"}
    first, again = (cs.evaluate(small, test, seed=4, **fields) for _ in range(2))
    assert first.accuracies == again.accuracies
    assert len(first.accuracies) == 3
    assert first.mean == pytest.approx(sum(first.accuracies) / 3)
    assert str(first).endswith("(3 × ConvNet)")
    assert first.protocol["epochs"] == 10
    more = cs.evaluate(small, test, seed=4, **{**fields, "nets": 2})
    assert more.accuracies == first.accuracies[:2]


def test_training_learns_and_more_images_help() -> None:
    data, test = tiny_data([40] * 4), tiny_data([40] * 4)
    fields = {"network": "convnet(width=16, depth=2)", "nets": 2, "device": "cpu"}
    few = cs.evaluate(cs.condense(data, "random", ipc=1, device="cpu"), test, epochs=60, **fields)
    all_of_it = cs.evaluate(data, test, epochs=60, **fields)
    assert all_of_it.mean > 0.9
    assert all_of_it.mean > few.mean


def test_networks_scored_before_a_stop_are_not_trained_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([6, 6])
    made = protocol(nets=3)
    full = score(data, data, made, Run(place=CPU, folder=tmp_path, job="x"))
    trained: list[object] = []
    training = Trainer.training
    monkeypatch.setattr(Trainer, "training", lambda *args, **keys: trained.append(args[-1]) or training(*args, **keys))
    run = Run(place=CPU, folder=tmp_path, job="x")
    assert score(data, data, made, run).accuracies == full.accuracies
    assert score(data, data, protocol(nets=2), run).accuracies == full.accuracies[:2]
    assert not trained
    assert score(data, data, protocol(nets=4), run).accuracies[:3] == full.accuracies
    assert trained == [3]  # only the one that is new
    score(data, data, protocol(nets=2, epochs=1), run)
    assert trained == [3, 0, 1]  # those of another protocol are other networks
    trained.clear()
    score(data, data, protocol(nets=1), Run(place=CPU, folder=tmp_path, job="x", seed=1))
    score(tiny_data([6, 6], seed=5), data, protocol(nets=1), run)
    score(data, tiny_data([6, 6], seed=5), protocol(nets=1), run)
    assert trained == [0, 0, 0]  # and so are those of another seed, and those that other images trained or tested
    known = run.events("network")[:3]
    assert score(data, data, made, run).seconds >= sum(event["seconds"] for event in known)


def test_whatever_decides_an_accuracy_is_in_its_digest() -> None:
    data, test = tiny_data([4, 4]), tiny_data([4, 4], seed=1)
    small = cs.condense(data, "random", ipc=2, device="cpu")
    soft = torch.nn.functional.one_hot(small.labels).float()
    sets = [
        small,
        dataclasses.replace(small, images=small.images + 0.1),
        dataclasses.replace(small, labels=small.labels.flip(0)),
        dataclasses.replace(small, labels=soft),
        dataclasses.replace(small, step_sizes=torch.ones(3)),
        dataclasses.replace(small, mean=(0.1,) * 3),
        dataclasses.replace(small, std=(0.1,) * 3),
        dataclasses.replace(small, provenance={**small.provenance, "can_flip": not small.can_flip}),
        data,
    ]
    found = [digest_of(each, {"": test}, {}, 0, CPU) for each in sets]
    found.append(digest_of(small, {"": data}, {}, 0, CPU))
    found.append(digest_of(small, {"": test, "more": data}, {}, 0, CPU))
    found.append(digest_of(small, {"": test}, {}, 1, CPU))
    found.append(digest_of(small, {"": test}, {"lr": 0.5}, 0, CPU))
    found.append(digest_of(small, {"": test}, {}, 0, dataclasses.replace(CPU, dtype=torch.bfloat16)))
    assert len(set(found)) == len(found)


def test_networks_that_diverged_are_told_of(tmp_path: Path) -> None:
    data = tiny_data([6, 6])
    fields = {"network": "convnet(width=8, depth=2)", "epochs": 20, "device": "cpu"}
    with pytest.warns(UserWarning, match="2 of 2 networks diverged"):
        cs.evaluate(data, data, nets=2, lr=1e6, **fields)
    for nets in (1, 2):  # also of one that was trained before a stop
        with pytest.warns(UserWarning, match=f"{nets} of {nets} networks diverged"):
            score(data, data, protocol(nets=nets, lr=1e6, epochs=20), Run(place=CPU, folder=tmp_path))


def test_a_set_that_is_still_learned_can_be_scored() -> None:
    data = tiny_data([6, 6])
    small = cs.condense(data, "random", ipc=2, device="cpu")
    learned = dataclasses.replace(small, images=small.images.clone().requires_grad_())
    fields = {"network": "convnet(width=8, depth=2)", "nets": 1, "epochs": 2, "device": "cpu"}
    assert cs.evaluate(learned, data, **fields).accuracies == cs.evaluate(small, data, **fields).accuracies


def test_a_whole_dataset_has_epochs_of_its_own() -> None:
    data = tiny_data([4, 4])
    small = cs.condense(data, "random", ipc=2, device="cpu")
    assert [protocol_for(each, data).epochs for each in (small, data)] == [1000, 200]


def test_a_network_that_only_a_set_names_has_a_bound() -> None:
    data = tiny_data([4, 4])
    small = cs.condense(data, "random", ipc=2, device="cpu")

    def learned_with(network: object) -> cs.CondensedSet:
        return dataclasses.replace(small, provenance={**small.provenance, "recipe": {"network": network}})

    vast = "convnet(width=4096, depth=32, pooling='none')"
    assert protocol_for(learned_with("mlp(width=3)"), data).network == "mlp(width=3)"
    assert protocol_for(learned_with(vast), data, network=vast).network == vast
    with pytest.raises(cs.UserError, match=r"of 4,68\d,\d{3},\d{3} parameters: above 100,000,000 name .* --network"):
        protocol_for(learned_with(vast), data)
    with pytest.raises(cs.UserError, match="a network must be written like"):
        protocol_for(learned_with(7), data)
    steps = dataclasses.replace(learned_with(vast), step_sizes=torch.ones(1))
    assert protocol_for(steps, data).network == "convnet"


def test_a_set_of_another_shape_or_other_classes_is_refused() -> None:
    small = cs.condense(tiny_data([4, 4]), "random", ipc=2, device="cpu")
    with pytest.raises(cs.UserError, match="shape of the test images"):
        cs.evaluate(small, tiny_data([4, 4], size=16))
    with pytest.raises(cs.UserError, match="test data's 3 classes, but got 2"):
        cs.evaluate(small, tiny_data([4, 4, 4]))
    with pytest.raises(cs.UserError, match=r"an option of the evaluation .*'netz'; did you mean 'nets'"):
        cs.evaluate(small, tiny_data([4, 4]), netz=3)


def test_test_images_are_seen_under_the_sets_own_normalisation() -> None:
    data = tiny_data([12, 12, 12])
    test = dataclasses.replace(tiny_data([30, 30, 30], seed=1), mean=(0.1,) * 3, std=(0.9,) * 3)
    fields = {"network": "convnet(width=8, depth=2)", "nets": 1, "epochs": 5, "device": "cpu"}
    same = dataclasses.replace(test, mean=data.mean, std=data.std)
    assert cs.evaluate(data, test, **fields).accuracies == cs.evaluate(data, same, **fields).accuracies


def test_classes_of_another_name_are_refused_but_nameless_ones_fit() -> None:
    data = tiny_data([4, 4])
    other = dataclasses.replace(data, class_names=("class 0", "class z"))
    with pytest.raises(cs.UserError, match="where that has 'class z', it has 'class 1'"):
        cs.evaluate(data, other)
    numbered = dataclasses.replace(data, class_names=("0", "1"))
    fields = {"network": "convnet(width=8, depth=2)", "nets": 1, "epochs": 0, "device": "cpu"}
    assert len(cs.evaluate(data, numbered, **fields).accuracies) == 1


@pytest.mark.parametrize("names", [("a", "b", "c"), ("0", "1", "2")])
def test_classes_in_another_order_are_matched_by_name(names: tuple[str, ...]) -> None:
    data = dataclasses.replace(tiny_data([12, 12, 12]), class_names=names)
    test = dataclasses.replace(tiny_data([5, 6, 7], seed=1), class_names=names)
    turned = of_classes(test, names[::-1])
    fields = {"network": "convnet(width=8, depth=2)", "nets": 1, "epochs": 5, "device": "cpu"}
    assert cs.evaluate(data, turned, **fields).accuracies == cs.evaluate(data, test, **fields).accuracies
    ranked = [cs.rank(["convnet(width=8, depth=2)"], data, each, epochs=5, device="cpu") for each in (test, turned)]
    assert ranked[0].rows[0].accuracy == ranked[1].rows[0].accuracy


def test_the_public_name_is_the_function_even_when_its_module_was_imported_first() -> None:
    assert callable(cs.evaluate)
    assert callable(cs.condense)
    for name in cs.__all__:
        assert type(getattr(cs, name)).__name__ != "module"


@pytest.mark.parametrize("num", [2, 3])
def test_networks_side_by_side_are_those_one_after_another(num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data, test = tiny_data([6, 6]), tiny_data([9, 9])
    fields = {"network": "convnet(width=8, depth=2, norm='batch')", "nets": 4, "epochs": 3, "batch": 5}
    alone = cs.evaluate(data, test, device="cpu", **fields)
    monkeypatch.setattr(evaluation, "together", lambda *_: num)
    assert cs.evaluate(data, test, device="cpu", **fields).accuracies == alone.accuracies


def test_a_training_of_so_many_steps_stops_there_and_drops_the_rate_halfway() -> None:
    data = tiny_data([7, 7, 7])  # 3 steps a pass
    made = protocol(steps=7)
    trainer = Trainer(made.network, TrainingSet.of(data, DEVICE), made, CPU)
    assert made.length(21) == (7, 4)
    rates, passes = [], []
    step = trainer._step
    trainer._step = lambda ahead: (rates.append((len(ahead), float(trainer.lr))), step(ahead))  # type: ignore[assignment,return-value]
    trainer.train(0, after_pass=passes.append)
    assert [num for num, _ in rates] == [8, 8, 5, 8, 8, 5, 8]
    assert [rate for _, rate in rates] == pytest.approx([0.01] * 4 + [0.001] * 3)
    assert passes == [1, 2, 3]
    assert cs.evaluate(data, data, device="cpu", **dataclasses.asdict(made)).protocol["steps"] == 7
    # The same numbers of steps and the drop at the same place: the same training.
    whole, cut = protocol(epochs=3), protocol(steps=12)
    assert whole.length(21) == (12, 6) == cut.length(21)
    weights = []
    for each in (whole, cut):
        trainer = Trainer(each.network, TrainingSet.of(data, DEVICE), each, CPU)
        trainer.train(0)
        weights.append(trainer.weights)
    assert torch.equal(*weights)


def test_streams_are_waited_for_also_when_trainings_are_left_midway(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    streams = iter(("first", "second"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: SimpleNamespace(name=next(streams), wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(wait_stream=waited.append))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    running = side_by_side([iter([1, 2]), iter([1, 2])], torch.device("cuda"))
    assert next(running) == 1
    assert waited == []
    running.close()  # type: ignore[attr-defined]
    assert [each.name for each in waited] == ["first", "second"]  # type: ignore[attr-defined]
