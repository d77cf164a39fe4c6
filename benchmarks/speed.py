"""How fast one iteration of a method is, always beside the plain per-class loop timed in the same run.

    python benchmarks/speed.py                                   # a small default: 2 CPU cores, under 3 minutes
    python benchmarks/speed.py --device cuda --ipc 1 --ipc 10 --ipc 50
    python benchmarks/speed.py --device cuda --classes 100 --ipc 50
    python benchmarks/speed.py --device cuda --classes 200 --size 64 --ipc 10
    python benchmarks/speed.py --device cuda --method dsa --ipc 50   # gradient matching: a step of the images

Random images stand in for a dataset: the time does not depend on what they show.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

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


def time_gradients(
    data: ImageData, recipe: SiameseRecipe, place: Place, plain: bool, seconds: float
) -> dict[str, float]:
    """A step of the images alone, and with the training of the network that follows it."""
    place.reset_peak_memory()
    began = time.perf_counter()
    matching = GradientMatching(data, recipe, Run(place=place), [recipe.ipc] * data.num_classes)
    matching.draw_network()
    match, step = accelerate(matching.match, matching.changed, place), matching.prepare()
    step(0)
    row = {"start_seconds": time.perf_counter() - began}
    row["match_ms"] = milliseconds(match, place.device, seconds)
    row["ms"] = milliseconds(lambda: step(recipe.loops[0]), place.device, seconds)
    row["peak_memory_bytes"] = place.peak_memory()
    if plain:
        loop = PlainGradientLoop(matching, data)
        row["plain_match_ms"] = milliseconds(loop.match, place.device, seconds)
        row["plain_ms"] = milliseconds(loop.step, place.device, seconds)
        row["ratio"] = row["plain_ms"] / row["ms"]
    return row


def milliseconds(step: Callable[[], None], device: torch.device, seconds: float) -> float:
    """The time of one step: the least of five stretches that together take about `seconds`."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def stretch(times: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(times):
            step()
        wait()
        return (time.perf_counter() - start) / times

    step()
    times = max(1, int(seconds / 5 / stretch(1)))
    return 1e3 * min(stretch(times) for _ in range(5))


def work(matching: Matching, data: ImageData) -> float:
    """Floating-point operations of one iteration: forward for real images, forward and input gradients for others."""
    from torch.utils.flop_counter import FlopCounterMode

    network = networks.build(matching.recipe.network, channels=data.channels, size=data.size, num_classes=2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.embed(torch.zeros(1, data.channels, data.size, data.size))
    real = data.num_classes * matching.batch
    synthetic = matching.images_KICHW.shape[0] * matching.images_KICHW.shape[1]
    return float(counter.get_total_flops()) * (real + 2 * synthetic)


def matrix_rate(place: Place) -> float:
    """Operations a second of a large matrix product, the ceiling to hold the share against."""
    side = 8192 if place.device.type == "cuda" else 1024
    left, right = (torch.randn(side, side, device=place.device).to(place.dtype) for _ in range(2))
    return 2 * side**3 / (1e-3 * milliseconds(lambda: torch.mm(left, right), place.device, 1.0))


def main(
    method: Annotated[str, typer.Option(help="dm or dsa.")] = "dm",
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best there is).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    ipc: Annotated[list[int] | None, typer.Option(help="Images per class; repeatable (default 1 and 10).")] = None,
    classes: Annotated[list[int] | None, typer.Option(help="Number of classes; repeatable (default 10).")] = None,
    size: Annotated[int, typer.Option(help="Side of the images.")] = 32,
    batch: Annotated[int | None, typer.Option(help="Real images a class (default 256; on CPU 16).")] = None,
    network: Annotated[str, typer.Option(help="The embedding network.")] = "convnet",
    plain: Annotated[bool, typer.Option(help="Time the plain loop too.")] = True,
    seconds: Annotated[float, typer.Option(help="How long to time each.")] = 5.0,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this JSON file too.")] = None,
) -> None:
    """Time an iteration at every number of classes and of images a class."""
    check_choice("method", method, ("dm", "dsa"))
    place = Place.best(device, precision)
    on_gpu = place.device.type == "cuda"
    batch = batch or (256 if on_gpu else 16)
    ceiling = matrix_rate(place)
    rows = []
    for num_classes in classes or [10]:
        data = random_data(num_classes, max(500, batch), size, 3)
        for images in ipc or [1, 10]:
            if method == "dsa":
                siamese = SiameseRecipe(ipc=images, batch=batch, network=network, outer=2)
                row = {"classes": num_classes, "ipc": images, "batch": batch, "inner": siamese.loops[1]}
                rows.append(row | time_gradients(data, siamese, place, plain, seconds))
                continue
            recipe = MatchingRecipe(ipc=images, batch=batch, network=network)
            run = Run(place=place)
            place.reset_peak_memory()
            began = time.perf_counter()
            matching = Matching(data, recipe, run, [images] * num_classes, mean_distance)
            step = matching.prepare()
            step(0)
            start = time.perf_counter() - began
            fast = milliseconds(lambda step=step: step(0), place.device, seconds)  # type: ignore[misc]
            memory = place.peak_memory()
            row = {
                "classes": num_classes,
                "ipc": images,
                "batch": batch,
                "ms": fast,
                "images_per_second": num_classes * (batch + images) / fast * 1e3,
                "share_of_matrix_rate": work(matching, data) / (1e-3 * fast) / ceiling,
                "peak_memory_bytes": memory,
                "start_seconds": start,
            }
            if plain:
                row["plain_ms"] = milliseconds(PlainLoop(matching, data).step, place.device, seconds)
                row["ratio"] = row["plain_ms"] / fast
            rows.append(row)
    setting = f"{place.hardware}, {place.precision}, {network} on {size}x{size}"
    print(f"{setting}; matrix product {ceiling / 1e12:.2f} TFLOP/s")
    columns = tuple(rows[0])
    print_table(columns, [[f"{row[name]:.4g}" for name in columns] for row in rows])
    if out:
        out.write_text(json.dumps({"hardware": place.hardware, "precision": place.precision, "rows": rows}, indent=1))


if __name__ == "__main__":
    typer.run(main)
