from __future__ import annotations

from pathlib import Path

import pytest

from condenset.report.charts import save_comparison


@pytest.mark.parametrize("dataset", ["toy", r"/a/$\frac{1$.npz"])
def test_a_chart_is_drawn_whatever_the_dataset_is_called(tmp_path: Path, dataset: str) -> None:
    score = {"dataset": dataset, "accuracy_mean": 0.5, "accuracy_std": 0.1}
    records: list[dict[str, object]] = [
        {**score, "method": m, "ipc": i, "condense_seconds": s} for m, i, s in (("random", 1, 0.0), ("dm", 2, 9))
    ]
    records.append({**records[-1], "ipc": 3, "together": [2, 3]})
    save_comparison([*records, {**score, "method": "whole", "ipc": None, "condense_seconds": 0.0}], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "a.svg").read_bytes()
    assert b"<svg" in drawn and b"dm (sizes at once)" in drawn
