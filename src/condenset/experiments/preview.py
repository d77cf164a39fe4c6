"""Describe an experiment before it starts: the plan that `condenset paper --dry-run` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from condenset.experiments.registry import get_experiment, make_context
from condenset.experiments.start import default_directory, plan_experiment
from condenset.io.directories import find_unique_directory
from condenset.pipeline.preview import (
    Preview,
    describe_compute,
    describe_recipe,
    describe_splits,
)
from condenset.runs.context import RunContext
from condenset.training.protocol import describe_protocol


def preview_experiment(name: str, *, out: Path | None = None, **arguments: Any) -> Preview:
    """Return what `start_experiment` would do with the same arguments. Nothing is written."""
    config, splits = plan_experiment(name, out=out, **arguments)
    compute, experiment = config.compute, get_experiment(name)
    directory = out or find_unique_directory(default_directory(config, splits))
    context = make_context(
        experiment,
        scale=config.scale,
        request=config.request,
        splits=splits,
        run=RunContext(seed=config.seed, compute=compute, memory_limit=config.memory_limit),
        directory=directory,
        num_sets=config.num_sets or 0,
    )
    rows = {
        "experiment": f"{experiment.title}, at the scale {config.scale}",
        "dataset": config.dataset,
        **describe_splits(splits, config.load_options),
        **describe_compute(compute, config.memory_limit),
        "seed": str(config.seed),
    }
    context.check_class_sizes(splits.train)
    for label, recipe in experiment.recipes_for(context).items():
        rows[label] = describe_recipe(recipe, splits.train, compute, config.memory_limit)
    if experiment.repeats_sets:
        rows["sets per accuracy"] = str(context.num_sets)
    rows |= {label: describe_protocol(protocol) for label, protocol in experiment.protocols(context).items()}
    return {**rows, "directory": str(directory)}
