"""What a report says about an evaluation: labels of its records, and how to repeat it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from condenset.errors import format_command
from condenset.pipeline.evaluation.config import EvaluationConfig, EvaluationJob
from condenset.pipeline.evaluation.plan import OWN
from condenset.pipeline.results import Record
from condenset.pipeline.sets import shortest_names
from condenset.training.protocol import Protocol, describe_protocol

Value = TypeVar("Value")


def label_records(records: Sequence[Record]) -> list[Record]:
    """Return the records with labels: set and network, and the dataset of the test images if there are several."""
    sets, datasets = (_name_paths(record[field] for record in records) for field in ("file", "dataset"))
    labelled = []
    for record in records:
        tested = f", tested on {datasets[record['dataset']]}" if len(datasets) > 1 else ""
        label = f"{sets[record['file']].removesuffix('.safetensors')} on {record['network']}{tested}"
        labelled.append({**record, "label": label})
    return labelled


def _name_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return the shortest names that tell paths apart, by path."""
    unique = list(dict.fromkeys(paths))
    return dict(zip(unique, shortest_names([Path(path) for path in unique]), strict=True))


def explain_test_images(config: EvaluationConfig) -> str:
    """Return why the accuracies cannot be compared, as the first sentence of the page. Empty: they can."""
    has_one_test = len({job.test_fingerprint for job in config.jobs}) == 1
    return "" if has_one_test else "The accuracies of sets that are tested on different images cannot be compared."


def describe_tests(config: EvaluationConfig) -> dict[str, str]:
    """Return on which images, with which seeds and how the sets were scored, as text by label."""
    sources = [(job.source.dataset, job.source.options, job.test_fingerprint) for job in config.jobs]
    return {
        "dataset": _join(
            f"{options.test or dataset} ({options.scored_on} images: fingerprint {fingerprint})"
            for dataset, options, fingerprint in sources
        ),
        "seed": _join(str(job.seed) for job in config.jobs),
        "scoring": _join(describe_protocol(job.protocol) for job in config.jobs),
    }


def _join(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def name_evaluation_command(config: EvaluationConfig, records: Sequence[Record]) -> str:
    """Return the command that repeats an evaluation: its sets, and the options that all jobs have in common.

    Where they differ, such as in the dataset, each set has its own, which is the default of the command.
    """
    # Records of sets that contain the steps of the training have no other length.
    with_steps = {record["file"] for record in records if not record.keys() & {"epochs", "steps"}}
    words: list[object] = ["evaluate", *dict.fromkeys(job.file for job in config.jobs)]
    options = [_list_options(job, has_steps=job.file in with_steps) for job in config.jobs]
    for name in dict.fromkeys(name for job_options in options for name in job_options):
        if (value := _find_common(job_options.get(name) for job_options in options)) is not None:
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, value]
    networks: dict[str, list[str]] = {}
    for job in config.jobs:
        networks.setdefault(job.file, []).append(job.protocol.network)
    for network in _find_common(map(tuple, networks.values())) or (OWN,):
        words += ["--network", network]
    return format_command(*words)


def _list_options(job: EvaluationJob, *, has_steps: bool) -> dict[str, Any]:
    """Return the options of a job by the name of their flag, except the network."""
    source, protocol = job.source, job.protocol
    options: dict[str, Any] = {"dataset": source.dataset if source.every_image else None, "data_dir": source.data_dir}
    options |= source.options.changed_fields()
    options |= {"own_steps": protocol.learned_steps or None, "nets": protocol.num_networks, "seed": job.seed}
    if has_steps:
        return options
    names = ("network", "num_networks", "epochs", "augment", "learned_steps")
    fields = {name: getattr(protocol, name) for name in names}
    named = {"paper": Protocol(**fields), "modern": Protocol.modern(**fields)}
    name = next((name for name, other in named.items() if other == protocol), None)  # None: of the run of the set
    epochs = None if protocol.steps else protocol.epochs
    return {**options, "protocol": name, "epochs": epochs, "augment": protocol.augment}


def _find_common(values: Iterable[Value]) -> Value | None:
    """Return the value if all are equal, else None."""
    unique = list(dict.fromkeys(values))
    return unique[0] if len(unique) == 1 else None
