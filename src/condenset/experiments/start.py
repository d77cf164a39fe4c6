"""Start and resume an experiment: configure it, claim its directory, run it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset import data
from condenset.data.image_data import Splits
from condenset.engine.device import ComputeDevice
from condenset.errors import UserError
from condenset.experiments.config import ExperimentConfig, config_to_toml, read_config
from condenset.experiments.registry import get_experiment
from condenset.experiments.runner import run_experiment
from condenset.experiments.types import ExperimentResult
from condenset.io.directories import lock_directory, wrap_os_errors
from condenset.io.files import write_file
from condenset.methods.matching.pool import NetworkPool
from condenset.pipeline.datasets import absolute_dataset_path, reload_data
from condenset.pipeline.request import RunRequest
from condenset.runs.context import RunContext
from condenset.runs.directory import (
    check_output_directory,
    claim_run_directory,
    remove_if_empty,
    remove_temporary_run_files,
)

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
    scale: str,
    dataset: str | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    precision: str | None = None,
    session: ExperimentSession = _no_session,
    **fields: Any,
) -> FinishedExperiment:
    """Start an experiment in a new directory. If it fails before its first part is done, the directory is removed.

    Args:
        name: Name of the experiment.
        scale: One of `SCALES`.
        dataset: Name or path of the dataset. None: that of the paper, and digits at the scale `tiny`.
        data_dir: Directory of the datasets.
        out: The directory. None: a new directory in `runs/`, named after the experiment and the dataset.
        overwrite: Replace an earlier run in `out`.
        device: Device to compute on. None: the best available.
        precision: Precision of the computation. None: the best available.
        session: Context manager around the experiment, for progress display and signals: `(config, run) -> context`.
        fields: Other fields of `ExperimentConfig`.
    """
    experiment = get_experiment(name)
    check_output_directory(out, overwrite=overwrite)  # before the data are loaded, which can take long
    compute = ComputeDevice.select(device, precision)
    absolute_data_dir = str(data_dir.absolute()) if data_dir else None
    if dataset is not None:
        dataset = absolute_dataset_path(dataset, absolute_data_dir)
    config = ExperimentConfig(
        experiment=name,
        dataset=dataset or ("digits" if scale == "tiny" else experiment.dataset),
        scale=scale,
        device=str(compute.device),
        precision=compute.precision,
        data_dir=absolute_data_dir,
        **fields | {"settings": tuple(map(_absolute_pool, fields.get("settings", ())))},
    )
    _check_pools(config.request, out)
    splits = data.load(config.dataset, data_dir=config.data_dir, size=config.size)
    train, test = splits.train.fingerprint, splits.test.fingerprint
    config = dataclasses.replace(config, fingerprint=train, test_fingerprint=test)
    with claim_run_directory(out, Path("runs") / f"{name}-{splits.train.name}", overwrite=overwrite) as directory:
        with wrap_os_errors(directory):
            write_file(directory / "experiment.toml", config_to_toml(config).encode())
        try:
            return _run(config, splits, directory, session)
        except UserError:
            remove_if_empty(directory)
            raise


def resume_experiment(
    directory: Path, *, moved_to: str | None = None, session: ExperimentSession = _no_session, **changes: Any
) -> FinishedExperiment:
    """Continue an experiment. Finished parts are not repeated.

    Args:
        directory: The directory of the experiment.
        moved_to: Path of the dataset now, if it has moved.
        session: As in `start_experiment`.
        changes: Settings that may change: `device`, `memory_limit`, `data_dir`.
    """
    if (data_dir := changes.get("data_dir")) is not None:
        changes["data_dir"] = str(Path(data_dir).absolute())
    with lock_directory(directory):
        config = dataclasses.replace(read_config(directory / "experiment.toml"), **changes)
        get_experiment(config.experiment)
        with wrap_os_errors(directory):
            remove_temporary_run_files(directory)
        moved_to = absolute_dataset_path(moved_to, config.data_dir) if moved_to else None
        return _run(config, reload_data(config, directory, moved_to), directory, session)


def _run(config: ExperimentConfig, splits: Splits, directory: Path, session: ExperimentSession) -> FinishedExperiment:
    compute = ComputeDevice.select(config.device, config.precision)
    run = RunContext(seed=config.seed, compute=compute, directory=directory, memory_limit=config.memory_limit)
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
    return FinishedExperiment(directory=directory, config=config, result=result)


def _absolute_pool(setting: str) -> str:
    """Make the path in a setting `pool=PATH` absolute: the experiment may be resumed from another directory."""
    target, _, path = setting.partition("=")
    is_pool = target.strip().rpartition(".")[2] == "pool" and path.strip()
    # os.path, because Path.expanduser raises for an unknown user.
    return f"{target}={os.path.abspath(os.path.expanduser(path.strip()))}" if is_pool else setting


def _check_pools(request: RunRequest, out: Path | None) -> None:
    """Check that pools exist and are not inside a directory that is about to be overwritten."""
    for fields in (request.recipe_fields, *request.method_fields.values()):
        if pool := fields.get("pool"):
            NetworkPool.load(pool)
            if out and Path(pool).resolve().is_relative_to(out.resolve()):
                raise UserError(f"{pool} is inside {out}, which would be overwritten: choose another --out")
