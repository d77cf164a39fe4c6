"""The jobs of an evaluation, and evaluation.toml, the file that stores them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from condenset import __version__
from condenset.config import check_bool_fields, check_text_fields, make_config
from condenset.data.reading.options import LoadOptions
from condenset.engine.options import EngineOptions
from condenset.errors import UserError, check, check_int, check_type
from condenset.io.metadata import CONFIG_MARK, format_toml
from condenset.pipeline.settings import ComputeSettings, pop_options, read_config
from condenset.training.protocol import Protocol

EVALUATION = "evaluation.toml"


@dataclass(frozen=True, kw_only=True)
class EvaluationSource:
    """Where the test images of a set come from.

    Attributes:
        dataset: Name or absolute path of the dataset.
        data_dir: Directory of the datasets. None: the default.
        every_image: Test on all images if the dataset has no test split. False: such a dataset is an error.
        options: How to read the images.
    """

    dataset: str
    data_dir: str | None = None
    every_image: bool = False
    options: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        check(isinstance(self.dataset, str) and self.dataset != "", "dataset must be text", self.dataset)
        check(isinstance(self.data_dir, str | None), "data_dir must be text", self.data_dir)
        check_bool_fields(self, "every_image")


def parse_origin(origin: Any, owner: str) -> EvaluationSource | None:
    """Return the dataset that `ImageData.origin` describes, or None if it is None.

    Args:
        origin: The origin, possibly from a file of another author.
        owner: What records it, for the error message.
    """
    if origin is None:
        return None
    try:
        check_type(origin, dict, "the origin must be a table")
        others = {name: value for name, value in origin.items() if name not in ("dataset", "data_dir")}
        options = make_config(LoadOptions, "an option of load", others)
        return EvaluationSource(dataset=origin.get("dataset"), data_dir=origin.get("data_dir"), options=options)
    except UserError as error:
        raise UserError(f"the origin in {owner} is damaged: {error}") from None


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """One set to score on one network.

    Attributes:
        file: Absolute path of the set file.
        fingerprint: Fingerprint of the set.
        seed: Seed of the networks.
        source: The dataset with the test images.
        test_fingerprint: Fingerprint of the test images.
        made_from: Name or path of the dataset that the set was made from. Empty: unknown.
        protocol: How the networks are trained.
    """

    file: str
    fingerprint: str
    seed: int
    source: EvaluationSource
    test_fingerprint: str
    made_from: str
    protocol: Protocol

    def __post_init__(self) -> None:
        check_text_fields(self, "file", "fingerprint", "test_fingerprint", "made_from")
        check_int("seed", self.seed)

    @property
    def name(self) -> str:
        """The name of the job in events and checkpoints."""
        return f"{self.file}, {self.protocol.network}"


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ComputeSettings):
    """Everything that decides the result of an evaluation.

    Attributes:
        jobs: The sets and networks, in the order of the results.
    """

    jobs: tuple[EvaluationJob, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(self.jobs) > 0, "an evaluation must have at least one job", [])


def evaluation_to_toml(config: EvaluationConfig) -> str:
    """Return the content of evaluation.toml."""
    lines = [f"{CONFIG_MARK}{__version__}: 'condenset resume' with the directory of this file continues the evaluation"]
    compute = {"device": config.device, "precision": config.precision, "threads": config.threads}
    lines += format_toml(compute | config.engine_options.changed_fields())
    for job in config.jobs:
        source = {**vars(job.source), **job.source.options.changed_fields()}
        fields = {name: value for name, value in vars(job).items() if name not in ("source", "protocol")}
        lines += ["", "[[jobs]]", *format_toml(fields)]
        lines += ["[jobs.source]", *format_toml({name: value for name, value in source.items() if name != "options"})]
        lines += ["[jobs.protocol]", *format_toml(dataclasses.asdict(job.protocol))]
    return "\n".join(lines) + "\n"


def read_evaluation(path: Path) -> EvaluationConfig:
    """Read evaluation.toml.

    Raises:
        UserError: The file is damaged or has invalid values.
    """
    return read_config(path, _parse_evaluation, "an evaluation of condenset: evaluate the sets again")


def _parse_evaluation(values: dict[str, Any]) -> EvaluationConfig:
    jobs = tuple(_parse_job(row) for row in values.pop("jobs"))
    return EvaluationConfig(jobs=jobs, engine_options=pop_options(values, EngineOptions), **values)


def _parse_job(row: Mapping[str, Any]) -> EvaluationJob:
    fields = {name: value for name, value in row.items() if name not in ("source", "protocol")}
    source = dict(row["source"])
    return EvaluationJob(
        source=EvaluationSource(options=pop_options(source, LoadOptions), **source),
        protocol=make_config(Protocol, "an option of the evaluation", row["protocol"]),
        **fields,
    )
