"""Fresh networks as a function of uniform numbers, and batch norm on its batch alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from condenset.networks import (
    NETWORKS,
    Network,
    Parameters,
    batch_statistics,
    build,
    headless,
    initialise,
    parameter_starts,
)

SPECS = [
    *NETWORKS,
    "convnet(norm='batch')",
    "convnet(norm='layer')",
    "convnet(norm='none', activation='swish')",
    "convnet(norm='group', pooling='none', width=8)",
]


CPU = torch.device("cpu")


def uniforms_for(network: nn.Module, seed: int = 0) -> Tensor:
    num = sum(parameter.numel() for parameter in network.parameters())
    return torch.rand(num, generator=torch.Generator().manual_seed(seed))


def fresh_for(network: nn.Module, uniforms: Tensor) -> dict[str, Tensor]:
    parameters = Parameters(network, CPU)
    return parameters.views(parameters.initial(uniforms), torch.float32)


def small_convnet(norm: str = "instance", seed: int = 0) -> Network:
    spec = f"convnet(width=8, depth=2, norm={norm!r})"
    return build(spec, channels=3, size=16, num_classes=4, seed=seed)


@pytest.mark.parametrize("spec", SPECS)
def test_names_shapes_and_count(spec: str) -> None:
    with torch.device("meta"):
        network = build(spec, channels=3, size=32, num_classes=10)
    rows = parameter_starts(network)
    assert [(row.name, row.shape) for row in rows] == [(n, p.shape) for n, p in network.named_parameters()]
    assert Parameters(network, CPU).num == sum(p.numel() for p in network.parameters())


def test_bounds_are_one_over_the_root_of_the_fan_in() -> None:
    rows = {row.name: row for row in parameter_starts(small_convnet())}
    assert rows["blocks.0.conv.weight"].bound == rows["blocks.0.conv.bias"].bound == 1 / math.sqrt(3 * 9)
    assert rows["blocks.1.conv.weight"].bound == 1 / math.sqrt(8 * 9)
    assert rows["classifier.weight"].bound == rows["classifier.bias"].bound == 1 / math.sqrt(8 * 4 * 4)
    assert (rows["blocks.0.norm.weight"].bound, rows["blocks.0.norm.weight"].fill) == (0, 1)
    assert (rows["blocks.0.norm.bias"].bound, rows["blocks.0.norm.bias"].fill) == (0, 0)


def test_xavier_bounds_are_those_of_pytorch() -> None:
    network = small_convnet(norm="none")
    rows = {row.name: row for row in parameter_starts(network, xavier=True)}
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            with torch.no_grad():
                largest = float(nn.init.xavier_uniform_(module.weight).abs().max())
            assert 0.9 < largest / rows[f"{name}.weight"].bound <= 1
            assert (rows[f"{name}.bias"].bound, rows[f"{name}.bias"].fill) == (0, 0)
    assert parameter_starts(small_convnet(), xavier=True) == parameter_starts(small_convnet())  # norms do its work


def test_unknown_parameters_are_an_error() -> None:
    with pytest.raises(TypeError, match="PReLU"):
        parameter_starts(nn.Sequential(nn.Linear(2, 2), nn.PReLU()))


@pytest.mark.parametrize("spec", ["convnet", "alexnet(norm='batch')", "lenet", "mlp"])
def test_same_distribution_as_pytorch(spec: str) -> None:
    network = build(spec, channels=3, size=32, num_classes=10)
    name, options = (spec.split("(")[0], {"norm": "batch"} if "batch" in spec else {})
    reference = dict(NETWORKS[name](channels=3, size=32, num_classes=10, **options).named_parameters())
    fresh = fresh_for(network, uniforms_for(network))
    assert fresh.keys() == reference.keys()
    for row in parameter_starts(network):
        ours, theirs = fresh[row.name], reference[row.name]
        assert ours.shape == theirs.shape
        if not row.bound:
            assert torch.equal(ours, theirs)
            continue
        assert max(ours.abs().max(), theirs.abs().max()) <= row.bound
        if ours.numel() > 1000:
            for values in (ours, theirs):
                error = 5 / math.sqrt(values.numel())  # five standard errors
                assert abs(values.mean() / row.bound) < error
                assert abs(values.var() / row.bound**2 - 1 / 3) < error
                assert values.abs().max() > 0.97 * row.bound


def test_each_number_sets_one_place() -> None:
    network = small_convnet()
    uniforms = uniforms_for(network)
    rows = parameter_starts(network)
    bounds, fills = (torch.cat([torch.full((row.shape.numel(),), row[place]) for row in rows]) for place in (2, 3))
    fresh = torch.cat([value.flatten() for value in fresh_for(network, uniforms).values()])
    torch.testing.assert_close(fresh, (2 * uniforms - 1) * bounds + fills)
    lowest = fresh_for(network, torch.zeros_like(uniforms))
    assert torch.equal(lowest["classifier.bias"], torch.full((4,), -1 / math.sqrt(128)))


@pytest.mark.parametrize("spec", SPECS)
def test_functional_call_is_loading_the_values(spec: str) -> None:
    size = 32 if spec == "vgg11" else 16
    network = build(spec, channels=1, size=size, num_classes=4)
    images = torch.randn(2, 1, size, size)
    fresh = fresh_for(network, uniforms_for(network, seed=5))
    called = functional_call(network, fresh, (images,))
    before = network(images)
    assert not torch.allclose(called, before)
    missing, unexpected = network.load_state_dict(fresh, strict=False)
    assert not unexpected
    assert all("running" in name or "num_batches" in name for name in missing)
    torch.testing.assert_close(network(images), called)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_views_are_cast_but_batch_norm_stays_in_float32(norm: str) -> None:
    network = small_convnet(norm)
    parameters = Parameters(network, CPU)
    views = parameters.views(parameters.initial(uniforms_for(network)), torch.bfloat16)
    for name, view in views.items():
        assert view.dtype == (torch.float32 if norm == "batch" and ".norm." in name else torch.bfloat16)
    logits = functional_call(network, views, (torch.randn(2, 3, 16, 16, dtype=torch.bfloat16),))
    assert logits.dtype == torch.bfloat16


def test_headless_gives_the_embedding() -> None:
    network = small_convnet()
    images = torch.randn(2, 3, 16, 16)
    embedding = network.embed(images)
    assert torch.equal(headless(network)(images), embedding)
    assert not any(name.startswith("classifier") for name, _ in network.named_parameters())


def test_one_graph_from_uniforms_to_logits() -> None:
    network = small_convnet()
    parameters = Parameters(network, CPU)

    def step(uniforms: Tensor, images: Tensor) -> Tensor:
        logits: Tensor = functional_call(
            network, parameters.views(parameters.initial(uniforms), torch.float32), (images,)
        )
        return logits

    uniforms, images = uniforms_for(network), torch.randn(2, 3, 16, 16)
    compiled = torch.compile(step, fullgraph=True, backend="eager")  # a host sync would break the graph
    torch.testing.assert_close(compiled(uniforms, images), step(uniforms, images))


def test_gradients_reach_the_images_through_fresh_parameters() -> None:
    network = small_convnet()
    images = torch.randn(2, 3, 16, 16, requires_grad=True)
    functional_call(network, fresh_for(network, uniforms_for(network)), (images,)).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in network.parameters())


def test_build_is_a_function_of_its_seed_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (small_convnet(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    for (name, a), b, c in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert a.requires_grad
        assert torch.equal(a, b)
        assert torch.equal(a, c) == (".norm." in name)


def test_initialise_starts_afresh() -> None:
    network = small_convnet("batch")
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert torch.equal(module.running_mean, torch.zeros(8))
    network(torch.randn(4, 3, 16, 16) + 3)
    uniforms = uniforms_for(network, seed=9)
    assert initialise(network, uniforms) is network
    fresh = fresh_for(network, uniforms)
    for name, value in network.state_dict().items():
        expected = fresh[name] if name in fresh else torch.ones(8) if "running_var" in name else torch.zeros(8)
        assert torch.equal(value, expected) if "num_batches" not in name else value == 0


def test_batch_statistics() -> None:
    plain, frozen = small_convnet("batch"), small_convnet("batch")
    assert batch_statistics(frozen) is frozen
    assert not list(frozen.buffers())
    assert frozen.state_dict().keys() == dict(frozen.named_parameters()).keys()
    images = 2 * torch.randn(4, 3, 16, 16) + 1
    expected = plain.train()(images)
    for mode in (True, False):
        torch.testing.assert_close(frozen.train(mode)(images), expected)
    assert not torch.allclose(plain.eval()(images), expected)  # else the test would say nothing
    assert initialise(frozen, uniforms_for(frozen)) is frozen
    assert functional_call(frozen, fresh_for(frozen, uniforms_for(frozen)), (images,)).shape == (4, 4)
