"""The cost model agrees with the measurements that docs/concepts/performance.md reports."""

from __future__ import annotations

import pytest
from cost_model import LARGE, MEASURED, Problem, condense_seconds, divide, main


@pytest.mark.parametrize(("problem", "milliseconds", "memory"), MEASURED)
def test_times_are_within_a_sixth_of_measurements(problem: Problem, milliseconds: float, memory: float | None) -> None:
    assert problem.iteration_ms() == pytest.approx(milliseconds, rel=0.16)


def test_more_devices_take_less_time_but_never_less_work() -> None:
    for problem in LARGE:
        times = {gpus: condense_seconds(problem, gpus) for gpus in (1, 8, 512)}
        assert times[1] > times[8] > times[512]
        assert all(gpus * seconds >= 0.99 * times[1] for gpus, seconds in times.items())


def test_shards_fit_the_memory_of_a_device() -> None:
    for problem in LARGE:
        for gpus in (1, 8, 512):
            assert problem.device_bytes(divide(problem, gpus)[0]) < 120e9


def test_all_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert capsys.readouterr().out.count("a billion images") == 6
