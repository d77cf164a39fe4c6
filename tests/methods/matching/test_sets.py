"""The synthetic images of a run: initial stored images, clamping, decay of the learning rate, averages."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from condenset import UserError
from condenset.data.image_data import ImageData
from condenset.data.partition import PartLayout
from condenset.data.transform import denormalize
from condenset.engine import ComputeDevice
from condenset.methods import DMRecipe
from condenset.methods.matching.dm import DistributionMatching, check_recipe, condense, make_problem
from condenset.methods.matching.sets import Parametrization
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
LAYOUTS = (PartLayout(2), PartLayout(4), PartLayout(2, "bicubic"), PartLayout(2, "dct"), PartLayout(5, "dct"))


def make_recipe(**fields: Any) -> DMRecipe:
    return DMRecipe(**{"ipc": 1, "network": "convnet(width=8, depth=2)", "iterations": 4, "batch_size": 5, **fields})


def make_matching(**fields: Any) -> DistributionMatching:
    return make_problem(tiny_data([8, 8]), [make_recipe(**fields)], RunContext(seed=3, compute=CPU))


def run_steps(matching: DistributionMatching) -> list[Tensor]:
    """Return the images after every iteration."""
    iterates = []
    for _ in range(matching.recipe.iterations):
        matching.step()
        iterates.append(matching.sets.images_KICHW.clone())
    return iterates


def colourful_data() -> ImageData:
    """Return images whose channels have different means and standard deviations."""
    return dataclasses.replace(tiny_data([40, 40]), mean=(0.2, 0.5, 0.7), std=(0.1, 0.25, 0.5))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_part_starts_from_another_real_image(layout: PartLayout) -> None:
    run = RunContext(seed=3, compute=CPU)
    plain = condense(colourful_data(), make_recipe(ipc=layout.num_parts, iterations=0), run)
    recipe = make_recipe(partition=layout.partition, decoder=layout.decoder, iterations=0)
    stored = condense(colourful_data(), recipe, run).stored_images
    torch.testing.assert_close(stored, layout.encode(plain.images))
    assert len(plain.images.flatten(1).unique(dim=0)) == 2 * layout.num_parts


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_result_has_the_images_that_networks_saw(layout: PartLayout) -> None:
    data, recipe = colourful_data(), make_recipe(partition=layout.partition, decoder=layout.decoder)
    condensed = condense(data, recipe, RunContext(seed=3, compute=CPU))
    matching = make_problem(data, [recipe], RunContext(seed=3, compute=CPU))
    last = run_steps(matching)[-1]
    images = denormalize(matching.sets.parts.decode(last).flatten(0, 1), data.mean, data.std)
    torch.testing.assert_close(condensed.images, images, rtol=1e-4, atol=1e-4)


def test_sets_that_could_not_be_decoded_are_refused_before_the_first_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 * 2 * (4 * 3 * 8 * 8 + 8)  # four times two images with their labels
    monkeypatch.setattr("condenset.data.partition.MAX_DECODED_BYTES", size)
    make_matching(partition=2)
    monkeypatch.setattr("condenset.data.partition.MAX_DECODED_BYTES", size - 1)
    with pytest.raises(UserError, match="a set must decode to at most"):
        make_matching(partition=2)
    make_matching(ipc=8)  # without a partition nothing is decoded


@pytest.mark.parametrize("decoder", ["bilinear", "dct"])
def test_noise_has_the_mean_of_the_data(decoder: str) -> None:
    recipe = make_recipe(init="noise", partition=2, decoder=decoder, iterations=0, ipc=2)
    images = condense(colourful_data(), recipe, RunContext(seed=3, compute=CPU)).images
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.tensor(colourful_data().mean), rtol=0, atol=0.1)


def test_initial_images_are_encoded_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of all classes may not fit into memory before they are encoded."""
    shapes, encode = [], PartLayout.encode

    def record(layout: PartLayout, images: Tensor) -> Tensor:
        shapes.append(tuple(images.shape))
        return encode(layout, images)

    monkeypatch.setattr(PartLayout, "encode", record)
    make_matching(partition=2)
    assert shapes == [(1, 4, 3, 8, 8)] * 2


def test_small_classes_repeat_their_images_with_noise() -> None:
    recipe = make_recipe(ipc=3, partition=2, iterations=0, allow_fewer=True)
    condensed = condense(tiny_data([2, 20]), recipe, RunContext(seed=3, compute=CPU))
    assert condensed.labels.bincount().tolist() == [8, 12]
    small = condensed.images[condensed.labels == 0]
    assert len(small.flatten(1).unique(dim=0)) == 8  # equal images would stay equal
    distances = torch.cdist(small[2:].flatten(1), small[:2].flatten(1)).amin(1)
    assert distances.max() < torch.dist(small[0], small[1]) / 2


@pytest.mark.parametrize(("share", "num"), [(0.5, 2), (1.0, 4), (0.25, 1), (0.0, 1), (0.1, 1)])
def test_result_is_the_mean_of_the_last_iterates(share: float, num: int) -> None:
    matching = make_matching(average=share)
    iterates = run_steps(matching)
    images, _ = matching.sets.result(matching.sets.slices[0])
    torch.testing.assert_close(images, torch.stack(iterates[-num:]).mean(0).flatten(0, 1))


def test_average_of_no_iterates_is_the_initial_images() -> None:
    initial, averaged = (
        condense(tiny_data([8, 8]), make_recipe(iterations=0, average=share), RunContext(compute=CPU))
        for share in (0.0, 0.5)
    )
    assert torch.equal(averaged.images, initial.images)


def test_averaging_does_not_change_the_iterates() -> None:
    plain, averaged = (run_steps(make_matching(average=share)) for share in (0.0, 0.5))
    assert all(torch.equal(*pair) for pair in zip(plain, averaged, strict=True))


def test_clamped_pixels_are_in_their_range() -> None:
    clamped, free = (
        condense(colourful_data(), make_recipe(clamp=clamp, lr=100.0), RunContext(compute=CPU)).images
        for clamp in (True, False)
    )
    for channel in range(3):
        assert free[:, channel].min() < -0.1 and free[:, channel].max() > 1.1
        assert clamped[:, channel].min() == pytest.approx(0, abs=1e-6)
        assert clamped[:, channel].max() == pytest.approx(1, abs=1e-6)


def test_learning_rate_falls_linearly() -> None:
    matching = make_matching(lr_decay=True, lr=8.0, momentum=0.0)
    sets, rates = matching.sets, []
    for _ in range(4):
        before = sets.images_KICHW.clone()
        matching.step()
        rates.append(float((before - sets.images_KICHW).norm() / sets.velocity.norm()))
    assert rates == pytest.approx([8, 6, 4, 2], rel=1e-3)


def test_parts_that_a_recipe_does_not_use() -> None:
    assert make_recipe().parametrization == Parametrization()
    assert set(make_matching().sets.state) == {"images", "velocity"}
    assert set(make_matching(average=0.5).sets.state) == {"images", "velocity", "average"}
    recipe = make_recipe(partition=2, decoder="bicubic", clamp=True, average=0.5, lr_decay=True, iterations=10)
    layout = PartLayout(2, "bicubic")
    assert recipe.parametrization == Parametrization(layout=layout, clamp=True, average_from=5, decay_steps=10)


def test_checkpoints_state_the_decoder_unless_it_is_that_of_older_versions() -> None:
    assert "decoder" not in make_recipe(partition=2).identity()
    assert make_recipe(partition=2, decoder="bicubic").identity()["decoder"] == "bicubic"


def test_partition_must_divide_the_image_size() -> None:
    data, recipe = tiny_data([8, 8]), make_recipe(partition=3)
    message = r"\Apartition must divide the image size of 8 pixels unless the decoder is dct, but got 3\Z"
    with pytest.raises(UserError, match=message):
        check_recipe(data, recipe, CPU, None)
    with pytest.raises(UserError, match=message):
        condense(data, recipe, RunContext(compute=CPU))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"partition": 0}, "partition must be .*, but got 0"),
        ({"partition": 9}, "partition must be .*, but got 9"),
        ({"decoder": "cubic"}, "decoder cannot be 'cubic'; did you mean 'bicubic'"),
        ({"clamp": 1}, "clamp must be true or false, but got 1"),
        ({"lr_decay": "no"}, "lr_decay must be true or false, but got 'no'"),
        ({"average": 1.5}, "average must be a share of the iterations, from 0 to 1, but got 1.5"),
        ({"average": -0.5}, "average must be .*, but got -0.5"),
        ({"calibration": -1}, "calibration must be .*, but got -1"),
        ({"calibration": 1.0}, "sampler must be one of final, .*, queue with a calibration, but got 'random'"),
        ({"features": "first"}, "features must be one of last, blocks, attention, but got 'first'"),
        ({"sampler": "checkpoint"}, "sampler cannot be 'checkpoint'; did you mean 'checkpoints'"),
        ({"objective": "covarianse"}, "objective cannot be .*did you mean 'covariance'"),
        ({"pool_size": 0}, "pool_size must be .*, but got 0"),
        ({"pool_epochs": 0}, "pool_epochs must be .*, but got 0"),
    ],
)
def test_invalid_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"\A.*{message}.*\Z"):
        make_recipe(**fields)
