"""The cost model of docs/concepts/scale.md: check it against measurements, and extend it to larger datasets.

python benchmarks/cost_model.py    # prints the tables of docs/concepts/scale.md, in a second and without a GPU

The constants are from one H200 (docs/concepts/performance.md). Times are of dm with the paper's ConvNet in bfloat16.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np

from condenset.cli.console import print_table
from condenset.io.bytesize import format_bytes
from condenset.io.progress import format_duration
from condenset.methods.sharding import split_shards
from condenset.pipeline.cost.estimate import hand_out

# Times in milliseconds, fitted to the first three measurements.
REAL_MS = 2.6855e-4  # forward pass of a real image of 32x32 pixels
SYNTHETIC_MS = 8.25e-4  # forward and backward pass of a synthetic image of 32x32 pixels
CHUNK_MS = 0.25  # every chunk of classes: launches, random numbers, update
TRAIN_MS = 1.16  # training step on 256 images of 64x64 pixels, five networks in parallel
ALONE = 1.15  # time of a step of a network alone on a GPU, relative to networks in parallel (docs/concepts/gpu.md)
START_SECONDS = 5.0  # start of a shard

# Memory and disk.
CLASS_BYTES = 42 * 2**20  # activations per class of 32x32 pixels with 256 real images
SYNTHETIC_BYTES = 525_000  # activations per synthetic image of 32x32 pixels, if these are more
TARGET_BYTES = 3 * 2**30  # of activations: more is not faster
STATE_COPIES = 4  # of the learned images on the device
FLOAT_BYTES = 4
DEVICE_BYTES = 100e9  # of an H200 that data and learned images may take

# Classifiers of many classes, estimated and not measured: bytes moved and operations per weight in a training step.
FEATURES, WEIGHT_BYTES, WEIGHT_FLOPS, BYTES_PER_MS, FLOPS_PER_MS = 2048, 24, 6 * 256, 4e9, 6e11

NUM_NETWORKS, EPOCHS, BATCH = 20, 1000, 256
NUM_GPUS = (1, 8, 512)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A dataset and a set to learn.

    Attributes:
        name: Name in tables.
        classes: Number of classes.
        images: Number of training images.
        size: Image size in pixels.
        ipc: Images per class of the set.
        passes: Passes per stored image: the images that it holds, and those that calibrate.
        iterations: Number of iterations.
        batch: Real images per class and iteration.
    """

    name: str
    classes: int
    images: int
    size: int
    ipc: int
    passes: float = 1
    iterations: int = 10_000
    batch: int = 256

    @property
    def area(self) -> float:
        """Pixels relative to 32x32."""
        return (self.size / 32) ** 2

    @property
    def image_bytes(self) -> int:
        """Bytes of a real image."""
        return 3 * self.size**2

    @property
    def set_bytes(self) -> int:
        """Bytes of the set."""
        return FLOAT_BYTES * self.classes * self.ipc * self.image_bytes

    @property
    def class_bytes(self) -> float:
        """Bytes of activations per class that passes through the network."""
        return self.area * max(CLASS_BYTES, SYNTHETIC_BYTES * self.ipc * self.passes)

    def num_chunks(self, classes: int) -> int:
        """Return how many chunks some classes are divided into."""
        return math.ceil(classes / max(1, TARGET_BYTES // self.class_bytes))

    def parts(self, classes: int) -> dict[str, float]:
        """Return the milliseconds of an iteration: real images, synthetic images, chunks."""
        return {
            "real images": classes * self.area * REAL_MS * self.batch,
            "synthetic images": classes * self.area * SYNTHETIC_MS * self.ipc * self.passes,
            "chunks": CHUNK_MS * self.num_chunks(classes),
        }

    def iteration_ms(self, classes: int | None = None) -> float:
        """Return the milliseconds of an iteration of some classes; None: all."""
        return sum(self.parts(self.classes if classes is None else classes).values())

    def device_bytes(self, classes: int) -> float:
        """Return the memory of a GPU with the images of some classes: pixels, learned images, activations."""
        share = classes / self.classes
        activations = math.ceil(classes / self.num_chunks(classes)) * self.class_bytes
        return share * (self.images * self.image_bytes + STATE_COPIES * self.set_bytes) + activations


MEASURED = (  # problem, ms per iteration, GiB (docs/concepts/performance.md); the first three times give the constants
    (Problem(name="CIFAR-10, 50", classes=10, images=50_000, size=32, ipc=50), 1.35, 0.6),
    (Problem(name="CIFAR-100, 10", classes=100, images=50_000, size=32, ipc=10), 8.2, 2.1),
    (Problem(name="CIFAR-100, 50", classes=100, images=50_000, size=32, ipc=50), 11.5, 2.3),
    (Problem(name="CIFAR-10, 1250", classes=10, images=50_000, size=32, ipc=1250), 11.4, 1.9),
    (Problem(name="TinyImageNet, 10", classes=200, images=100_000, size=64, ipc=10), 64.4, 4.0),
    (Problem(name="TinyImageNet, 50", classes=200, images=100_000, size=64, ipc=50), 89.0, 5.6),
    (Problem(name="CIFAR-10, 10, dmplus", classes=10, images=50_000, size=32, ipc=10, passes=11), 1.98, None),
    (Problem(name="CIFAR-10, 50, dmplus", classes=10, images=50_000, size=32, ipc=50, passes=4.4), 3.13, None),
)
LARGE = (
    Problem(name="ImageNet-1K", classes=1_000, images=1_281_167, size=64, ipc=50),
    Problem(name="ImageNet-21K", classes=21_841, images=14_197_122, size=64, ipc=50),
    Problem(name="a billion images", classes=100_000, images=10**9, size=64, ipc=50),
)


def check_rows() -> list[list[str]]:
    """Return predicted and measured time and memory, with errors."""
    rows = []
    for problem, ms, gib in MEASURED:
        predicted, memory = problem.iteration_ms(), problem.device_bytes(problem.classes) / 2**30
        cells = ["", "", ""] if gib is None else [f"{memory:.1f}", f"{gib:.1f}", f"{memory / gib - 1:+.0%}"]
        rows.append([problem.name, f"{predicted:.3g}", f"{ms:.3g}", f"{predicted / ms - 1:+.0%}", *cells])
    return rows


def divide(problem: Problem, gpus: int) -> list[int]:
    """Return the classes of each shard, which must fit the memory of a GPU. One GPU has one shard if that fits."""
    shards = list(map(len, split_shards(problem.classes, gpus))) if gpus > 1 else [problem.classes]
    if problem.device_bytes(shards[0]) <= DEVICE_BYTES:
        return shards
    num_shards = gpus * math.ceil(problem.device_bytes(problem.classes) / gpus / DEVICE_BYTES)
    return [len(part) for part in np.array_split(np.arange(problem.classes), num_shards)]


def condense_seconds(problem: Problem, gpus: int) -> float:
    """Return the time to condense on equal GPUs without failures."""
    times = {
        num: START_SECONDS + 1e-3 * problem.iterations * problem.iteration_ms(num) for num in set(divide(problem, gpus))
    }
    return hand_out([times[num] for num in divide(problem, gpus)], gpus)


def score_seconds(problem: Problem, gpus: int) -> float:
    """Return the time to train the networks that score a set of dm, each on one GPU."""
    weights = FEATURES * problem.classes
    classifier_ms = weights * (WEIGHT_BYTES / BYTES_PER_MS + WEIGHT_FLOPS / FLOPS_PER_MS)
    steps = EPOCHS * -(-problem.classes * problem.ipc // BATCH)
    networks_per_gpu = -(-NUM_NETWORKS // gpus)
    train_ms = TRAIN_MS * problem.area / 4 * (ALONE if networks_per_gpu == 1 else 1)
    return networks_per_gpu * steps * 1e-3 * (train_ms + classifier_ms)


def time_rows() -> list[list[str]]:
    """Return time and memory of large problems by number of GPUs."""
    rows = []
    for problem in LARGE:
        for gpus in NUM_GPUS:
            shards, seconds = divide(problem, gpus), condense_seconds(problem, gpus)
            rows.append(
                [
                    problem.name,
                    str(gpus),
                    f"{len(shards):,}",
                    f"{shards[0]:,}",
                    format_duration(seconds),
                    f"{condense_seconds(problem, 1) / gpus / seconds:.0%}",
                    format_bytes(round(problem.device_bytes(shards[0]))),
                    format_duration(score_seconds(problem, gpus)),
                ]
            )
    return rows


def traffic_rows() -> list[list[str]]:
    """Return what large problems store and move."""
    rows = []
    for problem in LARGE:
        per_iteration = problem.classes * problem.batch * problem.image_bytes
        rows.append(
            [
                problem.name,
                format_bytes(problem.images * problem.image_bytes),
                format_bytes(problem.set_bytes),
                format_bytes(2 * 2 * problem.set_bytes),
                format_bytes(per_iteration),
                f"{format_bytes(round(1e3 * per_iteration / problem.iteration_ms()))}/s",
                f"{format_bytes(2 * problem.set_bytes // 600)}/s",
            ]
        )
    return rows


def share_rows() -> list[list[str]]:
    """Return where the time of an iteration goes, on one GPU and in a typical shard of 512."""
    rows = []
    for problem in (MEASURED[0][0], MEASURED[5][0], *LARGE):
        for gpus in (1, 512) if problem in LARGE else (1,):
            classes = statistics.median_low(divide(problem, gpus))
            parts = problem.parts(classes)
            total = sum(parts.values())
            where = f"{classes:,} in {total:,.3g} ms" if total < 1000 else f"{classes:,} in {total:,.0f} ms"
            rows.append([problem.name, where, *(f"{part / total:.0%}" for part in parts.values())])
    return rows


def main() -> None:
    """Print all tables."""
    print("Model and measurements, H200")
    columns = ["problem", "model, ms", "measured, ms", "error", "model, GiB", "measured, GiB", "error"]
    print_table(columns, check_rows())
    print("\nLarge datasets: 64x64, 50 images per class, 10,000 iterations")
    columns = [
        "dataset",
        "GPUs",
        "shards",
        "largest shard, classes",
        "condense",
        "efficiency",
        "memory of a GPU",
        "score",
    ]
    print_table(columns, time_rows())
    print("\nBytes stored and moved")
    columns = ["dataset", "images", "set", "checkpoints", "real images per iteration"]
    print_table([*columns, "read rate per GPU if streamed", "checkpoint every 10 min"], traffic_rows())
    print("\nWhere the time of an iteration goes")
    print_table(["dataset", "classes of a shard", *MEASURED[0][0].parts(1)], share_rows())


if __name__ == "__main__":
    main()
