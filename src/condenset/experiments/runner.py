"""Run an experiment and write its results, table and figure."""

from __future__ import annotations

from collections.abc import Sequence

from condenset.data.image_data import Splits
from condenset.experiments.config import ExperimentConfig
from condenset.experiments.registry import get_experiment, make_context
from condenset.experiments.types import ExperimentResult
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.pipeline.results import write_results
from condenset.report.charts import save_chart, set_title
from condenset.runs.context import RunContext

SPREAD_NOTE = "Accuracies are in % of the test images: mean ± standard deviation over all networks"


def run_experiment(config: ExperimentConfig, splits: Splits, run: RunContext) -> ExperimentResult:
    """Run the parts of an experiment that are not complete yet, and write results.json, table.md and figure.png.

    Args:
        config: The settings.
        splits: Training and test images.
        run: The run. Everything is written to its directory.
    """
    name, scale, directory = config.experiment, config.scale, run.directory
    assert directory is not None
    experiment = get_experiment(name)
    context = make_context(
        experiment,
        scale=scale,
        request=config.request,
        splits=splits,
        run=run,
        directory=directory,
        num_sets=config.num_sets or 0,
    )
    context.check_class_sizes(splits.train)
    result = experiment.run(context)
    common_fields = {"experiment": name, "dataset": config.dataset, "scale": scale, "seed": run.seed}
    common_fields |= context.environment
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
