"""Handle SIGINT and SIGTERM: the only place that installs signal handlers."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from condenset.cli.console import print_line, print_lines

if TYPE_CHECKING:
    from condenset.runs.context import RunContext

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOPPING = "\nstopping … (press Ctrl-C again to stop at once)"


class StopHandler:
    """A signal handler that asks a run to stop, or raises KeyboardInterrupt.

    Args:
        run: The run whose loops are asked to stop.
        outer: The handler of the block around this one.

    Attributes:
        received: The signals so far.
        stopped: The end of the command has been announced: further signals are ignored.
    """

    def __init__(self, run: RunContext | None, outer: StopHandler | None) -> None:
        self.run, self.outer = run, outer
        self.received: list[int] = []
        self.stopped = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            return
        self.received.append(number)
        if self.run is not None:
            self.run.stop.requested = number
            if self.run.stop.listening and len(self.received) == 1:
                print_lines(STOPPING, stderr=True)
                return
        raise KeyboardInterrupt

    def ignore_further_signals(self) -> None:
        """Ignore further signals in this block and in all blocks around it."""
        self.stopped = True
        if self.outer:
            self.outer.ignore_further_signals()


@contextlib.contextmanager
def exit_on_signal(run: RunContext | None = None, hint: str | Callable[[], str] = "") -> Iterator[None]:
    """Stop on SIGINT or SIGTERM, print "stopped" and exit with 128 plus the number of the signal.

    A signal raises KeyboardInterrupt, so that temporary files are removed. If a loop of `run` is active, the first
    signal only asks the loop to stop as soon as nothing is lost, and a second one raises. Blocks can be nested. Signals
    after "stopped" are ignored until the outermost block ends.

    Args:
        run: The run whose loops are asked to stop.
        hint: Printed after "stopped": how to continue; or a function that returns it.
    """
    current = [signal.getsignal(number) for number in SIGNALS]
    handler = StopHandler(run, next((outer for outer in current if isinstance(outer, StopHandler)), None))
    # Shells make background processes ignore SIGINT. A run handles it anyway: it can stop without loss.
    with _install(handler, replace_ignored=run is not None):
        try:
            yield
        except BaseException as error:
            received = handler.received
            # A library that a signal interrupts may raise an error of another type instead.
            interrupted = isinstance(error, KeyboardInterrupt) or (bool(received) and isinstance(error, Exception))
            if not interrupted:
                raise
            handler.ignore_further_signals()
            text = hint() if callable(hint) else hint
            print_line(f"stopped. {text}" if text else "stopped", stderr=True)
            raise SystemExit(128 + (received[0] if received else signal.SIGINT)) from None


@contextlib.contextmanager
def _install(handler: StopHandler, *, replace_ignored: bool) -> Iterator[None]:
    """Install a handler for the block. Python allows this only in the main thread; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in SIGNALS if replace_ignored or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)
