"""One step with all parts of the family: equal to a loop over classes with PyTorch's optimiser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import augment, networks
from condenset.data.transform import normalize
from condenset.engine import ComputeDevice, rng
from condenset.methods import DMRecipe
from condenset.methods.matching.dm import DistributionMatching, condense, condense_sizes, make_problem
from condenset.methods.matching.objectives import make_objective
from condenset.runs.context import RunContext
from helpers.expert_pools import SPEC, make_expert_pool
from helpers.reference_dm import augment_class, decode_image, tiny_data

CPU = ComputeDevice.select("cpu")
NUM_STEPS, FACTOR, IPC, LR, MOMENTUM, CALIBRATION = 4, 2, 3, 20.0, 0.5, 0.7
COUNTS = {"equal": [6, 6, 6], "unequal": [7, 2, 5, 4]}
BATCH_NORM = "convnet(width=8, depth=2, norm='batch')"
PIXEL_RANGE = (-2.0, 2.0)  # of normalised pixels: the mean of tiny images is 0.5, and their deviation 0.25


def make_recipe(directory: Path, counts: list[int], *, network: str = SPEC, **fields: Any) -> DMRecipe:
    """Train a pool, and return a recipe that uses all parts."""
    options = {"network": network, "num_networks": 1, "epochs": 1, "num_checkpoints": 1}
    pool = make_expert_pool(tiny_data(counts), directory / "pool", **options)  # type: ignore[arg-type]
    values = {
        "ipc": IPC,
        "allow_fewer": True,
        "network": network,
        "iterations": NUM_STEPS,
        "batch_size": 5,
        "lr": LR,
        "momentum": MOMENTUM,
        "augment": "color+crop_flip+cutout",
        "sampler": "interpolated",
        "pool": str(pool.directory),
        "partition": FACTOR,
        "decoder": "bicubic",
        "clamp": True,
        "average": 0.5,
        "lr_decay": True,
        "calibration": CALIBRATION,
    }
    return DMRecipe(**{**values, **fields})


def load_network(spec: str, parameters: dict[str, Tensor], num_classes: int) -> Any:
    """Return a network with these parameters; those of the classifier may be missing."""
    network = networks.build(spec, channels=3, size=8, num_classes=num_classes)
    network.load_state_dict(parameters, strict=False)
    return network.requires_grad_(False)


def apply_network(function: Callable[[Tensor], Tensor], batches: list[Tensor], *, batch_norm: bool) -> list[Tensor]:
    """Apply a network to the images of every class. Batch norm needs all classes in one pass."""
    if batch_norm:
        return list(function(torch.cat(batches)).split([len(batch) for batch in batches]))
    return [function(batch) for batch in batches]


def reference_loss(matching: DistributionMatching, counts: list[int], synthetic: list[nn.Parameter]) -> Tensor:
    """Return the loss of the current iteration, class by class, with the same random numbers."""
    data, step, recipe, sampler = tiny_data(counts), int(matching.clock), matching.recipe, matching.networks
    stages, batch_norm = augment.parse_strategy(recipe.augment), recipe.network == BATCH_NORM
    network, classifier = (
        load_network(recipe.network, sample(matching.clock, torch.float32), len(counts)).train()
        for sample in (sampler.sample, sampler.sample_classifier)
    )
    uniforms = rng.uniform(matching.augment_key, step, torch.arange(len(counts)), augment.NUM_UNIFORMS)
    real, decoded = [], []
    for label, (count, images) in enumerate(zip(counts, synthetic, strict=True)):
        index = rng.sample_without_replacement(
            matching.real_key, step, torch.tensor([label]), torch.tensor([count]), max(counts), min(5, count)
        )[0]
        pixels = (data.images[data.labels == label][index].float() / 255 - 0.5) / 0.25
        real.append(augment_class(pixels, stages, uniforms[label]))
        parts = torch.cat([decode_normalized(image, recipe.decoder) for image in images])
        decoded.append(augment_class(parts, stages, uniforms[label]))
    loss = torch.zeros(())
    real_features, features = (apply_network(network.embed, x, batch_norm=batch_norm) for x in (real, decoded))
    if recipe.calibration_images:  # the images of a class take turns
        nums = [min(recipe.calibration_images, len(images)) for images in decoded]
        decoded = [
            torch.stack([images[(step * num + turn) % len(images)] for turn in range(num)])
            for images, num in zip(decoded, nums, strict=True)
        ]
    all_logits = apply_network(classifier, decoded, batch_norm=batch_norm)
    for label, logits in enumerate(all_logits):
        loss = loss + ((real_features[label].mean(0) - features[label].mean(0)) ** 2).sum()
        loss = loss + CALIBRATION * F.cross_entropy(logits, torch.full((len(logits),), label))
    return loss


def decode_normalized(image_CHW: Tensor, decoder: str) -> Tensor:
    """Return the normalised images that a stored image holds. Frequencies are not shifted by the mean of the pixels."""
    images = decode_image(image_CHW, FACTOR, decoder)
    return images + PIXEL_RANGE[0] if decoder == "dct" else images


def clamp_pixels(image_CHW: Tensor, decoder: str) -> Tensor:
    """Return a stored image whose pixels are in their range. The frequencies of the change are the derivative of it."""
    if decoder != "dct":
        return image_CHW.clamp(*PIXEL_RANGE)
    image_CHW = image_CHW.detach().requires_grad_()
    images = decode_normalized(image_CHW, decoder)
    change = (images.clamp(*PIXEL_RANGE) - images).detach()
    (by_values,) = torch.autograd.grad((images * change).sum(), image_CHW)
    return (image_CHW + by_values / len(images)).detach()


@pytest.mark.parametrize(
    ("name", "spec", "chunk", "decoder", "calibration_images"),
    [
        ("equal", SPEC, None, "bicubic", 0),
        ("equal", SPEC, None, "dct", 5),
        ("unequal", SPEC, 2, "bicubic", 5),
        ("unequal", BATCH_NORM, None, "dct", 5),
    ],
)
def test_all_parts_together_equal_the_reference(
    tmp_path: Path, name: str, spec: str, chunk: int | None, decoder: str, calibration_images: int
) -> None:
    counts, run = COUNTS[name], RunContext(seed=3, compute=CPU, classes_per_chunk=chunk)
    recipe = make_recipe(tmp_path, counts, network=spec, decoder=decoder, calibration_images=calibration_images)
    matching = make_problem(tiny_data(counts), [recipe], run)
    sizes, sets = [min(IPC, count) for count in counts], matching.sets
    synthetic = [nn.Parameter(images[:size].clone()) for images, size in zip(sets.images_KICHW, sizes, strict=True)]
    optimizer = torch.optim.SGD(synthetic, lr=LR, momentum=MOMENTUM)
    iterates, num_clamped = [], 0
    for step in range(NUM_STEPS):
        loss = reference_loss(matching, counts, synthetic)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = LR * (1 - step / NUM_STEPS)
        optimizer.step()
        for images in synthetic:
            clamped = torch.stack([clamp_pixels(image, decoder) for image in images.detach()])
            num_clamped += int((clamped != images).sum())
            images.data.copy_(clamped)
        iterates.append([images.detach().clone() for images in synthetic])
        matching.step()
        torch.testing.assert_close(matching.losses[step], loss.detach(), rtol=1e-4, atol=1e-5)
        for label, images in enumerate(synthetic):
            torch.testing.assert_close(sets.images_KICHW[label, : len(images)], images.detach(), rtol=1e-3, atol=1e-3)
    assert num_clamped > 0
    averages = [torch.stack(images).mean(0) for images in zip(*iterates[NUM_STEPS // 2 :], strict=True)]
    images, labels = sets.result(sets.slices[0])
    torch.testing.assert_close(images, torch.cat(averages), rtol=1e-3, atol=1e-3)
    assert labels.tolist() == [label for label, size in enumerate(sizes) for _ in range(size)]


def test_result_has_the_decoded_mean_of_the_last_iterates(tmp_path: Path) -> None:
    data, recipe = tiny_data(COUNTS["unequal"]), make_recipe(tmp_path, COUNTS["unequal"])
    matching = make_problem(data, [recipe], RunContext(seed=3, compute=CPU))
    for _ in range(NUM_STEPS):
        matching.step()
    condensed = condense(data, recipe, RunContext(seed=3, compute=CPU))
    compact, _ = matching.sets.result(matching.sets.slices[0])
    assert condensed.compact is not None
    torch.testing.assert_close(normalize(condensed.compact, data.mean, data.std), compact, rtol=0, atol=1e-5)
    assert (condensed.compact.min() >= -1e-6) and (condensed.compact.max() <= 1 + 1e-6)
    expected = torch.cat([decode_image(image, FACTOR, "bicubic") for image in condensed.compact])
    torch.testing.assert_close(condensed.images, expected)
    assert condensed.labels.bincount().tolist() == [FACTOR**2 * min(IPC, count) for count in COUNTS["unequal"]]


@pytest.mark.parametrize("decoder", ["bilinear", "dct"])
def test_several_sizes_at_once_equal_each_size_alone(tmp_path: Path, decoder: str) -> None:
    data, spec = tiny_data([7, 2, 5]), "convnet(width=8, depth=2)"
    pool = make_expert_pool(data, tmp_path / "pool", network=spec, num_networks=1, epochs=1, num_checkpoints=1)
    parts: dict[str, Any] = {"clamp": True, "average": 0.5, "lr_decay": True, "partition": 2, "decoder": decoder}
    parts |= {"objective": "covariance", "pool": str(pool.directory), "calibration": 0.5, "calibration_images": 5}
    recipes = [
        DMRecipe(ipc=ipc, lr=lr, network=spec, iterations=3, batch_size=5, allow_fewer=True, **parts)
        for ipc, lr in ((1, 1.0), (3, 10.0))
    ]
    together = condense_sizes(data, recipes, RunContext(seed=3, compute=CPU))
    for condensed, recipe in zip(together, recipes, strict=True):
        alone = condense(data, recipe, RunContext(seed=3, compute=CPU))
        torch.testing.assert_close(condensed.stored_images, alone.stored_images, rtol=1e-3, atol=1e-4)
        assert torch.equal(condensed.labels, alone.labels)


def test_turns_of_all_images_equal_no_turns(tmp_path: Path) -> None:
    counts, run = [7, 2, 5], RunContext(seed=3, compute=CPU)
    sets = [
        condense(tiny_data(counts), make_recipe(tmp_path, counts, calibration_images=number), run).stored_images
        for number in (0, 4 * max(counts), 2)
    ]
    torch.testing.assert_close(sets[1], sets[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(sets[2], sets[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("objective", "features"),
    [
        ("covariance(weight=2)", "blocks"),
        ("kernel(bandwidths=3)", "last"),
        ("characteristic(frequencies=8)", "attention"),
    ],
)
def test_step_uses_the_objective_and_the_features_of_the_recipe(objective: str, features: str) -> None:
    data, fields = tiny_data([5, 5]), {"batch_size": 5, "iterations": 1, "augment": "none"}
    recipe = DMRecipe(ipc=2, network=SPEC, objective=objective, features=features, **fields)  # type: ignore[arg-type]
    matching = make_problem(data, [recipe], RunContext(seed=3, compute=CPU))
    network = networks.to_embedding(networks.build(SPEC, channels=3, size=8, num_classes=2), features)
    network.load_state_dict(matching.networks.sample(matching.clock, torch.float32))
    real = torch.stack([data.normalized()[data.labels == label] for label in range(2)])  # a batch has all images
    embedded = [network(images.flatten(0, 1)).unflatten(0, (2, -1)) for images in (real, matching.sets.images_KICHW)]
    expected = make_objective(objective, 3, torch.tensor(0))(embedded[0], embedded[1], None, None).sum()
    matching.step()
    torch.testing.assert_close(matching.losses[0], expected.detach(), rtol=1e-4, atol=1e-6)
