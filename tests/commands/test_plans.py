from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from condenset import UserError, load, networks
from condenset.plans import Plan, Wishes, from_toml, make_plan, read_settings, to_toml
from condenset.recipes import RECIPES
from plain import tiny_data

DATA = tiny_data([6, 6])
BOTH = Wishes(methods=("random", "dm"), ipcs=(1, 2, 1))


def plan_of(wishes: Wishes, base: Plan | None = None, **fields: object) -> Plan:
    return make_plan(DATA, wishes, base, **{"dataset": "tiny", **fields})


def read_back(plan: Plan, folder: Path) -> Plan:
    (folder / "recipe.toml").write_bytes(to_toml(plan).encode())
    return from_toml(folder / "recipe.toml")


def test_every_method_at_every_number_of_images_and_the_whole_dataset() -> None:
    plan = plan_of(BOTH)
    assert [job.name for job in plan.jobs] == ["random-1", "dm-1", "random-2", "dm-2", "whole"]
    assert [job.name for job in plan.made] == ["random-1", "dm-1", "random-2", "dm-2"]
    paths = [str(plan.set_path(job, Path("run"))) for job in plan.made]
    assert paths[0] == "run/sets/random-1.safetensors"
    assert paths[-1] == "run/condensed.safetensors"
    assert plan.fingerprint == DATA.fingerprint


def test_a_plan_survives_being_written(tmp_path: Path) -> None:
    wishes = dataclasses.replace(BOTH, recipe={"network": "mlp(width=3)", "lr": 1e-7}, protocol={"nets": 3})
    odd = 'a "b" \\ c\t\n\x7f\x01 é 😀'
    plan = plan_of(wishes, dataset=odd, seed=-3, device="cpu", precision="bfloat16", size=8, data_dir="/x y")
    assert read_back(plan, tmp_path) == plan
    condensing = plan_of(dataclasses.replace(BOTH, evaluate=False))
    assert condensing.protocol is condensing.whole is None
    assert read_back(condensing, tmp_path) == condensing


def test_wishes_win_over_the_config_and_the_config_over_presets(tmp_path: Path) -> None:
    base = plan_of(dataclasses.replace(BOTH, recipe={"lr": 3.0, "iterations": 7}, protocol={"epochs": 9, "nets": 3}))
    same = plan_of(Wishes(), base)
    assert same == base
    other = plan_of(Wishes(ipcs=(3,), recipe={"iterations": 8}, protocol={"nets": 4}, whole=False), base)
    assert [job.name for job in other.jobs] == ["random-3", "dm-3"]
    recipe, protocol = other.jobs[1].recipe, other.protocol
    assert recipe is not None
    assert protocol is not None
    assert dataclasses.asdict(recipe) | {"ipc": 2, "iterations": 7} == dataclasses.asdict(base.jobs[3].recipe)
    assert (protocol.epochs, protocol.nets) == (9, 4)
    assert plan_of(Wishes(whole=True), plan_of(dataclasses.replace(BOTH, whole=False))).whole is not None


def test_epochs_of_the_whole_dataset_ask_for_its_score() -> None:
    plan = plan_of(dataclasses.replace(BOTH, protocol={"epochs": 3, "nets": 2}, whole_epochs=4))
    assert plan.protocol is not None and plan.whole is not None
    assert (plan.protocol.epochs, plan.whole.epochs, plan.whole.nets) == (3, 4, 2)
    without = plan_of(dataclasses.replace(BOTH, whole=False))
    assert plan_of(Wishes(), without).whole is None
    asked = plan_of(Wishes(whole_epochs=5), without).whole
    assert asked is not None and asked.epochs == 5
    with pytest.raises(UserError, match="give one of the two"):
        Wishes(whole=False, whole_epochs=5)


def test_a_short_config_gets_the_presets_of_its_dataset(tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text('dataset = "digits"\n[[jobs]]\nmethod = "dm"\nipc = 1\n[protocol]\n[whole]\n')
    plan = make_plan(load("digits").train, Wishes(), from_toml(path), dataset="digits")
    assert plan.protocol is not None
    assert plan.whole is not None
    assert plan.jobs[0].recipe.iterations == 500  # type: ignore[union-attr]
    assert (plan.protocol.epochs, plan.whole.epochs) == (500, 40)


def test_another_number_of_images_gets_its_own_learning_rate_unless_one_was_chosen() -> None:
    def rate(base: Plan) -> float:
        return plan_of(Wishes(ipcs=(100,), recipe={"allow_fewer": True}), base).jobs[1].recipe.lr  # type: ignore[union-attr]

    assert rate(plan_of(BOTH)) == 10.0
    assert rate(plan_of(dataclasses.replace(BOTH, recipe={"lr": 3.0}))) == 3.0


def test_another_number_of_images_gets_its_own_loops_unless_some_were_chosen() -> None:
    def loops(**given: int) -> tuple[int, int]:
        base = plan_of(Wishes(methods=("dsa",), ipcs=(1,), recipe=given))
        wishes = Wishes(ipcs=(20,), recipe={"allow_fewer": True})
        return plan_of(wishes, base).jobs[0].recipe.loops  # type: ignore[union-attr]

    assert loops() == (20, 25)
    assert loops(inner=7) == (20, 7)


def test_networks_are_tested_as_they_were_learned_unless_told_otherwise() -> None:
    condensed = plan_of(dataclasses.replace(BOTH, recipe={"network": "mlp(width=3)"}, evaluate=False))
    plan = plan_of(Wishes(), condensed)
    assert plan.protocol is not None
    assert plan.protocol.network == "mlp(width=3)"


def test_sets_are_compared_on_the_network_of_matching() -> None:
    for methods, network in ((("dm", "dd"), "convnet"), (("random", "dd"), "convnet"), (("mmd",), "convnet")):
        plan = plan_of(Wishes(methods=methods, ipcs=(1,)))
        assert plan.protocol is not None
        assert plan.protocol.network == network


def test_the_whole_dataset_keeps_its_own_epochs() -> None:
    plan = plan_of(dataclasses.replace(BOTH, protocol={"epochs": 3, "nets": 2}))
    assert plan.protocol is not None
    assert plan.whole is not None
    assert (plan.protocol.epochs, plan.protocol.nets) == (3, 2)
    assert (plan.whole.epochs, plan.whole.nets) == (200, 2)


def test_options_go_to_the_methods_that_have_them() -> None:
    plan = plan_of(Wishes(methods=("random", "dm"), ipcs=(1,), recipe={"iterations": 7, "allow_fewer": True}))
    assert plan.jobs[1].recipe.iterations == 7  # type: ignore[union-attr]
    assert all(job.recipe.allow_fewer for job in plan.made if job.recipe)
    with pytest.raises(UserError, match=r"an option of random must be one of .* but got 'iterations'"):
        Wishes(methods=("random",), recipe={"iterations": 7})


def test_settings_are_for_all_methods_that_have_them_or_for_one() -> None:
    texts = ("batch=4", "dsa.batch=3", "inner = 2", "network=convnet(width=8, depth=1)", "dd.fixed_network=true")
    general, by_method = read_settings((*texts, "lr=2"))
    assert general == {"batch": 4, "inner": 2, "network": "convnet(width=8, depth=1)", "lr": 2.0}
    assert by_method == {"dsa": {"batch": 3}, "dd": {"fixed_network": True}}
    wishes = Wishes(methods=("random", "dc", "dsa", "dd"), ipcs=(1,), recipe=general, by_method=by_method)
    _, dc, dsa, dd = (job.recipe for job in plan_of(wishes).made)
    assert (dc.batch, dsa.batch, dd.batch) == (4, 3, 4)  # type: ignore[union-attr]
    assert (dc.inner, dsa.inner, dd.fixed_network) == (2, 2, True)  # type: ignore[union-attr]
    base = plan_of(Wishes(methods=("dc", "dsa"), ipcs=(1,)))
    again = plan_of(Wishes(recipe={"batch": 5}, by_method={"dc": {"outer": 7}}), base)
    assert [(job.recipe.batch, job.recipe.outer) for job in again.made] == [(5, 7), (5, 1)]  # type: ignore[union-attr]
    with pytest.raises(UserError, match="the method of a setting must be one of dc, dsa, but got 'dm'"):
        plan_of(Wishes(by_method={"dm": {"lr": 1.0}}), base)
    with pytest.raises(UserError, match=r"an option of dc, dsa must be one of .* but got 'kernel'"):
        plan_of(Wishes(recipe={"kernel": "rbf"}), base)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("outer", "a setting must be FIELD=VALUE or METHOD.FIELD=VALUE, but got 'outer'"),
        ("outr=3", "an option of a method must be one of .* but got 'outr'; did you mean 'outer'"),
        ("mmd.outer=3", "an option of mmd must be one of .* but got 'outer'"),
        ("dmm.lr=3", "method must be one of .* but got 'dmm'; did you mean 'dm'"),
        (".lr=3", "method must be one of .* but got ''"),
        ("ipc=3", "an option of a method must be one of .* but got 'ipc'"),
        ("outer=2.5", "outer must be a whole number, but got '2.5'"),
        ("lr=", "lr must be a number, but got ''"),
        ("fixed_network=yes", "fixed_network must be true or false, but got 'yes'"),
    ],
)
def test_a_setting_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_settings((text,))


def test_a_field_has_one_type_in_all_methods() -> None:
    """So that a setting can be read before the methods are known."""
    types = {(each.name, each.type) for kind in RECIPES.values() for each in dataclasses.fields(kind)}
    assert len({name for name, _ in types}) == len(types)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"methods": ("dmm",)}, "did you mean 'dm'"),
        ({"methods": ("dm",), "by_method": {"dm": {"network": "convnett"}}}, "did you mean 'convnet'"),
        ({"methods": ("dm",), "by_method": {"dd": {"steps": 3}}}, "the method of a setting must be one of dm"),
        ({"methods": ("dm",), "ipcs": (0,)}, "ipc"),
        ({"methods": ("dm",), "recipe": {"network": "convnett"}}, "did you mean 'convnet'"),
        ({"protocol": {"network": "convnett"}}, "did you mean 'convnet'"),
        ({"protocol": {"nets": 0}}, "nets must be a whole number, 1 or more"),
    ],
)
def test_a_wish_is_refused_before_the_data_are_read(fields: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        Wishes(**fields)  # type: ignore[arg-type]


def test_what_cannot_work_is_refused_before_it_starts() -> None:
    with pytest.raises(UserError, match="class 'class 0' has 6 images"):
        plan_of(Wishes(methods=("dm",), ipcs=(1, 7)))
    with pytest.raises(UserError, match="depth"):
        plan_of(Wishes(methods=("dm",), ipcs=(1,), recipe={"network": "convnet(depth=9)"}))
    with pytest.raises(UserError, match="give --ipc"):
        plan_of(Wishes(methods=("dm",)))


def test_planning_builds_no_network_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = networks.build
    monkeypatch.setattr(networks, "build", lambda *spec, **shape: built.append(build(*spec, **shape)))
    assert plan_of(BOTH).jobs
    assert {parameter.device.type for network in built for parameter in network.parameters()} == {"meta"}


def test_a_config_of_other_data_is_refused_unless_other_data_are_asked_for() -> None:
    base = dataclasses.replace(plan_of(BOTH), fingerprint="0123456789abcdef")
    with pytest.raises(UserError, match="tiny is no longer the data that the config file is of"):
        plan_of(Wishes(), base)
    assert plan_of(Wishes(), base, dataset="another").fingerprint == DATA.fingerprint
    assert plan_of(Wishes(), dataclasses.replace(base, fingerprint="")).fingerprint == DATA.fingerprint
