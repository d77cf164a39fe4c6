"""Help, version, exit codes and threads of the command line as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import condenset.__main__
from condenset.cli import main
from helpers.command_line import TINY, TINY_NETWORK, CommandRunner, list_files

COMMANDS = ["run", "compare", "condense", "evaluate", "resume", "show", "methods", "networks", "data", "paper"]
DATA_COMMANDS = ["list", "get", "check", "import"]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), *(["data", name] for name in DATA_COMMANDS)])
def test_every_command_has_help(condenset: CommandRunner, command: list[str]) -> None:
    result = condenset(*command, "--help")
    assert result.code == 0
    assert "Usage: condenset" in result.out
    assert result.err == ""
    assert all(name in result.out for name in (COMMANDS if command == [] else []))


def test_without_arguments_the_help_is_printed(condenset: CommandRunner) -> None:
    assert "Usage: condenset" in condenset().out
    assert condenset().err == ""


def test_version(condenset: CommandRunner) -> None:
    assert condenset("--version").out.startswith("condenset ")


def test_help_does_not_import_torch() -> None:
    script = "import sys, atexit; from condenset.cli import main; "
    script += "atexit.register(lambda: print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)), file=sys.stderr)); "
    script += "main(['run', '--help'])"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--ipc" in process.stdout
    assert process.stderr == "[]\n"


@pytest.mark.parametrize("chosen", [None, "active"])
def test_waiting_threads_leave_their_core(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", chosen or "")
    if not chosen:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr("condenset.cli.main", lambda: None)
    handler = signal.getsignal(signal.SIGINT)
    condenset.__main__.main()
    signal.signal(signal.SIGINT, handler)
    assert os.environ["OMP_WAIT_POLICY"] == (chosen or "passive")


def test_a_closed_pipe_prints_no_traceback() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", "from condenset.cli import main; main(['--version'])"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_ctrl_c_during_imports_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "condenset", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "stopped\n")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("condense", "toy.npz", "--ipc", "1", *TINY_NETWORK, "--iterations", "1", "--out", "a"), 0),
        (("data", "check", "toy.npz"), 0),
        (("condense", "missing.npz"), 2),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_main_runs_in_a_thread(arguments: tuple[str, ...], code: int, toy: Path, tmp_path: Path) -> None:
    codes: list[object] = []

    def run_command() -> None:
        try:
            main(list(arguments))
        except SystemExit as error:
            codes.append(error.code)

    thread = threading.Thread(target=run_command)
    thread.start()
    thread.join()
    assert codes == [code]
    assert (tmp_path / "a" / "sets" / "dm-1.safetensors").exists() == ("a" in arguments)


def test_a_bug_raises(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.pipeline.run.load_splits", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", str(toy), "--ipc", "1", *TINY])


def test_an_end_of_file_in_a_bug_is_no_stop(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_eof(*args: object, **options: object) -> None:
        raise EOFError

    monkeypatch.setattr("condenset.pipeline.run.load_splits", raise_eof)
    with pytest.raises(EOFError):
        main(["run", str(toy), "--ipc", "1", *TINY])


def test_an_error_of_a_real_process_is_one_line(toy: Path, tmp_path: Path) -> None:
    script = [sys.executable, "-c", "from condenset.cli import main; main()"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*script, "run", "toy.npz", "--ipc", "99"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("condenset: ipc must be at most")
    assert len(process.stderr.splitlines()) == 1
    assert list_files(tmp_path) == ["toy.npz"]
