"""Oracles: the paper's algorithm and its augmentations written out plainly, one image and one class at a time."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from condenset import ImageData
from condenset.progress import Silent
from condenset.runs import Run

OPERATIONS = ("color", "crop", "cutout", "flip", "scale", "rotate")


def tiny_data(
    counts: list[int], *, channels: int = 3, size: int = 8, seed: int = 0, can_flip: bool = True
) -> ImageData:
    """Random images whose classes differ in their mean pixel."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((count,), number) for number, count in enumerate(counts)])
    noise = torch.randint(0, 156, (len(labels), channels, size, size), generator=generator)
    pattern = torch.randint(0, 100, (len(counts), channels, size, size), generator=generator)
    order = torch.randperm(len(labels), generator=generator)
    return ImageData(
        images=(noise + pattern[labels]).to(torch.uint8)[order],
        labels=labels[order],
        class_names=tuple(f"class {number}" for number in range(len(counts))),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        name="tiny",
        can_flip=can_flip,
    )


def augment_one(image_CHW: Tensor, operation: str, u: Tensor) -> Tensor:
    """One image under one operation; u: the operation's own uniforms, as FACTS of the paper's code map them."""
    name = operation.rstrip("0123456789")
    return globals()[f"_{name}"](image_CHW, u, *map(float, [operation[len(name) :]] if name != operation else []))


def _color(image: Tensor, u: Tensor) -> Tensor:
    image = image + (u[0] - 0.5)
    grey = image.mean(0)
    image = torch.stack([(plane - grey) * (2 * u[1]) + grey for plane in image])
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
    """Bilinear sampling at matrix @ (x, y), coordinates from the centre of the image; outside is zero."""
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


def augment_class(images_NCHW: Tensor, operations: tuple[str, ...], uniform_U: Tensor) -> Tensor:
    """Siamese: every image of the class under the one operation and the one set of parameters drawn for it."""
    operation = operations[min(int(float(uniform_U[0]) * len(operations)), len(operations) - 1)]
    number = OPERATIONS.index(operation.rstrip("0123456789"))
    first = 1 + sum((3, 2, 2, 1, 2, 1)[:number])
    own = uniform_U[first : first + (3, 2, 2, 1, 2, 1)[number]]
    return torch.stack([augment_one(image, operation, own) for image in images_NCHW])


def matching_loss(
    network: nn.Module,
    real: list[Tensor],
    synthetic: list[Tensor],
    *,
    operations: tuple[str, ...] = (),
    uniforms: Tensor | None = None,
    together: bool = False,
) -> Tensor:
    """Line 4 of Algorithm 1, a class at a time; `together`: all classes in one pass, as batch norm needs it."""
    if operations:
        assert uniforms is not None
        real = [augment_class(images, operations, u) for images, u in zip(real, uniforms, strict=True)]
        synthetic = [augment_class(images, operations, u) for images, u in zip(synthetic, uniforms, strict=True)]
    if together:
        parts = [network.embed(torch.cat(images)).split([len(each) for each in images]) for images in (real, synthetic)]
    else:
        parts = [[network.embed(each) for each in images] for images in (real, synthetic)]
    loss = torch.zeros(())
    for real_features, synthetic_features in zip(*parts, strict=True):
        loss = loss + ((real_features.detach().mean(0) - synthetic_features.mean(0)) ** 2).sum()
    return loss


def gradient_distance(network: nn.Module, real: Tensor, synthetic: Tensor, label: int) -> Tensor:
    """Gradient matching's distance of one class: 1 - cosine of every output row of every weight, row after row."""
    weights = [weight for weight in network.parameters() if weight.dim() > 1]

    def gradients(images: Tensor, keep: bool) -> tuple[Tensor, ...]:
        loss = nn.functional.cross_entropy(network(images), torch.full((len(images),), label))
        return torch.autograd.grad(loss, weights, create_graph=keep)

    total = torch.zeros(())
    for wanted, found in zip(gradients(real, False), gradients(synthetic, True), strict=True):
        for a, b in zip(wanted, found, strict=True):
            total = total + 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-6)
    return total


class StopAtStep(Silent):
    """Asks the run to stop once it has come this far."""

    def __init__(self, run: Run, step: int) -> None:
        self.run, self.step = run, step

    def update(self, done: int, note: str = "") -> None:
        self.run.stop_requested = done >= self.step


class StopAtLoop(Silent):
    """Asks the run to stop when so many loops have begun."""

    def __init__(self, run: Run, number: int) -> None:
        self.run, self.left = run, number

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.left -= 1

    def update(self, done: int, note: str = "") -> None:
        self.run.stop_requested = int(self.left <= 0)
