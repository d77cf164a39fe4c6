"""Compare `condenset plan` with real runs: time and memory of three settings, predicted and measured.

python benchmarks/planning.py --device cuda     # about four minutes on an H200
python benchmarks/planning.py --device cpu      # small networks, less than two minutes

Data are random images. The real run has as many iterations and epochs as the plan. Each setting has its own process,
because the memory of earlier captures stays allocated.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from timing import random_data

from condenset.cli.console import print_table
from condenset.engine import ComputeDevice
from condenset.io.bytesize import format_bytes
from condenset.methods import METHODS
from condenset.pipeline.cost.run import estimate_cost
from condenset.pipeline.plan import make_plan
from condenset.pipeline.request import RunRequest
from condenset.runs.context import RunContext
from condenset.training.scoring import score_set


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run to predict and to measure.

    Attributes:
        classes, images, size: Shape of the dataset: images are per class.
        ipc: Images per class of the set.
        method: Name of the method.
        fields: Fields of its recipe.
        protocol: Fields of the evaluation protocol.
    """

    classes: int
    images: int
    size: int
    ipc: int
    method: str
    fields: dict[str, Any]
    protocol: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the setting in the table."""
        return f"{self.method}, {self.classes} classes, {self.size}x{self.size}, {self.ipc} per class"

    @property
    def request(self) -> RunRequest:
        """The request of the run."""
        return RunRequest(
            methods=(self.method,),
            ipcs=(self.ipc,),
            recipe_fields=self.fields,
            protocol_fields=self.protocol,
            whole=False,
        )


GPU_PROTOCOL = {"num_networks": 5, "epochs": 300}
GPU_SETTINGS = (
    Setting(
        classes=10, images=5000, size=32, ipc=50, method="dm", fields={"iterations": 10_000}, protocol=GPU_PROTOCOL
    ),
    Setting(
        classes=100,
        images=500,
        size=32,
        ipc=10,
        method="dmplus",
        fields={"decoder": "bilinear", "iterations": 2_000, "pool_size": 3, "pool_epochs": 20},
        protocol=GPU_PROTOCOL,
    ),
    Setting(classes=200, images=500, size=64, ipc=10, method="dm", fields={"iterations": 800}, protocol=GPU_PROTOCOL),
)
SMALL = "convnet(width=16, depth=2)"
CPU_PROTOCOL = {"network": SMALL, "num_networks": 2, "epochs": 100}
CPU_SETTINGS = (
    Setting(
        classes=10,
        images=200,
        size=16,
        ipc=10,
        method="dm",
        fields={"network": SMALL, "iterations": 200, "batch_size": 64},
        protocol=CPU_PROTOCOL,
    ),
    Setting(
        classes=60,
        images=64,
        size=16,
        ipc=2,
        method="dm",
        fields={"network": SMALL, "iterations": 60, "batch_size": 64},
        protocol=CPU_PROTOCOL,
    ),
    Setting(
        classes=10,
        images=100,
        size=16,
        ipc=5,
        method="dmplus",
        fields={"network": SMALL, "iterations": 200, "batch_size": 32, "pool_size": 2, "pool_epochs": 10},
        protocol=CPU_PROTOCOL,
    ),
)


def compare(setting: Setting, device_name: str, precision: str) -> list[list[str]]:
    """Return rows with the predicted and the measured time of every stage, and the memory."""
    compute = ComputeDevice.select(device_name, precision)
    began = time.monotonic()
    sizes: dict[str, Any] = {
        "classes": setting.classes,
        "images": setting.images,
        "load_fields": {"size": setting.size},
    }
    cost = estimate_cost(setting.request, dataset="random", **sizes, device=device_name, precision=precision)
    plan_seconds = time.monotonic() - began
    predicted = {"networks": 0.0, "condense": 0.0, "score": 0.0}
    for stage in cost.jobs[0].stages:
        key = next((key for key in ("pool", "scoring") if stage.name.startswith(key)), "condense")
        predicted[{"pool": "networks", "scoring": "score"}.get(key, key)] = stage.seconds
    measured, peak_bytes = run_setting(setting, compute)
    rows = [
        [setting.name, key, f"{predicted[key]:.1f} s", f"{seconds:.1f} s", f"{predicted[key] / seconds:.2f}"]
        for key, seconds in measured.items()
        if seconds
    ]
    device_bytes = cost.jobs[0].device_bytes
    sizes_text = (format_bytes(device_bytes), format_bytes(peak_bytes))
    rows.append([setting.name, "memory", *sizes_text, f"{device_bytes / peak_bytes:.2f}"])
    return [*rows, [setting.name, "plan", "", f"{plan_seconds:.1f} s", ""]]


def run_setting(setting: Setting, compute: ComputeDevice) -> tuple[dict[str, float], int]:
    """Condense and score a set, and return the seconds of each stage and the peak memory of condensing."""
    data = random_data(setting.classes, setting.images, setting.size, 3)
    test = random_data(setting.classes, 2, setting.size, 3)
    plan = make_plan(data, setting.request, dataset="random", device=str(compute.device), precision=compute.precision)
    (job,) = plan.condense_jobs
    with tempfile.TemporaryDirectory() as directory:
        run = RunContext(compute=compute, directory=Path(directory), job=job.name)
        allocated_bytes = torch.cuda.memory_allocated() if compute.device.type == "cuda" else 0  # by the plan
        compute.reset_peak_memory()
        condensed = METHODS[setting.method].condense(data, job.recipe, run)
        peak_bytes = compute.peak_memory() - allocated_bytes
        assert plan.protocol is not None
        scores = score_set(condensed, test, plan.protocol, run)
    seconds = {
        "networks": condensed.provenance.get("pool", {}).get("seconds", 0.0),
        "condense": condensed.provenance["seconds"],
        "score": scores.seconds,
    }
    return seconds, peak_bytes


def main(
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: the best available).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 or bfloat16.")] = None,
) -> None:
    """Print predicted and measured values of three settings, and their ratios."""
    compute = ComputeDevice.select(device, precision)
    settings = GPU_SETTINGS if compute.device.type == "cuda" else CPU_SETTINGS
    print(f"{compute.hardware}, {compute.precision}, torch {torch.__version__}")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        tasks = [pool.submit(compare, setting, str(compute.device), compute.precision) for setting in settings]
        rows = [row for task in tasks for row in task.result()]
    print_table(["setting", "quantity", "predicted", "measured", "ratio"], rows)


if __name__ == "__main__":
    typer.run(main)
