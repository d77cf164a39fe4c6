"""Plan an evaluation: which sets are scored on which networks, and how these are trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from condenset import networks
from condenset.augment import remove_unused_flip
from condenset.data.reading.opening import absolute_dataset_path
from condenset.errors import option, warn_user
from condenset.io.user_directories import absolute_path
from condenset.pipeline.config import read_plan
from condenset.pipeline.datasets import resolve_load_options
from condenset.pipeline.evaluation.config import EvaluationJob, EvaluationSource
from condenset.pipeline.evaluation.images import TestImageCache
from condenset.pipeline.evaluation.opened_sets import OpenedSet, open_set
from condenset.pipeline.sets import find_sets
from condenset.training.learned_steps import check_learned_steps, overridden_fields, read_learned_lr
from condenset.training.protocol import Overrides, Protocol, check_ignored_options, make_protocol, without_overridden
from condenset.training.scoring import network_of_set

OWN = "own"  # in place of a network: that of each set, else that of its run, else the default


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What the user asks to evaluate.

    Attributes:
        paths: Set files, run directories and directories of set files.
        networks: Specs, or `OWN`. Empty: the network that all sets have in common, else the default.
        protocol_fields: Other fields of the protocol, and its name as `protocol`.
        config: A recipe.toml with the protocol. None: that of the run of the sets, else the default.
        dataset: Name or path of the dataset with the test images. None: the one that each set was made from.
        data_dir: Directory of the datasets.
        load_fields: Fields of `LoadOptions`.
        seed: Seed of the networks. None: that of each set.
    """

    paths: tuple[Path, ...]
    networks: tuple[str, ...] = ()
    protocol_fields: Mapping[str, Any] = field(default_factory=dict)
    config: Path | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    load_fields: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None


def plan_evaluation(request: EvaluationRequest, cache: TestImageCache) -> tuple[EvaluationJob, ...]:
    """Return the jobs of an evaluation. Sets, datasets and protocols are checked.

    Args:
        request: The options of the user.
        cache: Loads the test images.

    Raises:
        UserError: A set cannot be scored.
    """
    files = {file.absolute(): file for path in request.paths for file in find_sets(path)}.values()
    data_dir = absolute_path(request.data_dir) if request.data_dir else None
    source, options = None, resolve_load_options(request.load_fields)
    if request.dataset is not None:
        dataset = absolute_dataset_path(request.dataset, data_dir)
        source = EvaluationSource(dataset=dataset, data_dir=data_dir, every_image=True, options=options)
    sets = [open_set(file, cache, source, data_dir, request.load_fields) for file in files]
    jobs = [
        EvaluationJob(
            file=str(opened.file.absolute()),
            fingerprint=opened.condensed.fingerprint,
            seed=_choose_seed(opened, request.seed),
            source=opened.source,
            test_fingerprint=opened.test.fingerprint,
            made_from=opened.made_from,
            protocol=protocol,
        )
        for opened, protocols in zip(sets, _choose_protocols(sets, request), strict=True)
        for protocol in protocols
    ]
    return tuple({job.name: job for job in jobs}.values())


def _choose_seed(opened: OpenedSet, seed: int | None) -> int:
    """Return the seed of the networks: that of the set repeats the score of its run."""
    set_seed = opened.condensed.provenance.get("seed")
    return seed if seed is not None else set_seed if isinstance(set_seed, int) else 0


def _choose_protocols(sets: Sequence[OpenedSet], request: EvaluationRequest) -> list[list[Protocol]]:
    """Return the protocols of each set, one per network. Without other options, all sets have the same."""
    explicit = dict(request.protocol_fields)
    train_sets = [opened.condensed for opened in sets]
    check_ignored_options(explicit, overridden_fields(*train_sets))
    with_own_lr = [train_set for train_set in train_sets if read_learned_lr(train_set) is not None]
    overridden = overridden_fields(*(with_own_lr or train_sets))  # the others ignore the fields of the runs
    config = dict(read_plan(request.config).explicit.get("protocol", {})) if request.config else None
    shared = without_overridden(_common_run_fields(sets) if config is None else config, explicit, overridden)
    config_network = shared.pop("network", None)
    learned_steps = bool((shared | explicit).get("learned_steps"))
    if request.networks:
        own = [(_own_network(opened) or _run_network(opened)) if OWN in request.networks else None for opened in sets]
        chosen = [[spec if name == OWN else name for name in request.networks] for spec in own]
    elif learned_steps:  # the step sizes are learned for this network
        chosen = [[config_network or network_of_set(opened.condensed)] for opened in sets]
    else:
        common = config_network or _common_network(sets)
        chosen = [[common]] * len(sets)
    protocols = [
        [_make_protocol(opened, {**shared, **explicit}, network) for network in specs]
        for opened, specs in zip(sets, chosen, strict=True)
    ]
    for opened in sets if learned_steps else ():
        check_learned_steps(opened.condensed)
    if config is None:
        _warn_about_other_protocols(sets, protocols, explicit, overridden)
    return protocols


def _make_protocol(opened: OpenedSet, fields: Mapping[str, Any], network: str | None) -> Protocol:
    """Return the protocol of a set, and check that its network can be built for the images."""
    fields = {**fields, "network": network} if network else fields
    protocol = make_protocol(name=opened.test.name, size=opened.test.size, **fields)
    with torch.device("meta"):
        networks.build(
            protocol.network,
            channels=opened.test.channels,
            size=opened.test.size,
            num_classes=opened.condensed.num_classes,
        )
    return remove_unused_flip(protocol, allow_hflip=opened.condensed.allow_hflip)


def _common_run_fields(sets: Sequence[OpenedSet]) -> dict[str, Any]:
    """Return the protocol, without its network, that all sets were scored with in their runs; else nothing."""
    fields = [_run_fields(opened) for opened in sets]
    return fields[0] if all(item == fields[0] for item in fields) else {}


def _run_fields(opened: OpenedSet) -> dict[str, Any]:
    """Return the protocol of the run of a set without its network; nothing if the run scored no sets."""
    if opened.plan is None or opened.plan.protocol is None:
        return {}
    return {name: value for name, value in dataclasses.asdict(opened.plan.protocol).items() if name != "network"}


def _own_network(opened: OpenedSet) -> str | None:
    """Return the network that a set was learned with. A set with step sizes works with it only together with them."""
    return network_of_set(opened.condensed) if opened.condensed.step_sizes is None else None


def _run_network(opened: OpenedSet) -> str | None:
    """Return the network that the run of a set scored it on; None if it scored no sets."""
    return opened.plan.protocol.network if opened.plan and opened.plan.protocol else None


def _common_network(sets: Sequence[OpenedSet]) -> str | None:
    """Return the network that all sets were scored on in their runs, or learned with; None for the default."""
    specs: dict[str, str] = {}
    for opened in sets:
        if spec := _run_network(opened) or _own_network(opened):
            specs.setdefault(networks.canonical_spec(spec, size=opened.test.size), spec)
    if len(specs) <= 1:
        return next(iter(specs.values()), None)
    defaults = dict.fromkeys(make_protocol(name=item.test.name, size=item.test.size).network for item in sets)
    warn_user(
        f"the sets have different networks ({', '.join(specs.values())}): all are scored on the default of their "
        f"dataset ({', '.join(defaults)}). Choose another with {option('network')}, or the network of each set with "
        f"{option('network', OWN)}"
    )
    return None


def _warn_about_other_protocols(
    sets: Sequence[OpenedSet],
    protocols: Sequence[Sequence[Protocol]],
    explicit: Mapping[str, Any],
    overridden: Overrides,
) -> None:
    """Warn if the scores of a run are not repeated because the runs of the sets have different protocols."""
    for opened, (protocol, *_) in zip(sets, protocols, strict=True):
        fields = dataclasses.asdict(protocol)
        run_fields = {name: value for name, value in _run_fields(opened).items() if name not in explicit}
        run_fields = without_overridden(run_fields, explicit, overridden)
        if differing := [name for name, value in run_fields.items() if fields[name] != value]:
            warn_user(
                f"the runs of the sets differ in {', '.join(differing)} of their protocols: all sets are scored by "
                f"the default protocol. Choose one with {option('config')}"
            )
            return
