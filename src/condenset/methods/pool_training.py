"""Training a pool of networks: each is watched on its way, and its first state in every group kept.

Shapes: S states of a network, P numbers of it.
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

from condenset.data.validation import split_off
from condenset.engine import Place
from condenset.engine.memory import groups_left
from condenset.errors import UserError, whole
from condenset.files import hashed, write_file, write_tensors
from condenset.folders import locked, probe, writable
from condenset.methods.pools import ABOUT, EDGES, Pool, check_folder, group_names, in_group
from condenset.methods.trained import about_training
from condenset.midway import Midway
from condenset.presets import training_protocol
from condenset.progress import Shown
from condenset.recipes import Protocol
from condenset.runs import Run, reported
from condenset.train import Trainer, TrainingSet, side_by_side, together
from condenset.types import ImageData, check_data

EPOCHS = 30
HELD_OUT = 0.1  # of every class's training images, to validate on
LOOK_GROWTH = 1.25  # from one look at the validation images to the next within the first pass, where most is learned


def train_pool(
    data: ImageData,
    folder: str | os.PathLike[str],
    *,
    num: int,
    edges: Sequence[float] = EDGES,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    **fields: Any,
) -> Pool:
    """Train `num` networks and keep the first state of each in every group of validation accuracy, and its last.

    Any field of the protocol is a keyword (`network`, `epochs`, …). A tenth of every class is held out to validate on.
    Networks that the folder has are not trained again, so a stopped call goes on, and a larger `num` adds to it.
    """
    check_data("data", data)
    run = Run(seed=seed, place=Place.best(device, precision), progress=Shown())
    return fill_pool(data, Path(folder), num, pool_protocol(data, **fields), edges, run)


def pool_protocol(data: ImageData, **fields: Any) -> Protocol:
    """How networks of a pool are trained: as those of the evaluation, in fewer passes."""
    return training_protocol(name=data.name, size=data.size, whole=True, usual={"epochs": EPOCHS}, **fields)


def fill_pool(data: ImageData, folder: Path, num: int, protocol: Protocol, edges: Sequence[float], run: Run) -> Pool:
    """Train what the folder lacks of the first `num` networks, or go on; each is a file, written when it is done.

    Meanwhile other processes are kept out of the folder: they would take its temporary files for a kill's.
    """
    num = whole("num", num, 1)
    names, about = group_names(edges), about_pool(data, protocol, edges, run)
    probe(folder)
    with locked(folder):
        _claim(folder, about)
        missing = [number for number in range(num) if not _path(folder, number).exists()]
        if not missing:
            return Pool.load(folder)
        rest, held = split_off(data, HELD_OUT, seed=run.seed)
        train_set, held_set = (TrainingSet.of(part, run.place.device) for part in (rest, held))
        groups = groups_left(num, together(protocol, train_set, run.place), missing)
        trainers = [Trainer(protocol.network, train_set, protocol, run.place) for _ in range(max(map(len, groups)))]
        watches, steps = [Watch(trainer, held_set, names) for trainer in trainers], trainers[0].num_steps
        done, job = (num - len(missing)) * steps, f"pool {hashed(about)}"
        with reported(run, "training a pool of networks", num * steps, done):
            for numbers in groups:
                mine = dict(zip(numbers, watches, strict=False))
                midway = Midway(run, list(mine.values()), folder=folder, job=f"{job}: networks {numbers}", recipe={})
                trainings = [
                    watch.training(run.seed, number, restore)
                    for (number, watch), restore in zip(mine.items(), midway.restores, strict=True)
                ]
                for each in side_by_side(trainings, run.place.device):
                    run.progress.update(done + each * len(mine))
                    if each < steps:  # what is trained is kept, come what may
                        midway.rest(each)
                done += steps * len(mine)
                for number, watch in mine.items():
                    with writable(folder):
                        write_tensors(_path(folder, number), {"weights": watch.weights_SP}, watch.metadata(about))
                    run.event("network", net=number, seconds=round(midway.seconds / len(mine), 3))
                midway.kept.drop_checkpoint()
        return Pool.load(folder)


def about_pool(data: ImageData, protocol: Protocol, edges: Sequence[float], run: Run) -> dict[str, Any]:
    """Everything that decides what the networks of a pool are."""
    shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
    return about_training(data, protocol, run) | shape | {"edges": list(edges)}


class Watch:
    """Trains networks and looks at the validation images as it goes: often at first, then after every pass.

    The states that it keeps, the first of each group and the last, lie in tensors, as all does that Midway is to keep.
    """

    def __init__(self, trainer: Trainer, held: TrainingSet, groups: Sequence[str]) -> None:
        self.trainer, self.held, self.groups, self.step = trainer, held, groups, 0
        self.num_steps, self.a_pass = trainer.num_steps, -(-len(trainer.data) // trainer.protocol.batch)
        self.looks, most = early_looks(self.a_pass), len(groups) + 1
        self.num = torch.zeros((), dtype=torch.int64)  # of states kept
        self.steps_S = torch.zeros(most, dtype=torch.int64)
        self.accuracies_S = torch.zeros(most, dtype=torch.float64)
        self.kept_SP = trainer.weights.new_zeros(most, len(trainer.weights))

    @property
    def state(self) -> dict[str, Tensor]:
        """All that changes from one step to the next."""
        kept = {"num": self.num, "steps": self.steps_S, "accuracies": self.accuracies_S, "weights": self.kept_SP}
        return self.trainer.state | {f"kept.{name}": tensor for name, tensor in kept.items()}

    def training(self, seed: int, number: int, restore: Callable[[Mapping[str, Tensor]], int]) -> Iterator[int]:
        """Train network `number` of a pool, resting as a trainer does; what is kept of it stands until the next."""
        self.num.zero_()

        def go_on(_: Mapping[str, Tensor]) -> int:
            self.step = restore(self.state)
            self._look_after_pass()  # which had ended where the network rested, and was still to be looked at
            return self.step

        for done in self.trainer.training(seed, "pool", number, after_step=self._step_ended, restore=go_on):
            yield done  # before a look, which waits for the device: others are given their steps meanwhile
            self._look_after_pass()

    def look(self, *, always: bool = False) -> None:
        """Keep the network as it stands if it is the first in its group, or always."""
        if not self.trainer.is_finite():
            raise UserError(f"the network is no longer numbers after step {self.step}: a smaller lr may help")
        accuracy, num = self.trainer.accuracy(self.held), int(self.num)
        mine = next((name for name in self.groups if in_group(accuracy, name)), None)
        if always or (mine and not any(in_group(other, mine) for other in self.accuracies_S[:num].tolist())):
            self.steps_S[num], self.accuracies_S[num], self.kept_SP[num] = self.step, accuracy, self.trainer.weights
            self.num += 1

    def _step_ended(self) -> None:
        self.step += 1
        if self.step in self.looks:
            self.look()

    def _look_after_pass(self) -> None:
        last = self.step == self.num_steps
        if self.step and (last or self.step % self.a_pass == 0):
            self.look(always=last)

    @property
    def weights_SP(self) -> Tensor:
        """Those of the states kept."""
        return self.kept_SP[: int(self.num)]

    def metadata(self, about: Mapping[str, Any]) -> dict[str, str]:
        """What a file says of its states, and of the pool it belongs to."""
        known = zip(self.steps_S.tolist(), self.accuracies_S.tolist(), strict=True)
        states = [{"step": step, "accuracy": accuracy} for step, accuracy in itertools.islice(known, int(self.num))]
        return {"pool": json.dumps({"about": hashed(about), "states": states})}


def early_looks(steps: int) -> frozenset[int]:
    """The steps of the first pass, before its end, after which to look: 1, 2, 3, …, then ever further apart."""
    powers = itertools.takewhile(lambda step: step < steps, (math.ceil(LOOK_GROWTH**k) for k in itertools.count()))
    return frozenset(powers)


def _claim(folder: Path, about: dict[str, Any]) -> None:
    """Make the folder a pool's, or see that it is this one's."""
    check_folder(folder, about)
    with writable(folder):
        if not (folder / ABOUT).exists():
            write_file(folder / ABOUT, json.dumps(about, indent=1).encode() + b"\n")
        for name in ("*.safetensors", ABOUT, "checkpoint"):
            for path in folder.glob(f".{name}.*.tmp"):  # that a kill left behind
                path.unlink(missing_ok=True)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}.safetensors"
