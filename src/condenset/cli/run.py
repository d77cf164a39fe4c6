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
from condenset.cli.option_groups import OptionValues, expand_groups
from condenset.cli.options import Dataset, Report, Train
from condenset.cli.run_display import format_plan_command, print_drawn_files, print_run, run_session
from condenset.cli.startup import import_torch
from condenset.errors import UserError

if TYPE_CHECKING:
    from condenset.pipeline.request import RunRequest

COMPARE_HELP = "Condense a dataset with all methods but variants of dm, score the sets and draw accuracy against time."
DEFAULT_METHODS = {"run": ["random", "dm"], "condense": ["dm"]}  # by command; compare: all methods but variants
NUM_NETWORKS_ON_RANDOM = 5  # that score the random images if `run` adds them to the methods
RECIPE_FIELDS = ("network", "augment", "iterations", "lr", "init", "allow_fewer", "zca")  # fields that have an option
PROTOCOL_FIELDS = ("network", "augment")  # of them, those that the protocol has too


@expand_groups
def run_command(
    context: typer.Context,
    dataset: Dataset = None,
    train: Train = None,
    *,
    recipe_options: OptionValues,
    protocol: ProtocolName = None,
    whole: Whole = None,
    num_networks: NumNetworks = None,
    epochs: Epochs = None,
    whole_epochs: WholeEpochs = None,
    engine_fields: OptionValues,
    score_load_fields: OptionValues,
    run_options: OptionValues,
    report: Report = True,
    per_class: PerClass = False,
) -> None:
    """Condense a dataset, score the sets and draw them (default methods: random and dm).

    Without --method and --nets, 5 networks score the random images.
    """
    fields = {"engine_fields": engine_fields, "load_fields": score_load_fields}
    arguments = _check_arguments(dataset, train, recipe_options, run_options) | fields
    num_on_random = choose_networks_on_random(recipe_options, num_networks) if context.info_name == "run" else None
    if num_on_random is None or "config" not in run_options:
        arguments["num_networks_on_random"] = num_on_random
    protocol_fields = drop_unset(protocol=protocol, num_networks=num_networks, epochs=epochs)
    methods = _default_methods(context, run_options)
    request = make_request(recipe_options, methods, protocol_fields, whole=whole, whole_epochs=whole_epochs)
    _start(context, request, arguments, run_options, report=report, per_class=per_class)


@expand_groups
def condense_command(
    context: typer.Context,
    dataset: Dataset = None,
    train: Train = None,
    *,
    recipe_options: OptionValues,
    engine_fields: OptionValues,
    score_load_fields: OptionValues,
    run_options: OptionValues,
) -> None:
    """Condense a dataset without scoring the set (default method: dm)."""
    fields = {"engine_fields": engine_fields, "load_fields": score_load_fields}
    arguments = _check_arguments(dataset, train, recipe_options, run_options) | fields
    request = make_request(recipe_options, _default_methods(context, run_options), evaluate=False)
    _start(context, request, arguments, run_options)


def choose_networks_on_random(recipe_options: OptionValues, num_networks: int | None) -> int | None:
    """Return how many networks score the random images that `run` adds. None: as many as other sets."""
    return None if "methods" in recipe_options or num_networks is not None else NUM_NETWORKS_ON_RANDOM


def make_request(
    recipe_options: OptionValues,
    default_methods: list[str],
    protocol_fields: dict[str, Any] | None = None,
    **fields: Any,
) -> RunRequest:
    """Build the request of a run from its options.

    Args:
        recipe_options: Those of `RECIPE_OPTIONS` that are given.
        default_methods: The methods if `--method` is not given.
        protocol_fields: Protocol fields that have an option of their own. None: the command has no protocol.
        fields: Other fields of `RunRequest`.
    """
    from condenset.methods import METHODS
    from condenset.pipeline.request import RunRequest, parse_settings

    recipe_fields, method_fields = parse_settings(recipe_options.get("settings") or ())
    option_fields = {name: recipe_options[name] for name in RECIPE_FIELDS if name in recipe_options}
    for name in option_fields.keys() & recipe_fields.keys():
        raise UserError(f"{name} is given twice, by --{name.replace('_', '-')} and by --set: give one of the two")
    shared_fields = {name: option_fields[name] for name in PROTOCOL_FIELDS if name in option_fields}
    return RunRequest(
        methods=parse_methods(recipe_options.get("methods") or default_methods, METHODS),
        ipcs=parse_ipcs(recipe_options.get("ipcs")),
        ipc_share=recipe_options.get("ipc_share"),
        schedule=recipe_options.get("schedule"),
        pool=str(recipe_options.get("pool", "")),
        recipe_fields=option_fields | recipe_fields,
        method_fields=method_fields,
        protocol_fields={} if protocol_fields is None else shared_fields | protocol_fields,
        **fields,
    )


def _check_arguments(
    dataset: str | None, train: str | None, recipe_options: OptionValues, run_options: OptionValues
) -> dict[str, Any]:
    """Check what can be checked without PyTorch, import PyTorch, and return arguments of `start_run`."""
    check_one_network(recipe_options.get("network"))
    names = ("data_dir", "config", "out", "overwrite")
    paths = {name: run_options[name] for name in names if name in run_options}
    chosen = choose_dataset(dataset, train, required="config" not in paths)
    import_torch(dataset=chosen, methods=recipe_options.get("methods"), **paths)
    compute = {name: run_options[name] for name in ("seed", "device", "precision", "snapshots") if name in run_options}
    memory_limit = parse_memory_limit(run_options.get("memory_limit"))
    return drop_unset(dataset=chosen, memory_limit=memory_limit) | paths | compute


def _default_methods(context: typer.Context, run_options: OptionValues) -> list[str]:
    """Return the methods of a command if none are named; none with a config file, which has them."""
    from condenset.methods import METHODS

    all_methods = [name for name, item in METHODS.items() if not item.variant_of]
    return [] if "config" in run_options else DEFAULT_METHODS.get(str(context.info_name), all_methods)


def _start(
    context: typer.Context,
    request: RunRequest,
    arguments: Mapping[str, Any],
    run_options: OptionValues,
    *,
    per_class: bool = False,
    report: bool = False,
) -> None:
    """Start a run with these arguments of `start_run` and print its results, or only print its plan."""
    from condenset.pipeline.preview import preview_run
    from condenset.pipeline.run import start_run
    from condenset.runs.tensorboard import check_tensorboard

    as_json, tensorboard = bool(run_options.get("as_json")), bool(run_options.get("tensorboard"))
    if run_options.get("dry_run"):
        print_preview(preview_run(request, **arguments), as_json)
        if not as_json and "config" not in arguments:  # plan has no --config
            command = format_plan_command(context, request)
            print_line(f"Time, memory and disk: {command}")
    else:
        if tensorboard:
            check_tensorboard()
        no_report = request.evaluate and not report
        options: dict[str, Any] = {"per_class": per_class, "as_json": as_json, "no_report": no_report}
        session = functools.partial(run_session, tensorboard=tensorboard, **options)
        show_result = functools.partial(print_run, as_json=as_json, per_class=per_class)
        result = start_run(request, session=session, show_result=show_result, report=report, **arguments)
        print_drawn_files(result, as_json=as_json)
