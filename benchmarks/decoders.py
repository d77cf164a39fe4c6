"""Measure the detail of images that survives when several of them are stored in the number of values of one.

    python benchmarks/decoders.py cifar10

A row is the variance of the pixels that remains after encoding and decoding, in percent of their variance around the
mean image. Nothing is learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

import condenset as cs
from condenset.cli.console import print_table
from condenset.data.partition import DECODERS, MAX_FACTOR, PartLayout
from condenset.errors import UserError

COLUMNS = ("decoder", "partition", "images per stored image", "values per image", "remaining variance %")


def remaining_variance(images: Tensor, layout: PartLayout) -> float:
    """Return the share of the variance of pixels (N, C, H, W) that remains."""
    images = images[: len(images) // layout.num_parts * layout.num_parts]
    variance = (images - images.mean(0)).square().mean()
    return float(1 - (layout.decode(layout.encode(images)) - images).square().mean() / variance)


def main(
    dataset: str,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", min=1, max=MAX_FACTOR, help="Default: 2 to 8.")
    ] = None,
    num_images: Annotated[
        int, typer.Option("--images", min=2 * MAX_FACTOR**2, help="Random training images to use.")
    ] = 5_000,
    data_dir: Path | None = None,
) -> None:
    train = cs.load(dataset, data_dir=data_dir, verbose=False).train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:num_images]
    images = train.images[order].float() / 255
    rows = []
    for decoder in DECODERS:
        for partition in partitions or range(2, 9):
            layout = PartLayout(partition, decoder)
            try:
                layout.check_shape(train.channels, train.size)
            except UserError:  # upsampling needs parts of equal size
                continue
            share = remaining_variance(images, layout)
            num_values = images[0].numel() // layout.num_parts
            rows.append((decoder, str(partition), str(layout.num_parts), str(num_values), f"{100 * share:.1f}"))
    print_table(COLUMNS, rows)


if __name__ == "__main__":
    typer.run(main)
