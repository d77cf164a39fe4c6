"""The command `condenset status`: what a run is doing, from its files alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from condenset.engine.device import ComputeDevice
from condenset.io.locks import try_lock
from condenset.runs import checkpoint
from condenset.runs.context import RunContext
from condenset.runs.status_writer import StatusProgress
from helpers.command_line import TINY, TINY_NETWORK, CommandProcess, CommandRunner, read_files

ENDLESS = (*TINY_NETWORK, "--iterations", 1_000_000, "--ipc", 1)


@pytest.fixture
def finished_run(condenset: CommandRunner, toy: Path) -> Path:
    assert condenset("run", toy, "--ipc", 1, *TINY, "--out", "a").code == 0
    return Path("a")


def change_status(directory: Path, **changes: Any) -> None:
    path = directory / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def read_report(condenset: CommandRunner, directory: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(condenset("status", directory, "--json").out)
    return report


def test_running_stopped_and_killed_runs(condenset: CommandRunner, tmp_path: Path, toy: Path) -> None:
    process = CommandProcess(("condense", toy, *ENDLESS, "--out", tmp_path / "a"), tmp_path / "output")
    directory = tmp_path / "a"
    process.wait_until(lambda: directory.exists() and (directory / "checkpoint").exists())
    process.wait_until(lambda: read_report(condenset, directory)["step"] > 0)  # the status is written once a second
    report = read_report(condenset, directory)
    assert report["state"] == "running" and report["pid"] == process.process.pid
    assert report["host"] == socket.gethostname() and "cpu" in report["device"]
    assert report["job"].startswith("dm") and 0 < report["step"] < report["total"] == 1_000_000
    assert report["note"].startswith("loss ") and report["remaining_seconds"] > 1
    assert 0 <= report["checkpoint_seconds"] < 30 and 1 <= report["seconds"] < 60
    lines = condenset("status", directory).out
    assert f"running (process {process.process.pid} on {socket.gethostname()})" in lines and "of 1,000,000" in lines
    process.send(signal.SIGINT)
    assert process.wait().code == 130  # reading the status has not disturbed it
    assert read_report(condenset, directory)["state"] == "stopped"
    process = CommandProcess(("resume", directory), tmp_path / "output")
    process.wait_until(lambda: read_report(condenset, directory)["state"] == "running")
    process.send(signal.SIGKILL)
    process.wait()
    change_status(directory, state="running")  # whatever it had written last
    report = read_report(condenset, directory)
    assert report["state"] == "stopped" and report["remaining_seconds"] is None
    assert f"continue with: condenset resume {directory}" in condenset("status", directory).out


def test_finished_run(condenset: CommandRunner, finished_run: Path) -> None:
    before = read_files(finished_run)
    report = read_report(condenset, finished_run)
    assert report["state"] == "finished" and report["error"] == ""
    records = json.loads((finished_run / "results.json").read_text())
    assert report["finished_jobs"] == {f"{r['method']}-1": r["accuracy_mean"] for r in records}
    lines = condenset("status", finished_run).out.splitlines()
    assert next(line for line in lines if line.startswith("finished")).split()[1:3] == ["2:", "random-1"]
    watched = condenset("status", finished_run, "--watch")
    assert watched.code == 0 and watched.out.startswith("finished on ")
    assert "resume" not in watched.out
    assert read_files(finished_run) == before


def test_failed_run(condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "write_tensors", fail)
    options = ("--ipc", 1, *TINY_NETWORK, "--iterations", 5, "--out", "my photos")
    full = "No space left on device; free space, then: condenset resume 'my photos'"
    assert condenset("condense", toy, *options).error_line.endswith(full)
    report = read_report(condenset, Path("my photos"))
    assert report["state"] == "failed" and report["error"].endswith("No space left on device")
    status = condenset("status", "my photos").out
    assert "No space left on device; continue with: condenset resume 'my photos'" in status
    error = condenset("condense", toy, *options).error_line
    assert "already contains a run: resume it with 'condenset resume 'my photos''" in error


def test_the_traceback_of_a_bug_ends_with_the_command_that_continues(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    options = ("--ipc", 1, *TINY_NETWORK, "--iterations", 5, "--out", "a")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", fail)
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
        with pytest.raises(RuntimeError) as error:
            condenset("condense", toy, *options)
    message, hint = traceback.format_exception(error.value)[-2:]
    assert message == "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    assert hint == "condenset: an error stopped the command. Its progress is stored. Resume with: condenset resume a\n"
    assert condenset("resume", "a").code == 0


def test_experiments_and_evaluations(condenset: CommandRunner, finished_run: Path, fast_tiny: None) -> None:
    assert condenset("evaluate", finished_run, "--nets", 1, "--epochs", 1, "--out", "b").code == 0
    report = read_report(condenset, Path("b"))
    assert report["state"] == "finished" and list(report["finished_jobs"]) == [
        f"{name} on {TINY_NETWORK[1]}" for name in ("random-1", "dm-1")
    ]
    assert condenset("paper", "sota", "--scale", "tiny", "--methods", "random", "--ipc", 1, "--out", "c").code == 0
    report = read_report(condenset, Path("c"))
    assert report["state"] == "finished" and report["finished_jobs"]


def test_the_host_of_another_machine_is_named(condenset: CommandRunner, finished_run: Path) -> None:
    change_status(finished_run, state="running", host="node7", updated=time.time(), pid=12)
    assert "running (process 12 on node7)" in condenset("status", finished_run).out
    change_status(finished_run, state="running", host="node7", updated=time.time() - 1000)
    assert "stopped on node7" in condenset("status", finished_run).out
    with try_lock(finished_run) as has_lock:  # a lock that is visible here
        assert has_lock and "running (process 12 on node7)" in condenset("status", finished_run).out


def test_tasks_on_a_cluster_are_counted(condenset: CommandRunner, finished_run: Path) -> None:
    events = [
        {"event": "task", "name": name, "state": state, "node": node, "time": time.time()}
        for name, state, node in (("a", "started", "n1"), ("b", "started", "n2"), ("a", "finished", "n1"))
    ]
    events.append(
        {"event": "task", "name": "c", "state": "started", "node": "n3", "time": 1.0}
    )  # of an earlier process
    events.append({"event": "network", "confusion": "1 " * 2**20})  # long events do not hide those of tasks
    with (finished_run / "events.jsonl").open("a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events))
    assert read_report(condenset, finished_run)["tasks"] == {"finished": 1, "started": 1, "nodes": ["n2"]}
    assert "1 finished, 1 started, on n2" in condenset("status", finished_run).out


def test_a_new_job_is_recorded_before_its_first_step(tmp_path: Path) -> None:
    progress = StatusProgress(RunContext(directory=tmp_path, compute=ComputeDevice.select("cpu")))
    progress.job_label = "2/3"
    for job in ("first", "second"):
        progress.start(job, 10, 4)
        stored = json.loads((tmp_path / "status.json").read_text())
        assert (stored["state"], stored["job"], stored["position"]) == ("running", job, "2/3")
        assert (stored["step"], stored["total"]) == (4, 10)
    progress.update(5)
    assert json.loads((tmp_path / "status.json").read_text())["step"] == 4  # a write per second
    progress.stop()


def test_a_set_with_different_numbers_per_class_has_its_name(condenset: CommandRunner, finished_run: Path) -> None:
    path = finished_run / "results.json"
    path.write_text(json.dumps([{"method": "dm", "ipc": [1, 5], "accuracy_mean": 0.5}]))
    lines = condenset("status", finished_run).out
    assert "dm-1to5 50.0%" in lines
    assert "last job" not in lines and "step" not in lines  # they describe how far a run is


def test_many_finished_jobs_are_shortened(condenset: CommandRunner, finished_run: Path) -> None:
    records = [{"method": "dm", "ipc": ipc, "accuracy_mean": None} for ipc in range(1, 13)]
    (finished_run / "results.json").write_text(json.dumps(records))
    names = ", ".join(f"dm-{ipc}" for ipc in range(3, 13))
    assert f"12: …, {names}\n" in condenset("status", finished_run).out


def test_previous_checkpoint_counts_while_the_last_one_is_written(condenset: CommandRunner, finished_run: Path) -> None:
    assert read_report(condenset, finished_run)["checkpoint_seconds"] is None
    (finished_run / "tasks").mkdir()
    (finished_run / "tasks/dm-1.checkpoint.previous").touch()
    assert 0 <= read_report(condenset, finished_run)["checkpoint_seconds"] < 30


@pytest.mark.parametrize("content", ["", "[" * 10_000, "[]", '{"state": 3, "pid": "x", "step": [], "updated": "x"}'])
def test_damaged_status_is_ignored(condenset: CommandRunner, finished_run: Path, content: str) -> None:
    (finished_run / "status.json").write_text(content)
    report = read_report(condenset, finished_run)
    assert report["state"] == "not running" and report["pid"] is None
    assert condenset("status", finished_run).code == 0


def test_other_directories_are_refused(condenset: CommandRunner, tmp_path: Path) -> None:
    assert "no such directory" in condenset("status", "x").error_line
    assert "is not a run" in condenset("status", tmp_path).error_line
    assert "exclude each other" in condenset("status", tmp_path, "--watch", "--json").error_line


def test_a_status_that_cannot_be_written_does_not_stop_the_run(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("condenset.runs.status_writer.write_file", fail)
    assert condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a").code == 0
    assert not Path("a/status.json").exists()


def test_status_starts_fast() -> None:
    script = (
        "import sys, condenset.cli.status, condenset.runs.status_report; print({'torch', 'numpy'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "set()\n"


def test_a_stopped_run_has_no_remaining_time(condenset: CommandRunner, finished_run: Path) -> None:
    change_status(finished_run, state="stopped", step=5, total=10, remaining_seconds=60.0)
    assert read_report(condenset, finished_run)["remaining_seconds"] is None
    lines = condenset("status", finished_run).out
    assert "5 of 10 (50%)" in lines and "remaining" not in lines


def test_another_process_with_the_number_of_a_killed_run_is_not_the_run(
    condenset: CommandRunner, finished_run: Path
) -> None:
    change_status(finished_run, state="running", pid=os.getpid(), updated=time.time())
    assert read_report(condenset, finished_run)["state"] == "stopped"


def test_watch_prints_a_line_only_when_it_changes(
    condenset: CommandRunner, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[dict[str, Any]] = [{}, {"step": 2}, {"state": "finished"}]
    step = {"step": 1, "total": 4, "note": "", "remaining_seconds": None}
    change_status(finished_run, state="running", host="node7", updated=time.time(), **step)
    monkeypatch.setattr("time.sleep", lambda seconds: change_status(finished_run, **changes.pop(0)))
    steps = [line.split("; ")[-1] for line in condenset("status", finished_run, "--watch").out.splitlines()]
    assert steps[:2] == ["1 of 4 (25%)", "2 of 4 (50%)"] and len(steps) == 3
