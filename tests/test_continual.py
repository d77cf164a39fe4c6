"""The memory: stored classes stay, classes do not depend on their order, and what comes again is refused or merged."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import condenset as cs
from condenset import evaluation
from condenset.classifier import Classifier
from condenset.kept import Kept, in_parts, merged
from condenset.methods import METHODS
from condenset.types import of_classes
from plain import tiny_data
from remembered import TRAINING, tiny_memory

GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"
KNOWN: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.25,) * 3}


def pixels(num: int, value: int | None = None, seed: int = 0) -> Tensor:
    drawn = torch.randint(0, 256, (num, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    return (drawn if value is None else torch.full_like(drawn, value)).to(torch.uint8)


def images_of(memory: cs.Memory, name: str) -> Tensor:
    small = memory.set
    return small.images[small.labels == memory.class_names.index(name)]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_is_stored_is_not_touched_and_labels_stay(method: str) -> None:
    data = tiny_data([6, 7, 8, 6])
    memory = tiny_memory(method)
    memory.add(of_classes(data, ["class 2", "class 0"]))
    before = memory.set
    memory.add(of_classes(data, ["class 3", "class 1"]))
    assert memory.class_names == ("class 2", "class 0", "class 3", "class 1")
    after = memory.set
    assert torch.equal(after.images[:4], before.images)
    if after.labels.ndim == 1:
        assert after.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    else:
        assert torch.equal(after.labels[:4, :2], before.labels)
        assert not after.labels[:4, 2:].any() and not after.labels[4:, :2].any()
    assert len(memory) == 8
    assert repr(memory) == f"Memory(8 images of 4 classes: {method}, 2 a class)"


@pytest.mark.parametrize("method", ["random", "dm", "mmd"])
def test_a_class_comes_out_the_same_whenever_it_comes(method: str) -> None:
    data = tiny_data([9, 7, 8])
    steps = [of_classes(data, names) for names in (["class 0"], ["class 1", "class 2"])]
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
        torch.testing.assert_close(images_of(first, name), images_of(together, name))  # rounding: other batches
        assert not torch.equal(images_of(first, name), images_of(other, name))


@pytest.mark.parametrize("method", ["herding", "forgetting", "dc", "dsa"])
def test_what_learns_from_the_step_depends_on_the_step_alone(method: str) -> None:
    data = tiny_data([6, 6, 6, 6])
    steps = [of_classes(data, data.class_names[:2]), of_classes(data, data.class_names[2:])]
    first, second = tiny_memory(method), tiny_memory(method)
    for one, other in zip(steps, reversed(steps), strict=True):
        first.add(one)
        second.add(other)
    assert all(torch.equal(images_of(first, name), images_of(second, name)) for name in data.class_names)


def test_classes_are_known_by_name_whatever_labels_are() -> None:
    memory = tiny_memory(**KNOWN)
    memory.add(pixels(4), [57, 57, 3, 3])
    assert memory.class_names == ("3", "57")
    memory.add(pixels(4).permute(0, 2, 3, 1).numpy(), np.array(["cat", "dog", "dog", "cat"]))
    memory.add(pixels(2), torch.tensor([1, 1]), class_names=["bird", "frog"])
    assert memory.class_names == ("3", "57", "cat", "dog", "frog")
    assert memory.set.class_names == memory.class_names
    assert memory.set.mean == KNOWN["mean"]


def test_the_first_data_decide_the_normalisation_unless_it_is_given() -> None:
    memory = tiny_memory(can_flip=False)
    memory.add(pixels(4, value=51), [0, 0, 1, 1])
    memory.add(pixels(4, value=255), [2, 2, 3, 3])
    assert memory.set.mean == pytest.approx((0.2,) * 3)
    assert not memory.set.can_flip
    memory = tiny_memory(mean=(0.1,) * 3)
    memory.add(tiny_data([4, 4], can_flip=False))
    assert memory.set.mean == (0.1,) * 3
    assert memory.set.std == (0.25,) * 3
    assert not memory.set.can_flip


def test_a_class_that_comes_again_is_refused_whole_unless_asked() -> None:
    data = tiny_data([4, 4, 4])
    memory = tiny_memory()
    step = memory.arriving(of_classes(data, ["class 1"]))
    memory.add(step)
    with pytest.raises(cs.UserError, match=r"class 'class 1' is in memory already; on_repeat='merge'"):
        memory.add(data)
    with pytest.raises(cs.UserError, match="is in memory already"):
        memory.keep(memory.set, step)
    assert memory.class_names == ("class 1",)
    with pytest.raises(cs.UserError, match="class 'class 0' has 4 images"):
        tiny_memory(ipc=5).add(data)


def test_merged_images_stand_for_all_that_was_seen_in_equal_shares() -> None:
    shares = []
    for seed in range(60):
        memory = tiny_memory(ipc=5, on_repeat="merge", seed=seed, **KNOWN)
        memory.add(pixels(30, value=0), ["a"] * 30)
        memory.add(pixels(10, value=255), ["a"] * 10)
        memory.add(pixels(20, value=255), ["a"] * 20)
        assert len(memory) == 5
        shares.append(float(memory.set.images.mean()))
    assert np.mean(shares) == pytest.approx(0.5, abs=0.06)
    assert len(set(shares)) > 1  # fractions are rounded by lot
    about = memory.set.provenance["memory"]
    assert about["seen"] == [60] and [step["images"] for step in about["steps"]] == [30, 10, 20]


def test_half_an_image_is_decided_by_lot() -> None:
    kept = [Kept(images_ICHW=torch.full((1, 1, 1, 1), value), seen=7) for value in (0.0, 1.0)]
    means = [float(merged(f"class {number}", *kept, ipc=1, seed=0).images_ICHW.mean()) for number in range(60)]
    assert np.mean(means) == pytest.approx(0.5, abs=0.2)


def test_a_merge_fills_up_what_is_not_full_and_leaves_others_alone() -> None:
    memory = tiny_memory(ipc=4, on_repeat="merge", allow_fewer=True, **KNOWN)
    memory.add(pixels(5), ["a", "b", "b", "b", "b"])
    before = images_of(memory, "b")
    memory.add(pixels(2, seed=1), ["a", "c"])
    assert memory.set.labels.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert torch.equal(images_of(memory, "b"), before)
    memory.add(pixels(5), ["b", "a", "b", "b", "b"])
    assert (memory.set.labels == 1).sum() == 4


def test_a_merge_of_the_same_images_draws_others() -> None:
    memory = tiny_memory(ipc=10, on_repeat="merge")
    images = pixels(40)
    memory.add(images, ["a"] * 40)
    memory.add(images, ["a"] * 40)
    assert len(memory.set.images.unique(dim=0)) > 5


def test_soft_labels_are_merged_by_class() -> None:
    data = tiny_data([6, 6, 6])
    memory = tiny_memory("ld", on_repeat="merge")
    memory.add(of_classes(data, ["class 1", "class 0"]))
    memory.add(data)
    assert memory.class_names == ("class 1", "class 0", "class 2")
    torch.testing.assert_close(memory.set.labels.sum(1), torch.ones(6))


def test_a_memorys_file_is_scored_on_the_classes_that_it_has(tmp_path: Path) -> None:
    data, test = tiny_data([6, 6, 6]), tiny_data([5, 6, 7], seed=1)
    memory = tiny_memory("random")
    memory.add(of_classes(data, ["class 2", "class 0"]))
    memory.save(tmp_path / "a.safetensors")
    small = cs.CondensedSet.load(tmp_path / "a.safetensors")
    fields = {"network": "convnet(width=8, depth=2)", "nets": 1, "epochs": 5, "device": "cpu"}
    assert cs.evaluate(small, test, **fields).accuracies == cs.evaluate(small, memory.seen(test), **fields).accuracies
    other = dataclasses.replace(small, provenance={})
    with pytest.raises(cs.UserError, match="must have the test data's 3 classes, but got 2"):
        cs.evaluate(other, test, **fields)


@pytest.mark.parametrize("method", ["random", "ld"])
def test_saved_and_loaded_it_goes_on_alike(method: str, tmp_path: Path) -> None:
    data = tiny_data([6, 6, 6])
    memory = tiny_memory(method, on_repeat="merge", seed=5)
    memory.add(of_classes(data, ["class 1", "class 0"]))
    memory.save(tmp_path / "a.safetensors")
    back = cs.Memory.load(tmp_path / "a.safetensors", device="cpu")
    for each in (memory, back):
        each.add(data)
    assert back.set.provenance.keys() == memory.set.provenance.keys()
    assert torch.equal(back.set.images, memory.set.images)
    assert torch.equal(back.set.labels, memory.set.labels)
    assert cs.CondensedSet.load(tmp_path / "a.safetensors").class_names == ("class 1", "class 0")
    digits = tiny_memory(method, can_flip=False)
    digits.add(data)
    digits.save(tmp_path / "digits.safetensors")
    assert not cs.Memory.load(tmp_path / "digits.safetensors", device="cpu").set.can_flip
    with pytest.raises(cs.UserError, match="exists already"):
        memory.save(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": [4]}, "must say what it holds"),
        ({"counts": [1, 3]}, "order of classes"),
        ({"counts": ["x", "y"]}, "TypeError in its metadata"),
        ({"counts": [0, 4]}, "must say what it holds"),
        ({"seen": None}, "TypeError in its metadata"),
        ({"steps": 3}, "TypeError in its metadata"),
        ({"steps": [{}]}, "KeyError in its metadata"),
        ({"steps": []}, "must say when"),
        ({"ipc": 0}, "ipc .* but got 0"),
        ({"fields": {"mean": ["a"]}}, "mean must be a number for each channel"),
        ({"format": 99}, "newer condenset"),
        ({"format": "x"}, "TypeError in its metadata"),
    ],
)
def test_a_file_that_is_none_of_a_memory_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    memory, path = tiny_memory(), tmp_path / "a.safetensors"
    memory.add(tiny_data([4, 4]))
    small = memory.set
    meta = {"class_names": list(small.class_names), "mean": small.mean, "std": small.std, "format": 1}
    provenance = {**small.provenance, "memory": {**small.provenance["memory"], **change}}
    tensors = {"images": small.images, "labels": small.labels}
    text = json.dumps({**meta, "provenance": provenance})
    path.write_bytes(safetensors.torch.save(tensors, metadata={"condenset": text}))
    with pytest.raises(cs.UserError, match=message):
        cs.Memory.load(path, device="cpu")
    cs.condense(tiny_data([4, 4]), "random", ipc=1, device="cpu").save(path, overwrite=True)
    with pytest.raises(cs.UserError, match="is a set, but not of a memory"):
        cs.Memory.load(path)


class Quick(cs.Memory):
    """The guide's memory, but for the time it takes."""

    def __init__(self, **_: Any) -> None:
        super().__init__(ipc=2, method="random", device="cpu")

    def train(self, *_: Any, **__: Any) -> Classifier:
        return super().train(**TRAINING)


def test_the_guide_s_example_runs_where_classes_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    data = tiny_data([6] * 4)
    steps = [torch.isin(data.labels, torch.tensor(labels)) for labels in ([0, 1], [2, 3])]
    known = {
        "cs": SimpleNamespace(Memory=Quick),
        "stream": [(data.images[mine], data.labels[mine]) for mine in steps],
        "data": cs.Splits(train=data, test=data),
    }
    monkeypatch.chdir(tmp_path)
    exec(next(block for block in blocks if "cs.Memory(" in block), known)
    assert cs.Memory.load("memory.safetensors", device="cpu").class_names == data.class_names


def test_mistakes_get_one_line() -> None:
    with pytest.raises(cs.UserError, match="on_repeat must be one of refuse, merge, but got 'marge'; did you mean"):
        tiny_memory(on_repeat="marge")
    with pytest.raises(cs.UserError, match=r"an option of dm must be one of .* but got 'itertions'"):
        cs.Memory(ipc=2, method="dm", itertions=3)
    with pytest.raises(cs.UserError, match="method must be one of"):
        cs.Memory(ipc=2, method="md")
    with pytest.raises(cs.UserError, match=r"seed must be a whole number, but got 0\.5"):
        tiny_memory(seed=0.5)
    with pytest.raises(cs.UserError, match=r"std must be a number above 0 for each channel \(1 or 3\), but got"):
        tiny_memory(std=(1.0, 2.0))
    memory, data = tiny_memory(), tiny_data([4, 4])
    for ask in (lambda: memory.set, memory.train, lambda: memory.save("a"), lambda: memory.seen(data)):
        with pytest.raises(cs.UserError, match="the memory is empty: add images first"):
            ask()
    with pytest.raises(cs.UserError, match="labels must come with the images"):
        memory.add(pixels(4))
    with pytest.raises(cs.UserError, match="a step must have images, but got 0"):
        memory.add(pixels(4)[:0], [])
    with pytest.raises(cs.UserError, match="an ImageData has its own labels"):
        memory.add(data, data.labels)
    with pytest.raises(cs.UserError, match="class_names name labels that are whole numbers"):
        memory.add(pixels(2), ["a", "b"], class_names=["a", "b"])
    with pytest.raises(cs.UserError, match=r"labels must lie in 0\.\.1, but got 2"):
        memory.add(pixels(2), [0, 2], class_names=["a", "b"])
    with pytest.raises(cs.UserError, match="class names must differ"):
        memory.add(pixels(2), [0, 1], class_names=["a", "a"])
    with pytest.raises(cs.UserError, match=r"labels must have shape \(2,\)"):
        memory.add(pixels(2), [0])
    with pytest.raises(cs.UserError, match="labels must be whole numbers or names"):
        memory.add(pixels(2), [0.5, 1.0])
    memory.add(data)
    with pytest.raises(cs.UserError, match="images must have the shape of those before"):
        memory.add(tiny_data([4, 4], size=16))
    with pytest.raises(cs.UserError, match="no image of tiny is of one of the classes"):
        memory.seen(dataclasses.replace(data, class_names=("x", "y")))
    with pytest.raises(cs.UserError, match="one network is trained"):
        memory.train(nets=3)
    with pytest.raises(cs.UserError, match="own_steps must be false: only a score is by"):
        memory.train(**TRAINING, own_steps=True)
    with pytest.raises(cs.UserError, match="the set's classes must be"):
        memory.keep(memory.set, memory.arriving(pixels(4), [0, 0, 1, 1]))
    assert memory.class_names == data.class_names


def test_a_network_that_only_its_file_names_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tiny_memory("dm")
    memory.add(tiny_data([4, 4]))
    monkeypatch.setattr(evaluation, "MOST_PARAMETERS", 100)
    with pytest.raises(cs.UserError, match="parameters: above 100 name the network"):
        memory.train(epochs=1)
    assert memory.train(**TRAINING).class_names == ("class 0", "class 1")


streams = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(streams, st.integers(1, 3))
def test_any_stream_leaves_a_balanced_memory_of_what_came(stream: list[list[int]], ipc: int) -> None:
    memory = tiny_memory(ipc=ipc, on_repeat="merge", allow_fewer=True, **KNOWN)
    counts: dict[int, int] = {}
    for number, labels in enumerate(stream):
        others = {name: images_of(memory, name) for name in memory.class_names if int(name) not in labels}
        marked = torch.stack([pixels(1, value=40 * label + number)[0] for label in labels])
        memory.add(marked, labels)
        for label in labels:
            counts[label] = counts.get(label, 0) + 1
        assert all(torch.equal(images_of(memory, name), images) for name, images in others.items())
        small = memory.set
        assert {int(name) for name in memory.class_names} == counts.keys()
        for place, name in enumerate(memory.class_names):
            held = (small.images[small.labels == place, 0, 0, 0] * 255).round().int()
            assert len(held) == min(ipc, counts[int(name)])
            assert (held // 40 == int(name)).all() and (held % 40 <= number).all()
        assert small.provenance["memory"]["seen"] == [counts[int(name)] for name in memory.class_names]


def test_a_class_does_not_keep_the_images_of_others_alive() -> None:
    parts = in_parts(torch.zeros(6, 3, 8, 8), torch.tensor([0, 0, 1, 1, 2, 2]), [2, 2, 2], [9, 9, 9])
    assert all(each.images_ICHW.untyped_storage().nbytes() == 2 * 3 * 8 * 8 * 4 for each in parts)
