"""Settings of an experiment, and experiment.toml, the file that stores them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset import __version__
from condenset.config import MAX_NETWORKS, make_config
from condenset.data.reading.options import LoadOptions
from condenset.engine.options import EngineOptions
from condenset.errors import check, check_choice, check_int
from condenset.experiments.registry import get_experiment, make_request
from condenset.experiments.scales import SCALES
from condenset.io.metadata import format_toml
from condenset.pipeline.request import RunRequest, parse_settings
from condenset.pipeline.settings import RunSettings, pop_options, read_config

LIST_FIELDS: dict[str, tuple[type, str]] = {
    "methods": (str, "names"),
    "ipcs": (int, "whole numbers"),
    "settings": (str, "FIELD=VALUE"),
}


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(RunSettings):
    """The settings that decide the result of an experiment, and the memory limit, which does not change it.

    Attributes:
        experiment: Name of the experiment.
        scale: One of `SCALES`.
        methods: Methods and baselines to compare. Empty: those of the experiment.
        ipcs: Numbers of images per class. Empty: those of the scale.
        settings: Fields of recipes, each FIELD=VALUE or METHOD.FIELD=VALUE.
        schedule: Name of the schedule of the methods that have it. None: the paper's.
        protocol: Name of the evaluation protocol. None: the paper's, or all that the experiment compares.
        num_networks: Networks per set. None: as the scale has it.
        epochs: Epochs on a set. None: as the scale has it.
        whole_epochs: Epochs on the whole dataset. None: as the scale has it.
        num_sets: Number of sets behind an accuracy. None: as the scale has it.
    """

    experiment: str
    scale: str
    methods: tuple[str, ...] = ()
    ipcs: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()
    schedule: str | None = None
    protocol: str | None = None
    num_networks: int | None = None
    epochs: int | None = None
    whole_epochs: int | None = None
    num_sets: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, SCALES)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in LIST_FIELDS:
                object.__setattr__(self, field.name, _check_list(field.name, value))
            elif field.name not in ("load_options", "engine_options"):
                _check_scalar(field, value)

    @property
    def request(self) -> RunRequest:
        """The methods and options that the user asks for."""
        recipe_fields, method_fields = parse_settings(self.settings)
        protocol_fields = {"protocol": self.protocol, "num_networks": self.num_networks, "epochs": self.epochs}
        experiment = get_experiment(self.experiment)
        if self.num_sets is not None:
            check_int("num_sets", self.num_sets, 1, MAX_NETWORKS)
            check(experiment.repeats_sets, "this experiment cannot make several sets", self.num_sets)
        return make_request(
            experiment,
            methods=self.methods,
            ipcs=tuple(dict.fromkeys(self.ipcs)),
            schedule=self.schedule,
            recipe_fields=recipe_fields,
            method_fields=method_fields,
            protocol_fields={name: value for name, value in protocol_fields.items() if value is not None},
            whole_epochs=self.whole_epochs,
        )


def _check_list(name: str, value: Any) -> tuple[Any, ...]:
    """Check that a field is a list of values of one type, and return it as a tuple."""
    item_type, description = LIST_FIELDS[name]
    is_list = isinstance(value, (list, tuple)) and all(type(item) is item_type for item in value)
    check(is_list, f"{name} must be a list of {description}", value)
    return tuple(value)


def _check_scalar(field: dataclasses.Field[Any], value: object) -> None:
    """Check that a field has the type of its annotation; None is valid if it is the default."""
    expected, description = (int, "a whole number") if "int" in str(field.type) else (str, "text")
    valid = isinstance(value, expected) and not isinstance(value, bool)
    check(valid or (value is None and field.default is None), f"{field.name} must be {description}", value)


def experiment_to_toml(config: ExperimentConfig) -> str:
    """Return the content of experiment.toml."""
    header = f"# condenset {__version__}: 'condenset resume' with the directory of this file continues the experiment"
    fields = dataclasses.asdict(config)
    del fields["load_options"], fields["engine_options"]
    options = config.engine_options.changed_fields() | config.load_options.changed_fields()
    return "\n".join([header, *format_toml(fields | options)]) + "\n"


def read_experiment(path: Path) -> ExperimentConfig:
    """Read experiment.toml.

    Raises:
        UserError: The file is damaged or has invalid values.
    """
    return read_config(path, _parse_experiment, "an experiment of condenset: give the directory of an experiment")


def _parse_experiment(values: dict[str, Any]) -> ExperimentConfig:
    options = {"engine_options": pop_options(values, EngineOptions), "load_options": pop_options(values, LoadOptions)}
    return make_config(ExperimentConfig, "a setting of an experiment", values | options)
