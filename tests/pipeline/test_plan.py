"""Test how presets, a config file and the request are combined to a plan."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condenset import UserError, networks
from condenset.data.image_data import ImageData
from condenset.methods import make_recipe
from condenset.pipeline import plan as planning
from condenset.pipeline.config import _parse_plan, plan_to_toml
from condenset.pipeline.plan import Plan
from condenset.pipeline.request import RunRequest
from condenset.training.protocol import Protocol
from helpers.reference_dm import tiny_data

DATA = tiny_data([6, 6])
RANDOM_AND_DM = RunRequest(methods=("random", "dm"), ipcs=(1, 2, 1))


def make_plan(data: ImageData, request: RunRequest, base: Plan | None = None, **settings: Any) -> Plan:
    """Make a plan. The base is written as a config file and read again."""
    config = _parse_plan(tomllib.loads(plan_to_toml(base))) if base else None
    return planning.make_plan(data, request, config, **settings)


def plan_for(request: RunRequest, base: Plan | None = None, **settings: Any) -> Plan:
    return make_plan(DATA, request, base, **{"dataset": "tiny", **settings})


def protocols_of(plan: Plan) -> tuple[Protocol, Protocol]:
    assert plan.protocol is not None
    assert plan.whole is not None
    return plan.protocol, plan.whole


def test_a_plan_has_every_method_at_every_size_and_the_whole_dataset() -> None:
    plan = plan_for(RANDOM_AND_DM)
    assert [job.name for job in plan.jobs] == ["random-1", "dm-1", "random-2", "dm-2", "whole"]
    assert [job.name for job in plan.condense_jobs] == ["random-1", "dm-1", "random-2", "dm-2"]
    paths = [str(plan.set_path(job, Path("run"))) for job in plan.condense_jobs]
    assert paths[0] == "run/sets/random-1.safetensors"
    assert paths[-1] == "run/sets/dm-2.safetensors"
    assert plan.fingerprint == DATA.fingerprint


def test_ipc_is_10_by_default() -> None:
    data = tiny_data([10, 10])
    plan = make_plan(data, RunRequest(methods=("random", "dm")), dataset="tiny")
    assert [job.ipc for job in plan.condense_jobs] == [10, 10]
    base = make_plan(data, RANDOM_AND_DM, dataset="tiny")
    other = make_plan(data, RunRequest(methods=("mmd",)), base, dataset="tiny")
    assert [job.name for job in other.condense_jobs] == ["mmd-1", "mmd-2"]  # the config file states the sizes


def test_a_share_becomes_numbers_per_class() -> None:
    data = tiny_data([30, 5])
    plan = make_plan(data, RunRequest(methods=("random", "dm"), ipc_share=0.1), dataset="tiny")
    assert [job.ipc for job in plan.condense_jobs] == [(3, 1)] * 2  # rounding of 0.5 gives 0, but 1 is the least
    assert [job.name for job in plan.condense_jobs] == ["random-1to3", "dm-1to3"]
    assert str(plan.set_path(plan.jobs[0], Path("run"))) == "run/sets/random-1to3.safetensors"
    assert make_plan(data, RunRequest(), plan, dataset="tiny") == plan
    balanced = plan_for(RunRequest(methods=("dm",), ipc_share=0.5), base=plan_for(RANDOM_AND_DM))
    assert [job.name for job in balanced.condense_jobs] == ["dm-3"]
    with pytest.raises(UserError, match=r"one number for each of the 2 classes, but got \[3, 1, 1\]"):
        make_plan(
            data,
            RunRequest(),
            make_plan(tiny_data([30, 5, 5]), RunRequest(methods=("dm",), ipc_share=0.1), dataset="a"),
            dataset="b",
        )


def test_allow_fewer_plans_the_numbers_that_the_classes_have() -> None:
    data, fewer = tiny_data([30, 12, 5, 1]), {"allow_fewer": True}
    plan = make_plan(data, RunRequest(methods=("dm",), ipcs=(10, 20, 1), recipe_fields=fewer), dataset="tiny")
    assert [job.name for job in plan.condense_jobs] == ["dm-1to10", "dm-1to20", "dm-1"]
    assert [job.ipc for job in plan.condense_jobs] == [(10, 10, 5, 1), (20, 12, 5, 1), 1]
    assert make_plan(data, RunRequest(), plan, dataset="tiny") == plan
    assert make_plan(data, RunRequest(ipcs=(10, 20, 1)), plan, dataset="tiny") == plan  # the config allows fewer
    same_size = RunRequest(methods=("random",), ipcs=(7, 8), recipe_fields=fewer)
    assert [job.name for job in plan_for(same_size).condense_jobs] == ["random-6"]  # two sizes become one
    by_method = RunRequest(methods=("random", "dm"), ipcs=(6,), method_fields={"dm": fewer})
    assert [job.name for job in plan_for(by_method).condense_jobs] == ["random-6", "dm-6"]


def test_a_numpy_seed_is_stored_as_an_integer() -> None:
    plan = plan_for(RANDOM_AND_DM, seed=np.int64(7))
    assert type(plan.seed) is int and plan.seed == 7
    with pytest.raises(UserError, match=r"seed must be a whole number, but got 1.5"):
        dataclasses.replace(plan, seed=1.5)


def test_the_request_overrides_the_config_and_the_config_overrides_presets() -> None:
    fields = {"lr": 3.0, "iterations": 7}
    protocol_fields = {"epochs": 9, "num_networks": 3}
    base = plan_for(dataclasses.replace(RANDOM_AND_DM, recipe_fields=fields, protocol_fields=protocol_fields))
    assert plan_for(RunRequest(), base) == base
    changes = RunRequest(ipcs=(3,), recipe_fields={"iterations": 8}, protocol_fields={"num_networks": 4}, whole=False)
    changed = plan_for(changes, base)
    assert [job.name for job in changed.jobs] == ["random-3", "dm-3"]
    recipe, protocol = changed.jobs[1].recipe, changed.protocol
    assert recipe is not None and protocol is not None
    assert dataclasses.replace(recipe, ipc=2, iterations=7) == base.jobs[3].recipe  # type: ignore[call-arg]
    assert (protocol.epochs, protocol.num_networks) == (9, 4)
    without_whole = plan_for(dataclasses.replace(RANDOM_AND_DM, whole=False))
    assert plan_for(RunRequest(whole=True), without_whole).whole is not None


def test_epochs_on_the_whole_dataset_imply_its_score() -> None:
    protocol_fields = {"epochs": 3, "num_networks": 2}
    request = dataclasses.replace(RANDOM_AND_DM, protocol_fields=protocol_fields, whole_epochs=4)
    protocol, whole = protocols_of(plan_for(request))
    assert (protocol.epochs, whole.epochs, whole.num_networks) == (3, 4, 2)
    assert plan_for(RunRequest(), plan_for(request)).whole == whole  # also of a config file
    without_whole = plan_for(dataclasses.replace(RANDOM_AND_DM, whole=False))
    assert plan_for(RunRequest(), without_whole).whole is None
    assert protocols_of(plan_for(RunRequest(whole_epochs=5), without_whole))[1].epochs == 5


@pytest.mark.parametrize(("images", "epochs"), [(700, 200), (600, 3)], ids=["large", "small"])
def test_the_whole_dataset_has_its_own_epochs_unless_it_is_small(images: int, epochs: int) -> None:
    request = dataclasses.replace(RANDOM_AND_DM, protocol_fields={"epochs": 3, "num_networks": 2})
    protocol, whole = protocols_of(make_plan(tiny_data([images, images]), request, dataset="tiny"))
    assert (protocol.epochs, protocol.num_networks) == (3, 2)
    assert (whole.epochs, whole.num_networks) == (epochs, 2)


def test_another_size_gets_its_own_learning_rate_unless_the_config_changes_it() -> None:
    def learning_rate(base: Plan) -> float:
        return make_plan(tiny_data([100, 100]), RunRequest(ipcs=(100,)), base, dataset="larger").jobs[1].recipe.lr  # type: ignore[union-attr]

    for schedule in ("fast", "paper"):
        request = dataclasses.replace(RANDOM_AND_DM, schedule=schedule)
        default = make_recipe("dm", ipc=100, name="larger", size=8, schedule=schedule)
        assert learning_rate(plan_for(request)) == default.lr  # type: ignore[attr-defined]
        assert learning_rate(plan_for(dataclasses.replace(request, recipe_fields={"lr": 3.0}))) == 3.0


def test_another_size_gets_its_own_presets_unless_the_config_changes_them() -> None:
    data = tiny_data([10, 10], size=32)

    def partition(**recipe_fields: int) -> int:
        base = make_plan(data, RunRequest(methods=("dmplus",), ipcs=(1,), recipe_fields=recipe_fields), dataset="a")
        return make_plan(data, RunRequest(ipcs=(10,)), base, dataset="a").jobs[0].recipe.partition  # type: ignore[union-attr]

    assert partition() == 3
    assert partition(partition=1) == 1


def test_another_size_gets_its_own_loops_unless_the_config_changes_them() -> None:
    def loops(**recipe_fields: int) -> tuple[int, int]:
        base = plan_for(RunRequest(methods=("dsa",), ipcs=(1,), recipe_fields=recipe_fields))
        return make_plan(tiny_data([20, 20]), RunRequest(ipcs=(20,)), base, dataset="larger").jobs[0].recipe.loops  # type: ignore[union-attr]

    assert loops() == (20, 25)
    assert loops(inner_epochs=7) == (20, 7)


def test_cifar100_has_its_own_loops_from_50_images_per_class() -> None:
    loops = {ipc: make_recipe("dsa", ipc=ipc, name="cifar100", size=32).loops for ipc in (1, 10, 20, 50)}  # type: ignore[attr-defined]
    assert loops == {1: (1, 1), 10: (10, 50), 20: (20, 25), 50: (10, 10)}


def test_sets_are_scored_on_the_network_they_were_learned_with() -> None:
    request = dataclasses.replace(RANDOM_AND_DM, recipe_fields={"network": "mlp(width=3)"}, evaluate=False)
    condense_only = plan_for(request)
    assert condense_only.protocol is condense_only.whole is None
    protocol = plan_for(RunRequest(), condense_only).protocol
    assert protocol is not None and protocol.network == "mlp(width=3)"


@pytest.mark.parametrize("methods", [("dm", "dd"), ("random", "dd"), ("mmd",)])
def test_sets_are_compared_on_the_network_of_a_matching_method(methods: tuple[str, ...]) -> None:
    plan = plan_for(RunRequest(methods=methods, ipcs=(1,)))
    assert protocols_of(plan)[0].network == "convnet"


def test_fields_reach_the_methods_that_have_them() -> None:
    fields = {"iterations": 7, "allow_fewer": True}
    plan = plan_for(RunRequest(methods=("random", "dm"), ipcs=(1,), recipe_fields=fields))
    assert plan.jobs[1].recipe.iterations == 7  # type: ignore[union-attr]
    assert all(job.recipe.allow_fewer for job in plan.condense_jobs if job.recipe)


def test_method_fields_override_recipe_fields() -> None:
    recipe_fields = {"batch_size": 4, "inner_epochs": 2}
    method_fields = {"dsa": {"batch_size": 3}, "dd": {"init": "real"}}
    request = RunRequest(
        methods=("random", "dc", "dsa", "dd"), ipcs=(1,), recipe_fields=recipe_fields, method_fields=method_fields
    )
    recipes: list[Any] = [job.recipe for job in plan_for(request).condense_jobs]
    assert [recipe.batch_size for recipe in recipes[1:]] == [4, 3, 4]
    assert (recipes[1].inner_epochs, recipes[2].inner_epochs, recipes[3].init) == (2, 2, "real")


def test_fields_override_those_of_the_config() -> None:
    base = plan_for(RunRequest(methods=("dc", "dsa"), ipcs=(1,)))
    request = RunRequest(recipe_fields={"batch_size": 5}, method_fields={"dc": {"outer_steps": 7}})
    recipes: list[Any] = [job.recipe for job in plan_for(request, base).condense_jobs]
    assert [(recipe.batch_size, recipe.outer_steps) for recipe in recipes] == [(5, 7), (5, 1)]
    with pytest.raises(UserError, match="the method of a setting must be one of dc, dsa, but got 'dm'"):
        plan_for(RunRequest(method_fields={"dm": {"lr": 1.0}}), base)
    with pytest.raises(UserError, match=r"--pool must come with a method .* but got dc, dsa: for dm, use"):
        plan_for(RunRequest(pool="nets"), base)
    with pytest.raises(UserError, match=r"an option of dc, dsa must be one of .* but got 'kernel'"):
        plan_for(RunRequest(recipe_fields={"kernel": "rbf"}), base)


def test_a_plan_that_cannot_succeed_is_refused() -> None:
    with pytest.raises(UserError, match=r"2 classes have fewer training images, 'class 0' \(6\)"):
        plan_for(RunRequest(methods=("dm",), ipcs=(1, 7)))
    with pytest.raises(UserError, match="depth"):
        plan_for(RunRequest(methods=("dm",), ipcs=(1,), recipe_fields={"network": "convnet(depth=9)"}))
    base = dataclasses.replace(plan_for(RANDOM_AND_DM), whole=Protocol(network="convnet(depth=9)"))
    with pytest.raises(UserError, match="depth=9"):
        plan_for(RunRequest(), base)


def test_jobs_must_differ() -> None:
    job = plan_for(RANDOM_AND_DM).jobs[0]
    with pytest.raises(UserError, match=r"jobs must have different names .*, but got \['random-1'\]"):
        Plan(dataset="tiny", jobs=(job, job))
    with pytest.raises(UserError, match="a run must have at least one job"):
        Plan(dataset="tiny", jobs=())


def test_planning_builds_no_network_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = networks.build
    monkeypatch.setattr(networks, "build", lambda *spec, **shape: built.append(build(*spec, **shape)) or built[-1])
    assert plan_for(RANDOM_AND_DM).jobs
    assert {parameter.device.type for network in built for parameter in network.parameters()} == {"meta"}


def test_a_config_of_changed_data_is_refused_unless_another_dataset_is_given() -> None:
    base = dataclasses.replace(plan_for(RANDOM_AND_DM), fingerprint="0123456789abcdef")
    with pytest.raises(UserError, match="tiny has changed since the config file was written"):
        plan_for(RunRequest(), base)
    assert plan_for(RunRequest(), base, dataset="another").fingerprint == DATA.fingerprint
    assert plan_for(RunRequest(), dataclasses.replace(base, fingerprint="")).fingerprint == DATA.fingerprint
