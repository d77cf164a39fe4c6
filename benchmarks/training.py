"""Time the training of networks on a set, as the evaluation does it, and a plain loop in the same process.

    python benchmarks/training.py                                # two CPU cores, less than a minute
    python benchmarks/training.py --device cuda --images 500 --images 5000
    python benchmarks/training.py --device cuda --network "resnet18(norm='batch')" --parallel 1 --parallel 3
    python benchmarks/training.py --device cuda --classes 200 --size 64 --images 10000

The set has random images. `ms` is the time per step and network, `parallel` the number of networks that train in
parallel. The plain loop is a module and PyTorch's optimiser, in float32, with the same augmentation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from plain_loops import make_plain_epoch
from timing import random_data, synchronize, time_calls

from condenset.cli.console import print_table
from condenset.engine import ComputeDevice
from condenset.training.dataset import DeviceDataset
from condenset.training.parallel import MAX_PARALLEL, train_in_parallel
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

COLUMNS = ("network", "images", "parallel", "start_s", "ms", "plain_ms", "ratio", "GiB")


def make_epoch(data: DeviceDataset, protocol: Protocol, compute: ComputeDevice, num: int) -> Callable[[], None]:
    """Return a function that trains `num` networks in parallel for one epoch."""
    trainers = [Trainer(protocol.network, data, protocol, compute) for _ in range(num)]
    trainings = [trainer.iter_train(0, number) for number, trainer in enumerate(trainers)]
    steps_done = train_in_parallel(trainings, compute.device)
    steps_per_epoch = -(-len(data) // protocol.batch_size)
    return lambda: next(None for done in steps_done if done % steps_per_epoch == 0)


def time_training(
    data: DeviceDataset, protocol: Protocol, compute: ComputeDevice, num: int, seconds: float, plain: bool
) -> list[str]:
    """Return the cells of a row from start_s on."""
    compute.reset_peak_memory()
    start = time.perf_counter()
    epochs = [make_epoch(data, protocol, compute, num)]
    epochs[0]()
    synchronize(compute.device)
    start_seconds, memory = time.perf_counter() - start, compute.peak_memory()
    if plain:
        epochs.append(make_plain_epoch(data, protocol, compute))
    steps_per_epoch = -(-len(data) // protocol.batch_size)
    ms, *plain_ms = (milliseconds / steps_per_epoch for milliseconds in time_calls(epochs, compute.device, seconds))
    ms /= num
    cells = [f"{start_seconds:.1f}", f"{ms:.3g}"]
    cells += [f"{plain_ms[0]:.3g}", f"{plain_ms[0] / ms:.2f}"] if plain else ["-", "-"]
    return [*cells, f"{memory / 2**30:.1f}"]


def main(
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best available).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    network: Annotated[list[str] | None, typer.Option(help="Spec such as resnet18; repeatable.")] = None,
    images: Annotated[list[int] | None, typer.Option(help="Images in the set; repeatable.")] = None,
    parallel: Annotated[list[int] | None, typer.Option(help="Networks in parallel; repeatable.")] = None,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    size: Annotated[int, typer.Option(help="Image size in pixels.")] = 32,
    batch_size: Annotated[int | None, typer.Option("--batch", help="Images per step.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds to time each loop for.")] = 3.0,
    plain: Annotated[bool, typer.Option(help="Time the plain loop too.")] = True,
) -> None:
    """Print a row for each network, number of images and number of networks in parallel."""
    compute = ComputeDevice.select(device, precision)
    on_gpu = compute.device.type == "cuda"
    print(f"{compute.hardware}, torch {torch.__version__}, {compute.precision}, {classes} classes of {size}x{size}")
    rows = []
    for spec in network or (["convnet"] if on_gpu else ["convnet(width=32)"]):
        for num_images in images or ([500] if on_gpu else [40]):
            data = DeviceDataset.from_data(random_data(classes, -(-num_images // classes), size, 3), compute.device)
            protocol = Protocol(network=spec, epochs=10**6, batch_size=batch_size or (256 if on_gpu else 16))
            for num in parallel or ([1, MAX_PARALLEL] if on_gpu else [1]):
                cells = time_training(data, protocol, compute, num, seconds, plain)
                rows.append((spec, str(len(data)), str(num), *cells))
    print_table(COLUMNS, rows)


if __name__ == "__main__":
    typer.run(main)
