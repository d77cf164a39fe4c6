"""`normalize` and `augment` of a dataset: what `cs.evaluate` trains on, for a user's own loop."""

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
    stages = augment.parse_strategy(strategy, allow_hflip=condensed.allow_hflip)
    transform = augment.sample_transform(uniforms, stages, condensed.images.shape[-1], shared=True)
    return augment.apply(transform, condensed.normalized()[:, None])[:, 0]


@pytest.mark.parametrize("strategy", [DEFAULT_STRATEGY, *DEFAULT_STRATEGY.split("_"), "color_rotate45"])
@pytest.mark.parametrize("allow_hflip", [True, False])
def test_augment_is_that_of_training(strategy: str, allow_hflip: bool) -> None:
    condensed = make_set(allow_hflip=allow_hflip)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        inputs = condensed.augment(condensed.normalized(), strategy, generator=generator)
        if not allow_hflip and strategy == "flip":
            assert torch.equal(inputs, condensed.normalized())
        else:
            assert torch.equal(inputs, reference_augmentation(condensed, strategy, seed))


def test_default_strategy_is_that_of_the_protocol() -> None:
    condensed = make_set()
    inputs = condensed.augment(condensed.normalized(), generator=torch.Generator().manual_seed(3))
    assert torch.equal(inputs, reference_augmentation(condensed, cs.Protocol().augment, 3))


def test_each_operation_is_used_for_whole_batches() -> None:
    condensed, generator = make_set(), torch.Generator().manual_seed(0)
    normalized, num_cutout, num_flip = condensed.normalized(), 0, 0
    for _ in range(200):
        inputs = condensed.augment(normalized, "flip_cutout", generator=generator)
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
    torch.manual_seed(5)
    first = condensed.augment(condensed.normalized())
    assert not torch.equal(condensed.augment(condensed.normalized()), first)
    torch.manual_seed(5)
    assert torch.equal(condensed.augment(condensed.normalized()), first)


def test_augment_is_differentiable() -> None:
    condensed = make_set()
    inputs = condensed.normalized().requires_grad_()
    condensed.augment(inputs, "scale", generator=torch.Generator().manual_seed(0)).sum().backward()
    assert inputs.grad is not None and bool((inputs.grad != 0).any())


def test_normalize_accepts_uint8_and_floats() -> None:
    condensed = make_set()
    mean, std = (torch.tensor(values)[:, None, None] for values in (condensed.mean, condensed.std))
    assert torch.equal(condensed.normalize(condensed.images), (condensed.images - mean) / std)
    assert torch.equal(condensed.normalized(), condensed.normalize(condensed.images))
    pixels = (condensed.images * 255).round().to(torch.uint8)
    assert torch.equal(condensed.normalize(pixels), condensed.normalize(pixels.float() / 255))
    assert condensed.augment(condensed.normalize(condensed.images[:0])).shape == (0, 3, 16, 16)


def test_image_data_has_the_same_methods() -> None:
    condensed = make_set(allow_hflip=False)
    pixels = (condensed.images * 255).round().to(torch.uint8)
    data = cs.ImageData(
        images=pixels,
        labels=condensed.labels,
        class_names=condensed.class_names,
        mean=condensed.mean,
        std=condensed.std,
        allow_hflip=False,
    )
    assert torch.equal(data.normalized(), condensed.normalize(pixels)) and data.normalized().dtype == torch.float32
    inputs = [
        source.augment(condensed.normalized(), "color_flip", generator=torch.Generator().manual_seed(1))
        for source in (data, condensed)
    ]
    assert torch.equal(*inputs)


def test_invalid_arguments_are_rejected() -> None:
    condensed = make_set(channels=1)
    with pytest.raises(cs.UserError, match=r"square images of shape \(N, 1, H, W\), but got \(6, 3, 16, 16\)"):
        condensed.normalize(torch.rand(6, 3, 16, 16))
    with pytest.raises(cs.UserError, match="pixels must be a tensor, but got ndarray"):
        condensed.normalize(condensed.images.numpy())  # type: ignore[arg-type]
    with pytest.raises(cs.UserError, match=r"pixels must be uint8, or floats in 0..1, but got 'torch.int64'"):
        condensed.normalize(condensed.images.long())
    with pytest.raises(cs.UserError, match="inputs must be normalised images"):
        condensed.augment(condensed.images.long())
    with pytest.raises(cs.UserError, match="augmentation must be one of"):
        condensed.augment(condensed.images, "sharpen")


@pytest.mark.parametrize("scale", [255.0, -255.0])
def test_floats_of_another_range_are_refused(scale: float) -> None:
    condensed = make_set()
    message = r"pixels must be floats in 0\.\.1, but got 25[45].*: divide 0\.\.255 by 255, or give uint8"
    with pytest.raises(cs.UserError, match=message):
        condensed.normalize(condensed.images * scale)
    assert condensed.normalize(condensed.images * 3).isfinite().all()  # learned images overshoot
    assert condensed.normalize(condensed.images[:0]).shape == (0, 3, 16, 16)
    diverged = dataclasses.replace(condensed, images=condensed.images * scale)
    assert diverged.normalized().isfinite().all()  # a set as it was learned can always be scored
