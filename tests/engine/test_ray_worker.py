"""Tests of the actor that collects reports of tasks, and of the check of versions, without Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

from condenset import UserError
from condenset.engine.ray_collector import AttemptReport, TaskCollector
from condenset.engine.ray_worker import VERSIONS, check_versions


def test_collector_returns_changed_files_once() -> None:
    collector = TaskCollector()
    collector.start(1, "10.0.0.1")
    assert not collector.update(1, 0.2, {"checkpoint": b"1"})
    assert not collector.update(1, 0.4, {"checkpoint": b"2", "old": None})
    assert collector.take() == {1: AttemptReport("10.0.0.1", 0.4, {"checkpoint": b"2", "old": None})}
    assert collector.take() == {1: AttemptReport("10.0.0.1", 0.4)}


def test_attempt_that_another_one_has_replaced_is_asked_to_stop() -> None:
    collector = TaskCollector()
    collector.start(1, "10.0.0.1")
    collector.end(1)  # the driver believes that the node is dead
    collector.start(2, "10.0.0.2")
    assert collector.update(1, 0.9, {"checkpoint": b"old"})
    assert not collector.update(2, 0.1, {})
    assert collector.take() == {2: AttemptReport("10.0.0.2", 0.1)}


def test_attempt_that_starts_after_it_was_replaced_is_asked_to_stop() -> None:
    collector = TaskCollector()
    collector.end(1)  # its node was lost before the worker could report
    collector.start(1, "10.0.0.1")
    assert collector.update(1, 0.5, {"checkpoint": b"old"})
    assert collector.take() == {}


def test_stop_request_reaches_the_attempts_that_it_names() -> None:
    collector = TaskCollector()
    collector.request_stop([1])
    collector.start(1, "10.0.0.1")
    collector.start(2, "10.0.0.1")
    assert collector.update(1, 0.1, {})
    assert not collector.update(2, 0.1, {})


def test_process_of_the_collector_does_not_import_torch() -> None:
    program = "import sys, condenset.engine.ray_collector; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


def test_worker_with_another_version_is_refused() -> None:
    check_versions(VERSIONS)
    with pytest.raises(UserError, match=r"all nodes must have torch 1\.0 as the driver, but got '"):
        check_versions({**VERSIONS, "torch": "1.0"})
