"""A local web page that lists the runs below a directory and their reports.

The server reads files and answers browsers of this machine. It trusts neither the files nor the pages of other sites:

- The `Host` header must name this machine, so that a page of another site cannot reach it under another name.
- Only the page, its style and script, the list of runs and their `report.html` are served.
- A report is isolated from the page and from other reports.
- A request that changes something is a POST with the secret of the page.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from condenset import __version__
from condenset.errors import UserError
from condenset.io.files import read_file
from condenset.report.assets import get_environment, read_asset
from condenset.runs.listing import REPORT, RunList, RunSummary

MAX_REPORT_BYTES = 1 << 28
MAX_ACCURACIES = 8  # of a run, in the list
TIMEOUT_SECONDS = 30.0  # of a connection that sends nothing
PAGE_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
REPORT_POLICY = "sandbox allow-scripts allow-popups allow-downloads"  # the page has its own policy for the rest
ASSETS = {"/report.css": "text/css", "/runs.css": "text/css", "/runs.js": "text/javascript"}

WriteReport = Callable[[Path], Path]


class RunServer(ThreadingHTTPServer):
    """Serves the list of runs below a directory.

    Args:
        directory: The directory.
        host, port: Where to listen. Port 0 selects a free one.
        write_report: Write the report of a run directory, and return its path.
    """

    daemon_threads = True

    def __init__(self, directory: Path, host: str, port: int, write_report: WriteReport) -> None:
        self.directory, self.runs, self.write_report = directory, RunList(directory), write_report
        self.secret, self.names = secrets.token_urlsafe(16), {host.lower(), socket.gethostname().lower(), "localhost"}
        self.list_lock, self.report_lock = threading.Lock(), threading.Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), RunRequestHandler)

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}/"

    def server_bind(self) -> None:
        """Bind the socket without looking up the name of the machine, which can take seconds."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a bug, but ignore browsers that close the connection early."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class RunRequestHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: RunServer
    timeout = TIMEOUT_SECONDS
    server_version, sys_version = "condenset", ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._is_local_host():
            return
        if path == "/":
            self._send(render_page(self.server.directory, self.server.secret), "text/html", policy=PAGE_POLICY)
        elif path in ASSETS:
            self._send(read_asset(path.removeprefix("/")).encode(), ASSETS[path])
        elif path == "/api/runs":
            with self.server.list_lock:
                runs = [describe_run(run) for run in self.server.runs.read()]
            self._send_json({"runs": runs})
        elif (directory := self._find_run(path)) is not None:
            self._send_report(directory)
        else:
            self.send_error(404, "Not found")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        if not self._is_local_host():
            return
        if not secrets.compare_digest(self.headers.get("X-Condenset-Secret", "").encode(), self.server.secret.encode()):
            self.send_error(403, "Reload the page")
        elif (directory := self._find_run(self.path)) is None:
            self.send_error(404, "Not found")
        else:
            try:
                with self.server.report_lock:  # it may take a minute and all cores
                    self.server.write_report(directory)
            except UserError as error:
                self._send_json({"error": str(error)}, code=400)
            else:
                self._send_json({})

    def _is_local_host(self) -> bool:
        """Return whether the request names this machine; otherwise send an error."""
        if is_local_host(self.headers.get("Host", ""), self.server.names):
            return True
        self.send_error(403, "The Host header must name this machine")
        return False

    def _find_run(self, path: str) -> Path | None:
        """Return the run of an address such as `/runs/NAME/report.html`, where the slashes in NAME are encoded."""
        parts = path.split("/")
        if len(parts) != 4 or (parts[0], parts[1], parts[3]) != ("", "runs", REPORT):
            return None
        return self.server.runs.find(unquote(parts[2]))

    def _send_report(self, directory: Path) -> None:
        try:
            content = b"" if (directory / REPORT).is_symlink() else read_file(directory / REPORT, MAX_REPORT_BYTES)
        except UserError:
            content = b""
        if content:
            self._send(content, "text/html", policy=REPORT_POLICY)
        else:
            self.send_error(404, "This run has no report")

    def _send_json(self, value: object, code: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", code=code)

    def _send(self, content: bytes, kind: str, *, code: int = 200, policy: str = "default-src 'none'") -> None:
        self.send_response(code)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the page asks for the list every two seconds."""


def is_local_host(header: str, names: Collection[str]) -> bool:
    """Return whether a Host header is an IP address or one of the names of this machine.

    Another site can register a name that points to this machine, but not an IP address.
    """
    with contextlib.suppress(ValueError):  # neither an address nor a name
        name = urlsplit(f"//{header}").hostname or ""
        return name in names or bool(ipaddress.ip_address(name))
    return False


def describe_run(run: RunSummary) -> dict[str, Any]:
    """Return what the page shows of a run."""
    status = run.status
    is_running = status.state == "running"
    share = status.step / status.total if is_running and status.step is not None and status.total else None
    accuracies = [[name, accuracy] for name, accuracy in status.finished_jobs.items() if accuracy is not None]
    return {
        "name": run.name,
        "directory": status.directory,
        "kind": run.kind,
        "dataset": run.dataset,
        "methods": list(run.methods),
        "state": status.state,
        "error": status.error,
        "job": status.job,
        "position": status.position,
        "note": status.note,
        "share": None if share is None else min(max(share, 0.0), 1.0),
        "remaining_seconds": status.remaining_seconds,
        "seconds": status.seconds,
        "updated_seconds": status.updated_seconds,
        "accuracies": accuracies[-MAX_ACCURACIES:],
        "num_accuracies": len(accuracies),
        "has_report": run.has_report,
    }


def render_page(directory: Path, secret: str) -> bytes:
    """Return the page. Its script fills in the runs."""
    template = get_environment().get_template("runs.html")
    return template.render(directory=str(directory), secret=secret, version=__version__).encode(errors="replace")
