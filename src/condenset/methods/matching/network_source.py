"""Where the networks of a matching run come from: random ones, a pool, a queue, or a user's own sampler."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from condenset import augment, networks
from condenset.data.image_data import ImageData
from condenset.engine.compile import Forward, functional_forward, with_autocast
from condenset.engine.device import ComputeDevice
from condenset.engine.tasks import SharedValue, write_files
from condenset.errors import UserError, check
from condenset.io.directories import temporary_directory
from condenset.methods.matching.queue import NetworkQueue, queue_size
from condenset.methods.matching.recipe import POOL_SAMPLERS, DMRecipe
from condenset.methods.matching.user_functions import UserNetworks, find_function
from condenset.methods.pools.pool import (
    POOL_FILE,
    NetworkPool,
    PoolState,
    check_pool_parent,
    weights_dtype,
)
from condenset.methods.pools.pool_training import expert_protocol, fill_run_pool
from condenset.methods.pools.trainer import checkpoint_epochs
from condenset.methods.samplers import NetworkSampler, TrainedNetworks, build_on_meta, sample_new_networks
from condenset.runs.context import RunContext

NUM_CHECKPOINTS = 20  # states per network of a pool, besides the initial one; all samplers share the pool
SAMPLED_STATES: Mapping[str, Sequence[int]] = {"final": (-1,), "interpolated": (0, -1)}  # others use all states
LOOKAHEAD_SHARE = 0.1  # of the training that the calibration is ahead of the sampled state at most


@dataclass(frozen=True)
class NetworkSource:
    """The networks of a run.

    Attributes:
        sampler: Samples the network of each iteration.
        classify: The network with its classifier as a function, for the calibration.
        embed: The embedding as a function, if it is not that of the recipe's network.
        network: Its module on the meta device.
        provenance: What the provenance of the set records.
    """

    sampler: NetworkSampler
    classify: Forward | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    embed: Forward | None = None
    network: nn.Module | None = None


def make_network_source(recipe: DMRecipe, data: ImageData, run: RunContext) -> NetworkSource:
    """Return where the networks of a run come from; train a pool if the recipe needs one that does not exist."""
    compute = run.compute
    check_network_source(recipe, data)
    if recipe.sampler == "random":
        return NetworkSource(sample_new_networks(recipe.network, data, run.seed, compute, embedding=True))
    if function := find_function("sampler", recipe.sampler):
        sampler = UserNetworks(recipe.sampler, function, recipe.features, run.seed, compute.device)
        classifier, embed = (with_autocast(apply, compute) for apply in (sampler.classify, sampler.embed))
        network = copy.deepcopy(sampler.embedding).to("meta")
        provenance = {"networks": f"those of your own sampler {recipe.sampler!r}, not the network of the recipe"}
        return NetworkSource(sampler, classifier, provenance, embed=embed, network=network)
    check(
        networks.has_default_init(recipe.network),
        f"the sampler {recipe.sampler} must have a built-in network",
        recipe.network,
    )
    full_network = build_on_meta(recipe.network, data)
    classify = functional_forward(full_network, compute)
    if recipe.sampler == "queue":
        stages = augment.parse_strategy(recipe.augment, allow_hflip=data.allow_hflip)
        queue = NetworkQueue(
            full_network,
            classify,
            run.seed,
            compute.device,
            compute.dtype,
            stages=stages,
            size=data.size,
            iterations=recipe.iterations,
        )
        return NetworkSource(queue, classify)
    if _uses_group(recipe):
        return _use_group(recipe, data, run)
    weights_EST, provenance = _load_or_train_pool(recipe, data, full_network, run)
    steps_ahead = max(1, round(LOOKAHEAD_SHARE * (weights_EST.shape[1] - 1)))
    lookahead = steps_ahead if recipe.sampler == "checkpoints" else None
    trained = TrainedNetworks(full_network, weights_EST, run.seed, recipe.sampler, lookahead=lookahead)
    return NetworkSource(trained, classify, {"pool": provenance})


def check_network_source(recipe: DMRecipe, data: ImageData) -> None:
    """Raise a UserError if the pool of a recipe does not fit the data, or there is other content in its place."""
    if recipe.pool and not recipe.has_pool:
        check_pool_parent(Path(recipe.pool))
        check(recipe.group == "all", "group must come with a pool that is trained already", recipe.group)
    elif recipe.pool:
        pool = NetworkPool.load(recipe.pool)
        uses_classifier = not _uses_group(recipe)
        with warnings.catch_warnings(action="ignore"):  # the pool warns when it is used
            pool.check_compatible(recipe.network, data, classifier=uses_classifier, labels=bool(recipe.calibration))
        pool.check_group(recipe.group)
        if uses_classifier:
            _check_intervals(pool, recipe)


def _check_intervals(pool: NetworkPool, recipe: DMRecipe) -> None:
    """Raise a UserError if the pool has states by accuracy, as `train_pool` stores them, and no initial ones."""
    if not pool.metadata.get("num_checkpoints"):
        sampler = f"the sampler {recipe.sampler}" + (" with calibration" if recipe.sampler == "checkpoints" else "")
        way_out = "give a new directory as pool, in which its networks are trained"
        raise UserError(f"{sampler} must have states at equal intervals, but {pool.directory} has none; {way_out}")


def _uses_group(recipe: DMRecipe) -> bool:
    """Return whether a recipe samples all states of a group of a pool, in any order, without their classifier."""
    return recipe.has_pool and recipe.sampler == "checkpoints" and not recipe.calibration


def _use_group(recipe: DMRecipe, data: ImageData, run: RunContext) -> NetworkSource:
    """Return a sampler of all states of a pool whose validation accuracy is in a group."""
    pool = NetworkPool.load(recipe.pool)
    pool.check_compatible(recipe.network, data)
    network = build_on_meta(recipe.network, data, embedding=True)
    states = pool.group(recipe.group)
    weights_GP = pool.weights(states, network, run.compute)
    entry = {
        "fingerprint": pool.fingerprint,
        "group": recipe.group,
        "networks": len({state.path for state in states}),
        "states": len(states),
        "seconds": pool.seconds(states),
    }
    sampler = TrainedNetworks(network, weights_GP[:, None], run.seed, "final")
    return NetworkSource(sampler, None, {"pool": entry})


def _load_or_train_pool(
    recipe: DMRecipe, data: ImageData, network: nn.Module, run: RunContext
) -> tuple[Tensor, dict[str, Any]]:
    """Return (E, S, T) weights of the states that the sampler uses, and what the provenance records of the networks."""
    if recipe.has_pool:
        pool = NetworkPool.load(recipe.pool)
        pool.check_compatible(recipe.network, data)
        weights_EST, provenance = _read_states(pool, pool.num_networks, recipe.sampler, network, run)
        return weights_EST, {"fingerprint": pool.fingerprint, **provenance}
    with temporary_directory("condenset-pool") as temporary:
        pool = _train_pool(recipe, data, run, temporary)
        return _read_states(pool, recipe.pool_size, recipe.sampler, network, run)


def _train_pool(recipe: DMRecipe, data: ImageData, run: RunContext, temporary: Path) -> NetworkPool:
    """Train the networks of a recipe that do not exist yet; without a directory of the run, in a temporary one."""
    return fill_run_pool(
        data,
        recipe.pool_size,
        expert_protocol(data, network=recipe.network, epochs=recipe.pool_epochs),
        run,
        parent=recipe.pool,
        temporary=temporary,
        num_checkpoints=NUM_CHECKPOINTS,
    )


def prepare_networks(data: ImageData, recipe: DMRecipe, run: RunContext) -> PoolTransfer | None:
    """Train the networks that a recipe needs, and return how workers get them; None if there are none."""
    if recipe.sampler not in POOL_SAMPLERS:
        return None
    assert run.engine is not None and run.directory is not None
    pool = NetworkPool.load(recipe.pool) if recipe.has_pool else _train_pool(recipe, data, run, run.directory)
    return PoolTransfer(pool.directory, pool.fingerprint, run.engine.share(_read_files(pool)), is_pool=recipe.has_pool)


def _read_files(pool: NetworkPool) -> dict[str, bytes]:
    """Return the content of the files of a pool by name."""
    paths = [pool.directory / POOL_FILE, *dict.fromkeys(state.path for state in pool.states)]
    return {path.name: path.read_bytes() for path in paths}


@dataclass(frozen=True)
class PoolTransfer:
    """A pool of networks on its way to workers.

    Attributes:
        directory: The directory of the pool. A worker that has the same pool there reads the networks from it.
        fingerprint: The fingerprint of the pool.
        files: The files of the pool by name.
        is_pool: Whether the recipe names the pool itself, not the directory that runs store their pools in.
    """

    directory: Path
    fingerprint: str
    files: SharedValue
    is_pool: bool

    def install(self, recipe: DMRecipe, directory: Path) -> DMRecipe:
        """Return the recipe with the place of the pool on this worker."""
        target = self.directory
        if not self._is_here():
            target = directory / target.name
            write_files(target, self.files.get())
        return dataclasses.replace(recipe, pool=str(target if self.is_pool else target.parent))

    def _is_here(self) -> bool:
        """Return whether this machine has the same pool at the same path."""
        with contextlib.suppress(UserError):  # no pool, or a damaged one
            return NetworkPool.load(self.directory).fingerprint == self.fingerprint
        return False


def _read_states(
    pool: NetworkPool, num_networks: int, sampler: str, network: nn.Module, run: RunContext
) -> tuple[Tensor, dict[str, Any]]:
    """Return (E, S, T) weights of the first networks of a pool, and their number and training time."""
    states = _select_states(pool, num_networks, sampler)
    weights_EST = pool.weights(states, network, run.compute).view(num_networks, len(states) // num_networks, -1)
    return weights_EST, {"networks": num_networks, "seconds": pool.seconds(states)}


def _select_states(pool: NetworkPool, num_networks: int, sampler: str) -> list[PoolState]:
    """Return the states that a sampler uses, of the first networks of a pool."""
    num_states = pool.num_states
    rows = SAMPLED_STATES.get(sampler, range(num_states))
    starts = range(0, num_networks * num_states, num_states)
    return [pool.states[start : start + num_states][row] for start in starts for row in rows]


def estimate_network_bytes(recipe: DMRecipe, data: ImageData, compute: ComputeDevice) -> int:
    """Return the memory of the networks that the sampler of a recipe holds, also of those that are not trained yet."""
    if recipe.sampler not in (*POOL_SAMPLERS, "queue"):
        return 0
    network = build_on_meta(recipe.network, data, embedding=_uses_group(recipe))
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    dtype = torch.float32 if recipe.sampler == "queue" else weights_dtype(network, compute)
    return _count_states(recipe) * num_parameters * dtype.itemsize


def _count_states(recipe: DMRecipe) -> int:
    """Return the number of states that the sampler of a recipe holds, of all networks."""
    if recipe.sampler == "queue":
        return queue_size(recipe.iterations)
    if recipe.has_pool:
        pool = NetworkPool.load(recipe.pool)
        by_group = _uses_group(recipe)
        return len(pool.group(recipe.group) if by_group else _select_states(pool, pool.num_networks, recipe.sampler))
    all_states = checkpoint_epochs(recipe.pool_epochs, NUM_CHECKPOINTS)
    return recipe.pool_size * len(SAMPLED_STATES.get(recipe.sampler, all_states))
