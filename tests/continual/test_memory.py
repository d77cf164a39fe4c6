"""The replay memory: stored classes do not change, the order of classes does not matter, repeated classes."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import condenset as cs
from condenset.continual import memory as memory_module
from condenset.continual.exemplars import ClassExemplars, merge_exemplars, split_exemplars
from condenset.data.class_selection import select_classes
from condenset.data.partition import UNPARTITIONED, PartLayout
from condenset.io.files import write_tensors
from condenset.methods import METHODS, make_recipe
from condenset.runs.context import RunContext
from condenset.training import scoring
from condenset.training.classifier import Classifier
from helpers.memories import TRAINING, tiny_memory
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import DISTINCT_METHODS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "continual.md"
NORMALIZATION: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def pixels(num: int, value: int | None = None, seed: int = 0) -> Tensor:
    drawn = torch.randint(0, 256, (num, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    return (drawn if value is None else torch.full_like(drawn, value)).to(torch.uint8)


def images_of(memory: cs.Memory, name: str) -> Tensor:
    condensed = memory.set
    return condensed.images[condensed.labels == memory.class_names.index(name)]


@pytest.mark.parametrize("method", sorted(DISTINCT_METHODS))
def test_stored_images_and_labels_do_not_change(method: str) -> None:
    data = tiny_data([6, 7, 8, 6])
    memory = tiny_memory(method)
    memory.add(select_classes(data, ["class 2", "class 0"]))
    before = memory.set
    memory.add(select_classes(data, ["class 3", "class 1"]))
    assert memory.class_names == ("class 2", "class 0", "class 3", "class 1")
    after = memory.set
    assert torch.equal(after.stored_images[:4], before.stored_images)
    assert torch.equal(after.images[: len(before)], before.images)
    if after.labels.ndim == 1:
        assert after.stored_labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    else:
        assert torch.equal(after.labels[:4, :2], before.labels)
        assert not after.labels[:4, 2:].any() and not after.labels[4:, :2].any()
    assert len(memory) == 8
    assert repr(memory) == f"Memory(8 images of 4 classes: {method}, 2 per class)"


@pytest.mark.parametrize("method", ["random", "dm", "mmd", "gmmn"])
def test_images_of_a_class_do_not_depend_on_its_step(method: str) -> None:
    data = tiny_data([9, 7, 8])
    steps = [select_classes(data, names) for names in (["class 0"], ["class 1", "class 2"])]
    first, second, together = (tiny_memory(method, seed=3) for _ in range(3))
    for step in steps:
        first.add(step)
    for step in reversed(steps):
        second.add(step)
    together.add(data)
    other = tiny_memory(method, seed=4)
    other.add(data)
    for name in data.class_names:
        assert torch.equal(images_of(first, name), images_of(second, name))
        torch.testing.assert_close(images_of(first, name), images_of(together, name))  # rounding differs with the batch
        assert not torch.equal(images_of(first, name), images_of(other, name))


@pytest.mark.parametrize("method", ["herding", "forgetting", "dc", "dsa"])
def test_methods_that_use_all_classes_depend_on_the_step_alone(method: str) -> None:
    data = tiny_data([6, 6, 6, 6])
    steps = [select_classes(data, data.class_names[:2]), select_classes(data, data.class_names[2:])]
    first, second = tiny_memory(method), tiny_memory(method)
    for one, other in zip(steps, reversed(steps), strict=True):
        first.add(one)
        second.add(other)
    assert all(torch.equal(images_of(first, name), images_of(second, name)) for name in data.class_names)


def test_classes_are_identified_by_name() -> None:
    memory = tiny_memory(**NORMALIZATION)
    memory.add(pixels(4), [57, 57, 3, 3])
    assert memory.class_names == ("3", "57")
    memory.add(pixels(4).permute(0, 2, 3, 1).numpy(), np.array(["cat", "dog", "dog", "cat"]))
    memory.add(pixels(2), torch.tensor([1, 1]), class_names=["bird", "frog"])
    assert memory.class_names == ("3", "57", "cat", "dog", "frog")
    assert memory.set.class_names == memory.class_names
    assert memory.set.mean == NORMALIZATION["mean"]


def test_allow_hflip_is_a_boolean() -> None:
    with pytest.raises(cs.UserError, match="allow_hflip must be true or false, but got 'no'"):
        tiny_memory(allow_hflip="no")


def test_first_step_defines_the_normalisation_unless_given() -> None:
    memory = tiny_memory(allow_hflip=False)
    memory.add(pixels(4, value=51), [0, 0, 1, 1])
    memory.add(pixels(4, value=255), [2, 2, 3, 3])
    assert memory.set.mean == pytest.approx((0.2,) * 3)
    assert not memory.set.allow_hflip
    memory = tiny_memory(mean=(0.1,) * 3)
    memory.add(tiny_data([4, 4], allow_hflip=False))
    assert memory.set.mean == (0.1,) * 3
    assert memory.set.std == (0.25,) * 3
    assert not memory.set.allow_hflip


def test_repeated_class_is_refused_by_default() -> None:
    data = tiny_data([4, 4, 4])
    memory = tiny_memory()
    step = memory.prepare_step(select_classes(data, ["class 1"]))
    memory.add(step)
    with pytest.raises(cs.UserError, match=r"class 'class 1' is in memory already: use on_repeat='merge'"):
        memory.add(data)
    with pytest.raises(cs.UserError, match="is in memory already"):
        memory.store(memory.set, step)
    assert memory.class_names == ("class 1",)
    # A memory has no ipc_share, which the error of cs.condense names.
    with pytest.raises(cs.UserError, match=r"3 classes have fewer training images, 'class 0' \(4\).* to use all$"):
        tiny_memory(ipc=5).add(data)


def test_merged_images_represent_all_steps_in_proportion() -> None:
    shares = []
    for seed in range(60):
        memory = tiny_memory(ipc=5, on_repeat="merge", seed=seed, **NORMALIZATION)
        memory.add(pixels(30, value=0), ["a"] * 30)
        memory.add(pixels(10, value=255), ["a"] * 10)
        memory.add(pixels(20, value=255), ["a"] * 20)
        assert len(memory) == 5
        shares.append(float(memory.set.images.mean()))
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)
    assert len(set(shares)) > 1  # fractions are rounded at random
    metadata = memory.set.provenance["memory"]
    assert metadata["num_real"] == [60]
    assert [step["images"] for step in metadata["steps"]] == [30, 10, 20]


def test_fractions_are_rounded_at_random() -> None:
    old, new = (ClassExemplars(images_ICHW=torch.full((1, 1, 1, 1), value), num_real=7) for value in (0.0, 1.0))
    merged = [merge_exemplars(f"class {number}", old, new, ipc=1, seed=0) for number in range(60)]
    means = [float(exemplars.images_ICHW.mean()) for exemplars in merged]
    assert np.mean(means) == pytest.approx(0.5, abs=0.2)


def test_merge_fills_small_classes_and_leaves_others_unchanged() -> None:
    memory = tiny_memory(ipc=4, on_repeat="merge", allow_fewer=True, **NORMALIZATION)
    memory.add(pixels(5), ["a", "b", "b", "b", "b"])
    before = images_of(memory, "b")
    memory.add(pixels(2, seed=1), ["a", "c"])
    assert memory.set.labels.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert torch.equal(images_of(memory, "b"), before)
    memory.add(pixels(5), ["b", "a", "b", "b", "b"])
    assert (memory.set.labels == 1).sum() == 4


def test_merge_of_the_same_images_selects_others() -> None:
    memory = tiny_memory(ipc=10, on_repeat="merge")
    images = pixels(40)
    memory.add(images, ["a"] * 40)
    memory.add(images, ["a"] * 40)
    assert len(memory.set.images.unique(dim=0)) > 5


def test_soft_labels_are_merged_by_class() -> None:
    data = tiny_data([6, 6, 6])
    memory = tiny_memory("ld", on_repeat="merge")
    memory.add(select_classes(data, ["class 1", "class 0"]))
    memory.add(data)
    assert memory.class_names == ("class 1", "class 0", "class 2")
    torch.testing.assert_close(memory.set.labels.sum(1), torch.ones(6))


def test_step_of_one_class_can_be_condensed_elsewhere() -> None:
    data, memory, expected = tiny_data([4]), tiny_memory(), tiny_memory()
    step = memory.prepare_step(data)
    memory.store(cs.condense(step, memory.recipe(step), seed=memory.seed, device="cpu", verbose=False), step)
    expected.add(data)
    assert torch.equal(memory.set.images, expected.set.images)


def test_saved_memory_is_evaluated_on_its_classes(tmp_path: Path) -> None:
    data, test = tiny_data([6, 6, 6]), tiny_data([5, 6, 7], seed=1)
    memory = tiny_memory("random")
    memory.add(select_classes(data, ["class 2", "class 0"]))
    memory.save(tmp_path / "a.safetensors")
    condensed = cs.CondensedSet.load(tmp_path / "a.safetensors")
    fields = {"network": "convnet(width=8, depth=2)", "num_networks": 1, "epochs": 5, "device": "cpu"}
    selected = cs.evaluate(condensed, memory.select_test(test), **fields)
    assert cs.evaluate(condensed, test, **fields).accuracies == selected.accuracies
    other = dataclasses.replace(condensed, provenance={})
    with pytest.raises(cs.UserError, match="must have the 3 classes of the test set, but it lacks 'class 1'"):
        cs.evaluate(other, test, **fields)


@pytest.mark.parametrize("schedule", [None, "fast", "paper"])
def test_a_memory_keeps_its_schedule(schedule: str | None, tmp_path: Path) -> None:
    data, path = tiny_data([6, 6]), tmp_path / "a.safetensors"
    memory = tiny_memory("dm", ipc=5, schedule=schedule)
    memory.add(data)
    memory.save(path)
    expected = make_recipe("dm", ipc=5, name=data.name, size=data.size, schedule=schedule)
    for recipe in (memory.recipe(data), cs.Memory.load(path, device="cpu").recipe(data)):
        assert (recipe.lr, recipe.average) == (expected.lr, expected.average)  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["random", "ld"])
def test_loaded_memory_continues_like_the_saved_one(method: str, tmp_path: Path) -> None:
    data = tiny_data([6, 6, 6])
    memory = tiny_memory(method, on_repeat="merge", seed=5)
    memory.add(select_classes(data, ["class 1", "class 0"]))
    memory.save(tmp_path / "a.safetensors")
    loaded = cs.Memory.load(tmp_path / "a.safetensors", device="cpu")
    for continued in (memory, loaded):
        continued.add(data)
    assert loaded.set.provenance.keys() == memory.set.provenance.keys()
    assert torch.equal(loaded.set.images, memory.set.images)
    assert torch.equal(loaded.set.labels, memory.set.labels)
    assert cs.CondensedSet.load(tmp_path / "a.safetensors").class_names == ("class 1", "class 0")
    digits = tiny_memory(method, allow_hflip=False)
    digits.add(data)
    digits.save(tmp_path / "digits.safetensors")
    assert not cs.Memory.load(tmp_path / "digits.safetensors", device="cpu").set.allow_hflip
    with pytest.raises(cs.UserError, match="exists already"):
        memory.save(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": [4]}, "number of images of each class"),
        ({"counts": [1, 3]}, "in class order"),
        ({"counts": ["x", "y"]}, "TypeError in its metadata"),
        ({"counts": [0, 4]}, "number of images of each class"),
        ({"num_real": None}, "TypeError in its metadata"),
        ({"steps": 3}, "TypeError in its metadata"),
        ({"steps": [{}]}, "KeyError in its metadata"),
        ({"steps": []}, "at least one step"),
        ({"ipc": 0}, "ipc .* but got 0"),
        ({"fields": {"mean": ["a"]}}, "mean must be a number for each channel"),
        ({"format": 99}, "newer version of condenset"),
        ({"format": "x"}, "TypeError in its metadata"),
    ],
)
def test_invalid_files_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    memory, path = tiny_memory(), tmp_path / "a.safetensors"
    memory.add(tiny_data([4, 4]))
    condensed = memory.set
    metadata = {"class_names": list(condensed.class_names), "mean": condensed.mean, "std": condensed.std, "format": 1}
    provenance = {**condensed.provenance, "memory": {**condensed.provenance["memory"], **change}}
    tensors = {"images": condensed.images, "labels": condensed.labels}
    text = json.dumps({**metadata, "provenance": provenance})
    write_tensors(path, tensors, {"condenset": text})
    with pytest.raises(cs.UserError, match=message):
        cs.Memory.load(path, device="cpu")
    cs.condense(tiny_data([4, 4]), "random", ipc=1, device="cpu").save(path, overwrite=True)
    with pytest.raises(cs.UserError, match="is a condensed set, but not a replay memory"):
        cs.Memory.load(path)


class QuickMemory(cs.Memory):
    """The memory of the guide with settings that take little time."""

    def __init__(self, **_: Any) -> None:
        super().__init__(ipc=2, method="random", device="cpu")

    def train(self, *_: Any, **__: Any) -> Classifier:
        return super().train(**TRAINING)


def test_example_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    data = tiny_data([6] * 4)
    steps = [torch.isin(data.labels, torch.tensor(labels)) for labels in ([0, 1], [2, 3])]
    namespace = {
        "cs": SimpleNamespace(Memory=QuickMemory),
        "stream": [(data.images[selected], data.labels[selected]) for selected in steps],
        "data": cs.Splits(train=data, test=data),
    }
    monkeypatch.chdir(tmp_path)
    exec(next(block for block in blocks if "cs.Memory(" in block), namespace)
    assert cs.Memory.load("memory.safetensors", device="cpu").class_names == data.class_names


def test_invalid_arguments() -> None:
    with pytest.raises(cs.UserError, match="on_repeat cannot be 'marge'; did you mean"):
        tiny_memory(on_repeat="marge")
    with pytest.raises(cs.UserError, match=r"an option of dm cannot be 'itertions'"):
        cs.Memory(ipc=2, method="dm", itertions=3)
    with pytest.raises(cs.UserError, match="a schedule must come with a method that has schedules"):
        cs.Memory(ipc=2, method="random", schedule="fast")
    with pytest.raises(cs.UserError, match="method cannot be 'md'"):
        cs.Memory(ipc=2, method="md")
    with pytest.raises(cs.UserError, match=r"ipc .* must be a whole number, 1 or more, but got \[1, 2\]"):
        tiny_memory(ipc=[1, 2])
    with pytest.raises(cs.UserError, match=r"seed must be .*, but got 0\.5"):
        tiny_memory(seed=0.5)
    with pytest.raises(cs.UserError, match=r"std must be a number above 0 for each channel \(1 or 3\), but got"):
        tiny_memory(std=(1.0, 2.0))
    memory, data = tiny_memory(), tiny_data([4, 4])
    for request in (lambda: memory.set, memory.train, lambda: memory.save("a"), lambda: memory.select_test(data)):
        with pytest.raises(cs.UserError, match="the memory is empty: add images first"):
            request()
    with pytest.raises(cs.UserError, match="labels must be given with an array of images"):
        memory.add(pixels(4))
    with pytest.raises(cs.UserError, match="a step must have at least one image, but got 0"):
        memory.add(pixels(4)[:0], [])
    with pytest.raises(cs.UserError, match="must be None for ImageData"):
        memory.add(data, data.labels)
    with pytest.raises(cs.UserError, match="class_names must be None unless labels are integers"):
        memory.add(pixels(2), ["a", "b"], class_names=["a", "b"])
    with pytest.raises(cs.UserError, match=r"labels must be in 0\.\.1, but got 2"):
        memory.add(pixels(2), [0, 2], class_names=["a", "b"])
    with pytest.raises(cs.UserError, match="class names must differ"):
        memory.add(pixels(2), [0, 1], class_names=["a", "a"])
    with pytest.raises(cs.UserError, match=r"labels must have shape \(2,\)"):
        memory.add(pixels(2), [0])
    with pytest.raises(cs.UserError, match="labels must be whole numbers or names"):
        memory.add(pixels(2), [0.5, 1.0])
    memory.add(data)
    with pytest.raises(cs.UserError, match=r"images must have the shape \(3, 8, 8\) of the earlier images"):
        memory.add(tiny_data([4, 4], size=16))
    with pytest.raises(cs.UserError, match="tiny has no images of the classes"):
        memory.select_test(dataclasses.replace(data, class_names=("x", "y")))
    with pytest.raises(cs.UserError, match="because one network is trained"):
        memory.train(num_networks=3)
    with pytest.raises(cs.UserError, match="learned_steps must be false unless a set is evaluated"):
        memory.train(**TRAINING, learned_steps=True)
    with pytest.raises(cs.UserError, match="the classes of the set must be"):
        memory.store(memory.set, memory.prepare_step(pixels(4), [0, 0, 1, 1]))
    assert memory.class_names == data.class_names


def test_network_of_a_file_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tiny_memory("dm")
    memory.add(tiny_data([4, 4]))
    monkeypatch.setattr(scoring, "MAX_PARAMETERS", 100)
    with pytest.raises(cs.UserError, match="must have at most 100 parameters, but got 906"):
        memory.train(epochs=1)
    assert memory.train(**TRAINING).class_names == ("class 0", "class 1")


streams = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=5)


@settings(max_examples=40)
@given(streams, st.integers(1, 3))
def test_any_stream_gives_a_balanced_memory(stream: list[list[int]], ipc: int) -> None:
    memory = tiny_memory(ipc=ipc, on_repeat="merge", allow_fewer=True, **NORMALIZATION)
    counts: dict[int, int] = {}
    for number, labels in enumerate(stream):
        unchanged = {name: images_of(memory, name) for name in memory.class_names if int(name) not in labels}
        # The value of the pixels encodes class and step. Pixels of 0 and 1 alone give a warning.
        memory.add(torch.stack([pixels(1, value=40 * label + number + 2)[0] for label in labels]), labels)
        for label in labels:
            counts[label] = counts.get(label, 0) + 1
        assert all(torch.equal(images_of(memory, name), images) for name, images in unchanged.items())
        condensed = memory.set
        assert {int(name) for name in memory.class_names} == counts.keys()
        for index, name in enumerate(memory.class_names):
            values = (condensed.images[condensed.labels == index, 0, 0, 0] * 255).round().int()
            assert len(values) == min(ipc, counts[int(name)])
            assert (values // 40 == int(name)).all()
            assert (values % 40 <= number + 2).all()
        num_real = condensed.provenance["memory"]["num_real"]
        assert num_real == [counts[int(name)] for name in memory.class_names]


def test_classes_do_not_share_storage() -> None:
    parts = split_exemplars(torch.zeros(6, 3, 8, 8), torch.tensor([0, 0, 1, 1, 2, 2]), [2, 2, 2], [9, 9, 9])
    num_bytes = [exemplars.images_ICHW.untyped_storage().nbytes() for exemplars in parts]
    assert num_bytes == [2 * 3 * 8 * 8 * 4] * 3


def test_a_memory_of_an_older_version_continues_with_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, data = tiny_memory("dm", allow_fewer=True), tiny_data([6, 5])
    assert memory.recipe(data).layout == UNPARTITIONED
    for name, decoder in (("class 0", "bilinear"), ("class 1", "dct")):  # the presets change between the steps
        monkeypatch.setattr(memory_module, "make_recipe", functools.partial(make_recipe, partition=2, decoder=decoder))
        memory.add(select_classes(data, [name]))
        assert memory.set.layout == PartLayout(2, "bilinear")
        assert memory.set.provenance["recipe"]["decoder"] == "bilinear"


def test_a_memory_stores_partitioned_images_of_other_methods() -> None:
    memory, data = tiny_memory("random", allow_fewer=True), tiny_data([6, 5])
    partitioned = tiny_memory("dm", partition=2, decoder="bicubic", allow_fewer=True)
    partitioned.add(select_classes(data, ["class 0"]))
    memory.store(partitioned.set, memory.prepare_step(select_classes(data, ["class 0"])))
    assert torch.equal(memory.set.images, partitioned.set.images)
    with pytest.raises(cs.UserError, match="partition 2 and decoder bicubic as in earlier steps"):
        memory.add(select_classes(data, ["class 1"]))


def test_a_memory_stores_partitioned_images(tmp_path: Path) -> None:
    memory = tiny_memory("dm", partition=2, decoder="bicubic", on_repeat="merge", allow_fewer=True)
    data = tiny_data([6, 5, 6, 4])
    memory.add(select_classes(data, ["class 0", "class 1"]))
    memory.add(select_classes(data, ["class 1", "class 2"]))
    assert (len(memory), len(memory.set), memory.set.partition) == (6, 24, 2)
    assert memory.set.stored_labels.tolist() == [0, 0, 1, 1, 2, 2]
    memory.save(tmp_path / "a.safetensors")
    loaded = cs.Memory.load(tmp_path / "a.safetensors", device="cpu", verbose=False)
    assert torch.equal(loaded.set.images, memory.set.images)
    assert loaded.train(epochs=1).class_names == memory.class_names
    step = loaded.prepare_step(select_classes(data, ["class 3"]))
    assert loaded.recipe(step).layout == PartLayout(2, "bicubic")
    for fields, message in (
        ({}, "partition 2 and decoder bicubic as in earlier steps, but got '1 and bilinear'"),
        ({"partition": 2}, "partition 2 and decoder bicubic as in earlier steps, but got '2 and bilinear'"),
    ):
        other = tiny_memory("dm", allow_fewer=True, **fields)
        with pytest.raises(cs.UserError, match=message):
            loaded.store(METHODS["dm"].condense(step, other.recipe(step), RunContext(compute=other.compute)), step)
