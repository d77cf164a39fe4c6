"""A pool of trained networks with states on the way there, kept on disk: what distribution matching may draw from.

Shapes: S states of a network, G states of a group, P numbers of a network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.data.validation import split_off
from condenset.engine import Place
from condenset.engine.memory import parts
from condenset.errors import UserError, check, check_path, whole
from condenset.files import hashed, read_metadata, read_rows, write_file, write_tensors
from condenset.folders import locked, probe, writable
from condenset.methods.trained import about_training
from condenset.presets import training_protocol
from condenset.progress import Shown
from condenset.recipes import Protocol, read_group
from condenset.runs import Run, reported
from condenset.train import Trainer, TrainingSet, side_by_side, together
from condenset.types import ImageData, check_data

EDGES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)  # % of validation images right, between the paper's groups
EPOCHS = 30
HELD_OUT = 0.1  # of every class's training images, to validate on
LOOK_GROWTH = 1.25  # from one look at the validation images to the next within the first pass, where most is learned
ABOUT = "pool.json"
MOST = 1 << 20  # classes, channels, or pixels in a row, that a pool may be said to be for


@dataclass(frozen=True)
class State:
    """A network as it was after some step of its training."""

    path: Path
    row: int
    step: int
    accuracy: float  # on the validation images, a fraction


@dataclass(frozen=True)
class Pool:
    """The states of all networks in a folder, and how they were trained."""

    folder: Path
    about: Mapping[str, Any]
    states: tuple[State, ...]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Pool:
        """What a folder holds; weights are read when they are asked for."""
        check_path(folder)
        about = _read_about(Path(folder))
        paths = sorted(path for path in Path(folder).glob("*.safetensors") if path.stem.isdecimal())
        return cls(Path(folder), about, tuple(state for path in paths for state in _read_states(path, about)))

    def __fspath__(self) -> str:
        """Its folder: a pool goes where the path of one does."""
        return str(self.folder)

    @property
    def num_networks(self) -> int:
        return len({state.path for state in self.states})

    @property
    def fingerprint(self) -> str:
        """Which networks these are, wherever the folder lies."""
        known = [(state.path.name, state.step, state.accuracy) for state in self.states]
        return hashed([dict(self.about), known])

    def group(self, group: str) -> list[State]:
        """The states whose validation accuracy lies in a group such as 60-70; all: all of them."""
        return [state for state in self.states if in_group(state.accuracy, group)]

    def group_sizes(self) -> dict[str, int]:
        """How many states each of the pool's groups has, all of them last."""
        return {name: len(self.group(name)) for name in (*group_names(self.about["edges"]), "all")}

    def weights(self, group: str, network: nn.Module, place: Place) -> Tensor:
        """(G, P) those of a group's states, on the device, as far as `network` has them (it may lack its classifier).

        In the precision that computes with them, which they would be cast to anyway; batch norm's own need float32.
        """
        self.check_has(group)
        states = self.group(group)
        full, names = self._full_network(), {name for name, _ in network.named_parameters()}
        num = sum(each.numel() for each in full.parameters())
        _read_weights(states[0].path, [states[0].row], num)  # refused before memory for what the pool promises is taken
        wanted_P = torch.cat([torch.full((each.numel(),), name in names) for name, each in full.named_parameters()])
        dtype = torch.float32 if networks.uses_batch_norm(network) else place.dtype
        out_GP = torch.empty(len(states), int(wanted_P.sum()), dtype=dtype, device=place.device)
        first = 0
        for path, mine in itertools.groupby(states, key=lambda state: state.path):
            rows = [state.row for state in mine]
            found_SP = _read_weights(path, rows, num)
            out_GP[first : first + len(rows)] = found_SP[:, wanted_P].to(place.device, dtype)
            first += len(rows)
        return out_GP

    def check_has(self, group: str) -> None:
        """Refuse a group that has no state."""
        if not self.group(group):
            sizes = ", ".join(f"{name} ({size})" for name, size in self.group_sizes().items())
            raise UserError(f"{self.folder} has no network of group {group!r}; it has {sizes}")

    def check_fits(self, spec: str, data: ImageData) -> None:
        """Refuse a pool of other networks than these, or for images of another shape; warn of one of other images."""
        about, shape = self.about, (data.channels, data.size, data.size)
        mine = (about["channels"], about["size"], about["size"])
        check(mine == shape, f"{self.folder} has networks for images of {mine}", shape)
        wanted = networks.canonical(spec, size=data.size)
        check(about["network"] == wanted, f"network must be the pool's {about['network']}", wanted)
        if about.get("fingerprint", data.fingerprint) != data.fingerprint:
            warnings.warn(f"the networks of {self.folder} were trained on other images than these", stacklevel=2)

    def _full_network(self) -> networks.Network:
        shape = {key: self.about[key] for key in ("channels", "size", "num_classes")}
        with torch.device("meta"):
            return networks.build(self.about["network"], **shape)


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
    return training_protocol(name=data.name, size=data.size, whole=True, **{"epochs": EPOCHS, **fields})


def fill_pool(data: ImageData, folder: Path, num: int, protocol: Protocol, edges: Sequence[float], run: Run) -> Pool:
    """Train what the folder lacks of the first `num` networks; each is a file, written when it is done.

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
        groups = parts(len(missing), together(protocol, train_set, run.place))
        trainers = [Trainer(protocol.network, train_set, protocol, run.place) for _ in missing[groups[0]]]
        watches, steps = [Watch(trainer, held_set, names) for trainer in trainers], trainers[0].num_steps
        done = (num - len(missing)) * steps
        with reported(run, "training a pool of networks", num * steps, done) as report:
            for numbers in (missing[group] for group in groups):
                mine = dict(zip(numbers, watches, strict=False))
                trainings = [watch.training(run.seed, number) for number, watch in mine.items()]
                for each in side_by_side(trainings, run.place.device):
                    look = report if each < steps else run.progress.update  # what is trained is kept, come what may
                    look(done + each * len(mine))
                done += steps * len(mine)
                for number, watch in mine.items():
                    with writable(folder):
                        write_tensors(_path(folder, number), {"weights": watch.weights_SP}, watch.metadata(about))
        return Pool.load(folder)


def about_pool(data: ImageData, protocol: Protocol, edges: Sequence[float], run: Run) -> dict[str, Any]:
    """Everything that decides what the networks of a pool are."""
    shape = {"channels": data.channels, "size": data.size, "num_classes": data.num_classes}
    return about_training(data, protocol, run) | shape | {"edges": list(edges)}


class Watch:
    """Trains networks and looks at the validation images as it goes: often at first, then after every pass."""

    def __init__(self, trainer: Trainer, held: TrainingSet, groups: Sequence[str]) -> None:
        self.trainer, self.held, self.groups = trainer, held, groups
        self.a_pass = -(-len(trainer.data) // trainer.protocol.batch)  # steps
        self.looks = early_looks(self.a_pass)
        self.step = 0
        self.kept: list[tuple[int, float, Tensor]] = []  # step, accuracy, weights

    def training(self, seed: int, number: int) -> Iterator[int]:
        """Train network `number` of a pool, resting as a trainer does; what is kept of it stands until the next."""
        self.step, self.kept = 0, []
        for done in self.trainer.training(seed, "pool", number, after_step=self._step_ended):
            yield done  # before a look, which waits for the device: others are given their steps meanwhile
            last = done == self.trainer.num_steps
            if last or done % self.a_pass == 0:
                self.look(always=last)

    def look(self, *, always: bool = False) -> None:
        """Keep the network as it stands if it is the first in its group, or always."""
        if not self.trainer.is_finite():
            raise UserError(f"the network is no longer numbers after step {self.step}: a smaller lr may help")
        accuracy = self.trainer.accuracy(self.held)
        mine = next((name for name in self.groups if in_group(accuracy, name)), None)
        if always or (mine and not any(in_group(other, mine) for _, other, _ in self.kept)):
            self.kept.append((self.step, accuracy, self.trainer.weights.clone()))

    def _step_ended(self) -> None:
        self.step += 1
        if self.step in self.looks:
            self.look()

    @property
    def weights_SP(self) -> Tensor:
        return torch.stack([weights for _, _, weights in self.kept])

    def metadata(self, about: Mapping[str, Any]) -> dict[str, str]:
        """What a file says of its states, and of the pool it belongs to."""
        states = [{"step": step, "accuracy": accuracy} for step, accuracy, _ in self.kept]
        return {"pool": json.dumps({"about": hashed(about), "states": states})}


def early_looks(steps: int) -> frozenset[int]:
    """The steps of the first pass, before its end, after which to look: 1, 2, 3, …, then ever further apart."""
    powers = itertools.takewhile(lambda step: step < steps, (math.ceil(LOOK_GROWTH**k) for k in itertools.count()))
    return frozenset(powers)


def group_names(edges: Sequence[float]) -> list[str]:
    """The groups between edges and from the last one up: 10-20, …, 60-70, 70-100."""
    bounds = [*edges, 100.0]
    inside = len(bounds) > 1 and all(isinstance(edge, int | float) and 0 <= edge <= 100 for edge in bounds)
    rising = inside and all(a < b for a, b in itertools.pairwise(bounds))
    check(rising, "edges must be accuracies in %, each above the one before and below 100", list(edges))
    return [f"{low:g}-{high:g}" for low, high in itertools.pairwise(bounds)]


def in_group(accuracy: float, group: str) -> bool:
    """Whether an accuracy, a fraction, lies in a group such as 60-70: from 60% to below 70%; 100% is in the last."""
    low, high = read_group(group)
    value = round(100 * accuracy, 6)
    return low <= value < high or value == high == 100


def check_folder(folder: Path, about: Mapping[str, Any] | None = None) -> None:
    """Refuse a folder that holds anything but a pool, or another pool than `about` says."""
    with writable(folder):
        held = folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())
    if not held:
        return
    if not (folder / ABOUT).exists():
        raise UserError(f"{folder} is not empty and not a pool of networks: choose another folder")
    known = _read_about(folder)
    about = known if about is None else about
    differ = sorted(key for key in {*known, *about} if known.get(key) != about.get(key))
    if differ:
        raise UserError(f"{folder} holds another pool (it differs in {', '.join(differ)}): choose another folder")


def _claim(folder: Path, about: dict[str, Any]) -> None:
    """Make the folder a pool's, or see that it is this one's."""
    check_folder(folder, about)
    with writable(folder):
        if not (folder / ABOUT).exists():
            write_file(folder / ABOUT, json.dumps(about, indent=1).encode() + b"\n")
        for path in folder.glob(".*.safetensors.*.tmp"):  # that a kill left behind
            path.unlink(missing_ok=True)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}.safetensors"


def _read_about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    if not path.is_file():
        raise UserError(f"{folder} is not a pool of networks: it has no {ABOUT} ('condenset networks train-pool')")
    known: object = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        known = json.loads(path.read_text(encoding="utf-8"))
    kinds, numbers = {"network": str, "edges": list}, ("channels", "size", "num_classes")
    if (
        not isinstance(known, dict)
        or not all(isinstance(known.get(key), kind) for key, kind in kinds.items())
        or not all(type(known.get(key)) is int and 1 <= known[key] <= MOST for key in numbers)
    ):
        raise UserError(f"{path} does not say what the pool holds; train another")
    group_names(known["edges"])
    return known


def _read_states(path: Path, about: Mapping[str, Any]) -> list[State]:
    """The states in a file of the pool; one of another pool is refused."""
    hint = "delete it to train the network again"
    try:
        meta = json.loads(read_metadata(path)["pool"])
        states = [State(path, n, int(s["step"]), float(s["accuracy"])) for n, s in enumerate(meta["states"])]
        mine = meta["about"]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = str(error) if isinstance(error, UserError) else f"{path} is not a network of a pool"
        raise UserError(f"{reason}; {hint}") from None
    if mine != hashed(about):
        raise UserError(f"{path} belongs to another pool; {hint}")
    return states


def _read_weights(path: Path, rows: Sequence[int], num: int) -> Tensor:
    weights_SP = read_rows(path, "weights", rows)
    fits = weights_SP.ndim == 2 and weights_SP.shape[1] == num and weights_SP.dtype == torch.float32
    if not fits or not bool(weights_SP.isfinite().all()):
        raise UserError(f"{path} holds other weights than its network has; delete it to train the network again")
    return weights_SP
