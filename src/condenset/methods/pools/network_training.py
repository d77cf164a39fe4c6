"""Train the networks of a pool, and store each in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from condenset.data.image_data import ImageData
from condenset.data.split import train_val_split
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_tensors
from condenset.methods.pools.trainer import PoolTrainer, checkpoint_epochs
from condenset.runs.context import RunContext
from condenset.runs.loop import track_progress
from condenset.training.checkpoint import TrainingCheckpoint
from condenset.training.dataset import DeviceDataset
from condenset.training.parallel import num_parallel, remaining_groups, train_in_parallel
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

VAL_SHARE = 0.1  # of the training images of every class


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """The networks of a pool.

    Attributes:
        num_networks: Number of networks.
        protocol: How they are trained.
        groups: Groups of validation accuracy, whose first state is stored. Empty: none.
        num_checkpoints: Without groups: states that are stored at equal intervals, in addition to the initial one.
        pool_hash: Hash of everything that decides the networks.
    """

    num_networks: int
    protocol: Protocol
    groups: Sequence[str]
    num_checkpoints: int
    pool_hash: str


def train_networks(
    data: ImageData,
    directory: Path,
    spec: PoolSpec,
    missing: Sequence[int],
    run: RunContext,
    *,
    num_shown: int | None = None,
) -> None:
    """Train the missing networks, several at a time where the device allows it, and write their files.

    Args:
        data: Training images.
        directory: Where the files are written.
        spec: The networks of the pool.
        missing: The networks to train.
        run: The run.
        num_shown: The networks that the progress display counts, with those trained before. None: the whole pool.
    """
    protocol, num_networks, device = spec.protocol, spec.num_networks, run.compute.device
    num_shown = num_shown or num_networks
    train_set, val_set = (DeviceDataset.from_data(part, device) for part in _split(data, bool(spec.groups), run.seed))
    batches = remaining_groups(num_networks, num_parallel(protocol, train_set, run.compute), missing)
    trainers = [
        PoolTrainer(
            Trainer(protocol.network, train_set, protocol, run.compute),
            val_set,
            spec.groups,
            store_epochs=checkpoint_epochs(protocol.total_epochs, spec.num_checkpoints),
        )
        for _ in range(max(map(len, batches)))
    ]
    num_steps = trainers[0].num_steps
    done = (num_shown - len(missing)) * num_steps
    with track_progress(run, "training a pool of networks", num_shown * num_steps, done):
        for numbers in batches:
            in_use = dict(zip(numbers, trainers, strict=False))
            job = f"pool {spec.pool_hash}: networks {numbers}"
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
            seconds = round(checkpoint.seconds / len(in_use), 3)
            for number, trainer in in_use.items():
                with wrap_os_errors(directory):
                    metadata = trainer.file_metadata(spec.pool_hash, seconds)
                    write_tensors(network_path(directory, number), {"weights": trainer.weights_SP}, metadata)
                run.log_event("network", net=number, seconds=seconds)
            checkpoint.delete()


def _split(data: ImageData, has_groups: bool, seed: int) -> tuple[ImageData, ImageData]:
    """Return the images to train on and to validate with."""
    if has_groups:
        return train_val_split(data, VAL_SHARE, seed=seed)
    return data, dataclasses.replace(data, images=data.images[::10], labels=data.labels[::10], stored_fingerprint="")


def network_path(directory: Path, number: int) -> Path:
    """Return the file of a network."""
    return directory / f"{number:04d}.safetensors"
