"""The benchmark of streamed images, at a tiny size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.filterwarnings("ignore:one class needs")
def test_streamed_images_are_timed_and_equal_those_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import streaming

    sizes = {"classes": 4, "images": 150, "size": 16, "batch_size": 4, "iterations": 2, "ipc": 1}
    options = {"network": "convnet(width=4, depth=1)", "device": "cpu", "memory": "800K", "directory": tmp_path}
    for _ in range(2):  # the second call uses the import of the first
        streaming.main(**sizes, **options)
        out = capsys.readouterr().out
        streamed, in_memory = (line.split() for line in out.splitlines() if re.match("streamed|in memory", line))
        assert len(streamed) == len(streaming.COLUMNS)
        assert in_memory[5] == "-"  # it does not wait for images
        assert float(re.findall(r"differ by at most (.*)\.$", out)[0]) < 1e-5  # chunks of other sizes
    (directory,) = tmp_path.iterdir()
    assert (directory / "train-images.npy").stat().st_size == 128 + 4 * 150 * 3 * 16 * 16
