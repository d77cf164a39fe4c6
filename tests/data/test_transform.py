"""The transform of a condensed set: what `cs.evaluate` trains on, for a user's own loop."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset import augment
from condenset.augment import DEFAULT_STRATEGY, NUM_UNIFORMS


def make_set(*, allow_hflip: bool = True, channels: int = 3) -> cs.CondensedSet:
    generator = torch.Generator().manual_seed(0)
    return cs.CondensedSet(
        images=torch.rand(6, channels, 16, 16, generator=generator),
        labels=torch.tensor([0, 0, 0, 1, 1, 1]),
        class_names=("a", "b"),
        mean=(0.4, 0.5, 0.6)[:channels],
        std=(0.2, 0.3, 0.25)[:channels],
        provenance={"allow_hflip": allow_hflip},
    )


def reference_augmentation(condensed: cs.CondensedSet, strategy: str, seed: int) -> Tensor:
    """Augment the normalised images as `Trainer` does: one operation per batch, parameters per image."""
    uniforms = torch.rand(len(condensed), NUM_UNIFORMS, generator=torch.Generator().manual_seed(seed))
    operations = augment.parse_strategy(strategy, allow_hflip=condensed.allow_hflip)
    transform = augment.sample_transform(uniforms, operations, condensed.images.shape[-1], shared=True)
    return augment.apply(transform, condensed.normalized()[:, None])[:, 0]


@pytest.mark.parametrize("strategy", [DEFAULT_STRATEGY, *DEFAULT_STRATEGY.split("_"), "color_rotate45"])
@pytest.mark.parametrize("allow_hflip", [True, False])
def test_transform_applies_the_training_augmentation(strategy: str, allow_hflip: bool) -> None:
    condensed = make_set(allow_hflip=allow_hflip)
    for seed in range(5):
        transform = condensed.transform(augment=strategy, generator=torch.Generator().manual_seed(seed))
        inputs = transform(condensed.images)
        if not allow_hflip and strategy == "flip":
            assert torch.equal(inputs, condensed.normalized())
        else:
            assert torch.equal(inputs, reference_augmentation(condensed, strategy, seed))


def test_default_strategy_is_that_of_the_protocol() -> None:
    condensed = make_set()
    transform = condensed.transform(generator=torch.Generator().manual_seed(3))
    assert torch.equal(transform(condensed.images), reference_augmentation(condensed, cs.Protocol().augment, 3))
    assert "_".join(transform.operations) == cs.Protocol().augment


def test_each_operation_is_used_for_whole_batches() -> None:
    condensed = make_set()
    transform = condensed.transform(augment="flip_cutout", generator=torch.Generator().manual_seed(0))
    normalized, num_cutout, num_flip = condensed.normalized(), 0, 0
    for _ in range(200):
        inputs = transform(condensed.images)
        is_flipped = torch.isclose(inputs, normalized.flip(-1), atol=1e-5).flatten(1).all(1)
        is_plain = torch.isclose(inputs, normalized, atol=1e-5).flatten(1).all(1)
        has_zeros = (inputs == 0).flatten(1).any(1)
        if bool(has_zeros.any()):
            num_cutout += 1
            assert not bool(is_flipped.any())
        else:
            num_flip += 1
            assert bool((is_flipped | is_plain).all())
    assert num_cutout + num_flip == 200 and 70 < num_cutout < 130


def test_global_generator_is_the_default() -> None:
    condensed = make_set()
    transform = condensed.transform()
    torch.manual_seed(5)
    first = transform(condensed.images)
    assert not torch.equal(transform(condensed.images), first)
    torch.manual_seed(5)
    assert torch.equal(transform(condensed.images), first)


def test_without_training_only_normalisation_is_left() -> None:
    condensed = make_set()
    assert torch.equal(condensed.transform(train=False)(condensed.images), condensed.normalized())
    pixels = (condensed.images * 255).round().to(torch.uint8)
    expected = dataclasses.replace(condensed, images=pixels.float() / 255).normalized()
    assert torch.equal(condensed.transform(train=False)(pixels), expected)
    assert condensed.transform()(condensed.images[:0]).shape == (0, 3, 16, 16)


def test_invalid_arguments_are_rejected() -> None:
    condensed = make_set(channels=1)
    with pytest.raises(cs.UserError, match=r"square images of shape \(N, 1, H, W\), but got \(6, 3, 16, 16\)"):
        condensed.transform()(torch.rand(6, 3, 16, 16))
    with pytest.raises(cs.UserError, match="augmentation must be one of"):
        condensed.transform(augment="sharpen")


def test_own_loop_trains_a_network() -> None:
    digits = cs.load("digits", verbose=False)
    condensed = cs.condense(digits.train, "random", ipc=10, device="cpu")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer, transform = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9), condensed.transform()
    for _ in range(200):
        loss = torch.nn.functional.cross_entropy(network(transform(condensed.images)), condensed.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs = condensed.transform(train=False)(digits.test.images)
    assert (network(inputs).argmax(1) == digits.test.labels).float().mean() > 0.75
