"""A replay memory with settings that take little time."""

from __future__ import annotations

from typing import Any

import condenset as cs
from condenset.methods import METHODS

TRAINING: dict[str, Any] = {"network": "convnet(width=8, depth=2)", "epochs": 4}


def tiny_memory(method: str = "random", **options: Any) -> cs.Memory:
    """Return an empty memory of two images per class."""
    fields = {**METHODS[method].tiny}
    if "network" in fields:
        fields["network"] = TRAINING["network"]
    return cs.Memory(**{"ipc": 2, "method": method, "device": "cpu", "verbose": False, **fields, **options})
