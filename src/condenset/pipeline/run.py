"""Start and resume a run: plan it, claim its directory, execute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from condenset.data.image_data import Splits
from condenset.data.reading.duplicates import warn_about_shared_images
from condenset.data.reading.loading import load_splits
from condenset.data.reading.opening import absolute_dataset_path, is_known_name
from condenset.data.reading.options import LoadOptions, override_fields
from condenset.engine.options import EngineOptions
from condenset.engine.tasks import Engine
from condenset.errors import UserError
from condenset.io.dataset_names import NO_DATASET
from condenset.pipeline.config import plan_to_toml, read_plan
from condenset.pipeline.datasets import reload_data, relocate, resolve_load_options
from condenset.pipeline.execute import execute_plan, save_figures
from condenset.pipeline.plan import Plan, check_plan, make_plan
from condenset.pipeline.report.run import write_run_report
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import RunResult
from condenset.pipeline.settings import choose_compute, make_data_dir_absolute, no_session
from condenset.runs.context import RunContext
from condenset.runs.directory import (
    check_output_directory,
    claim_run_directory,
    default_run_directory,
    reopen_run_directory,
)
from condenset.runs.identity import RunIdentity, create_run

RunSession = Callable[[Plan, Splits, RunContext], AbstractContextManager[None]]
ShowResult = Callable[[RunResult], None]

RECIPE = "recipe.toml"
CONFIG_SETTINGS = (
    "dataset",
    "seed",
    "device",
    "precision",
    "threads",
    "memory_limit",
    "snapshots",
    "data_dir",
    "num_networks_on_random",
)
DEFAULT_SNAPSHOTS = 10


def _show_nothing(result: RunResult) -> None:
    pass


def start_run(
    request: RunRequest,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    report: bool = False,
    session: RunSession = no_session,
    show_result: ShowResult = _show_nothing,
    **arguments: Any,
) -> RunResult:
    """Start a run in a new directory, and return its results.

    Args:
        request: Methods, sizes and options.
        out: The run directory. None: a new directory in `runs/`, named after the dataset.
        overwrite: Replace an earlier run in `out`.
        report: Write the HTML report.
        session: Context manager around the execution, for progress display and signals:
            `(plan, splits, run) -> context`.
        show_result: Called with the result before it is drawn and the report is written.
        arguments: Other arguments of `plan_run`.
    """
    plan, splits = plan_run(request, out=out, overwrite=overwrite, **arguments)
    with (
        plan.open_engine() as engine,  # first: if it fails, there is no directory to remove
        claim_run_directory(out, default_run_directory(splits.train.name), overwrite=overwrite) as directory,
    ):
        identity = create_run(directory, RECIPE, plan_to_toml(plan))
        return _execute(plan, splits, identity, engine, session, show_result, report=report)


def plan_run(
    request: RunRequest,
    *,
    dataset: str | None = None,
    config: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    load_fields: Mapping[str, Any] = MappingProxyType({}),
    engine_fields: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> tuple[Plan, Splits]:
    """Load the dataset of a run, and return the plan of the run and the images. Nothing is written.

    Args:
        request: Methods, sizes and options.
        dataset: Name or path of the dataset. None: that of the config file.
        config: A recipe.toml whose settings apply where the request and the other arguments give none.
        out: The run directory, which must be empty or contain a run to overwrite.
        overwrite: Replace an earlier run in `out`.
        load_fields: Fields of `LoadOptions`. If the sets are scored and there is no test split, a share of every class
            is held out.
        engine_fields: Fields of `EngineOptions`.
        settings: Settings of the plan: `seed`, `device`, `precision`, `memory_limit`, `snapshots`, `data_dir`,
            `num_networks_on_random`.
    """
    base = read_plan(config) if config else None
    engine_options = (base.engine_options if base else EngineOptions()).override(**engine_fields)
    engine_options.check_installed()
    settings = _resolve_settings(base, dataset, settings | {"engine_options": engine_options})
    options = _resolve_load_options(base, settings["dataset"], load_fields)
    check_output_directory(out, overwrite=overwrite)  # before the data are loaded, which can take long
    splits, settings["load_options"] = load_splits(
        settings["dataset"], settings["data_dir"], options, needs_test=request.evaluate
    )
    if request.evaluate:
        settings["test_fingerprint"] = splits.require_test().fingerprint
        if not is_known_name(settings["dataset"], settings["data_dir"]):
            warn_about_shared_images(splits, options.scored_on)
    return make_plan(splits.train, request, base, **settings), splits


def resume_run(
    directory: Path,
    *,
    moved_to: str | None = None,
    test_moved_to: str | None = None,
    report: bool = False,
    session: RunSession = no_session,
    show_result: ShowResult = _show_nothing,
    engine_fields: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> RunResult:
    """Continue a run that was stopped or killed, and return its results, which are those of an undisturbed run.

    Args:
        directory: The run directory.
        moved_to: Path of the dataset now, if it has moved.
        test_moved_to: Path of the test images now, if they were given by their own path and have moved.
        report: Write the HTML report.
        session, show_result: As in `start_run`.
        engine_fields: Fields of `EngineOptions` that change.
        changes: Settings that may change: `device`, `memory_limit`, `data_dir`.
    """
    with reopen_run_directory(directory, RECIPE, read_plan) as (stored, identity):
        plan = stored.override(engine_fields, **changes)
        splits = reload_data(plan, relocate(plan, directory, moved_to, test_moved_to), directory)
        check_plan(plan, splits.train)
        with plan.open_engine() as engine:
            return _execute(plan, splits, identity, engine, session, show_result, report=report)


def _resolve_settings(base: Plan | None, dataset: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the plan: as given, else as in the config file, else the defaults."""
    if base is None and dataset is None:
        raise UserError(NO_DATASET)
    defaults: dict[str, Any] = {"data_dir": None, "snapshots": DEFAULT_SNAPSHOTS}
    from_config = {name: getattr(base, name) for name in CONFIG_SETTINGS} if base else {}
    resolved = {**defaults, **from_config, **make_data_dir_absolute(settings)}
    if dataset is not None:
        resolved["dataset"] = absolute_dataset_path(dataset, resolved["data_dir"])
    compute = {name: resolved.get(name) for name in ("device", "precision", "threads")}
    return resolved | choose_compute(resolved["engine_options"], **compute)


def _resolve_load_options(base: Plan | None, dataset: str, fields: Mapping[str, Any]) -> LoadOptions:
    """Return how to read the dataset: as given, else as in the config file.

    Another dataset, or another choice of test images, replaces the test images of the config file.
    """
    from_config = base.load_options.changed_fields() if base else {}
    if base and base.dataset != dataset:
        from_config = {name: value for name, value in from_config.items() if name not in ("test", "test_share")}
    return resolve_load_options(override_fields(from_config, fields))


def _execute(
    plan: Plan,
    splits: Splits,
    identity: RunIdentity,
    engine: Engine | None,
    session: RunSession,
    show_result: ShowResult,
    *,
    report: bool,
) -> RunResult:
    """Execute a plan in the directory of a run. The arguments are those of `start_run`."""
    run = plan.make_run(identity, engine, num_snapshots=plan.snapshots)
    with session(plan, splits, run):
        result = RunResult(directory=identity.directory, records=execute_plan(plan, splits, run))
        show_result(result)  # before figures and the report, which take seconds
        save_figures(plan, result.records, splits.train.name, identity.directory)
        if report and plan.protocol:
            write_run_report(run, splits)
    return result
