"""`condenset plan` prints the cost of a run and writes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from condenset.cli.plan import format_step_time, print_cost
from condenset.pipeline.cost import trial
from condenset.pipeline.cost.estimate import CostEstimate, JobCost
from condenset.runs import loop
from helpers.command_line import TINY_NETWORK, CommandRunner, list_files

SIZES = ("--classes", 4, "--images", 20, "--size", 8)


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure as few iterations as possible."""
    for name in ("TRIAL_SECONDS", "SAMPLE_SECONDS"):
        monkeypatch.setattr(trial, name, 0.0)
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.0)


def test_plan_prints_the_cost_and_writes_nothing(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    files = list_files(tmp_path)
    result = condenset("plan", toy, "--ipc", 2, *TINY_NETWORK, "--nets", 2, "--gpus", 3, "--whole-epochs", 0)
    assert result.code == 0, result
    labels = [line.split("  ")[0] for line in result.out.splitlines()]
    assert labels == [
        "dataset",
        "device",
        "random-2: files",
        "dm-2: chunks",
        "dm-2: images",
        "dm-2: shards",
        "dm-2: files",
        "memory",
        "run directory",
        "",
        "stage",
        "random-2: scoring, 2 × convnet(width=8, depth=1)",
        "dm-2: condensing",
        "dm-2: scoring, 2 × convnet(width=8, depth=1)",
        "whole dataset: scoring, 2 × convnet(width=8, depth=1)",
        "total",
    ]
    assert "1, all classes at once" in result.out and "3 of 1 class each" in result.out
    assert "3,000" in result.out
    assert "time on 3 devices" in result.out
    assert list_files(tmp_path) == files


def test_plan_counts_the_networks_of_a_run(condenset: CommandRunner) -> None:
    def count_steps(*options: object) -> dict[str, int]:
        cost = json.loads(condenset("plan", *SIZES, *TINY_NETWORK, "--ipc", 2, "--epochs", 2, *options, "--json").out)
        stages = {job["method"]: job["stages"][-1]["steps"] for job in cost["jobs"]}
        return stages | ({"whole": cost["whole"]["steps"]} if cost["whole"] else {})

    assert count_steps() == {"random": 5 * 3, "dm": 20 * 3, "whole": 20 * 3}
    assert count_steps("--no-whole", "--method", "random") == {"random": 20 * 3}
    assert count_steps("--no-whole", "--nets", 6) == {"random": 6 * 3, "dm": 6 * 3}


def test_plan_of_data_that_do_not_exist(condenset: CommandRunner) -> None:
    options = (*SIZES, *TINY_NETWORK, "--ipc", "1,2", "--no-evaluate", "--set", "batch_size=8", "--json")
    cost = json.loads(condenset("plan", *options).out)
    assert (cost["dataset"], cost["num_classes"], cost["num_images"]) == ("data", 4, 80)
    assert [(job["method"], job["ipc"]) for job in cost["jobs"]] == [("dm", 1), ("dm", 2)]
    assert cost["seconds"] > 0
    assert cost["disk_bytes"] > sum(job["set_bytes"] for job in cost["jobs"])


def test_registered_datasets_need_no_download(condenset: CommandRunner) -> None:
    options = (*TINY_NETWORK, "--method", "random", "--ipc", 1, "--nets", 1, "--json")
    cost = json.loads(condenset("plan", "MNIST", *options).out)
    assert (cost["dataset"], cost["num_classes"], cost["num_images"]) == ("mnist", 10, 60_000)
    assert cost["image_shape"] == [1, 28, 28]
    cost = json.loads(condenset("plan", "imagenet", "--size", 16, *options, "--no-evaluate").out)
    assert (cost["num_images"], cost["image_shape"]) == (1_281_000, [3, 16, 16])
    message = "nested has no effect on data that are not on this machine: leave it out"
    assert condenset("plan", "imagenet", "--nested").error_line == message


def test_presets_depend_on_the_name_and_the_size(condenset: CommandRunner) -> None:
    options = ("--classes", 2, "--images", 2, "--size", 64, *TINY_NETWORK, "--ipc", 1, "--no-evaluate", "--json")
    cost = json.loads(condenset("plan", "imagenet", *options).out)
    assert cost["jobs"][0]["stages"][0]["steps"] == 1_400


def test_streamed_images_have_a_rate(condenset: CommandRunner) -> None:
    sizes = ("--classes", 4, "--images", 30_000, "--size", 8, "--memory", "40M", "--set", "batch_size=8")
    out = condenset("plan", *sizes, *TINY_NETWORK, "--ipc", 1, "--no-evaluate").out
    assert "streamed, 6 KiB per iteration" in out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0521, "52.1 ms"), (0.9994, "999 ms"), (0.9995, "1 s"), (3.254, "3.25 s"), (99.9, "99.9 s"), (1222.4, "20 min")],
)
def test_step_times_have_three_digits(seconds: float, text: str) -> None:
    assert format_step_time(seconds) == text


def test_memory_of_a_device_and_chunks_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"set_bytes": 2048, "checkpoint_bytes": 0, "network_bytes": 0, "streamed_bytes": 0, "streamed_rate": 0}
    chunks = {"classes_per_chunk": 3, "num_chunks": 4, "num_shards": 1, "classes_per_shard": 10}
    undivided = "batch norm mixes the classes"
    job = JobCost(method="dm", ipc=1, stages=(), undivided=undivided, device_bytes=2**30, **chunks, **sizes)
    fields = {"num_classes": 10, "num_images": 100, "image_shape": (3, 8, 8), "precision": "bfloat16", "gpus": 2}
    memory = {"parallel_seconds": 0.0, "host_bytes": 2**31, "dataset_bytes": 19200}
    print_cost(CostEstimate(dataset="a", device="cuda", hardware="GPU", jobs=(job,), **fields, **memory), False)  # type: ignore[arg-type]
    rows = dict(re.split("  +", line, maxsplit=1) for line in capsys.readouterr().out.split("\n\n")[0].splitlines())
    assert rows["dm-1: chunks"] == "4 of up to 3 classes"
    assert rows["dm-1: shards"] == f"1, because {undivided}"
    assert (rows["dm-1: device memory"], rows["host memory"]) == ("1 GiB", "2 GiB")
    assert rows["dm-1: files"] == "set 2 KiB"


def test_mistakes_are_refused_in_one_line(condenset: CommandRunner) -> None:
    message = "give --classes, --images and --size together, or a dataset"
    assert condenset("plan", "--classes", 4).error_line == message
    assert "no dataset" in condenset("plan").error_line
