"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster

import condenset as cs
from condenset.engine.ray_connection import QUIET
from condenset.engine.ray_tasks import RayEngine
from condenset.engine.threads import use_threads
from condenset.methods import make_recipe
from helpers.cluster_nodes import CLIENT_PORT, NODE, SECOND_NODE
from helpers.cluster_runs import LONG, NETWORK, make_run
from helpers.command_line import write_npz

TESTS, SOURCE = Path(__file__).parents[1], Path(cs.__file__).parents[1]
HEALTH_CHECK = {"period_ms": 500, "timeout_ms": 2000, "failure_threshold": 2, "initial_delay_ms": 0}
ENVIRONMENT = {
    **QUIET,
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # its fork handlers crash now and then when Ray starts the server of a client
    "PYTHONDONTWRITEBYTECODE": "",  # workers start often: only the first one compiles the modules
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


@pytest.fixture(scope="package")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny dataset of four classes, one of which is smaller than a batch."""
    return write_npz(tmp_path_factory.mktemp("data") / "toy.npz", (12, 5, 12, 12))


@pytest.fixture(scope="package")
def undisturbed(dataset: Path) -> torch.Tensor:
    """The images of the run LONG in one process."""
    train, settings = cs.load(dataset, verbose=False).train, {"network": NETWORK[1], "iterations": LONG[5]}
    recipe = make_recipe("dm", ipc=2, name=train.name, size=train.size, **settings)
    with use_threads(1):
        return cs.METHODS["dm"].condense(train, recipe, make_run()).images
