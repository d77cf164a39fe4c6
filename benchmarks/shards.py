"""Simulate the shard scheduler: how long a run takes on workers of different speed that fail, against the ideal.

python benchmarks/shards.py                          # the tables of docs/concepts/scale.md
python benchmarks/shards.py --classes 1000 --workers 8 --hours 1.2

Classes are divided into shards, which are handed out as workers become free. A worker that fails returns its shard
with the progress of the last checkpoint, and is back after a while. The simulation is a discrete-event simulation: it
depends on its seed alone.
"""

from __future__ import annotations

import collections
import heapq
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from condenset.cli.console import print_table
from condenset.methods.sharding import split_shards

DEFAULT_CLUSTERS = ((1_000, 8, 1.27), (21_841, 64, 27.5), (21_841, 512, 27.5))  # classes, workers, hours on one worker
SHARDS_PER_WORKER = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The work and the workers of a run.

    Attributes:
        num_classes: Number of classes.
        num_workers: Number of workers.
        class_seconds: Time of a class on a worker of speed 1.
        start_seconds: Time to start a shard: reading its images, and capturing the step.
        slow_share: Share of the workers that are slow.
        slow_speed: Their speed. The others have speed 1.
        failures_per_hour: Failures of a worker in an hour.
        checkpoint_seconds: Time between two checkpoints of a shard.
        restart_seconds: Time until a worker that failed is back.
    """

    num_classes: int
    num_workers: int
    class_seconds: float
    start_seconds: float = 5.0
    slow_share: float = 0.0
    slow_speed: float = 0.5
    failures_per_hour: float = 0.0
    checkpoint_seconds: float = 30.0
    restart_seconds: float = 60.0

    @property
    def speeds(self) -> list[float]:
        """The speed of each worker."""
        num_slow = round(self.slow_share * self.num_workers)
        return [self.slow_speed] * num_slow + [1.0] * (self.num_workers - num_slow)

    @property
    def ideal_seconds(self) -> float:
        """The time if the work could be divided perfectly, without starts and failures."""
        return self.num_classes * self.class_seconds / sum(self.speeds)


def simulate(cluster: Cluster, shards: Sequence[int], seed: int = 0) -> float:
    """Return the seconds until all shards, given by their numbers of classes, are done."""
    rng, speeds = random.Random(seed), cluster.speeds
    waiting = collections.deque((0.0, num * cluster.class_seconds) for num in shards)  # time of the return, work
    free = [(0.0, worker) for worker in range(cluster.num_workers)]
    busy: list[tuple[float, int, float]] = []  # time of the end, worker, work that remains then
    makespan = 0.0
    while waiting or busy:
        if waiting and free and (not busy or free[0][0] <= busy[0][0]):
            (available, work), (now, worker) = waiting.popleft(), heapq.heappop(free)
            seconds, remaining = run_shard(cluster, speeds[worker], work, rng)
            heapq.heappush(busy, (max(now, available) + seconds, worker, remaining))
            continue
        makespan, worker, remaining = heapq.heappop(busy)
        if remaining:
            waiting.appendleft((makespan, remaining))
        heapq.heappush(free, (makespan + cluster.restart_seconds * bool(remaining), worker))
    return makespan


def run_shard(cluster: Cluster, speed: float, work: float, rng: random.Random) -> tuple[float, float]:
    """Return the seconds that a worker spends on a shard, and the work that remains if it fails, else 0."""
    needed = cluster.start_seconds + work / speed
    until_failure = rng.expovariate(cluster.failures_per_hour / 3600) if cluster.failures_per_hour else float("inf")
    if needed <= until_failure:
        return needed, 0.0
    computed = max(0.0, until_failure - cluster.start_seconds)
    saved = computed // cluster.checkpoint_seconds * cluster.checkpoint_seconds
    return until_failure, work - saved * speed


def split_equally(num_classes: int, num_shards: int) -> list[int]:
    """Return the numbers of classes of shards of nearly equal size, the largest first."""
    num = min(num_classes, num_shards)
    return [num_classes // num + (index < num_classes % num) for index in range(num)]


def list_divisions(cluster: Cluster) -> dict[str, list[int]]:
    """Return divisions of the classes into shards, by name. The last is the division of condenset."""
    num_classes, num_workers = cluster.num_classes, cluster.num_workers
    equal = {f"{num} per worker": split_equally(num_classes, num * num_workers) for num in SHARDS_PER_WORKER}
    return equal | {"decreasing": list(map(len, split_shards(num_classes, num_workers)))}


def mean_slowdown(cluster: Cluster, shards: Sequence[int], num_seeds: int) -> float:
    """Return the mean makespan divided by the ideal time."""
    num_seeds = num_seeds if cluster.failures_per_hour else 1  # nothing else is random
    return statistics.mean(simulate(cluster, shards, seed) for seed in range(num_seeds)) / cluster.ideal_seconds


def list_conditions(cluster: Cluster) -> dict[str, Cluster]:
    """Return the cluster under better and worse conditions, by name."""
    return {
        "equal workers": cluster,
        "a tenth at half speed": replace(cluster, slow_share=0.1),
        "0.1 failures per hour": replace(cluster, failures_per_hour=0.1),
        "1 failure per hour": replace(cluster, failures_per_hour=1.0),
        "slow and 1 failure": replace(cluster, slow_share=0.1, failures_per_hour=1.0),
    }


def print_cluster(cluster: Cluster, num_seeds: int) -> None:
    """Print a table: a row per division, a column per condition."""
    conditions = list_conditions(cluster)
    total = cluster.num_classes * cluster.class_seconds / 3600
    print(
        f"{cluster.num_classes:,} classes, {cluster.num_workers} workers, {total:.3g} h of work, ideal "
        f"{cluster.ideal_seconds:,.0f} s, start of a shard {cluster.start_seconds:g} s: makespan / ideal"
    )
    rows = []
    for name, shards in list_divisions(cluster).items():
        slowdowns = [mean_slowdown(condition, shards, num_seeds) for condition in conditions.values()]
        rows.append([name, f"{len(shards):,}", *(f"{slowdown:.2f}" for slowdown in slowdowns)])
    print_table(["division", "shards", *conditions], rows)
    print()


def main(
    classes: Annotated[int | None, typer.Option(help="Number of classes (default: three clusters).")] = None,
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 8,
    hours: Annotated[float, typer.Option(help="Hours that one worker needs for all classes.")] = 1.27,
    start: Annotated[float, typer.Option(help="Seconds to start a shard.")] = 5.0,
    seeds: Annotated[int, typer.Option(help="Simulations to average.")] = 20,
) -> None:
    """Print the makespan relative to the ideal, for several divisions of the classes into shards."""
    clusters = DEFAULT_CLUSTERS if classes is None else ((classes, workers, hours),)
    for num_classes, num_workers, total_hours in clusters:
        class_seconds = 3600 * total_hours / num_classes
        cluster = Cluster(
            num_classes=num_classes, num_workers=num_workers, class_seconds=class_seconds, start_seconds=start
        )
        print_cluster(cluster, seeds)


if __name__ == "__main__":
    typer.run(main)
