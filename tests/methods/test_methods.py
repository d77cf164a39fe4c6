"""The contract of all methods, with the settings of `Method.tiny`. Of methods with the same step, some are tested."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.config import field_names
from condenset.engine import ComputeDevice
from condenset.io.progress import NullProgress
from condenset.methods import METHODS, Method
from condenset.methods.gradient.dsa import DSARecipe
from condenset.methods.registry import describe_methods, make_recipe, method_of
from condenset.report.grid import draw_grid
from condenset.runs.context import RunContext
from condenset.training.protocol import make_protocol
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import DISTINCT_METHODS

CPU = ComputeDevice.select("cpu")
FAST: dict[str, Any] = {"network": "convnet(width=8, depth=2)", "iterations": 3, "batch_size": 4}


def tiny_recipe(method: Method, **fields: Any) -> Any:
    return make_recipe(method.name, **{"ipc": 2, "name": "tiny", "size": 8, **method.tiny, **fields})


def condense(method: Method, data: cs.ImageData, seed: int = 0, **fields: Any) -> cs.CondensedSet:
    return method.condense(data, tiny_recipe(method, **fields), RunContext(seed=seed, compute=CPU))


def learns_by_iterations(method: Method) -> bool:
    return "iterations" in field_names(method.recipe)


def num_image_steps(recipe: Any) -> int:
    return int(getattr(recipe, "image_steps", recipe.iterations))


def check_labels(condensed: cs.CondensedSet, expected: list[int]) -> None:
    """Check that hard labels are as expected, or that every image has a soft label."""
    assert len(condensed.labels) == len(condensed) == len(expected) * condensed.partition**2
    if condensed.labels.ndim == 1:
        assert condensed.stored_labels.tolist() == expected
    else:
        assert condensed.labels.shape == (len(expected), condensed.num_classes)
        assert (condensed.labels >= 0).all()
        torch.testing.assert_close(condensed.labels.sum(1), torch.ones(len(expected)))


def assert_equal_sets(first: cs.CondensedSet, second: cs.CondensedSet) -> None:
    """Check that everything that is learned is equal bit by bit."""
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.stored_images, second.stored_images)
    assert torch.equal(first.labels, second.labels)
    assert (first.step_sizes is None) == (second.step_sizes is None)
    if first.step_sizes is not None and second.step_sizes is not None:
        assert torch.equal(first.step_sizes, second.step_sizes)


@pytest.fixture(autouse=True)
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few networks in the queue of idm: their initialisation takes most of the time."""
    monkeypatch.setattr("condenset.methods.matching.queue.NUM_NETWORKS", 3)


@pytest.fixture(params=sorted(DISTINCT_METHODS))
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


@pytest.mark.parametrize("name", METHODS)
def test_description(name: str) -> None:
    method = METHODS[name]
    assert method.summary.endswith(".")
    assert method.name in {entry["name"] for entry in describe_methods()}
    assert method_of(tiny_recipe(method)) is method


@pytest.mark.parametrize("name", METHODS)
def test_a_recorded_recipe_builds_the_same_recipe(name: str) -> None:
    method, dataset = METHODS[name], {"name": "cifar10", "size": 32}
    for fields in ({}, method.recipe.added_fields):  # other values than some methods and presets have
        recipe = tiny_recipe(method, **dataset, **fields)
        recorded = json.loads(json.dumps(recipe.to_dict()))
        assert make_recipe(name, **dataset, **recorded) == recipe


@pytest.mark.parametrize("channels", [1, 3])
def test_set_is_balanced_finite_and_has_provenance(method: Method, channels: int) -> None:
    data = tiny_data([5, 6, 7], channels=channels)
    condensed = condense(method, data, seed=1)
    assert condensed.stored_images.shape == (6, channels, 8, 8)
    assert condensed.images.dtype == torch.float32
    assert condensed.images.isfinite().all()
    check_labels(condensed, [0, 0, 1, 1, 2, 2])
    assert (condensed.labels.ndim == 2) == (method.name == "ld")
    if method.name == "ld":  # initial labels are the classes of the images
        initial = condense(method, data, seed=1, iterations=0)
        assert initial.labels.argmax(1).tolist() == [0, 0, 1, 1, 2, 2]
    assert condensed.class_names == data.class_names
    provenance = condensed.provenance
    assert provenance["method"] == method.name
    assert provenance["recipe"] == tiny_recipe(method).to_dict()
    assert provenance["fingerprint"] == data.fingerprint
    assert {"seed", "version", "seconds", "hardware", "device", "precision", "dataset"} <= provenance.keys()


def test_coresets_are_real_images_and_learned_sets_change(method: Method) -> None:
    data = tiny_data([5, 6])
    condensed = condense(method, data)
    if method.is_coreset:
        pixels = (condensed.images * 255).round().to(torch.uint8)
        assert all((data.images == image).flatten(1).all(1).any() for image in pixels)
        assert len(pixels.unique(dim=0)) == len(pixels)
    else:
        initial = condense(method, data, iterations=0)
        learned = (condensed.labels, initial.labels) if method.name == "ld" else (condensed.images, initial.images)
        assert not torch.equal(*learned)


def test_result_depends_on_the_seed_alone(method: Method) -> None:
    data = tiny_data([9, 9])
    torch.manual_seed(0)
    first = condense(method, data, seed=1)
    torch.manual_seed(99)  # the global generator has no effect
    state = torch.get_rng_state()
    second = condense(method, data, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert_equal_sets(first, second)
    assert not torch.equal(first.images, condense(method, data, seed=2).images)


def test_save_and_load(method: Method, tmp_path: Path) -> None:
    condensed = condense(method, tiny_data([4, 4]))
    condensed.save(tmp_path / "a.safetensors")
    loaded = cs.CondensedSet.load(tmp_path / "a.safetensors")
    assert_equal_sets(loaded, condensed)
    assert loaded.provenance == condensed.provenance


def test_small_and_empty_classes(method: Method) -> None:
    data = tiny_data([5, 2])
    with pytest.raises(
        cs.UserError, match=r"got 3 and class 'class 1' has only 2 training images: .*or allow_fewer=True to use all"
    ):
        condense(method, data, ipc=3)
    with pytest.raises(cs.UserError, match=r"class 'class 1' has only 1 training image:"):
        condense(method, tiny_data([5, 1]), ipc=3)
    condensed = condense(method, data, ipc=3, allow_fewer=True)
    check_labels(condensed, [0, 0, 0, 1, 1])
    with_empty_class = dataclasses.replace(data, class_names=("a", "b", "empty"))
    with pytest.raises(cs.UserError, match="class 'empty' has no images"):
        condense(method, with_empty_class, allow_fewer=True)


def test_the_number_of_images_can_differ_by_class(method: Method, tmp_path: Path) -> None:
    data, numbers = tiny_data([5, 6, 7]), [1, 3, 2]
    condensed = condense(method, data, ipc=numbers)
    assert condensed.images.isfinite().all()
    check_labels(condensed, [0, 1, 1, 1, 2, 2])
    assert condensed.provenance["recipe"]["ipc"] == numbers
    condensed.save(tmp_path / "a.safetensors")
    assert cs.CondensedSet.load(tmp_path / "a.safetensors").provenance == condensed.provenance
    assert repr(condensed).endswith(f"{method.name}, 1–3 per class)")
    with pytest.raises(cs.UserError, match=r"got 6 and class 'class 0' has only 5 training images"):
        condense(method, data, ipc=[6, 6, 1])
    with pytest.raises(cs.UserError, match=r"one number for each of the 3 classes, but got \[1, 2\]"):
        condense(method, data, ipc=[1, 2])


def test_equal_numbers_per_class_give_the_set_of_one_number(method: Method) -> None:
    data = tiny_data([5, 6, 7])
    assert_equal_sets(condense(method, data, ipc=(2, 2, 2)), condense(method, data, ipc=2))


class RecordProgress(NullProgress):
    """Record the totals of all loops, and the steps that are reported."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.steps: list[float] = []

    def start(self, description: str, total: int, done: int = 0) -> None:
        self.totals.append(total)

    def update(self, done: float, note: str = "") -> None:
        self.steps.append(done)


def test_progress_and_events(method: Method, tmp_path: Path) -> None:
    recipe, progress = tiny_recipe(method), RecordProgress()
    run = RunContext(compute=CPU, directory=tmp_path, job="job", progress=progress)
    method.condense(tiny_data([4, 4]), recipe, run)
    if progress.totals:  # random selection has no loop
        assert progress.steps[-1] == progress.totals[-1]
    if learns_by_iterations(method):
        assert progress.totals[-1] == num_image_steps(recipe)  # a pool of networks has its own loop
        event = run.read_events("step")[-1]
        assert event["step"] == num_image_steps(recipe)
        assert event["loss"] >= 0
        assert event["seconds"] >= 0


def test_progress_moves_within_an_iteration(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    progress = RecordProgress()
    run = RunContext(compute=CPU, classes_per_chunk=1, progress=progress)
    fields = {"outer_steps": 1} if "outer_steps" in field_names(method.recipe) else {}  # then no network is trained
    method.condense(tiny_data([4, 4]), tiny_recipe(method, **fields), run)
    if learns_by_iterations(method):
        assert any(0 < step < 1 for step in progress.steps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore", "error:running without")  # the compiler has many warnings of its own
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gpu_has_the_same_result_up_to_rounding(method: Method, precision: str) -> None:
    """Rounding errors are small compared with the learned change, but may change the selection of coresets."""
    data, recipe = tiny_data([6, 6]), tiny_recipe(method)
    on_gpu = method.condense(data, recipe, RunContext(compute=ComputeDevice.select("cuda", precision)))
    if method.is_coreset:
        return
    on_cpu, initial = condense(method, data), condense(method, data, iterations=0)
    tolerance = 0.05 if precision == "float32" else 0.3
    for name in ("images", "labels"):
        gpu, cpu, start = (getattr(condensed, name).float() for condensed in (on_gpu, on_cpu, initial))
        assert (gpu - cpu).abs().mean() <= tolerance * (cpu - start).abs().mean() + 1e-6


def test_set_can_be_evaluated_and_drawn(method: Method) -> None:
    data = tiny_data([6, 6])
    condensed = condense(method, data)
    test_set = tiny_data([6, 6], seed=1)
    scores = cs.evaluate(condensed, test_set, network=FAST["network"], num_networks=1, epochs=1, device="cpu")
    assert 0 <= scores.mean <= 1
    assert draw_grid([condensed]).width > 0


def test_condense_takes_any_field_of_the_recipe() -> None:
    data = tiny_data([5, 5])
    condensed = cs.condense(data, ipc=1, device="cpu", momentum=0.1, init="noise", **FAST)
    assert condensed.provenance["recipe"]["momentum"] == 0.1
    with pytest.raises(cs.UserError, match=r"an option of dm .*'momentun'; did you mean 'momentum'"):
        cs.condense(data, ipc=1, momentun=0.1)
    with pytest.raises(cs.UserError, match=r"method cannot be 'dmm'; did you mean 'dm'"):
        cs.condense(data, "dmm", ipc=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ipc": 0}, "ipc .* but got 0"),
        ({"ipc": 1.5}, "ipc .* but got 1.5"),
        ({"ipc": True}, "ipc .* but got True"),
        ({"ipc": (1, 0)}, "ipc .* but got 0"),
        ({"ipc": {"cat": 1}}, "ipc .* but got {'cat': 1}"),
        ({"iterations": -1}, "iterations must be .*, but got -1"),
        ({"lr": 0}, "lr must be a number above 0"),
        ({"lr": float("nan")}, "lr must be a number above 0"),
        ({"lr": 10**400}, "lr must be a number above 0, but got 1000"),
        ({"lr": 16**5000}, "lr must be a number above 0, but got"),
        ({"iterations": 10**400}, "iterations must be .* 64 bits, but got 1000"),
        ({"init": 16**5000}, "init must be text, but got"),
        ({"momentum": 1.0}, "momentum must be a number from 0 to below 1"),
        ({"batch_size": "2"}, "batch_size must be .*, but got '2'"),
        ({"lr": "1"}, "lr must be a number above 0, but got '1'"),
        ({"batch_size": 0}, "batch_size must be .*, but got 0"),
        ({"init": "reel"}, "init cannot be 'reel'; did you mean 'real'"),
        ({"augment": "blur"}, "augment.* must be one of"),
        ({"network": 3}, "network must be .*, but got"),
        ({"allow_fewer": "yes"}, "allow_fewer must be true or false"),
    ],
)
def test_invalid_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        tiny_recipe(METHODS["dm"], **fields)


def test_presets_are_those_of_the_paper() -> None:
    def preset(ipc: int, size: int) -> Any:
        return make_recipe("dm", ipc=ipc, name="cifar10", size=size, schedule="paper")

    assert (preset(50, 32).lr, preset(100, 32).lr) == (1.0, 10.0)
    assert (preset(50, 32).iterations, preset(50, 64).iterations) == (20_000, 10_000)
    assert (preset(1, 32).batch_size, preset(1, 32).momentum, preset(1, 32).init) == (256, 0.5, "real")
    assert make_protocol(name="cifar10", size=32).num_networks == 20


def test_presets_depend_on_the_mean_number_of_images_per_class() -> None:
    for ipc in ((1, 19), (150, 250)):
        for method in METHODS:
            fields = dataclasses.asdict(make_recipe(method, ipc=ipc, name="cifar10", size=32))
            mean = dataclasses.asdict(make_recipe(method, ipc=sum(ipc) // 2, name="cifar10", size=32))
            assert fields == mean | {"ipc": ipc}
    assert DSARecipe(ipc=(1, 19)).loops == DSARecipe(ipc=10).loops


def test_random_selects_all_images_equally_often() -> None:
    data = tiny_data([8, 8])
    counts = torch.zeros(16)
    for seed in range(200):
        condensed = condense(METHODS["random"], data, seed=seed)
        pixels = (condensed.images * 255).round().to(torch.uint8)
        for image, label in zip(pixels, condensed.labels, strict=True):
            index = ((data.images == image).flatten(1).all(1) & (data.labels == label)).nonzero()
            assert len(index) == 1
            counts[index[0, 0]] += 1
    assert (counts - 50).abs().max() < 30
