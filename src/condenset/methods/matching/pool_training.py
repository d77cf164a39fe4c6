"""Train a pool of networks: store the first state of each network in every group of validation accuracy.

Shapes: S states of a network, P parameters of a network.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from condenset import augment, networks
from condenset.config import MAX_NETWORKS
from condenset.data.image_data import ImageData, check_image_data
from condenset.data.split import train_val_split
from condenset.engine import ComputeDevice
from condenset.engine.defaults import torch_defaults
from condenset.engine.memory import remaining_groups
from condenset.errors import UserError, check, check_int
from condenset.io.directories import ensure_writable, lock_directory, remove_temporary_files, wrap_os_errors
from condenset.io.files import json_hash, write_file, write_tensors
from condenset.io.progress import make_progress
from condenset.methods.matching.pool import EDGES, POOL_FILE, NetworkPool, check_pool_directory, group_names, in_group
from condenset.methods.reference_network import training_metadata
from condenset.runs.context import RunContext
from condenset.runs.loop import track_progress
from condenset.training.checkpoint import TrainingCheckpoint
from condenset.training.dataset import DeviceDataset
from condenset.training.parallel import num_parallel, train_in_parallel
from condenset.training.protocol import Protocol, training_protocol
from condenset.training.trainer import Trainer

EPOCHS = 30
VAL_SHARE = 0.1  # of the training images of every class
VALIDATION_GROWTH = 1.25  # ratio of the steps of two validations in the first epoch, where the accuracy rises fastest


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
    return fill_pool(data, Path(directory), num_networks, pool_protocol(data, **fields), edges, run)


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


def fill_pool(
    data: ImageData,
    directory: Path,
    num_networks: int,
    protocol: Protocol,
    edges: Sequence[float],
    run: RunContext,
) -> NetworkPool:
    """Train the networks that the directory lacks of the first `num_networks`.

    Each network is one file, written when its training ends. The directory is locked, because another process would
    remove temporary files that are still in use.
    """
    num_networks = check_int("num_networks", num_networks, 1, MAX_NETWORKS)
    groups, metadata = group_names(edges), pool_metadata(data, protocol, edges, run)
    ensure_writable(directory)
    with lock_directory(directory):
        _initialize_directory(directory, metadata)
        missing = [number for number in range(num_networks) if not _path(directory, number).exists()]
        if missing:
            _train_networks(data, directory, num_networks, missing, protocol, groups, json_hash(metadata), run)
        return NetworkPool.load(directory)


def _train_networks(
    data: ImageData,
    directory: Path,
    num_networks: int,
    missing: Sequence[int],
    protocol: Protocol,
    groups: Sequence[str],
    pool_hash: str,
    run: RunContext,
) -> None:
    """Train the missing networks, several at a time where the device allows it, and write their files."""
    splits = train_val_split(data, VAL_SHARE, seed=run.seed)
    train_set, val_set = (DeviceDataset.from_data(part, run.compute.device) for part in splits)
    batches = remaining_groups(num_networks, num_parallel(protocol, train_set, run.compute), missing)
    trainers = [
        PoolTrainer(Trainer(protocol.network, train_set, protocol, run.compute), val_set, groups)
        for _ in range(max(map(len, batches)))
    ]
    num_steps = trainers[0].num_steps
    done = (num_networks - len(missing)) * num_steps
    with track_progress(run, "training a pool of networks", num_networks * num_steps, done):
        for numbers in batches:
            in_use = dict(zip(numbers, trainers, strict=False))
            job = f"pool {pool_hash}: networks {numbers}"
            checkpoint = TrainingCheckpoint(run, list(in_use.values()), directory=directory, job=job, recipe={})
            trainings = [
                trainer.iter_train(run.seed, number, load_state)
                for (number, trainer), load_state in zip(in_use.items(), checkpoint.state_loaders, strict=True)
            ]
            for step in train_in_parallel(trainings, run.compute.device):
                run.progress.update(done + step * len(in_use))
                if step < num_steps:  # trained networks are stored even if the user asks to stop
                    checkpoint.save_if_due(step)
            done += num_steps * len(in_use)
            for number, trainer in in_use.items():
                with wrap_os_errors(directory):
                    path = _path(directory, number)
                    write_tensors(path, {"weights": trainer.weights_SP}, trainer.file_metadata(pool_hash))
                run.log_event("network", net=number, seconds=round(checkpoint.seconds / len(in_use), 3))
            checkpoint.delete()


def pool_metadata(data: ImageData, protocol: Protocol, edges: Sequence[float], run: RunContext) -> dict[str, Any]:
    """Return everything that decides the networks of a pool, as JSON values."""
    shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
    return training_metadata(data, protocol, run) | shape | {"edges": list(edges)}


class PoolTrainer:
    """Train networks of a pool and validate them: often during the first epoch, then after every epoch.

    It stores the first state of each group and the last state in tensors, so that they are part of the checkpoint.

    Args:
        trainer: Trains the network.
        val_set: Validation images.
        groups: Names of the groups of validation accuracy.
    """

    def __init__(self, trainer: Trainer, val_set: DeviceDataset, groups: Sequence[str]) -> None:
        self.trainer, self.val_set, self.groups, self.step = trainer, val_set, groups, 0
        self.num_steps, self.is_resumable = trainer.num_steps, trainer.is_resumable
        self.steps_per_epoch = trainer.steps_per_epoch
        self.early_steps = early_validation_steps(self.steps_per_epoch)
        max_states = len(groups) + 1
        self.num_states = torch.zeros((), dtype=torch.int64)
        self.steps_S = torch.zeros(max_states, dtype=torch.int64)
        self.accuracies_S = torch.zeros(max_states, dtype=torch.float64)
        self.stored_SP = trainer.weights.new_zeros(max_states, len(trainer.weights))

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that changes from one step to the next."""
        return self.trainer.state | {
            "pool.num_states": self.num_states,
            "pool.steps": self.steps_S,
            "pool.accuracies": self.accuracies_S,
            "pool.weights": self.stored_SP,
        }

    def iter_train(self, seed: int, number: int, load_state: Callable[[Mapping[str, Tensor]], int]) -> Iterator[int]:
        """Train network `number` and yield the number of steps where `Trainer.iter_train` does.

        The stored states stay valid until the next training begins.
        """
        self.num_states.zero_()

        def restore_states(_: Mapping[str, Tensor]) -> int:
            self.step = load_state(self.state)
            self._validate_after_epoch()  # a checkpoint at the end of an epoch is written before the validation
            return self.step

        for done in self.trainer.iter_train(
            seed, "pool", number, after_step=self._after_step, load_state=restore_states
        ):
            yield done  # before the validation, which waits for the device: other networks get their steps meanwhile
            self._validate_after_epoch()

    def validate(self, *, always_store: bool = False) -> None:
        """Compute the validation accuracy, and store the state if it is the first of its group."""
        if not self.trainer.is_finite():
            raise UserError(
                f"Training diverged: the weights contain NaN or infinity after step {self.step}. Try a smaller lr."
            )
        accuracy, row = self.trainer.accuracy(self.val_set), int(self.num_states)
        group = next((name for name in self.groups if in_group(accuracy, name)), None)
        stored = self.accuracies_S[:row].tolist()
        if always_store or (group and not any(in_group(other, group) for other in stored)):
            self.steps_S[row], self.accuracies_S[row], self.stored_SP[row] = self.step, accuracy, self.trainer.weights
            self.num_states += 1

    def _after_step(self) -> None:
        self.step += 1
        if self.step in self.early_steps:
            self.validate()

    def _validate_after_epoch(self) -> None:
        is_last = self.step == self.num_steps
        if self.step and (is_last or self.step % self.steps_per_epoch == 0):
            self.validate(always_store=is_last)

    @property
    def weights_SP(self) -> Tensor:
        """Weights of the stored states."""
        return self.stored_SP[: int(self.num_states)]

    def file_metadata(self, pool_hash: str) -> dict[str, str]:
        """Return the metadata of the network's file: its states, and the hash of the pool it belongs to."""
        num = int(self.num_states)
        pairs = zip(self.steps_S[:num].tolist(), self.accuracies_S[:num].tolist(), strict=True)
        states = [{"step": step, "accuracy": accuracy} for step, accuracy in pairs]
        return {"pool": json.dumps({"pool_hash": pool_hash, "states": states})}


def early_validation_steps(steps_per_epoch: int) -> frozenset[int]:
    """Return the steps of the first epoch, before its end, to validate after: 1, 2, 3, … with growing gaps."""
    powers = (math.ceil(VALIDATION_GROWTH**power) for power in itertools.count())
    return frozenset(itertools.takewhile(lambda step: step < steps_per_epoch, powers))


def _initialize_directory(directory: Path, metadata: dict[str, Any]) -> None:
    """Write the pool file, or check that the directory has the same pool; remove files that a kill left behind."""
    check_pool_directory(directory, metadata)
    with wrap_os_errors(directory):
        if not (directory / POOL_FILE).exists():
            write_file(directory / POOL_FILE, json.dumps(metadata, indent=1).encode() + b"\n")
        remove_temporary_files(directory, ["*.safetensors", POOL_FILE, "checkpoint"])


def _path(directory: Path, number: int) -> Path:
    return directory / f"{number:04d}.safetensors"
