"""Tests of tasks in this process, and of the options of an engine."""

from __future__ import annotations

import builtins
import errno
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from condenset import UserError
from condenset.engine import tasks
from condenset.engine.options import EngineOptions
from condenset.engine.tasks import Files, Task, TaskSession, read_files, write_files
from helpers.cluster_tasks import DirectoryMonitor, add
from helpers.local_engine import LocalEngine


class Messages:
    """Record what a session sends."""

    def __init__(self) -> None:
        self.files: list[Files] = []

    def __call__(self, fraction: float, files: Files) -> bool:
        self.files.append(files)
        return False


@pytest.fixture(autouse=True)
def directory_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the directories of tasks below that of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report every time."""
    monkeypatch.setattr(tasks, "REPORT_SECONDS", 0.0)


def test_session_starts_with_the_files_of_the_last_attempt_and_sends_changes(no_interval: None) -> None:
    messages = Messages()
    session = TaskSession({"checkpoint": b"1", "part/old": b"2"}, messages)
    assert read_files(session.directory) == {"checkpoint": b"1", "part/old": b"2"}
    session.report(0.1)
    write_files(session.directory, {"checkpoint": b"3", "part/old": None})
    session.report(0.2)
    session.report(0.3)
    assert messages.files == [{}, {"checkpoint": b"3", "part/old": None}, {}]


def test_logs_are_sent_with_other_files_or_at_the_end(no_interval: None) -> None:
    messages = Messages()

    def work(session: TaskSession) -> str:
        write_files(session.directory, {"events.jsonl": b"a"})
        session.report(0.5)
        write_files(session.directory, {"events.jsonl": b"ab", "checkpoint": b"1"})
        session.report(0.6)
        write_files(session.directory, {"events.jsonl": b"abc"})
        return "result"

    session = TaskSession({}, messages)
    assert session.run(work, ()) == "result"
    assert messages.files == [{}, {"events.jsonl": b"ab", "checkpoint": b"1"}, {"events.jsonl": b"abc"}]
    assert not session.directory.exists()


def test_previous_checkpoint_is_not_sent_but_its_deletion_is(no_interval: None) -> None:
    messages = Messages()
    session = TaskSession({"checkpoint": b"1"}, messages)
    (session.directory / "checkpoint").rename(session.directory / "checkpoint.previous")
    write_files(session.directory, {"checkpoint": b"2"})
    session.report(0.5)
    write_files(session.directory, {"checkpoint": None, "checkpoint.previous": None})
    session.report(0.6)
    assert messages.files == [{"checkpoint": b"2"}, {"checkpoint": None, "checkpoint.previous": None}]


def test_files_are_stored_before_others_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_files(tmp_path, {"checkpoint": b"1"})
    monkeypatch.setattr(tasks, "write_file", fail)
    with pytest.raises(UserError, match="No space left on device"):
        write_files(tmp_path, {"checkpoint": None, "set-0.safetensors": b"2"})
    assert read_files(tmp_path) == {"checkpoint": b"1"}


def test_reports_are_rare(tmp_path: Path) -> None:
    messages = Messages()
    session = TaskSession({}, messages)
    for _ in range(100):
        session.report(0.5)
    assert len(messages.files) == 1


def test_temporary_files_are_not_sent(no_interval: None) -> None:
    messages = Messages()
    session = TaskSession({}, messages)
    (session.directory / ".checkpoint.x.tmp").write_bytes(b"half")
    session.report(0.5)
    assert messages.files == [{}]


def test_local_engine_runs_tasks_in_order(tmp_path: Path) -> None:
    made: list[int] = []

    def make_task(number: int) -> Task:
        def make_arguments() -> tuple[int, int]:
            made.append(number)
            return number, 1

        return Task(key=str(number), name=str(number), function=add, make_arguments=make_arguments)

    results = LocalEngine().run([make_task(number) for number in range(3)], DirectoryMonitor(tmp_path))
    assert next(results) == (0, 1)
    assert made == [0], "arguments are made when a task is handed out"
    assert list(results) == [(1, 2), (2, 3)]


def test_local_engine_ends_after_a_stop_request(tmp_path: Path) -> None:
    def stop(session: TaskSession) -> None:
        raise KeyboardInterrupt

    stopped = [Task(key=key, name=key, function=stop) for key in "ab"]
    assert list(LocalEngine().run(stopped, DirectoryMonitor(tmp_path))) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "spark"}, "engine must be one of local, ray, but got 'spark'"),
        ({"address": "auto"}, "address= must come with engine='ray', but got 'auto'"),
        ({"engine": "ray", "gpus_per_worker": 0}, "gpus_per_worker must be a whole number, or a fraction of one GPU"),
        ({"engine": "ray", "gpus_per_worker": 1.5}, "gpus_per_worker must be a whole number, or a fraction of one GPU"),
    ],
)
def test_bad_options_are_refused(fields: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EngineOptions(**fields)


def test_options_override_those_of_the_same_engine() -> None:
    stored = EngineOptions(engine="ray", address="auto", gpus_per_worker=0.5)
    assert stored.override(gpus_per_worker=2) == EngineOptions(engine="ray", address="auto", gpus_per_worker=2)
    assert stored.override(engine="local") == EngineOptions()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_address_without_a_cluster_is_one_line(address: str) -> None:
    pytest.importorskip("ray")
    options = EngineOptions(engine="ray", address=address)
    with (
        pytest.raises(UserError, match=f"cannot connect to Ray at '{address}': Connection refused"),
        options.open(uses_gpu=False, threads=1),
    ):
        pass


def test_missing_ray_is_one_line_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def refuse_ray(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "ray":
            raise ImportError
        return import_module(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse_ray)
    with pytest.raises(UserError, match=r"needs Ray: install it with 'pip install condenset\[ray\]'"):
        EngineOptions(engine="ray").check_installed()
