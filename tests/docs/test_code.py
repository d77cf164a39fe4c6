"""The Python code of the documentation runs, with less data and fewer iterations."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import condenset as cs
from helpers.data_files import make_classes
from helpers.pages import DOCS, ROOT, read_blocks
from helpers.reference_dm import tiny_data

NETWORK = "convnet(width=4, depth=1)"
PAGES_TO_RUN = ("start/first-set", "guides/condense", "guides/evaluate", "guides/exports")
TRAINING: dict[str, Any] = {"epochs": 1, "num_networks": 1, "device": "cpu"}


class QuickCondenset:
    """The package `condenset`, with calls that take little time."""

    def __init__(self, data: cs.Splits) -> None:
        self.data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(cs, name)

    def load(self, name: str, **_: Any) -> cs.Splits:
        return self.data

    def condense(self, data: cs.ImageData, method: str | cs.Recipe = "dm", **fields: Any) -> cs.CondensedSet:
        if not isinstance(method, str):
            return cs.condense(data, cs.DMRecipe(ipc=1, iterations=1, network=NETWORK), device="cpu", verbose=False)
        fields |= {"iterations": 1, "network": fields.get("network", NETWORK)} if method == "dm" else {}
        fields |= {} if "ipc_share" in fields else {"ipc": 1}
        fields |= {"group": "all"} if "group" in fields else {}
        return cs.condense(data, method, **{**fields, "device": "cpu", "verbose": False})

    def evaluate(self, condensed: cs.CondensedSet, test: cs.ImageData, *protocol: Any, **fields: Any) -> cs.Scores:
        network = fields.get("network", NETWORK)
        return cs.evaluate(condensed, test, **{**fields, **TRAINING, "network": network}, verbose=False)

    def rank(self, architectures: Any, condensed: cs.CondensedSet, val: cs.ImageData, **fields: Any) -> cs.Ranking:
        return cs.rank([NETWORK, "mlp(width=4)"], condensed, val, epochs=1, device="cpu", verbose=False, **fields)

    def train_pool(self, data: cs.ImageData, directory: str, **_: Any) -> cs.NetworkPool:
        return cs.train_pool(data, directory, num_networks=1, network=NETWORK, epochs=1, device="cpu", verbose=False)


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Run all Python blocks of a page in one namespace, and return it."""
    monkeypatch.chdir(tmp_path)
    train = tiny_data([6] * 4)
    data = cs.Splits(train=train, test=tiny_data([6] * 4, seed=1))
    quick = QuickCondenset(data)

    def run(page: Path, **variables: Any) -> dict[str, Any]:
        condensed = cs.condense(train, "random", ipc=1, device="cpu", verbose=False)
        namespace = {"cs": quick, "torch": torch, "nn": nn, "data": data, "condensed": condensed, **variables}
        for block in read_blocks(page):
            if block.language == "python":
                code = re.sub(r"(?m)^import condenset as cs$", "", block.code)
                code = re.sub(r"(?m)^epochs = \d+$", "epochs = 1", code)
                exec(compile(code, block.page, "exec"), namespace)
        return namespace

    return run


RunPage = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "README.md",
        *(DOCS / f"{name}.md" for name in ("start/first-set", "guides/condense", "guides/evaluate", "guides/exports")),
    ],
    ids=lambda page: page.stem,
)
def test_pages_run(page: Path, run_page: RunPage) -> None:
    run_page(page)


def test_own_method_is_registered(run_page: RunPage) -> None:
    try:
        namespace = run_page(DOCS / "guides" / "own-method.md")
        assert namespace["condensed"].provenance["recipe"]["offset"] == 5
    finally:
        cs.METHODS.unregister("first")


def test_own_network_runs(run_page: RunPage) -> None:
    try:
        namespace = run_page(DOCS / "guides" / "own-network.md")
        assert namespace["condensed"].provenance["recipe"]["network"] == "build"
    finally:
        cs.NETWORKS.unregister("my_net")


def test_own_objective_runs(run_page: RunPage) -> None:
    namespace = run_page(DOCS / "guides" / "own-objective.md")
    assert namespace["condensed"].provenance["recipe"]["objective"] == "mean_gap"


def test_own_dataset_is_read(run_page: RunPage, tmp_path: Path) -> None:
    (tmp_path / "flowers").mkdir()
    images, labels = np.zeros((4, 3, 32, 32), np.uint8), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "flowers" / "flowers.npz", x_train=images, y_train=labels, x_test=images + 1, y_test=labels)
    try:
        run_page(DOCS / "guides" / "plugins.md")
        with pytest.warns(UserWarning, match="1,000|1000"):
            assert cs.load("flowers", data_dir=tmp_path).train.class_names == ("rose", "tulip")
    finally:
        cs.DATASETS.unregister("flowers")


def test_arrays_run(run_page: RunPage, tmp_path: Path) -> None:
    make_classes(tmp_path / "photos" / "train", ("cat", "dog"), count=2)
    rows = [{"photo": Image.new("RGB", (8, 8)), "kind": label} for label in (0, 1)]
    namespace = run_page(
        DOCS / "guides" / "arrays.md",
        images=np.zeros((4, 3, 8, 8), np.uint8),
        labels=[0, 1, 0, 1],
        torchvision_dataset=[(Image.new("RGB", (8, 8)), label) for label in (0, 1)],
        dataset_dict={"train": rows, "test": rows},
    )
    assert namespace["data"].test.num_classes == 2


def test_kinds_of_images_run(run_page: RunPage) -> None:
    pixels = np.random.default_rng(0).integers(0, 4096, (6, 8, 8)).astype(np.float32)
    namespace = run_page(DOCS / "guides" / "kinds-of-images.md", pixels=pixels, findings=["a", "b"] * 3)
    assert not namespace["train"].allow_hflip


@pytest.mark.parametrize("name", ["search", "network-pools"])
def test_applications_run(name: str, run_page: RunPage) -> None:
    run_page(DOCS / "guides" / f"{name}.md")


def test_scikit_learn_classifier_trains_on_a_condensed_set() -> None:
    (block,) = [block for block in read_blocks(DOCS / "guides" / "train.md") if "fit_resample" in block.code]
    namespace: dict[str, Any] = {}
    exec(block.code.replace('"random", ', '"random", device="cpu", '), namespace)
    X, y = namespace["X"], namespace["y"]
    assert namespace["X_small"].shape == (100, 64)
    assert namespace["classifier"].score(X / 16, y) > 0.8
