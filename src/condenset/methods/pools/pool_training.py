"""Train a pool of networks: one file per network, written when its training ends."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from condenset import augment, networks
from condenset.config import MAX_NETWORKS
from condenset.data.image_data import ImageData, check_image_data
from condenset.data.stores.streamed_store import check_images_fit
from condenset.engine import ComputeDevice
from condenset.engine.defaults import torch_defaults
from condenset.errors import check, check_int
from condenset.io.directories import ensure_writable, lock_directory, remove_temporary_files, wrap_os_errors
from condenset.io.files import json_hash, write_file
from condenset.io.progress import make_progress
from condenset.io.user_directories import expand_user
from condenset.methods.pools.accuracy_groups import EDGES, group_names
from condenset.methods.pools.network_training import PoolSpec, network_path, train_networks
from condenset.methods.pools.pool import POOL_FILE, NetworkPool, check_pool_directory, pool_path
from condenset.methods.pools.tasks import train_on_engine
from condenset.methods.trained_files import training_metadata
from condenset.runs.context import RunContext
from condenset.training.protocol import Protocol, training_protocol

EPOCHS = 30
EXPERT_AUGMENT = "color+crop"


@torch_defaults()
def train_pool(
    data: ImageData,
    directory: str | os.PathLike[str],
    *,
    num_networks: int,
    edges: Sequence[float] = EDGES,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    verbose: bool = True,
    **fields: Any,
) -> NetworkPool:
    """Train a pool of networks that distribution matching can sample from.

    A tenth of the images of every class is used for validation. The pool stores the first state of each network in
    every group of validation accuracy, and its last state. Call the function again to continue after an interruption,
    or with a larger `num_networks` to add networks.

    Args:
        data: Training images.
        directory: Directory of the pool: a new one, or one with the same settings.
        num_networks: Number of networks.
        edges: Validation accuracies in percent that separate the groups.
        seed: Random seed.
        device: "cpu", "cuda" or "mps". None: the best available.
        precision: "float32" or "bfloat16". None: the best for the device.
        verbose: Show progress.
        fields: Fields of `Protocol`, such as `network` (a spec), `epochs` (30), `lr` and `batch_size`.

    Returns:
        The pool.

    Raises:
        UserError: An argument is invalid, the directory has other content, or training diverged.

    Example:
        >>> import tempfile, condenset as cs
        >>> train = cs.load("digits", verbose=False).train
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     pool = cs.train_pool(train, directory, num_networks=1, epochs=1, device="cpu", verbose=False)
        ...     condensed = cs.condense(train, ipc=1, pool=pool, iterations=2, device="cpu", verbose=False)
        >>> len(condensed)
        10
    """
    check_image_data("data", data)
    compute = ComputeDevice.select(device, precision)
    run = RunContext(seed=seed, compute=compute, progress=make_progress(verbose))
    group_names(edges)  # check them first
    return fill_pool(data, expand_user(directory), num_networks, pool_protocol(data, **fields), run, edges=edges)


def pool_protocol(data: ImageData, **fields: Any) -> Protocol:
    """Return the protocol of a pool's networks: that of the evaluation with fewer epochs, then these fields.

    Raises:
        UserError: If a field is invalid, or the network is a user's. A pool stores neither its buffers nor its frozen
            parameters.
    """
    protocol = training_protocol(name=data.name, size=data.size, whole=True, defaults={"epochs": EPOCHS}, **fields)
    is_built_in = networks.has_default_init(protocol.network)
    check(is_built_in, "the network of a pool must be a spec of a built-in network", protocol.network)
    return augment.remove_unused_flip(protocol, allow_hflip=data.allow_hflip)


def expert_protocol(data: ImageData, *, network: str, epochs: int) -> Protocol:
    """Return the protocol of networks that calibrate images or are interpolated: the modern one with fewer epochs."""
    protocol = Protocol.modern(network=network, epochs=epochs, augment=EXPERT_AUGMENT)
    return augment.remove_unused_flip(protocol, allow_hflip=data.allow_hflip)


def fill_pool(
    data: ImageData,
    directory: Path,
    num_networks: int,
    protocol: Protocol,
    run: RunContext,
    *,
    edges: Sequence[float] = (),
    num_checkpoints: int = 0,
) -> NetworkPool:
    """Train the networks that the directory lacks of the first `num_networks`.

    Each network is one file, written when its training ends. The directory is locked, because another process would
    remove temporary files that are still in use.

    Args:
        data: Training images.
        directory: Directory of the pool.
        num_networks: Number of networks.
        protocol: How they are trained.
        run: The run.
        edges: Store the first state in each group of validation accuracy between these edges in percent. A tenth of
            the images is then held out for validation.
        num_checkpoints: Without edges: store the initial state, and this number of states at equal intervals. The
            networks train on all images, and the accuracies of their states are those of every tenth image.
    """
    num_networks = check_int("num_networks", num_networks, 1, MAX_NETWORKS)
    metadata = pool_metadata(data, protocol, run, edges=edges, num_checkpoints=num_checkpoints)
    if _is_complete(directory, num_networks, metadata):  # several workers may read it at once
        return NetworkPool.load(directory)
    check_pool_memory(data, run.compute, run.memory_limit)
    ensure_writable(directory)
    with lock_directory(directory):
        _initialize_directory(directory, metadata)
        missing = [number for number in range(num_networks) if not network_path(directory, number).exists()]
        if missing:
            spec = PoolSpec(
                num_networks=num_networks,
                protocol=protocol,
                groups=group_names(edges) if edges else [],
                num_checkpoints=num_checkpoints,
                pool_hash=json_hash(metadata),
            )
            train = train_networks if run.engine is None else train_on_engine
            train(data, directory, spec, missing, run)
        return NetworkPool.load(directory)


def fill_run_pool(
    data: ImageData,
    num_networks: int,
    protocol: Protocol,
    run: RunContext,
    *,
    parent: str,
    temporary: Path,
    num_checkpoints: int,
) -> NetworkPool:
    """Train the networks that a recipe needs and that do not exist yet.

    Args:
        data: Training images.
        num_networks: Number of networks.
        protocol: How they are trained.
        run: The run.
        parent: Directory of several pools that the user named. Empty: the networks of the run.
        temporary: The directory to use if the run has none.
        num_checkpoints: States to store, as in `fill_pool`.
    """
    directory = Path(parent) if parent else run.networks_directory or temporary
    path = pool_path(directory, pool_metadata(data, protocol, run, num_checkpoints=num_checkpoints))
    return fill_pool(data, path, num_networks, protocol, run, num_checkpoints=num_checkpoints)


def is_run_pool_complete(
    data: ImageData, protocol: Protocol, run: RunContext, *, parent: str, num_checkpoints: int, zca: bool
) -> bool:
    """Return whether `fill_run_pool` has no networks to train. `zca`: the data will be whitened."""
    metadata = pool_metadata(data, protocol, run, num_checkpoints=num_checkpoints) | ({"zca": True} if zca else {})
    return bool(parent) and _is_complete(pool_path(Path(parent), metadata), protocol.num_networks, metadata)


def check_pool_memory(data: ImageData, compute: ComputeDevice, memory_limit: int | None, *, zca: bool = False) -> None:
    """Raise a UserError if the images that the networks train on do not fit the device."""
    way_out = "choose dm, which needs no trained networks and streams images from disk"
    check_images_fit(data, compute, memory_limit, "a pool of trained networks", way_out, zca=zca)


def pool_metadata(
    data: ImageData, protocol: Protocol, run: RunContext, *, edges: Sequence[float] = (), num_checkpoints: int = 0
) -> dict[str, Any]:
    """Return everything that decides the networks of a pool, as JSON values."""
    shape = {"channels": data.channels, "size": data.size, "num_classes": len(data.all_class_names)}
    states = {"edges": list(edges), **({"num_checkpoints": num_checkpoints} if num_checkpoints else {})}
    return training_metadata(data, protocol, run) | shape | states | {"class_names": list(data.all_class_names)}


def _initialize_directory(directory: Path, metadata: dict[str, Any]) -> None:
    """Write the pool file, or check that the directory has the same pool; remove files that a kill left behind."""
    check_pool_directory(directory, metadata)
    with wrap_os_errors(directory):
        if not (directory / POOL_FILE).exists():
            write_file(directory / POOL_FILE, json.dumps(metadata, indent=1).encode() + b"\n")
        remove_temporary_files(directory, ["*.safetensors", POOL_FILE, "checkpoint"])


def _is_complete(directory: Path, num_networks: int, metadata: dict[str, Any]) -> bool:
    """Return whether a directory is the pool with this metadata and has all networks."""
    if not (directory / POOL_FILE).is_file():
        return False
    check_pool_directory(directory, metadata)
    return all(network_path(directory, number).exists() for number in range(num_networks))
