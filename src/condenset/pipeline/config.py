"""Read and write the plan of a run as TOML: the file recipe.toml."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from condenset import __version__
from condenset.config import field_names
from condenset.data.reading.options import LoadOptions
from condenset.engine.options import EngineOptions
from condenset.errors import check_choice, check_type
from condenset.io.bytesize import parse_bytes
from condenset.io.metadata import CONFIG_MARK, format_toml
from condenset.methods import METHODS, make_recipe
from condenset.pipeline.plan import WHOLE, Job, Plan
from condenset.pipeline.request import DEFAULT_IPC
from condenset.pipeline.settings import pop_options, read_config
from condenset.training.protocol import make_protocol

PROTOCOL_TABLES = ("protocol", "whole")


def plan_to_toml(plan: Plan) -> str:
    """Return the plan as TOML."""
    command = "run" if plan.protocol else "condense"
    tables = ("jobs", *PROTOCOL_TABLES, "explicit", "load_options", "engine_options")
    names = [item.name for item in dataclasses.fields(plan) if item.name not in ("dataset", *tables)]
    lines = [f"{CONFIG_MARK}{__version__}: repeat the run with 'condenset {command} --config THIS_FILE'"]
    options = plan.engine_options.changed_fields() | plan.load_options.changed_fields()
    lines += format_toml({name: getattr(plan, name) for name in ("dataset", *names)} | options)
    for job in plan.condense_jobs:
        assert job.recipe is not None
        lines += ["", "[[jobs]]", *format_toml({"method": job.method, **job.recipe.config_fields()})]
    for table in PROTOCOL_TABLES:
        if protocol := getattr(plan, table):
            lines += ["", f"[{table}]", *format_toml(dataclasses.asdict(protocol))]
    return "\n".join(lines) + "\n"


def read_plan(path: Path) -> Plan:
    """Read a plan from a TOML file.

    Raises:
        UserError: The file cannot be read, or is not a plan.
    """
    return read_config(path, _parse_plan, "a recipe of condenset: give the recipe.toml of a run")


def _parse_plan(values: dict[str, Any]) -> Plan:
    """Build a plan from the values of a TOML file."""
    names = field_names(Plan) - {"explicit", "load_options", "engine_options"}
    names |= field_names(LoadOptions) | field_names(EngineOptions)
    for name in values:
        check_choice("a key of the recipe", name, sorted(names))
    options = {"engine_options": pop_options(values, EngineOptions), "load_options": pop_options(values, LoadOptions)}
    settings = {name: value for name, value in values.items() if name not in ("jobs", *PROTOCOL_TABLES)} | options
    if "memory_limit" in settings:
        settings["memory_limit"] = parse_bytes(settings["memory_limit"])
    explicit = {table: values[table] for table in PROTOCOL_TABLES if table in values}
    for table, fields in explicit.items():
        check_type(fields, dict, f"{table} must be a table")
        settings[table] = make_protocol(name="", size=0, whole=table == "whole", **fields)
    jobs = [_parse_job(dict(row)) for row in values["jobs"]]
    if "whole" in explicit:
        jobs.append(Job(method=WHOLE))
    return Plan(jobs=tuple(jobs), explicit=explicit, **settings)


def _parse_job(row: dict[str, Any]) -> Job:
    """Build a job from a row of the table `jobs`."""
    method = row.pop("method")
    recipe = METHODS.lookup(method).recipe
    row = {name: value for name, value in row.items() if (name, value) not in recipe.removed_fields.items()}
    if field_names(recipe) - row.keys() <= recipe.added_fields.keys():  # an older version wrote all of its fields
        row = {**recipe.added_fields, **row}
    for name in row:
        check_choice(f"an option of {method}", name, sorted(field_names(recipe)))
    fields = {"ipc": DEFAULT_IPC, **row}
    return Job(method=method, recipe=make_recipe(method, name="", size=0, **fields), explicit=fields)
