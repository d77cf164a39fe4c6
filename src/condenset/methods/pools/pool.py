"""A pool of trained networks on disk, with states from during their training, for distribution matching.

Shapes: S states of a network, G states of a group, P parameters of a network.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.data.image_data import ImageData
from condenset.engine import ComputeDevice
from condenset.errors import UserError, by_interface, check, check_path_encoding, is_number, warn_user
from condenset.io.directories import is_empty
from condenset.io.files import json_hash, read_rows
from condenset.io.metadata import read_json, read_tensor_metadata
from condenset.io.user_directories import expand_user
from condenset.methods.pools.accuracy_groups import group_names, in_group

POOL_FILE = "pool.json"
POOL_PREFIX = "pool-"  # of the names of pools that runs train
MAX_DIMENSION = 1 << 20  # of classes, channels and pixels, in a pool file
RETRAIN_HINT = "delete it to train the network again"


@dataclass(frozen=True)
class PoolState:
    """The weights of a network after some step of its training.

    Attributes:
        path: File of the network.
        row: Row of the weights in the file.
        step: Number of training steps.
        accuracy: Validation accuracy, a fraction.
        seconds: Training time of the network, which all of its states share.
    """

    path: Path
    row: int
    step: int
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class NetworkPool:
    """A pool of trained networks. Distribution matching can sample from it instead of using random networks.

    `train_pool` creates a pool. Give it to `condense` with `pool=`, and select networks by accuracy with `group=`.

    Attributes:
        directory: Directory of the pool.
        metadata: The settings that the networks were trained with.
        states: The states of all networks.

    Example:
        >>> import tempfile, condenset as cs
        >>> train = cs.load("digits", verbose=False).train
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = cs.train_pool(train, directory, num_networks=1, epochs=1, device="cpu", verbose=False)
        ...     pool = cs.NetworkPool.load(directory)
        >>> pool.num_networks
        1
    """

    directory: Path
    metadata: Mapping[str, Any]
    states: tuple[PoolState, ...]

    def __repr__(self) -> str:
        network = self.metadata.get("network", "")
        return f"NetworkPool({str(self.directory)!r}: {self.num_networks} x {network}, {len(self.states)} states)"

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> NetworkPool:
        """Read the description of a pool; weights are read by `weights`.

        Args:
            directory: Directory of the pool.

        Raises:
            UserError: The directory is not a pool, or a file is damaged or belongs to another pool.
        """
        check_path_encoding(directory)
        path = expand_user(directory)
        metadata = _read_pool_file(path)
        pool_hash = json_hash(metadata)
        files = sorted(file for file in path.glob("*.safetensors") if file.stem.isdecimal())
        states = tuple(state for file in files for state in _read_states(file, pool_hash))
        return cls(path, metadata, states)

    def __fspath__(self) -> str:
        """Return the directory, so that a pool can be given in place of its path."""
        return str(self.directory)

    @property
    def num_networks(self) -> int:
        """Number of networks."""
        return len({state.path for state in self.states})

    def seconds(self, states: Iterable[PoolState]) -> float:
        """Return the training time of the networks that these states belong to."""
        return round(sum({state.path: state.seconds for state in states}.values()), 3)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the networks; it does not depend on the directory."""
        states = [(state.path.name, state.step, state.accuracy) for state in self.states]
        return json_hash([dict(self.metadata), states])

    def group(self, group: str) -> list[PoolState]:
        """Return the states whose validation accuracy is in a group such as "60-70"; "all" returns all states."""
        return [state for state in self.states if in_group(state.accuracy, group)]

    def group_sizes(self) -> dict[str, int]:
        """Return the number of states in each group of the pool, and of "all"."""
        edges = self.metadata["edges"]
        return {name: len(self.group(name)) for name in (*(group_names(edges) if edges else ()), "all")}

    @property
    def num_states(self) -> int:
        """Number of states per network; raise a UserError if it differs between networks."""
        counts = collections.Counter(state.path for state in self.states)
        same = len(set(counts.values())) == 1
        check(same, f"all networks of the pool {self.directory} must have the same number of states", "different ones")
        return next(iter(counts.values()))

    def weights(self, states: Sequence[PoolState], network: nn.Module, compute: ComputeDevice) -> Tensor:
        """Return (G, P) weights of states on the device, for the parameters that `network` has.

        The network may lack its classifier. The weights have the dtype that `weights_dtype` returns.
        """
        full_network = self._full_network()
        num = sum(parameter.numel() for parameter in full_network.parameters())
        _read_weights(states[0].path, [states[0].row], num)  # check the width before the memory is allocated
        names = {name for name, _ in network.named_parameters()}
        used_P = torch.cat(
            [torch.full((weight.numel(),), name in names) for name, weight in full_network.named_parameters()]
        )
        dtype = weights_dtype(network, compute)
        weights_GP = torch.empty(len(states), int(used_P.sum()), dtype=dtype, device=compute.device)
        start = 0
        for path, network_states in itertools.groupby(states, key=lambda state: state.path):
            rows = [state.row for state in network_states]
            stored_SP = _read_weights(path, rows, num)
            weights_GP[start : start + len(rows)] = stored_SP[:, used_P].to(compute.device, dtype)
            start += len(rows)
        return weights_GP

    def check_group(self, group: str) -> None:
        """Raise a UserError if no state is in the group."""
        if not self.group(group):
            sizes = ", ".join(f"{name} ({size})" for name, size in self.group_sizes().items())
            raise UserError(f"{self.directory} has no network in group {group!r}; its groups are {sizes}")

    def check_compatible(self, spec: str, data: ImageData, *, classifier: bool = False, labels: bool = False) -> None:
        """Raise a UserError if network or image shape differ from those of the pool; warn if the images differ.

        With `classifier`, the numbers of classes must be equal; with `labels`, the classes and their order.
        """
        metadata, shape, names = self.metadata, (data.channels, data.size, data.size), list(data.all_class_names)
        pool_shape = (metadata["channels"], metadata["size"], metadata["size"])
        check(pool_shape == shape, f"images must have the shape {pool_shape} of the pool {self.directory}", shape)
        network = networks.canonical_spec(spec, size=data.size)
        check(metadata["network"] == network, f"network must be {metadata['network']} as in the pool", network)
        has_classes = not classifier or metadata["num_classes"] == len(names)
        check(has_classes, f"images must have {metadata['num_classes']} classes as the pool has", len(names))
        rule = f"with a calibration, the classes must be those of the pool {self.directory} in the same order"
        check(not labels or metadata.get("class_names", names) == names, rule, names)
        if metadata.get("fingerprint", data.fingerprint) != data.fingerprint:
            warn_user(f"the networks of {self.directory} were trained on other images than these")

    def _full_network(self) -> nn.Module:
        shape = {key: self.metadata[key] for key in ("channels", "size", "num_classes")}
        with torch.device("meta"):
            return networks.build(self.metadata["network"], **shape)


def weights_dtype(network: nn.Module, compute: ComputeDevice) -> torch.dtype:
    """Return the dtype of the weights of a pool on the device: the precision of the run, or float32 with batch norm."""
    return torch.float32 if networks.uses_batch_norm(network) else compute.dtype


def is_pool(directory: str | os.PathLike[str]) -> bool:
    """Return whether a directory is a pool. Others may be new, or contain pools that runs have trained."""
    check_path_encoding(directory)
    return (Path(directory) / POOL_FILE).is_file()


def pool_path(parent: Path, metadata: Mapping[str, Any]) -> Path:
    """Return the directory of the pool with this metadata, in a directory of several pools."""
    return parent / f"{POOL_PREFIX}{json_hash(metadata)[:12]}"


def check_pool_parent(directory: Path) -> None:
    """Raise a UserError if a directory cannot be written to, or has other content than pools."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    check(_is_writable(existing), "pool must be a directory that can be written to", str(directory))
    if is_pool(directory):
        raise UserError(f"{directory} is a pool: give the directory that contains it, {directory.parent}")
    if not is_empty(directory) and not any(path.name.startswith(POOL_PREFIX) for path in directory.iterdir()):
        raise UserError(f"{directory} is not empty and not a pool of networks: choose another directory")


def _is_writable(directory: Path) -> bool:
    """Return whether files can be created in a directory. The permissions alone do not decide it for every user."""
    with contextlib.suppress(OSError):
        tempfile.TemporaryFile(dir=directory).close()
        return True
    return False


def check_pool_directory(directory: Path, metadata: Mapping[str, Any] | None = None) -> None:
    """Raise a UserError if a directory has other content than a pool, or a pool with other metadata."""
    if is_empty(directory):
        return
    if not (directory / POOL_FILE).exists():
        raise UserError(f"{directory} is not empty and not a pool of networks: choose another directory")
    stored = _read_pool_file(directory)
    metadata = stored if metadata is None else metadata
    different = ", ".join(sorted(key for key in {*stored, *metadata} if stored.get(key) != metadata.get(key)))
    if different:
        raise UserError(f"{directory} holds a pool with other settings ({different}): choose another directory")


def _read_pool_file(directory: Path) -> dict[str, Any]:
    path = directory / POOL_FILE
    if not path.is_file():
        command = by_interface(command_line="'condenset networks train-pool'", python="cs.train_pool")
        raise UserError(
            f"{directory} is not a pool of networks, because it has no {POOL_FILE}; create one with {command}"
        )
    metadata: dict[str, Any] = read_json(
        path, "a description of a pool of networks", hint="train another pool", is_valid=_is_pool_metadata
    )
    if metadata["edges"]:
        group_names(metadata["edges"])
    return metadata


def _is_pool_metadata(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and isinstance(content.get("network"), str)
        and isinstance(content.get("edges"), list)
        and all(
            type(content.get(key)) is int and 1 <= content[key] <= MAX_DIMENSION
            for key in ("channels", "size", "num_classes")
        )
    )


def _read_states(path: Path, pool_hash: str) -> list[PoolState]:
    """Return the states in a file of the pool; raise a UserError if the file belongs to another pool."""
    content = read_tensor_metadata(path, "pool", "a network of a pool", hint=RETRAIN_HINT)
    try:
        seconds, stored_hash = content["seconds"], content["pool_hash"]
        if not is_number(seconds) or seconds < 0:
            raise ValueError
        states = [
            PoolState(path, row, int(state["step"]), float(state["accuracy"]), seconds)
            for row, state in enumerate(content["states"])
        ]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{path} is not a network of a pool; {RETRAIN_HINT}") from None
    if stored_hash != pool_hash:
        raise UserError(f"{path} belongs to another pool; {RETRAIN_HINT}")
    return states


def _read_weights(path: Path, rows: Sequence[int], num: int) -> Tensor:
    """Return (S, P) weights of these rows; raise a UserError if they do not fit a network of `num` parameters."""
    weights_SP = read_rows(path, "weights", rows)
    fits = weights_SP.ndim == 2 and weights_SP.shape[1] == num and weights_SP.dtype == torch.float32
    if not fits or not bool(weights_SP.isfinite().all()):
        raise UserError(f"{path} does not contain the weights of its network; {RETRAIN_HINT}")
    return weights_SP
