"""Write files completely or not at all; read files without trusting them: regular files of limited size only."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from condenset.errors import UserError, format_error
from condenset.io.bytesize import format_bytes

if TYPE_CHECKING:
    from torch import Tensor

CGROUP = Path("/sys/fs/cgroup")  # the memory limit of a container on Linux
CHECKSUM = "checksum"  # key in the metadata of a .safetensors file
MAX_DEFLATE_RATIO = 1032  # bytes that one byte of a gzip or zip file can expand to


def json_hash(value: object) -> str:
    """Return a hash of 16 hex digits of a value that JSON can represent."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str], max_bytes: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Pipes and devices, which could block or never end, are errors.

    Args:
        path: The file.
        max_bytes: The largest size that the format allows. None: any size.

    Raises:
        UserError: The file does not exist, is not a regular file, is too large or cannot be opened.
    """
    try:
        file = open(path, "rb", opener=_open_regular)  # noqa: SIM115
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"cannot read {path}: {format_error(error)}") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise UserError(f"{path} must have at most {max_bytes} bytes, but got {size}")
        yield file


def open_for_append(path: Path) -> BinaryIO:
    """Open a regular file for reading and appending, and create it if needed. Symbolic links are an OSError."""
    return open(path, "ab+", opener=lambda name, flags: _open_regular(name, flags | getattr(os, "O_NOFOLLOW", 0)))


def _open_regular(path: str, flags: int) -> int:
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)  # opening a pipe would wait for a writer
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # Python reports a directory
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
    return handle


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes` bytes; raise a UserError for any other."""
    with open_file(path, max_bytes) as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)  # a size is necessary: the file may grow
        except OSError as error:
            raise UserError(f"cannot read {path}: {format_error(error)}") from None


def check_memory(path: str | os.PathLike[str], num_bytes: int) -> None:
    """Raise a UserError if the content of a file exceeds the memory of this machine."""
    memory = physical_memory()
    if num_bytes > memory:
        sizes = f"needs {format_bytes(num_bytes)}, but this machine has {format_bytes(memory)}"
        raise UserError(f"{path} {sizes} of memory: use a machine with more memory")


def physical_memory() -> int:
    """Return the memory of this machine or container in bytes; a large number where the system does not say it."""
    sizes = [1 << 62]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(ValueError, OSError):  # ValueError: "max"
        sizes.append(int((CGROUP / "memory.max").read_text()))
    return min(size for size in sizes if size > 0)


def available_host_memory() -> int:
    """Return the memory of this machine or container that is free or can be freed, in bytes.

    Where the system does not say it, this is all memory.
    """
    sizes = [physical_memory()]
    with contextlib.suppress(ValueError, OSError):  # not Linux
        sizes.append(1024 * _read_count(Path("/proc/meminfo"), "MemAvailable:"))
    with contextlib.suppress(ValueError, OSError):  # ValueError: no limit
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = _read_count(CGROUP / "memory.stat", "inactive_file")
        sizes.append(max(limit - used + cached, 0))
    return min(sizes)


def _read_count(path: Path, name: str) -> int:
    """Return the number after a name in a file with one name per line; raise a ValueError if it is missing."""
    rows = dict(line.split()[:2] for line in path.read_text().splitlines())
    return int(rows.get(name, ""))


def write_file(path: str | os.PathLike[str], *parts: bytes | memoryview, sync: bool = True) -> None:
    """Write the parts of a file completely or not at all: write to a temporary name, sync, rename.

    Without `sync`, which takes time, a power cut can lose the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    file = temporary.open("xb")  # a new file, with the permissions of any file
    try:
        with file:
            file.writelines(parts)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a .safetensors file completely or not at all. Its metadata get a checksum of tensors and metadata."""
    import safetensors.torch

    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    checksum = _compute_checksum(on_host, metadata)
    content = memoryview(safetensors.torch.save(on_host, metadata={**metadata, CHECKSUM: checksum}))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8 : 8 + size]))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # safetensors writes it in random order
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8 bytes
    write_file(path, len(text).to_bytes(8, "little"), text, content[8 + size :])


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a file that `write_tensors` wrote.

    Sizes are checked before anything is allocated. A file that does not match its checksum is a UserError.
    """
    with open_file(path) as stored:
        check_memory(path, os.fstat(stored.fileno()).st_size)
    with _open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata() or {})
    checksum = metadata.pop(CHECKSUM, None)
    if checksum is None:
        raise UserError(f"{path} has no checksum: it is damaged, or not a file of condenset")
    if checksum != _compute_checksum(tensors, metadata):
        raise UserError(f"{path} is damaged: its content does not match its checksum")
    return tensors, metadata


def _compute_checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return a hash of names, types, shapes and values of tensors on the host, and of the metadata."""
    import torch

    layout = {name: (str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors.items()}
    header = json.dumps([layout, dict(metadata)], sort_keys=True)
    digest = hashlib.blake2b(header.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


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

    with open_file(path):
        pass  # it is a regular file and can be read
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, RuntimeError, OverflowError, OSError) as error:
        raise UserError(f"{path} is not a readable .safetensors file: {format_error(error)}") from None
