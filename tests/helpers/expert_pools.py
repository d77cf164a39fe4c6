"""A small pool of networks trained on all tiny images, with states from during their training."""

from __future__ import annotations

from pathlib import Path

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.methods.pools.pool_training import expert_protocol, fill_pool
from condenset.runs.context import RunContext

CPU = ComputeDevice.select("cpu")
SPEC = "convnet(width=8, depth=2)"


def make_expert_pool(
    data: cs.ImageData,
    directory: Path,
    *,
    network: str = SPEC,
    num_networks: int = 2,
    epochs: int = 3,
    num_checkpoints: int = 3,
) -> cs.NetworkPool:
    """Train networks and store their initial state and `num_checkpoints` later ones."""
    protocol = expert_protocol(data, network=network, epochs=epochs)
    run = RunContext(compute=CPU)
    return fill_pool(data, directory, num_networks, protocol, run, num_checkpoints=num_checkpoints)
