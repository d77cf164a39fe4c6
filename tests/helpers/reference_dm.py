"""Reference implementations, one image and one class at a time: Algorithm 1, its augmentations, gradient matching."""

from __future__ import annotations

import itertools
import math

import numpy as np
import scipy.fft
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset import ImageData, augment

OPERATIONS = ("color", "crop", "cutout", "flip", "scale", "rotate")


def tiny_data(
    counts: list[int], *, channels: int = 3, size: int = 8, seed: int = 0, allow_hflip: bool = True
) -> ImageData:
    """Return random images; each class has its own mean image."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    noise = torch.randint(0, 156, (len(labels), channels, size, size), generator=generator)
    pattern = torch.randint(0, 100, (len(counts), channels, size, size), generator=generator)
    order = torch.randperm(len(labels), generator=generator)
    return ImageData(
        images=(noise + pattern[labels]).to(torch.uint8)[order],
        labels=labels[order],
        class_names=tuple(f"class {label}" for label in range(len(counts))),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        name="tiny",
        allow_hflip=allow_hflip,
    )


def augment_one(image_CHW: Tensor, operation: str, u: Tensor) -> Tensor:
    """Augment one image by one operation, as the paper's code does; `u` are the uniform numbers of the operation."""
    name = operation.rstrip("0123456789")
    return globals()[f"_{name}"](image_CHW, u, *map(float, [operation[len(name) :]] if name != operation else []))


def _color(image: Tensor, u: Tensor) -> Tensor:
    image = image + (u[0] - 0.5)
    gray = image.mean(0)
    image = torch.stack([(plane - gray) * (2 * u[1]) + gray for plane in image])
    return (image - image.mean()) * (u[2] + 0.5) + image.mean()


def _crop(image: Tensor, u: Tensor) -> Tensor:
    side = image.shape[-1]
    reach = int(0.125 * side + 0.5)
    shift_x, shift_y = (int(float(v) * (2 * reach + 1)) - reach for v in u)
    out = torch.zeros_like(image)
    for y in range(side):
        for x in range(side):
            if 0 <= y + shift_y < side and 0 <= x + shift_x < side:
                out[:, y, x] = image[:, y + shift_y, x + shift_x]
    return out


def _cutout(image: Tensor, u: Tensor) -> Tensor:
    side = image.shape[-1]
    hole = int(0.5 * side + 0.5)
    centre_x, centre_y = (int(float(v) * (side + (1 - hole % 2))) for v in u)
    out = image.clone()
    for y in range(centre_y - hole // 2, centre_y - hole // 2 + hole):
        for x in range(centre_x - hole // 2, centre_x - hole // 2 + hole):
            if 0 <= y < side and 0 <= x < side:
                out[:, y, x] = 0
    return out


def _flip(image: Tensor, u: Tensor) -> Tensor:
    return image.flip(-1) if u[0] < 0.5 else image


def _scale(image: Tensor, u: Tensor) -> Tensor:
    factor_x, factor_y = (1 / 1.2 + float(v) * (1.2 - 1 / 1.2) for v in u)
    return _resample(image, np.array([[factor_x, 0], [0, factor_y]]))


def _rotate(image: Tensor, u: Tensor, degrees: float = 15) -> Tensor:
    angle = math.radians(degrees) * (2 * float(u[0]) - 1)
    return _resample(image, np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]))


def _resample(image: Tensor, matrix: np.ndarray) -> Tensor:
    """Sample bilinearly at matrix @ (x, y), with coordinates relative to the centre; pixels outside are 0."""
    side = image.shape[-1]
    middle = (side - 1) / 2
    out = torch.zeros_like(image)
    for y in range(side):
        for x in range(side):
            source_x, source_y = matrix @ (x - middle, y - middle) + middle
            left, top = math.floor(source_x), math.floor(source_y)
            for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
                weight = (1 - abs(source_x - column)) * (1 - abs(source_y - row))
                if 0 <= row < side and 0 <= column < side:
                    out[:, y, x] = out[:, y, x] + weight * image[:, row, column]
    return out


def augment_class(images_NCHW: Tensor, stages: augment.Stages, uniform_U: Tensor) -> Tensor:
    """Apply the operations, with the parameters, that are drawn for the class to all of its images.

    Warps come before color, and color before cutout. Several warps that interpolate are not supported.
    """
    choices, chosen = [0, 12, 13], []
    for stage in stages:
        column = choices.pop(0) if len(stage) > 1 else 0
        chosen.append(stage[min(int(float(uniform_U[column]) * len(stage)), len(stage) - 1)])
    order = ("crop", "scale", "rotate", "flip", "color", "cutout")
    for operation in sorted(chosen, key=lambda name: order.index(name.rstrip("0123456789"))):
        number = OPERATIONS.index(operation.rstrip("0123456789"))
        first = 1 + sum((3, 2, 2, 1, 2, 1)[:number])
        parameters = uniform_U[first : first + (3, 2, 2, 1, 2, 1)[number]]
        images_NCHW = torch.stack([augment_one(image, operation, parameters) for image in images_NCHW])
    return images_NCHW


def decode_image(image_CHW: Tensor, factor: int, decoder: str = "bilinear") -> Tensor:
    """Return the images that a stored image holds: each of its parts, enlarged."""
    size = image_CHW.shape[-1]
    if decoder == "dct":
        return decode_frequencies(image_CHW, factor**2)
    parts = split_image(image_CHW, factor)
    return torch.cat([F.interpolate(part[None], size=(size, size), mode=decoder) for part in parts])


def decode_frequencies(image_CHW: Tensor, num_parts: int) -> Tensor:
    """Return the images whose lowest frequencies a stored image has, one image after the other."""
    channels, size, _ = image_CHW.shape
    positions = itertools.product(range(channels), range(size), range(size))
    ranked = sorted(positions, key=lambda position: (position[1] ** 2 + position[2] ** 2) * (10 if position[0] else 1))
    stored = sorted(ranked[: channels * size**2 // num_parts])
    values, images = iter(image_CHW.flatten()), []
    for _ in range(num_parts):
        image_CHW = torch.zeros_like(image_CHW)
        for position in stored:
            basis = np.zeros((channels, size, size))
            basis[position] = 1
            wave = torch.from_numpy(scipy.fft.idctn(basis, norm="ortho")).to(image_CHW)
            image_CHW = image_CHW + math.sqrt(num_parts) * next(values) * wave
        images.append(image_CHW)
    return torch.stack(images)


def split_image(image_CHW: Tensor, factor: int) -> list[Tensor]:
    """Return the `factor` x `factor` parts of an image, row by row."""
    size = image_CHW.shape[-1]
    rows = [row.split(size // factor, dim=2) for row in image_CHW.split(size // factor, dim=1)]
    return [part for row in rows for part in row]


def matching_loss(
    network: nn.Module,
    real: list[Tensor],
    synthetic: list[Tensor],
    *,
    stages: augment.Stages = (),
    uniforms: Tensor | None = None,
    one_pass: bool = False,
) -> Tensor:
    """Compute the loss of Algorithm 1 (line 4) with a loop over classes.

    Args:
        network: The sampled network.
        real: Real images of each class.
        synthetic: Synthetic images of each class.
        stages: Stages of the augmentation.
        uniforms: (K, U) uniform numbers that select the augmentation of each class.
        one_pass: Pass the images of all classes through the network together, as batch norm needs it.
    """
    if stages:
        assert uniforms is not None
        real = [augment_class(images, stages, u) for images, u in zip(real, uniforms, strict=True)]
        synthetic = [augment_class(images, stages, u) for images, u in zip(synthetic, uniforms, strict=True)]

    def embed(classes: list[Tensor]) -> list[Tensor]:
        if one_pass:
            return list(network.embed(torch.cat(classes)).split([len(images) for images in classes]))
        return [network.embed(images) for images in classes]

    loss = torch.zeros(())
    for real_features, synthetic_features in zip(embed(real), embed(synthetic), strict=True):
        loss = loss + ((real_features.detach().mean(0) - synthetic_features.mean(0)) ** 2).sum()
    return loss


def gradient_distance(network: nn.Module, real: Tensor, synthetic: Tensor, label: int) -> Tensor:
    """Compute the distance of gradient matching for one class: 1 - cosine, summed over the rows of all weights."""
    weights = [weight for weight in network.parameters() if weight.dim() > 1]

    def gradients(images: Tensor, create_graph: bool) -> tuple[Tensor, ...]:
        loss = nn.functional.cross_entropy(network(images), torch.full((len(images),), label))
        return torch.autograd.grad(loss, weights, create_graph=create_graph)

    total = torch.zeros(())
    for real_rows, synthetic_rows in zip(gradients(real, False), gradients(synthetic, True), strict=True):
        for a, b in zip(real_rows, synthetic_rows, strict=True):
            total = total + 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-6)
    return total
