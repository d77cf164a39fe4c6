"""Run the command line: `condenset`, or `python -m condenset`."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command of this process. Ctrl-C ends it without a traceback, also while modules are imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if a shell has made it ignore SIGINT
        signal.signal(signal.SIGINT, _exit)

    # By default, waiting CPU threads keep their core busy. If another program takes a core, a run is several times
    # slower. PyTorch reads this when it is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from condenset import cli

    try:
        cli.main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt functions of atexit


def _exit(number: int, frame: FrameType | None) -> None:
    """Exit at once: a KeyboardInterrupt within an import can become another error, or be ignored."""
    with contextlib.suppress(OSError):  # stderr is closed
        os.write(2, b"stopped\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
