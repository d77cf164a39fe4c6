"""The paper's tables and figures, each one command: `condenset paper NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from condenset.errors import UserError, check, check_choice
from condenset.experiments.common import SCALES, Lab
from condenset.experiments.continual import class_incremental
from condenset.experiments.cost import cost
from condenset.experiments.distribution import distribution
from condenset.experiments.nas import EARLY, search_architectures
from condenset.experiments.outcomes import Experiment, Outcome
from condenset.experiments.pooled import networks
from condenset.experiments.tables import COMPARED, architectures, batchnorm, sizes, sota
from condenset.files import write_file
from condenset.folders import writable
from condenset.plans import Wishes
from condenset.recipes import RECIPES
from condenset.report.charts import save_chart, set_title
from condenset.runs import Run
from condenset.types import Splits
from condenset.workflow import write_results

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Lab", "Outcome", "find", "perform", "wishes_for"]

SPREAD = "Accuracies are in % of the test images: mean ± standard deviation over all networks"
EXPERIMENTS: dict[str, Experiment] = {
    "sota": Experiment(
        title="methods by images a class (Table 1)",
        perform=sota,
        methods=COMPARED,
        whole=True,
        repeated=True,
        sizes=True,
    ),
    "batchnorm": Experiment(
        title="instance against batch norm (Table 2)",
        perform=batchnorm,
        methods=("dsa", "dm"),
        fixed=("pool", "group"),  # which are of one network
        repeated=True,
    ),
    "architectures": Experiment(
        title="condensed on one architecture, tested on another (Table 3)",
        perform=architectures,
        methods=("dsa", "dm"),
        fixed=("network", "pool", "group"),
        repeated=True,
    ),
    "networks": Experiment(
        title="matching with networks trained to some accuracy (Table 4, figure)",
        perform=networks,
        methods=("dm",),
        only=("dm",),
        fixed=("group",),
        repeated=True,
        sizes=True,
    ),
    "sizes": Experiment(
        title="100 to 1250 images a class against random ones (figure)",
        perform=sizes,
        methods=("random", "dm"),
        whole=True,
        repeated=True,
        sizes=True,
    ),
    "cost": Experiment(
        title="accuracy against seconds while condensing (figure)",
        perform=cost,
        methods=("dsa", "dm"),
        only=("dc", "dsa", "dm"),
    ),
    "continual": Experiment(
        title="classes that come in steps, with a condensed memory (figures)",
        perform=class_incremental,
        methods=("random", "herding", "dsa", "dm"),
        dataset="cifar100",
    ),
    "nas": Experiment(
        title="search among 720 ConvNets by proxy sets (Table 5, scatter plot)",
        perform=search_architectures,
        methods=("random", "dsa", "dm"),
        beside=(EARLY,),
        whole=True,
    ),
    "distribution": Experiment(
        title="where synthetic images lie among real ones (figure)",
        perform=distribution,
        methods=("dc", "dsa", "dm"),
        only=tuple(name for name in RECIPES if name != "ld"),  # whose soft labels are of no one class
        scored=False,
    ),
    "generative": Experiment(title="generative models (appendix)", perform=None),
}


def find(name: str) -> Experiment:
    """The experiment of this name; one that is not there yet is said to be so."""
    check_choice("experiment", name, EXPERIMENTS)
    experiment = EXPERIMENTS[name]
    if experiment.perform is None:
        raise UserError(f"experiment {name!r} is not yet available: its methods are still to come")
    return experiment


def wishes_for(experiment: Experiment, **fields: Any) -> Wishes:
    """What is asked of an experiment, refused where it cannot be: its own methods unless others are given."""
    names = tuple(dict.fromkeys(fields.pop("methods", ()))) or (*experiment.methods, *experiment.beside)
    for name in names:
        check_choice("a method of this experiment", name, experiment.names)
    methods, beside = (tuple(n for n in names if (n in experiment.beside) == other) for other in (False, True))
    check(bool(methods), "this experiment needs a method that makes sets", names)
    wishes = Wishes(methods=methods, beside=beside, **fields)
    check(experiment.sizes or len(wishes.ipcs) <= 1, "this experiment takes one number of images a class", wishes.ipcs)
    chosen = [*wishes.recipe, *(key for each in wishes.by_method.values() for key in each)]
    useless = [f"--set {key}" for key in chosen if key in experiment.fixed]
    useless += [f"--{key}" for key in wishes.protocol if not experiment.scored]
    useless += ["--whole-epochs"] if wishes.whole_epochs is not None and not experiment.whole else []
    if useless:
        raise UserError(f"this experiment leaves nothing to choose by {', '.join(useless)}")
    return wishes


def perform(
    name: str,
    splits: Splits,
    run: Run,
    folder: Path,
    *,
    dataset: str,
    scale: str,
    wishes: Wishes | None = None,
    sets: int | None = None,
) -> Outcome:
    """Do what is not done yet of an experiment; its results, table and figure lie in the folder afterwards."""
    experiment = find(name)
    assert experiment.perform is not None
    asked = wishes or wishes_for(experiment)
    lab = Lab(dataset=dataset, scale=scale, wishes=asked, splits=splits, run=run, folder=folder, sets=sets)
    outcome = experiment.perform(lab)
    head = {"experiment": name, "dataset": dataset, "scale": scale, "seed": run.seed}
    results = [{**head, **lab.made_on, **record} for record in outcome.records]
    write_results(folder / "results.json", results)
    with writable(folder):
        nothing = "; its numbers mean nothing" if scale == "tiny" else ""
        about, table = f"{name}: {_about(splits, outcome.ipcs, scale)}{nothing}", outcome.table.markdown()
        told = f". {SPREAD}" if "±" in table else ""
        write_file(folder / "table.md", f"{about}{told}\n\n{table}".encode())
        figure = outcome.draw()
        set_title(figure, f"{name}: {_about(splits, outcome.shown or outcome.ipcs, scale)}")
        save_chart(figure, folder / "figure.png")
    return outcome


def _about(splits: Splits, ipcs: Sequence[int], scale: str) -> str:
    images = "1 image" if list(ipcs) == [1] else f"{', '.join(map(str, ipcs))} images"
    return f"{splits.train.name}, {images} a class, scale {scale}"
