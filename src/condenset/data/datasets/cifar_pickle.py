"""Read the pickles of CIFAR: dicts of texts, lists and uint8 arrays. Nothing that they name is imported or called."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condenset.errors import format_error

MAX_OPCODES = 1_000_000  # the largest official file has about 200,000
MAX_TUPLES = 1000  # Python recurses into nested tuples that are keys of a dict
MEMO_OPCODES = {"BINPUT", "LONG_BINPUT"}
TUPLE_OPCODES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
OPCODES = {  # that Python 2 and Python 3 write for plain values and arrays
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
    *MEMO_OPCODES,
    *TUPLE_OPCODES,
}


def parse_cifar_pickle(content: bytes) -> Any:
    """Return the value of a pickle of plain values and uint8 arrays; arrays become `ByteArray`.

    Raises:
        ValueError: The content is not such a pickle.
    """
    try:
        _check_opcodes(content)
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged or malicious file can fail in any way
        raise ValueError(format_error(error)) from None


def _check_opcodes(content: bytes) -> None:
    """Check what `pickle` does not: unknown opcodes, sizes beyond the content, and a memo of gigabytes."""
    num_tuples = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        num_tuples += opcode.name in TUPLE_OPCODES
        _require(opcode.name in OPCODES, f"the opcode {opcode.name} is not allowed")
        _require(number < MAX_OPCODES, f"it has more than {MAX_OPCODES} opcodes")
        _require(num_tuples <= MAX_TUPLES, f"it has more than {MAX_TUPLES} tuples")
        if argument is not None and opcode.name in MEMO_OPCODES:
            _require(argument <= MAX_OPCODES, f"a memo index must be at most {MAX_OPCODES}, but got {argument}")


class _Unpickler(pickle.Unpickler):
    """Replace the few functions of NumPy that a CIFAR pickle names, and refuse all others."""

    def find_class(self, module: str, name: str) -> Any:
        # Each call makes a new function, because a pickle can set attributes of the objects that it names.
        match module.replace("numpy._core", "numpy.core"), name:
            case "numpy", "ndarray":
                return None  # an argument of _reconstruct
            case "numpy", "dtype":
                return lambda code, *_: _UInt8(code)
            case "numpy.core.multiarray", "_reconstruct":
                return lambda *_: ByteArray()
            case "numpy.core.numeric", "_frombuffer":
                return lambda data, dtype, shape, order: ByteArray(_make_pixels(data, dtype, shape, order == "C"))
        raise ValueError(f"{module[:50]}.{name[:50]} is not allowed in an image dataset")


@dataclass
class ByteArray:
    """A uint8 array in a pickle; `pixels` is None until its content follows."""

    pixels: NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, is_fortran, data = state
        self.pixels = _make_pixels(data, dtype, shape, is_fortran is False)


class _UInt8:
    """The data type uint8 in a pickle."""

    def __init__(self, code: str | bytes) -> None:
        _require(code in ("u1", b"u1", "|u1", b"|u1"), f"an array is not uint8 but {str(code)[:50]}")

    def __setstate__(self, state: object) -> None:
        """Ignore the state: bytes have no byte order."""


def _make_pixels(data: Any, dtype: Any, shape: Any, is_c_order: bool) -> NDArray[np.uint8]:
    is_bytes = isinstance(data, bytes | bytearray) and isinstance(dtype, _UInt8)
    _require(is_bytes and is_c_order, "an array is not of bytes in C order")
    is_shape = all(type(n) is int and 0 <= n <= len(data) for n in shape) and math.prod(shape) == len(data)
    _require(is_shape, "the shape of an array does not fit its content")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)
