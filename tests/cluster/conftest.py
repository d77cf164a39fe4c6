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
from helpers.cluster_nodes import CLIENT_PORT, NODE, SECOND_NODE

TESTS, SOURCE = Path(__file__).parents[1], Path(condenset.__file__).parents[1]
HEALTH_CHECK = {"period_ms": 500, "timeout_ms": 2000, "failure_threshold": 2, "initial_delay_ms": 0}
ENVIRONMENT = {
    **QUIET,
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # its fork handlers crash now and then when Ray starts the server of a client
    "PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}",
    **{f"RAY_health_check_{name}": str(value) for name, value in HEALTH_CHECK.items()},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of a cluster in one process."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("cluster"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Start a cluster of two nodes with one CPU each, and connect to it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        head = {**NODE, "include_dashboard": False, "ray_client_server_port": CLIENT_PORT}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**NODE, node_ip_address=SECOND_NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="package")
def engine(cluster: Cluster) -> RayEngine:
    """Return an engine whose tasks have one CPU each."""
    return RayEngine(ray, num_gpus=0.0, num_cpus=1)
