"""Start and resume a run: plan it, claim its directory, execute it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset import data
from condenset.engine.device import ComputeDevice
from condenset.errors import UserError
from condenset.io.directories import lock_directory, wrap_os_errors
from condenset.pipeline.config import read_plan, write_plan
from condenset.pipeline.datasets import absolute_dataset_path, reload_data
from condenset.pipeline.execute import execute_plan
from condenset.pipeline.plan import Plan, check_plan, make_plan
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import Record
from condenset.runs.context import RunContext
from condenset.runs.directory import check_output_directory, claim_run_directory, remove_temporary_run_files

RunSession = Callable[[Plan, RunContext], AbstractContextManager[None]]

CONFIG_SETTINGS = ("dataset", "seed", "device", "precision", "memory_limit", "size", "data_dir")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run.

    Attributes:
        directory: The run directory, with the sets, results.json and figures.
        records: The contents of results.json.
    """

    directory: Path
    records: list[Record]


def _no_session(plan: Plan, run: RunContext) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def start_run(
    request: RunRequest,
    *,
    dataset: str | None = None,
    config: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    session: RunSession = _no_session,
    **settings: Any,
) -> RunResult:
    """Start a run in a new directory, and return its results.

    Args:
        request: Methods, sizes and options.
        dataset: Name or path of the dataset. None: that of the config file.
        config: A recipe.toml whose settings apply where the request and the other arguments give none.
        out: The run directory. None: a new directory in `runs/`, named after the dataset.
        overwrite: Replace an earlier run in `out`.
        session: Context manager around the execution, for progress display and signals: `(plan, run) -> context`.
        settings: Settings of the plan: `seed`, `device`, `precision`, `memory_limit`, `size`, `data_dir`.
    """
    base = read_plan(config) if config else None
    settings = _resolve_settings(base, dataset, settings)
    check_output_directory(out, overwrite=overwrite)  # before the data are loaded, which can take long
    splits = data.load(settings["dataset"], data_dir=settings["data_dir"], size=settings["size"])
    if request.evaluate:
        settings["test_fingerprint"] = splits.test.fingerprint
    plan = make_plan(splits.train, request, base, **settings)
    with claim_run_directory(out, Path("runs") / splits.train.name, overwrite=overwrite) as directory:
        write_plan(directory / "recipe.toml", plan)
        run = _make_context(plan, directory)
        with session(plan, run):
            records = execute_plan(plan, splits, run)
    return RunResult(directory=directory, records=records)


def resume_run(
    directory: Path, *, moved_to: str | None = None, session: RunSession = _no_session, **changes: Any
) -> RunResult:
    """Continue a run that was stopped or killed, and return its results, which are those of an undisturbed run.

    Args:
        directory: The run directory.
        moved_to: Path of the dataset now, if it has moved.
        session: As in `start_run`.
        changes: Settings that may change: `device`, `memory_limit`, `data_dir`.
    """
    if not (directory / "recipe.toml").is_file():
        raise UserError(f"{directory} is not a run: it has no recipe.toml")
    with lock_directory(directory):
        with wrap_os_errors(directory):
            remove_temporary_run_files(directory)
        plan = dataclasses.replace(read_plan(directory / "recipe.toml"), **_absolute_data_dir(changes))
        moved_to = absolute_dataset_path(moved_to, plan.data_dir) if moved_to else None
        splits = reload_data(plan, directory, moved_to)
        check_plan(plan, splits.train)
        run = _make_context(plan, directory)
        with session(plan, run):
            records = execute_plan(plan, splits, run)
    return RunResult(directory=directory, records=records)


def _resolve_settings(base: Plan | None, dataset: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the plan: as given, else as in the config file, else the defaults."""
    if base is None and dataset is None:
        raise UserError("no dataset: give a name ('condenset data list') or a path")
    defaults = {"data_dir": None, "size": None}
    from_config = {name: getattr(base, name) for name in CONFIG_SETTINGS} if base else {}
    resolved = {**defaults, **from_config, **_absolute_data_dir(settings)}
    if dataset is not None:
        resolved["dataset"] = absolute_dataset_path(dataset, resolved["data_dir"])
    compute = ComputeDevice.select(resolved.get("device"), resolved.get("precision"))
    return resolved | {"device": str(compute.device), "precision": compute.precision}


def _absolute_data_dir(settings: dict[str, Any]) -> dict[str, Any]:
    """Make `data_dir` absolute, because a run may be resumed from another working directory."""
    data_dir = settings.get("data_dir")
    return settings if data_dir is None else settings | {"data_dir": str(Path(data_dir).absolute())}


def _make_context(plan: Plan, directory: Path) -> RunContext:
    compute = ComputeDevice.select(plan.device, plan.precision)
    return RunContext(seed=plan.seed, compute=compute, directory=directory, memory_limit=plan.memory_limit)
