from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from planned import CPU, NETWORK, SPLITS, go, plan_of
from torch import nn

from condenset import estimates, progress
from condenset.plans import Plan
from condenset.progress import Silent
from condenset.runs import Run
from condenset.workflow import execute


class Foretold(Silent):
    """Notes how long it is said to take, and stops there."""

    def foretell(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds()
        raise KeyboardInterrupt


def images_forward(plan: Plan, folder: Path) -> int:
    """That went through a network's first layer while the plan was carried out."""
    count = 0

    def see(module: nn.Module, inputs: tuple[torch.Tensor, ...], _: object) -> None:
        nonlocal count
        if isinstance(module, nn.Conv2d):  # networks here have one
            count += len(inputs[0])

    handle = nn.modules.module.register_module_forward_hook(see)
    try:
        go(plan, folder)
    finally:
        handle.remove()
    return count


SMALLER = {"nets": 3, "epochs": 4, "batch": 5, "network": NETWORK}  # batches than the set


@pytest.mark.parametrize(
    ("fields", "beside"),
    [
        ({"methods": ("random",), "recipe": {}, "whole": True}, 0),
        ({"methods": ("random",), "recipe": {}, "ipcs": (6,), "protocol": SMALLER}, 0),
        ({"methods": ("dm",), "ipcs": (1, 2)}, 5),
        ({"methods": ("ld",), "recipe": {"iterations": 3, "network": NETWORK, "batch": 4}}, 1),
        ({"methods": ("herding", "kcenter"), "recipe": {"epochs": 3, "network": NETWORK}}, 25),  # embeddings
    ],
)
def test_the_images_foretold_go_through_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], beside: int
) -> None:
    """beside: what is not foretold, such as single images by which features and memory are measured."""
    monkeypatch.setattr(estimates, "BACK", 1)  # the way back cannot be seen
    plan = plan_of(**fields)
    (counted,) = estimates.passes(plan, plan.jobs, SPLITS).values()
    assert images_forward(plan, tmp_path) == counted + beside


@pytest.mark.parametrize("method", ["dc", "dsa", "dd", "dm", "ld", "herding"])
def test_twice_the_work_takes_twice_as_long(method: str) -> None:
    field = "epochs" if method == "herding" else "iterations"
    few, many = (
        estimates.passes(plan := plan_of(methods=(method,), recipe={field: num}, protocol={}), plan.jobs, SPLITS)
        for num in (999, 1999)
    )
    scoring = estimates.passes(plan := plan_of(methods=("random",), recipe={}, protocol={}), plan.jobs, SPLITS)
    made, more = sum((few - scoring).values()), sum((many - scoring).values())
    assert made > 0 and more / made == pytest.approx(2, rel=0.01)


def test_a_run_tells_how_long_it_takes_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(estimates, "_seconds_each", lambda *_: 0.01)
    plan, told = plan_of(methods=("dm",), recipe={"iterations": 10**6, "network": NETWORK, "batch": 7}), Foretold()
    with pytest.raises(KeyboardInterrupt):
        execute(plan, SPLITS, Run(place=CPU, progress=told))
    assert told.seconds == pytest.approx(10**6 * 0.01 * 2 * (6 + 3), rel=0.01)  # two classes of six, and an image back
    shown = progress.Shown()
    shown.foretell(lambda: told.seconds)
    assert capsys.readouterr().err == "about 2 days for all of it, going by a training step on this machine\n"
    shown.foretell(lambda: 599.0)
    assert capsys.readouterr().err == ""


def test_what_is_done_is_not_foretold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "SOON", 0)
    go(plan_of(methods=("random",), recipe={}), tmp_path)
    told = [Foretold(), Foretold()]
    for folder, each in zip((tmp_path, None), told, strict=True):
        with pytest.raises(KeyboardInterrupt):
            execute(plan_of(methods=("random",), recipe={}), SPLITS, Run(place=CPU, folder=folder, progress=each))
    assert told[0].seconds == 0 < told[1].seconds


def test_little_is_not_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(estimates, "_seconds_each")
    plan = plan_of()
    assert estimates.seconds_of(plan, plan.jobs, SPLITS, CPU) == 0
