"""The contract that every method in the table keeps; a new method is tested by being in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.engine import Place
from condenset.methods import METHODS
from condenset.presets import make_protocol, make_recipe
from condenset.recipes import RECIPES, TrainedRecipe, describe
from condenset.report.grid import draw_grid
from condenset.runs import Interrupted, Run, Silent
from condenset.workflow import summary
from plain import StopAtStep, tiny_data

TINY: dict[str, Any] = {"network": "convnet(width=8, depth=2)", "iterations": 3, "batch": 4}
CPU = Place.best("cpu")


def tiny_recipe(method: str, **fields: Any) -> Any:
    names = {field.name for field in dataclasses.fields(RECIPES[method])}
    mine = {key: value for key, value in {**TINY, "epochs": 2}.items() if key in names}
    return make_recipe(method, **{"ipc": 2, "name": "tiny", "size": 8, **mine, **fields})


def check_labels(small: cs.CondensedSet, expected: list[int]) -> None:
    """Hard labels are balanced; soft ones, which a method is free to learn, are a row of probabilities an image."""
    if small.labels.ndim == 1:
        assert small.labels.tolist() == expected
    else:
        assert small.labels.shape == (len(expected), small.num_classes)
        assert (small.labels >= 0).all()
        torch.testing.assert_close(small.labels.sum(1), torch.ones(len(expected)))


def same(a: cs.CondensedSet, b: cs.CondensedSet) -> bool:
    """To the bit, all that is learned."""
    sizes = [each.step_sizes if each.step_sizes is not None else torch.zeros(0) for each in (a, b)]
    return torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) and torch.equal(*sizes)


@pytest.fixture(params=sorted(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_method_has_a_recipe_and_a_description() -> None:
    assert METHODS.keys() == RECIPES.keys()
    assert {row[0] for row in describe()} == METHODS.keys()


@pytest.mark.parametrize("channels", [1, 3])
def test_balanced_finite_and_described(method: str, channels: int) -> None:
    data = tiny_data([5, 6, 7], channels=channels)
    recipe = tiny_recipe(method)
    small = METHODS[method](data, recipe, Run(seed=1, place=CPU))
    assert small.images.shape == (6, channels, 8, 8)
    assert small.images.dtype == torch.float32
    assert small.images.isfinite().all()
    check_labels(small, [0, 0, 1, 1, 2, 2])
    if small.labels.ndim == 2:  # they start as the classes of their images
        start = METHODS[method](data, tiny_recipe(method, iterations=0), Run(seed=1, place=CPU))
        assert start.labels.argmax(1).tolist() == [0, 0, 1, 1, 2, 2]
    assert small.class_names == data.class_names
    about = small.provenance
    assert about["method"] == method
    assert about["recipe"] == dataclasses.asdict(recipe)
    assert about["fingerprint"] == data.fingerprint
    assert {"seed", "version", "seconds", "hardware", "device", "precision", "dataset"} <= about.keys()


def test_the_same_seed_the_same_set(method: str) -> None:
    data, recipe = tiny_data([9, 9]), tiny_recipe(method)
    torch.manual_seed(0)
    first = METHODS[method](data, recipe, Run(seed=1, place=CPU))
    torch.manual_seed(99)  # the global generator has no say
    state = torch.get_rng_state()
    again = METHODS[method](data, recipe, Run(seed=1, place=CPU))
    assert torch.equal(state, torch.get_rng_state())
    assert same(first, again)
    assert not torch.equal(first.images, METHODS[method](data, recipe, Run(seed=2, place=CPU)).images)


def test_saved_and_loaded(method: str, tmp_path: Path) -> None:
    small = METHODS[method](tiny_data([4, 4]), tiny_recipe(method), Run(place=CPU))
    small.save(tmp_path / "a.safetensors")
    back = cs.CondensedSet.load(tmp_path / "a.safetensors")
    assert same(back, small)
    assert back.provenance == small.provenance


def test_too_many_images_asked_for(method: str) -> None:
    data = tiny_data([5, 2])
    with pytest.raises(cs.UserError, match=r"has 2 images: give a smaller ipc, or .*allow_fewer=True in Python"):
        METHODS[method](data, tiny_recipe(method, ipc=3), Run(place=CPU))
    small = METHODS[method](data, tiny_recipe(method, ipc=3, allow_fewer=True), Run(place=CPU))
    check_labels(small, [0, 0, 0, 1, 1])
    empty = dataclasses.replace(data, class_names=("a", "b", "nobody"))
    with pytest.raises(cs.UserError, match="class 'nobody' has no images"):
        METHODS[method](empty, tiny_recipe(method, allow_fewer=True), Run(place=CPU))


class Counting(Silent):
    def __init__(self) -> None:
        self.totals: list[int] = []
        self.seen: list[int] = []

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.totals.append(total)

    def update(self, done: int, note: str = "") -> None:
        self.seen.append(done)


def test_progress_reaches_the_end(method: str) -> None:
    run = Run(place=CPU)
    run.progress = Counting()
    recipe = tiny_recipe(method)
    METHODS[method](tiny_data([4, 4]), recipe, run)
    if hasattr(recipe, "iterations"):
        assert run.progress.totals == [getattr(recipe, "image_steps", recipe.iterations)]
    if method != "random":  # which takes no time
        assert run.progress.seen[-1] == run.progress.totals[-1]


def test_stopped_and_resumed_is_bitwise_the_same(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, recipe = tiny_data([6, 6]), tiny_recipe(method)
    if method == "random":
        pytest.skip("it takes no time, there is nothing to stop")
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    expected = METHODS[method](data, recipe, Run(seed=1, place=CPU))
    run = Run(seed=1, place=CPU, folder=tmp_path, job="job")
    run.progress = StopAtStep(run, 2)
    with pytest.raises(Interrupted):
        METHODS[method](data, recipe, run)
    run = Run(seed=1, place=CPU, folder=tmp_path, job="job")
    run.progress = Counting()
    assert same(METHODS[method](data, recipe, run), expected)
    assert run.progress.seen[0] > 2  # it did not begin anew


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore", "error:running without")  # the compiler warns of much, and of what it is doing
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_on_a_gpu_it_is_the_same_set_but_for_rounding(method: str, precision: str) -> None:
    """Rounding is little beside what was learned; which images a trained network prefers may hang on it, though."""
    data, recipe = tiny_data([6, 6]), tiny_recipe(method)
    found = METHODS[method](data, recipe, Run(place=Place.best("cuda", precision)))
    if isinstance(recipe, TrainedRecipe):
        pixels = (found.images * 255).round().to(torch.uint8)
        assert all(
            (data.images[data.labels == k] == x).flatten(1).all(1).any()
            for x, k in zip(pixels, found.labels, strict=True)
        )
        return
    expected = METHODS[method](data, recipe, Run(place=CPU))
    start = METHODS[method](data, tiny_recipe(method, iterations=0), Run(place=CPU)) if method != "random" else expected
    triples = zip(*((each.images, each.labels.float()) for each in (found, expected, start)), strict=True)
    for mine, cpus, before in triples:
        learned = (cpus - before).abs().mean()
        assert (mine - cpus).abs().mean() <= (0.05 if precision == "float32" else 0.3) * learned + 1e-6


def test_a_set_of_any_method_is_scored_and_drawn(method: str) -> None:
    data = tiny_data([6, 6])
    small = METHODS[method](data, tiny_recipe(method), Run(place=CPU))
    scores = cs.evaluate(small, data, network=TINY["network"], nets=1, epochs=1, device="cpu")
    assert 0 <= scores.mean <= 1
    assert draw_grid([small]).width > 0
    assert summary(small)["method"] == method


def test_a_run_with_a_folder_writes_events_that_tell_the_loss(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method)
    run = Run(place=CPU, folder=tmp_path, job="job")
    METHODS[method](tiny_data([4, 4]), recipe, run)
    if hasattr(recipe, "iterations"):
        last = run.events("step")[-1]
        assert last["step"] == getattr(recipe, "image_steps", recipe.iterations)
        assert last["loss"] >= 0
        assert last["seconds"] >= 0


def test_condense_takes_any_field_of_the_recipe() -> None:
    small = cs.condense(tiny_data([5, 5]), ipc=1, device="cpu", momentum=0.1, init="noise", **TINY)
    assert small.provenance["recipe"]["momentum"] == 0.1
    with pytest.raises(cs.UserError, match=r"an option of dm .*'momentun'; did you mean 'momentum'"):
        cs.condense(tiny_data([5, 5]), ipc=1, momentun=0.1)
    with pytest.raises(cs.UserError, match=r"method must be one of .*'dmm'; did you mean 'dm'"):
        cs.condense(tiny_data([5, 5]), "dmm", ipc=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ipc": 0}, "ipc .* but got 0"),
        ({"ipc": 1.5}, "ipc .* but got 1.5"),
        ({"ipc": True}, "ipc .* but got True"),
        ({"iterations": -1}, "iterations must be a whole number, 0 or more, but got -1"),
        ({"lr": 0}, "lr must be a number above 0"),
        ({"lr": float("nan")}, "lr must be a number above 0"),
        ({"lr": 10**400}, "lr must be a number above 0, but got 1000"),
        ({"lr": 16**5000}, "lr must be a number above 0, but got a number of thousands of digits"),
        ({"iterations": 10**400}, "iterations must be a whole number of at most 64 bits, but got 1000"),
        ({"init": 16**5000}, "init must be text, but got a number of thousands of digits"),
        ({"momentum": 1.0}, "momentum must be a number from 0 to below 1"),
        ({"batch": "2"}, "batch must be a whole number, 1 or more, but got '2'"),
        ({"lr": "1"}, "lr must be a number above 0, but got '1'"),
        ({"batch": 0}, "batch must be a whole number, 1 or more"),
        ({"init": "reel"}, "init must be one of real, noise, but got 'reel'; did you mean 'real'"),
        ({"augment": "blur"}, "augmentation must be one of"),
        ({"network": 3}, "network must be text, but got 3"),
        ({"allow_fewer": "yes"}, "allow_fewer must be true or false"),
    ],
)
def test_recipes_validate_themselves(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        tiny_recipe("dm", **fields)


def test_presets_are_the_papers() -> None:
    def preset(ipc: int, size: int) -> Any:
        return make_recipe("dm", ipc=ipc, name="cifar10", size=size)

    assert (preset(50, 32).lr, preset(100, 32).lr) == (1.0, 10.0)
    assert (preset(50, 32).iterations, preset(50, 64).iterations) == (20_000, 10_000)
    assert (preset(1, 32).batch, preset(1, 32).momentum, preset(1, 32).init) == (256, 0.5, "real")
    assert make_protocol(name="cifar10", size=32).nets == 20


def test_random_is_balanced_real_images_drawn_evenly() -> None:
    data = tiny_data([8, 8])
    seen = torch.zeros(16)
    for seed in range(200):
        small = cs.condense(data, "random", ipc=2, seed=seed, device="cpu")
        pixels = (small.images * 255).round().to(torch.uint8)
        for image, label in zip(pixels, small.labels, strict=True):
            found = ((data.images == image).flatten(1).all(1) & (data.labels == label)).nonzero()
            assert len(found) == 1
            seen[found[0, 0]] += 1
    assert (seen - 50).abs().max() < 30
