"""The commands about networks: what there is, and training a pool of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from condenset.cli_options import AsJson, DataDir, Device, Network, PoolSeed, Precision, Size
from condenset.cli_shared import given, load, print_rows, watched
from condenset.errors import UserError, whole

app = typer.Typer(help="Networks: what there is, and training a pool of them.", invoke_without_command=True)


@app.callback()
def networks_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List the networks and the options of each, with defaults; or train a pool of them."""
    if context.invoked_subcommand:
        return
    from condenset.networks import describe

    rows = [(row.name, row.text, row.options) for row in describe()]
    print_rows(("network", "what it is", "options"), rows, as_json)


@app.command("train-pool")
def train_pool_command(
    dataset: Annotated[str, typer.Argument(help="A known name ('condenset data list') or a path.")],
    out: Annotated[Path, typer.Option(help="Folder of the pool; one begun before is gone on with.")],
    num: Annotated[int, typer.Option(help="Networks to train.")],
    network: Network = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs that each trains (default 30).")] = None,
    edges: Annotated[
        str | None, typer.Option(help="Between groups of validation accuracy, in % (default 10,20,30,40,50,60,70).")
    ] = None,
    seed: PoolSeed = None,
    device: Device = None,
    precision: Precision = None,
    size: Size = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train networks on a dataset and keep states on the way, for dm's options pool and group."""
    import torch

    from condenset.console import print_table
    from condenset.engine import Place
    from condenset.methods.pool_training import about_pool, fill_pool, pool_protocol
    from condenset.methods.pools import EDGES, check_folder, group_names
    from condenset.networks import build
    from condenset.runs import Run

    bounds = _numbers(edges) if edges else EDGES
    group_names(bounds)
    whole("num", num, 1)
    check_folder(out)  # before the data are read, which may take long
    run = Run(place=Place.best(device, precision), **given(seed=seed))
    train = load(dataset, data_dir, size).train
    protocol = pool_protocol(train, **given(network=network, epochs=epochs))
    with torch.device("meta"):  # only to see that it can be built, before the folder is made
        build(protocol.network, channels=train.channels, size=train.size, num_classes=train.num_classes)
    check_folder(out, about_pool(train, protocol, bounds, run))
    print(f"{dataset} on {run.place.hardware}, {run.place.precision}; the pool goes to {out}", file=sys.stderr)
    with watched(run, "; the same command goes on"):
        pool = fill_pool(train, out, num, protocol, bounds, run)
    if pool.num_networks > num:
        print(f"the pool has {pool.num_networks} networks already, --num asks for {num}: all count", file=sys.stderr)
    sizes = pool.group_sizes()
    if as_json:
        print(json.dumps({"folder": str(out), "networks": pool.num_networks, "states": sizes}, indent=1))
    else:
        print_table(("validation accuracy, %", "states"), [(name, str(size)) for name, size in sizes.items()])


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise UserError(f"edges must be numbers joined by commas, but got {text!r}") from None
