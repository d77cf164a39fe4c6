"""Where the tasks of a run are computed: the options of an engine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

from condenset.engine.ray_connection import import_ray
from condenset.engine.ray_tasks import open_ray
from condenset.engine.tasks import Engine
from condenset.errors import UserError, check, check_choice, is_number, option

ENGINES = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where the tasks of a run are computed.

    Attributes:
        engine: "local": in this process. "ray": on Ray.
        address: Address of the Ray cluster. None: a Ray of this machine, started for the run.
        gpus_per_worker: GPUs of each worker; 0.5 for two workers per GPU.
    """

    engine: str = "local"
    address: str | None = None
    gpus_per_worker: float = 1.0

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        check(self.address is None or isinstance(self.address, str), "address must be text", self.address)
        gpus, rule = self.gpus_per_worker, "gpus_per_worker must be a whole number, or a fraction of one GPU"
        check(is_number(gpus) and gpus > 0 and (gpus < 1 or gpus == int(gpus)), rule, gpus)
        object.__setattr__(self, "gpus_per_worker", float(gpus))
        if self.engine == "local" and self.address is not None:
            raise UserError(f"{option('address')} must come with {option('engine', 'ray')}, but got {self.address!r}")

    def changed_fields(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    def override(self, **changes: Any) -> EngineOptions:
        """Return the options with other values for some fields; the address belongs to the engine."""
        kept = self.changed_fields() if changes.get("engine", self.engine) == self.engine else {}
        return EngineOptions(**{**kept, **changes})

    def check_installed(self) -> None:
        """Raise a UserError if the engine is not installed."""
        if self.engine == "ray":
            import_ray()

    @property
    def default_threads(self) -> int | None:
        """CPU threads of each worker. None: as many as PyTorch uses."""
        return 1 if self.engine == "ray" else None

    def open(self, *, uses_gpu: bool, threads: int | None) -> AbstractContextManager[Engine | None]:
        """Return a context manager with the engine. None: the work is not divided into tasks.

        Args:
            uses_gpu: Whether tasks compute on a GPU.
            threads: CPU threads of a task that computes on the CPU.
        """
        if self.engine == "local":
            return nullcontext()
        return open_ray(self.address, num_gpus=self.gpus_per_worker if uses_gpu else 0.0, num_cpus=threads or 1)
