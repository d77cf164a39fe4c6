"""The commands `condenset run`, `compare` and `condense`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from condenset.cli.common import (
    check_one_network,
    choose_dataset,
    drop_unset,
    parse_ipcs,
    parse_memory_limit,
    parse_methods,
)
from condenset.cli.console import print_line, print_preview
from condenset.cli.evaluation_options import Epochs, NumNetworks, PerClass, ProtocolName, Whole, WholeEpochs
from condenset.cli.option_groups import (
    NO_ENGINE_FIELDS,
    NO_LOAD_FIELDS,
    EngineFields,
    LoadFields,
    add_engine_options,
    add_load_options,
)
from condenset.cli.options import (
    ZCA,
    AllowFewer,
    AsJson,
    Augment,
    Config,
    DataDir,
    Dataset,
    Device,
    DryRun,
    ImagesPerClass,
    Init,
    IpcShare,
    Iterations,
    LearningRate,
    MemoryLimit,
    Methods,
    Network,
    Out,
    Overwrite,
    Pool,
    Precision,
    Report,
    Schedule,
    Seed,
    Settings,
    Snapshots,
    TensorBoard,
    Train,
)
from condenset.cli.run_display import format_plan_command, print_report_path, print_run, run_session
from condenset.cli.startup import import_torch
from condenset.errors import UserError

if TYPE_CHECKING:
    from condenset.pipeline.request import RunRequest

COMPARE_HELP = "Condense a dataset with all methods but variants of dm, score the sets and draw accuracy against time."


@add_engine_options
@add_load_options
def run_command(
    context: typer.Context,
    dataset: Dataset = None,
    train: Train = None,
    methods: Methods = None,
    ipcs: ImagesPerClass = None,
    ipc_share: IpcShare = None,
    network: Network = None,
    schedule: Schedule = None,
    iterations: Iterations = None,
    lr: LearningRate = None,
    init: Init = None,
    augment: Augment = None,
    settings: Settings = None,
    pool: Pool = None,
    allow_fewer: AllowFewer = None,
    zca: ZCA = None,
    protocol: ProtocolName = None,
    whole: Whole = None,
    num_networks: NumNetworks = None,
    epochs: Epochs = None,
    whole_epochs: WholeEpochs = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    engine_fields: EngineFields = NO_ENGINE_FIELDS,
    load_fields: LoadFields = NO_LOAD_FIELDS,
    out: Out = None,
    config: Config = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    report: Report = True,
    snapshots: Snapshots = None,
    tensorboard: TensorBoard = False,
    dry_run: DryRun = False,
    per_class: PerClass = False,
    as_json: AsJson = False,
) -> None:
    """Condense a dataset, score the sets and draw them (default methods: random and dm)."""
    check_one_network(network)
    dataset = choose_dataset(dataset, train, required=config is None)
    output = drop_unset(out=out, overwrite=overwrite)
    import_torch(dataset=dataset, data_dir=data_dir, methods=methods, config=config, **output)
    shared_fields = drop_unset(network=network, augment=augment)  # of recipes and of the protocol
    request = make_request(
        methods or ([] if config else _default_methods(str(context.info_name))),
        ipcs,
        shared_fields | drop_unset(iterations=iterations, lr=lr, init=init, allow_fewer=allow_fewer, zca=zca),
        settings,
        schedule=schedule,
        pool=str(pool or ""),
        ipc_share=ipc_share,
        protocol_fields=shared_fields | drop_unset(protocol=protocol, num_networks=num_networks, epochs=epochs),
        whole=whole,
        whole_epochs=whole_epochs,
    )
    data: dict[str, Any] = {"dataset": dataset, "data_dir": data_dir, "load_fields": load_fields}
    data["engine_fields"] = engine_fields
    compute = {"seed": seed, "device": device, "precision": precision, "memory_limit": parse_memory_limit(memory_limit)}
    arguments = drop_unset(**data, **compute, config=config, snapshots=snapshots) | output
    display = {"as_json": as_json, "per_class": per_class}
    _start(context, request, arguments, dry_run=dry_run, report=report, tensorboard=tensorboard, **display)


@add_engine_options
@add_load_options
def condense_command(
    context: typer.Context,
    dataset: Dataset = None,
    train: Train = None,
    methods: Methods = None,
    ipcs: ImagesPerClass = None,
    ipc_share: IpcShare = None,
    network: Network = None,
    schedule: Schedule = None,
    iterations: Iterations = None,
    lr: LearningRate = None,
    init: Init = None,
    augment: Augment = None,
    settings: Settings = None,
    pool: Pool = None,
    allow_fewer: AllowFewer = None,
    zca: ZCA = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    engine_fields: EngineFields = NO_ENGINE_FIELDS,
    load_fields: LoadFields = NO_LOAD_FIELDS,
    out: Out = None,
    config: Config = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    snapshots: Snapshots = None,
    tensorboard: TensorBoard = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Condense a dataset without scoring the set (default method: dm)."""
    check_one_network(network)
    dataset = choose_dataset(dataset, train, required=config is None)
    output = drop_unset(out=out, overwrite=overwrite)
    import_torch(dataset=dataset, data_dir=data_dir, methods=methods, config=config, **output)
    fields = drop_unset(iterations=iterations, lr=lr, init=init, allow_fewer=allow_fewer, zca=zca)
    fields |= drop_unset(network=network, augment=augment)
    chosen_methods = methods or ([] if config else ["dm"])
    options: dict[str, Any] = {"schedule": schedule, "ipc_share": ipc_share, "evaluate": False}
    request = make_request(chosen_methods, ipcs, fields, settings, pool=str(pool or ""), **options)
    data: dict[str, Any] = {"dataset": dataset, "data_dir": data_dir, "load_fields": load_fields}
    data["engine_fields"] = engine_fields
    compute = {"seed": seed, "device": device, "precision": precision, "memory_limit": parse_memory_limit(memory_limit)}
    arguments = drop_unset(**data, **compute, config=config, snapshots=snapshots) | output
    _start(context, request, arguments, dry_run=dry_run, as_json=as_json, tensorboard=tensorboard)


def make_request(
    methods: list[str], ipcs: list[str] | None, fields: dict[str, Any], settings: list[str] | None, **options: Any
) -> RunRequest:
    """Build the request of a run from its options.

    Args:
        methods: Values of `--method`.
        ipcs: Values of `--ipc`.
        fields: Recipe fields that have an option, for all methods.
        settings: Values of `--set`.
        options: Other fields of `RunRequest`.
    """
    from condenset.methods import METHODS
    from condenset.pipeline.request import RunRequest, parse_settings

    recipe_fields, method_fields = parse_settings(settings or ())
    for name in fields.keys() & recipe_fields.keys():
        raise UserError(f"{name} is given twice, by --{name.replace('_', '-')} and by --set: give one of the two")
    return RunRequest(
        methods=parse_methods(methods, METHODS),
        ipcs=parse_ipcs(ipcs),
        recipe_fields=fields | recipe_fields,
        method_fields=method_fields,
        **options,
    )


def _default_methods(command: str) -> list[str]:
    """Return the methods of `run` or `compare` if none are named."""
    from condenset.methods import METHODS

    return ["random", "dm"] if command == "run" else [name for name, item in METHODS.items() if not item.variant_of]


def _start(
    context: typer.Context,
    request: RunRequest,
    arguments: Mapping[str, Any],
    *,
    dry_run: bool,
    as_json: bool,
    per_class: bool = False,
    report: bool = False,
    tensorboard: bool = False,
) -> None:
    """Start a run with these arguments of `start_run` and print its results, or only print its plan."""
    from condenset.pipeline.preview import preview_run
    from condenset.pipeline.run import start_run
    from condenset.runs.curves import check_tensorboard

    if dry_run:
        print_preview(preview_run(request, **arguments), as_json)
        if not as_json and "config" not in arguments:  # plan has no --config
            command = format_plan_command(context, request.methods, evaluate=request.evaluate)
            print_line(f"Time, memory and disk: {command}")
    else:
        if tensorboard:
            check_tensorboard()
        no_report = request.evaluate and not report
        options: dict[str, Any] = {"per_class": per_class, "as_json": as_json, "no_report": no_report}
        session = functools.partial(run_session, tensorboard=tensorboard, **options)
        show_result = functools.partial(print_run, as_json=as_json, per_class=per_class)
        result = start_run(request, session=session, show_result=show_result, report=report, **arguments)
        print_report_path(result, as_json=as_json)
