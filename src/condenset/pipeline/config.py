"""Read and write the plan of a run as TOML: the file recipe.toml."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from condenset import __version__
from condenset.config import field_names
from condenset.errors import UserError, check_choice
from condenset.io.bytesize import parse_bytes
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.io.metadata import CONFIG_MARK, format_toml, read_toml
from condenset.methods import METHODS, make_recipe
from condenset.pipeline.plan import WHOLE, Job, Plan
from condenset.pipeline.request import DEFAULT_IPC
from condenset.training.protocol import make_protocol

PROTOCOL_TABLES = ("protocol", "whole")


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan to a TOML file, atomically."""
    with wrap_os_errors(path):
        write_file(path, plan_to_toml(plan).encode())


def plan_to_toml(plan: Plan) -> str:
    """Return the plan as TOML."""
    command = "run" if plan.protocol else "condense"
    tables = ("jobs", *PROTOCOL_TABLES, "explicit")
    names = [item.name for item in dataclasses.fields(plan) if item.name not in tables]
    lines = [f"{CONFIG_MARK}{__version__}: repeat the run with 'condenset {command} --config THIS_FILE'"]
    lines += format_toml({name: getattr(plan, name) for name in names})
    for job in plan.condense_jobs:
        assert job.recipe is not None
        lines += ["", "[[jobs]]", *format_toml({"method": job.method, **dataclasses.asdict(job.recipe)})]
    for table in PROTOCOL_TABLES:
        if protocol := getattr(plan, table):
            lines += ["", f"[{table}]", *format_toml(dataclasses.asdict(protocol))]
    return "\n".join(lines) + "\n"


def read_plan(path: Path) -> Plan:
    """Read a plan from a TOML file.

    Raises:
        UserError: The file cannot be read, or is not a plan.
    """
    values = read_toml(path)
    try:
        return _parse_plan(values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (TypeError, KeyError, AttributeError, ValueError):  # a value of the wrong type, or no jobs
        raise UserError(f"{path} is not a recipe of condenset: give the recipe.toml of a run") from None


def _parse_plan(values: dict[str, Any]) -> Plan:
    """Build a plan from the values of a TOML file."""
    names = [item.name for item in dataclasses.fields(Plan) if item.name != "explicit"]
    for name in values:
        check_choice("a key of the recipe", name, names)
    settings = {name: value for name, value in values.items() if name not in ("jobs", *PROTOCOL_TABLES)}
    if "memory_limit" in settings:
        settings["memory_limit"] = parse_bytes(settings["memory_limit"])
    explicit = {table: dict(values[table]) for table in PROTOCOL_TABLES if table in values}
    for table, fields in explicit.items():
        settings[table] = make_protocol(name="", size=0, whole=table == "whole", **fields)
    jobs = [_parse_job(dict(row)) for row in values["jobs"]]
    if "whole" in explicit:
        jobs.append(Job(method=WHOLE))
    return Plan(jobs=tuple(jobs), explicit=explicit, **settings)


def _parse_job(row: dict[str, Any]) -> Job:
    """Build a job from a row of the table `jobs`."""
    method = row.pop("method")
    names = sorted(field_names(METHODS.lookup(method).recipe))
    for name in row:
        check_choice(f"an option of {method}", name, names)
    fields = {"ipc": DEFAULT_IPC, **row}
    return Job(method=method, recipe=make_recipe(method, name="", size=0, **fields), explicit=fields)
