"""Read JSON and TOML from files that may be damaged or come from elsewhere, and write TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.errors import UserError, format_command
from condenset.io.directories import wrap_os_errors
from condenset.io.files import open_file, read_file, read_metadata, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

MAX_BYTES = 1 << 26  # of a JSON file; a thousand long class names need far less
MAX_TOML_BYTES = 1 << 22  # parsing takes about a second per MiB
CONFIG_FILES = ("evaluation.toml", "experiment.toml", "recipe.toml")  # one of them makes a directory a run directory
CONFIG_MARK = "# condenset "  # the beginning of the first line of a config file


def read_json(
    path: Path, description: str, *, hint: str = "", is_valid: Callable[[Any], bool] = lambda value: True
) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        description: What it contains, such as "a list of results"; for the error message.
        hint: What the user can do if the file is invalid.
        is_valid: A function that returns whether the content is valid.

    Raises:
        UserError: The file cannot be read, is not JSON, is too large, or `is_valid` returns False.
    """
    with _append_hint(hint):
        content = read_file(path, MAX_BYTES)
    return _parse_json(content, path, description, hint, is_valid)


def read_tensor_metadata(path: Path, key: str, description: str, *, hint: str = "") -> dict[str, Any]:
    """Read the JSON object that a .safetensors file has under `key`, without reading the tensors."""
    with _append_hint(hint):
        metadata = read_metadata(path)
    return parse_json_object(metadata.get(key), path, description, hint=hint)


def read_tensor_file(
    path: Path, key: str, description: str, *, hint: str = ""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a .safetensors file and the JSON object that it has under `key`."""
    with _append_hint(hint):
        tensors, metadata = read_tensors(path)
    return tensors, parse_json_object(metadata.get(key), path, description, hint=hint)


def parse_json_object(text: str | None, path: Path, description: str, *, hint: str = "") -> dict[str, Any]:
    """Parse a JSON object; a missing or invalid one is a UserError that names the file."""
    content: dict[str, Any] = _parse_json(text or "", path, description, hint, lambda value: isinstance(value, dict))
    return content


def _parse_json(text: str | bytes, path: Path, description: str, hint: str, is_valid: Callable[[Any], bool]) -> Any:
    try:
        content = json.loads(text)
        valid = is_valid(content)
    except (ValueError, RecursionError):  # ValueError: JSON, UTF-8 or a number of thousands of digits
        valid = False
    if not valid:
        raise UserError(f"{path} is not {description}" + (f"; {hint}" if hint else ""))
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise a UserError if it cannot be read or is not TOML."""
    content = read_file(path, MAX_TOML_BYTES)
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: TOML, UTF-8 or a number of thousands of digits
        raise UserError(f"{path} is not TOML: {error}") from None


def format_toml(values: Mapping[str, Any]) -> list[str]:
    """Return lines of TOML; values that are None are left out."""
    # JSON's numbers and strings are valid TOML, except for DEL and the escapes of characters beyond 16 bits.
    texts = {key: json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") for key, value in values.items()}
    return [f"{key} = {text}" for key, text in texts.items() if text != "null"]


def holds_config(directory: Path) -> bool:
    """Return whether a directory contains a config file that condenset wrote; other programs use the names too."""
    with wrap_os_errors(directory, "read"):
        return any(_has_config_mark(path) for path in (directory / name for name in CONFIG_FILES) if path.is_file())


def check_run_exists(directory: Path) -> None:
    """Raise a UserError unless a directory contains a run, an evaluation or an experiment."""
    if not directory.is_dir():
        raise UserError(f"no such directory: {directory}")
    if not holds_config(directory):
        raise UserError(f"{directory} is not a run: give the directory of a run, an evaluation or an experiment")


def check_no_run(directory: Path) -> None:
    """Raise a UserError if a directory contains a run, which a new one would overwrite."""
    if holds_config(directory):
        options = f"resume it with '{format_command('resume', directory)}', choose another --out, or give --overwrite"
        raise UserError(f"{directory} already contains a run: {options}")


def _has_config_mark(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(len(CONFIG_MARK)) == CONFIG_MARK.encode()


@contextmanager
def _append_hint(hint: str) -> Iterator[None]:
    """Append a hint to a UserError that the block raises."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; {hint}" if hint else str(error)) from None
