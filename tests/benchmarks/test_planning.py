"""The comparison of plans with real runs works at a tiny size."""

from __future__ import annotations

import pytest
from planning import Setting, compare

from condenset.pipeline.cost import trial
from condenset.runs import loop

NETWORK = "convnet(width=8, depth=1)"


def test_a_setting_is_predicted_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRIAL_SECONDS", "SAMPLE_SECONDS"):
        monkeypatch.setattr(trial, name, 0.05)
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.01)
    setting = Setting(
        classes=3,
        images=8,
        size=8,
        ipc=1,
        method="dmplus",
        fields={"network": NETWORK, "iterations": 5, "batch_size": 4, "pool_size": 1, "pool_epochs": 2},
        protocol={"network": NETWORK, "num_networks": 1, "epochs": 5},
    )
    rows = compare(setting, "cpu", "float32")
    assert [row[1] for row in rows] == ["networks", "condense", "score", "memory", "plan"]
    assert all(float(row[-1]) > 0 for row in rows[:-1])
