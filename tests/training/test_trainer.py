"""The training loop, compared with PyTorch's optimiser."""

from __future__ import annotations

import contextlib
import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import condenset as cs
from condenset import augment, networks
from condenset.engine import ComputeDevice, rng
from condenset.engine.compile import build_functional
from condenset.training.dataset import DeviceDataset
from condenset.training.parallel import train_in_parallel
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.reference_dm import augment_class, tiny_data

CPU = ComputeDevice.select("cpu")
DEVICE = torch.device("cpu")


def make_protocol(**fields: Any) -> Protocol:
    spec = "convnet(width=8, depth=2)"
    return Protocol(**{"network": spec, "num_networks": 2, "epochs": 6, "batch_size": 8, "augment": "none", **fields})


def make_trainer(protocol: Protocol, data: cs.ImageData | cs.CondensedSet, **options: Any) -> Trainer:
    return Trainer(protocol.network, DeviceDataset.from_data(data, DEVICE), protocol, CPU, **options)


def mix_batch(images: Tensor, uniforms: list[float], probability: float) -> tuple[Tensor, float]:
    """Paste a box of the image before it into every image; return the images and the share of pixels outside."""
    use, area, center_x, center_y = uniforms
    size = images.shape[-1]
    half = int(math.sqrt(area) * size) // 2 if use < probability else 0
    top, left = int(center_y * size) - half, int(center_x * size) - half
    mixed, num_pasted = images.clone(), 0
    for y in range(max(top, 0), min(top + 2 * half, size)):
        for x in range(max(left, 0), min(left + 2 * half, size)):
            num_pasted += 1
            for index in range(len(images)):
                mixed[index, :, y, x] = images[index - 1, :, y, x]
    return mixed, 1 - num_pasted / size**2


def augment_batch(images: Tensor, stages: augment.Stages, key: Tensor, step: int) -> Tensor:
    """Augment images with the operations of the batch and the parameters of each image."""
    if not stages:
        return images
    uniforms = rng.uniform(key, step, torch.arange(len(images)), augment.NUM_UNIFORMS)
    columns = list(augment.CHOICE_COLUMNS)
    uniforms[:, columns] = uniforms[0, columns]
    return torch.cat([augment_class(image[None], stages, u) for image, u in zip(images, uniforms, strict=True)])


def train_with_torch(protocol: Protocol, data: cs.ImageData, *tags: str | int) -> nn.Module:
    """Train the same network on the same batches with torch.optim.SGD, as the paper's code does."""
    network = networks.build(protocol.network, channels=3, size=8, num_classes=data.num_classes)
    parameters = networks.FlatParameters(network, DEVICE)
    uniform = rng.flat_uniform(rng.make_key(0, *tags, "network"), 0, parameters.num)
    network.load_state_dict(parameters.unflatten(parameters.initialize(uniform), torch.float32), strict=False)
    images, key = (data.images.float() / 255 - 0.5) / 0.25, rng.make_key(0, *tags, "augment")
    stages, step, is_modern = augment.parse_strategy(protocol.augment), 0, protocol.schedule == "modern"

    def make_optimizer(lr: float) -> torch.optim.SGD:
        fields = {"momentum": protocol.momentum, "weight_decay": protocol.weight_decay}
        return torch.optim.SGD(network.parameters(), lr=lr, **fields)

    optimizer = make_optimizer(protocol.lr)
    num_steps = protocol.epochs * math.ceil(len(data) / protocol.batch_size)
    milestones = [num_steps * 2 // 3, num_steps * 5 // 6] if is_modern else []
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.2)
    network.train()
    for epoch in range(1, protocol.epochs + (1 if is_modern else 2)):
        order = torch.arange(len(data))
        if len(data) > protocol.batch_size or protocol.cutmix:
            order = rng.permutation(rng.make_key(0, *tags, "order"), epoch, len(data))
        for index in order.split(protocol.batch_size):
            batch, labels, share = augment_batch(images[index], stages, key, step), data.labels[index], 1.0
            if protocol.cutmix:
                uniforms = rng.uniform(key, step, torch.tensor([1 << 30]), 4)[0].tolist()
                batch, share = mix_batch(batch, uniforms, protocol.cutmix)
            logits = network(batch)
            optimizer.zero_grad()
            loss = share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(logits, labels.roll(1))
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
        if not is_modern and epoch == protocol.epochs // 2 + 1:
            optimizer = make_optimizer(0.1 * protocol.lr)
            scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [])
    return network.eval()


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("strategy", ["none", augment.DEFAULT_STRATEGY])
@pytest.mark.parametrize("batch_size", [8, 32])  # of 21 images: the last batch is smaller, or one batch has all
def test_trainer_is_sgd(norm: str, strategy: str, batch_size: int) -> None:
    spec = f"convnet(width=8, depth=2, norm={norm!r})"
    check_training(make_protocol(network=spec, augment=strategy, lr=0.05, batch_size=batch_size), tiny_data([7, 7, 7]))


@pytest.mark.parametrize(("batch_size", "epochs"), [(5, 3), (16, 6)])  # of 12 images: one batch may have all
def test_training_by_the_modern_protocol_is_sgd(batch_size: int, epochs: int) -> None:
    spec = "convnet(width=8, depth=2)"
    protocol = Protocol.modern(network=spec, epochs=epochs, lr=0.05, batch_size=batch_size)
    check_training(protocol, tiny_data([4, 4, 4]), num_networks=1)


def check_training(protocol: Protocol, data: cs.ImageData, num_networks: int = 2) -> None:
    """Check that trained networks have the weights and the accuracy of the reference."""
    trainer = make_trainer(protocol, data)
    for net in range(num_networks):  # the second network must not depend on the first
        trainer.train(0, "test", net)
        expected = train_with_torch(protocol, data, "test", net)
        weights = trainer.parameters.unflatten(trainer.weights, torch.float32)
        for name, parameter in expected.named_parameters():
            torch.testing.assert_close(weights[name], parameter.detach(), rtol=2e-3, atol=2e-4)
        for (name, expected_buffer), buffer in zip(expected.named_buffers(), trainer.buffers.values(), strict=True):
            torch.testing.assert_close(buffer, expected_buffer, rtol=2e-3, atol=2e-4, msg=name)
        test_set = tiny_data([9, 9, 9], seed=1)
        images = (test_set.images.float() / 255 - 0.5) / 0.25
        accuracy = (expected(images).argmax(1) == test_set.labels).float().mean()
        assert trainer.accuracy(DeviceDataset.from_data(test_set, DEVICE)) == pytest.approx(float(accuracy), abs=0.08)


def test_trainers_can_share_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled modules are shared, but each trainer has its own weights and running statistics."""
    data, protocol = tiny_data([7, 7, 7]), make_protocol(network="convnet(width=8, depth=2, norm='batch')")

    def train_two() -> list[Trainer]:
        trainers = [make_trainer(protocol, data) for _ in range(2)]
        for _ in train_in_parallel(
            [trainer.iter_train(0, "test", net) for net, trainer in enumerate(trainers)], DEVICE
        ):
            pass
        return trainers

    separate = train_two()
    module = separate[0].model.network
    state_before = copy.deepcopy(module.state_dict())
    monkeypatch.setattr(
        "condenset.training.model.build_functional", lambda *_, **__: (module, separate[0].model.eval_forward)
    )
    test_set = DeviceDataset.from_data(data, DEVICE)
    for shared, expected in zip(train_two(), separate, strict=True):
        assert shared.model.network is module
        assert torch.equal(shared.weights, expected.weights)
        buffers = zip(shared.export_network().buffers(), expected.export_network().buffers(), strict=True)
        assert all(torch.equal(*pair) for pair in buffers)
        assert shared.accuracy(test_set) == expected.accuracy(test_set)
    assert all(torch.equal(value, state_before[name]) for name, value in module.state_dict().items())


def test_compiled_networks_are_shared_by_trainings_with_equal_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []

    def record_key(*args: Any, batch_sizes: frozenset[int], compiling: bool) -> Any:
        keys.append((batch_sizes, compiling))
        return build_functional(*args, batch_sizes=batch_sizes, compiling=compiling)

    monkeypatch.setattr("condenset.training.model.build_functional", record_key)
    for num_images in (21, 29, 22):
        make_trainer(make_protocol(), tiny_data([num_images]))
    make_trainer(make_protocol(), tiny_data([21]), compiling=False)
    assert keys == [({8, 5}, True), ({8, 5}, True), ({8, 6}, True), ({8, 5}, False)]


def test_soft_labels_are_used() -> None:
    data = tiny_data([4, 4])
    condensed = cs.condense(data, "random", ipc=4, device="cpu")
    fields = {name: getattr(condensed, name) for name in ("images", "class_names", "mean", "std")}
    hard = cs.CondensedSet(labels=condensed.labels, **fields)
    one_hot = cs.CondensedSet(labels=F.one_hot(condensed.labels, 2).float(), **fields)
    soft = cs.CondensedSet(labels=F.one_hot(condensed.labels, 2) * 0.2 + 0.4, **fields)
    weights = []
    for train_set in (hard, one_hot, soft):
        trainer = make_trainer(make_protocol(epochs=30), train_set)
        trainer.train(0)
        weights.append(trainer.weights)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)
    assert not torch.allclose(weights[0], weights[2], rtol=1e-2, atol=1e-3)


def test_cutmix_mixes_soft_labels() -> None:
    """A training on one-hot labels equals one on classes; the order of the images is random in every epoch."""
    condensed = cs.condense(tiny_data([4, 4]), "random", ipc=4, device="cpu", verbose=False)
    fields = {name: getattr(condensed, name) for name in ("images", "class_names", "mean", "std")}
    weights = []
    for labels in (condensed.labels, F.one_hot(condensed.labels, 2).float()):
        trainer = make_trainer(make_protocol(epochs=10, cutmix=1.0), cs.CondensedSet(labels=labels, **fields))
        trainer.train(0)
        weights.append(trainer.weights)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)
    plain = make_trainer(make_protocol(epochs=10), condensed)
    plain.train(0)
    assert not torch.allclose(weights[0], plain.weights, rtol=1e-2, atol=1e-3)


def test_rates_of_the_modern_schedule() -> None:
    trainer = make_trainer(make_protocol(schedule="modern", epochs=4), tiny_data([7, 7, 7]))
    next_rates = [float(trainer.lr) for _ in trainer.iter_train(0)]  # after each of the 12 steps
    assert next_rates == pytest.approx([0.01] * 7 + [0.002] * 2 + [0.0004] * 3)


def test_number_of_steps_replaces_epochs() -> None:
    data = tiny_data([7, 7, 7])  # 3 steps per epoch
    trainer = make_trainer(make_protocol(steps=7), data)
    sizes_and_rates, epochs = [], []
    step = trainer._step

    def record_step(offsets: Tensor, streams: Tensor) -> None:
        sizes_and_rates.append((len(offsets), float(trainer.lr)))
        step(offsets, streams)

    trainer._step = record_step  # type: ignore[method-assign]
    trainer.train(0, after_epoch=epochs.append)
    assert [size for size, _ in sizes_and_rates] == [8, 8, 5, 8, 8, 5, 8]
    assert [rate for _, rate in sizes_and_rates] == pytest.approx([0.01] * 4 + [0.001] * 3)
    assert epochs == [1, 2, 3]


def test_equal_steps_and_drop_have_equal_results() -> None:
    data, weights = tiny_data([7, 7, 7]), []
    for protocol in (make_protocol(epochs=3), make_protocol(steps=12)):
        assert (protocol.training_steps(21), protocol.lr_factors(21)) == (12, {6: 0.1})
        trainer = make_trainer(protocol, data)
        trainer.train(0)
        weights.append(trainer.weights)
    assert torch.equal(*weights)


def test_parallel_training_waits_for_its_streams_even_if_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    streams = iter(("first", "second"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: SimpleNamespace(name=next(streams), wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(wait_stream=waited.append))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    training = train_in_parallel([iter([1, 2]), iter([1, 2])], torch.device("cuda"))
    assert next(training) == 1
    assert waited == []
    training.close()  # type: ignore[attr-defined]
    assert [stream.name for stream in waited] == ["first", "second"]


class UserNetwork(nn.Module):
    """A network with dropout, batch norm, a frozen random layer and a buffer that counts calls."""

    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(channels * size**2, 16).requires_grad_(False)
        self.layers = nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, num_classes))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        logits: Tensor = self.layers(self.frozen(images.flatten(1)))
        return logits


def user_network(channels: int, size: int, num_classes: int) -> nn.Module:
    return UserNetwork(channels, size, num_classes)


def test_user_networks_are_a_function_of_the_seed() -> None:
    data, protocol = tiny_data([7, 7, 7]), make_protocol(network=user_network)
    global_state, trainer, exported = torch.get_rng_state(), make_trainer(protocol, data), []
    for seed in (1, 2, 1):
        for _ in trainer.iter_train(seed, "test"):
            torch.rand(3)  # random numbers that the caller draws in between do not matter
        exported.append(trainer.export_network())
    assert not trainer.is_resumable
    first, other, again = (network.state_dict() for network in exported)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in ("frozen.weight", "layers.2.weight"))
    assert int(first["calls"]) == trainer.num_steps
    fresh = make_trainer(protocol, data)
    fresh.train(1, "test")
    assert torch.equal(fresh.weights, trainer.weights)
    torch.set_rng_state(global_state)
    fresh.train(1, "test")
    assert torch.equal(torch.get_rng_state(), global_state)


def test_user_network_is_sgd() -> None:
    """A user's network is trained by the same rule as a built-in one."""
    data = tiny_data([7, 7, 7])

    def linear_network(channels: int, size: int, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, num_classes))

    protocol = make_protocol(network=linear_network, batch_size=32, lr=0.001)
    trainer = make_trainer(protocol, data)
    trainer.train(0, "test")
    seed = int(rng.make_key(0, "test", "builder")[0])
    network = networks.build(protocol.network, channels=3, size=8, num_classes=3, seed=seed)
    images = (data.images.float() / 255 - 0.5) / 0.25
    for lr, epochs in ((0.001, 4), (0.0001, 3)):
        optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        for _ in range(epochs):
            optimizer.zero_grad()
            F.cross_entropy(network(images), data.labels).backward()
            optimizer.step()
    torch.testing.assert_close(networks.flatten_parameters(network), trainer.weights, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("size", "num_batches"), [(64, 1), (128, 2)])
def test_large_images_are_tested_in_smaller_batches(size: int, num_batches: int) -> None:
    data = DeviceDataset.from_data(tiny_data([150, 150], channels=1, size=size), CPU.device)
    trainer, batches = Trainer("mlp(width=2)", data, Protocol(network="mlp(width=2)"), CPU), []
    trainer.predict(data, lambda: batches.append(1))
    assert len(batches) == num_batches
