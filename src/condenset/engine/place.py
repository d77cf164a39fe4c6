"""A device and the precision to compute in."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

import torch

from condenset.errors import UserError, check_choice

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class Place:
    """Where tensors live and what activations are computed in; images, statistics and means stay float32."""

    device: torch.device
    dtype: torch.dtype

    @classmethod
    def best(cls, device: str | None = None, precision: str | None = None) -> Place:
        """The device and precision named, or the best there is: CUDA in bfloat16, else MPS, else CPU in float32."""
        chosen = torch.device(_device(device))
        if precision is None:
            precision = "bfloat16" if chosen.type == "cuda" else "float32"
        check_choice("precision", precision, PRECISIONS)
        return cls(chosen, PRECISIONS[precision])

    @property
    def precision(self) -> str:
        return next(name for name, dtype in PRECISIONS.items() if dtype == self.dtype)

    @property
    def hardware(self) -> str:
        """The name of the device, for the record."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{platform.machine()} {self.device.type}, {torch.get_num_threads()} threads"

    def reset_peak_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_memory(self) -> int:
        """Bytes at most in use: the GPU's since the reset, on CPU this process's since its start."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        if sys.platform == "win32":
            return 0  # the standard library cannot tell there
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _device(name: str | None) -> str:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name is None:
        return next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    kind, _, number = name.partition(":")
    check_choice("device", kind, DEVICES)
    if not there[kind]:
        raise UserError(f"device {name!r} is not there: this machine has {', '.join(k for k in DEVICES if there[k])}")
    if number and not (number.isdecimal() and kind == "cuda" and int(number) < torch.cuda.device_count()):
        raise UserError(f"device {name!r} is not there: this machine has {torch.cuda.device_count()} CUDA devices")
    return name
