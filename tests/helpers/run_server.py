"""A server of runs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from condenset.errors import UserError
from condenset.report.server import RunServer

# It tries to read the list of runs, and shows whether it could.
REPORT = """<title>waiting</title><p>report</p><script>
fetch("/api/runs").then(() => { document.title = "read"; }, () => { document.title = "refused"; });
</script>"""


def write_report(directory: Path) -> Path:
    """Write a small page in place of a report. A directory named `empty` has no results."""
    if directory.name == "empty":
        raise UserError("there are no results")
    path = directory / "report.html"
    path.write_text(REPORT)
    return path


@contextmanager
def serve_runs(directory: Path) -> Iterator[RunServer]:
    """Serve the runs below a directory for the duration of the block."""
    directory.mkdir(exist_ok=True)
    with RunServer(directory, "127.0.0.1", 0, write_report) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
