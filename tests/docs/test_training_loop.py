"""The training loop in the user guide runs and has the accuracy of `cs.evaluate`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

import condenset as cs

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "train.md"
NETWORK, EPOCHS = "convnet(width=8, depth=1)", 60
TOLERANCE = 0.08  # three standard deviations of the difference


def read_loop() -> str:
    """Return the training loop in the guide, with a small network and few epochs."""
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
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
