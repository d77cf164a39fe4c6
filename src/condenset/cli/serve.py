"""The command `condenset serve`."""

from __future__ import annotations

import errno
import ipaddress
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from condenset.cli.console import print_line
from condenset.cli.options import expand_path
from condenset.errors import UserError, check, check_int

if TYPE_CHECKING:
    from condenset.report.server import RunServer

MAX_PORT = 65535


def serve_command(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", callback=expand_path, help="Directory whose runs are listed (default: runs)."
        ),
    ] = Path("runs"),
    port: Annotated[
        int, typer.Option(metavar="NUMBER", help="Port to listen on; 0 selects a free one (default: 8000).")
    ] = 8000,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on (default: 127.0.0.1, for this machine only)."),
    ] = "127.0.0.1",
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser (default: --open).")
    ] = True,
) -> None:
    """Show all runs below a directory in the browser: progress, accuracies and reports. Ctrl-C stops it."""
    check_int("port", port, 0, MAX_PORT)
    check(bool(host), "host must be an address such as 127.0.0.1", host)  # an empty one would mean all addresses
    if not directory.is_dir():
        raise UserError(f"no such directory: {directory}; start a run, or give the directory of your runs")
    with _listen(directory, host, port) as server:
        print_line(f"The runs in {directory} are at {server.url} (Ctrl-C stops the server)")
        sys.stdout.flush()
        if not _is_loopback(host):
            print_line("Everyone who can reach this address can read the runs, and have reports written.", stderr=True)
        if open_browser and _has_display():
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print_line("stopped", stderr=True)


def _listen(directory: Path, host: str, port: int) -> RunServer:
    from condenset.report.server import RunServer

    try:
        return RunServer(directory.absolute(), host, port, _write_report)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use: give another one with --port, or 0 for a free one") from None
        raise UserError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None


def _write_report(directory: Path) -> Path:
    import condenset

    return condenset.write_report(directory, verbose=False)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _has_display() -> bool:
    """Return whether a browser can open a window. Without one, Python would start a browser for terminals."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
