"""Time distribution matching on images that are streamed from disk, and on the same images in memory.

    python benchmarks/streaming.py --device cuda                 # the shape of ImageNet-1K at 64x64: 16 GB on disk
    python benchmarks/streaming.py --classes 20 --images 100 --batch 32 --iterations 5 --network "convnet(width=16)"

The first call writes an import of random images to `--directory`; later calls with the same sizes use it again.
`wait_%` is the share of the time that the device waits for images. `device_GiB` is the peak memory of the GPU, or on a
CPU of the process. `anon_GiB` is the peak memory of the process without pages of files, `host_GiB` with them.
`full_run_h` is the time of 10,000 iterations.
"""

from __future__ import annotations

import json
import math
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from timing import synchronize

from condenset import DMRecipe, ImageData
from condenset.cli.console import print_table
from condenset.data.imports.memmap import MEMMAP_FORMAT, METADATA_FILE, is_memmap, read_memmap
from condenset.data.stores.batch_stream import BatchStream
from condenset.data.stores.streamed_store import fits_memory
from condenset.engine import ComputeDevice
from condenset.engine.memory import USABLE_SHARE
from condenset.io.bytesize import format_bytes, parse_bytes
from condenset.methods.matching.dm import make_problem
from condenset.runs.context import RunContext

COLUMNS = ("images", "chunks", "start_s", "ms", "wait_%", "device_GiB", "anon_GiB", "host_GiB", "full_run_h")
CHANNELS = 3
BLOCK_BYTES = 64 << 20
WARMUP_STEPS = 2
FULL_ITERATIONS = 10_000


def write_random_import(directory: Path, num_classes: int, per_class: int, size: int) -> None:
    """Write an import of random images block by block."""
    shape = (num_classes * per_class, CHANNELS, size, size)
    directory.mkdir(parents=True, exist_ok=True)
    generator, remaining = np.random.default_rng(0), math.prod(shape)
    pixels = generator.bytes(2 * BLOCK_BYTES)
    with (directory / "train-images.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        while remaining:  # parts of one array are much faster than new random numbers
            start = int(generator.integers(BLOCK_BYTES))
            remaining -= file.write(memoryview(pixels)[start : start + min(BLOCK_BYTES, remaining)])
    np.save(directory / "train-labels.npy", np.repeat(np.arange(num_classes), per_class))
    metadata = {
        "format": MEMMAP_FORMAT,
        "name": directory.name,
        "source": "random",
        "class_names": [str(label) for label in range(num_classes)],
        "mean": [0.5] * CHANNELS,
        "std": [0.25] * CHANNELS,
        "allow_hflip": True,
        "train": {"count": shape[0], "fingerprint": "0" * 16},
    }
    (directory / METADATA_FILE).write_text(json.dumps(metadata))  # last: an import without it is written again


class HostMemory:
    """The peak memory of the process during a `with` block, where /proc exists."""

    def __init__(self) -> None:
        self.peaks = {"RssAnon": 0, "VmRSS": 0}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> HostMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _measure(self) -> None:
        path = Path("/proc/self/status")
        while path.exists():
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
            for name in self.peaks:
                self.peaks[name] = max(self.peaks[name], 1024 * int(fields[name].split()[0]))
            if self._end.wait(0.02):
                return


class WaitTimer:
    """Sum the time that the device, or on a CPU the process, waits for the batches of a stream."""

    def __init__(self, stream: BatchStream, device: torch.device) -> None:
        self._device, self._seconds = device, 0.0
        self._intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._wait = stream._wait_for_buffer
        setattr(stream, "_wait_for_buffer", self._timed_wait)  # noqa: B010

    def _timed_wait(self) -> Any:
        if self._device.type != "cuda":
            began = time.perf_counter()
            buffer = self._wait()
            self._seconds += time.perf_counter() - began
            return buffer
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        events[0].record(torch.cuda.current_stream(self._device))
        buffer = self._wait()
        events[1].record(torch.cuda.current_stream(self._device))
        self._intervals.append(events)
        return buffer

    def total(self) -> float:
        """Return the seconds, after the device has finished."""
        return self._seconds + sum(began.elapsed_time(ended) for began, ended in self._intervals) / 1000


def time_condensing(
    data: ImageData, recipe: DMRecipe, compute: ComputeDevice, memory_limit: int | None, name: str
) -> tuple[list[str], torch.Tensor]:
    """Return a row of the table, and the images after the last iteration."""
    num_steps = recipe.iterations - WARMUP_STEPS
    compute.reset_peak_memory()
    with HostMemory() as host:
        began = time.perf_counter()
        problem = make_problem(data, [recipe], RunContext(compute=compute, memory_limit=memory_limit))
        step = problem.make_step()
        stream = problem.stream
        for iteration in range(WARMUP_STEPS):
            step(iteration)
        synchronize(compute.device)
        start_seconds = time.perf_counter() - began
        timer = WaitTimer(stream, compute.device) if stream else None
        began = time.perf_counter()
        for iteration in range(WARMUP_STEPS, recipe.iterations):
            step(iteration)
        synchronize(compute.device)
        seconds = time.perf_counter() - began
        waited = timer.total() if timer else 0.0
        device_bytes = compute.peak_memory()
        problem.close()
    gibs = [f"{num / 2**30:.2f}" for num in (device_bytes, host.peaks["RssAnon"], host.peaks["VmRSS"])]
    speed = [f"{1e3 * seconds / num_steps:.4g}", f"{100 * waited / seconds:.1f}" if stream else "-"]
    full_run = f"{FULL_ITERATIONS * seconds / num_steps / 3600:.3g}"
    row = [name, str(len(problem.chunks)), f"{start_seconds:.1f}", *speed, *gibs, full_run]
    return row, problem.sets.images_KICHW.cpu()


def main(
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 1000,
    images: Annotated[int, typer.Option(help="Images per class.")] = 1300,
    size: Annotated[int, typer.Option(help="Image size in pixels.")] = 64,
    iterations: Annotated[int, typer.Option(help="Iterations to time.")] = 100,
    ipc: Annotated[int, typer.Option(help="Synthetic images per class.")] = 1,
    batch_size: Annotated[int, typer.Option("--batch", help="Real images per class and iteration.")] = 256,
    network: Annotated[str, typer.Option(help="Spec of the network.")] = "convnet",
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best available).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory limit (default: the bytes of the images).")] = None,
    in_memory: Annotated[bool, typer.Option(help="Time images in memory too, if they fit.")] = True,
    directory: Annotated[Path | None, typer.Option(help="Where the import is stored (default: temporary).")] = None,
) -> None:
    """Print a row for streamed images and one for images in memory."""
    compute = ComputeDevice.select(device, precision)
    parent = directory or Path(tempfile.gettempdir())
    path = parent / f"condenset-random-{classes}x{images}x{size}"
    if not is_memmap(path):
        write_random_import(path, classes, images, size)
    data = read_memmap(path).train.data
    assert data is not None
    num_bytes = data.images.numel()
    shape = f"{classes} classes, {images} images each, {size}x{size} ({format_bytes(num_bytes)})"
    print(f"{compute.hardware}, torch {torch.__version__}, {compute.precision}: {shape}, {ipc} per class")
    recipe = DMRecipe(ipc=ipc, network=network, batch_size=batch_size, iterations=WARMUP_STEPS + iterations)
    limit = num_bytes if memory is None else parse_bytes(memory)
    row, learned = time_condensing(data, recipe, compute, limit, "streamed")
    rows, difference = [row], None
    if in_memory and fits_memory(data, compute, None, USABLE_SHARE):
        row, expected = time_condensing(data, recipe, compute, None, "in memory")
        rows.append(row)
        difference = float((learned - expected).abs().max())
    print_table(COLUMNS, rows)
    if difference is not None:
        print(f"The learned images differ by at most {difference:.3g}.")  # by 0 with equal chunks


if __name__ == "__main__":
    typer.run(main)
