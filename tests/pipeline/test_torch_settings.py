"""The caller's settings of PyTorch do not change results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import condenset as cs

QUICK = {"network": "convnet(width=4, depth=1)", "device": "cpu", "verbose": False}
Settings = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def compute_results(directory: Path) -> list[torch.Tensor]:
    """Return results of the functions of the Python interface."""
    random = np.random.default_rng(0)
    data = cs.from_arrays(random.integers(0, 255, (8, 8, 8)).astype(np.uint8), np.arange(8) % 2)
    condensed = cs.condense(data, "dm", ipc=1, iterations=1, **QUICK)
    test_set = dataclasses.replace(data, images=255 - data.images)
    scores = cs.evaluate(condensed, test_set, num_networks=1, epochs=1, **QUICK)
    memory = cs.Memory(ipc=1, method="random", device="cpu", verbose=False)
    memory.add(data)
    classifier = memory.train("convnet(width=4, depth=1)", epochs=1)
    train, _ = cs.train_val_split(data, 0.5)
    ranking = cs.rank([QUICK["network"]], condensed, test_set, epochs=1, device="cpu", verbose=False)
    pool = cs.train_pool(data, directory, num_networks=1, epochs=1, **QUICK)
    predictions = [float(name) for name in classifier.predict(data)]
    accuracies = [scores.mean, classifier.accuracy(data), ranking.best.accuracy]
    accuracies += [state.accuracy for state in pool.group("all")]
    numbers = torch.tensor([*predictions, *accuracies], dtype=torch.float64, device="cpu")
    return [condensed.images.clone(), train.images, numbers]


@pytest.mark.parametrize("settings", [torch.no_grad, torch.inference_mode, default_device, default_dtype])
def test_settings_of_the_caller_do_not_change_results(settings: Settings, tmp_path: Path) -> None:
    expected = compute_results(tmp_path / "expected")
    before = torch.get_default_dtype()
    with settings():
        results = compute_results(tmp_path / "results")
    assert all(torch.equal(*pair) for pair in zip(results, expected, strict=True))
    assert torch.get_default_dtype() == before and torch.is_grad_enabled()


def make_set(**fields: Any) -> cs.CondensedSet:
    values = {"images": torch.zeros(2, 1, 8, 8), "labels": torch.tensor([0, 1]), "class_names": ("a", "b")}
    return cs.CondensedSet(**{**values, "mean": (0.5,), "std": (0.2,), **fields})


def make_special_tensors() -> list[torch.Tensor]:
    """Return images as sparse, meta and quantized tensors."""
    images = torch.zeros(2, 1, 8, 8)
    return [images.to_sparse(), images.to("meta"), torch.quantize_per_tensor(images, 1 / 255, 0, torch.quint8)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of quantized tensors
@pytest.mark.parametrize("number", range(3))
def test_tensors_without_dense_values_are_refused(number: int) -> None:
    images = make_special_tensors()[number]
    with pytest.raises(cs.UserError, match=r"^images must be a dense tensor, not sparse, quantized, meta or nested"):
        cs.from_arrays(images, [0, 1])
    with pytest.raises(cs.UserError, match=r"^images must be a dense tensor"):
        make_set(images=images)
    with pytest.raises(cs.UserError, match=r"^labels must be a dense tensor"):
        cs.from_arrays(torch.zeros(2, 8, 8), images[:, 0, 0, 0] if number else torch.tensor([0, 1]).to_sparse())


@pytest.mark.parametrize("class_names", [5, "ab"])
def test_class_names_must_be_a_list(class_names: object) -> None:
    rule = r"^class_names must be a list of names, but got"
    with pytest.raises(cs.UserError, match=rule):
        cs.from_arrays(torch.zeros(2, 8, 8), [0, 1], class_names=class_names)  # type: ignore[arg-type]
    with pytest.raises(cs.UserError, match=rule):
        make_set(class_names=class_names)
