"""The commands `condenset networks` and `condenset networks train-pool`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from condenset.cli.common import announce, drop_unset, in_terminal
from condenset.cli.completion import complete_dataset
from condenset.cli.console import format_options, print_described, print_json, print_line, print_table
from condenset.cli.help import HelpCommand, HelpGroup
from condenset.cli.option_groups import OptionValues, expand_groups
from condenset.cli.options import AsJson, DataDir, Device, Network, Precision, Seed, expand_path
from condenset.cli.startup import import_torch
from condenset.config import MAX_NETWORKS
from condenset.errors import UserError, check_int

app = typer.Typer(cls=HelpGroup, help="List the networks, or train a pool of networks.", invoke_without_command=True)


@app.callback()
def networks_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List the networks and their options with defaults, or train a pool of networks."""
    if context.invoked_subcommand:
        return
    import_torch()

    from condenset.networks import describe_networks

    entries = describe_networks()
    rows = [(entry["name"], entry["description"], format_options(entry["options"])) for entry in entries]
    print_described(("network", "description", "options"), rows, entries, as_json)


@app.command("train-pool", cls=HelpCommand)
@expand_groups
def train_pool_command(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            autocompletion=complete_dataset,
            help="Dataset name ('condenset data list') or path.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIRECTORY", callback=expand_path, help="Directory of the pool. An unfinished pool is continued."
        ),
    ],
    num_networks: Annotated[int, typer.Option("--num", metavar="NUMBER", help="Number of networks to train.")],
    network: Network = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Training epochs of each network (default: 30).")
    ] = None,
    edges: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="Limits between the groups of validation accuracy, in % (default: 10,20,30,40,50,60,70).",
        ),
    ] = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    *,
    load_fields: OptionValues,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train networks and store states at several accuracies, for the options pool and group of dm."""
    import_torch(dataset=dataset, data_dir=data_dir)

    import torch

    from condenset import data
    from condenset.engine import ComputeDevice
    from condenset.io.directories import ensure_writable
    from condenset.methods.pools.accuracy_groups import EDGES, group_names
    from condenset.methods.pools.pool import check_pool_directory
    from condenset.methods.pools.pool_training import fill_pool, pool_metadata, pool_protocol
    from condenset.networks import build
    from condenset.runs.context import RunContext

    group_edges = _parse_edges(edges) if edges else EDGES
    group_names(group_edges)  # checks the edges
    check_int("num_networks", num_networks, 1, MAX_NETWORKS)
    check_pool_directory(out)  # before reading the data, which may take long
    run = RunContext(compute=ComputeDevice.select(device, precision), **drop_unset(seed=seed))
    train = data.load(dataset, data_dir=data_dir, **load_fields).train
    protocol = pool_protocol(train, **drop_unset(network=network, epochs=epochs))
    with torch.device("meta"):  # check that the network can be built before creating the directory
        build(protocol.network, channels=train.channels, size=train.size, num_classes=train.num_classes)
    check_pool_directory(out, pool_metadata(train, protocol, run, edges=group_edges))
    ensure_writable(out)
    announce(f"Training {num_networks} network{'s' * (num_networks > 1)} on {dataset}", run, out)
    with in_terminal(run, "Repeat the command to resume."):
        pool = fill_pool(train, out, num_networks, protocol, run, edges=group_edges)
    if pool.num_networks > num_networks:
        message = f"The pool already has {pool.num_networks} networks, more than --num {num_networks}."
        print_line(f"{message} All of them are used.", stderr=True)
    sizes = pool.group_sizes()
    if as_json:
        print_json({"directory": str(out), "networks": pool.num_networks, "states": sizes})
    else:
        print_table(("validation accuracy, %", "states"), [(name, str(count)) for name, count in sizes.items()])


def _parse_edges(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise UserError(f"edges must be numbers separated by commas, but got {text!r}") from None
