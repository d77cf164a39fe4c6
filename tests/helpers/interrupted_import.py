"""Interrupt an import after some of its blocks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from condenset.data.reading import lazy
from condenset.io import files

BLOCK_BYTES = 40 * 3 * 4 * 4  # 40 colour images of 4x4 pixels


@dataclass(frozen=True)
class SignalAtBlock:
    """Use blocks of `BLOCK_BYTES`, and send a signal to the process before it records its nth block."""

    number: int
    signal: int

    def __call__(self) -> None:
        lazy.BLOCK_BYTES = BLOCK_BYTES
        num_blocks = 0

        def replace(source: Any, target: Any) -> None:
            nonlocal num_blocks
            num_blocks += 1
            if num_blocks == self.number:
                os.kill(os.getpid(), self.signal)
            os.rename(source, target)

        files.os.replace = replace  # type: ignore[attr-defined]
