"""Directories that look like those of runs, without running anything."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

RECIPE = """# condenset 0.0: repeat the run
dataset = "digits"
jobs = [{method = "random"}, {method = "dm"}]
"""


def write_run(directory: Path, *, recipe: str = RECIPE, accuracy: float | None = 0.5, **status: Any) -> Path:
    """Write the files of a run that `condenset status` and `condenset serve` read."""
    directory.mkdir(parents=True)
    (directory / "recipe.toml").write_text(recipe)
    now = time.time()
    values = {"state": "finished", "host": "node7", "pid": 12, "started": now - 60, "updated": now, **status}
    (directory / "status.json").write_text(json.dumps(values))
    (directory / "results.json").write_text(json.dumps([{"method": "dm", "ipc": 10, "accuracy_mean": accuracy}]))
    return directory
