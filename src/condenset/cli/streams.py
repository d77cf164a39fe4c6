"""Standard output and error that never stop the work: closed or full streams, and encodings without ± and ×."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

ASCII_TEXTS = {"±": "+/-", "×": "x", "…": "..."}
ENCODING_ERRORS = "condenset"  # the name of the error handler in Python's registry


def replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding does not have: those of tables by ASCII text, others by their escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    texts = (ASCII_TEXTS.get(char) or ascii(char)[1:-1] for char in error.object[error.start : error.end])
    return "".join(texts), error.end


codecs.register_error(ENCODING_ERRORS, replace_unencodable)


class OutputStream:
    """A text stream that records the first failed write instead of raising it, so that the work continues.

    Args:
        stream: The stream to write to. None: it is closed, and nothing is written.
        name: The name in messages.
    """

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self.is_closed = stream is None
        # A file that is opened later must not get the number of the closed stream.
        self.stream = open(os.devnull, "w") if stream is None else stream  # noqa: SIM115
        self.name = name
        self.error: OSError | None = None
        self.previous_errors = getattr(self.stream, "errors", None)
        self._set_errors(ENCODING_ERRORS)

    def write(self, text: str) -> int:
        if self.is_closed:
            self.error = OSError(errno.EBADF, "it is closed")
        try:
            self.stream.write(text)
        except OSError as error:
            self._discard(error)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        """Record an error and discard all further output, also what Python writes when it exits."""
        self.error = self.error or error
        with contextlib.suppress(OSError), open(os.devnull, "w") as null:
            os.dup2(null.fileno(), self.stream.fileno())

    def restore(self) -> None:
        """Write what is buffered, and restore the stream."""
        self.flush()
        self._set_errors(self.previous_errors)
        if self.is_closed:
            self.stream.close()

    def _set_errors(self, handler: str | None) -> None:
        if hasattr(self.stream, "reconfigure"):  # a stream of another library may not have it
            self.stream.reconfigure(errors=handler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def guard_output() -> Iterator[list[OutputStream]]:
    """Replace standard output and error by streams that do not raise, and yield them."""
    streams = [OutputStream(sys.stdout, "standard output"), OutputStream(sys.stderr, "standard error")]
    previous = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in streams)
    try:
        yield streams
    finally:
        for stream in streams:
            stream.restore()
        sys.stdout, sys.stderr = previous
