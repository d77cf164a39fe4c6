"""Schedules: named sets of fields between the presets of a method and the fields of the user."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import condenset as cs
from condenset.methods import METHODS, Method, make_recipe
from condenset.methods.coresets import random
from condenset.methods.matching import dm
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import FAMILY

FAST = {"network": "mlp(width=4)", "batch_size": 4, "device": "cpu", "verbose": False}
DIGITS_ITERATIONS = {**dict.fromkeys(FAMILY, 100), "dmplus": 200, "dc": 20, "dsa": 10, "dcc": 10, "dd": 75, "mtt": 20}


def dm_fields(ipc: int = 10, name: str = "cifar10", size: int = 32, **options: Any) -> dict[str, Any]:
    return dataclasses.asdict(make_recipe("dm", ipc=ipc, name=name, size=size, **options))


@pytest.mark.parametrize("ipc", [1, 10, 50, 100])
@pytest.mark.parametrize(("name", "size"), [("cifar10", 32), ("tinyimagenet", 64), ("digits", 8)])
def test_fast_is_the_default_of_dm(ipc: int, name: str, size: int) -> None:
    fast, paper = dm_fields(ipc, name, size), dm_fields(ipc, name, size, schedule="paper")
    assert fast == dm_fields(ipc, name, size, schedule="fast") == paper | dm.fast_schedule(ipc, name, size)
    assert fast["iterations"] < paper["iterations"] and fast["average"] > 0


def test_paper_is_the_schedule_of_the_paper() -> None:
    for ipc, size, lr, iterations in ((10, 32, 1.0, 20_000), (100, 32, 10.0, 20_000), (50, 64, 1.0, 10_000)):
        recipe = cs.DMRecipe(ipc=ipc, lr=lr, iterations=iterations)
        assert make_recipe("dm", ipc=ipc, name="other", size=size, schedule="paper") == recipe
    digits = dm_fields(name="digits", size=8, schedule="paper")
    assert (digits["iterations"], digits["lr"], digits["average"], digits["batch_size"]) == (500, 1.0, 0.0, 64)


@pytest.mark.parametrize("method", DIGITS_ITERATIONS)
def test_a_comparison_on_digits_is_quick(method: str) -> None:
    """The presets that keep a comparison of all methods at about 15 minutes on two cores."""
    recipe: Any = make_recipe(method, ipc=10, name="digits", size=8)
    assert recipe.iterations == DIGITS_ITERATIONS[method]


@pytest.mark.parametrize("schedule", ["fast", "paper"])
def test_fields_of_the_user_override_the_schedule(schedule: str) -> None:
    fields = {"iterations": 7, "lr": 0.5, "average": 0.25}
    assert dm_fields(schedule=schedule, **fields).items() >= fields.items()


def test_a_method_without_schedules_refuses_them() -> None:
    assert [name for name, method in METHODS.items() if method.schedules] == ["dm"]
    rule = "a schedule must come with a method that has schedules, such as dm, but got 'paper' with dmplus: leave out"
    with pytest.raises(cs.UserError, match=rule):
        make_recipe("dmplus", ipc=1, name="", size=8, schedule="paper")
    for name in ("slow", "", 3):
        with pytest.raises(cs.UserError, match="schedule must be one of fast, paper, but got"):
            cs.condense(tiny_data([4, 4]), "dm", ipc=1, schedule=name)  # type: ignore[arg-type]


def test_a_user_chooses_the_schedule_in_python() -> None:
    data = tiny_data([6, 6])
    for schedule, average in ((None, 0.5), ("fast", 0.5), ("paper", 0.0)):
        condensed = cs.condense(data, "dm", ipc=5, schedule=schedule, iterations=1, **FAST)
        recipe = condensed.provenance["recipe"]
        assert (recipe["lr"], recipe["average"]) == (dm_fields(5, schedule=schedule)["lr"], average)
        assert "schedule" not in recipe
    with pytest.raises(cs.UserError, match=r"a recipe must come without other settings, but got \['schedule'\]"):
        cs.condense(data, cs.DMRecipe(ipc=1), schedule="paper")


def test_a_method_of_a_user_can_have_schedules() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class CopyRecipe(cs.Recipe):
        offset: int = 0

    schedules = {"near": lambda ipc, dataset, size: {"offset": ipc}, "far": lambda ipc, dataset, size: {"offset": size}}
    method = Method(name="copy", recipe=CopyRecipe, condense=random.condense, summary="Copy.", schedules=schedules)
    cs.register_method(method)
    try:
        assert make_recipe("copy", ipc=3, name="", size=8) == CopyRecipe(ipc=3, offset=3)
        assert make_recipe("copy", ipc=3, name="", size=8, schedule="far") == CopyRecipe(ipc=3, offset=8)
    finally:
        METHODS.unregister("copy")
