"""Variants of gradient matching (dcc, idc) and feature alignment (cafe) against plain implementations."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import condenset as cs
from condenset import networks
from condenset.engine import ComputeDevice
from condenset.methods.gradient.cafe import CAFERecipe, FeatureAlignment
from condenset.methods.gradient.dcc import DCCRecipe, JointGradientMatching
from condenset.methods.gradient.gradient_matching import GradientMatching
from condenset.methods.gradient.idc import EfficientMatching, IDCRecipe
from condenset.methods.registry import METHODS, make_recipe
from condenset.methods.sharding import check_divisible
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
NETWORK = "convnet(width=6, depth=2, activation='swish')"  # smooth: the kink of ReLU would magnify rounding errors
CLASSES: dict[str, Any] = {"dcc": JointGradientMatching, "idc": EfficientMatching, "cafe": FeatureAlignment}


def make_problem(name: str, counts: list[int], *, chunk: int | None = None, **fields: Any) -> Any:
    """Return a problem with a sampled network."""
    settings: dict[str, Any] = {
        "network": NETWORK,
        "batch_size": 5,
        "iterations": 2,
        "outer_steps": 3,
        "inner_epochs": 1,
        "augment": "none",
        "init": "real",
        "allow_fewer": True,
        **fields,
    }
    recipe = make_recipe(name, ipc=3, name="tiny", size=8, **settings)
    run = RunContext(seed=3, compute=CPU, classes_per_chunk=chunk)
    problem = CLASSES[name](tiny_data(counts), recipe, run, [min(3, count) for count in counts])
    problem.sample_network()
    return problem


def build_module(problem: GradientMatching) -> nn.Module:
    """Return the network of a problem as a plain module."""
    network = networks.build(NETWORK, channels=3, size=8, num_classes=problem.data.num_classes)
    parameters = problem.trainer.parameters.unflatten(problem.trainer.weights, torch.float32)
    network.load_state_dict(parameters)
    return network


def real_batches(problem: GradientMatching) -> list[Tensor]:
    """Return the real images of each class, without padding."""
    classes_K = torch.arange(problem.data.num_classes)
    index_KB = problem.store.sample_class_indices(problem.keys["real"], problem.clock, classes_K, problem.batch_size)
    images_KBCHW = problem.store.take_normalized(index_KB)
    return [images[:count] for images, count in zip(images_KBCHW, problem.data.class_counts, strict=True)]


def class_gradient(network: nn.Module, images: Tensor, label: int, **options: Any) -> dict[str, Tensor]:
    loss = F.cross_entropy(network(images), torch.full((len(images),), label))
    weights = {name: weight for name, weight in network.named_parameters() if weight.dim() > 1}
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values()), **options), strict=True))


def add(gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([item[name] for item in gradients]).sum(0) for name in gradients[0]}


def split_by_class(images: Tensor, counts: list[int]) -> list[Tensor]:
    return list(images.split([min(3, count) for count in counts]))


@pytest.mark.parametrize("counts", [[6, 6, 6], [9, 2, 5]], ids=["equal", "unequal"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_dcc_matches_the_sum_of_the_gradients(counts: list[int], chunk: int | None) -> None:
    problem = make_problem("dcc", counts, chunk=chunk)
    network, images = build_module(problem), problem.images_NCHW.clone().requires_grad_()
    real = add([class_gradient(network, batch, label) for label, batch in enumerate(real_batches(problem))])
    parts = enumerate(split_by_class(images, counts))
    synthetic = add([class_gradient(network, part, label, create_graph=True) for label, part in parts])
    loss = torch.zeros(())
    for name, gradient in real.items():
        for a, b in zip(gradient.flatten(1), synthetic[name].flatten(1), strict=True):
            loss = loss + 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-6)
    (expected,) = torch.autograd.grad(loss, images)
    (only_chunk,) = problem.chunks
    actual_loss, actual = problem.gradient(problem.images_NCHW, only_chunk)
    torch.testing.assert_close(actual_loss, loss.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("chunk", [None, 1])
def test_dcc_matches_each_class_by_itself_in_the_warm_up(chunk: int | None) -> None:
    """The first step of the first network is one of DC. The second network matches all classes jointly."""
    problem = make_problem("dcc", [6, 6], chunk=chunk, warmup=0.5)
    plain = GradientMatching(problem.data, problem.recipe, problem.run, [3, 3])
    for item in (problem, plain):
        item.make_step()(0)
    torch.testing.assert_close(problem.images_NCHW, plain.images_NCHW)
    torch.testing.assert_close(problem.losses[0], plain.losses[0])
    jointly = make_problem("dcc", [6, 6], chunk=chunk, warmup=0)
    jointly.make_step()(0)
    assert not torch.allclose(jointly.images_NCHW, plain.images_NCHW)


def test_dcc_accepts_networks_with_unused_weights() -> None:
    class TwoHeads(nn.Module):
        def __init__(self, channels: int, size: int, num_classes: int) -> None:
            super().__init__()
            self.used, self.unused = (nn.Linear(channels * size**2, num_classes) for _ in range(2))

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.used(images.flatten(1))
            return logits

    fields: dict[str, Any] = {"network": TwoHeads, "iterations": 1, "outer_steps": 1, "inner_epochs": 1, "warmup": 0.0}
    condensed = cs.condense(tiny_data([4, 4]), "dcc", ipc=1, device="cpu", verbose=False, **fields)
    assert condensed.images.isfinite().all()


def test_dcc_warm_up_is_the_first_steps_of_the_first_networks() -> None:
    problem = make_problem("dcc", [6, 6], iterations=8, outer_steps=12)
    steps = [number for number in range(8 * 12) if problem.is_warmup(number)]
    assert steps == [12 * network + step for network in (0, 1) for step in range(10)]


@pytest.mark.parametrize("counts", [[12, 12], [12, 2, 9]], ids=["equal", "unequal"])
def test_idc_matches_filters_of_decoded_images(counts: list[int]) -> None:
    problem = make_problem("idc", counts, partition=2)
    network, images = build_module(problem), problem.images_NCHW.clone().requires_grad_()
    loss = torch.zeros(())
    for label, (real, compact) in enumerate(zip(real_batches(problem), split_by_class(images, counts), strict=True)):
        quarters = [compact[:, :, y : y + 4, x : x + 4] for y in (0, 4) for x in (0, 4)]
        decoded = F.interpolate(torch.cat(quarters), size=8, mode="bilinear", align_corners=False)
        gradients = class_gradient(network, real, label), class_gradient(network, decoded, label, create_graph=True)
        for name, gradient in gradients[0].items():
            if gradient.dim() == 4:
                loss = loss + (gradient - gradients[1][name]).square().sum()
    (expected,) = torch.autograd.grad(loss, images)
    (chunk,) = problem.chunks
    actual_loss, actual = problem.gradient(problem.images_NCHW, chunk)
    torch.testing.assert_close(actual_loss, loss.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-6)


def test_idc_starts_from_real_images_and_stores_four_in_one() -> None:
    data = tiny_data([20, 20])
    fields: dict[str, Any] = {"network": NETWORK, "iterations": 0, "partition": 2, "device": "cpu", "verbose": False}
    condensed = cs.condense(data, "idc", ipc=2, **fields)
    assert (len(condensed), len(condensed.stored_images), condensed.partition) == (16, 4, 2)
    small = F.avg_pool2d(data.images / 255, 2)
    quarters = condensed.stored_images[:, :, :4, :4]
    assert all(torch.isclose(small, quarter, atol=1e-5).flatten(1).all(1).any() for quarter in quarters)


def test_dcc_refuses_a_memory_limit_that_all_classes_exceed() -> None:
    data, dcc, idc = tiny_data([6] * 3), METHODS["dcc"], METHODS["idc"]
    few, many = (make_recipe("dcc", ipc=ipc, name="tiny", size=8, network=NETWORK) for ipc in (1, 6))
    for limit in (None, 2**18):
        dcc.check(data, few, CPU, limit)
    message = r"\Adcc needs all 3 classes in one pass, which takes about .* but the memory limit is 256 KiB\Z"
    with pytest.raises(cs.UserError, match=message):
        dcc.check(data, many, CPU, 2**18)
    assert dcc.classes_per_chunk is None  # so that a plan states no chunks
    assert idc.classes_per_chunk is not None


def test_idc_advises_no_decoder_because_it_has_none() -> None:
    message = r"\Apartition must divide the image size of 8 pixels, but got 3\Z"
    with pytest.raises(cs.UserError, match=message):
        make_problem("idc", [6, 6], partition=3)
    with pytest.raises(cs.UserError, match=message):
        METHODS["idc"].check(tiny_data([6, 6]), make_recipe("idc", ipc=1, name="tiny", size=8, partition=3), CPU, None)


def test_idc_trains_its_networks_on_real_images() -> None:
    problem = make_problem("idc", [200, 100], train_images=128, outer_steps=2)
    assert len(problem.trainer.data) == 300
    assert problem.trainer.protocol.cutmix > 0
    before, step = problem.trainer.weights.clone(), problem.make_step()
    step(0)
    assert int(problem.trainer.clock) == 2  # batches of 64
    assert not torch.equal(problem.trainer.weights, before)
    assert problem.trainer.velocity.any()
    problem.sample_network()
    assert not problem.trainer.velocity.any()
    assert "network_velocity" in problem.state


def test_idc_keeps_pixels_in_their_range() -> None:
    problem = make_problem("idc", [12, 12], lr=1e4)
    problem.match()
    pixels = problem.images_NCHW * 0.25 + 0.5
    assert pixels.min() >= -1e-6 and pixels.max() <= 1 + 1e-6


@pytest.mark.parametrize("counts", [[6, 6, 6], [9, 2, 5]], ids=["equal", "unequal"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_cafe_aligns_all_layers_and_classifies_by_class_means(counts: list[int], chunk: int | None) -> None:
    problem = make_problem("cafe", counts, chunk=chunk, discrimination=0.3, layer_weight=0.7)
    network: Any = build_module(problem)
    images = problem.images_NCHW.clone().requires_grad_()

    def layers(batch: Tensor) -> list[Tensor]:
        first, second = network.blocks
        before = first.activation(first.norm(first.conv(batch)))
        last = second.activation(second.norm(second.conv(first.pool(before))))
        return [features.flatten(1) for features in (before, last, second.pool(last))]

    real = [layers(batch) for batch in real_batches(problem)]
    synthetic = [layers(part) for part in split_by_class(images, counts)]
    loss, centres = torch.zeros(()), torch.stack([layers[-1].mean(0) for layers in synthetic])
    for label, (real_layers, synthetic_layers) in enumerate(zip(real, synthetic, strict=True)):
        for weight, a, b in zip((0.7, 1, 2), real_layers, synthetic_layers, strict=True):
            loss = loss + weight * (a.mean(0) - b.mean(0)).square().sum()
        for feature in real_layers[-1]:
            loss = loss + 0.3 * (torch.logsumexp(centres @ feature, 0) - centres[label] @ feature)
    (expected,) = torch.autograd.grad(loss, images)
    before = problem.images_NCHW.clone()
    problem.match()
    torch.testing.assert_close(problem.losses[0], loss.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(problem.velocity, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(problem.images_NCHW, before - problem.recipe.lr * problem.velocity)


def test_cafe_keeps_only_means_and_last_features_of_a_part() -> None:
    parts, whole = (make_problem("cafe", [6, 6, 6], chunk=chunk) for chunk in (1, None))
    saved = []
    for problem in (parts, whole):
        (chunk,) = problem.chunks
        leaf = problem.images_NCHW.clone().requires_grad_()
        real, images = problem.sample_batches(leaf, chunk)
        parameters = problem.embedding_parameters()
        _, last = problem.embed_real(parameters, real, chunk)
        assert last.untyped_storage().nbytes() == last.nbytes
        tensors: dict[int, int] = {}
        with torch.autograd.graph.saved_tensors_hooks(partial(record_bytes, tensors), lambda tensor: tensor):
            problem.embed_synthetic(parameters, images, chunk)
        saved.append(sum(tensors.values()))
    assert saved[0] < saved[1] / 2


def record_bytes(tensors: dict[int, int], tensor: Tensor) -> Tensor:
    tensors[tensor.data_ptr()] = tensor.nbytes
    return tensor


def test_cafe_halves_the_learning_rate_three_times() -> None:
    problem = make_problem("cafe", [6, 6], iterations=10, outer_steps=1, momentum=0.0)
    gradient, rates = torch.ones_like(problem.images_NCHW), []
    for number in range(10):
        before = problem.images_NCHW.clone()
        problem.clock.fill_(number)
        problem.update(problem.images_NCHW, problem.velocity, gradient)
        rates.append(float((before - problem.images_NCHW).mean()) / problem.recipe.lr)
    assert rates == pytest.approx([1.0] * 6 + [0.5] * 2 + [0.25, 0.125], rel=1e-3)


def test_cafe_uses_the_embedding_of_networks_without_blocks() -> None:
    fields: dict[str, Any] = {"iterations": 2, "outer_steps": 2, "inner_epochs": 1, "device": "cpu", "verbose": False}

    def build(channels: int, size: int, num_classes: int) -> nn.Module:
        hidden = nn.Linear(channels * size**2, 5)
        return nn.Sequential(nn.Flatten(), hidden, nn.Tanh(), nn.Linear(5, num_classes))

    for network in ("mlp(width=8)", build):
        assert len(cs.condense(tiny_data([6, 6]), "cafe", ipc=1, network=network, **fields)) == 2


@pytest.mark.parametrize("name", ["dcc", "idc", "cafe", "mtt"])
def test_classes_cannot_be_divided_among_workers(name: str) -> None:
    with pytest.raises(cs.UserError, match=f"{name} cannot be divided among workers"):
        check_divisible(make_recipe(name, ipc=1, name="", size=8))


def test_recipes_have_the_published_settings() -> None:
    dcc, idc, cafe = (make_recipe(name, ipc=10, name="cifar10", size=32) for name in ("dcc", "idc", "cafe"))
    assert isinstance(dcc, DCCRecipe) and isinstance(idc, IDCRecipe) and isinstance(cafe, CAFERecipe)
    assert (dcc.iterations, dcc.loops, dcc.init, dcc.augment) == (1000, (10, 50), "real", "none")
    assert (dcc.lr, dcc.warmup, DCCRecipe(ipc=1).loops) == (0.1, 0.25, (10, 5))
    assert (idc.iterations, idc.loops, idc.batch_size, idc.train_images) == (2000, (100, 1), 64, 2000)
    assert (idc.partition, idc.augment, idc.lr) == (2, "color+crop+cutout", 0.125)
    assert (cafe.iterations, cafe.lr, cafe.batch_size, cafe.layer_weight) == (2000, 0.1, 256, 0.1)
    assert (cafe.loops, CAFERecipe(ipc=1).loops, CAFERecipe(ipc=50).loops) == ((25, 10), (20, 10), (30, 10))
    assert DCCRecipe(ipc=np.int64(10)).loops == (10, 50)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("dcc", {"ipc": "10"}, "ipc .* must be a whole number, 1 or more, but got '10'"),
        ("dcc", {"ipc": []}, "ipc must have one number per class, but got \\[\\]"),
        ("dcc", {"warmup": 1.5}, "warmup must be a share, from 0 to 1, but got 1.5"),
        ("idc", {"partition": 9}, "partition must be .*, but got 9"),
        ("idc", {"train_images": 0}, "train_images must be .*, but got 0"),
        ("cafe", {"discrimination": -1}, "discrimination must be .*, but got -1"),
    ],
)
def test_invalid_recipes(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        METHODS[name].recipe(**fields)
