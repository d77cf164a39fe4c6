"""Run an experiment and write its results, table and figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from condenset.data.image_data import Splits
from condenset.experiments.registry import get_experiment, make_context
from condenset.experiments.types import ExperimentResult
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import write_results
from condenset.report.charts import save_chart, set_title
from condenset.runs.context import RunContext

SPREAD_NOTE = "Accuracies are in % of the test images: mean ± standard deviation over all networks"


def run_experiment(
    name: str,
    splits: Splits,
    run: RunContext,
    directory: Path,
    *,
    dataset: str,
    scale: str,
    request: RunRequest,
    num_sets: int | None = None,
) -> ExperimentResult:
    """Run the parts of an experiment that are not complete yet, and write results.json, table.md and figure.png.

    Args:
        name: Name of the experiment.
        splits: Training and test images.
        run: The run.
        directory: Where everything is written.
        dataset: Name or path of the dataset, for the records.
        scale: One of `SCALES`.
        request: Methods and options, from `make_request`.
        num_sets: Number of sets behind an accuracy. None: that of the scale.
    """
    experiment = get_experiment(name)
    context = make_context(
        experiment,
        scale=scale,
        request=request,
        splits=splits,
        run=run,
        directory=directory,
        num_sets=num_sets or 0,
    )
    context.check_class_sizes(splits.train)
    result = experiment.run(context)
    common_fields = {"experiment": name, "dataset": dataset, "scale": scale, "seed": run.seed, **context.environment}
    run.verify_identity()
    write_results(directory / "results.json", [{**common_fields, **record} for record in result.records])
    with wrap_os_errors(directory):
        warning = "; its numbers mean nothing" if scale == "tiny" else ""
        table = result.table.markdown()
        note = f". {SPREAD_NOTE}" if "±" in table else ""
        title = f"{name}: {_describe(splits, result.ipcs, scale)}"
        write_file(directory / "table.md", f"{title}{warning}{note}\n\n{table}".encode())
        figure = result.draw()
        set_title(figure, f"{name}: {_describe(splits, result.figure_ipcs or result.ipcs, scale)}")
        save_chart(figure, directory / "figure.png")
    return result


def _describe(splits: Splits, ipcs: Sequence[int], scale: str) -> str:
    """Return the data, the size of the sets and the scale as text."""
    images = "1 image" if list(ipcs) == [1] else f"{', '.join(map(str, ipcs))} images"
    return f"{splits.train.name}, {images} per class, scale {scale}"
