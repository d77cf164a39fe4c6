"""How fast networks train on a set, as the evaluation trains them, beside a plain loop timed in the same run.

    python benchmarks/training.py                                # a small default: 2 CPU cores, under a minute
    python benchmarks/training.py --device cuda --images 500 --images 5000
    python benchmarks/training.py --device cuda --network "resnet18(norm='batch')" --together 1 --together 3
    python benchmarks/training.py --device cuda --classes 200 --size 64 --images 10000

Random images stand in for a set. `ms` is a step of one network, `together` how many train side by side; the plain loop
is a module and torch's own optimiser, in float32, with the same augmentation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from speed import milliseconds, random_data, wait

from condenset import augment, draws, networks
from condenset.console import print_table
from condenset.engine import Place
from condenset.recipes import Protocol
from condenset.train import TOGETHER, Trainer, TrainingSet, side_by_side

COLUMNS = ("network", "images", "together", "start_s", "ms", "plain_ms", "ratio", "GiB")


def plain_steps(data: TrainingSet, protocol: Protocol, place: Place) -> Iterator[None]:
    """Training as a research script writes it, step by step."""
    shape = {"channels": data.images_NCHW.shape[1], "size": data.images_NCHW.shape[-1]}
    network = networks.build(protocol.network, **shape, num_classes=data.num_classes).to(place.device).train()
    sgd = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    operations, key = augment.parse(protocol.augment), draws.make_key(0, "plain", device=place.device)
    step = 0
    while True:
        for places in torch.randperm(len(data), device=place.device).split(protocol.batch):
            rows = torch.arange(len(places), device=place.device)
            uniform = draws.uniform(key, step, rows, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform, operations, shape["size"], shared=True)
            images = augment.apply(transform, data.images(places)[:, None])[:, 0]
            sgd.zero_grad()
            F.cross_entropy(network(images), data.labels[places]).backward()
            sgd.step()
            step += 1
            yield


def plain_pass(data: TrainingSet, protocol: Protocol, place: Place) -> Callable[[], None]:
    steps, num = plain_steps(data, protocol, place), -(-len(data) // protocol.batch)

    def one_pass() -> None:
        for _ in range(num):
            next(steps)

    return one_pass


def our_pass(data: TrainingSet, protocol: Protocol, place: Place, num: int) -> Callable[[], None]:
    """A pass over the set of each of `num` networks that train side by side."""
    trainers = [Trainer(protocol.network, data, protocol, place) for _ in range(num)]
    running = side_by_side([each.training(0, net) for net, each in enumerate(trainers)], place.device)
    steps = -(-len(data) // protocol.batch)
    return lambda: next(None for done in running if done % steps == 0)


def timed(data: TrainingSet, protocol: Protocol, place: Place, num: int, seconds: float, plain: bool) -> list[str]:
    """The cells of a row from start-up on."""
    place.reset_peak_memory()
    began = time.perf_counter()
    passes = [our_pass(data, protocol, place, num)]
    passes[0]()
    wait(place.device)
    start, memory = time.perf_counter() - began, place.peak_memory()
    passes += [plain_pass(data, protocol, place)] if plain else []
    steps = -(-len(data) // protocol.batch)
    ours, *other = (each / steps for each in milliseconds(passes, place.device, seconds))
    cells = [f"{start:.1f}", f"{ours / num:.3g}"]
    cells += [f"{other[0]:.3g}", f"{other[0] / (ours / num):.2f}"] if plain else ["-", "-"]
    return [*cells, f"{memory / 2**30:.1f}"]


def main(
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best there is).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    network: Annotated[list[str] | None, typer.Option(help="Such as resnet18; repeatable.")] = None,
    images: Annotated[list[int] | None, typer.Option(help="Images in the set; repeatable.")] = None,
    together: Annotated[list[int] | None, typer.Option(help="Networks side by side; repeatable.")] = None,
    classes: int = 10,
    size: int = 32,
    batch: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to time each.")] = 3.0,
    plain: Annotated[bool, typer.Option(help="Time the plain loop too.")] = True,
) -> None:
    """Print a row for each network, number of images and number of networks side by side."""
    place = Place.best(device, precision)
    on_gpu = place.device.type == "cuda"
    print(f"{place.hardware}, torch {torch.__version__}, {place.precision}, {classes} classes of {size}x{size}")
    rows = []
    for spec in network or (["convnet"] if on_gpu else ["convnet(width=32)"]):
        for num in images or ([500] if on_gpu else [40]):
            data = TrainingSet.of(random_data(classes, -(-num // classes), size, 3), place.device)
            protocol = Protocol(network=spec, epochs=10**6, batch=batch or (256 if on_gpu else 16))
            for side in together or ([1, TOGETHER] if on_gpu else [1]):
                cells = timed(data, protocol, place, side, seconds, plain)
                rows.append((spec, str(len(data)), str(side), *cells))
    print_table(COLUMNS, rows)


if __name__ == "__main__":
    typer.run(main)
