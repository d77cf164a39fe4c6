"""Features of all blocks of a network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from condenset import UserError, networks
from condenset.networks.layers import Block


def build_network(spec: str = "convnet(width=4, depth=3)") -> Any:
    return networks.build(spec, channels=3, size=16, num_classes=5, seed=1).eval()


def block_maps(network: Any, images: Tensor) -> list[Tensor]:
    maps = []
    for block in network.blocks:
        images = block(images)
        maps.append(images)
    return maps


def reference_attention(maps: Tensor) -> Tensor:
    """Return the sum of |value|^4 over the channels at every position, with a norm of 10, image by image."""
    rows = []
    for image_maps in maps:
        sums = sum(channel.abs() ** 4 for channel in image_maps).flatten()
        rows.append(10 * sums / sums.norm())  # squared distances have the weight 100
    return torch.stack(rows)


@pytest.mark.parametrize("features", ["last", "blocks", "attention"])
def test_features_are_those_of_the_blocks(features: str) -> None:
    network, images = build_network(), torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    maps, embedding = block_maps(network, images), network.embed(images)
    torch.testing.assert_close(maps[-1].flatten(1), embedding)
    expected = {
        "last": [embedding],
        "blocks": [*(block.flatten(1) for block in maps[:-1]), embedding],
        "attention": [*(reference_attention(block) for block in maps[:-1]), embedding],
    }[features]
    actual = networks.to_embedding(network, features)(images)
    torch.testing.assert_close(actual, torch.cat(expected, 1))
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("spec", ["convnet(width=4, depth=2)", "convnet(width=4, depth=2, pooling=none)", "resnet18"])
def test_unpooled_features_are_those_of_the_activations(spec: str) -> None:
    network, images = build_network(spec), torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    maps, embedding, pooled = [], network.embed(images), images
    for block in network.blocks if spec != "resnet18" else ():
        maps.append(block.activation(block.norm(block.conv(pooled))))
        pooled = block.pool(maps[-1])
    if spec == "resnet18":
        maps = block_maps(network, torch.relu(network.norm(network.stem(images))))
    expected = torch.cat([*(block.flatten(1) for block in maps), embedding], 1)
    torch.testing.assert_close(networks.to_embedding(network, "unpooled")(images), expected)


@pytest.mark.parametrize("features", ["blocks", "attention"])
def test_networks_without_blocks_are_refused(features: str) -> None:
    message = rf"\Afeatures must be 'last' for a network without blocks, but got '{features}'\Z"
    for network in (build_network("mlp(width=4)"), nn.Linear(2, 2)):
        with pytest.raises(UserError, match=message):
            networks.to_embedding(network, features)


def test_unpooled_features_of_fused_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = networks.to_embedding(build_network("convnet(width=4, depth=2)"), "unpooled")
    monkeypatch.setattr(Block, "forward", lambda block, maps: block.pool(block.conv(maps)))  # calls no activation
    with pytest.raises(AssertionError, match="disable_kernels"):
        network(torch.zeros(2, 3, 16, 16))
