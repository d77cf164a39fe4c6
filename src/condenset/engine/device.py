"""The device and the precision of a computation."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from condenset.engine.host_memory import return_freed_memory, reuse_freed_memory
from condenset.errors import UserError, check_choice

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class ComputeDevice:
    """The device of the tensors and the dtype of activations. Images, statistics and means stay in float32."""

    device: torch.device
    dtype: torch.dtype

    @classmethod
    def select(cls, device: str | torch.device | None = None, precision: str | None = None) -> ComputeDevice:
        """Return the device and precision, or the best available.

        Args:
            device: A name such as "cpu" or "cuda:1"; by default CUDA, else MPS, else CPU.
            precision: "float32" or "bfloat16"; by default bfloat16 if the hardware supports it, else float32. Recent
                GPUs round the inputs of float32 convolutions to TF32, as PyTorch does by default.
        """
        selected = torch.device(_check_device(None if device is None else str(device)))
        if precision is None:
            precision = "bfloat16" if _has_bfloat16(selected) else "float32"
        check_choice("precision", precision, PRECISIONS)
        if selected.type == "cpu":
            reuse_freed_memory()
        return cls(selected, PRECISIONS[precision])

    @property
    def precision(self) -> str:
        """The name of the dtype."""
        return next(name for name, dtype in PRECISIONS.items() if dtype == self.dtype)

    @property
    def threads(self) -> int | None:
        """The number of threads that compute on a CPU; None for another device."""
        return torch.get_num_threads() if self.device.type == "cpu" else None

    @property
    def hardware(self) -> str:
        """The name of the device, for provenance."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        threads = torch.get_num_threads()
        return f"{platform.machine()} {self.device.type}, {threads} thread{'s' if threads > 1 else ''}"

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Make this the current CUDA device, on which streams are created, for the duration of the block."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            yield

    def reset_peak_memory(self) -> None:
        """Restart the measurement of the peak memory, where the platform allows it."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            return_freed_memory()
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def peak_memory(self) -> int:
        """Return the peak memory in bytes since the reset: of the GPU, or of this process.

        Outside Linux, the peak of a process counts from its start.
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with contextlib.suppress(OSError):
            status = Path("/proc/self/status").read_text()
            return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        if sys.platform == "win32":
            return 0  # the standard library does not provide it
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _has_bfloat16(device: torch.device) -> bool:
    """Return whether the hardware supports bfloat16; older GPUs emulate it."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _check_device(name: str | None) -> str:
    """Check that a device is available, and return its name; None selects the best one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name is None:
        return next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    kind, _, index = name.partition(":")
    if kind == "gpu":  # its nearest name would be cpu
        raise UserError(f"device cannot be {name!r}; did you mean 'cuda'?")
    check_choice("device", kind, DEVICES)
    if not available[kind]:
        kinds = ", ".join(kind for kind in DEVICES if available[kind])
        raise UserError(f"Device {name!r} is not available: this machine has {kinds}.")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if index and not (index.isdecimal() and int(index) < count):
        devices = f"{kind}:0" + (f" to {kind}:{count - 1}" if count > 1 else "")
        raise UserError(f"Device {name!r} is not available: this machine has {devices}.")
    return name
