"""Architecture search: train many networks briefly on a small set, and rank them by validation accuracy."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

import torch

from condenset import augment, networks
from condenset.data.condensed_set import CondensedSet, check_train_set
from condenset.data.image_data import ImageData, Splits
from condenset.data.split import describe_overlap, train_val_split
from condenset.engine import ComputeDevice
from condenset.engine.defaults import torch_defaults
from condenset.engine.options import EngineOptions
from condenset.errors import UserError, check, check_type, warn_user
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.io.progress import make_progress
from condenset.networks import Architectures
from condenset.runs.context import RunContext
from condenset.runs.directory import RANKING, open_work_directory
from condenset.runs.loop import track_progress
from condenset.runs.tasks import open_run_engine
from condenset.search.ranker import VALIDATION, Ranker
from condenset.search.ranking_tasks import rank_on_engine
from condenset.training.class_matching import align_classes
from condenset.training.options import TrainingOptions
from condenset.training.protocol import Protocol, training_protocol

DEFAULT_FIELDS = {"num_networks": 1, "epochs": 200, "batch_size": 250}  # of the protocol of a ranking


class RankOptions(TrainingOptions, total=False):
    """Fields of a protocol, as keywords of `rank`."""

    num_networks: int


@dataclass(frozen=True, kw_only=True)
class RankedArchitecture:
    """One row of a ranking.

    Attributes:
        name: Name of the architecture.
        accuracy: Mean validation accuracy of its networks, a fraction. NaN if it could not be trained.
        seconds: Time of training and testing.
        reason: Why it could not be trained, or empty.
        other_accuracies: Mean accuracies on other images by name, which do not affect the ranking.
    """

    name: str
    accuracy: float = math.nan
    seconds: float = 0.0
    reason: str = ""
    other_accuracies: Mapping[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the row as JSON values; a missing accuracy is None."""
        return dataclasses.asdict(self) | ({"accuracy": None} if self.reason else {})


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Architectures from the best to the worst, followed by those that could not be trained.

    Attributes:
        rows: The architectures.
        protocol: The settings that they were trained with.
    """

    rows: tuple[RankedArchitecture, ...]
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> RankedArchitecture:
        """The architecture with the highest validation accuracy; of equal ones the first that was given."""
        if self.rows[0].reason:
            raise UserError(f"none of the architectures could be trained: {self.rows[0].reason}")
        return self.rows[0]

    def to_json(self) -> str:
        """Return the ranking as JSON."""
        return json.dumps({"protocol": dict(self.protocol), "rows": [row.record() for row in self.rows]}, indent=1)

    def __str__(self) -> str:
        lines = [" rank  accuracy %  seconds  architecture"]
        for number, row in enumerate(self.rows, start=1):
            accuracy = "-" if row.reason else f"{100 * row.accuracy:.1f}"
            reason = f": {row.reason}" if row.reason else ""
            lines.append(f"{number:5}  {accuracy:>10}  {row.seconds:7.1f}  {row.name}{reason}")
        return "\n".join(lines)


@torch_defaults()
def rank(
    architectures: Architectures,
    train_set: CondensedSet | ImageData,
    data: ImageData | Splits,
    *,
    directory: str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    engine: str = "local",
    address: str | None = None,
    gpus_per_worker: float = 1.0,
    verbose: bool = True,
    **fields: Unpack[RankOptions],
) -> Ranking:
    """Train networks of every architecture on a small set, and rank the architectures by validation accuracy.

    Args:
        architectures: Specs and builders `(channels, size, num_classes) -> torch.nn.Module`, or a mapping from names to
            them. `search_space()` returns the specs of the paper's search.
        train_set: The set to train on: a condensed set, or a whole dataset for comparison.
        data: Validation images, which must not be among the images that the set was made from; or the splits of a
            dataset, of which a tenth of the training images is used. Test images are never used.
        directory: Store results and checkpoints here. Called again with the same arguments, `rank` continues.
        seed: The same seed gives the same ranking.
        device: "cpu", "cuda" or "mps". Default: the fastest one available.
        precision: "float32" or "bfloat16". Default: bfloat16 on GPUs that support it.
        engine: "local", or "ray" to divide the architectures among workers.
        address: Address of a Ray cluster, such as "auto" or "ray://HOST:PORT". None: a Ray of this machine.
        gpus_per_worker: GPUs of each Ray worker; 0.5 for two workers per GPU.
        verbose: Show progress.
        **fields: Fields of `Protocol` except `network` and `learned_steps`. Defaults that differ from those of
            `evaluate`: `num_networks=1`, `epochs=200` and `batch_size=250`.

    Returns:
        The ranking: `rows` from the best to the worst, and `best`. Architectures that could not be trained are the last
        rows, with the reason.

    Raises:
        UserError: If an argument is invalid, the directory has other content, or `data` has the training images.

    Example:
        >>> import condenset as cs
        >>> data = cs.load("digits", verbose=False)
        >>> train, val = cs.train_val_split(data.train)
        >>> condensed = cs.condense(train, "random", ipc=5, device="cpu", verbose=False)
        >>> architectures = ["mlp(width=64)", "convnet(width=16, depth=1)"]
        >>> ranking = cs.rank(architectures, condensed, val, epochs=60, device="cpu", verbose=False)
        >>> sorted(row.name for row in ranking.rows)
        ['convnet(width=16, depth=1)', 'mlp(width=64)']
        >>> ranking.best.accuracy > 0.3
        True
    """
    check_train_set(train_set)
    check_type(data, (ImageData, Splits), "data must be ImageData for validation, or Splits such as cs.load('digits')")
    check("network" not in fields, "network must not be given, because architectures are", fields.get("network"))
    if isinstance(data, Splits):
        data = train_val_split(data.train, seed=seed)[1]
    _check_disjoint(train_set, data)
    protocol = training_protocol(name="", size=0, defaults=DEFAULT_FIELDS, **fields)
    protocol = augment.remove_unused_flip(protocol, allow_hflip=train_set.allow_hflip)
    compute = ComputeDevice.select(device, precision)
    run = RunContext(seed=seed, compute=compute, job="rank", progress=make_progress(verbose))
    engine_options = EngineOptions(engine=engine, address=address, gpus_per_worker=gpus_per_worker)
    with open_run_engine(engine_options, compute, verbose=verbose) as run.engine:
        if directory is None:
            return rank_architectures(architectures, train_set, data, protocol, run)
        with open_work_directory(directory, run) as work_directory:
            ranking = rank_architectures(architectures, train_set, data, protocol, run)
            run.verify_identity()
            path = work_directory / RANKING
            with wrap_os_errors(path):
                write_file(path, ranking.to_json().encode() + b"\n")
        return ranking


def rank_architectures(
    architectures: Architectures,
    train_set: CondensedSet | ImageData,
    val_set: ImageData,
    protocol: Protocol,
    run: RunContext,
    *,
    other_sets: Mapping[str, ImageData] | None = None,
    description: str = "ranking architectures",
) -> Ranking:
    """Rank architectures within a run, which can be resumed.

    Args:
        architectures: Specs and builders, or a mapping from names to them.
        train_set: The set to train on.
        val_set: Images that decide the ranking.
        protocol: How the networks are trained.
        run: The run.
        other_sets: Further images by name, such as test images, which do not affect the ranking.
        description: Label of the progress display.
    """
    specs = networks.name_architectures(architectures, val_set.size)
    eval_sets = {
        name: align_classes(train_set, images) for name, images in {VALIDATION: val_set, **(other_sets or {})}.items()
    }
    ranker = Ranker(specs, train_set, eval_sets, protocol, run)
    if run.engine is not None:
        rank_on_engine(ranker, run.engine, description)
    with track_progress(run, description, len(specs) * protocol.num_networks, ranker.num_done):
        ranker.train_all()
    rows = sorted((_row(ranker, name) for name in specs), key=lambda row: math.inf if row.reason else -row.accuracy)
    settings = {key: value for key, value in dataclasses.asdict(protocol).items() if key != "network"}
    return Ranking(rows=tuple(rows), protocol=settings | {"seed": run.seed, "precision": run.compute.precision})


def _row(ranker: Ranker, name: str) -> RankedArchitecture:
    seconds = round(ranker.seconds[name], 3)
    if name in ranker.reasons:
        return RankedArchitecture(name=name, reason=ranker.reasons[name], seconds=seconds)
    accuracies = ranker.mean_accuracies(name)
    accuracy = accuracies.pop(VALIDATION)
    return RankedArchitecture(name=name, accuracy=accuracy, other_accuracies=accuracies, seconds=seconds)


def _check_disjoint(train_set: CondensedSet | ImageData, val_set: ImageData) -> None:
    """Check that the validation images are not among the training images: an error for images, a warning for a set."""
    overlap = describe_overlap(train_set, val_set)
    if not overlap:
        return
    if isinstance(train_set, ImageData):
        raise UserError(
            f"validation images must not be training images, but they {overlap} training images: give both parts of "
            "one call of cs.train_val_split"
        )
    warn_user(
        f"the validation images {overlap} images that the set was condensed from, which may favour networks that "
        "memorise them: use cs.train_val_split(data.train), condense the first part, and give the second as data"
    )
