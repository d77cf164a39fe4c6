"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster

import condenset
from condenset.engine.ray_connection import QUIET
from condenset.engine.ray_tasks import RayEngine

TESTS, SOURCE = Path(__file__).parents[1], Path(condenset.__file__).parents[1]
ENVIRONMENT = {**QUIET, "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}", "RAY_health_check_period_ms": "1000"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of a cluster in one process."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("cluster"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start a cluster of two nodes with one CPU each, and connect to it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        arguments = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=arguments)
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def engine(cluster: Cluster) -> RayEngine:
    """Return an engine whose tasks have one CPU each."""
    return RayEngine(ray, num_gpus=0.0, num_cpus=1)
