"""Time one iteration of a method, and the plain per-class loop in the same process.

python benchmarks/speed.py                                   # two CPU cores, less than 3 minutes
python benchmarks/speed.py --device cuda --ipc 1 --ipc 10 --ipc 50
python benchmarks/speed.py --device cuda --classes 100 --ipc 50
python benchmarks/speed.py --device cuda --classes 200 --size 64 --ipc 10 --no-growth
python benchmarks/speed.py --device cuda --method dsa --ipc 50   # gradient matching: a step of the images
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from plain_loops import PlainDistributionMatching, PlainGradientMatching
from timing import random_data, time_calls

from condenset import ImageData, networks
from condenset.cli.console import print_table
from condenset.engine import ComputeDevice
from condenset.engine.cuda_graph import capture_step
from condenset.errors import check_choice
from condenset.methods import DMRecipe
from condenset.methods.gradient.dsa import DSARecipe
from condenset.methods.gradient.gradient_matching import GradientMatching
from condenset.methods.matching.dm import DistributionMatching, make_problem
from condenset.runs.context import RunContext

CPU_BASE = {"classes": 2, "batch_size": 16, "ipc": 2, "iterations": 1}
GPU_BASE = {"classes": 10, "batch_size": 256, "ipc": 10, "iterations": 10}
MIN_REAL_IMAGES = 500  # per class
Row = dict[str, Any]


def make_dm(
    compute: ComputeDevice, *, classes: int, batch_size: int, ipc: int, size: int, network: str
) -> tuple[DistributionMatching, ImageData]:
    """Return distribution matching on random images, and the images."""
    data = random_data(classes, max(MIN_REAL_IMAGES, batch_size), size, 3)
    recipe = DMRecipe(ipc=ipc, batch_size=batch_size, network=network)
    return make_problem(data, [recipe], RunContext(compute=compute)), data


def time_dm(compute: ComputeDevice, matrix_flops: float, seconds: float, plain: bool, **sizes: Any) -> Row:
    """Return time, throughput and memory of an iteration of dm, and the time of the plain loop."""
    compute.reset_peak_memory()
    start = time.perf_counter()
    problem, data = make_dm(compute, **sizes)
    step = problem.make_step()
    step(0)
    start_seconds, memory = time.perf_counter() - start, compute.peak_memory()
    functions: list[Callable[[], None]] = [lambda: step(0)]
    if plain:
        functions.append(PlainDistributionMatching(problem, data).step)
    ms, *plain_ms = time_calls(functions, compute.device, seconds)
    row: Row = {
        **{name: sizes[name] for name in ("classes", "ipc", "batch_size")},
        "ms": ms,
        "images_per_second": sizes["classes"] * (sizes["batch_size"] + sizes["ipc"]) / ms * 1e3,
        "share_of_matrix_rate": count_flops(problem, data) / (1e-3 * ms) / matrix_flops,
        "peak_memory_bytes": memory,
        "start_seconds": start_seconds,
    }
    return row | ({"plain_ms": plain_ms[0], "ratio": plain_ms[0] / ms} if plain else {})


def time_dsa(compute: ComputeDevice, matrix_flops: float, seconds: float, plain: bool, **sizes: Any) -> Row:
    """Return the time of a step of the images alone (match_ms), and with the training of the network (ms)."""
    compute.reset_peak_memory()
    data = random_data(sizes["classes"], max(MIN_REAL_IMAGES, sizes["batch_size"]), sizes["size"], 3)
    recipe = DSARecipe(ipc=sizes["ipc"], batch_size=sizes["batch_size"], network=sizes["network"], outer_steps=2)
    start = time.perf_counter()
    problem = GradientMatching(data, recipe, RunContext(compute=compute), [recipe.ipc] * data.num_classes)
    problem.sample_network()
    match, step = capture_step(problem.match, problem.match_state, compute), problem.make_step()
    step(0)
    row: Row = {name: sizes[name] for name in ("classes", "ipc", "batch_size")}
    row |= {"inner_epochs": recipe.loops[1], "start_seconds": time.perf_counter() - start}
    row["peak_memory_bytes"] = compute.peak_memory()
    # Step `outer_steps` samples a network, matches and trains, as every step but the last of a network does.
    functions: dict[str, Callable[[], None]] = {"match_ms": match, "ms": lambda: step(recipe.loops[0])}
    if plain:
        loop = PlainGradientMatching(problem, data)
        functions |= {"plain_match_ms": loop.match, "plain_ms": loop.step}
    row |= zip(functions, time_calls(list(functions.values()), compute.device, seconds), strict=True)
    return row | ({"ratio": row["plain_ms"] / row["ms"]} if plain else {})


def count_flops(problem: DistributionMatching, data: ImageData) -> float:
    """Return the floating-point operations of an iteration.

    Real images take a forward pass, synthetic images a forward pass and the gradient of the input.
    """
    from torch.utils.flop_counter import FlopCounterMode

    network = networks.build(problem.recipe.network, channels=data.channels, size=data.size, num_classes=2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.embed(torch.zeros(1, data.channels, data.size, data.size))
    counts = counter.get_flop_counts()["Global"]
    flops = sum(value for operation, value in counts.items() if operation is not torch.ops.aten.mm)  # mm pools on a CPU
    num_real = data.num_classes * problem.batch_size
    num_synthetic = problem.sets.images_KICHW.shape[0] * problem.sets.images_KICHW.shape[1]
    return float(flops) * (num_real + 2 * num_synthetic)


def measure_matrix_flops(compute: ComputeDevice) -> float:
    """Return the operations per second of a large matrix product, the upper bound of the device."""
    size = 8192 if compute.device.type == "cuda" else 1024
    left, right = (torch.randn(size, size, device=compute.device).to(compute.dtype) for _ in range(2))
    return 2 * size**3 / (1e-3 * time_calls([lambda: torch.mm(left, right)], compute.device, 1.0)[0])


def time_growth(compute: ComputeDevice, seconds: float, grown: str, base: dict[str, int], **fixed: Any) -> Row:
    """Return the time at 1x, 2x and 4x of one size. It is linear if both increments are equal."""
    functions = [make_iterations(compute, base | {grown: factor * base[grown]}, **fixed) for factor in (1, 2, 4)]
    ms_1x, ms_2x, ms_4x = time_calls(functions, compute.device, seconds)
    return {
        "grown": f"{grown} {base[grown]}",
        "ms_1x": ms_1x,
        "ms_2x": ms_2x,
        "ms_4x": ms_4x,
        "share_of_proportional": ms_4x / (4 * ms_1x),
        "ms_per_1x_from_1x_to_2x": ms_2x - ms_1x,
        "ms_per_1x_from_2x_to_4x": (ms_4x - ms_2x) / 2,
    }


def make_iterations(compute: ComputeDevice, sizes: Row, **fixed: Any) -> Callable[[], None]:
    """Return a function that runs as many iterations as the sizes say."""
    num_iterations = sizes["iterations"]
    problem, _ = make_dm(compute, **{name: size for name, size in sizes.items() if name != "iterations"}, **fixed)
    step = problem.make_step()

    def run_iterations() -> None:
        for number in range(num_iterations):
            step(number)

    return run_iterations


def print_rows(rows: Sequence[Row]) -> None:
    """Print rows that have the same columns."""
    cells = [[value if isinstance(value, str) else f"{value:.4g}" for value in row.values()] for row in rows]
    print_table(tuple(rows[0]), cells)


def main(
    method: Annotated[str, typer.Option(help="dm or dsa.")] = "dm",
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best available).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    ipc: Annotated[
        list[int] | None, typer.Option(help="Images per class; repeatable (default: 1 and 10; on a CPU 10).")
    ] = None,
    classes: Annotated[list[int] | None, typer.Option(help="Number of classes; repeatable (default: 10).")] = None,
    size: Annotated[int, typer.Option(help="Image size in pixels.")] = 32,
    batch_size: Annotated[
        int | None, typer.Option("--batch", help="Real images per class (default: 256; on a CPU 128).")
    ] = None,
    network: Annotated[str, typer.Option(help="Spec of the embedding network.")] = "convnet",
    plain: Annotated[bool, typer.Option(help="Time the plain loop too.")] = True,
    growth: Annotated[bool, typer.Option(help="Time how the cost of dm grows too.")] = True,
    seconds: Annotated[float, typer.Option(help="Seconds to time each function for.")] = 5.0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write the rows to.")] = None,
) -> None:
    """Time an iteration for every number of classes and of images per class, and how the time grows."""
    check_choice("method", method, ("dm", "dsa"))
    compute = ComputeDevice.select(device, precision)
    on_gpu = compute.device.type == "cuda"
    matrix_flops = measure_matrix_flops(compute)
    batch_size = batch_size or (256 if on_gpu else 128)
    fixed: dict[str, Any] = {"size": size, "network": network}
    time_method = time_dm if method == "dm" else time_dsa
    rows = [
        time_method(compute, matrix_flops, seconds, plain, classes=num, ipc=num_images, batch_size=batch_size, **fixed)
        for num in classes or [10]
        for num_images in ipc or ([1, 10] if on_gpu else [10])
    ]
    setting = f"{compute.hardware}, {compute.precision}, torch {torch.__version__}, {network} on {size}x{size}"
    print(f"{setting}; matrix product {matrix_flops / 1e12:.2f} TFLOP/s")
    print_rows(rows)
    record = {"hardware": compute.hardware, "precision": compute.precision, "rows": rows}
    if growth and method == "dm":
        base = GPU_BASE if on_gpu else CPU_BASE
        growth_rows = [time_growth(compute, seconds / 3, name, base, **fixed) for name in base]
        print(f"\nGrowth from {', '.join(f'{name} {value}' for name, value in base.items())}:")
        print_rows(growth_rows)
        record["growth"] = growth_rows
    if out:
        out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    typer.run(main)
