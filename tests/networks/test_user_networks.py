"""Networks of users: builders, registered architectures, their embeddings and their errors."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import condenset as cs
from condenset import networks
from condenset.errors import UserError
from condenset.networks import Architecture, FlatParameters, Option
from helpers.reference_dm import tiny_data

CPU = torch.device("cpu")
SHAPE = {"channels": 1, "size": 8, "num_classes": 3}


class WithEmbed(nn.Module):
    """A network with an `embed` method, a frozen parameter and buffers."""

    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(channels * size**2).flip(0))
        self.register_buffer("mean", torch.full((1,), 0.25))
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.hidden = nn.Linear(channels * size**2, 6)
        self.head = nn.Linear(6, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        inputs = images.flatten(1)[:, self.get_buffer("order")] - self.get_buffer("mean")
        return torch.relu(self.hidden(inputs)) * self.frozen

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(images))
        return logits


def without_embed(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (size - 2) ** 2, num_classes), nn.Softplus()
    )


def with_batch_norm_and_dropout(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size**2, 5),
        nn.BatchNorm1d(5),
        nn.Dropout(),
        nn.ReLU(),
        nn.Linear(5, num_classes),
    )


def lazy(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(num_classes))


def make_gated(*, channels: int, size: int, num_classes: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, width), nn.PReLU(), nn.Linear(width, num_classes))


BUILDERS = [WithEmbed, without_embed, with_batch_norm_and_dropout, lazy]
GATED = Architecture(
    name="gated", make=make_gated, title="Gated", description="one hidden layer", options={"width": Option(4)}
)


@pytest.fixture
def gated() -> Iterator[str]:
    cs.register_network(GATED)
    yield GATED.name
    cs.NETWORKS.unregister(GATED.name)


def expected_embedding(network: nn.Module, images: Tensor) -> Tensor:
    network = networks.use_batch_statistics(network).eval()
    if isinstance(network, WithEmbed):
        return network.embed(images)
    assert isinstance(network, nn.Sequential)
    last = max(index for index, layer in enumerate(network) if isinstance(layer, nn.Linear))
    embedding: Tensor = network[:last](images)
    return embedding


def check_embedding(spec: str) -> None:
    """Compare a functional call of the embedding on the meta device with the network itself."""
    with torch.device("meta"):
        template = networks.build(spec, **SHAPE)
    assert {tensor.device.type for tensor in template.state_dict().values()} == {"meta"}
    template = networks.to_embedding(networks.use_batch_statistics(template))
    network = networks.build(spec, **SHAPE, seed=3)
    embedding = networks.to_embedding(networks.use_batch_statistics(network))
    layout = FlatParameters(template, CPU, as_built=True)
    flat = networks.flatten_parameters(embedding)
    assert flat.shape == (layout.num,)
    parameters = layout.unflatten(flat, torch.float32) | networks.fixed_tensors(embedding, CPU, torch.float32)
    images = torch.randn(4, 1, 8, 8, requires_grad=True)
    features = functional_call(template, parameters, (images,))
    torch.testing.assert_close(features, expected_embedding(network, images))
    torch.testing.assert_close(features, embedding(images))
    assert features.ndim == 2
    assert torch.autograd.grad(features.square().sum(), images)[0].any()


@pytest.mark.parametrize("builder", BUILDERS)
def test_builders_become_specs(builder: Callable[..., nn.Module]) -> None:
    spec = networks.as_spec(builder)
    assert spec == builder.__name__ == networks.display_name(spec) == networks.canonical_spec(spec, size=8)
    assert networks.as_spec(builder) == networks.as_spec(spec) == spec
    assert not networks.has_default_init(spec)
    assert spec not in cs.NETWORKS
    assert networks.build(f"{spec}()", **SHAPE)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    with pytest.raises(UserError, match=f"{spec} takes no options, but got 'width'"):
        networks.build(f"{spec}(width=3)", **SHAPE)


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_description_of_a_builder_does_not_depend_on_its_values(builder: Callable[..., nn.Module]) -> None:
    def build(channels: int, size: int, num_classes: int) -> nn.Module:
        network = builder(channels, size, num_classes)
        network.extra_repr = lambda: str(object())  # type: ignore[method-assign]  # it contains an address
        for tensor in network.buffers():
            tensor.data = torch.rand_like(tensor, dtype=torch.float32).to(tensor.dtype)
        return network

    descriptions = [networks.describe_user_network(networks.as_spec(build), **SHAPE) for _ in range(2)]
    assert descriptions[0] == descriptions[1] != networks.describe_user_network(networks.as_spec(builder), **SHAPE)
    assert networks.describe_user_network("convnet", **SHAPE) == {}


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_embedding_of_a_builder(builder: Callable[..., nn.Module]) -> None:
    check_embedding(networks.as_spec(builder))


def test_the_embedding_of_a_registered_network(gated: str) -> None:
    check_embedding(f"{gated}(width=7)")


def test_a_registered_network_has_options_and_is_listed(gated: str) -> None:
    assert networks.canonical_spec(gated, size=8) == "gated(width=4)"
    assert networks.display_name(gated) == "Gated"
    (entry,) = [entry for entry in networks.describe_networks() if entry["name"] == gated]
    assert entry["description"] == "one hidden layer"
    assert [(item["name"], item["default"]) for item in entry["options"]] == [("width", 4)]
    with pytest.raises(UserError, match="already"):
        cs.register_network(dataclasses.replace(GATED))


@pytest.mark.parametrize("builder", BUILDERS)
def test_initialisation_depends_on_the_seed_and_not_on_the_global_generator(builder: Callable[..., nn.Module]) -> None:
    spec, state = networks.as_spec(builder), torch.get_rng_state()
    first, repeated, other = (
        networks.flatten_parameters(networks.build(spec, **SHAPE, seed=seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, repeated)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_seed_global_rng_restores_the_state() -> None:
    state = torch.get_rng_state()
    numbers = []
    for _ in range(2):
        with networks.seed_global_rng(5, CPU):
            numbers.append(torch.rand(3))
    assert torch.equal(numbers[0], numbers[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_batch_norm_is_detected_from_the_modules() -> None:
    for builder in (without_embed, with_batch_norm_and_dropout):
        spec = networks.as_spec(builder)
        expected = builder is with_batch_norm_and_dropout
        assert networks.uses_batch_norm(networks.build(spec, **SHAPE)) == networks.uses_batch_norm(spec) == expected
    for norm in (nn.BatchNorm1d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)):
        assert networks.uses_batch_norm(nn.Sequential(nn.Identity(), norm))
        assert not list(networks.use_batch_statistics(norm).buffers())


def test_a_later_builder_of_the_same_name_replaces_the_first() -> None:
    def make(width: int) -> networks.NetworkBuilder:
        def tiny(channels: int, size: int, num_classes: int) -> nn.Module:
            return make_gated(channels=channels, size=size, num_classes=num_classes, width=width)

        return tiny

    for width in (2, 5):
        network = networks.build(networks.as_spec(make(width)), **SHAPE)
        assert network.get_submodule("1").out_features == width  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda channels, size, num_classes: nn.Identity(), "a builder must have a name, but got <lambda>: define it"),
        (functools.partial(make_gated, width=3), "a builder must have a name, but got partial: define it with `def`"),
        (nn.Linear(2, 2), "but got a network that is already built: Linear"),
        (3, "a network must be a spec or a builder, called as builder.channels, size, num_classes., but got 3"),
    ],
)
def test_networks_without_a_name_are_refused(network: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        networks.as_spec(network)  # type: ignore[arg-type]


def test_the_name_of_a_registered_network_is_refused() -> None:
    def convnet(channels: int, size: int, num_classes: int) -> nn.Module:
        return without_embed(channels, size, num_classes)

    with pytest.raises(UserError, match="must not have the name of a registered network, but got 'convnet'"):
        networks.as_spec(convnet)
    with pytest.raises(UserError, match=r"but got 'mlp\(width=3\)'"):
        networks.as_spec(without_embed, name="mlp(width=3)")


def fails(channels: int, size: int, num_classes: int) -> nn.Module:
    raise RuntimeError("no\nmodule")


def wrong_input(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(2, num_classes))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda *shape: 3, "a builder must return an nn.Module, but got 'int'"),
        (lambda *shape: nn.Flatten(), r"logits of shape \(2, 3\) for 2 images, but got \(2, 64\)"),
        (lambda *shape: nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(3)), "must have trainable parameters"),
        (lambda *shape: WithEmbed(*shape).requires_grad_(False), "must have trainable parameters, but got 0"),
        (lambda *shape: WithEmbed(*shape).double(), "parameters of a network must be float32, but got torch.float64"),
        (fails, "network 'named' failed: no module"),
        (wrong_input, "network 'named' failed: mat1 and mat2"),
    ],
)
def test_errors_in_a_builder_are_one_line(build: networks.NetworkBuilder, message: str) -> None:
    spec = networks.as_spec(build, name="named")
    with pytest.raises(UserError, match=message) as caught:
        networks.build(spec, **SHAPE)
    assert "\n" not in str(caught.value)


def test_a_network_without_linear_layers_needs_an_embed_method() -> None:
    network = nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())
    with pytest.raises(UserError, match=r"cannot find the embedding of Sequential: .*embed\(images\)"):
        networks.to_embedding(network)(torch.zeros(2, 1, 8, 8))


def test_an_embed_method_must_return_one_row_per_image() -> None:
    network = WithEmbed(1, 8, 3)
    network.embed = lambda images: images.sum()  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"`embed` must return features of shape \(2, F\), but got \(\)"):
        networks.to_embedding(network)(torch.zeros(2, 1, 8, 8))


def test_architectures_get_names() -> None:
    specs = networks.name_architectures(["convnet", "convnet(depth=3)", without_embed, without_embed, "mlp"], 32)
    assert specs == {"convnet": "convnet", "without_embed": "without_embed", "mlp": "mlp"}
    linear = functools.partial(make_gated, width=2)
    mapping = {"a": lambda *shape: without_embed(*shape), "b": "convnet", "c": "convnet", "d e": without_embed}
    specs = networks.name_architectures(mapping, 32)  # type: ignore[arg-type]
    assert specs == {"a": "a", "b": "convnet", "c": "convnet", "d e": "d e"}
    assert networks.build("d e", **SHAPE)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    for architectures, message in (
        ([], "there must be at least one architecture"),
        ("convnet", "architectures must be a list of specs or builders, but got 'convnet'"),
        ([linear], "a builder must have a name"),
        ([nn.Linear(2, 2)], "already built"),
    ):
        with pytest.raises(UserError, match=message):
            networks.name_architectures(architectures, 32)  # type: ignore[arg-type]


def test_two_builders_of_one_name_need_a_mapping() -> None:
    def make() -> networks.NetworkBuilder:
        def same(channels: int, size: int, num_classes: int) -> nn.Module:
            return without_embed(channels, size, num_classes)

        return same

    with pytest.raises(UserError, match="two builders are called 'same': give a mapping"):
        networks.name_architectures([make(), make()], 32)


def test_an_unnamed_builder_is_refused_with_the_way_out_of_the_function() -> None:
    def unnamed() -> Any:
        return lambda channels, size, num_classes: nn.Identity()

    data = tiny_data([2, 2])
    for call in (
        lambda: cs.condense(data, "dm", ipc=1, network=unnamed(), verbose=False),
        lambda: cs.evaluate(data, data, network=unnamed(), verbose=False),
    ):
        with pytest.raises(cs.UserError, match=r"a builder must have a name, but got <lambda>: define it with `def`$"):
            call()
    with pytest.raises(cs.UserError, match=r"define it with `def`, or give cs\.rank a mapping \{name: builder\}$"):
        cs.rank([unnamed()], data, tiny_data([2, 2], seed=1), verbose=False)
