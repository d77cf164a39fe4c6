"""Store the weights of a trained network, and read them again."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from condenset import networks
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_tensors
from condenset.io.metadata import read_tensor_file
from condenset.runs.context import RunContext


def write_network(path: Path, spec: str, network: nn.Module, run: RunContext) -> None:
    """Write the weights of a network to a file of its run."""
    run.verify_identity()
    with wrap_os_errors(path):
        write_tensors(path, network.state_dict(), {"trained_network": json.dumps({"network": spec})})


def read_network(path: Path, spec: str, *, channels: int, size: int, num_classes: int) -> nn.Module:
    """Return the network of a file, in evaluation mode.

    Raises:
        UserError: The file is missing or damaged, or contains another network than `spec`.
    """
    tensors, info = read_tensor_file(path, "trained_network", "a trained network")
    network = networks.build(spec, channels=channels, size=size, num_classes=num_classes)
    stored, expected = (
        {name: (tensor.dtype, tensor.shape) for name, tensor in state.items()}
        for state in (tensors, network.state_dict())
    )
    if info.get("network") != spec or stored != expected:
        raise UserError(f"{path} does not contain the network {spec}")
    network.load_state_dict(tensors)
    return network.eval().requires_grad_(False)
