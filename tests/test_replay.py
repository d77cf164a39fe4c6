"""What runs as captured graphs on a GPU gives, replayed, what it gives when it runs step by step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from condenset import ranking
from condenset.engine import Place
from condenset.engine.step import _captured
from condenset.evaluation import score
from condenset.methods import METHODS
from condenset.methods.gradient import GradientMatching
from condenset.methods.matching import dm_sizes
from condenset.methods.pool_training import train_pool
from condenset.presets import make_recipe
from condenset.recipes import KERNELS, Protocol, Recipe
from condenset.runs import Interrupted, Run
from condenset.train import Forgetting, Trainer, TrainingSet, side_by_side
from condenset.types import CondensedSet
from plain import StopAtStep, tiny_data
from replayed import capture_on_cpu

CPU = Place.best("cpu")
NETWORK = "convnet(width=4, depth=1)"
FIELDS: dict[str, dict[str, Any]] = {
    "random": {},
    **{key: {"epochs": 3, "batch": 4, "network": NETWORK} for key in ("herding", "kcenter", "forgetting")},
    "mmd": {"iterations": 5, "batch": 4},
    "dd": {"iterations": 5, "batch": 4, "network": NETWORK, "steps": 2, "epochs": 2},
    "ld": {"iterations": 5, "batch": 4, "network": NETWORK},
    **{key: {"iterations": 2, "batch": 4, "outer": 3, "inner": 2, "network": NETWORK} for key in ("dc", "dsa")},
    "dm": {"iterations": 5, "batch": 4, "network": NETWORK},
}
SPECS = (
    "convnet(width=4, depth=2)",
    "convnet(width=4, depth=1, norm='batch')",
    "convnet(width=4, depth=1, norm='layer', activation='sigmoid', pooling='max')",
    "convnet(width=4, depth=1, norm='group', pooling='none')",
    "mlp(width=8)",
)


def recipe_of(method: str, **fields: Any) -> Recipe:
    return make_recipe(method, name="tiny", size=8, **{"ipc": 2, "allow_fewer": True, **FIELDS[method], **fields})


def made(method: str, counts: list[int], *, chunk: int | None = None, **fields: Any) -> list[Tensor]:
    small = METHODS[method](tiny_data(counts), recipe_of(method, **fields), Run(seed=3, place=CPU, chunk=chunk))
    return tensors_of(small)


def tensors_of(small: CondensedSet) -> list[Tensor]:
    return [small.images, small.labels, *([] if small.step_sizes is None else [small.step_sizes])]


def check_replayed(do: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, and something was captured."""
    expected = do()
    with monkeypatch.context() as patched:
        graphs = capture_on_cpu(patched)
        found = do()
    assert graphs
    assert all(torch.equal(mine, plain) for mine, plain in zip(found, expected, strict=True))


@pytest.mark.parametrize("counts", [[6, 6, 6], [6, 1, 5]], ids=["equal", "unequal"])
@pytest.mark.parametrize("method", [name for name in METHODS if name != "random"])
def test_a_method(method: str, counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    check_replayed(lambda: made(method, counts), monkeypatch)


@pytest.mark.parametrize("method", ["dm", "dc", "dsa", "ld", "dd"])
def test_batch_norm(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_replayed(lambda: made(method, [6, 4, 6], network="convnet(width=4, depth=1, norm='batch')"), monkeypatch)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_of_pixels(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_replayed(lambda: made("mmd", [6, 6], kernel=kernel), monkeypatch)


@pytest.mark.parametrize("method", ["dm", "dsa"])
def test_classes_in_chunks(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_replayed(lambda: made(method, [6, 4, 6], chunk=2), monkeypatch)


def test_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [recipe_of("dm", ipc=ipc, lr=1.0 + ipc) for ipc in (1, 2, 3)]
    data = tiny_data([6, 4, 6])
    check_replayed(lambda: [each.images for each in dm_sizes(data, recipes, Run(place=CPU))], monkeypatch)


@pytest.mark.parametrize("spec", SPECS)
def test_networks_trained_side_by_side_one_after_another(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = TrainingSet.of(tiny_data([20, 13]), CPU.device)  # the last batch has one image

    def train() -> list[Tensor]:
        found, protocol = [], Protocol(network=spec, epochs=5, batch=8)
        trainers = [Trainer(spec, data, protocol, CPU) for _ in range(2)]
        for seed in (1, 2):
            for _ in side_by_side([each.training(seed, place) for place, each in enumerate(trainers)], CPU.device):
                pass
            for each in trainers:
                state = [each.weights.clone(), *(buffer.clone() for buffer in each.buffers.values())]
                found += [*state, torch.tensor(each.accuracy(data))]
        return found

    check_replayed(train, monkeypatch)


def test_forgetting_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TrainingSet.of(tiny_data([20, 13]), CPU.device)

    def count() -> list[Tensor]:
        seen = Forgetting(len(data), CPU.device)
        trainer = Trainer(SPECS[0], data, Protocol(epochs=4, batch=8), CPU, forgetting=seen)
        trainer.train(1)
        first = seen.counts_N.clone()
        trainer.train(2)
        return [first, *seen.state.values()]

    check_replayed(count, monkeypatch)


@pytest.mark.parametrize("fields", [{"own_steps": True}, {"steps": 13, "batch": 4}, {"epochs": 3}], ids=str)
def test_scores(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    small = METHODS["dd"](tiny_data([6, 3, 5]), recipe_of("dd"), Run(place=CPU))
    protocol, test = Protocol(network=NETWORK, nets=3, **fields), tiny_data([9, 9, 9])
    check_replayed(lambda: [torch.tensor(score(small, test, protocol, Run(place=CPU)).accuracies)], monkeypatch)


def test_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(names: list[str], *_: object) -> Iterator[list[str]]:
        yield names

    monkeypatch.setattr(ranking, "_groups", groups)
    train, validation = tiny_data([20, 20]), tiny_data([9, 9])
    protocol = Protocol(nets=2, epochs=3, batch=16)

    def search() -> list[Tensor]:
        rows = ranking.search(SPECS, train, validation, protocol, Run(place=CPU)).rows
        return [torch.tensor(row.accuracy) for row in sorted(rows, key=lambda row: row.name)]

    check_replayed(search, monkeypatch)


def test_a_pool_and_a_set_made_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folders = tiny_data([20, 20]), iter(("a", "b"))

    def make() -> list[Tensor]:
        folder = tmp_path / next(folders)
        train_pool(data, folder, num=2, network=NETWORK, epochs=3, batch=8, device="cpu")
        return tensors_of(METHODS["dm"](data, recipe_of("dm", pool=str(folder)), Run(place=CPU)))

    check_replayed(make, monkeypatch)


@pytest.mark.parametrize("method", ["dm", "dsa", "dd", "ld", "mmd"])
def test_a_resumed_run(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    data, recipe, plain = tiny_data([6, 4, 6]), recipe_of(method), iter((True, False))

    def make() -> list[Tensor]:
        if next(plain):
            return tensors_of(METHODS[method](data, recipe, Run(place=CPU)))
        run = Run(place=CPU, folder=tmp_path, job="job")
        run.stop_requested = True
        with pytest.raises(Interrupted):
            METHODS[method](data, recipe, run)
        return tensors_of(METHODS[method](data, recipe, Run(place=CPU, folder=tmp_path, job="job")))

    check_replayed(make, monkeypatch)


@pytest.mark.parametrize("step", [2, 6, 14, 20])  # of three networks, two side by side, in passes of two and a half
def test_resumed_networks(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.evaluation.together", lambda *_: 2)
    data, made, plain = tiny_data([5, 5]), Protocol(network=SPECS[1], nets=3, epochs=3, batch=4), iter((True, False))
    found: list[Tensor] = []
    accuracy = Trainer.accuracy

    def tested(trainer: Trainer, *args: Any) -> float:
        found.extend(each.clone() for each in trainer.state.values())
        return accuracy(trainer, *args)

    monkeypatch.setattr(Trainer, "accuracy", tested)

    def train() -> list[Tensor]:
        found.clear()
        folder = None if next(plain) else tmp_path
        if folder:
            run = Run(place=CPU, folder=folder)
            run.progress = StopAtStep(run, step)
            with pytest.raises(Interrupted):
                score(data, data, made, run)
        score(data, data, made, Run(place=CPU, folder=folder))
        return found[:]

    check_replayed(train, monkeypatch)


def test_no_garbage_is_collected_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that died then would spoil it."""
    capture_on_cpu(monkeypatch)
    state, collects = torch.zeros(1), []

    def step() -> None:
        state.add_(1)
        collects.append(gc.isenabled())

    _captured(step, [state], CPU.device)
    assert collects == [True, True, True, False]
    assert gc.isenabled()


def test_what_is_done_with_is_freed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when Python next looks for cycles: graphs hold memory of a GPU that nobody counts."""
    capture_on_cpu(monkeypatch)
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    for kind in (Trainer, GradientMatching):

        def begin(self: Any, *args: Any, first: Any = kind.__init__, **options: Any) -> None:
            first(self, *args, **options)
            alive.add(self)

        monkeypatch.setattr(kind, "__init__", begin)
    data = tiny_data([6, 6])
    gc.disable()
    try:
        small = METHODS["dsa"](data, recipe_of("dsa"), Run(place=CPU))
        score(small, data, Protocol(network=NETWORK, nets=2, epochs=2, batch=3), Run(place=CPU))
        assert not alive
    finally:
        gc.enable()
