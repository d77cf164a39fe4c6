"""Test what a user may ask for, and the settings of `--set`."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from condenset import UserError
from condenset.methods import METHODS
from condenset.pipeline.request import RunRequest, parse_settings


def test_settings_apply_to_all_methods_or_to_one() -> None:
    settings = (
        "batch_size=4",
        "dsa.batch_size=3",
        "inner_epochs = 2",
        "network=convnet(width=8, depth=1)",
        "dm.clamp=true",
        "lr=2",
    )
    recipe_fields, method_fields = parse_settings(settings)
    assert recipe_fields == {"batch_size": 4, "inner_epochs": 2, "network": "convnet(width=8, depth=1)", "lr": 2.0}
    assert method_fields == {"dsa": {"batch_size": 3}, "dm": {"clamp": True}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("outer_steps", "a setting must be FIELD=VALUE or METHOD.FIELD=VALUE, but got 'outer_steps'"),
        ("outer_step=3", "an option of a method cannot be 'outer_step'; did you mean 'outer_steps'"),
        ("mmd.outer_steps=3", "an option of mmd must be one of .* but got 'outer_steps'"),
        ("dmm.lr=3", "method cannot be 'dmm'; did you mean 'dm'"),
        (".lr=3", "method must be one of .* but got ''"),
        ("ipc=3", "an option of a method must be one of .* but got 'ipc'"),
        ("outer_steps=2.5", "outer_steps must be a whole number, but got '2.5'"),
        ("lr=", "lr must be a number, but got ''"),
        ("clamp=yes", "clamp must be true or false, but got 'yes'"),
    ],
)
def test_invalid_settings_are_refused(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_settings((setting,))


def test_a_setting_is_given_once() -> None:
    with pytest.raises(UserError, match="a setting must be given once, but got 'lr'"):
        parse_settings(("lr=1", "dm.lr=2", "lr=3"))


def test_a_field_has_the_same_type_in_all_methods() -> None:
    """Test what `parse_settings` relies on: it reads a setting before the methods are known."""
    recipes = [method.recipe for method in METHODS.values()]
    types = {(field.name, field.type) for recipe in recipes for field in dataclasses.fields(recipe)}
    assert len({name for name, _ in types}) == len(types)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"methods": ("dmm",)}, "did you mean 'dm'"),
        ({"methods": ("dm",), "method_fields": {"dm": {"network": "convnett"}}}, "did you mean 'convnet'"),
        ({"methods": ("dm",), "method_fields": {"dd": {"steps": 3}}}, "the method of a setting must be one of dm"),
        ({"methods": ("dm",), "ipcs": (0,)}, "ipc"),
        ({"methods": ("dm",), "ipcs": (1,), "ipc_share": 0.1}, "--ipc and --ipc-share exclude each other"),
        ({"ipc_share": 0.0}, "ipc_share must be a number above 0, at most 1, but got 0.0"),
        ({"methods": ("dm",), "recipe_fields": {"network": "convnett"}}, "did you mean 'convnet'"),
        ({"methods": ("random",), "recipe_fields": {"iterations": 7}}, "an option of random .* but got 'iterations'"),
        ({"protocol_fields": {"network": "convnett"}}, "did you mean 'convnet'"),
        ({"protocol_fields": {"num_networks": 0}}, "num_networks must be a whole number, 1 or more"),
        ({"whole": False, "whole_epochs": 5}, "--whole-epochs has no effect with --no-whole: give one of the two"),
    ],
)
def test_an_invalid_request_is_refused_before_the_data_are_read(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RunRequest(**fields)


def test_the_whole_dataset_has_its_own_epochs() -> None:
    request = RunRequest(protocol_fields={"epochs": 3, "num_networks": 2})
    assert request.whole_protocol_fields == {"num_networks": 2}
    assert dataclasses.replace(request, whole_epochs=4).whole_protocol_fields == {"num_networks": 2, "epochs": 4}


def test_method_fields_override_recipe_fields() -> None:
    request = RunRequest(methods=("random", "dc", "dsa"), recipe_fields={"lr": 2.0}, method_fields={"dsa": {"lr": 3.0}})
    assert [request.fields_for(method) for method in request.methods] == [{}, {"lr": 2.0}, {"lr": 3.0}]
