"""Test that wrong arguments of the Python API give one-line errors that state what is expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.runs.context import RunContext
from condenset.training.classifier import Classifier
from helpers.reference_dm import tiny_data

DATA = tiny_data([6, 6])
VAL = tiny_data([4, 4], seed=1)
SPLITS = cs.Splits(train=DATA, test=VAL)
TRAIN_SET = cs.condense(DATA, "random", ipc=2, device="cpu")
NETWORK = "convnet(width=4, depth=1)"
FAST: dict[str, Any] = {"epochs": 1, "device": "cpu"}
TRAINING: dict[str, Any] = {"network": NETWORK, **FAST}


class LinearNet(nn.Module):
    """A user's own network."""

    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.last = nn.Linear(channels * size**2, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.last(images.flatten(1))
        return logits


def linear_classifier() -> Classifier:
    return Classifier(LinearNet(3, 8, 2), DATA.class_names, DATA.mean, DATA.std)


WRONG_TYPES: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (cs.condense, (SPLITS,), "data must be ImageData, such as cs.load('digits').train, but got Splits"),
    (cs.condense, ("digits",), "data must be ImageData, such as cs.load('digits').train, but got 'digits'"),
    (cs.condense, (np.zeros((2, 3, 8, 8)),), "data must be ImageData, .* but got ndarray"),
    (cs.condense, (TRAIN_SET,), "data must be ImageData, .* but got CondensedSet"),
    (cs.evaluate, (TRAIN_SET, SPLITS), "test_set must be ImageData, such as cs.load('digits').test, but got Splits"),
    (cs.evaluate, ("x.safetensors", DATA), "train_set must be a CondensedSet .* or ImageData, but got 'x.safetensors'"),
    (cs.evaluate, (DATA, TRAIN_SET), "test_set must be ImageData, .* but got CondensedSet"),
    (cs.train_pool, (SPLITS, "pool"), "data must be ImageData, .* but got Splits"),
    (cs.train_val_split, (SPLITS,), "data must be ImageData, .* but got Splits"),
    (cs.load, (3,), "a dataset must be a name or a path, but got 3"),
    (cs.search_space, ("a",), "size must be a whole number, 1 or more, but got 'a'"),
    (cs.rank, (None, TRAIN_SET, VAL), "architectures must be a list of specs or builders, but got None"),
    (
        cs.rank,
        (LinearNet, TRAIN_SET, VAL),
        "must be a list of specs or builders, but got the class LinearNet",
    ),
    (
        cs.rank,
        (nn.Sequential(LinearNet(3, 8, 2)), TRAIN_SET, VAL),
        "must be a list of specs or builders, but got Sequential",
    ),
    (
        cs.rank,
        ([LinearNet(3, 8, 2)], TRAIN_SET, VAL),
        "but got a network that is already built: LinearNet",
    ),
    (cs.rank, (["mlp"], TRAIN_SET, "digits"), "data must be ImageData for validation, or Splits .* but got 'digits'"),
    (cs.rank, (["mlp"], SPLITS, DATA), "train_set must be a CondensedSet .* but got Splits"),
    (linear_classifier().accuracy, (SPLITS,), "test_set must be ImageData, .* but got Splits"),
]
REQUIRED: dict[Callable[..., Any], dict[str, Any]] = {cs.condense: {"ipc": 1}, cs.train_pool: {"num_networks": 1}}


@pytest.mark.parametrize(("call", "arguments", "message"), WRONG_TYPES)
def test_an_argument_of_the_wrong_type_is_refused(
    call: Callable[..., Any], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(cs.UserError, match=message.replace("(", r"\(").replace(")", r"\)")) as caught:
        call(*arguments, **REQUIRED.get(call, {}))
    assert "\n" not in str(caught.value)


def random_memory(**options: Any) -> cs.Memory:
    return cs.Memory(ipc=1, method="random", device="cpu", **options)


def seeded_calls(directory: Path) -> dict[str, Callable[[Any], Any]]:
    """Return every public call that takes a seed, with a result that depends only on the seed."""
    memory = random_memory(seed=0)
    memory.add(DATA)
    return {
        "condense": lambda seed: cs.condense(DATA, "random", ipc=1, seed=seed, device="cpu").images.tolist(),
        "evaluate": lambda seed: cs.evaluate(TRAIN_SET, SPLITS.test, num_networks=1, seed=seed, **TRAINING).protocol,
        "rank": lambda seed: cs.rank(["mlp"], TRAIN_SET, VAL, seed=seed, **FAST).protocol,
        "train_val_split": lambda seed: cs.train_val_split(DATA, 0.2, seed=seed)[1].fingerprint,
        "train_pool": lambda seed: cs.train_pool(DATA, directory, num_networks=1, seed=seed, **TRAINING).fingerprint,
        "Memory": lambda seed: random_memory(seed=seed).seed,
        "Memory.train": lambda seed: [
            parameter.tolist() for parameter in memory.train(NETWORK, epochs=1, seed=seed).parameters()
        ],
        "RunContext": lambda seed: RunContext(seed=seed).seed,
    }


@pytest.mark.parametrize("name", seeded_calls(Path()))
def test_a_seed_must_be_a_whole_number(name: str, tmp_path: Path) -> None:
    call = seeded_calls(tmp_path / "pool")[name]
    for value in ("a", 1.5, True, np.float64(2), *([] if name == "Memory.train" else [None])):
        with pytest.raises(cs.UserError, match="seed must be a whole number, but got"):
            call(value)
    assert call(np.int64(7)) == call(7)


def test_numpy_integers_are_accepted_in_a_recipe() -> None:
    condensed = cs.condense(DATA, "herding", ipc=np.int64(1), epochs=np.int32(1), network=NETWORK, device="cpu")  # type: ignore[arg-type]
    assert {type(condensed.provenance["recipe"][name]) for name in ("ipc", "epochs")} == {int}


def test_a_device_may_be_a_torch_device(tmp_path: Path) -> None:
    device = torch.device("cpu")
    condensed = cs.condense(DATA, "random", ipc=1, device=device)
    assert 0 <= cs.evaluate(condensed, SPLITS.test, num_networks=1, network=NETWORK, epochs=1, device=device).mean <= 1
    assert cs.rank(["mlp"], condensed, VAL, epochs=1, device=device).rows
    cs.train_pool(DATA, tmp_path, num_networks=1, network=NETWORK, epochs=1, device=device)
    assert (
        cs.Memory(ipc=1, device=device).compute
        == ComputeDevice.select("cpu")
        == ComputeDevice.select(torch.device("cpu"))
    )
    with pytest.raises(cs.UserError, match="device must be one of cpu, cuda, mps, but got 'meta'"):
        ComputeDevice.select(torch.device("meta"))


def test_a_classifier_accepts_uint8_and_float_pixels() -> None:
    classifier = linear_classifier()
    logits = classifier(DATA.images)
    torch.testing.assert_close(logits, classifier(DATA.images.float() / 255))
    assert logits.isfinite().all()
    assert [DATA.class_names[number] for number in logits.argmax(1).tolist()] == classifier.predict(DATA.images)
    with pytest.raises(cs.UserError, match=r"pixels must be uint8, or floats in 0\.\.1, but got 'torch.int64'"):
        classifier(DATA.images.long())


def rename_classes(data: cs.ImageData, name: str, class_names: tuple[str, ...]) -> cs.ImageData:
    return cs.from_arrays(data.images, data.labels, name=name, class_names=class_names, mean=data.mean, std=data.std)


def test_numbered_classes_are_matched_by_order_with_a_warning() -> None:
    numbered, test = rename_classes(DATA, "digits", ("0", "1")), SPLITS.require_test()
    named = rename_classes(test, "pets", ("cat", "dog"))
    condensed = cs.condense(numbered, "random", ipc=1, device="cpu")
    message = "the set was made from 'digits', not from 'pets', .* the classes are matched by position"
    with pytest.warns(UserWarning, match=message) as warned:
        cs.evaluate(condensed, named, num_networks=1, **TRAINING)
    assert len(warned) == 1 and "\n" not in str(warned[0].message)
    with pytest.warns(UserWarning, match=message):
        cs.evaluate(numbered, named, num_networks=1, **TRAINING)
    cs.evaluate(condensed, rename_classes(test, "others", ("0", "1")), num_networks=1, **TRAINING)  # no warning
    cs.evaluate(condensed, rename_classes(test, "digits", ("zero", "one")), num_networks=1, **TRAINING)
