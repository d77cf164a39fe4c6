"""Start and resume an evaluation: score sets on networks, with a directory like a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from condenset import networks
from condenset.data.condensed_set import CondensedSet
from condenset.engine.options import EngineOptions
from condenset.engine.tasks import Engine
from condenset.errors import UserError, check, option
from condenset.io.directories import is_inside
from condenset.io.user_directories import absolute_path
from condenset.pipeline.evaluation.config import (
    EVALUATION,
    EvaluationConfig,
    EvaluationJob,
    evaluation_to_toml,
    read_evaluation,
)
from condenset.pipeline.evaluation.images import TestImageCache
from condenset.pipeline.evaluation.plan import EvaluationRequest, plan_evaluation
from condenset.pipeline.results import Record, RunResult, make_record, read_results, write_results
from condenset.pipeline.settings import choose_compute, no_session
from condenset.runs.context import RunContext
from condenset.runs.directory import check_output_directory, claim_run_directory, reopen_run_directory
from condenset.runs.events import is_fraction
from condenset.runs.identity import RunIdentity, create_run
from condenset.training.scores import Scores
from condenset.training.scoring import ScoreRequest, score_set, score_together

EvaluationSession = Callable[[EvaluationConfig, RunContext], AbstractContextManager[None]]


def start_evaluation(
    request: EvaluationRequest,
    *,
    out: Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    precision: str | None = None,
    session: EvaluationSession = no_session,
    engine_fields: Mapping[str, Any] = MappingProxyType({}),
) -> RunResult:
    """Score sets in a new directory, and return their records.

    Args:
        request: The sets, the networks and the options.
        out: The directory. None: a new directory `runs/evaluate`.
        overwrite: Replace an earlier run in `out`.
        device: Device to compute on. None: the best available.
        precision: Precision of the computation. None: the best available.
        session: Context manager around the execution, for progress display and signals: `(config, run) -> context`.
        engine_fields: Fields of `EngineOptions`.
    """
    check_output_directory(out, overwrite=overwrite)  # before the data are loaded, which can take long
    engine_options = EngineOptions(**engine_fields)
    engine_options.check_installed()
    compute, cache = choose_compute(engine_options, device, precision), TestImageCache()
    jobs = plan_evaluation(request, cache)
    if out:
        _check_sets_outside(jobs, out)
    config = EvaluationConfig(jobs=jobs, **compute)
    with (
        config.open_engine() as engine,  # first: if it fails, there is no directory to remove
        claim_run_directory(out, Path("runs") / "evaluate", overwrite=overwrite) as directory,
    ):
        return _execute(config, cache, create_run(directory, EVALUATION, evaluation_to_toml(config)), engine, session)


def resume_evaluation(
    directory: Path,
    *,
    moved_to: str | None = None,
    test_moved_to: str | None = None,
    session: EvaluationSession = no_session,
    engine_fields: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> RunResult:
    """Continue an evaluation that was stopped or killed. The result is the same as without the stop.

    Args:
        directory: The directory of the evaluation.
        moved_to: Path of the dataset now, if it has moved.
        test_moved_to: Path of the test images now, if they were given by their own path and have moved.
        session: As in `start_evaluation`.
        engine_fields: Fields of `EngineOptions` that change.
        changes: Settings that may change: `device`, `data_dir`.
    """
    data_dir = changes.pop("data_dir", None)
    if changes.pop("memory_limit", None) is not None:
        raise UserError(f"{option('memory_limit')} has no effect on an evaluation: resume it without")
    with reopen_run_directory(directory, EVALUATION, read_evaluation) as (stored, identity):
        config = stored.override(engine_fields, **changes)
        if data_dir is not None:
            config = dataclasses.replace(config, jobs=tuple(_move_data(job, data_dir) for job in config.jobs))
        if test_moved_to is not None:
            has_own_path = any(job.source.options.test is not None for job in config.jobs)
            check(has_own_path, f"{directory} has no test images of their own path", test_moved_to)
        with config.open_engine() as engine:
            return _execute(config, TestImageCache(moved_to, test_moved_to), identity, engine, session)


def collect_records(config: EvaluationConfig, run: RunContext) -> list[Record]:
    """Return the records of an evaluation so far.

    The record of a job with some networks missing has the number that it will have as `planned_networks`.
    """
    records = _read_finished(run)
    for job in config.jobs:
        if job.name not in records and (partial := _partial_record(job, run)):
            records[job.name] = partial
    return [records[job.name] for job in config.jobs if job.name in records]


def _execute(
    config: EvaluationConfig,
    cache: TestImageCache,
    identity: RunIdentity,
    engine: Engine | None,
    session: EvaluationSession,
) -> RunResult:
    """Execute the jobs that have no result yet."""
    directory, run = identity.directory, config.make_run(identity, engine)
    names, records = [job.name for job in config.jobs], _read_finished(run)
    with session(config, run):
        if engine is not None and any(name not in records for name in names):
            _score_on_engine(config, cache, run)
        for number, job in enumerate(config.jobs, start=1):
            if job.name in records:
                continue
            run.progress.job_label = f"{number}/{len(names)}" if len(names) > 1 else ""
            records[job.name] = _score(job, cache, run)
            run.verify_identity()
            write_results(directory / "results.json", [records[name] for name in names if name in records])
        run.delete_checkpoint()
    return RunResult(directory=directory, records=[records[name] for name in names])


def _score_on_engine(config: EvaluationConfig, cache: TestImageCache, run: RunContext) -> None:
    """Score the sets of all jobs as tasks of the engine, at the same time."""
    files = {job.file: job for job in config.jobs}
    sets = {file: _load_set(job) for file, job in files.items()}
    requests = []
    for job in config.jobs:
        test, job_run = cache.reload(job.source, job.test_fingerprint), run.derive(seed=job.seed, job=job.name)
        requests.append(ScoreRequest(sets[job.file], test, job.protocol, job_run))
    score_together(requests, run)


def _read_finished(run: RunContext) -> dict[str, Record]:
    """Return the records in results.json by the name of their job."""
    assert run.directory is not None
    records = read_results(run.directory, run.settings_hash)
    return {f"{record.get('file')}, {record['network']}": record for record in records}


def _score(job: EvaluationJob, cache: TestImageCache, run: RunContext) -> Record:
    """Score one set on one network."""
    condensed = _load_set(job)
    test = cache.reload(job.source, job.test_fingerprint)
    run.seed, run.job = job.seed, job.name
    run.compute.reset_peak_memory()
    description = f"{Path(job.file).stem} on {networks.display_name(job.protocol.network)}"
    scores = score_set(condensed, test, job.protocol, run, description)
    return _make_record(job, condensed, scores, run)


def _partial_record(job: EvaluationJob, run: RunContext) -> Record | None:
    """Return the record of the networks that have been tested, or None if there are none."""
    run.seed, run.job = job.seed, job.name
    events = [event for event in run.network_events() if is_fraction(event.get("accuracy"))]
    if not events:
        return None
    last = events[-1].get("settings")
    accuracies = {event["net"]: event["accuracy"] for event in events if event.get("settings") == last}
    protocol = dataclasses.asdict(job.protocol)
    scores = Scores(accuracies=tuple(accuracies.values()), network=job.protocol.network, protocol=protocol)
    record = _make_record(job, _load_set(job), scores, run)
    return {**record, "planned_networks": job.protocol.num_networks}


def _make_record(job: EvaluationJob, condensed: CondensedSet, scores: Scores, run: RunContext) -> Record:
    """Return the record of a job. Its `dataset` is the one with the test images."""
    options = job.source.options
    record = make_record(options.test or job.source.dataset, condensed, scores, run, scored_on=options.scored_on)
    return {"file": job.file, "made_from": job.made_from, **record}


def _load_set(job: EvaluationJob) -> CondensedSet:
    condensed = CondensedSet.load(job.file)
    if condensed.fingerprint != job.fingerprint:
        raise UserError(f"{job.file} has changed since the evaluation began: start a new evaluation")
    return condensed


def _check_sets_outside(jobs: Sequence[EvaluationJob], out: Path) -> None:
    """Check that no set is inside a directory that is about to be overwritten."""
    for job in jobs:
        if is_inside(Path(job.file), out):
            raise UserError(f"{job.file} is inside {out}, which would be overwritten: choose another --out")


def _move_data(job: EvaluationJob, data_dir: Path) -> EvaluationJob:
    source = dataclasses.replace(job.source, data_dir=absolute_path(data_dir))
    return dataclasses.replace(job, source=source)
