"""The command `condenset serve`."""

from __future__ import annotations

import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from helpers.command_line import CommandProcess, CommandRunner
from helpers.run_directories import write_run


def test_serve_until_ctrl_c(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    process = CommandProcess(("serve", tmp_path / "runs", "--port", 0, "--no-open"), tmp_path / "output")
    output = tmp_path / "output" / "out"
    process.wait_until(lambda: output.exists() and "stops the server" in output.read_text())
    match = re.search(r"http://127\.0\.0\.1:\d+/", output.read_text())
    assert match
    with urllib.request.urlopen(f"{match[0]}api/runs", timeout=20) as response:
        assert b'"name": "a"' in response.read()
    process.send(signal.SIGINT)
    result = process.wait()
    assert (result.code, result.err) == (0, "stopped\n")


def test_the_browser_is_opened(condenset: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def stop(url: str) -> None:
        opened.append(url)
        raise KeyboardInterrupt

    (tmp_path / "runs").mkdir()
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", stop)
    condenset("serve", "--port", 0)
    assert len(opened) == 1 and opened[0].startswith("http://127.0.0.1:")


def test_mistakes(condenset: CommandRunner, tmp_path: Path) -> None:
    assert "no such directory: runs; start a run" in condenset("serve").error_line
    assert "port must be" in condenset("serve", tmp_path, "--port", 70000).error_line
    assert "host must be an address" in condenset("serve", tmp_path, "--host", "").error_line
    assert condenset("serve", tmp_path, "--port", "x").error_line == "--port must be a whole number, but got 'x'"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port} is in use" in condenset("serve", tmp_path, "--port", port).error_line
    assert "cannot listen on 192.0.2.1" in condenset("serve", tmp_path, "--host", "192.0.2.1").error_line
