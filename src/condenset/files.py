"""Files that are written whole or not at all, and tensors read from files nobody vouches for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.errors import UserError, one_line

if TYPE_CHECKING:
    from torch import Tensor


def hashed(value: object) -> str:
    """16 hex digits of whatever JSON can hold: equal values have equal ones."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all: a temporary name, synced, then renamed."""
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
    """Write a .safetensors file, whole or not at all."""
    import safetensors.torch

    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_file(path, safetensors.torch.save(on_host, metadata=dict(metadata)))


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a .safetensors file; sizes are checked against the file before anything is read."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def read_rows(path: str | os.PathLike[str], name: str, rows: Sequence[int]) -> Tensor:
    """Some rows of one tensor of a .safetensors file, the others left on disk; empty where it has no such rows."""
    import torch

    with _opened(path) as file:
        shape = file.get_slice(name).get_shape() if name in file.keys() else []  # noqa: SIM118
        if not shape or not rows or max(rows) >= shape[0]:
            return torch.empty(0)
        return torch.cat([file.get_slice(name)[row : row + 1] for row in rows])


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a .safetensors file alone, however large its tensors are."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A .safetensors file, open; what is none is refused in a line."""
    import safetensors

    if not Path(path).is_file():
        raise UserError(f"no such file: {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path} is not a readable .safetensors file: {one_line(error)}") from None


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool | None]:
    """Whether no other process holds the folder; then this one does for the block, and lets go however it ends.

    None where there are no such locks: on Windows and some network disks.
    """
    if sys.platform == "win32":
        yield None
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        free: bool | None = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except OSError:
            free = None
        yield free
    finally:
        os.close(handle)
