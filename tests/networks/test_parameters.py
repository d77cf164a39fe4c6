"""Initialisation of networks from uniform numbers, flat parameter vectors, and batch norm with batch statistics."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from condenset.networks import (
    NETWORKS,
    FlatParameters,
    Network,
    build,
    init_specs,
    initialize,
    to_embedding,
    use_batch_statistics,
)
from condenset.networks.parameters import allocate

SPECS = [
    *NETWORKS,
    "convnet(norm='batch')",
    "convnet(norm='layer')",
    "convnet(norm='none', activation='swish')",
    "convnet(norm='group', pooling='none', width=8)",
]
CPU = torch.device("cpu")


def sample_uniforms(network: nn.Module, seed: int = 0) -> Tensor:
    num = sum(parameter.numel() for parameter in network.parameters())
    return torch.rand(num, generator=torch.Generator().manual_seed(seed))


def initial_parameters(network: nn.Module, uniforms: Tensor) -> dict[str, Tensor]:
    layout = FlatParameters(network, CPU)
    return layout.unflatten(layout.initialize(uniforms), torch.float32)


def small_convnet(norm: str = "instance", seed: int = 0) -> Network:
    spec = f"convnet(width=8, depth=2, norm={norm!r})"
    network = build(spec, channels=3, size=16, num_classes=4, seed=seed)
    assert isinstance(network, Network)
    return network


@pytest.mark.parametrize("spec", SPECS)
def test_names_shapes_and_count(spec: str) -> None:
    with torch.device("meta"):
        network = build(spec, channels=3, size=32, num_classes=10)
    specs = init_specs(network)
    assert [(spec.name, spec.shape) for spec in specs] == [(n, p.shape) for n, p in network.named_parameters()]
    assert FlatParameters(network, CPU).num == sum(p.numel() for p in network.parameters())


def test_bounds_are_the_inverse_root_of_the_fan_in() -> None:
    specs = {spec.name: spec for spec in init_specs(small_convnet())}
    assert specs["blocks.0.conv.weight"].bound == specs["blocks.0.conv.bias"].bound == 1 / math.sqrt(3 * 9)
    assert specs["blocks.1.conv.weight"].bound == 1 / math.sqrt(8 * 9)
    assert specs["classifier.weight"].bound == specs["classifier.bias"].bound == 1 / math.sqrt(8 * 4 * 4)
    assert (specs["blocks.0.norm.weight"].bound, specs["blocks.0.norm.weight"].fill) == (0, 1)
    assert (specs["blocks.0.norm.bias"].bound, specs["blocks.0.norm.bias"].fill) == (0, 0)


def test_xavier_bounds_are_those_of_pytorch() -> None:
    network = small_convnet(norm="none")
    specs = {spec.name: spec for spec in init_specs(network, xavier=True)}
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            with torch.no_grad():
                largest = float(nn.init.xavier_uniform_(module.weight).abs().max())
            assert 0.9 < largest / specs[f"{name}.weight"].bound <= 1
            assert (specs[f"{name}.bias"].bound, specs[f"{name}.bias"].fill) == (0, 0)
    assert init_specs(small_convnet(), xavier=True) == init_specs(small_convnet())  # no effect with norms


def test_unknown_layers_are_refused() -> None:
    with pytest.raises(TypeError, match="PReLU"):
        init_specs(nn.Sequential(nn.Linear(2, 2), nn.PReLU()))


@pytest.mark.parametrize("spec", ["convnet", "alexnet(norm='batch')", "lenet", "mlp"])
def test_same_distribution_as_pytorch(spec: str) -> None:
    network = build(spec, channels=3, size=32, num_classes=10)
    name, options = (spec.split("(")[0], {"norm": "batch"} if "batch" in spec else {})
    reference = dict(NETWORKS[name](channels=3, size=32, num_classes=10, **options).named_parameters())
    parameters = initial_parameters(network, sample_uniforms(network))
    assert parameters.keys() == reference.keys()
    for spec in init_specs(network):
        actual, expected = parameters[spec.name], reference[spec.name]
        assert actual.shape == expected.shape
        if not spec.bound:
            assert torch.equal(actual, expected)
            continue
        assert max(actual.abs().max(), expected.abs().max()) <= spec.bound
        if actual.numel() > 1000:
            for values in (actual, expected):
                error = 5 / math.sqrt(values.numel())  # five standard errors
                assert abs(values.mean() / spec.bound) < error
                assert abs(values.var() / spec.bound**2 - 1 / 3) < error
                assert values.abs().max() > 0.97 * spec.bound


def test_each_uniform_number_sets_one_parameter() -> None:
    network = small_convnet()
    uniforms = sample_uniforms(network)
    specs = init_specs(network)
    bounds = torch.cat([torch.full((spec.shape.numel(),), spec.bound) for spec in specs])
    fills = torch.cat([torch.full((spec.shape.numel(),), spec.fill) for spec in specs])
    flat = torch.cat([value.flatten() for value in initial_parameters(network, uniforms).values()])
    torch.testing.assert_close(flat, (2 * uniforms - 1) * bounds + fills)
    lowest = initial_parameters(network, torch.zeros_like(uniforms))
    assert torch.equal(lowest["classifier.bias"], torch.full((4,), -1 / math.sqrt(128)))


@pytest.mark.parametrize("spec", SPECS)
def test_functional_call_equals_loading_the_parameters(spec: str) -> None:
    size = 32 if spec == "vgg11" else 16
    network = build(spec, channels=1, size=size, num_classes=4)
    images = torch.randn(2, 1, size, size)
    parameters = initial_parameters(network, sample_uniforms(network, seed=5))
    called = functional_call(network, parameters, (images,))
    assert not torch.allclose(called, network(images))
    missing, unexpected = network.load_state_dict(parameters, strict=False)
    assert not unexpected
    assert all("running" in name or "num_batches" in name for name in missing)
    torch.testing.assert_close(network(images), called)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_parameters_are_cast_but_batch_norm_stays_in_float32(norm: str) -> None:
    network = small_convnet(norm)
    layout = FlatParameters(network, CPU)
    parameters = layout.unflatten(layout.initialize(sample_uniforms(network)), torch.bfloat16)
    for name, parameter in parameters.items():
        assert parameter.dtype == (torch.float32 if norm == "batch" and ".norm." in name else torch.bfloat16)
    logits = functional_call(network, parameters, (torch.randn(2, 3, 16, 16, dtype=torch.bfloat16),))
    assert logits.dtype == torch.bfloat16


def test_to_embedding_removes_the_classifier() -> None:
    network = small_convnet()
    images = torch.randn(2, 3, 16, 16)
    embedding = network.embed(images)
    assert torch.equal(to_embedding(network)(images), embedding)
    assert not any(name.startswith("classifier") for name, _ in network.named_parameters())


def test_one_graph_from_uniforms_to_logits() -> None:
    network = small_convnet()
    layout = FlatParameters(network, CPU)

    def step(uniforms: Tensor, images: Tensor) -> Tensor:
        parameters = layout.unflatten(layout.initialize(uniforms), torch.float32)
        logits: Tensor = functional_call(network, parameters, (images,))
        return logits

    uniforms, images = sample_uniforms(network), torch.randn(2, 3, 16, 16)
    compiled = torch.compile(step, fullgraph=True, backend="eager")  # a host sync would break the graph
    torch.testing.assert_close(compiled(uniforms, images), step(uniforms, images))


def test_gradients_reach_the_images() -> None:
    network = small_convnet()
    images = torch.randn(2, 3, 16, 16, requires_grad=True)
    functional_call(network, initial_parameters(network, sample_uniforms(network)), (images,)).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in network.parameters())


def test_build_depends_on_its_seed_and_not_on_the_global_generator() -> None:
    state = torch.get_rng_state()
    first, repeated, other = (dict(small_convnet(seed=seed).named_parameters()) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in first.items():
        assert parameter.requires_grad
        assert torch.equal(parameter, repeated[name])
        assert torch.equal(parameter, other[name]) == (".norm." in name)


def test_initialize_resets_a_network() -> None:
    network = small_convnet("batch")
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert torch.equal(module.running_mean, torch.zeros(8))
    network(torch.randn(4, 3, 16, 16) + 3)
    uniforms = sample_uniforms(network, seed=9)
    assert initialize(network, uniforms) is network
    parameters = initial_parameters(network, uniforms)
    for name, value in network.state_dict().items():
        expected = (
            parameters[name] if name in parameters else torch.ones(8) if "running_var" in name else torch.zeros(8)
        )
        assert torch.equal(value, expected) if "num_batches" not in name else value == 0


def test_batch_statistics() -> None:
    original, changed = small_convnet("batch"), small_convnet("batch")
    assert use_batch_statistics(changed) is changed
    assert not list(changed.buffers())
    assert changed.state_dict().keys() == dict(changed.named_parameters()).keys()
    images = 2 * torch.randn(4, 3, 16, 16) + 1
    expected = original.train()(images)
    for mode in (True, False):
        torch.testing.assert_close(changed.train(mode)(images), expected)
    assert not torch.allclose(original.eval()(images), expected)  # otherwise the test would prove nothing
    uniforms = sample_uniforms(changed)
    assert initialize(changed, uniforms) is changed
    assert functional_call(changed, initial_parameters(changed, uniforms), (images,)).shape == (4, 4)


def test_allocation_keeps_the_layout() -> None:
    with torch.device("meta"):
        network = nn.Sequential(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.BatchNorm2d(4))
    network[0].weight.requires_grad_(False)
    layouts = [[tensor.stride() for tensor in network.state_dict().values()]]
    allocated = allocate(network, CPU)
    layouts.append([tensor.stride() for tensor in allocated.state_dict().values()])
    assert layouts[0] == layouts[1]
    assert {tensor.device for tensor in allocated.state_dict().values()} == {CPU}
    assert [parameter.requires_grad for parameter in allocated.parameters()] == [False, True, True, True]


def test_networks_are_built_without_the_slow_import_of_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)  # its import raises an error
    network = build("convnet(width=4, depth=1)", channels=3, size=8, num_classes=2)
    assert next(network.parameters()).device == CPU
