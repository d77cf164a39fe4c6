"""Mistakes of those who call the library from Python: each a line that says what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset.classifier import Classifier
from condenset.engine import Place
from condenset.runs import Run
from plain import tiny_data

DATA = tiny_data([6, 6])
SPLITS = cs.Splits(train=DATA, test=tiny_data([4, 4], seed=1))
SMALL = cs.condense(DATA, "random", ipc=2, device="cpu")
NETWORK = "convnet(width=4, depth=1)"
FAST: dict[str, Any] = {"epochs": 1, "device": "cpu"}
TRAINING: dict[str, Any] = {"network": NETWORK, **FAST}


class Own(nn.Module):
    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(channels * size**2, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(images.flatten(1))
        return logits


def own_classifier() -> Classifier:
    return Classifier(Own(3, 8, 2), DATA.class_names, DATA.mean, DATA.std)


WRONG_KINDS: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (cs.condense, (SPLITS,), "data must be ImageData, such as cs.load('digits').train, but got Splits"),
    (cs.condense, ("digits",), "data must be ImageData, such as cs.load('digits').train, but got 'digits'"),
    (cs.condense, (np.zeros((2, 3, 8, 8)),), "data must be ImageData, .* but got ndarray"),
    (cs.condense, (SMALL,), "data must be ImageData, .* but got CondensedSet"),
    (cs.evaluate, (SMALL, SPLITS), "test must be ImageData, such as cs.load('digits').test, but got Splits"),
    (cs.evaluate, ("x.safetensors", DATA), "the set must be a CondensedSet, .* or ImageData, but got 'x.safetensors'"),
    (cs.evaluate, (DATA, SMALL), "test must be ImageData, .* but got CondensedSet"),
    (cs.train_pool, (SPLITS, "pool"), "data must be ImageData, .* but got Splits"),
    (cs.split_off, (SPLITS,), "data must be ImageData, .* but got Splits"),
    (cs.load, (3,), "a dataset must be a name or a path, but got 3"),
    (cs.search_space, ("a",), "size must be a whole number, 1 or more, but got 'a'"),
    (cs.rank, (None, SMALL, DATA), "architectures must be a list of specs or builders, but got None"),
    (cs.rank, (Own, SMALL, DATA), "architectures must be a list of specs or builders, but got the class Own"),
    (cs.rank, (nn.Sequential(Own(3, 8, 2)), SMALL, DATA), "must be a list of specs or builders, but got Sequential"),
    (cs.rank, ([Own(3, 8, 2)], SMALL, DATA), "a spec or a builder, .* but got a network that is built already: Own"),
    (cs.rank, (["mlp"], SMALL, "digits"), "data must be ImageData to validate on or Splits, .* but got 'digits'"),
    (cs.rank, (["mlp"], SPLITS, DATA), "the set must be a CondensedSet, .* but got Splits"),
    (own_classifier().accuracy, (SPLITS,), "test must be ImageData, .* but got Splits"),
]
NEEDED: dict[Callable[..., Any], dict[str, Any]] = {cs.condense: {"ipc": 1}, cs.train_pool: {"num": 1}}


@pytest.mark.parametrize(("call", "given", "message"), WRONG_KINDS)
def test_what_is_of_the_wrong_kind_is_told_what_is_wanted(
    call: Callable[..., Any], given: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(cs.UserError, match=message.replace("(", r"\(").replace(")", r"\)")) as caught:
        call(*given, **NEEDED.get(call, {}))
    assert "\n" not in str(caught.value)


def a_memory(**options: Any) -> cs.Memory:
    return cs.Memory(ipc=1, method="random", device="cpu", **options)


def seeded(folder: Path) -> dict[str, Callable[[Any], Any]]:
    """Everything that takes a seed, and what should come out the same for the same seed."""
    known = a_memory(seed=0)
    known.add(DATA)
    return {
        "condense": lambda seed: cs.condense(DATA, "random", ipc=1, seed=seed, device="cpu").images.tolist(),
        "evaluate": lambda seed: cs.evaluate(SMALL, DATA, nets=1, seed=seed, **TRAINING).protocol,
        "rank": lambda seed: cs.rank(["mlp"], SMALL, DATA, seed=seed, **FAST).protocol,
        "split_off": lambda seed: cs.split_off(DATA, 0.2, seed=seed)[1].fingerprint,
        "train_pool": lambda seed: cs.train_pool(DATA, folder, num=1, seed=seed, **TRAINING).fingerprint,
        "Memory": lambda seed: a_memory(seed=seed).seed,
        "Memory.train": lambda seed: [each.tolist() for each in known.train(NETWORK, epochs=1, seed=seed).parameters()],
        "Run": lambda seed: Run(seed=seed).seed,
    }


@pytest.mark.parametrize("name", seeded(Path()))
def test_a_seed_is_a_whole_number_wherever_it_enters(name: str, tmp_path: Path) -> None:
    call = seeded(tmp_path / "pool")[name]
    for wrong in ("a", 1.5, True, np.float64(2), *([] if name == "Memory.train" else [None])):
        with pytest.raises(cs.UserError, match="seed must be a whole number, but got"):
            call(wrong)
    assert call(np.int64(7)) == call(7)


def test_numpys_whole_numbers_are_as_good_in_a_recipe() -> None:
    small = cs.condense(DATA, "herding", ipc=np.int64(1), epochs=np.int32(1), network=NETWORK, device="cpu")  # type: ignore[arg-type]
    assert {type(small.provenance["recipe"][name]) for name in ("ipc", "epochs")} == {int}


def test_a_device_may_be_a_torch_device(tmp_path: Path) -> None:
    device = torch.device("cpu")
    small = cs.condense(DATA, "random", ipc=1, device=device)
    assert 0 <= cs.evaluate(small, DATA, nets=1, network=NETWORK, epochs=1, device=device).mean <= 1
    assert cs.rank(["mlp"], small, DATA, epochs=1, device=device).rows
    cs.train_pool(DATA, tmp_path, num=1, network=NETWORK, epochs=1, device=device)
    assert cs.Memory(ipc=1, device=device).place == Place.best("cpu") == Place.best(torch.device("cpu"))
    with pytest.raises(cs.UserError, match="device must be one of cpu, cuda, mps, but got 'meta'"):
        Place.best(torch.device("meta"))


def test_a_classifier_takes_bytes_as_it_takes_floats() -> None:
    trained = own_classifier()
    logits = trained(DATA.images)
    torch.testing.assert_close(logits, trained(DATA.images.float() / 255))
    assert logits.isfinite().all()
    assert [DATA.class_names[number] for number in logits.argmax(1).tolist()] == trained.predict(DATA.images)
    with pytest.raises(cs.UserError, match=r"pixels must be uint8, or floats in 0\.\.1, but got 'torch.int64'"):
        trained(DATA.images.long())


def other_names(data: cs.ImageData, name: str, class_names: tuple[str, ...]) -> cs.ImageData:
    return cs.from_arrays(data.images, data.labels, name=name, class_names=class_names, mean=data.mean, std=data.std)


def test_classes_that_are_numbers_on_one_side_are_matched_by_order_with_a_warning() -> None:
    numbered, named = other_names(DATA, "digits", ("0", "1")), other_names(DATA, "pets", ("cat", "dog"))
    small = cs.condense(numbered, "random", ipc=1, device="cpu")
    said = "the set is of 'digits', not of 'pets', .* taken as the same in their order"
    with pytest.warns(UserWarning, match=said) as warned:
        cs.evaluate(small, named, nets=1, **TRAINING)
    assert len(warned) == 1 and "\n" not in str(warned[0].message)
    cs.evaluate(small, other_names(DATA, "others", ("0", "1")), nets=1, **TRAINING)  # warnings are errors here
    cs.evaluate(small, other_names(DATA, "digits", ("zero", "one")), nets=1, **TRAINING)
