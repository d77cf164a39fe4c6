from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from planned import CPU, NETWORK, SPLITS, go, plan_of
from torch import nn

from condenset import estimates, progress
from condenset.networks import search_space
from condenset.plans import Plan
from condenset.progress import Silent
from condenset.runs import Run
from condenset.train import Trainer
from condenset.workflow import _work, execute


class Foretold(Silent):
    """Notes how long it is said to take, and stops there."""

    def foretell(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds()
        raise KeyboardInterrupt


def works(plan: Plan) -> list[estimates.Work]:
    return [_work(plan, job, SPLITS, None) for job in plan.jobs]


def counted(plan: Plan) -> Counter[str]:
    return estimates.passes(works(plan), SPLITS)


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
    (foretold,) = counted(plan).values()
    assert images_forward(plan, tmp_path) == foretold + beside


def test_of_many_networks_some_stand_for_the_others() -> None:
    plan, space = plan_of(), search_space(32)
    (work, *_) = works(plan)
    few, many = (
        estimates.passes([work._replace(recipe=None, networks=tuple(some))], SPLITS) for some in (space[:7], space)
    )
    assert list(few) == space[:7] and len(set(few.values())) == 1
    assert sum(many.values()) == pytest.approx(720 / 7 * sum(few.values()))
    assert len(many) == 7 and max(many.values()) / min(many.values()) == pytest.approx(1, abs=0.01)
    for choices in (("width=32", "width=256"), ("depth=1", "depth=4"), ("pooling='none'", "pooling='max'")):
        assert all(any(choice in spec for spec in many) for choice in choices)


@pytest.mark.parametrize("method", ["dc", "dsa", "dd", "dm", "ld", "herding"])
def test_twice_the_work_takes_twice_as_long(method: str) -> None:
    field = "epochs" if method == "herding" else "iterations"
    few, many = (counted(plan_of(methods=(method,), recipe={field: num}, protocol={})) for num in (999, 1999))
    scoring = counted(plan_of(methods=("random",), recipe={}, protocol={}))
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
    assert estimates.seconds_of(works(plan_of()), SPLITS, CPU) == 0


def test_a_set_that_is_made_is_not_foretold(tmp_path: Path) -> None:
    plan = plan_of(methods=("dm",))
    go(plan, tmp_path)
    (tmp_path / "results.json").unlink()
    (job,) = plan.jobs
    assert job.recipe and _work(plan, job, SPLITS, None) == estimates.Work(job.recipe, plan.protocol, 2)
    assert _work(plan, job, SPLITS, tmp_path) == estimates.Work(None, plan.protocol, 2)


@pytest.mark.parametrize(("enough", "steps"), [(0.0, [1]), (1000.0, [1] * 3 + [12] * 3)])
def test_a_long_step_is_tried_once_on_one_image(
    enough: float, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, step = list[int](), Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, ahead: (taken.append(len(ahead)), step(self, ahead))[1])
    monkeypatch.setattr(estimates, "ENOUGH", enough)
    assert estimates._seconds_each(NETWORK, SPLITS.train, CPU) > 0
    assert taken == steps
    taken.clear()
    monkeypatch.setattr(estimates, "FEW_PIXELS", 1)
    estimates._seconds_each("convnet(width=8, depth=1, norm='batch')", SPLITS.train, CPU)
    assert set(taken) == {1}  # of large images, one


def test_where_there_is_no_memory_to_try_nothing_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> float:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(estimates, "SOON", 0)
    monkeypatch.setattr(estimates, "_seconds_each", fail)
    assert estimates.seconds_of(works(plan_of()), SPLITS, CPU) == 0
