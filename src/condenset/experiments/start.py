"""Start and resume an experiment: configure it, claim its directory, run it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from condenset.data.image_data import Splits
from condenset.data.loading import load_splits
from condenset.data.opening import absolute_dataset_path
from condenset.engine.device import ComputeDevice
from condenset.engine.options import EngineOptions
from condenset.engine.tasks import Engine
from condenset.errors import UserError
from condenset.experiments.config import ExperimentConfig, config_to_toml, read_config
from condenset.experiments.registry import get_experiment
from condenset.experiments.runner import run_experiment
from condenset.experiments.types import ExperimentResult
from condenset.io.directories import is_inside
from condenset.io.user_directories import absolute_path, expand_user
from condenset.methods import DMRecipe, make_recipe
from condenset.methods.matching.pools.pool import NetworkPool
from condenset.pipeline.datasets import reload_data, relocate, resolve_load_options
from condenset.pipeline.report.run import write_run_report
from condenset.pipeline.request import DEFAULT_IPC, RunRequest
from condenset.runs.context import RunContext
from condenset.runs.directory import (
    check_output_directory,
    claim_run_directory,
    default_run_directory,
    remove_if_empty,
    reopen_run_directory,
)
from condenset.runs.identity import RunIdentity, create_run
from condenset.runs.tasks import open_run_engine

EXPERIMENT = "experiment.toml"

ExperimentSession = Callable[[ExperimentConfig, RunContext], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class FinishedExperiment:
    """A finished experiment.

    Attributes:
        directory: Its directory, with results.json, table.md and figure.png.
        config: Its settings.
        result: Its records, table and figure.
    """

    directory: Path
    config: ExperimentConfig
    result: ExperimentResult


def _no_session(config: ExperimentConfig, run: RunContext) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def start_experiment(
    name: str,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    report: bool = False,
    session: ExperimentSession = _no_session,
    **arguments: Any,
) -> FinishedExperiment:
    """Start an experiment in a new directory. If it fails before it wrote any result, the directory is removed.

    Args:
        name: Name of the experiment.
        out: The directory. None: a new directory in `runs/`, named after the experiment and the dataset.
        overwrite: Replace an earlier run in `out`.
        report: Write the HTML report.
        session: Context manager around the experiment, for progress display and signals: `(config, run) -> context`.
        arguments: Other arguments of `plan_experiment`.
    """
    config, splits = plan_experiment(name, out=out, overwrite=overwrite, **arguments)
    with (
        _open_engine(config) as engine,  # first: if it fails, there is no directory to remove
        claim_run_directory(out, default_directory(config, splits), overwrite=overwrite) as directory,
    ):
        identity = create_run(directory, EXPERIMENT, config_to_toml(config))
        try:
            return _run(config, splits, identity, engine, session, report)
        except UserError:
            identity.verify()  # another run may have taken the place of this one
            remove_if_empty(directory)
            raise


def default_directory(config: ExperimentConfig, splits: Splits) -> Path:
    """Return the directory of an experiment if the user gives none."""
    return default_run_directory(f"{config.experiment}-{splits.train.name}")


def plan_experiment(
    name: str,
    *,
    scale: str,
    dataset: str | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    precision: str | None = None,
    load_fields: Mapping[str, Any] = MappingProxyType({}),
    engine_fields: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> tuple[ExperimentConfig, Splits]:
    """Load the dataset of an experiment, and return its settings and the images. Nothing is written.

    Args:
        name: Name of the experiment.
        scale: One of `SCALES`.
        dataset: Name or path of the dataset. None: that of the paper, and digits at the scale `tiny`.
        data_dir: Directory of the datasets.
        out: The directory, which must be empty or contain a run to overwrite.
        overwrite: Replace an earlier run in `out`.
        device: Device to compute on. None: the best available.
        precision: Precision of the computation. None: the best available.
        load_fields: Fields of `LoadOptions`. If there is no test split, a share of every class is held out.
        engine_fields: Fields of `EngineOptions`.
        fields: Other fields of `ExperimentConfig`.
    """
    experiment = get_experiment(name)
    check_output_directory(out, overwrite=overwrite)  # before the data are loaded, which can take long
    engine_options = EngineOptions(**engine_fields)
    engine_options.check_installed()
    compute = ComputeDevice.select(device, precision)
    absolute_data_dir = absolute_path(data_dir) if data_dir else None
    if dataset is None:
        dataset = "digits" if scale == "tiny" else experiment.dataset
    config = ExperimentConfig(
        experiment=name,
        dataset=absolute_dataset_path(dataset, absolute_data_dir),
        scale=scale,
        device=str(compute.device),
        precision=compute.precision,
        threads=compute.threads and (engine_options.default_threads or compute.threads),
        data_dir=absolute_data_dir,
        engine_options=engine_options,
        load_options=resolve_load_options(load_fields),
        **fields | {"settings": tuple(map(_absolute_pool, fields.get("settings", ())))},
    )
    _check_pools(config.request, out)
    splits, options = load_splits(config.dataset, config.data_dir, config.load_options, needs_test=True)
    train, test = splits.train.fingerprint, splits.require_test().fingerprint
    return dataclasses.replace(config, load_options=options, fingerprint=train, test_fingerprint=test), splits


def resume_experiment(
    directory: Path,
    *,
    moved_to: str | None = None,
    test_moved_to: str | None = None,
    report: bool = False,
    session: ExperimentSession = _no_session,
    engine_fields: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> FinishedExperiment:
    """Continue an experiment. Finished parts are not repeated.

    Args:
        directory: The directory of the experiment.
        moved_to: Path of the dataset now, if it has moved.
        test_moved_to: Path of the test images now, if they were given by their own path and have moved.
        report: Write the HTML report.
        session: As in `start_experiment`.
        engine_fields: Fields of `EngineOptions` that change.
        changes: Settings that may change: `device`, `memory_limit`, `data_dir`.
    """
    if (data_dir := changes.get("data_dir")) is not None:
        changes["data_dir"] = absolute_path(data_dir)
    with reopen_run_directory(directory, EXPERIMENT, read_config) as (stored, identity):
        get_experiment(stored.experiment)
        engine_options = stored.engine_options.override(**engine_fields)
        engine_options.check_installed()
        config = dataclasses.replace(stored, engine_options=engine_options, **changes)
        moved = relocate(config, directory, moved_to, test_moved_to)
        splits = reload_data(config, moved, directory)
        with _open_engine(config) as engine:
            return _run(config, splits, identity, engine, session, report)


def _open_engine(config: ExperimentConfig) -> AbstractContextManager[Engine | None]:
    """Open the engine of an experiment, with the number of CPU threads that the experiment began with."""
    return open_run_engine(config.engine_options, ComputeDevice.select(config.device, config.precision), config.threads)


def _run(
    config: ExperimentConfig,
    splits: Splits,
    identity: RunIdentity,
    engine: Engine | None,
    session: ExperimentSession,
    report: bool,
) -> FinishedExperiment:
    """Run an experiment in its directory."""
    directory, compute = identity.directory, ComputeDevice.select(config.device, config.precision)
    run = RunContext(
        seed=config.seed,
        compute=compute,
        directory=directory,
        identity=identity,
        memory_limit=config.memory_limit,
        engine=engine,
    )
    with session(config, run):
        result = run_experiment(
            config.experiment,
            splits,
            run,
            directory,
            dataset=config.dataset,
            scale=config.scale,
            request=config.request,
            num_sets=config.num_sets,
        )
        if report:
            write_run_report(run)
    return FinishedExperiment(directory=directory, config=config, result=result)


def _absolute_pool(setting: str) -> str:
    """Make the path in a setting `pool=PATH` absolute: the experiment may be resumed from another directory."""
    target, _, path = setting.partition("=")
    is_pool = target.strip().rpartition(".")[2] == "pool" and path.strip()
    return f"{target}={os.path.abspath(expand_user(path.strip()))}" if is_pool else setting


def _check_pools(request: RunRequest, out: Path | None) -> None:
    """Check that pools exist and are not inside a directory that is about to be overwritten."""
    for method in request.methods:
        recipe = make_recipe(method, ipc=DEFAULT_IPC, name="", size=0, **request.fields_for(method))
        if isinstance(recipe, DMRecipe) and recipe.pool:
            if recipe.has_pool:
                NetworkPool.load(recipe.pool)
            if out and is_inside(Path(recipe.pool), out):
                raise UserError(f"{recipe.pool} is inside {out}, which would be overwritten: choose another --out")
