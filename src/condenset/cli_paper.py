"""The command that repeats the paper's experiments."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condenset.cli_options import (
    AsJson,
    DataDir,
    Device,
    Epochs,
    Ipcs,
    Memory,
    Methods,
    Nets,
    Out,
    Overwrite,
    Precision,
    Seed,
    Size,
    WholeEpochs,
)
from condenset.cli_options import (
    Settings as Set,
)
from condenset.cli_shared import (
    anchored,
    given,
    in_bytes_or_none,
    ipc_numbers,
    load,
    load_again,
    method_names,
    print_files,
    print_rows,
    watched,
)
from condenset.errors import UserError

if TYPE_CHECKING:
    from condenset.experiments.settings import Settings
    from condenset.plans import Wishes
    from condenset.types import Splits


def paper_command(
    name: Annotated[str | None, typer.Argument(help="The experiment; without it, what there is.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A name or path (default: the paper's; tiny: digits).")] = None,
    scale: Annotated[
        str, typer.Option(help="tiny (to see that everything runs: its numbers mean nothing), small or paper.")
    ] = "small",
    methods: Methods = None,
    ipc: Ipcs = None,
    changes: Set = None,
    nets: Nets = None,
    epochs: Epochs = None,
    whole_epochs: WholeEpochs = None,
    sets: Annotated[
        int | None, typer.Option(help="Sets to make, each of a seed of its own (default: 5 at paper, else 1).")
    ] = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory: Memory = None,
    size: Size = None,
    out: Out = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Repeat a table or figure of the paper, on its data or yours."""
    from condenset import experiments, folders
    from condenset.engine import Place
    from condenset.errors import check_choice
    from condenset.experiments.settings import Settings

    if name is None:
        rows = [(key, each.title, "" if each.perform else "not yet") for key, each in experiments.EXPERIMENTS.items()]
        print_rows(("experiment", "what it is", "state"), rows, as_json, third="state")
        return
    experiment = experiments.find(name)
    check_choice("scale", scale, experiments.SCALES)
    if overwrite and out is None:
        raise UserError("--overwrite needs --out: without it every run has a folder of its own")
    if out:
        folders.check_free(out, overwrite=overwrite)
    folder_of_data = str(data_dir.absolute()) if data_dir else None
    chosen = anchored(dataset, folder_of_data) if dataset else "digits" if scale == "tiny" else experiment.dataset
    place = Place.best(device, precision)
    settings = Settings(
        experiment=name,
        dataset=chosen,
        scale=scale,
        device=str(place.device),
        precision=place.precision,
        **given(seed=seed, memory=in_bytes_or_none(memory), size=size, data_dir=folder_of_data),
        **given(nets=nets, epochs=epochs, whole_epochs=whole_epochs, sets=sets),
        methods=method_names(methods, experiment.names) if methods else (),
        ipc=ipc_numbers(ipc),
        set=tuple(map(_anchored_pool, changes or ())),
    )
    _check_pools(settings.wishes, out)  # what cannot be is refused before the data are read
    splits = load(chosen, folder_of_data, size)
    train, test = splits.train.fingerprint, splits.test.fingerprint
    settings = dataclasses.replace(settings, fingerprint=train, test_fingerprint=test)
    _perform_anew(settings, splits, out, overwrite, as_json)


def _perform_anew(settings: Settings, splits: Splits, out: Path | None, overwrite: bool, as_json: bool) -> None:
    """Do an experiment in a folder of its own, of which nothing is left if it cannot be done."""
    from condenset import folders
    from condenset.experiments.settings import to_toml
    from condenset.files import write_file

    if out:
        folders.probe(out)
    folder = out or folders.fresh_folder(Path("runs") / f"{settings.experiment}-{splits.train.name}")
    with folders.locked(folder):
        folders.new_folder(folder, overwrite=overwrite)
        with folders.writable(folder):
            write_file(folder / "experiment.toml", to_toml(settings).encode())
        try:
            _perform(settings, splits, folder, as_json)
        except UserError:
            folders.take_back(folder)
            raise


def _anchored_pool(change: str) -> str:
    """A pool's folder as a whole path: an experiment may be resumed from elsewhere."""
    key, _, folder = change.partition("=")
    is_pool = key.strip().rpartition(".")[2] == "pool" and folder.strip()
    return f"{key}={Path(os.path.expanduser(folder.strip())).absolute()}" if is_pool else change


def _check_pools(wishes: Wishes, out: Path | None) -> None:
    """Refuse what is no pool, or goes with what is overwritten, while the earlier run is still there."""
    from condenset.methods.pools import Pool

    for fields in (wishes.recipe, *wishes.by_method.values()):
        if pool := fields.get("pool"):
            Pool.load(pool)
            if out and Path(pool).resolve().is_relative_to(out.resolve()):
                raise UserError(f"{pool} would go with what lies in {out}: choose another --out")


def resume_experiment(folder: Path, changes: dict[str, Any], moved: str | None, as_json: bool) -> None:
    """Go on with an experiment, some settings changed or its data moved: what is done is not done again."""
    from condenset import folders
    from condenset.experiments import find
    from condenset.experiments.settings import from_toml

    with folders.locked(folder):
        settings = dataclasses.replace(from_toml(folder / "experiment.toml"), **changes)
        find(settings.experiment)
        folders.sweep(folder)
        _perform(settings, load_again(settings, folder, moved), folder, as_json)


def _perform(settings: Settings, splits: Splits, folder: Path, as_json: bool) -> None:
    """Do what is left of the experiment in its folder and say what came of it."""
    from condenset.console import print_table
    from condenset.engine import Place
    from condenset.experiments import perform
    from condenset.runs import Run

    place = Place.best(settings.device, settings.precision)
    run = Run(seed=settings.seed, place=place, folder=folder, memory=settings.memory)
    what = f"{settings.experiment} on {settings.dataset}, {settings.scale}"
    print(f"{what}, on {place.hardware}, {place.precision}; all goes to {folder}", file=sys.stderr)
    with watched(run, f"; go on with: condenset resume {shlex.quote(str(folder))}"):
        about = {"dataset": settings.dataset, "scale": settings.scale}
        outcome = perform(settings.experiment, splits, run, folder, **about, wishes=settings.wishes, sets=settings.sets)
    if as_json:
        print((folder / "results.json").read_text(encoding="utf-8"), end="")
        return
    print_table(outcome.table.columns, outcome.table.rows)
    print()
    if settings.scale == "tiny":
        print("tiny is there to see that everything runs: its numbers mean nothing")
    print_files(folder, figure="figure.png", table="table.md", results="results.json")
