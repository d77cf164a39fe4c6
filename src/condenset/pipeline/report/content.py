"""Collect the contents of a report from the files of a run."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from condenset import networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, Splits, one_line
from condenset.data.ipc import name_set
from condenset.errors import UserError, format_command, is_int, is_number
from condenset.io.files import read_file
from condenset.io.metadata import CONFIG_FILES, MAX_TOML_BYTES, check_run_exists
from condenset.networks import to_embedding
from condenset.pipeline.config import read_plan
from condenset.pipeline.datasets import reload_data
from condenset.pipeline.evaluation.config import EVALUATION, read_evaluation
from condenset.pipeline.execute import WHOLE_NETWORK
from condenset.pipeline.plan import WHOLE, Plan, describe_scoring
from condenset.pipeline.report.evaluation import (
    describe_tests,
    explain_test_images,
    label_records,
    name_evaluation_command,
)
from condenset.pipeline.report.snapshot_scores import read_snapshot_scores
from condenset.pipeline.results import RECORD_FIELDS, Record, read_record_file
from condenset.report.html import FeatureNetwork, ReportContent, ReportedSet
from condenset.report.html.content import name_job
from condenset.runs.events import EVENTS, iter_events
from condenset.runs.snapshots import Snapshot, read_snapshots
from condenset.training.network_file import read_network
from condenset.training.protocol import describe_protocol

MAX_FIGURE_BYTES = 1 << 22
NO_RUN = "this report is not about the sets of one run."  # why real images are left out
DEFAULT_NETWORK = "convnet"
PROVENANCE_FIELDS = {  # of a set, by the label in the report
    "condenset": "version",
    "PyTorch": "torch",
    "hardware": "hardware",
    "device": "device",
    "precision": "precision",
    "CPU threads": "threads",
}


def collect_content(directory: Path, splits: Splits | None = None) -> ReportContent:
    """Return the contents of the report of a run, an evaluation or an experiment.

    Args:
        directory: Its directory.
        splits: The images of the run. None: they are loaded again, or left out if they are not found.

    Raises:
        UserError: The directory has no results, or a file is damaged.
    """
    check_run_exists(directory)
    if (directory / "recipe.toml").is_file():
        return _collect_run(directory, splits)
    is_evaluation = (directory / EVALUATION).is_file()
    records = _read_records(directory, ("file", "dataset", "network") if is_evaluation else ())
    if not records:
        raise _no_results(directory)
    if is_evaluation:
        return _collect_evaluation(directory, records)
    return _collect_experiment(directory, records)


def _collect_run(directory: Path, splits: Splits | None) -> ReportContent:
    plan = read_plan(directory / "recipe.toml")
    notices: list[str] = []
    sets = list(_read_sets(plan, directory, notices))
    records = _read_records(directory, RECORD_FIELDS)
    if not sets and not records:
        raise _no_results(directory)
    if len(records) < len(plan.jobs):
        counts = f"{len(records)} of {len(plan.jobs)} results"
        command = format_command("resume", directory)
        notices.append(f"This run is not finished: {counts}. Continue it with '{command}'.")
    data_problem = ""
    if splits is None:
        try:
            splits = reload_data(plan, None, directory)
        except UserError as error:
            data_problem = f"the dataset is not available ({one_line(error)})."
    train = splits.train if splits else None
    has_curve = any(item.snapshots and not item.snapshot_problem for item in sets)
    return ReportContent(
        title=f"{sets[0].condensed.provenance.get('dataset') if sets else Path(plan.dataset).name}, condensed",
        records=[_complete_record(record, plan) for record in records],
        sets=sets,
        steps=list(_iter_steps(directory, {job.name: name_job(job.method, job.ipc) for job in plan.condense_jobs})),
        snapshot_scores=_read_curve(directory, plan, records, sets, notices),
        curve_command=name_curve_command(directory) if plan.protocol and has_curve else "",
        train=train,
        data_problem=data_problem,
        features=_make_features(plan, train, directory) if train else None,
        notices=notices,
        settings=_describe_plan(plan, sets, directory),
        recipes=_read_configs(directory),
    )


def _complete_record(record: Record, plan: Plan) -> Record:
    """Return a record of a run with its label, and with what decides whether accuracies can be compared."""
    scoring = plan.whole if record["method"] == WHOLE else plan.protocol
    label = name_job(record["method"], record["ipc"])
    return {**record, "label": label, "scoring": scoring, "test_fingerprint": plan.test_fingerprint}


def _no_results(directory: Path) -> UserError:
    return UserError(f"{directory} has no results yet: finish it with '{format_command('resume', directory)}'")


def _read_curve(
    directory: Path, plan: Plan, records: list[Record], sets: list[ReportedSet], notices: list[str]
) -> list[Record]:
    """Return the accuracies of the snapshots of each set, and of the set itself as the last point."""
    scores, curve = read_snapshot_scores(directory), list[Record]()
    problems = {item.label: item.snapshot_problem for item in sets if scores}
    for job in plan.condense_jobs:
        label = name_job(job.method, job.ipc)
        if problem := problems.get(label):  # also of scores that an earlier version stored
            notices.append(f"The curve of accuracy leaves out {job.name}: its snapshots cannot be scored, {problem}.")
            continue
        points = [{**score, "label": label} for score in scores if score["job"] == job.name]
        finals = [record for record in records if name_set(record["method"], record["ipc"]) == job.name]
        for record in finals if points else ():
            if job.recipe and "accuracy_mean" in record and record["condense_seconds"] is not None:
                fields = {"seconds": record["condense_seconds"], "accuracy": record["accuracy_mean"]}
                points.append({"label": label, "step": job.recipe.image_steps, **fields})
        curve += sorted(points, key=lambda point: point["seconds"])
    return curve


def name_curve_command(*directories: Path) -> str:
    """Return the command that trains a network on every snapshot of these runs, and writes their report again."""
    out = () if len(directories) == 1 else ("--out", "FILE")
    return format_command("report", *directories, "--nets", 1, *out)


def _collect_evaluation(directory: Path, records: list[Record]) -> ReportContent:
    config = read_evaluation(directory / EVALUATION)
    command = {"command": name_evaluation_command(config, records)}
    return ReportContent(
        title=f"Evaluation {directory.name}",
        answer=explain_test_images(config),
        records=label_records(records),
        data_problem=NO_RUN,
        settings={**command, **_describe_environment(records[0]), **describe_tests(config)},
        recipes=_read_configs(directory),
    )


def _collect_experiment(directory: Path, records: list[Record]) -> ReportContent:
    """Return the contents of an experiment: records, figure and table."""
    title, table = _read_table(directory / "table.md")
    figure = directory / "figure.png"
    return ReportContent(
        title=title.partition(".")[0] or f"Experiment {directory.name}",
        answer=title,
        records=[
            {**record, "label": name_job(record.get("method") or "result", record.get("ipc"))} for record in records
        ],
        data_problem=NO_RUN,
        settings={"command": format_command("resume", directory), **_describe_environment(records[0])},
        recipes=_read_configs(directory),
        figure=read_file(figure, MAX_FIGURE_BYTES) if figure.is_file() else b"",
        table=table,
    )


def _read_sets(plan: Plan, directory: Path, notices: list[str]) -> Iterator[ReportedSet]:
    """Yield the sets of a run with their snapshots."""
    for job in plan.condense_jobs:
        path = plan.set_path(job, directory)
        if path.exists():
            condensed, snapshots = CondensedSet.load(path), list[Snapshot]()
            try:
                snapshots = read_snapshots(directory, condensed)
            except UserError as error:
                notices.append(f"Snapshots of {job.name} are left out: {error}")
            checksum = hashlib.sha256(path.read_bytes()).hexdigest()
            label, name = name_job(job.method, job.ipc), str(path.relative_to(directory))
            yield ReportedSet(label=label, condensed=condensed, snapshots=snapshots, checksum=checksum, file=name)


def _read_records(directory: Path, required: tuple[str, ...]) -> list[Record]:
    path = directory / "results.json"
    return read_record_file(path, required) if path.exists() else []


def _iter_steps(directory: Path, labels: Mapping[str, str]) -> Iterator[Record]:
    """Yield the valid events of iterations, with the label of their set."""
    for event in iter_events(directory / EVENTS):
        label, step = labels.get(str(event.get("job"))), event.get("step")
        values = [event.get("loss"), event.get("seconds")]
        if event.get("event") == "step" and label and is_int(step) and all(map(is_number, values)):
            yield {"label": label, "step": step, "loss": values[0], "seconds": values[1]}


def _make_features(plan: Plan, data: ImageData, directory: Path) -> FeatureNetwork:
    """Return the network of the feature map: one that the run trained on the whole dataset, else a random one."""
    shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
    if plan.whole and networks.is_known(plan.whole.network):
        with contextlib.suppress(UserError):
            network = read_network(directory / WHOLE_NETWORK, plan.whole.network, **shape)
            name = networks.display_name(plan.whole.network)
            return FeatureNetwork(embed=to_embedding(network), description=f"a {name} trained on the whole dataset")
    specs = [plan.protocol.network if plan.protocol else "", DEFAULT_NETWORK]
    spec = next(spec for spec in specs if spec and networks.is_known(spec))
    network = networks.build(spec, **shape, seed=plan.seed % 2**32).eval().requires_grad_(False)
    return FeatureNetwork(
        embed=to_embedding(network), description=f"a {networks.display_name(spec)} with random weights"
    )


def _describe_plan(plan: Plan, sets: list[ReportedSet], directory: Path) -> dict[str, str]:
    """Return how to repeat a run, as text by label."""
    provenance = sets[0].condensed.provenance if sets else {}
    settings = {
        "command": format_command("run" if plan.protocol else "condense", "--config", directory / "recipe.toml"),
        "dataset": plan.dataset,
        "seed": str(plan.seed),
        "scoring": describe_scoring(plan),
        "whole dataset": describe_protocol(plan.whole) if plan.whole else "not scored",
        **{label: str(provenance[name]) for label, name in PROVENANCE_FIELDS.items() if name in provenance},
        "training images": f"fingerprint {plan.fingerprint}",
    }
    label = f"{plan.load_options.scored_on} images"
    return settings | ({label: f"fingerprint {plan.test_fingerprint}"} if plan.test_fingerprint else {})


def _describe_environment(record: Mapping[str, Any]) -> dict[str, str]:
    names = ("experiment", "dataset", "scale", "seed", "version", "hardware", "device", "precision")
    return {name: str(record[name]) for name in names if record.get(name) is not None}


def _read_configs(directory: Path) -> dict[str, str]:
    paths = [directory / name for name in CONFIG_FILES if (directory / name).is_file()]
    return {path.name: read_file(path, MAX_TOML_BYTES).decode(errors="replace") for path in paths}


def _read_table(path: Path) -> tuple[str, list[list[str]]]:
    """Return the title and the rows of the table of an experiment; nothing if there is none."""
    if not path.is_file():
        return "", []
    title, *lines = read_file(path, MAX_TOML_BYTES).decode(errors="replace").splitlines() or [""]
    rows = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]
        for line in lines
        if line.startswith("|") and not line.startswith("| --- ")
    ]
    return title, rows
