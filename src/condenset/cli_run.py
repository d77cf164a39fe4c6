"""The commands that make a run and go on with it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condenset.cli_options import (
    AllowFewer,
    AsJson,
    Augment,
    Config,
    DataDir,
    Dataset,
    Device,
    Epochs,
    Init,
    Ipcs,
    Iterations,
    Lr,
    Memory,
    Methods,
    Nets,
    Network,
    Out,
    Overwrite,
    Precision,
    Seed,
    Settings,
    Size,
    Whole,
    WholeEpochs,
)
from condenset.cli_paper import resume_experiment
from condenset.cli_shared import (
    anchored,
    given,
    in_bytes_or_none,
    ipc_numbers,
    load,
    load_again,
    method_names,
    print_files,
    print_records,
    watched,
)
from condenset.errors import UserError

if TYPE_CHECKING:
    from condenset.plans import Plan, Wishes
    from condenset.types import Splits


def _run_of(methods: list[str], doc: str) -> Callable[..., None]:
    """The command that condenses and scores, by these methods unless others are named."""

    def command(
        dataset: Dataset = None,
        method: Methods = None,
        ipc: Ipcs = None,
        network: Network = None,
        iterations: Iterations = None,
        lr: Lr = None,
        init: Init = None,
        augment: Augment = None,
        settings: Settings = None,
        allow_fewer: AllowFewer = None,
        whole: Whole = None,
        nets: Nets = None,
        epochs: Epochs = None,
        whole_epochs: WholeEpochs = None,
        seed: Seed = None,
        device: Device = None,
        precision: Precision = None,
        memory: Memory = None,
        size: Size = None,
        out: Out = None,
        config: Config = None,
        data_dir: DataDir = None,
        overwrite: Overwrite = False,
        as_json: AsJson = False,
    ) -> None:
        both = given(network=network, augment=augment)
        fields = both | given(iterations=iterations, lr=lr, init=init, allow_fewer=allow_fewer)
        protocol = both | given(nets=nets, epochs=epochs)
        names = method or ([] if config else methods)
        wishes = _wishes(names, ipc, fields, settings, protocol=protocol, whole=whole, whole_epochs=whole_epochs)
        place = given(seed=seed, device=device, precision=precision, memory=in_bytes_or_none(memory), size=size)
        _begin(wishes, dataset, config, place, data_dir, out, overwrite, as_json)

    command.__doc__ = doc
    return command


run_command = _run_of(
    ["random", "dm"], "Condense a dataset, score the sets and draw them: Random, DM and the whole dataset side by side."
)
compare_command = _run_of(
    ["all"], "Condense by every method, score all sets alike, and draw accuracy against the seconds it took."
)


def condense_command(
    dataset: Dataset = None,
    method: Methods = None,
    ipc: Ipcs = None,
    network: Network = None,
    iterations: Iterations = None,
    lr: Lr = None,
    init: Init = None,
    augment: Augment = None,
    settings: Settings = None,
    allow_fewer: AllowFewer = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory: Memory = None,
    size: Size = None,
    out: Out = None,
    config: Config = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Condense a dataset, without scoring the set; it is condensed.safetensors in the run's folder."""
    fields = given(network=network, iterations=iterations, lr=lr, init=init, augment=augment, allow_fewer=allow_fewer)
    wishes = _wishes(method or ([] if config else ["dm"]), ipc, fields, settings, evaluate=False)
    place = given(seed=seed, device=device, precision=precision, memory=in_bytes_or_none(memory), size=size)
    _begin(wishes, dataset, config, place, data_dir, out, overwrite, as_json)


def resume_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a run that was stopped.")],
    device: Device = None,
    memory: Memory = None,
    dataset: Annotated[str | None, typer.Option(help="Where the data lie now, if they have moved.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped or killed, to the same result."""
    from condenset import folders, plans

    place = str(data_dir.absolute()) if data_dir else None
    moved = anchored(dataset, place) if dataset else None
    changes = given(device=device, memory=in_bytes_or_none(memory), data_dir=place)
    if (folder / "experiment.toml").is_file():
        resume_experiment(folder, changes, moved, as_json)
        return
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run: it has no recipe.toml")
    with folders.locked(folder):
        with folders.writable(folder):
            folders.sweep(folder)
        plan = dataclasses.replace(plans.from_toml(folder / "recipe.toml"), **changes)
        splits = load_again(plan, folder, moved)
        plans.check_plan(plan, splits.train)
        _go(plan, splits, folder, as_json)


def _wishes(
    names: list[str], ipc: list[str] | None, fields: dict[str, Any], settings: list[str] | None, **rest: Any
) -> Wishes:
    """What was asked for; a field that an option and --set give, both for all methods, is refused."""
    from condenset.plans import Wishes, read_settings
    from condenset.recipes import RECIPES

    general, by_method = read_settings(settings or ())
    for name in fields:
        if name in general:
            raise UserError(f"{name} is given twice, by --{name.replace('_', '-')} and by --set: give one of the two")
    methods = method_names(names, RECIPES)
    return Wishes(methods=methods, ipcs=ipc_numbers(ipc), recipe=fields | general, by_method=by_method, **rest)


def _begin(
    wishes: Wishes,
    dataset: str | None,
    config: Path | None,
    place: dict[str, Any],
    data_dir: Path | None,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make the plan and its folder, then go."""
    from condenset import folders, plans
    from condenset.engine import Place
    from condenset.files import write_file

    base = plans.from_toml(config) if config else None
    if base is None and dataset is None:
        raise UserError("which dataset? give a name ('condenset data list') or a path")
    names = ("seed", "device", "precision", "memory", "size", "data_dir")
    kept = {key: getattr(base, key) for key in names} if base else {}
    settings = {**kept, **place, **given(data_dir=str(data_dir.absolute()) if data_dir else None)}
    settings["dataset"] = anchored(dataset, settings.get("data_dir")) if dataset else base.dataset if base else ""
    chosen = Place.best(settings.get("device"), settings.get("precision"))
    settings |= {"device": str(chosen.device), "precision": chosen.precision}
    if overwrite and out is None:
        raise UserError("--overwrite needs --out: without it every run has a folder of its own")
    if out:
        folders.check_free(out, overwrite=overwrite)  # before the data are read, which may take long
    splits = load(settings["dataset"], settings.get("data_dir"), settings.get("size"))
    if wishes.evaluate:
        settings["test_fingerprint"] = splits.test.fingerprint
    plan = plans.make_plan(splits.train, wishes, base, **settings)
    if out:
        folders.probe(out)
    folder = out or folders.fresh_folder(Path("runs") / splits.train.name)
    with folders.locked(folder):
        folders.new_folder(folder, overwrite=overwrite)
        with folders.writable(folder):
            write_file(folder / "recipe.toml", plans.to_toml(plan).encode())
        _go(plan, splits, folder, as_json)


def _go(plan: Plan, splits: Splits, folder: Path, as_json: bool) -> None:
    """Carry the plan out in its folder and say what came of it."""
    from condenset.engine import Place
    from condenset.runs import Run
    from condenset.workflow import execute

    run = Run(seed=plan.seed, place=Place.best(plan.device, plan.precision), folder=folder, memory=plan.memory)
    print(f"{plan.dataset} on {run.place.hardware}, {run.place.precision}; all goes to {folder}", file=sys.stderr)
    with watched(run, f"; go on with: condenset resume {shlex.quote(str(folder))}"):
        records = execute(plan, splits, run)
    print_records(records, as_json)
    if not as_json:
        print()
        files = {"picture": "grid.png", "chart": "chart.png", "set": "condensed.safetensors", "results": "results.json"}
        print_files(folder, **files)
