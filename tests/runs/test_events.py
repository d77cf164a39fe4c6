"""The log of a run, events.jsonl."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from condenset import UserError
from condenset.runs.events import EVENTS, append_event, is_fraction, iter_events
from helpers.loops import make_run


def test_invalid_events_of_networks_are_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    invalid_nets, invalid_seconds = ("0", True, -1, None), ("1", True, 10**400, float("nan"))
    invalid = [*({"net": net} for net in invalid_nets), *({"seconds": seconds} for seconds in invalid_seconds)]
    for fields in (*invalid, {"settings": "b"}, {"settings": []}):
        run.log_event("network", **{"net": 0, "seconds": 1.0, "settings": "a", "accuracy": 0.5, **fields})
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("9" * 5000 + "\n[\n3\n")  # Python refuses to parse the first number
    run.log_event("network", net=1, seconds=2, settings="a", accuracy=0.5)
    assert [event["net"] for event in run.network_events(settings="a")] == [1]


def test_fractions() -> None:
    assert all(map(is_fraction, (0, 0.5, 1)))
    assert not any(map(is_fraction, (1.01, -0.1, "1", True, None, float("nan"))))


def test_damaged_lines_are_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.log_event("network", net=0, accuracy=0.1 + 0.2)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b"[" * 100_000 + b'\n[1]\n"text"\n\xff\xfe\n{"event": "network", "job": "dm-1", "net"')
    make_run(tmp_path, job="dm-10").log_event("network", net=0)
    assert [event["accuracy"] for event in run.read_events("network")] == [0.1 + 0.2]


def test_events_of_one_kind_are_read(tmp_path: Path) -> None:
    events = [{"event": "task", "name": "a"}, {"event": "network", "name": "task"}, {"event": "task", "name": "b"}]
    for event in events:
        append_event(tmp_path / EVENTS, event)
    assert list(iter_events(tmp_path / EVENTS, "task")) == [events[0], events[2]]


def test_event_after_an_incomplete_line_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.log_event("network", net=0)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "netw')
    run.log_event("network", net=1)
    assert [event["net"] for event in run.read_events("network")] == [0, 1]


def test_full_disk_is_a_user_error(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # of Unix
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write to .*events.jsonl: File too large"):
            make_run(tmp_path).log_event("step", loss=1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_links_and_pipes_are_not_written_to(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    (tmp_path / "other").touch()
    events.symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match=r"cannot write to .*events.jsonl: .*symbolic links"):
        make_run(tmp_path).log_event("step", loss=1.0)
    assert (tmp_path / "other").read_bytes() == b""
    events.unlink()
    os.mkfifo(events)
    for action in (lambda run: run.log_event("step"), lambda run: run.read_events("step")):
        with pytest.raises(UserError, match=r"events.jsonl: it is a pipe or a device"):
            action(make_run(tmp_path))


def test_long_lines_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.events.MAX_LINE_BYTES", 100)
    run = make_run(tmp_path)
    run.log_event("step", text="x" * 100)
    run.log_event("step", text="")
    assert [event["text"] for event in run.read_events("step")] == [""]


def test_predictions_of_many_test_images_are_read_again(tmp_path: Path) -> None:
    run, counts = make_run(tmp_path), [999_999, 1] * 200_000
    run.log_event("network", confusion=counts)
    assert run.read_events("network")[0]["confusion"] == counts
