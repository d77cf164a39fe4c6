"""The tables and figures of the paper. `condenset paper NAME` runs one of them."""

from condenset.experiments.context import ExperimentContext
from condenset.experiments.registry import EXPERIMENTS, Experiment, get_experiment, make_request
from condenset.experiments.runner import run_experiment
from condenset.experiments.scales import SCALES
from condenset.experiments.types import ExperimentResult

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Experiment",
    "ExperimentContext",
    "ExperimentResult",
    "get_experiment",
    "make_request",
    "run_experiment",
]
