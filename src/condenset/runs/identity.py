"""The identity of a run: a random id in its directory, and the settings that it began with."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset.config import field_names
from condenset.data.reading.options import LoadOptions
from condenset.engine.options import EngineOptions
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.io.files import json_hash, read_file, write_file
from condenset.io.metadata import MAX_BYTES, parse_json_object, read_toml

IDENTITY = ".run.json"
MAX_NAMES = 5  # of different settings in an error message
# Settings that may change: the data are identified by their fingerprints.
LOCAL_SETTINGS = {
    *("device", "memory_limit", "data_dir", "source", "snapshots"),
    *field_names(LoadOptions),
    *field_names(EngineOptions),
}


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What makes a run unique. Its process checks before each write that the directory still belongs to the run.

    Attributes:
        directory: The directory of the run.
        content: The content of the file, which contains the id.
        settings: The settings that decide the result, when the run began.
    """

    directory: Path
    content: bytes
    settings: Mapping[str, Any]

    @property
    def settings_hash(self) -> str:
        """A hash of the settings, which every record of the run contains."""
        return json_hash(self.settings)

    def verify(self) -> None:
        """Raise a UserError if the directory was deleted, or belongs to another run now."""
        try:
            content = read_file(self.directory / IDENTITY, MAX_BYTES)
        except UserError:
            content = b""
        if content != self.content:
            reason = "was deleted, or belongs to another run now"
            raise UserError(f"{self.directory} {reason}: this process stops and writes nothing more; start a new run")


def create_run(directory: Path, config_name: str, config_text: str) -> RunIdentity:
    """Give a new run its identity, and write its config file.

    Args:
        directory: The directory of the run.
        config_name: Name of the config file, such as recipe.toml.
        config_text: Its content, as TOML.
    """
    identity = _write(directory, _result_settings(tomllib.loads(config_text)))
    with wrap_os_errors(directory / config_name):
        write_file(directory / config_name, config_text.encode())
    return identity


def open_run(directory: Path, config_name: str) -> RunIdentity:
    """Return the identity of a run to resume.

    Raises:
        UserError: The config file has other settings than the run began with.
    """
    path = directory / config_name
    settings = _result_settings(read_toml(path))
    identity = open_directory(directory, settings)
    old, new = dict(_flatten(identity.settings)), dict(_flatten(settings))
    names = sorted({keys[-1] for keys in old.keys() | new.keys() if old.get(keys) != new.get(keys)})
    if names:
        text = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
        raise UserError(f"{path} has changed since the run began (it differs in {text}): restore it or start a new run")
    return identity


def open_directory(directory: Path, settings: Mapping[str, Any]) -> RunIdentity:
    """Return the identity of a directory, or give it one with these settings."""
    path = directory / IDENTITY
    if not path.exists():
        return _write(directory, settings)
    content, hint = read_file(path, MAX_BYTES), "restore it or use another directory"
    stored = parse_json_object(content.decode(errors="replace"), path, "the identity of a run", hint=hint)
    if not isinstance(stored.get("settings"), dict):
        raise UserError(f"{path} is not the identity of a run; {hint}")
    return RunIdentity(directory=directory, content=content, settings=stored["settings"])


def _write(directory: Path, settings: Mapping[str, Any]) -> RunIdentity:
    content = json.dumps({"run_id": os.urandom(16).hex(), "settings": settings}, indent=1).encode() + b"\n"
    with wrap_os_errors(directory / IDENTITY):
        write_file(directory / IDENTITY, content)
    return RunIdentity(directory=directory, content=content, settings=settings)


def _result_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config file that decide the result, as JSON has them."""
    settings = {name: value for name, value in values.items() if name not in LOCAL_SETTINGS}
    if isinstance(jobs := settings.get("jobs"), list):
        settings["jobs"] = [
            {name: value for name, value in job.items() if name != "source"} if isinstance(job, dict) else job
            for job in jobs
        ]
    content: dict[str, Any] = json.loads(json.dumps(settings, default=str))  # TOML has dates
    return content


def _flatten(values: Mapping[Any, Any], parents: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys and the value of each setting, also of those in tables and in lists of tables."""
    for key, value in values.items():
        keys = (*parents, str(key))
        is_table_list = isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)
        table = dict(enumerate(value)) if is_table_list else value
        if isinstance(table, dict):
            yield from _flatten(table, keys)
        else:
            yield keys, value
