"""Start and resume an experiment: configure it, claim its directory, run it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from condenset.data.image_data import Splits
from condenset.data.reading.loading import load_splits
from condenset.data.reading.opening import absolute_dataset_path
from condenset.engine.options import EngineOptions
from condenset.engine.tasks import Engine
from condenset.errors import UserError
from condenset.experiments.config import ExperimentConfig, experiment_to_toml, read_experiment
from condenset.experiments.registry import get_experiment
from condenset.experiments.runner import run_experiment
from condenset.experiments.types import ExperimentResult
from condenset.io.directories import is_inside
from condenset.io.user_directories import absolute_path, expand_user
from condenset.methods import DMRecipe, make_recipe
from condenset.methods.pools.pool import NetworkPool
from condenset.pipeline.datasets import reload_data, relocate, resolve_load_options
from condenset.pipeline.report.run import write_run_report
from condenset.pipeline.request import DEFAULT_IPC, RunRequest
from condenset.pipeline.settings import choose_compute, no_session
from condenset.runs.context import RunContext
from condenset.runs.directory import (
    check_output_directory,
    claim_run_directory,
    default_run_directory,
    remove_if_empty,
    reopen_run_directory,
)
from condenset.runs.identity import RunIdentity, create_run

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


def start_experiment(
    name: str,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    report: bool = False,
    session: ExperimentSession = no_session,
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
        config.open_engine() as engine,  # first: if it fails, there is no directory to remove
        claim_run_directory(out, default_directory(config, splits), overwrite=overwrite) as directory,
    ):
        identity = create_run(directory, EXPERIMENT, experiment_to_toml(config))
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
    absolute_data_dir = absolute_path(data_dir) if data_dir else None
    if dataset is None:
        dataset = "digits" if scale == "tiny" else experiment.dataset
    config = ExperimentConfig(
        experiment=name,
        dataset=absolute_dataset_path(dataset, absolute_data_dir),
        scale=scale,
        data_dir=absolute_data_dir,
        load_options=resolve_load_options(load_fields),
        **choose_compute(engine_options, device, precision),
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
    session: ExperimentSession = no_session,
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
    with reopen_run_directory(directory, EXPERIMENT, read_experiment) as (stored, identity):
        get_experiment(stored.experiment)
        config = stored.override(engine_fields, **changes)
        splits = reload_data(config, relocate(config, directory, moved_to, test_moved_to), directory)
        with config.open_engine() as engine:
            return _run(config, splits, identity, engine, session, report)


def _run(
    config: ExperimentConfig,
    splits: Splits,
    identity: RunIdentity,
    engine: Engine | None,
    session: ExperimentSession,
    report: bool,
) -> FinishedExperiment:
    """Run an experiment in its directory."""
    directory, run = identity.directory, config.make_run(identity, engine)
    with session(config, run):
        result = run_experiment(config, splits, run)
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
