"""The cost of a run follows from its measured parts and agrees with what a real run makes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from condenset.config import field_names
from condenset.data.datasets.outline import outline_dataset
from condenset.data.image_data import Splits
from condenset.data.reading.loading import load_splits
from condenset.data.reading.options import LoadOptions
from condenset.engine.device import ComputeDevice
from condenset.errors import UserError
from condenset.io.bytesize import parse_bytes
from condenset.methods import METHODS, DMRecipe, make_recipe
from condenset.methods.matching.dm import make_problem
from condenset.pipeline.cost import loop as loop_cost
from condenset.pipeline.cost import run as cost_run
from condenset.pipeline.cost import trial
from condenset.pipeline.cost.estimate import CostEstimate, JobCost, estimate_host_bytes, hand_out
from condenset.pipeline.cost.loop import LoopCost, interpolate, measure_classes
from condenset.pipeline.cost.run import estimate_cost
from condenset.pipeline.cost.trial import LoopTiming, trial_recipe
from condenset.pipeline.request import RunRequest
from condenset.pipeline.run import start_run
from condenset.runs import loop
from condenset.runs.context import RunContext

NETWORK = "convnet(width=8, depth=1)"
SIZES: dict[str, Any] = {"dataset": "future", "classes": 6, "images": 40, "load_fields": {"size": 8}}
PROTOCOL = {"network": NETWORK, "num_networks": 4, "epochs": 9, "batch_size": 8}


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure as few iterations as possible."""
    for name in ("TRIAL_SECONDS", "SAMPLE_SECONDS"):
        monkeypatch.setattr(trial, name, 0.0)
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.0)


def make_request(*methods: str, evaluate: bool = False, **fields: Any) -> RunRequest:
    fields = {"network": NETWORK, "iterations": 50, "batch_size": 4, **fields}
    methods = methods or ("dm",)
    return RunRequest(
        methods=methods,
        ipcs=(2,),
        recipe_fields={name: fields[name] for name in fields.keys() & field_names(METHODS[methods[0]].recipe)},
        protocol_fields=PROTOCOL,
        evaluate=evaluate,
        whole=False,
    )


def estimate_job(*methods: str, gpus: int = 1, memory_limit: int | None = None, **fields: Any) -> JobCost:
    """Return the cost of a set of a dataset that does not exist."""
    settings: dict[str, Any] = {"device": "cpu", "memory_limit": memory_limit, **SIZES}
    (job,) = estimate_cost(make_request(*methods, **fields), gpus=gpus, **settings).jobs
    return job


def test_stages_multiply_steps_and_time() -> None:
    cost = estimate_cost(make_request(evaluate=True), device="cpu", gpus=3, **SIZES)
    assert (cost.num_images, cost.image_shape, cost.dataset_bytes) == (240, (3, 8, 8), 240 * 192)
    condense, scoring = cost.jobs[0].stages
    assert (condense.name, condense.steps) == ("condensing", 50)
    assert 50 * condense.step_seconds <= condense.seconds
    assert (scoring.name, scoring.steps) == (f"scoring, 4 × {NETWORK}", 4 * 10 * 2)  # 10 epochs of 12 images
    assert scoring.seconds == pytest.approx(scoring.steps * scoring.step_seconds)
    assert scoring.parallel_seconds == pytest.approx(scoring.seconds / 2)  # two rounds of networks instead of four
    assert cost.seconds == pytest.approx(condense.seconds + scoring.seconds)


def test_sets_of_all_sizes_share_the_time_and_the_file_of_a_generator(tmp_path: Path, toy: Path) -> None:
    request = RunRequest(methods=("gmmn",), ipcs=(1, 2), recipe_fields={"iterations": 2, "width": 4}, evaluate=False)
    first, second = estimate_cost(request, dataset=str(toy), device="cpu").jobs
    assert [stage.name for stage in first.stages] == ["condensing"]
    assert not second.stages and not second.network_bytes
    start_run(request, dataset=str(toy), device="cpu", out=tmp_path / "run")
    (path,) = (tmp_path / "run" / "networks").iterdir()
    assert 0.5 * first.network_bytes < path.stat().st_size < 2 * first.network_bytes


@pytest.mark.parametrize(
    ("method", "fields"),
    [("dmplus", {"pool_epochs": 2}), ("mtt", {"max_start_epoch": 2, "expert_epochs": 1, "steps": 2, "lr": 1.0})],
)
def test_files_have_the_sizes_of_a_real_run(method: str, fields: dict[str, Any], tmp_path: Path, toy: Path) -> None:
    request = make_request(method, pool_size=2, iterations=3, **fields)
    settings: dict[str, Any] = {"dataset": str(toy), "device": "cpu"}
    job = estimate_cost(request, **settings).jobs[0]
    directory = start_run(request, out=tmp_path / "run", **settings).directory
    files = sum(path.stat().st_size for path in (directory / "networks").rglob("*.safetensors"))
    assert job.network_bytes == pytest.approx(files, rel=0.2)
    record = json.loads((directory / "results.json").read_text())[0]
    assert job.set_bytes == record["storage_bytes"]
    names = [stage.name for stage in job.stages]
    assert names == [f"pool of networks, 2 × {NETWORK}", "condensing"]


def test_checkpoints_and_chunks_are_those_of_a_real_run(toy: Path) -> None:
    splits: Splits = load_splits(str(toy), None, LoadOptions())[0]
    recipe = make_recipe("dm", ipc=2, name="toy", size=8, network=NETWORK, batch_size=4)
    for limit in (None, 250_000):
        run = RunContext(compute=ComputeDevice.select("cpu"), memory_limit=limit)
        problem = make_problem(splits.train, [recipe], run)  # type: ignore[list-item]
        job = estimate_cost(make_request(), dataset=str(toy), device="cpu", memory_limit=limit).jobs[0]
        assert job.num_chunks == len(problem.chunks)
        assert job.checkpoint_bytes == 2 * sum(tensor.nbytes for tensor in problem.state.values())


def test_classes_are_divided_over_devices() -> None:
    assert estimate_job(gpus=1).num_shards == 1
    divided = estimate_job(gpus=2)
    assert (divided.num_shards, divided.classes_per_shard) == (6, 1)
    batch_norm = estimate_job(gpus=2, network="convnet(width=8, depth=1, norm='batch')")
    assert (batch_norm.num_shards, batch_norm.undivided) == (1, "batch norm mixes the classes")
    assert batch_norm.stages[0].parallel_seconds == batch_norm.stages[0].seconds
    assert estimate_job("dsa", gpus=2).num_shards == 1


@pytest.mark.parametrize(("gpus", "limit", "classes"), [(1, "40M", 6), (1, "240M", 0), (2, "40M", 0), (2, "30M", 1)])
def test_images_that_do_not_fit_are_streamed(gpus: int, limit: str, classes: int) -> None:
    settings: dict[str, Any] = {"device": "cpu", **SIZES, "images": 100_000}
    (job,) = estimate_cost(make_request(), gpus=gpus, memory_limit=parse_bytes(limit), **settings).jobs
    assert job.streamed_bytes == classes * 4 * 192
    assert (job.streamed_rate > 0) == (classes > 0)


@pytest.mark.parametrize("exists", [False, True])
def test_memory_of_several_devices_is_that_of_the_largest_shard(
    exists: bool, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_cost, "TRIAL_BYTES", 2**20)
    monkeypatch.setattr(ComputeDevice, "peak_memory", lambda self: 2**30)
    sizes: dict[str, Any] = {"dataset": str(toy)} if exists else SIZES | {"images": 200_000}
    whole, divided = (estimate_cost(make_request(), device="cpu", gpus=gpus, **sizes) for gpus in (1, 4))
    assert divided.jobs[0].num_shards == divided.num_classes
    num_other = whole.num_images - whole.num_images // whole.num_classes
    other_bytes = num_other * math.prod(whole.image_shape)
    assert divided.jobs[0].device_bytes <= whole.jobs[0].device_bytes - other_bytes


def test_devices_work_on_all_sets_at_the_same_time() -> None:
    request = dataclasses.replace(make_request("dsa", evaluate=True), ipcs=(1, 2))
    settings: dict[str, Any] = {"device": "cpu", **SIZES}
    cost = estimate_cost(request, gpus=8, **settings)
    longest = [max(job.stages[number].parallel_seconds for job in cost.jobs) for number in (0, 1)]
    assert cost.parallel_seconds == pytest.approx(sum(longest))
    cost = estimate_cost(request, **settings)
    assert cost.parallel_seconds == pytest.approx(cost.seconds)


def test_few_networks_for_many_devices_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_run, "num_parallel", lambda *arguments: 5)
    monkeypatch.setattr(cost_run, "measure_training", lambda *arguments: 1.0 / arguments[-1])
    request = dataclasses.replace(make_request("random", evaluate=True), ipcs=(2,))
    for gpus, num_parallel in ((1, 4), (2, 2), (4, 1)):
        cost = estimate_cost(request, device="cpu", gpus=gpus, **SIZES)
        (stage,) = cost.jobs[0].stages
        assert stage.seconds == stage.steps / 4
        assert cost.parallel_seconds == stage.parallel_seconds == stage.steps / gpus / num_parallel


def test_coresets_need_a_network_or_nothing() -> None:
    assert estimate_job("random").stages == ()
    job = estimate_job("herding")
    (stage,) = job.stages
    assert (stage.name, stage.steps) == ("reference network", 201 * 60)
    assert job.network_bytes > 0 and job.device_bytes == 0


@pytest.mark.parametrize(
    ("methods", "name"),
    [(("herding", "kcenter"), "reference network"), (("dmplus",), "pool"), (("dance", "dmplus"), "pool")],
)
def test_networks_that_jobs_share_count_once(methods: tuple[str, ...], name: str) -> None:
    settings: dict[str, Any] = {"device": "cpu", **SIZES}
    fields: dict[str, Any] = (
        {"pool_size": 2, "pool_epochs": 2, "iterations": 2} if "dmplus" in methods else {"epochs": 1}
    )
    request = dataclasses.replace(make_request(*methods, **fields), ipcs=(1, 2))
    first, *others = estimate_cost(request, **settings).jobs
    assert first.stages[0].name.startswith(name) and first.network_bytes > 0
    for job in others:
        assert not any(stage.name.startswith(name) for stage in job.stages) and job.network_bytes == 0


def test_networks_that_a_pool_has_already_are_not_trained(tmp_path: Path, toy: Path) -> None:
    fields = {"pool_size": 1, "max_start_epoch": 1, "expert_epochs": 1, "steps": 1, "iterations": 1}
    for zca in (False, True):
        request = make_request("mtt", **fields, pool=str(tmp_path / "pools"), zca=zca)
        settings: dict[str, Any] = {"dataset": str(toy), "device": "cpu"}
        before = estimate_cost(request, **settings).jobs[0]
        start_run(request, out=tmp_path / f"run {zca}", **settings)
        job = estimate_cost(request, **settings).jobs[0]
        assert len(before.stages) == 2 and [stage.name for stage in job.stages] == ["condensing"]
        assert before.network_bytes > 0 == job.network_bytes


def test_memory_contains_the_networks_of_a_pool() -> None:
    job = estimate_job("dmplus", network="mlp(width=1024)", pool_size=1000, pool_epochs=1, iterations=2)
    assert job.device_bytes > job.network_bytes > 2**30


def test_few_chunks_are_not_extrapolated_and_small_shards_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    data, compute = outline_dataset("future", 6, 40, 8), ComputeDevice.select("cpu")
    recipe = make_recipe("dm", ipc=2, name="future", size=8, network=NETWORK, batch_size=4)
    monkeypatch.setattr(loop_cost, "TRIAL_SECONDS", 1e9)  # also on a busy machine
    assert list(measure_classes(data, recipe, compute, None, 2).timings) == [2, 6]
    limit = 1_130_000  # one class at a time
    assert list(measure_classes(data, recipe, compute, limit).timings) == [1, 6]
    monkeypatch.setattr(loop_cost, "TRIAL_SECONDS", 0.0)  # as if two chunks took long
    assert list(measure_classes(data, recipe, compute, limit).timings) == [2]


def test_trial_of_a_pool_has_one_network() -> None:
    recipe = make_recipe("dmplus", ipc=2, name="toy", size=8, network=NETWORK, pool="pool")
    small = trial_recipe(recipe)
    assert isinstance(recipe, DMRecipe) and isinstance(small, DMRecipe)
    assert (small.pool, small.pool_size, small.pool_epochs) == ("", 1, 1)
    assert small.iterations == recipe.iterations


def test_scoring_counts_the_decoded_images() -> None:
    scoring = estimate_job("idm", evaluate=True, partition=2, iterations=2).stages[-1]
    assert scoring.steps == 4 * 10 * (6 * 2 * 4 // 8)  # networks, epochs, batches


def test_more_devices_than_shards_do_not_change_the_time() -> None:
    assert hand_out([3.0, 2.0, 2.0], 2) == 4.0
    assert hand_out([3.0, 2.0], 10**12) == 3.0


def test_memory_of_a_cpu_contains_the_whole_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_cost, "TRIAL_BYTES", 2**20)
    settings: dict[str, Any] = {"device": "cpu", **SIZES, "images": 2_000_000, "memory_limit": 2**40}
    cost = estimate_cost(make_request(), **settings)
    assert cost.host_bytes > cost.dataset_bytes > 2**31


@pytest.mark.parametrize(("device", "num_states"), [("cpu", 2), ("cuda", 3)])
def test_host_memory_contains_the_copies_of_a_state_that_is_written(device: str, num_states: int) -> None:
    job = dataclasses.replace(estimate_job(), checkpoint_bytes=2 * 2**20, device_bytes=2**28)
    assert estimate_host_bytes(2**30, [job], device) == 2**30 + num_states * 2**20
    in_use = 2**28 if device == "cpu" else 2**20
    assert estimate_host_bytes(2**20, [job], device) == in_use + num_states * 2**20


@pytest.mark.parametrize("method", ["mmd", "dd", "ld", "idm"])
def test_other_methods_are_measured(method: str) -> None:
    (stage,) = estimate_job(method, steps=2, epochs=1).stages
    assert stage.steps == 50
    assert 0 < stage.step_seconds < 10


def test_images_per_class_may_differ() -> None:
    settings: dict[str, Any] = {"device": "cpu", **SIZES}
    request = RunRequest(methods=("random",), ipc_share=0.1, evaluate=False)
    cost: CostEstimate = estimate_cost(request, **settings)
    assert cost.jobs[0].set_bytes == 6 * 4 * 192 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": None}, "give classes=, images= and size= together, or a dataset"),
        ({"load_fields": {}}, "give classes=, images= and size= together, or a dataset"),
        ({"load_fields": {"size": 8, "fit": "pad"}}, "fit has no effect on data that are not on this machine"),
        ({"images": 1}, "ipc must be at most the size of every class"),
        ({"gpus": 0}, "gpus must be a whole number, 1 or more"),
    ],
)
def test_mistakes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        estimate_cost(make_request(), device="cpu", **(SIZES | changes))


def test_time_grows_linearly_with_chunks() -> None:
    timings = {10: LoopTiming(num_steps=100, step_seconds=3.0, start_seconds=9.0)}
    assert LoopCost(timings=timings).step_seconds(20) == 6.0
    timings[30] = LoopTiming(num_steps=100, step_seconds=7.0, start_seconds=5.0)
    cost = LoopCost(timings=timings)
    assert [cost.step_seconds(num) for num in (10, 20, 30, 100)] == [3.0, 5.0, 7.0, 21.0]
    assert cost.seconds(100) == 5.0 + 100 * 21.0


def test_noise_does_not_reverse_the_growth() -> None:
    assert interpolate({10: 4.0, 20: 3.9}, 40) == pytest.approx(7.8)
