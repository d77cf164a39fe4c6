"""The training loops in the user guide run and have the accuracy of `cs.evaluate`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import condenset as cs

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
NETWORK, EPOCHS = "convnet(width=8, depth=1)", 60
TOLERANCE = 0.08  # three standard deviations of the difference


def read_loop() -> str:
    """Return the training loop in the guide, with a small network and few epochs."""
    code = re.findall(r"```python\n(.*?)```", (GUIDES / "train.md").read_text(), re.DOTALL)[0]
    assert len(code.splitlines()) <= 26
    return code.replace('500, "convnet(width=64, depth=2)"', f'{EPOCHS}, "{NETWORK}"')


def test_training_loop_has_the_accuracy_of_evaluate() -> None:
    variables: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(read_loop(), variables)
    assert variables["spec"] == NETWORK and variables["epochs"] == EPOCHS
    scores = cs.evaluate(
        variables["condensed"], variables["data"].test, network=NETWORK, epochs=EPOCHS, num_networks=2, device="cpu"
    )
    assert abs(float(variables["accuracy"]) - scores.mean) < TOLERANCE


@pytest.mark.parametrize(("allow_hflip", "is_soft"), [(False, False), (True, True)])
def test_an_export_trains_without_condenset(
    allow_hflip: bool, is_soft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(import json\n.*?)```", (GUIDES / "exports.md").read_text(), re.DOTALL)
    assert "condenset" not in code
    data = cs.load("digits", verbose=False)
    condensed = cs.condense(data.train, "random", ipc=10, device="cpu", verbose=False)
    labels = F.one_hot(condensed.labels, 10).float() if is_soft else condensed.labels
    provenance = {**condensed.provenance, "allow_hflip": allow_hflip}
    monkeypatch.chdir(tmp_path)
    dataclasses.replace(condensed, labels=labels, provenance=provenance).to_folder("digits")
    variables: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(code.replace("epochs = 300", "epochs = 30"), variables)
    accuracy = (variables["classify"](data.test.images / 255) == data.test.labels).float().mean()
    assert accuracy > 0.6
