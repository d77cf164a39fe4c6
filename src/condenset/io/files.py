"""Write files completely or not at all; read tensor files without trusting them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.errors import UserError, format_error

if TYPE_CHECKING:
    from torch import Tensor

MAX_DEFLATE_RATIO = 1032  # bytes that one byte of a gzip or zip file can expand to


def json_hash(value: object) -> str:
    """Return a hash of 16 hex digits of a value that JSON can represent."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def require_file(path: Path) -> int:
    """Return the size of a regular file in bytes; raise a UserError for anything else, such as a pipe."""
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    return path.stat().st_size


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file completely or not at all: write to a temporary name, sync, rename."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a .safetensors file completely or not at all."""
    import safetensors.torch

    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_file(path, safetensors.torch.save(on_host, metadata=dict(metadata)))


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a .safetensors file; sizes are checked before anything is allocated."""
    with _open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def read_rows(path: str | os.PathLike[str], name: str, rows: Sequence[int]) -> Tensor:
    """Return rows of one tensor of a .safetensors file without reading the others; empty if they do not exist."""
    import torch

    with _open_tensors(path) as file:
        shape = file.get_slice(name).get_shape() if name in file.keys() else []  # noqa: SIM118
        if not shape or not rows or max(rows) >= shape[0]:
            return torch.empty(0)
        return torch.cat([file.get_slice(name)[row : row + 1] for row in rows])


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a .safetensors file without reading its tensors."""
    with _open_tensors(path) as file:
        return dict(file.metadata() or {})


@contextlib.contextmanager
def _open_tensors(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a .safetensors file; raise a UserError if it is not one."""
    import safetensors

    if not Path(path).is_file():
        raise UserError(f"no such file: {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path} is not a readable .safetensors file: {format_error(error)}") from None
