"""ZCA whitening: its definition, the way back, its place in set files, and the images that networks get."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

import condenset as cs
from condenset.data.stores.class_store import ClassStore
from condenset.data.stores.streamed_store import StreamedStore, stored_bytes
from condenset.data.whitening import EPSILON, Whitening, fit_whitening
from condenset.engine import ComputeDevice
from condenset.io.files import write_tensors
from condenset.training.dataset import DeviceDataset
from condenset.training.evaluation import evaluation_hash, normalize_like
from helpers.imports import tiny_import
from helpers.reference_dm import tiny_data

CPU = torch.device("cpu")


def whitened_data(counts: list[int], *, size: int = 4, seed: int = 0) -> cs.ImageData:
    data = tiny_data(counts, size=size, seed=seed)
    return dataclasses.replace(data, whitening=fit_whitening(data.images, CPU))


def reference_zca(pixels_NCHW: Tensor) -> np.ndarray:
    """Whiten images by the eigendecomposition of their covariance, as kornia defines it."""
    rows = pixels_NCHW.double().flatten(1).numpy()
    centred = rows - rows.mean(0)
    variances, vectors = np.linalg.eigh(np.cov(rows, rowvar=False))
    return (centred @ vectors / np.sqrt(variances + EPSILON)) @ vectors.T


def test_whitening_is_that_of_the_eigendecomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.data.whitening.BLOCK", 7)  # several blocks, the last of which is smaller
    data = whitened_data([60, 40])
    whitened = data.normalized()
    expected = reference_zca(data.images / 255).reshape(whitened.shape)
    np.testing.assert_allclose(whitened.numpy(), expected, rtol=1e-3, atol=2e-5)
    assert data.whitening is not None
    torch.testing.assert_close(data.whitening.apply_in_blocks(data.images, CPU), whitened)
    torch.testing.assert_close(data.normalize(data.images[:3]), whitened[:3])
    assert data.fingerprint == tiny_data([60, 40], size=4).fingerprint


def test_undo_returns_the_pixels() -> None:
    data = whitened_data([30, 30])
    assert data.whitening is not None
    torch.testing.assert_close(data.whitening.undo(data.normalized()), data.images / 255, rtol=0, atol=1e-5)
    images = torch.randn(2, 5, 3, 4, 4)  # also of images that no pixels have
    torch.testing.assert_close(data.whitening.apply(data.whitening.undo(images)), images, rtol=0, atol=1e-4)


def test_fewer_images_than_numbers_can_be_whitened() -> None:
    data = whitened_data([2, 1])
    assert data.normalized().isfinite().all()


def test_networks_get_whitened_images(tmp_path: Path) -> None:
    data, indices = whitened_data([6, 3]), torch.tensor([[0, 4], [8, 2]])
    ordered = data.normalized()[torch.argsort(data.labels, stable=True)]
    torch.testing.assert_close(ClassStore(data, CPU).take_normalized(indices), ordered[indices])
    torch.testing.assert_close(DeviceDataset.from_data(data, CPU).images(slice(None)), data.normalized())
    mapped = tiny_import(tmp_path / "a", [4, 5])
    mapped = dataclasses.replace(mapped, whitening=fit_whitening(mapped.images, CPU))
    in_memory, streamed = (store(mapped, CPU).take_normalized(indices) for store in (ClassStore, StreamedStore))
    torch.testing.assert_close(streamed, in_memory)
    assert stored_bytes(mapped) == 4 * mapped.images.numel() == in_memory.element_size() * mapped.images.numel()


def make_set(whitening: Whitening | None) -> cs.CondensedSet:
    return cs.CondensedSet(
        images=torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0)),
        labels=torch.tensor([0, 0, 1, 1]),
        class_names=("class 0", "class 1"),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        whitening=whitening,
    )


def test_test_images_get_the_whitening_of_the_set() -> None:
    whitening, test_set = whitened_data([20, 20]).whitening, tiny_data([3, 3], size=4, seed=1)
    assert whitening is not None
    images = normalize_like(make_set(whitening), test_set, CPU).images(slice(None))
    torch.testing.assert_close(images, whitening.apply(test_set.images / 255))
    compute = ComputeDevice.select("cpu")
    sets = [make_set(whitening), make_set(None), whitened_data([20, 20]), tiny_data([20, 20], size=4)]
    assert len({evaluation_hash(train_set, {"": test_set}, {}, 0, compute) for train_set in sets}) == len(sets)


def test_a_set_stores_its_whitening(tmp_path: Path) -> None:
    whitening = whitened_data([20, 20]).whitening
    assert whitening is not None
    condensed, plain = make_set(whitening), make_set(None)
    torch.testing.assert_close(condensed.normalized(), whitening.apply(condensed.images))
    condensed.save(tmp_path / "a.safetensors")
    loaded = cs.CondensedSet.load(tmp_path / "a.safetensors")
    assert loaded.whitening is not None
    assert torch.equal(loaded.whitening.matrix, whitening.matrix)
    assert torch.equal(loaded.images, plain.images)  # pixels, which need no whitening to be shown
    assert torch.equal(loaded.normalized(), condensed.normalized())
    assert loaded.fingerprint == condensed.fingerprint != plain.fingerprint
    plain.save(tmp_path / "b.safetensors")
    assert safetensors.torch.load_file(tmp_path / "b.safetensors").keys() == {"images", "labels"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"whitening.matrix": torch.eye(48)[:40]}, "whitening must have a mean .D,. and a matrix .D, D., but got"),
        ({"whitening.mean": torch.zeros(0), "whitening.matrix": torch.zeros(0, 0)}, "whitening must have a mean"),
        ({"whitening.matrix": torch.full((48, 48), torch.nan)}, "whitening must be finite"),
        ({"whitening.matrix": torch.eye(48, dtype=torch.float64)}, "whitening must be float32"),
        ({"whitening.mean": torch.zeros(27), "whitening.matrix": torch.eye(27)}, "must have the 27 numbers of the"),
    ],
)
def test_a_damaged_whitening_is_refused(tmp_path: Path, change: dict[str, Tensor], message: str) -> None:
    path = tmp_path / "a.safetensors"
    make_set(whitened_data([20, 20]).whitening).save(path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = {"condenset": file.metadata()["condenset"]}
    tensors = {**safetensors.torch.load_file(path), **change}
    write_tensors(path, tensors, metadata)
    with pytest.raises(cs.UserError, match=message):
        cs.CondensedSet.load(path)
    del tensors["whitening.matrix"]
    write_tensors(path, tensors, metadata)
    with pytest.raises(cs.UserError, match="is not a condensed set"):
        cs.CondensedSet.load(path)


def test_large_images_are_refused_before_the_matrix_is_allocated() -> None:
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(2, 3, 512, 512)
    with pytest.raises(cs.UserError, match=r"zca needs images of at most 4096 numbers.*but got 786432: use smaller"):
        fit_whitening(images, CPU)
    with pytest.raises(cs.UserError, match="at most 4096 numbers"):
        Whitening(torch.zeros(4097), torch.zeros(1, 1).expand(4097, 4097))
