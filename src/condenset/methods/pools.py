"""A pool of trained networks with states on the way there, kept on disk: what distribution matching may draw from.

Shapes: S states of a network, G states of a group, P numbers of a network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condenset import networks
from condenset.engine import Place
from condenset.errors import UserError, check, check_path
from condenset.files import hashed, read_metadata, read_rows
from condenset.folders import is_empty
from condenset.recipes import read_group
from condenset.types import ImageData

EDGES = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)  # % of validation images right, between the paper's groups
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
    if is_empty(folder):
        return
    if not (folder / ABOUT).exists():
        raise UserError(f"{folder} is not empty and not a pool of networks: choose another folder")
    known = _read_about(folder)
    about = known if about is None else about
    differ = sorted(key for key in {*known, *about} if known.get(key) != about.get(key))
    if differ:
        raise UserError(f"{folder} holds another pool (it differs in {', '.join(differ)}): choose another folder")


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
