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
from condenset.types import Splits, of_classes
from condenset.workflow import _work, execute
from plain import tiny_data


class Foretold(Silent):
    """Notes how long it is said to take, and stops there."""

    def foretell(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds()
        raise KeyboardInterrupt


def works(plan: Plan) -> list[estimates.Work]:
    return [_work(plan, job, SPLITS, None) for job in plan.jobs]


def counted(plan: Plan) -> Counter[str]:
    return sum(estimates.passes(works(plan), SPLITS), Counter())


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


def test_what_several_need_is_the_first_ones() -> None:
    plan = plan_of(methods=("herding", "kcenter"), recipe={"epochs": 30, "network": NETWORK}, protocol={})
    first, second = estimates.passes(works(plan), SPLITS)
    assert first.total() > second.total() == counted(plan_of(methods=("random",), recipe={}, protocol={})).total()


@pytest.mark.parametrize(("method", "recipe"), [("herding", {"epochs": 30}), ("dm", {"iterations": 30, "batch": 5})])
def test_seeds_share_nothing(method: str, recipe: dict[str, object]) -> None:
    (work,) = works(plan_of(methods=(method,), recipe=recipe, protocol={}))
    first, same, other = estimates.passes([work, work, work._replace(seed=1)], SPLITS)
    assert first == other and same.total() < first.total()


def test_each_work_is_foretold_by_its_own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "_seconds_each", lambda spec, *_: {"light": 0.001, "heavy": 0.1}[spec])
    (work, *_) = works(plan_of(methods=("random",), recipe={}, protocol={}))
    light, heavy, none = (work._replace(networks=(spec,)) for spec in ("light", "heavy", "light"))
    found = estimates.seconds_of([light, heavy, none._replace(protocol=None)], SPLITS, CPU)
    assert found[0] > 0 and found[1] == pytest.approx(100 * found[0]) and found[2] == 0


def test_of_many_networks_some_stand_for_the_others() -> None:
    space, data = search_space(16), tiny_data([2, 2], size=16)
    (work, *_), splits = works(plan_of()), Splits(train=data, test=data)
    (few,), (many,), (half,) = (
        estimates.passes([work._replace(recipe=None, networks=tuple(some), left=left)], splits)
        for some, left in ((space[:7], 1), (space[::2], 1), (space[::2], 0.5))
    )
    assert list(few) == space[:7] and len(set(few.values())) == 1
    assert len(many) == estimates.TRIED and many.keys() <= set(space)
    assert sum(half.values()) == pytest.approx(sum(many.values()) / 2, rel=0.01)
    images = few[space[0]]
    wanted = images * sum(estimates._sums(spec, data) for spec in space[::2])
    assert sum(num * estimates._sums(spec, data) for spec, num in many.items()) == pytest.approx(wanted, rel=0.25)


def test_multiplications_of_a_network() -> None:
    sums = estimates._sums("convnet(width=8, depth=2)", tiny_data([1, 1, 1], size=16))
    assert sums == 16 * 16 * 3 * 9 * 8 + 8 * 8 * 8 * 9 * 8 + 4 * 4 * 8 * 3


@pytest.mark.parametrize("method", ["dm", "dc", "dd", "ld", "herding"])
def test_part_of_the_classes_is_as_those_classes_alone(method: str) -> None:
    names = SPLITS.train.class_names
    recipe: dict[str, object] = {"epochs": 3} if method == "herding" else {"iterations": 30, "batch": 5}
    (work, *_) = works(plan_of(methods=(method,), recipe=recipe, protocol={}))
    part = work._replace(protocol=None, share=1 / len(names))
    one = Splits(train=of_classes(SPLITS.train, names[:1]), test=SPLITS.test)
    assert estimates.passes([part], SPLITS) == estimates.passes([part._replace(share=1)], one)


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
    assert not any(estimates.seconds_of(works(plan_of()), SPLITS, CPU))


def test_a_set_that_is_made_is_not_foretold(tmp_path: Path) -> None:
    plan = plan_of(methods=("dm",))
    go(plan, tmp_path)
    (tmp_path / "results.json").unlink()
    (job,) = plan.jobs
    assert job.recipe and _work(plan, job, SPLITS, None) == estimates.Work(job.recipe, plan.protocol, 2)
    assert _work(plan, job, SPLITS, tmp_path) == estimates.Work(None, plan.protocol, 2)


@pytest.mark.parametrize(("enough", "steps"), [(0.0, 2), (1000.0, 4)])
def test_a_long_step_is_timed_once_and_the_first_never(
    enough: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, step = list[int](), Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, ahead: (taken.append(len(ahead)), step(self, ahead))[1])
    monkeypatch.setattr(estimates, "ENOUGH", enough)
    assert estimates._seconds_each(NETWORK, SPLITS.train, CPU) > 0
    assert taken == [12] * steps
    monkeypatch.setattr(estimates, "SUMS", 1)
    estimates._seconds_each("convnet(width=8, depth=1, norm='batch')", SPLITS.train, CPU)
    assert taken == [12] * steps + [estimates.FEWEST] * steps  # through a heavy network, few


def test_where_there_is_no_memory_to_try_nothing_is_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> float:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(estimates, "SOON", 0)
    monkeypatch.setattr(estimates, "_seconds_each", fail)
    assert not any(estimates.seconds_of(works(plan_of()), SPLITS, CPU))
