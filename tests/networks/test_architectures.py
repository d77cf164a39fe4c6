"""Every architecture: shapes, parameter counts, image sizes, and the forward pass against its layers written out."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset.errors import UserError
from condenset.networks import NETWORKS, Network, canonical_spec, search_space
from condenset.networks import build as build_network
from condenset.networks.resnet import BasicBlock

# spec, channels, image size -> length of the embedding, number of parameters for 10 classes
SIZES = [
    ("convnet", 3, 32, 2048, 320_010),
    ("convnet", 1, 28, 2048, 317_706),
    ("convnet", 3, 28, 2048, 320_010),
    ("convnet", 1, 32, 2048, 317_706),
    ("convnet", 1, 8, 512, 154_506),
    ("convnet", 3, 64, 2048, 467_850),
    ("convnet", 3, 84, 3200, 479_370),
    ("convnet(norm='none')", 3, 32, 2048, 319_242),
    ("convnet(norm='batch')", 3, 32, 2048, 320_010),
    ("convnet(norm='layer')", 3, 32, 2048, 663_306),
    ("convnet(norm='group')", 3, 32, 2048, 320_010),
    ("convnet(pooling='none')", 3, 32, 131_072, 1_610_250),
    ("alexnet", 3, 32, 3072, 1_872_202),
    ("alexnet", 1, 28, 3072, 1_865_802),
    ("alexnet", 3, 84, 19_200, 2_033_482),
    ("alexnet(norm='batch')", 3, 32, 3072, 1_874_122),
    ("alexnet_small", 3, 32, 192, 1_756_426),
    ("alexnet_small", 1, 28, 192, 1_384_586),
    ("vgg11", 3, 32, 512, 9_231_114),
    ("vgg11", 1, 28, 512, 9_229_962),
    ("vgg11", 3, 64, 2048, 9_246_474),
    ("resnet18", 3, 32, 512, 11_173_962),
    ("resnet18", 1, 28, 512, 11_172_810),
    ("resnet18(norm='batch')", 3, 64, 512, 11_173_962),
    ("resnet18_ap", 3, 32, 8192, 11_250_762),
    ("resnet18_ap", 1, 28, 4608, 11_213_770),
    ("lenet", 1, 28, 84, 61_706),
    ("lenet", 3, 32, 84, 62_006),
    ("mlp", 1, 28, 128, 118_282),
    ("mlp(width=16)", 1, 8, 16, 1482),
]
# spec, channels -> the smallest image size
MIN_SIZES = [
    ("convnet(depth=4)", 3, 16),
    ("convnet(depth=1)", 1, 2),
    ("convnet(depth=3, pooling='none')", 1, 2),
    ("alexnet", 3, 8),
    ("alexnet(norm='instance')", 1, 4),
    ("alexnet_small", 3, 4),
    ("vgg11", 3, 32),
    ("resnet18", 3, 16),
    ("resnet18_ap", 1, 16),
    ("resnet18(norm='batch')", 1, 16),
    ("resnet18_ap(norm='batch')", 3, 16),
    ("lenet", 1, 12),
]


def build(spec: str, *, channels: int, size: int, num_classes: int) -> Network:
    network = build_network(spec, channels=channels, size=size, num_classes=num_classes)
    assert isinstance(network, Network)
    return network


def build_meta(spec: str, *, channels: int = 3, size: int = 32, num_classes: int = 10) -> Network:
    with torch.device("meta"):
        return build(spec, channels=channels, size=size, num_classes=num_classes)


@pytest.mark.parametrize(("spec", "channels", "size", "num_features", "num_parameters"), SIZES)
def test_numbers_of_features_and_parameters(
    spec: str, channels: int, size: int, num_features: int, num_parameters: int
) -> None:
    network = build_meta(spec, channels=channels, size=size)
    assert network.num_features == num_features
    assert sum(parameter.numel() for parameter in network.parameters()) == num_parameters


@pytest.mark.parametrize("size", [8, 28, 32, 64, 84])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_shapes(name: str, channels: int, size: int) -> None:
    if size == 8 and name not in ("convnet", "alexnet", "alexnet_small", "mlp"):
        with pytest.raises(UserError, match="but got 8x8"):
            build_meta(name, channels=channels, size=size)
        return
    network = build_meta(name, channels=channels, size=size, num_classes=7)
    images = torch.empty(2, channels, size, size, device="meta")
    assert network.embed(images).shape == (2, network.num_features)
    assert network(images).shape == (2, 7)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_classifier_gets_the_embedding(name: str) -> None:
    network = build(name, channels=3, size=32, num_classes=5).eval()
    images = torch.randn(2, 3, 32, 32)
    embedding = network.embed(images)
    assert embedding.ndim == 2
    torch.testing.assert_close(network(images), F.linear(embedding, network.classifier.weight, network.classifier.bias))


@pytest.mark.parametrize(("spec", "channels", "min_size"), MIN_SIZES)
def test_features_of_the_smallest_images_differ(spec: str, channels: int, min_size: int) -> None:
    network = build(spec, channels=channels, size=min_size, num_classes=3)
    embedding = network.embed(torch.randn(4, channels, min_size, min_size))
    assert (embedding.std(dim=0) > 0).any()
    with pytest.raises(UserError, match=f"needs images of at least {min_size}x{min_size}, but got .*x"):
        build_meta(spec, channels=channels, size=min_size - 1)


def test_message_for_too_small_images() -> None:
    with pytest.raises(UserError) as caught:
        build("convnet(depth=4)", channels=3, size=8, num_classes=10)
    assert str(caught.value) == "convnet(depth=4) needs images of at least 16x16, but got 8x8"


def test_group_norm_needs_a_multiple_of_four() -> None:
    with pytest.raises(UserError, match="width must be a multiple of 4 with norm='group', but got 6"):
        build("convnet(width=6, norm='group')", channels=3, size=32, num_classes=10)


def test_all_720_networks_of_the_search_space_build() -> None:
    space = itertools.product(
        (32, 64, 128, 256),
        (1, 2, 3, 4),
        ("none", "batch", "layer", "instance", "group"),
        ("sigmoid", "relu", "leaky_relu"),
        ("none", "max", "average"),
    )
    options = ("width", "depth", "norm", "activation", "pooling")
    specs = [f"convnet({', '.join(f'{k}={v!r}' for k, v in zip(options, point, strict=True))})" for point in space]
    assert specs == search_space() == search_space(28) == search_space(16)
    assert len({canonical_spec(spec, size=32) for spec in specs}) == 720
    for spec in specs:
        build_meta(spec)


def perturb_norms(network: nn.Module) -> dict[str, Tensor]:
    """Add noise to the parameters of the norms, so that a missing one is noticed, and return all parameters."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return dict(network.named_parameters())


@pytest.mark.parametrize(("size", "first_padding"), [(28, 3), (32, 1), (20, 1)])
def test_convnet_equals_its_layers(size: int, first_padding: int) -> None:
    network = build("convnet(width=8, depth=2)", channels=1, size=size, num_classes=3)
    values = perturb_norms(network)
    images = maps = torch.randn(2, 1, size, size)
    for block, padding in ((0, first_padding), (1, 1)):
        prefix = f"blocks.{block}."
        maps = F.conv2d(maps, values[prefix + "conv.weight"], values[prefix + "conv.bias"], padding=padding)
        maps = F.group_norm(maps, 8, values[prefix + "norm.weight"], values[prefix + "norm.bias"])
        maps = F.avg_pool2d(F.relu(maps), 2)
    torch.testing.assert_close(network.embed(images), maps.flatten(1))


@pytest.mark.parametrize(("channels", "first_padding"), [(1, 4), (3, 2)])
def test_alexnet_equals_its_layers(channels: int, first_padding: int) -> None:
    network = build("alexnet", channels=channels, size=28, num_classes=3)
    images = maps = torch.randn(2, channels, 28, 28)
    for block, (padding, pooled) in enumerate(((first_padding, 1), (2, 1), (1, 0), (1, 0), (1, 1))):
        conv = network.get_submodule(f"blocks.{block}.conv")
        maps = F.relu(F.conv2d(maps, conv.weight, conv.bias, padding=padding))
        maps = F.max_pool2d(maps, 2) if pooled else maps
    torch.testing.assert_close(network.embed(images), maps.flatten(1))


def test_vgg_equals_its_layers() -> None:
    network = build("vgg11", channels=1, size=28, num_classes=3)
    values = perturb_norms(network)
    images = maps = torch.randn(2, 1, 28, 28)
    for block, pooled in enumerate((1, 1, 0, 1, 0, 1, 0, 1)):
        prefix = f"blocks.{block}."
        padding = 1 if block else 3
        maps = F.conv2d(maps, values[prefix + "conv.weight"], values[prefix + "conv.bias"], padding=padding)
        maps = F.relu(F.group_norm(maps, maps.shape[1], values[prefix + "norm.weight"], values[prefix + "norm.bias"]))
        maps = F.max_pool2d(maps, 2) if pooled else maps
    torch.testing.assert_close(network.embed(images), maps.flatten(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("average_pooling", [False, True])
def test_residual_block_equals_its_layers(average_pooling: bool) -> None:
    block = BasicBlock(4, 8, stride=2, norm="instance", average_pooling=average_pooling)
    values = perturb_norms(block)
    stride = 1 if average_pooling else 2

    def shrink(maps: Tensor) -> Tensor:
        return F.avg_pool2d(maps, 2) if average_pooling else maps

    def norm(maps: Tensor, name: str) -> Tensor:
        return F.group_norm(maps, 8, values[name + ".weight"], values[name + ".bias"])

    images = torch.randn(2, 4, 8, 8)
    last = "shortcut.2" if average_pooling else "shortcut.1"
    inner = shrink(F.relu(norm(F.conv2d(images, values["conv1.weight"], stride=stride, padding=1), "norm1")))
    inner = norm(F.conv2d(inner, values["conv2.weight"], padding=1), "norm2")
    shortcut = norm(shrink(F.conv2d(images, values["shortcut.0.weight"], stride=stride)), last)
    torch.testing.assert_close(block(images), F.relu(inner + shortcut))


def test_resnets_differ_in_strides_and_pooling() -> None:
    images = torch.empty(2, 3, 32, 32, device="meta")
    strided, pooled = build_meta("resnet18"), build_meta("resnet18_ap")
    for network, strides in ((strided, {(1, 1), (2, 2)}), (pooled, {(1, 1)})):
        assert {module.stride for module in network.modules() if isinstance(module, nn.Conv2d)} == strides
        maps = network.get_submodule("blocks")(network.get_submodule("stem")(images))
        assert maps.shape == (2, 512, 4, 4)
    assert (strided.num_features, pooled.num_features) == (512, 512 * 4 * 4)


def test_resnet_averages_its_last_map() -> None:
    network = build("resnet18", channels=1, size=16, num_classes=3)
    images = torch.randn(2, 1, 16, 16)
    stem = F.relu(network.get_submodule("norm")(network.get_submodule("stem")(images)))
    expected = network.get_submodule("blocks")(stem).mean(dim=(2, 3))
    torch.testing.assert_close(network.embed(images), expected)


def test_lenet_equals_its_layers() -> None:
    network = build("lenet", channels=1, size=28, num_classes=3)
    values = iter(network.parameters())
    images = torch.randn(2, 1, 28, 28)
    maps = F.max_pool2d(F.relu(F.conv2d(images, next(values), next(values), padding=2)), 2)
    maps = F.max_pool2d(F.relu(F.conv2d(maps, next(values), next(values))), 2)
    hidden = F.relu(F.linear(maps.flatten(1), next(values), next(values)))
    torch.testing.assert_close(network.embed(images), F.relu(F.linear(hidden, next(values), next(values))))


def test_mlp_equals_its_layers() -> None:
    network = build("mlp(width=16)", channels=3, size=8, num_classes=3)
    values = iter(network.parameters())
    images = torch.randn(2, 3, 8, 8)
    hidden = F.relu(F.linear(images.flatten(1), next(values), next(values)))
    torch.testing.assert_close(network.embed(images), F.relu(F.linear(hidden, next(values), next(values))))


def test_the_search_space_of_small_images_has_the_networks_that_fit() -> None:
    specs = search_space(8)
    assert len(specs) == 720 - 4 * 5 * 3 * 2  # no network of depth 4 with pooling
    assert specs == [spec for spec in search_space() if spec in specs]
    with torch.device("meta"):
        for spec in search_space():
            if spec in specs:
                build(spec, channels=1, size=8, num_classes=10)
            else:
                with pytest.raises(UserError, match="needs images of at least"):
                    build(spec, channels=1, size=8, num_classes=10)
