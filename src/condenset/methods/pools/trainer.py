"""Train a network of a pool: store its first state in every group of validation accuracy, or states at intervals.

Shapes: S states of a network, P parameters of a network.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from condenset.errors import UserError
from condenset.methods.pools.accuracy_groups import in_group
from condenset.training.dataset import DeviceDataset
from condenset.training.trainer import Trainer

VALIDATION_GROWTH = 1.25  # ratio of the steps of two validations in the first epoch, where the accuracy rises fastest


class PoolTrainer:
    """Train networks of a pool and validate them: often during the first epoch, then after every epoch.

    It stores the first state of each group and the last state in tensors, so that they are part of the checkpoint.

    Args:
        trainer: Trains the network.
        val_set: Validation images.
        groups: Names of the groups of validation accuracy.
        store_epochs: Epochs whose state is always stored; 0 for the initial state.
    """

    def __init__(
        self,
        trainer: Trainer,
        val_set: DeviceDataset,
        groups: Sequence[str],
        store_epochs: frozenset[int] = frozenset(),
    ) -> None:
        self.trainer, self.val_set, self.groups, self.step = trainer, val_set, groups, 0
        self.num_steps, self.is_resumable = trainer.num_steps, trainer.is_resumable
        self.steps_per_epoch, self.store_epochs = trainer.steps_per_epoch, store_epochs
        self.early_steps = early_validation_steps(self.steps_per_epoch) if groups else frozenset()
        max_states = len(store_epochs) if store_epochs else len(groups) + 1
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
            if self.step == 0 and 0 in self.store_epochs:
                self.validate(always_store=True)
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
        epoch, step_in_epoch = divmod(self.step, self.steps_per_epoch)
        if not self.step or (step_in_epoch and not is_last):
            return
        always_store = is_last or epoch in self.store_epochs
        if always_store or self.groups:
            self.validate(always_store=always_store)

    @property
    def weights_SP(self) -> Tensor:
        """Weights of the stored states."""
        return self.stored_SP[: int(self.num_states)]

    def file_metadata(self, pool_hash: str, seconds: float) -> dict[str, str]:
        """Return the metadata of the network's file: its states, its training time, and the hash of its pool."""
        num = int(self.num_states)
        pairs = zip(self.steps_S[:num].tolist(), self.accuracies_S[:num].tolist(), strict=True)
        states = [{"step": step, "accuracy": accuracy} for step, accuracy in pairs]
        return {"pool": json.dumps({"pool_hash": pool_hash, "seconds": seconds, "states": states})}


def checkpoint_epochs(num_epochs: int, num_checkpoints: int) -> frozenset[int]:
    """Return the epochs after which a state is stored: 0, and `num_checkpoints` at equal intervals up to the last."""
    if not num_checkpoints:
        return frozenset()
    return frozenset(round(num_epochs * index / num_checkpoints) for index in range(num_checkpoints + 1))


def early_validation_steps(steps_per_epoch: int) -> frozenset[int]:
    """Return the steps of the first epoch, before its end, to validate after: 1, 2, 3, … with growing gaps."""
    powers = (math.ceil(VALIDATION_GROWTH**power) for power in itertools.count())
    return frozenset(itertools.takewhile(lambda step: step < steps_per_epoch, powers))
