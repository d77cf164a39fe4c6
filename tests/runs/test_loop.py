"""The loop that runs iterations: progress, stop requests, losses and time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from condenset import UserError
from condenset.runs import checkpoint, loop
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted, run_loop
from helpers.command_line import list_files
from helpers.interruption import RecordProgress, StopAtStep
from helpers.loops import checkpoint_tensors, counting_step, make_run, make_state


@pytest.fixture(autouse=True)
def sync_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)


def test_run_without_directory_writes_nothing(tmp_path: Path) -> None:
    state = make_state()
    run_loop(make_run(None), state, 9, counting_step(state), "")
    assert state["images"].tolist() == [9, 9]
    assert list_files(tmp_path) == []


def test_stop_saves_checkpoint_and_next_run_resumes(tmp_path: Path) -> None:
    run, state = make_run(tmp_path), make_state()

    def stop(i: int) -> None:
        run.stop.requested = int(i == 4)

    with pytest.raises(Interrupted):
        run_loop(run, state, 9, counting_step(state, stop), "")
    assert checkpoint_tensors(tmp_path)["images"].tolist() == [5, 5]
    assert not run.stop.listening
    run, state = make_run(tmp_path), make_state()
    run_loop(run, state, 9, counting_step(state), "")
    assert state["images"].tolist() == [9, 9]
    assert [event["step"] for event in run.read_events("step")] == list(range(1, 10))
    run.delete_checkpoint()
    assert list_files(tmp_path) == ["events.jsonl"]


def step_in_parts(run: RunContext, state: dict[str, Tensor]) -> Callable[[], Callable[[int], None]]:
    """Return the `make_step` of a step that adds 1 to the images in four parts."""

    def step(i: int) -> None:
        for _ in range(4):
            state["images"] += 0.25
            run.check_stop(0.25)
        state["losses"][i % 4] = 1.0
        state["clock"] += 1

    return lambda: step


@pytest.mark.parametrize(("stop_at", "saved_step"), [(0.5, None), (2.5, 2)])
def test_slow_step_stops_between_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: float, saved_step: int | None
) -> None:
    monkeypatch.setattr(loop, "SLOW_STEP_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 1e9)  # only the stop saves one
    run, state = make_run(tmp_path), make_state()
    run.progress = StopAtStep(run, stop_at)
    with pytest.raises(Interrupted):
        run_loop(run, state, 4, step_in_parts(run, state), "")
    assert state["images"].tolist() == [stop_at, stop_at]  # the other parts of the step did not run
    saved = checkpoint_tensors(tmp_path)["images"].tolist() if saved_step else None
    assert saved == ([saved_step, saved_step] if saved_step else None)
    run, state = make_run(tmp_path), make_state()
    run_loop(run, state, 4, step_in_parts(run, state), "")
    assert state["images"].tolist() == [4, 4]


def test_fast_step_is_completed_before_a_stop(tmp_path: Path) -> None:
    run, state = make_run(tmp_path), make_state()
    run.progress = StopAtStep(run, 2.5)
    with pytest.raises(Interrupted):
        run_loop(run, state, 4, step_in_parts(run, state), "")
    assert checkpoint_tensors(tmp_path)["images"].tolist() == [3, 3]


def test_progress_moves_within_a_step() -> None:
    run, state = make_run(None), make_state()
    run.progress = progress = RecordProgress()
    run_loop(run, state, 1, step_in_parts(run, state), "")
    assert progress.updates[:4] == [0.25, 0.5, 0.75, 1]
    run.check_stop(0.25)  # outside of a loop, as while a step is captured
    assert max(progress.updates) == 1


def test_seconds_include_those_before_resume(tmp_path: Path) -> None:
    run, state = make_run(tmp_path), make_state()
    run.save_checkpoint(9, 100.0, state, force=True)
    assert run_loop(make_run(tmp_path), make_state(), 9, counting_step(state), "") >= 100


def test_time_to_prepare_the_step_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(loop.time, "monotonic", lambda: now)

    def prepare() -> Callable[[int], None]:
        nonlocal now
        now += 60  # like compilation

        def step(i: int) -> None:
            nonlocal now
            now += 1

        return step

    assert run_loop(make_run(tmp_path), make_state(), 9, prepare, "") == 69
    make_run(tmp_path).save_checkpoint(5, 65.0, make_state(), force=True)
    assert run_loop(make_run(tmp_path), make_state(), 9, prepare, "") == 69


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_invalid_loss_names_iteration_and_checkpoint(tmp_path: Path, value: float) -> None:
    state = make_state()

    def spoil(i: int) -> None:
        if i == 6:
            state["losses"][i % 4] = value

    with pytest.raises(UserError) as caught:
        run_loop(make_run(tmp_path), state, 20, counting_step(state, spoil), "")
    last = f"The last good checkpoint is {tmp_path}/checkpoint (after iteration 6)."
    assert f"the loss is {value} at iteration 7. Try a smaller lr. {last}" in str(caught.value)
    assert checkpoint_tensors(tmp_path)["images"].tolist() == [6, 6]


def test_invalid_loss_is_found_even_if_syncs_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SYNC_SECONDS", 1e9)
    for bad_iteration in range(11):
        state = make_state()

        def spoil(i: int, bad_iteration: int = bad_iteration, state: dict[str, Tensor] = state) -> None:
            if i == bad_iteration:
                state["losses"][i % 4] = torch.nan

        with pytest.raises(UserError, match=f"at iteration {bad_iteration + 1}. .* There is no checkpoint yet"):
            run_loop(make_run(None), state, 11, counting_step(state, spoil), "")


def test_device_gets_no_more_steps_than_it_computes_until_the_next_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launching steps on a GPU takes no time, so a stop would have to wait for all that are queued."""
    now, sync_lengths = [0.0], []

    class SlowTensor(Tensor):
        def index_select(self, dim: int, index: Tensor) -> Tensor:  # type: ignore[override]
            now[0] += 0.125 * len(index)  # the time that the device needs
            sync_lengths.append(len(index))
            return torch.zeros(len(index))

    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.5)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    state = {"losses": torch.zeros(64).as_subclass(SlowTensor)}
    run_loop(make_run(None), state, 43, lambda: lambda i: None, "")
    assert sync_lengths == [1, *[4] * 10, 2]


def test_checkpoint_never_contains_nan(tmp_path: Path) -> None:
    """The loss is computed before the update, which may be the one that diverges."""
    state = make_state()

    def spoil(i: int) -> None:
        if i == 6:
            state["images"][1] = torch.nan

    with pytest.raises(UserError, match=r"contain NaN or infinity after iteration 7\. .* \(after iteration 6\)"):
        run_loop(make_run(tmp_path), state, 20, counting_step(state, spoil), "")
    assert checkpoint_tensors(tmp_path)["images"].tolist() == [6, 6]
    state = make_state()
    with pytest.raises(UserError, match=r"contain NaN or infinity after iteration 7\. .* no checkpoint yet"):
        run_loop(make_run(None), state, 7, counting_step(state, spoil), "")
