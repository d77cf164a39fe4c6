"""Test recipe.toml: a plan written and read again."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from condenset import UserError, load
from condenset.data.reading.options import LoadOptions
from condenset.engine import ComputeDevice
from condenset.methods.pools.pool_training import expert_protocol, fill_pool
from condenset.pipeline.config import plan_to_toml, read_plan
from condenset.pipeline.plan import Plan, make_plan
from condenset.pipeline.request import RunRequest
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

NETWORK = "convnet(width=4, depth=1)"
DATA = tiny_data([6, 6])
REQUEST = RunRequest(methods=("random", "dm"), ipcs=(1, 2))


def write_and_read(plan: Plan, directory: Path) -> Plan:
    (directory / "recipe.toml").write_text(plan_to_toml(plan))
    return read_plan(directory / "recipe.toml")


def test_a_plan_can_be_written_and_read(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"network": "mlp(width=3)", "lr": 1e-7}
    request = dataclasses.replace(REQUEST, recipe_fields=fields, protocol_fields={"num_networks": 3})
    settings: dict[str, Any] = {
        "seed": -3,
        "precision": "bfloat16",
        "memory_limit": 2**30,
        "data_dir": "/x y",
        "load_options": LoadOptions(size=8, nested=True, test_share=0.25),
    }
    plan = make_plan(DATA, request, dataset='a "b" \\ c\t\n\x7f\x01 é 😀', **settings)
    assert write_and_read(plan, tmp_path) == plan
    keys = tomllib.loads((tmp_path / "recipe.toml").read_text())
    assert (keys["size"], keys["nested"], keys["test_share"]) == (8, True, 0.25) and "fit" not in keys
    condense_only = make_plan(DATA, dataclasses.replace(REQUEST, evaluate=False), dataset="tiny")
    assert write_and_read(condense_only, tmp_path) == condense_only


def test_a_config_can_have_numbers_per_class(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('dataset = "tiny"\n[[jobs]]\nmethod = "dm"\nipc = [1, 3]\n[protocol]\n')
    plan = make_plan(DATA, RunRequest(), read_plan(path), dataset="tiny")
    assert [(job.name, job.ipc) for job in plan.jobs] == [("dm-1to3", (1, 3))]
    assert write_and_read(plan, tmp_path) == plan


@pytest.mark.parametrize("fields", [{}, {"calibration": 1.0}])
def test_a_pool_that_is_gone_is_not_trained_again(tmp_path: Path, fields: dict[str, float]) -> None:
    pool = tmp_path / "pool"
    protocol = expert_protocol(DATA, network=NETWORK, epochs=1)
    fill_pool(DATA, pool, 1, protocol, RunContext(compute=ComputeDevice.select("cpu")), num_checkpoints=1)
    recipe_fields = {"pool": str(pool), "network": NETWORK, **fields}
    request = RunRequest(methods=("dm",), ipcs=(1,), recipe_fields=recipe_fields, evaluate=False)
    plan = make_plan(DATA, request, dataset="tiny")
    assert write_and_read(plan, tmp_path) == plan
    pool.rename(tmp_path / "moved")
    with pytest.raises(UserError, match="pool is not a pool of networks"):
        make_plan(DATA, RunRequest(evaluate=False), read_plan(tmp_path / "recipe.toml"), dataset="tiny")


def test_the_first_line_names_the_command() -> None:
    plan = make_plan(DATA, REQUEST, dataset="tiny")
    assert "condenset run --config" in plan_to_toml(plan).splitlines()[0]
    assert "condenset condense --config" in plan_to_toml(dataclasses.replace(plan, protocol=None)).splitlines()[0]


def test_a_short_config_gets_the_presets_of_its_dataset(tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text('dataset = "digits"\n[[jobs]]\nmethod = "dm"\n[protocol]\n[whole]\n')
    request = RunRequest(schedule="paper")
    plan = make_plan(load("digits").train, request, read_plan(path), dataset="digits")
    assert plan.protocol is not None
    assert plan.whole is not None
    assert plan.jobs[0].ipc == 10
    assert plan.jobs[0].recipe.iterations == 500  # type: ignore[union-attr]
    assert (plan.protocol.epochs, plan.whole.epochs) == (500, 40)


def test_a_memory_limit_may_have_a_unit(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('dataset = "digits"\nmemory_limit = "2GiB"\n[[jobs]]\nmethod = "dm"\n')
    assert read_plan(path).memory_limit == 2**31


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('jobs = "dm"', "recipe.toml is not a recipe of condenset: give the recipe.toml of a run"),
        ("[[jobs]]\nipc = 3", "is not a recipe of condenset"),
        ('[[jobs]]\nmethod = "dm"', "is not a recipe of condenset"),
        ('datset = "digits"', "recipe.toml: a key of the recipe cannot be .* did you mean 'dataset'"),
        ('dataset = "a"\n[[jobs]]\nmethod = "dmm"', "recipe.toml: method cannot be .* did you mean 'dm'"),
        ('dataset = "a"\n[[jobs]]\nmethod = "dm"\nlrr = 3', "recipe.toml: an option of dm cannot be 'lrr'"),
        ('dataset = "a"\n[[jobs]]\nmethod = "dm"\n[protocol]\nepochs = -1', "epochs must be a whole number"),
        ('dataset = "a"\njobs = []', "recipe.toml: a run must have at least one job"),
        ("dataset = ", "recipe.toml is not TOML"),
    ],
)
def test_an_invalid_config_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_plan(path)


def test_fields_of_older_versions_are_left_out_if_their_value_is_still_used(tmp_path: Path) -> None:
    path, old = tmp_path / "recipe.toml", {"mmd": 'kernel = "linear"\nbandwidth = 0.0', "dd": "fixed_network = false"}
    jobs = "".join(f'[[jobs]]\nmethod = "{method}"\n{fields}\n' for method, fields in old.items())
    path.write_text(f'dataset = "digits"\n{jobs}')
    assert [job.name for job in read_plan(path).jobs] == ["mmd-10", "dd-10"]
    path.write_text(path.read_text().replace("linear", "rbf"))
    with pytest.raises(UserError, match=r"an option of mmd must be one of .* but got 'kernel'"):
        read_plan(path)


def test_files_of_older_versions_repeat_their_run_after_a_preset_has_changed(tmp_path: Path) -> None:
    """An older version wrote all of its fields. A field that it did not have keeps the behaviour of that version."""
    data = tiny_data([6, 6], size=64)
    request = RunRequest(methods=("dmplus",), ipcs=(1,), recipe_fields={"partition": 4}, evaluate=False)
    plan = make_plan(data, request, dataset="tiny")
    path = tmp_path / "recipe.toml"
    path.write_text(plan_to_toml(plan))
    assert make_plan(data, RunRequest(evaluate=False), read_plan(path), dataset="tiny") == plan
    path.write_text(path.read_text().replace('decoder = "dct"\n', "").replace("zca = false\n", ""))
    (job,) = make_plan(data, RunRequest(evaluate=False), read_plan(path), dataset="tiny").jobs
    assert job.recipe == dataclasses.replace(plan.jobs[0].recipe, decoder="bilinear")  # type: ignore[arg-type]
    path.write_text('dataset = "tiny"\n[[jobs]]\nmethod = "dmplus"\nipc = 1\n')
    (job,) = make_plan(data, RunRequest(evaluate=False), read_plan(path), dataset="tiny").jobs
    assert job.recipe.layout.decoder == "dct"
