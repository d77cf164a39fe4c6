"""The simulation of the shard scheduler obeys the bounds of scheduling."""

from __future__ import annotations

from dataclasses import replace

import pytest
from shards import Cluster, simulate, split_equally

from condenset.methods.sharding import split_shards

CLUSTER = Cluster(num_classes=60, num_workers=4, class_seconds=10.0, start_seconds=0.0)
FAILING = replace(CLUSTER, failures_per_hour=20.0, checkpoint_seconds=5.0, restart_seconds=3.0)


@pytest.mark.parametrize("num_shards", [1, 4, 7, 16, 60, 99])
def test_equal_workers_are_ideal_up_to_one_shard(num_shards: int) -> None:
    shards = split_equally(60, num_shards)
    seconds = simulate(CLUSTER, shards)
    assert sum(shards) == 60
    assert CLUSTER.ideal_seconds <= seconds <= CLUSTER.ideal_seconds + shards[0] * CLUSTER.class_seconds


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("slow_share", [0.0, 0.25])
def test_no_run_is_faster_than_the_ideal(seed: int, slow_share: float) -> None:
    cluster = replace(FAILING, slow_share=slow_share, start_seconds=1.0)
    for shards in (split_equally(60, 8), list(map(len, split_shards(60, 4)))):
        assert simulate(cluster, shards, seed) >= cluster.ideal_seconds


def test_every_start_of_a_shard_costs_time() -> None:
    seconds = simulate(replace(CLUSTER, start_seconds=2.0), split_equally(60, 16))
    assert seconds == simulate(CLUSTER, split_equally(60, 16)) + 4 * 2.0


def test_failures_lose_the_work_since_the_checkpoint() -> None:
    one_worker = replace(FAILING, num_workers=1)
    shards = split_equally(60, 4)
    times = [
        sum(simulate(replace(one_worker, checkpoint_seconds=interval), shards, seed) for seed in range(20))
        for interval in (1.0, 50.0, 1e9)
    ]
    assert times == sorted(times)
    assert times[0] > 20 * simulate(CLUSTER, shards)


def test_a_seed_gives_one_result() -> None:
    shards = split_equally(60, 16)
    assert simulate(FAILING, shards, seed=1) == simulate(FAILING, shards, seed=1)
    assert simulate(FAILING, shards, seed=1) != simulate(FAILING, shards, seed=2)


def test_small_last_shards_balance_slow_workers() -> None:
    cluster = Cluster(num_classes=1000, num_workers=8, class_seconds=4.6, slow_share=0.125)
    decreasing = simulate(cluster, list(map(len, split_shards(1000, 8))))
    assert decreasing < 1.1 * cluster.ideal_seconds < simulate(cluster, split_equally(1000, 32))
