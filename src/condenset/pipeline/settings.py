"""Settings that runs, evaluations and experiments share, and how their config files are read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from condenset.config import check_text_fields, field_names
from condenset.data.reading.options import LoadOptions
from condenset.engine.device import ComputeDevice
from condenset.engine.options import EngineOptions
from condenset.engine.tasks import Engine
from condenset.engine.threads import check_threads
from condenset.errors import UserError, check, check_int, use_flags
from condenset.io.metadata import read_toml
from condenset.io.user_directories import absolute_path
from condenset.runs.context import RunContext
from condenset.runs.identity import RunIdentity
from condenset.runs.tasks import choose_threads, open_run_engine

Config = TypeVar("Config")
Options = TypeVar("Options", EngineOptions, LoadOptions)


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """Where a run, an evaluation or an experiment is computed.

    Attributes:
        device: Device to compute on.
        precision: Precision of the computation.
        threads: Number of CPU threads, which changes the last digits. None: the device is not a CPU, or unknown.
        engine_options: The engine, which does not change the result. Its fields are keys of the config file.
    """

    device: str = "cpu"
    precision: str = "float32"
    threads: int | None = None
    engine_options: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self) -> None:
        check_text_fields(self, "device", "precision")
        check_threads(self.threads)

    @property
    def compute(self) -> ComputeDevice:
        """Device and precision."""
        return ComputeDevice.select(self.device, self.precision)

    def override(self, engine_fields: Mapping[str, Any], **changes: Any) -> Self:
        """Return the settings of a resumed run: with other fields of `EngineOptions`, and other values of fields."""
        engine_options = self.engine_options.override(**engine_fields)
        engine_options.check_installed()
        return dataclasses.replace(self, engine_options=engine_options, **changes)

    def open_engine(self) -> AbstractContextManager[Engine | None]:
        """Open the engine, and use the number of CPU threads that the run began with."""
        return open_run_engine(self.engine_options, self.compute, self.threads)

    def make_run(self, identity: RunIdentity, engine: Engine | None, **fields: Any) -> RunContext:
        """Return the context of a run with this identity. `fields` are other fields of `RunContext`."""
        return RunContext(
            compute=self.compute, directory=identity.directory, identity=identity, engine=engine, **fields
        )


@dataclass(frozen=True, kw_only=True)
class RunSettings(ComputeSettings):
    """The settings of a run or an experiment on one dataset.

    Attributes:
        dataset: Name or absolute path of the dataset.
        seed: Seed of all random streams.
        memory_limit: Bytes. It does not change the result, but a resumed run respects it too.
        data_dir: Directory of the datasets. None: the default.
        load_options: How the dataset is read. Its fields are keys of the config file.
        fingerprint: Fingerprint of the training images. Empty: unknown.
        test_fingerprint: Fingerprint of the test images. Empty: unknown, or the sets are not scored.
    """

    dataset: str
    seed: int = 0
    memory_limit: int | None = None
    data_dir: str | None = None
    load_options: LoadOptions = field(default_factory=LoadOptions)
    fingerprint: str = ""
    test_fingerprint: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text_fields(self, "dataset", "fingerprint", "test_fingerprint")
        check(isinstance(self.data_dir, str | None), "data_dir must be text", self.data_dir)
        object.__setattr__(self, "seed", check_int("seed", self.seed))

    def override(self, engine_fields: Mapping[str, Any], **changes: Any) -> Self:
        """Return the settings of a resumed run: with other fields of `EngineOptions`, and other values of fields."""
        return super().override(engine_fields, **make_data_dir_absolute(changes))

    def make_run(self, identity: RunIdentity, engine: Engine | None, **fields: Any) -> RunContext:
        """Return the context of a run with this identity. `fields` are other fields of `RunContext`."""
        return super().make_run(identity, engine, seed=self.seed, memory_limit=self.memory_limit, **fields)


def no_session(*_: object) -> AbstractContextManager[None]:
    """Return a session of a run that shows nothing."""
    return contextlib.nullcontext()


def choose_compute(
    engine_options: EngineOptions, device: str | None, precision: str | None, threads: int | None = None
) -> dict[str, Any]:
    """Return the fields of `ComputeSettings` for a new run; None chooses the default."""
    compute = ComputeDevice.select(device, precision)
    threads = choose_threads(engine_options, compute, threads)
    chosen = {"device": str(compute.device), "precision": compute.precision, "threads": threads}
    return chosen | {"engine_options": engine_options}


def make_data_dir_absolute(settings: dict[str, Any]) -> dict[str, Any]:
    """Make `data_dir` absolute, because a run may be resumed from another working directory."""
    data_dir = settings.get("data_dir")
    return settings if data_dir is None else settings | {"data_dir": absolute_path(data_dir)}


def pop_options(values: dict[str, Any], options: type[Options]) -> Options:
    """Remove the fields of a group of options from the values of a config file, and return the options."""
    return options(**{name: values.pop(name) for name in field_names(options) & values.keys()})


@use_flags(None)  # errors name fields as the file does
def read_config(path: Path, parse: Callable[[dict[str, Any]], Config], rule: str) -> Config:
    """Read a config file.

    Args:
        path: A TOML file.
        parse: Build the config from the values of the file.
        rule: What the file is not if a value has the wrong type, such as "a recipe of condenset: give another file".

    Raises:
        UserError: The file cannot be read, or `parse` fails.
    """
    values = read_toml(path)
    try:
        return parse(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (TypeError, KeyError, AttributeError, ValueError):  # a value of the wrong type, or a missing one
        raise UserError(f"{path} is not {rule}") from None
