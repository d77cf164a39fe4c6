"""How fast one iteration of a method is, always beside the plain per-class loop timed in the same run.

    python benchmarks/speed.py                                   # a small default: 2 CPU cores, under 3 minutes
    python benchmarks/speed.py --device cuda --ipc 1 --ipc 10 --ipc 50
    python benchmarks/speed.py --device cuda --classes 100 --ipc 50
    python benchmarks/speed.py --device cuda --classes 200 --size 64 --ipc 10 --no-growth
    python benchmarks/speed.py --device cuda --method dsa --ipc 50   # gradient matching: a step of the images

Random images stand in for a dataset: the time does not depend on what they show.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer

from condenset import ImageData, augment, draws, networks
from condenset.console import print_table
from condenset.engine import Place
from condenset.engine.step import accelerate
from condenset.errors import check_choice
from condenset.methods.gradient import GradientMatching
from condenset.methods.matching import Matching, mean_distance
from condenset.recipes import MatchingRecipe, SiameseRecipe
from condenset.runs import Run

CPU_BASE = {"classes": 2, "batch": 16, "ipc": 2, "iterations": 1}  # batch: real images a class, ipc: synthetic ones
GPU_BASE = {"classes": 10, "batch": 256, "ipc": 10, "iterations": 10}
STRETCH = 0.1  # seconds of calls between two looks at the clock
Row = dict[str, Any]


def random_data(classes: int, per_class: int, size: int, channels: int) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (classes * per_class, channels, size, size), generator=generator, dtype=torch.uint8)
    labels = torch.arange(classes).repeat_interleave(per_class)
    names = tuple(map(str, range(classes)))
    return ImageData(images=pixels, labels=labels, class_names=names, mean=(0.5,) * channels, std=(0.25,) * channels)


class PlainLoop:
    """Algorithm 1 as a research script writes it: a module, a loop over classes, an optimiser."""

    def __init__(self, matching: Matching, data: ImageData) -> None:
        self.matching, self.data, self.device = matching, data, matching.run.place.device
        self.images = [images.clone().requires_grad_() for images in matching.images_KICHW]
        self.optimiser = torch.optim.SGD(self.images, lr=1.0, momentum=0.5)
        self.by_class = [data.images[data.labels == c].to(self.device) for c in range(data.num_classes)]
        self.step_number = 0

    def step(self) -> None:
        matching, recipe = self.matching, self.matching.recipe
        shape = {"channels": self.data.channels, "size": self.data.size, "num_classes": self.data.num_classes}
        network = networks.build(recipe.network, **shape, seed=self.step_number).to(self.device)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        loss = torch.zeros((), device=self.device)
        for number, stored in enumerate(self.by_class):
            chosen = torch.randperm(len(stored), device=self.device)[: recipe.batch]
            real = (stored[chosen].float() / 255 - 0.5) / 0.25
            row = torch.tensor([number], device=self.device)
            uniform = draws.uniform(matching.keys["augment"], self.step_number, row, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform, matching.operations, self.data.size)
            real = augment.apply(transform, real[None])[0]
            synthetic = augment.apply(transform, self.images[number][None])[0]
            with torch.no_grad():
                target = network.embed(real).mean(0)
            loss = loss + (target - network.embed(synthetic).mean(0)).square().sum()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.step_number += 1


class PlainGradientLoop:
    """Gradient matching as a research script writes it: two passes and two backward passes for every class."""

    def __init__(self, matching: GradientMatching, data: ImageData) -> None:
        self.matching, self.data, self.device = matching, data, matching.run.place.device
        images = matching.images_NCHW.unflatten(0, (data.num_classes, -1))
        self.images = [each.clone().requires_grad_() for each in images]
        self.optimiser = torch.optim.SGD(self.images, lr=0.1, momentum=0.5)
        self.by_class = [data.images[data.labels == c].to(self.device) for c in range(data.num_classes)]
        shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
        self.network = networks.build(matching.recipe.network, **shape).to(self.device)
        self.of_network = torch.optim.SGD(self.network.parameters(), lr=0.01)
        self.step_number = 0

    def match(self) -> None:
        matching, loss = self.matching, torch.zeros((), device=self.device)
        weights = [weight for weight in self.network.parameters() if weight.dim() > 1]
        for number, stored in enumerate(self.by_class):
            chosen = torch.randperm(len(stored), device=self.device)[: matching.recipe.batch]
            real = (stored[chosen].float() / 255 - 0.5) / 0.25
            row = torch.tensor([number], device=self.device)
            uniform = draws.uniform(matching.keys["augment"], self.step_number, row, augment.NUM_UNIFORMS)
            transform = augment.draw(uniform, matching.operations, self.data.size)
            gradients = []
            for images, keep in ((real, False), (self.images[number], True)):
                seen = augment.apply(transform, images[None])[0]
                labels = torch.full((len(seen),), number, device=self.device)
                own = F.cross_entropy(self.network(seen), labels)
                gradients.append(torch.autograd.grad(own, weights, create_graph=keep))
            for a, b in zip(*gradients, strict=True):
                loss = loss + (1 - F.cosine_similarity(a.flatten(1), b.flatten(1), dim=1)).sum()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.step_number += 1

    def step(self) -> None:
        self.match()
        images = torch.cat([each.detach() for each in self.images])
        labels = self.matching.trainer.data.labels
        for _ in range(self.matching.recipe.loops[1]):
            for places in torch.randperm(len(labels), device=self.device).split(256):
                rows = torch.arange(len(places), device=self.device)
                uniform = draws.uniform(self.matching.keys["training"], self.step_number, rows, augment.NUM_UNIFORMS)
                transform = augment.draw(uniform, self.matching.operations, self.data.size, shared=True)
                batch = augment.apply(transform, images[places][:, None])[:, 0]
                self.of_network.zero_grad()
                F.cross_entropy(self.network(batch), labels[places]).backward()
                self.of_network.step()


def gradient_row(place: Place, ceiling: float, seconds: float, plain: bool, **sizes: Any) -> Row:
    """A step of the images alone, and with the training of the network that follows it."""
    place.reset_peak_memory()
    data = random_data(sizes["classes"], max(500, sizes["batch"]), sizes["size"], 3)
    recipe = SiameseRecipe(ipc=sizes["ipc"], batch=sizes["batch"], network=sizes["network"], outer=2)
    began = time.perf_counter()
    matching = GradientMatching(data, recipe, Run(place=place), [recipe.ipc] * data.num_classes)
    matching.draw_network()
    match, step = accelerate(matching.match, matching.changed, place), matching.prepare()
    step(0)
    row: Row = {name: sizes[name] for name in ("classes", "ipc", "batch")}
    row |= {"inner": recipe.loops[1], "start_seconds": time.perf_counter() - began}
    row["peak_memory_bytes"] = place.peak_memory()
    steps: dict[str, Callable[[], None]] = {"match_ms": match, "ms": lambda: step(recipe.loops[0])}
    if plain:
        loop = PlainGradientLoop(matching, data)
        steps |= {"plain_match_ms": loop.match, "plain_ms": loop.step}
    row |= zip(steps, milliseconds(list(steps.values()), place.device, seconds), strict=True)
    return row | ({"ratio": row["plain_ms"] / row["ms"]} if plain else {})


def milliseconds(steps: Sequence[Callable[[], object]], device: torch.device, seconds: float) -> list[float]:
    """The least time of one call of each, which take turns in short stretches so that noise meets all alike.

    Each gets about `seconds` in all, but three turns at least.
    """

    def stretch(step: Callable[[], object], times: int) -> float:
        wait(device)
        start = time.perf_counter()
        for _ in range(times):
            step()
        wait(device)
        return (time.perf_counter() - start) / times

    for step in steps:
        step()
    times = [max(1, int(STRETCH / stretch(step, 1))) for step in steps]
    turns: list[list[float]] = []
    end = time.perf_counter() + seconds * len(steps)
    while len(turns) < 3 or time.perf_counter() < end:
        turns.append([stretch(step, num) for step, num in zip(steps, times, strict=True)])
    return [1e3 * min(taken) for taken in zip(*turns, strict=True)]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def work(matching: Matching, data: ImageData) -> float:
    """Floating-point operations of one iteration: forward for real images, forward and input gradients for others."""
    from torch.utils.flop_counter import FlopCounterMode

    network = networks.build(matching.recipe.network, channels=data.channels, size=data.size, num_classes=2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.embed(torch.zeros(1, data.channels, data.size, data.size))
    counts = counter.get_flop_counts()["Global"]
    flops = sum(value for kind, value in counts.items() if kind is not torch.ops.aten.mm)  # that is how a CPU pools
    real = data.num_classes * matching.batch
    synthetic = matching.images_KICHW.shape[0] * matching.images_KICHW.shape[1]
    return float(flops) * (real + 2 * synthetic)


def matrix_rate(place: Place) -> float:
    """Operations a second of a large matrix product, the ceiling to hold the share against."""
    side = 8192 if place.device.type == "cuda" else 1024
    left, right = (torch.randn(side, side, device=place.device).to(place.dtype) for _ in range(2))
    return 2 * side**3 / (1e-3 * milliseconds([lambda: torch.mm(left, right)], place.device, 1.0)[0])


def problem(place: Place, *, classes: int, batch: int, ipc: int, size: int, network: str) -> tuple[Matching, ImageData]:
    data = random_data(classes, max(500, batch), size, 3)
    recipe = MatchingRecipe(ipc=ipc, batch=batch, network=network)
    return Matching(data, [recipe], Run(place=place), mean_distance), data


def speed_row(place: Place, ceiling: float, seconds: float, plain: bool, **sizes: Any) -> Row:
    """Time, work and memory of an iteration, and the plain loop's time beside it."""
    place.reset_peak_memory()
    began = time.perf_counter()
    matching, data = problem(place, **sizes)
    step = matching.prepare()
    step(0)
    start, memory = time.perf_counter() - began, place.peak_memory()
    steps: list[Callable[[], None]] = [lambda: step(0)]
    if plain:
        steps.append(PlainLoop(matching, data).step)
    fast, *other = milliseconds(steps, place.device, seconds)
    row: Row = {
        **{name: sizes[name] for name in ("classes", "ipc", "batch")},
        "ms": fast,
        "images_per_second": sizes["classes"] * (sizes["batch"] + sizes["ipc"]) / fast * 1e3,
        "share_of_matrix_rate": work(matching, data) / (1e-3 * fast) / ceiling,
        "peak_memory_bytes": memory,
        "start_seconds": start,
    }
    return row | ({"plain_ms": other[0], "ratio": other[0] / fast} if plain else {})


def growth_row(place: Place, seconds: float, grown: str, base: dict[str, int], **fixed: Any) -> Row:
    """The time at once, twice and four times as much of one size, the others fixed; linear: both increments alike."""
    steps = [grown_step(place, base | {grown: factor * base[grown]}, **fixed) for factor in (1, 2, 4)]
    once, twice, four = milliseconds(steps, place.device, seconds)
    return {
        "grown": f"{grown} {base[grown]}",
        "ms_1x": once,
        "ms_2x": twice,
        "ms_4x": four,
        "share_of_proportional": four / (4 * once),
        "ms_a_1x_from_1x_to_2x": twice - once,
        "ms_a_1x_from_2x_to_4x": (four - twice) / 2,
    }


def grown_step(place: Place, sizes: Row, **fixed: Any) -> Callable[[], None]:
    """As many iterations as the sizes say, as one call."""
    num = sizes["iterations"]
    matching, _ = problem(place, **{name: size for name, size in sizes.items() if name != "iterations"}, **fixed)
    step = matching.prepare()

    def steps() -> None:
        for number in range(num):
            step(number)

    return steps


def print_rows(rows: Sequence[Row]) -> None:
    columns = tuple(rows[0])
    cells = [[row[name] for name in columns] for row in rows]
    print_table(columns, [[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in cells])


def main(
    method: Annotated[str, typer.Option(help="dm or dsa.")] = "dm",
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best there is).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    ipc: Annotated[
        list[int] | None, typer.Option(help="Images per class; repeatable (default 1 and 10; on CPU 10).")
    ] = None,
    classes: Annotated[list[int] | None, typer.Option(help="Number of classes; repeatable (default 10).")] = None,
    size: Annotated[int, typer.Option(help="Side of the images.")] = 32,
    batch: Annotated[int | None, typer.Option(help="Real images a class (default 256; on CPU 128).")] = None,
    network: Annotated[str, typer.Option(help="The embedding network.")] = "convnet",
    plain: Annotated[bool, typer.Option(help="Time the plain loop too.")] = True,
    growth: Annotated[bool, typer.Option(help="Time how the cost grows, too.")] = True,
    seconds: Annotated[float, typer.Option(help="How long to time each.")] = 5.0,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file too.")] = None,
) -> None:
    """Time an iteration at every number of classes and of images a class, and how that grows."""
    check_choice("method", method, ("dm", "dsa"))
    place = Place.best(device, precision)
    on_gpu = place.device.type == "cuda"
    ceiling = matrix_rate(place)
    batch = batch or (256 if on_gpu else 128)
    fixed: dict[str, Any] = {"size": size, "network": network}
    timed = speed_row if method == "dm" else gradient_row
    growth = growth and method == "dm"
    rows = [
        timed(place, ceiling, seconds, plain, classes=num, ipc=images, batch=batch, **fixed)
        for num in classes or [10]
        for images in ipc or ([1, 10] if on_gpu else [10])
    ]
    setting = f"{place.hardware}, {place.precision}, torch {torch.__version__}, {network} on {size}x{size}"
    print(f"{setting}; matrix product {ceiling / 1e12:.2f} TFLOP/s")
    print_rows(rows)
    record = {"hardware": place.hardware, "precision": place.precision, "rows": rows}
    if growth:
        base = GPU_BASE if on_gpu else CPU_BASE
        grown = [growth_row(place, seconds / 3, name, base, **fixed) for name in base]
        print(f"\nGrowth from {', '.join(f'{value} {name}' for name, value in base.items())}:")
        print_rows(grown)
        record["growth"] = grown
    if out:
        out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    typer.run(main)
