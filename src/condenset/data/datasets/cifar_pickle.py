"""Parse the pickles of CIFAR: dicts of texts, lists and uint8 arrays. Nothing that they name is imported or called."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_OPCODES = 1_000_000  # bounds stack, memo and lists; the largest official file has about 200,000
MAX_DEPTH = 100  # of nested lists, tuples and dicts
MAX_KEYS = 100  # of a dict; official files have at most 5
DTYPE_CODES = ("u1", b"u1", "|u1", b"|u1", "uint8")


@dataclass
class ByteArray:
    """A uint8 array in a pickle; `pixels` is None until its content follows."""

    pixels: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _Name:
    """A function or class that a pickle names, such as numpy.dtype."""

    module: str
    name: str


class _UInt8:
    """The data type uint8 in a pickle."""


def parse_cifar_pickle(content: bytes) -> Any:
    """Return the value of a pickle of plain values and uint8 arrays; arrays become `ByteArray`.

    The parser accepts the opcodes that Python writes for such values with the protocols 2 to 5. Memory and time are
    bounded by the size of the content.

    Raises:
        ValueError: The content is not such a pickle.
    """
    return _Parser(content).parse()


class _Parser:
    """A stack machine for a part of pickle's opcodes."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        self.encodable_bytes = len(content)  # a text in the memo could be encoded again and again

    def parse(self) -> Any:
        for _ in range(MAX_OPCODES):
            opcode = self.read(1)
            if opcode == b".":
                return self.pop()
            if opcode not in OPCODES:
                raise ValueError(f"the opcode {opcode!r} at byte {self.position - 1} is not allowed")
            OPCODES[opcode](self)
        raise ValueError(f"it has more than {MAX_OPCODES} opcodes")

    def read(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.content):
            raise ValueError(f"it ends at byte {len(self.content)}, before {size} bytes that it declares")
        part = self.content[self.position : end]
        self.position = end
        return part

    def read_number(self, code: str) -> int:
        """Read a number; `code` is its format in `struct`."""
        number: int = struct.unpack(f"<{code}", self.read(struct.calcsize(f"<{code}")))[0]
        return number

    def read_line(self) -> str:
        end = self.content.find(b"\n", self.position, self.position + 200)
        if end < 0:
            raise ValueError("a name has more than 200 characters")
        return self.read(end + 1 - self.position)[:-1].decode("ascii")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        self.require(len(self.stack) > (self.marks[-1] if self.marks else 0), "a value is missing")
        return self.stack.pop()

    def push_mark(self) -> None:
        self.require(len(self.marks) < MAX_DEPTH, f"values are nested more than {MAX_DEPTH} times")
        self.marks.append(len(self.stack))

    def pop_list(self) -> list[Any]:
        """Return the values above the last mark."""
        self.require(bool(self.marks), "a mark is missing")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def top(self, kind: type[Any]) -> Any:
        value = self.pop()
        self.require(isinstance(value, kind), f"a {kind.__name__} is missing")
        self.push(value)
        return value

    def require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise ValueError(f"{problem} at byte {self.position}")

    def push_tuple(self, size: int) -> None:
        self.push(tuple([self.pop() for _ in range(size)][::-1]))

    def push_memo(self, index: int) -> None:
        self.require(index in self.memo, f"nothing is stored under {index}")
        self.push(self.memo[index])

    def store(self, index: int) -> None:
        self.require(index <= MAX_OPCODES, f"the memo index must be at most {MAX_OPCODES}, but got {index}")
        value = self.pop()
        self.push(value)
        self.memo[index] = value

    def append_items(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        items, keys = self.top(dict), values[::2]
        is_valid = len(values) % 2 == 0 and all(isinstance(key, str | bytes) for key in keys)
        self.require(is_valid, "a dict has a key that is not text")
        items.update(zip(keys, values[1::2], strict=True))
        self.require(len(items) <= MAX_KEYS, f"a dict has more than {MAX_KEYS} keys")

    def push_name(self, module: object, name: object) -> None:
        is_known = isinstance(module, str) and isinstance(name, str) and (module, name) in (*FUNCTIONS, NDARRAY)
        if not is_known:
            raise ValueError(f"{_shorten(module)}.{_shorten(name)} is not allowed in an image dataset")
        self.push(_Name(str(module), str(name)))

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        is_call = isinstance(arguments, tuple) and isinstance(function, _Name)
        key = (function.module, function.name) if is_call else NDARRAY
        self.require(key in FUNCTIONS, "a value that is not a function is called")
        self.push(FUNCTIONS[key](self, arguments))

    def build(self) -> None:
        """Set the content of an array. The state of a data type is ignored: bytes have no byte order."""
        state, target = self.pop(), self.pop()
        if isinstance(target, ByteArray):
            self.require(isinstance(state, tuple) and len(state) == 5, "the content of an array is incomplete")
            _version, shape, dtype, is_fortran, data = state
            target.pixels = self.make_pixels(data, dtype, shape, is_c_order=is_fortran is False)
        self.require(isinstance(target, ByteArray | _UInt8), "a value that is not an array gets content")
        self.push(target)

    def make_pixels(self, data: object, dtype: object, shape: Any, *, is_c_order: bool) -> NDArray[np.uint8]:
        is_bytes = isinstance(dtype, _UInt8) and isinstance(data, bytes)
        self.require(is_bytes and is_c_order, "an array is not of bytes in C order")
        assert isinstance(data, bytes)
        is_shape = isinstance(shape, tuple) and all(type(n) is int and 0 <= n <= len(data) for n in shape)
        self.require(is_shape and math.prod(shape) == len(data), "the shape of an array does not fit its content")
        return np.frombuffer(data, np.uint8).reshape(shape)

    def make_dtype(self, arguments: tuple[Any, ...]) -> _UInt8:
        code = arguments[0] if arguments else None
        self.require(code in DTYPE_CODES, f"an array is not uint8 but {_shorten(code)}")
        return _UInt8()

    def encode(self, arguments: tuple[Any, ...]) -> bytes:
        """Do what codecs.encode does in pickles that Python 3 wrote for Python 2."""
        is_latin = len(arguments) == 2 and isinstance(arguments[0], str) and arguments[1] == "latin1"
        self.require(is_latin, "bytes must be written as latin1 text")
        self.encodable_bytes -= len(arguments[0])
        self.require(self.encodable_bytes >= 0, "more text is encoded than the file contains")
        return str(arguments[0]).encode("latin1")

    def make_from_buffer(self, arguments: tuple[Any, ...]) -> ByteArray:
        self.require(len(arguments) == 4, "the content of an array is incomplete")
        data, dtype, shape, order = arguments
        return ByteArray(self.make_pixels(data, dtype, shape, is_c_order=order == "C"))


NDARRAY = ("numpy", "ndarray")  # an argument of _reconstruct
FUNCTIONS: dict[tuple[str, str], Callable[[_Parser, tuple[Any, ...]], object]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda parser, arguments: ByteArray(),
    ("numpy._core.multiarray", "_reconstruct"): lambda parser, arguments: ByteArray(),
    ("numpy.core.numeric", "_frombuffer"): _Parser.make_from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _Parser.make_from_buffer,
    ("numpy", "dtype"): _Parser.make_dtype,
    ("_codecs", "encode"): _Parser.encode,
}


def _shorten(value: object) -> str:
    """Return the beginning of a text for an error message, or the type of another value."""
    return str(value)[:50] if isinstance(value, str | bytes) else type(value).__name__


def _push_name_from_stack(parser: _Parser) -> None:
    name, module = parser.pop(), parser.pop()
    parser.push_name(module, name)


def _set_item(parser: _Parser) -> None:
    value, key = parser.pop(), parser.pop()
    parser.set_items([key, value])


def _push_text(code: str) -> Callable[[_Parser], None]:
    return lambda parser: parser.push(parser.read(parser.read_number(code)).decode("utf-8"))


def _push_bytes(code: str) -> Callable[[_Parser], None]:
    return lambda parser: parser.push(parser.read(parser.read_number(code)))


def _push_number(code: str) -> Callable[[_Parser], None]:
    return lambda parser: parser.push(parser.read_number(code))


def _push_long(parser: _Parser) -> None:
    size = parser.read_number("B")
    parser.require(size <= 8, "a number has more than 64 bits")
    parser.push(int.from_bytes(parser.read(size), "little", signed=True))


OPCODES: dict[bytes, Callable[[_Parser], object]] = {
    b"\x80": lambda parser: parser.read(1),  # the protocol
    b"\x95": lambda parser: parser.read(8),  # the size of a frame
    b"N": lambda parser: parser.push(None),
    b"\x88": lambda parser: parser.push(True),
    b"\x89": lambda parser: parser.push(False),
    b"K": _push_number("B"),
    b"M": _push_number("H"),
    b"J": _push_number("i"),
    b"\x8a": _push_long,
    b"U": _push_bytes("B"),  # a string of Python 2
    b"T": _push_bytes("I"),
    b"C": _push_bytes("B"),
    b"B": _push_bytes("I"),
    b"\x8e": _push_bytes("Q"),
    b"\x96": _push_bytes("Q"),  # a bytearray
    b"\x8c": _push_text("B"),
    b"X": _push_text("I"),
    b"\x8d": _push_text("Q"),
    b"}": lambda parser: parser.push({}),
    b"]": lambda parser: parser.push([]),
    b")": lambda parser: parser.push(()),
    b"(": lambda parser: parser.push_mark(),
    b"t": lambda parser: parser.push(tuple(parser.pop_list())),
    b"\x85": lambda parser: parser.push_tuple(1),
    b"\x86": lambda parser: parser.push_tuple(2),
    b"\x87": lambda parser: parser.push_tuple(3),
    b"a": lambda parser: parser.append_items([parser.pop()]),
    b"e": lambda parser: parser.append_items(parser.pop_list()),
    b"s": _set_item,
    b"u": lambda parser: parser.set_items(parser.pop_list()),
    b"q": lambda parser: parser.store(parser.read_number("B")),
    b"r": lambda parser: parser.store(parser.read_number("I")),
    b"\x94": lambda parser: parser.store(len(parser.memo)),
    b"h": lambda parser: parser.push_memo(parser.read_number("B")),
    b"j": lambda parser: parser.push_memo(parser.read_number("I")),
    b"c": lambda parser: parser.push_name(parser.read_line(), parser.read_line()),
    b"\x93": _push_name_from_stack,
    b"R": lambda parser: parser.call(),
    b"b": lambda parser: parser.build(),
}
