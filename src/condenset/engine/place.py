"""A device and the precision to compute in."""

from __future__ import annotations

import contextlib
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

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
    def best(cls, device: str | torch.device | None = None, precision: str | None = None) -> Place:
        """The device and precision named, or the best there is: CUDA, if it can in bfloat16, else MPS, else CPU.

        float32 is torch's: on newer GPUs its convolutions round what they multiply to TF32.
        """
        chosen = torch.device(_device(None if device is None else str(device)))
        if chosen.index is not None and chosen.type == "cuda":
            torch.cuda.set_device(chosen)  # kernels of our own run on the current one: one GPU a process
        if precision is None:
            precision = "bfloat16" if _has_bfloat16(chosen) else "float32"
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
        threads = torch.get_num_threads()
        return f"{platform.machine()} {self.device.type}, {threads} thread{'s' if threads > 1 else ''}"

    def reset_peak_memory(self) -> None:
        """Forget the peak so far, where that can be done."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def peak_memory(self) -> int:
        """Bytes at most in use since the reset: the GPU's, or this process's (beyond Linux: since its start)."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with contextlib.suppress(OSError):
            status = Path("/proc/self/status").read_text()
            return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        if sys.platform == "win32":
            return 0  # the standard library cannot tell there
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _has_bfloat16(device: torch.device) -> bool:
    """In hardware: older GPUs only pretend."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _device(name: str | None) -> str:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name is None:
        return next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    kind, _, number = name.partition(":")
    check_choice("device", kind, DEVICES)
    if not there[kind]:
        raise UserError(f"device {name!r} is not there: this machine has {', '.join(k for k in DEVICES if there[k])}")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdecimal() and int(number) < count):
        raise UserError(f"device {name!r} is not there: of {kind} this machine has {count}, counted from 0")
    return name
