"""Every augmentation against a reference that processes one image at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condenset import UserError, augment
from condenset.engine import rng
from helpers.reference_dm import OPERATIONS, augment_class, augment_one


def uniforms(seed: int, groups: int) -> torch.Tensor:
    return rng.uniform(rng.make_key(seed, "test"), 0, torch.arange(groups), augment.NUM_UNIFORMS)


@pytest.mark.parametrize("operation", [*OPERATIONS, "rotate45", "rotate180"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 9), (3, 16)])
def test_each_operation_equals_the_reference(operation: str, channels: int, size: int) -> None:
    uniform_GU = uniforms(size, 7)
    images = torch.randn(7, 2, channels, size, size, generator=torch.Generator().manual_seed(1))
    out = augment.apply(augment.sample_transform(uniform_GU, ((operation,),), size), images)
    for group, u in enumerate(uniform_GU):
        expected = augment_class(images[group], ((operation,),), u)
        torch.testing.assert_close(out[group], expected, atol=2e-5, rtol=1e-5)
    assert not torch.allclose(out, images)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), size=st.integers(4, 12), data=st.data())
def test_groups_with_different_operations_in_one_pass(seed: int, size: int, data: st.DataObject) -> None:
    operations = tuple(data.draw(st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=6, unique=True)))
    degrees = data.draw(st.sampled_from(["", "1", "90", "180"]))
    operations = tuple(name + degrees if name == "rotate" else name for name in operations)
    uniform_GU = uniforms(seed, 4)
    images = torch.randn(4, 2, 3, size, size, generator=torch.Generator().manual_seed(seed))
    out = augment.apply(augment.sample_transform(uniform_GU, (operations,), size), images)
    assert out.shape == images.shape
    assert out.isfinite().all()
    for group, u in enumerate(uniform_GU):
        torch.testing.assert_close(out[group], augment_class(images[group], (operations,), u), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "strategy",
    ["color+crop+cutout", "flip+color_cutout+crop", "crop_flip+color_cutout", "flip+color+crop_scale_rotate"],
)
def test_stages_are_stacked(strategy: str) -> None:
    uniform_GU, stages = uniforms(9, 12), augment.parse_strategy(strategy)
    images = torch.randn(12, 2, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    out = augment.apply(augment.sample_transform(uniform_GU, stages, 8), images)
    for group, u in enumerate(uniform_GU):
        torch.testing.assert_close(out[group], augment_class(images[group], stages, u), atol=2e-5, rtol=1e-5)
    assert augment.format_strategy(stages) == strategy


def test_rotation_and_flip_compose_to_an_isometry() -> None:
    theta = augment.sample_transform(uniforms(4, 50), (("rotate",), ("flip",)), 8).theta_G23[:, :, :2]
    torch.testing.assert_close(theta @ theta.mT, torch.eye(2).expand(50, 2, 2), atol=1e-6, rtol=0)
    assert {round(value) for value in torch.linalg.det(theta).tolist()} == {-1, 1}


def test_gradients_equal_those_of_the_reference() -> None:
    uniform_GU = uniforms(3, 12)
    images = torch.randn(12, 1, 3, 8, 8, requires_grad=True)
    target = torch.randn(12, 1, 3, 8, 8)
    (augment.apply(augment.sample_transform(uniform_GU, (OPERATIONS,), 8), images) * target).sum().backward()
    plain = images.detach().clone().requires_grad_()
    sum((augment_class(plain[g], (OPERATIONS,), u) * target[g]).sum() for g, u in enumerate(uniform_GU)).backward()
    torch.testing.assert_close(images.grad, plain.grad, atol=2e-5, rtol=1e-4)


def test_training_shares_the_operation_but_not_its_parameters() -> None:
    uniform_GU = uniforms(5, 8)
    transform = augment.sample_transform(uniform_GU, (("rotate", "scale"),), 8, shared=True)
    rotated = transform.theta_G23[:, 0, 1] != 0
    assert rotated.all() or not rotated.any()
    assert len(transform.theta_G23.flatten(1).unique(dim=0)) == 8
    is_rotated = augment.sample_transform(uniforms(5, 40), (("rotate", "scale"),), 8).theta_G23[:, 0, 1] != 0
    assert is_rotated.any() and not is_rotated.all()


def test_every_operation_is_sampled_equally_often() -> None:
    choice = (uniforms(0, 6000)[:, 0] * 6).long().bincount(minlength=6)
    assert (choice - 1000).abs().max() < 150


def test_extremes_of_cutout_and_crop() -> None:
    u = torch.full((2, augment.NUM_UNIFORMS), 0.0)
    u[1] = 1 - 2**-24
    mask = augment.sample_transform(u, (("cutout",),), 8).mask_GHW
    assert mask.sum((1, 2)).tolist() == [64 - 4, 64 - 4]  # at a corner, a quarter of the square is inside
    shift = augment.sample_transform(u, (("crop",),), 16).theta_G23[:, :, 2] * 8
    assert shift.tolist() == [[-2, -2], [2, 2]]


def test_flip_is_removed_unless_allowed() -> None:
    assert augment.parse_strategy(augment.DEFAULT_STRATEGY) == (OPERATIONS,)
    (stage,) = augment.parse_strategy(augment.DEFAULT_STRATEGY, allow_hflip=False)
    assert "flip" not in stage
    assert augment.parse_strategy("flip+color_crop", allow_hflip=False) == (("color", "crop"),)
    assert augment.parse_strategy("none") == ()


def test_invalid_strategies_are_refused() -> None:
    with pytest.raises(UserError, match=r"'croop'.*did you mean 'crop'"):
        augment.parse_strategy("color_croop")
    with pytest.raises(UserError, match="name each operation once, but got 'crop_crop'"):
        augment.parse_strategy("crop_crop")
    assert augment.parse_strategy("crop_rotate180") == (("crop", "rotate180"),)
    with pytest.raises(UserError, match=r"name each operation once, but got 'crop\+crop_flip'"):
        augment.parse_strategy("crop+crop_flip")
    with pytest.raises(UserError, match="name each operation once, but got 'rotate_rotate20'"):
        augment.parse_strategy("rotate_rotate20")
    for name in ("rotate0", "rotate181"):
        with pytest.raises(UserError, match=f"by 1 to 180 degrees, but got '{name}'"):
            augment.parse_strategy(f"crop_{name}")
    for name in ("crop4", "rotate-5", "rotate1.5", "rotatex"):
        with pytest.raises(UserError, match=f"augmentation cannot be .*{name}"):
            augment.parse_strategy(name)


def test_the_reference_moves_pixels_as_expected() -> None:
    image = torch.zeros(1, 4, 4)
    image[0, 1, 2] = 1
    assert augment_one(image, "flip", torch.tensor([0.1]))[0, 1, 1] == 1
    assert augment_one(image, "rotate", torch.tensor([0.5])).equal(image)
