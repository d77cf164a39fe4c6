from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from shell import names
from torch import Tensor

from condenset import UserError, folders, runs
from condenset.engine import Place
from condenset.files import write_tensors
from condenset.runs import Interrupted, Run, is_share, iterate

CPU = Place.best("cpu", "float32")


@pytest.fixture(autouse=True)
def settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)


def new_run(folder: Path | None, **fields: object) -> Run:
    values: dict[str, object] = {"place": CPU, "folder": folder, "job": "dm-1", "recipe": {"lr": 1.0}, **fields}
    return Run(**values)  # type: ignore[arg-type]


def new_state() -> dict[str, Tensor]:
    return {"images": torch.zeros(2), "losses": torch.zeros(4), "clock": torch.zeros((), dtype=torch.int64)}


def counting(state: dict[str, Tensor], spoil: Callable[[int], None] = lambda i: None) -> Callable[[], Callable]:
    """A step that adds 1 to the images, and may do worse at some iteration."""

    def step(i: int) -> None:
        assert int(state["clock"]) == i
        state["images"] += 1
        state["losses"][i % 4] = 1 / (i + 1)
        state["clock"] += 1
        spoil(i)

    return lambda: step


def saved(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "checkpoint")


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path) -> None:
    state = new_state()
    iterate(new_run(None), state, 9, counting(state), "")
    assert state["images"].tolist() == [9, 9]
    assert names(tmp_path) == []


def test_a_stop_checkpoints_and_the_next_run_goes_on(tmp_path: Path) -> None:
    run, state = new_run(tmp_path), new_state()

    def stop(i: int) -> None:
        run.stop_requested = i == 4

    with pytest.raises(Interrupted):
        iterate(run, state, 9, counting(state, stop), "")
    assert saved(tmp_path)["images"].tolist() == [5, 5]
    assert not run.listening
    again = new_state()
    run = new_run(tmp_path)
    iterate(run, again, 9, counting(again), "")
    assert again["images"].tolist() == [9, 9]
    assert [event["step"] for event in run.events("step")] == list(range(1, 10))
    run.drop_checkpoint()
    assert names(tmp_path) == ["events.jsonl"]


def test_seconds_add_up_over_a_resume(tmp_path: Path) -> None:
    run, state = new_run(tmp_path), new_state()
    run.checkpoint(9, 100.0, state, force=True)
    assert iterate(new_run(tmp_path), new_state(), 9, counting(state), "") >= 100


def test_events_of_networks_that_say_nothing_are_passed_over(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    odd_nets, odd_seconds = ("0", True, -1, None), ("1", True, 10**400, float("nan"))
    odds = [*({"net": net} for net in odd_nets), *({"seconds": each} for each in odd_seconds)]
    for odd in (*odds, {"way": "b"}, {"way": []}):
        run.event("network", **{"net": 0, "seconds": 1.0, "way": "a", "accuracy": 0.5, **odd})
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write("9" * 5000 + "\n[\n3\n")  # the first is a number that Python refuses to read
    run.event("network", net=1, seconds=2, way="a", accuracy=0.5)
    assert [event["net"] for event in run.networks(way="a")] == [1]
    assert [is_share(each) for each in (0, 0.5, 1, 1.01, -0.1, "1", True, None, float("nan"))] == [True] * 3 + [
        False
    ] * 6


def test_to_make_a_step_ready_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(runs.time, "monotonic", lambda: now)

    def prepare() -> Callable[[int], None]:
        nonlocal now
        now += 60  # as compiling does

        def step(i: int) -> None:
            nonlocal now
            now += 1

        return step

    assert iterate(new_run(tmp_path), new_state(), 9, prepare, "") == 69
    new_run(tmp_path).checkpoint(5, 65.0, new_state(), force=True)
    assert iterate(new_run(tmp_path), new_state(), 9, prepare, "") == 69


def test_no_checkpoint_before_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 1e9)
    state = new_state()
    iterate(new_run(tmp_path), state, 9, counting(state), "")
    assert names(tmp_path) == ["events.jsonl"]


def test_a_checkpoint_that_takes_long_comes_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = 0.0, []

    def write(*_: object) -> None:
        nonlocal now
        written.append(now)
        now += 3.0

    def stall(*_: object) -> None:
        nonlocal now
        write()
        now += 100.0

    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 30.0)
    monkeypatch.setattr(runs, "write_tensors", write)
    monkeypatch.setattr(runs.time, "monotonic", lambda: now)
    run, state = new_run(tmp_path, _last_save=0.0), new_state()
    for step in range(1000):
        now += 1.0
        run.checkpoint(step, 0.0, state)
    assert written[0] == 30.0
    assert written[1] - written[0] == 3.0 + 150.0  # a fiftieth of the time
    assert len(written) == 7
    now += 3000.0
    monkeypatch.setattr(runs, "write_tensors", stall)
    run.checkpoint(1000, 0.0, state)
    now += 600.0
    run.checkpoint(1001, 0.0, state)
    assert len(written) == 9  # after ten minutes at the latest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_names_iteration_and_checkpoint(tmp_path: Path, value: float) -> None:
    state = new_state()

    def spoil(i: int) -> None:
        if i == 6:
            state["losses"][i % 4] = value

    with pytest.raises(UserError) as caught:
        iterate(new_run(tmp_path), state, 20, counting(state, spoil), "")
    text = (
        f"no longer a number at iteration 7: a smaller lr may help; the last good checkpoint is {tmp_path}/checkpoint"
    )
    assert text + " (after iteration 6)" in str(caught.value)
    assert saved(tmp_path)["images"].tolist() == [6, 6]


def test_a_lost_number_is_found_however_rarely_the_losses_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SETTLE_SECONDS", 1e9)
    for bad in range(11):
        state = new_state()

        def spoil(i: int, bad: int = bad, state: dict[str, Tensor] = state) -> None:
            if i == bad:
                state["losses"][i % 4] = torch.nan

        with pytest.raises(UserError, match=f"at iteration {bad + 1}: .* there is no checkpoint yet"):
            iterate(new_run(None), state, 11, counting(state, spoil), "")


def test_a_device_is_given_no_more_than_it_does_by_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes the steps of minutes in no time, and works on them: a stop would wait for all of them."""
    now, looks = [0.0], []

    class Slow(Tensor):
        def index_select(self, dim: int, index: Tensor) -> Tensor:  # type: ignore[override]
            now[0] += 0.125 * len(index)  # the device catches up
            looks.append(len(index))
            return torch.zeros(len(index))

    monkeypatch.setattr(runs, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    state = {"losses": torch.zeros(64).as_subclass(Slow)}
    iterate(new_run(None), state, 43, lambda: lambda i: None, "")
    assert looks == [1, *[4] * 10, 2]


def test_a_checkpoint_never_holds_nan(tmp_path: Path) -> None:
    """The loss of an iteration comes before its step, which may be the one that spoils the images."""
    state = new_state()

    def spoil(i: int) -> None:
        if i == 6:
            state["images"][1] = torch.nan

    with pytest.raises(UserError, match=r"images are no longer numbers after iteration 7: .* \(after iteration 6\)"):
        iterate(new_run(tmp_path), state, 20, counting(state, spoil), "")
    assert saved(tmp_path)["images"].tolist() == [6, 6]
    state = new_state()
    with pytest.raises(UserError, match=r"images are no longer numbers after iteration 7: .* no checkpoint yet"):
        iterate(new_run(None), state, 7, counting(state, spoil), "")


def test_the_checkpoint_of_another_job_is_not_taken(tmp_path: Path) -> None:
    new_run(tmp_path, job="dm-10").checkpoint(3, 1.0, new_state(), force=True)
    state = new_state()
    with pytest.raises(UserError, match="there is no checkpoint yet"):
        iterate(new_run(tmp_path), state, 9, counting(state, lambda i: state["losses"].fill_(torch.nan)), "")
    run = new_run(tmp_path)
    assert run.restore(new_state(), 9) == 0
    assert run.seconds_before == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"recipe": {"lr": 2.0}}, "it differs in lr"),
        ({"recipe": {"lr": 1.0, "batch": 3}}, "it differs in batch"),
        ({"seed": 1}, "it differs in seed"),
    ],
)
def test_the_checkpoint_of_another_recipe_is_refused(tmp_path: Path, fields: dict[str, object], text: str) -> None:
    new_run(tmp_path).checkpoint(3, 1.0, new_state(), force=True)
    with pytest.raises(UserError, match=f"belongs to another recipe .{text}"):
        new_run(tmp_path, **fields).restore(new_state(), 9)


@pytest.mark.parametrize(
    "meta",
    [
        "{",
        "[]",
        "[" * 100_000,
        "{}",
        json.dumps({"job": "dm-1", "recipe": 3, "seed": 0, "step": 1, "seconds": 1}),
        json.dumps({"job": "dm-1", "recipe": {"lr": 1.0}, "seed": 0, "step": "x", "seconds": 1}),
    ],
)
def test_a_checkpoint_with_lies_is_refused(tmp_path: Path, meta: str) -> None:
    write_tensors(tmp_path / "checkpoint", new_state(), {"checkpoint": meta})
    with pytest.raises(UserError, match="is not a checkpoint; delete it to start this job again"):
        new_run(tmp_path).restore(new_state(), 9)


def test_a_checkpoint_of_other_tensors_or_another_length_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.checkpoint(3, 1.0, {**new_state(), "images": torch.zeros(3)}, force=True)
    with pytest.raises(UserError, match="holds other tensors than this job"):
        run.restore(new_state(), 9)
    for step in (10, -1):
        run.checkpoint(step, 1.0, new_state(), force=True)
        state = new_state()
        with pytest.raises(UserError, match=f"must stand at one of 9 iterations, but got {step}"):
            iterate(run, state, 9, counting(state), "")


def test_events_survive_what_a_kill_leaves(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.event("network", net=0, accuracy=0.1 + 0.2)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b"[" * 100_000 + b'\n[1]\n"text"\n\xff\xfe\n{"event": "network", "job": "dm-1", "net"')
    new_run(tmp_path, job="dm-10").event("network", net=0)
    found = run.events("network")
    assert [event["accuracy"] for event in found] == [0.1 + 0.2]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "events.jsonl").symlink_to(full)
    with pytest.raises(UserError, match=r"cannot write to .*events.jsonl: No space left on device"):
        new_run(tmp_path).event("step", loss=1.0)


def test_a_checkpoint_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*checkpoint: Not a directory"):
        new_run(tmp_path / "file" / "run").checkpoint(1, 1.0, new_state(), force=True)


def test_free_names(tmp_path: Path) -> None:
    assert folders.fresh_folder(tmp_path / "runs" / "digits").name == "digits"
    (tmp_path / "runs" / "digits-2").write_text("")
    assert folders.fresh_folder(tmp_path / "runs" / "digits").name == "digits-3"
    assert (tmp_path / "runs" / "digits-3").is_dir()


def test_a_folder_is_worked_on_by_one_process_at_a_time(tmp_path: Path) -> None:
    busy = pytest.raises(UserError, match="being worked on by another process")
    with folders.locked(tmp_path), busy, folders.locked(tmp_path):
        pass
    with folders.locked(tmp_path):
        pass  # free again


def test_an_event_after_a_line_cut_short_is_not_lost(tmp_path: Path) -> None:
    run = Run(folder=tmp_path, job="a")
    run.event("network", net=0)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "netw')
    run.event("network", net=1)
    assert [event["net"] for event in run.events("network")] == [0, 1]


def test_a_folder_with_nothing_but_leftovers_of_a_kill_is_free(tmp_path: Path) -> None:
    (tmp_path / ".recipe.toml.abc.tmp").write_text("half")
    assert folders.new_folder(tmp_path, overwrite=False) == tmp_path
    assert names(tmp_path) == []
