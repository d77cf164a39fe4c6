"""Plan a run: combine presets, a config file and the request into the settings that decide the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from condenset.augment import remove_unused_flip
from condenset.config import MAX_NETWORKS
from condenset.data.image_data import ImageData
from condenset.data.ipc import Ipc, name_set, resolve_ipc
from condenset.data.stores.streamed_store import check_images_fit
from condenset.data.whitening import check_whitening_size
from condenset.engine.memory import check_network_fits
from condenset.errors import UserError, check, check_int
from condenset.methods import METHODS, Recipe, make_recipe_for
from condenset.methods.common import images_per_class
from condenset.methods.registry import check_method_memory, find_shared
from condenset.methods.sharding import check_divisible
from condenset.pipeline.request import DEFAULT_IPC, RunRequest
from condenset.pipeline.settings import RunSettings
from condenset.runs.snapshots import MAX_SNAPSHOTS
from condenset.training.protocol import Protocol, describe_protocol, is_large, make_protocol, without_overridden

WHOLE = "whole"  # the name of the job that scores the whole dataset
RANDOM = "random"  # the method whose sets show what others gain


@dataclass(frozen=True, kw_only=True)
class Job:
    """One set to make and score.

    Attributes:
        method: Name of the method, or `WHOLE`.
        recipe: Settings of the method. None: the job only scores the whole dataset.
        explicit: The fields that the config file states, without presets. Empty: the job is not from a config file.
    """

    method: str
    recipe: Recipe | None = None
    explicit: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def ipc(self) -> Ipc | None:
        """Images per class; None for the whole dataset."""
        return self.recipe.ipc if self.recipe else None

    @property
    def name(self) -> str:
        """The name of the job in events, checkpoints and file names, such as `dm-10`."""
        return name_set(self.method, self.ipc)


@dataclass(frozen=True, kw_only=True)
class Plan(RunSettings):
    """Everything that decides the result of a run.

    Attributes:
        jobs: What to condense and score, in order.
        protocol: How sets are scored. None: they are not.
        whole: How the whole dataset is scored. None: it is not.
        num_networks_on_random: Networks that score random images, if these are fewer than those that score other sets.
        snapshots: Number of iterates whose images are kept for the report. It does not change the result.
        explicit: The tables `protocol` and `whole` as a config file states them, without presets.
    """

    jobs: tuple[Job, ...]
    protocol: Protocol | None = None
    whole: Protocol | None = None
    num_networks_on_random: int | None = None
    snapshots: int = 0
    explicit: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "snapshots", check_int("snapshots", self.snapshots, 0, MAX_SNAPSHOTS))
        if self.num_networks_on_random is not None:
            check_int("num_networks_on_random", self.num_networks_on_random, 1, MAX_NETWORKS)
        check(bool(self.condense_jobs), "a run must have at least one job", list(self.jobs))
        names = [job.name for job in self.jobs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        check(not repeated, "jobs must have different names (METHOD-IPC)", repeated)

    @property
    def condense_jobs(self) -> list[Job]:
        """The jobs that make a set."""
        return [job for job in self.jobs if job.recipe]

    def protocol_of(self, job: Job) -> Protocol | None:
        """Return how a job is scored, or None if it is not."""
        if job.recipe is None:
            return self.whole
        if self.protocol is None:
            return None
        num_networks = self.protocol.num_networks
        if job.method == RANDOM and self.num_networks_on_random is not None:
            num_networks = min(num_networks, self.num_networks_on_random)
        return dataclasses.replace(self.protocol, num_networks=num_networks)

    def jobs_to_share(self, job: Job) -> list[Job]:
        """Return the later jobs whose sets can be learned at once with the set of this job."""
        shared = find_shared({other.name: other.recipe for other in self.jobs if other.recipe})[job.name]
        return [other for other in self.jobs if other.name in shared]

    def set_path(self, job: Job, directory: Path) -> Path:
        """Return the file of a job's set in a run directory."""
        return directory / "sets" / f"{job.name}.safetensors"


def describe_scoring(plan: Plan) -> str:
    """Return how sets are scored, and how many networks score random images if these are fewer."""
    if plan.protocol is None:
        return "none"
    has_random, num = any(job.method == RANDOM for job in plan.jobs), plan.num_networks_on_random
    fewer = has_random and num is not None and num < plan.protocol.num_networks
    return describe_protocol(plan.protocol) + (f"; {RANDOM}: {num} networks" if fewer else "")


def make_plan(data: ImageData, request: RunRequest, base: Plan | None = None, **settings: Any) -> Plan:
    """Combine presets, the plan of a config file and the request; later ones override earlier ones.

    Args:
        data: The training images.
        request: The options that the user gave.
        base: The plan of a config file, from `read_plan`.
        settings: Further fields of the plan, such as `dataset`, `seed` and `device`.

    Raises:
        UserError: The plan cannot succeed, for example because a class has too few images.
    """
    if base:
        _check_same_data(base, data, request, settings)
    pairs = _method_ipc_pairs(data, request, base)
    request.check_fields([method for method, _ in pairs])
    jobs = []
    for method, ipc in pairs:
        fields = {**_config_fields(data, request, base, method, ipc), **request.fields_for(method), "ipc": ipc}
        recipe = make_recipe_for(method, data, schedule=request.schedule_for(method), **fields)
        jobs.append(Job(method=method, recipe=recipe))
    protocol = _plan_protocol(data, request, base, jobs) if request.evaluate else None
    whole = _plan_whole_protocol(data, request, base, protocol) if protocol else None
    if whole:
        jobs.append(Job(method=WHOLE))
    plan = Plan(jobs=tuple(jobs), protocol=protocol, whole=whole, fingerprint=data.fingerprint, **settings)
    check_plan(plan, data)
    return plan


def check_plan(plan: Plan, data: ImageData) -> None:
    """Check before the run what would fail late: networks that do not fit the images, and sets larger than a class."""
    specs = [getattr(job.recipe, "network", None) for job in plan.jobs]
    specs += [protocol.network for protocol in (plan.protocol, plan.whole) if protocol]
    compute = plan.compute
    for spec in dict.fromkeys(spec for spec in specs if spec):
        check_network_fits(spec, compute, channels=data.channels, size=data.size, num_classes=data.num_classes)
    if plan.engine_options.engine != "local" and len(plan.condense_jobs) == 1:
        check_divisible(plan.condense_jobs[0].recipe)
    for job in plan.jobs:
        if job.recipe:
            images_per_class(data, job.recipe)
            METHODS[job.method].check(data, job.recipe, compute, plan.memory_limit)
            if job.recipe.zca:
                check_whitening_size(data.images[0].numel())
            check_method_memory(job.method, data, compute, plan.memory_limit, zca=job.recipe.zca)
    if plan.whole:
        check_images_fit(data, compute, None, "scoring the whole dataset", "leave it out with --no-whole")


def _check_same_data(base: Plan, data: ImageData, request: RunRequest, settings: Mapping[str, Any]) -> None:
    """Check that the dataset has not changed since the config file was written."""
    if (base.dataset, base.load_options) != (settings["dataset"], settings.get("load_options", base.load_options)):
        return
    train_differs = base.fingerprint not in ("", data.fingerprint)
    test_differs = base.test_fingerprint not in ("", settings.get("test_fingerprint"))
    if train_differs or (request.evaluate and test_differs):
        raise UserError(
            f"{base.dataset} has changed since the config file was written: to run on the present data, remove "
            "'fingerprint' and 'test_fingerprint' from the file"
        )


def _method_ipc_pairs(data: ImageData, request: RunRequest, base: Plan | None) -> list[tuple[str, Ipc]]:
    """Return (method, images per class) of every job: as requested, else as in the config file."""
    share = request.ipc_share
    requested: tuple[Ipc, ...] = request.ipcs if share is None else (resolve_ipc(data, share=share),)
    base_pairs = [(job.method, job.recipe.ipc) for job in base.condense_jobs if job.recipe] if base else []
    if base_pairs and not request.methods and not requested:
        return [(method, _fit_ipc(data, request, base, method, ipc)) for method, ipc in base_pairs]
    methods = request.methods or tuple(method for method, _ in base_pairs)
    ipcs = requested or tuple(ipc for _, ipc in base_pairs) or (DEFAULT_IPC,)
    pairs = [(method, _fit_ipc(data, request, base, method, ipc)) for ipc in ipcs for method in methods]
    return list(dict.fromkeys(pairs))


def _fit_ipc(data: ImageData, request: RunRequest, base: Plan | None, method: str, ipc: Ipc) -> Ipc:
    """Return the images per class that the set will have: with `allow_fewer`, at most the images of the class."""
    fields = {**_config_fields(data, request, base, method, ipc), **request.fields_for(method)}
    return resolve_ipc(data, ipc, allow_fewer=fields.get("allow_fewer") is True)


def _config_fields(data: ImageData, request: RunRequest, base: Plan | None, method: str, ipc: Ipc) -> dict[str, Any]:
    """Return the recipe fields of a method in the config file.

    They come from the job with the same number of images per class, else from the method's first job. Defaults that
    depend on that number or on the schedule, such as the learning rate, become those of the new number and schedule.
    """
    jobs = [job for job in base.condense_jobs if job.method == method] if base else []
    job = next((job for job in jobs if job.ipc == ipc), jobs[0] if jobs else None)
    if job is None or job.recipe is None:
        return {}
    fields = dict(job.explicit)

    def defaults(number: Ipc, schedule: str | None) -> dict[str, Any]:
        return dataclasses.asdict(make_recipe_for(method, data, ipc=number, schedule=schedule))

    old_defaults = [(defaults(job.recipe.ipc, name), name) for name in METHODS[method].schedules or (None,)]
    old, schedule = max(old_defaults, key=lambda pair: sum(pair[0][name] == fields[name] for name in fields))
    new = defaults(ipc, request.schedule_for(method) or schedule)
    return {name: new[name] if value == old[name] else value for name, value in fields.items()}


def _plan_protocol(data: ImageData, request: RunRequest, base: Plan | None, jobs: list[Job]) -> Protocol:
    """Return the protocol that scores all sets."""
    config = without_overridden(_config_protocol(base, "protocol"), request.protocol_fields)
    fields = {**_common_network(jobs), **config, **request.protocol_fields}
    protocol = make_protocol(name=data.name, size=data.size, **fields)
    return remove_unused_flip(protocol, allow_hflip=data.allow_hflip)


def _plan_whole_protocol(
    data: ImageData, request: RunRequest, base: Plan | None, protocol: Protocol
) -> Protocol | None:
    """Return the protocol that scores the whole dataset, or None if that is not requested."""
    by_default = base is None or base.whole is not None or request.whole_epochs is not None
    if not (by_default if request.whole is None else request.whole):
        return None
    config = without_overridden(_config_protocol(base, "whole"), request.whole_protocol_fields)
    large = is_large(len(data))
    small = {} if large else {"epochs": protocol.epochs}  # as many steps as on a set
    if small and config.get("epochs") == _config_protocol(base, "protocol").get("epochs"):
        config.pop("epochs", None)  # it was derived in the same way
    fields = {"network": protocol.network, **small, **config, **request.whole_protocol_fields}
    whole = make_protocol(name=data.name, size=data.size, whole=large, **fields)
    return remove_unused_flip(whole, allow_hflip=data.allow_hflip)


def _common_network(jobs: list[Job]) -> dict[str, Any]:
    """Return the network that all sets are scored on, or nothing if no method has a suitable one.

    If several methods have one, the method that is registered last decides.
    """
    order = list(METHODS)
    suitable = [job for job in jobs if METHODS[job.method].network_fits_evaluation]
    suitable.sort(key=lambda job: order.index(job.method))
    specs = [spec for job in suitable if (spec := getattr(job.recipe, "network", None))]
    return {"network": specs[-1]} if specs else {}


def _config_protocol(base: Plan | None, table: str) -> Mapping[str, Any]:
    """Return the fields of the table `protocol` or `whole` in the config file."""
    return base.explicit.get(table, {}) if base else {}
