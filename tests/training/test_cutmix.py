"""CutMix: boxes, their areas, and the gradient of mixed labels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from condenset.engine import rng
from condenset.training.cross_entropy import logit_gradient
from condenset.training.cutmix import NUM_UNIFORMS, STREAM, CutMixBox, make_box, mix_images

KEY = rng.make_key(0, "cutmix")


def sample_boxes(num: int, size: int, probability: float) -> list[CutMixBox]:
    stream = torch.tensor([STREAM])
    return [make_box(rng.uniform(KEY, step, stream, 4)[0], size, probability) for step in range(num)]


def test_box_is_a_square_that_the_image_cuts_off() -> None:
    for box in sample_boxes(30, 16, 1.0):
        rows, columns = (box.inside_HW.any(dim).nonzero()[:, 0] for dim in (1, 0))
        assert box.inside_HW.sum() == len(rows) * len(columns)
        assert float(box.share) == pytest.approx(1 - len(rows) * len(columns) / 256)
        touches_border = any(set(pixels.tolist()) & {0, 15} for pixels in (rows, columns))
        assert touches_border or len(rows) == len(columns)


def test_areas_are_uniform_before_they_are_cut_off() -> None:
    """With the side s = √u and a uniform centre, the mean area is E[(s - s²/4)²] = 1/2 - 1/5 + 1/48."""
    areas = torch.stack([1 - box.share for box in sample_boxes(200, 128, 1.0)])
    assert float(areas.mean()) == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.04)
    assert areas.max() > 0.8 and areas.min() < 0.02


def test_a_share_of_the_batches_is_mixed() -> None:
    mixed = [box.share < 1 for box in sample_boxes(100, 128, 0.3)]
    assert sum(mixed) / 100 == pytest.approx(0.3, abs=0.1)
    assert all(box.share == 1 and not box.inside_HW.any() for box in sample_boxes(5, 8, 0.0))


def test_images_are_mixed_by_the_box_of_the_step() -> None:
    images = torch.rand(2, 3, 16, 16)
    boxes = sample_boxes(5, 16, 1.0)
    for step, box in enumerate(boxes):
        mixed, share = mix_images(images, rng.uniform(KEY, step, torch.tensor([STREAM]), NUM_UNIFORMS)[0], 1.0)
        assert torch.equal(mixed, box.mix(images)) and share == box.share
    assert len({float(box.share) for box in boxes}) > 1


def test_every_image_gets_the_box_of_the_image_before_it() -> None:
    inside = torch.zeros(4, 4, dtype=torch.bool)
    inside[1:3, 2:] = True
    images = torch.arange(3.0)[:, None, None, None].expand(3, 2, 4, 4)
    mixed = CutMixBox(inside, torch.tensor(0.75)).mix(images)
    assert mixed[:, :, inside].unique(dim=2).flatten(1)[:, 0].tolist() == [2, 0, 1]
    assert torch.equal(mixed[:, :, ~inside], images[:, :, ~inside])


@pytest.mark.parametrize("share", [None, 0.6])
def test_gradient_is_that_of_mixed_labels(share: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 3, generator=generator), torch.tensor([0, 2, 1, 1])
    soft = torch.softmax(torch.randn(4, 3, generator=generator), 1)
    for given, probabilities in ((labels, F.one_hot(labels, 3).float()), (soft, soft)):
        own = 1.0 if share is None else share
        mixed = own * probabilities + (1 - own) * probabilities[[3, 0, 1, 2]]
        gradient = logit_gradient(logits, given, None if share is None else torch.tensor(share))
        torch.testing.assert_close(gradient, (torch.softmax(logits, 1) - mixed) / 4)
