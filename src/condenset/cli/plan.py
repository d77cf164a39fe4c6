"""The command `condenset plan`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from condenset.cli.common import check_one_network, choose_dataset, drop_unset, parse_memory_limit
from condenset.cli.console import print_json, print_line, print_preview, print_table
from condenset.cli.evaluation_options import Epochs, Evaluate, NumNetworks, ProtocolName, Whole, WholeEpochs
from condenset.cli.option_groups import OptionValues, expand_groups
from condenset.cli.options import (
    AsJson,
    DataDir,
    Dataset,
    Device,
    MemoryLimit,
    NumClasses,
    NumGPUs,
    NumImages,
    Precision,
    Train,
)
from condenset.cli.run import DEFAULT_METHODS, choose_networks_on_random, make_request
from condenset.cli.startup import import_torch

if TYPE_CHECKING:
    from condenset.pipeline.cost.estimate import CostEstimate, JobCost, StageCost


@expand_groups
def plan_command(
    dataset: Dataset = None,
    train: Train = None,
    classes: NumClasses = None,
    images: NumImages = None,
    gpus: NumGPUs = 1,
    *,
    recipe_options: OptionValues,
    evaluate: Evaluate = True,
    protocol: ProtocolName = None,
    whole: Whole = None,
    num_networks: NumNetworks = None,
    epochs: Epochs = None,
    whole_epochs: WholeEpochs = None,
    device: Device = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    score_load_fields: OptionValues,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure a few iterations on this machine, and print time, memory and disk of a run (default: random and dm).

    The options have the defaults of 'run'. Registered datasets need not be downloaded. With --classes, --images and
    --size, the dataset need not exist.
    """
    check_one_network(recipe_options.get("network"))
    has_sizes = classes is not None or images is not None
    dataset = choose_dataset(dataset, train, required=not has_sizes)
    methods = recipe_options.get("methods")
    import_torch(dataset=None if has_sizes else dataset, data_dir=data_dir, methods=methods)

    from condenset.io.progress import ProgressBar
    from condenset.pipeline.cost.run import estimate_cost

    protocol_fields = drop_unset(protocol=protocol, num_networks=num_networks, epochs=epochs)
    scope: dict[str, Any] = {"evaluate": evaluate, "whole": whole, "whole_epochs": whole_epochs}
    request = make_request(recipe_options, DEFAULT_METHODS["run" if evaluate else "condense"], protocol_fields, **scope)
    data: dict[str, Any] = {"dataset": dataset, "data_dir": data_dir, "load_fields": score_load_fields}
    compute = {"device": device, "precision": precision, "memory_limit": parse_memory_limit(memory_limit)}
    arguments = drop_unset(**data, **compute, classes=classes, images=images)
    arguments["num_networks_on_random"] = choose_networks_on_random(recipe_options, num_networks)
    print_cost(estimate_cost(request, gpus=gpus, progress=ProgressBar(), **arguments), as_json)


def print_cost(cost: CostEstimate, as_json: bool) -> None:
    """Print the cost of a run: properties, a line each, and the stages as a table."""
    if as_json:
        totals = {name: getattr(cost, name) for name in ("seconds", "disk_bytes")}
        print_json(dataclasses.asdict(cost) | totals)
        return
    from condenset.io.progress import format_duration

    print_preview(_describe_cost(cost), as_json=False)
    print_line()
    columns = ["stage", "steps", "time per step", "time"]
    rows = [[name, *_describe_times(stage)] for name, stage in cost.stages.items()]
    rows.append(["total", "", "", format_duration(cost.seconds)])
    if cost.gpus > 1:
        columns.append(f"time on {cost.gpus:,} devices")
        times = [stage.parallel_seconds for stage in cost.stages.values()]
        for row, seconds in zip(rows, [*times, cost.parallel_seconds], strict=True):
            row.append(format_duration(seconds))
    print_table(columns, rows)


def _describe_times(stage: StageCost) -> tuple[str, str, str]:
    from condenset.io.progress import format_duration

    return f"{stage.steps:,}", format_step_time(stage.step_seconds), format_duration(stage.seconds)


def format_step_time(seconds: float) -> str:
    """Return the time of a step as text, with three digits: `52.1 ms` or `3.25 s`; `20 min` if it is long."""
    from condenset.io.progress import format_duration

    if seconds >= 99.95:
        return format_duration(seconds)
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _describe_cost(cost: CostEstimate) -> dict[str, str]:
    """Return the properties of a run that are not times, as text by label."""
    from condenset.io.bytesize import format_bytes

    shape, size = "x".join(map(str, cost.image_shape)), format_bytes(cost.dataset_bytes)
    rows = {
        "dataset": f"{cost.dataset}: {cost.num_images:,} images of {shape}, {cost.num_classes:,} classes, {size}",
        "device": f"{cost.hardware}, {cost.precision}",
    }
    for job in cost.jobs:
        rows |= _describe_job(job, cost)
    memory = "memory" if cost.device == "cpu" else "host memory"
    return rows | {
        memory: format_bytes(cost.host_bytes),
        "run directory": f"up to {format_bytes(cost.disk_bytes)}, without logs and pictures",
    }


def _describe_job(job: JobCost, cost: CostEstimate) -> dict[str, str]:
    """Return chunks, images, memory and files of a set, as text by label."""
    from condenset.data.ipc import name_set
    from condenset.io.bytesize import format_bytes

    name = name_set(job.method, job.ipc)
    rows = {}
    if job.num_chunks:
        chunks = f"{job.num_chunks:,} of {_describe_classes(job.classes_per_chunk)}"
        rows["chunks"] = "1, all classes at once" if job.num_chunks == 1 else chunks
        rows["images"] = "in memory"
    if job.num_chunks and cost.device != "cpu":  # of which the memory is that of the process
        rows["device memory"] = format_bytes(job.device_bytes)
    if job.streamed_bytes:
        rate = format_bytes(round(job.streamed_rate))
        rows["images"] = f"streamed, {format_bytes(job.streamed_bytes)} per iteration, {rate}/s"
    if cost.gpus > 1 and job.num_chunks:
        shards = f"{job.num_shards:,} of {_describe_classes(job.classes_per_shard)}"
        rows["shards"] = f"1, because {job.undivided}" if job.undivided else shards
    files = {"set": job.set_bytes, "checkpoints": job.checkpoint_bytes, "networks": job.network_bytes}
    rows["files"] = ", ".join(f"{label} {format_bytes(size)}" for label, size in files.items() if size)
    return {f"{name}: {label}": text for label, text in rows.items()}


def _describe_classes(number: int) -> str:
    return "1 class each" if number == 1 else f"up to {number:,} classes"
