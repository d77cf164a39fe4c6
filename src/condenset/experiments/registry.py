"""The experiments by name, and what each of them accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from condenset.errors import UserError, check, check_choice
from condenset.experiments.context import ExperimentContext
from condenset.experiments.continual import memory_protocol, run_continual
from condenset.experiments.family import family_protocols, run_family
from condenset.experiments.feature_map import run_feature_map
from condenset.experiments.generative import run_generative
from condenset.experiments.nas import EARLY_STOPPING, run_nas, search_protocols
from condenset.experiments.network_groups import run_network_groups
from condenset.experiments.tables import (
    architecture_protocols,
    architecture_recipes,
    batchnorm_protocols,
    batchnorm_recipes,
    run_architectures,
    run_batchnorm,
    run_sizes,
    run_sota,
    sota_recipes,
)
from condenset.experiments.training_time import run_training_time
from condenset.experiments.types import ExperimentResult
from condenset.methods import METHODS, Method, Recipe
from condenset.pipeline.request import RunRequest
from condenset.training.protocol import Protocol


def _default_recipes(context: ExperimentContext) -> dict[str, Recipe]:
    pairs = [(method, ipc) for ipc in context.ipcs for method in context.methods]
    return {f"{method}, {ipc} per class": context.recipe(method, ipc) for method, ipc in pairs}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper, or one like it of later methods.

    Attributes:
        title: One line for lists.
        run: Run the parts that are not complete, and return the result.
        methods: The methods that it compares by default, as the paper does.
        ipcs: Numbers of images per class by scale, unless the user gives others.
        accepts: Return whether it can compare a method.
        baselines: Names of baselines that make no set and therefore are not methods.
        fixed_fields: Recipe fields that the experiment decides, and the user cannot set.
        scores_sets: Whether it trains networks on the sets.
        scores_whole: Whether it trains networks on the whole dataset too.
        repeats_sets: Whether it can make several sets with different seeds.
        several_ipcs: Whether it can compare several numbers of images per class.
        recipes_for: Return the recipes of its sets, by label.
        protocols_for: Return how it trains networks, by label. None: by the protocol of the scale.
        dataset: The dataset of the paper.
    """

    title: str
    run: Callable[[ExperimentContext], ExperimentResult]
    methods: tuple[str, ...]
    ipcs: Mapping[str, tuple[int, ...]]
    accepts: Callable[[Method], bool] = lambda method: True
    baselines: tuple[str, ...] = ()
    fixed_fields: tuple[str, ...] = ()
    scores_sets: bool = True
    scores_whole: bool = False
    repeats_sets: bool = False
    several_ipcs: bool = False
    recipes_for: Callable[[ExperimentContext], dict[str, Recipe]] = _default_recipes
    protocols_for: Callable[[ExperimentContext], dict[str, Protocol]] | None = None
    dataset: str = "cifar10"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the methods and baselines that it can compare."""
        return (*(name for name, method in METHODS.items() if self.accepts(method)), *self.baselines)

    def protocols(self, context: ExperimentContext) -> dict[str, Protocol]:
        """Return how it trains networks on the sets and on the whole dataset, by label."""
        if self.protocols_for is not None:
            return self.protocols_for(context)
        scoring = {"scoring": context.protocol()} if self.scores_sets else {}
        return scoring | ({"whole dataset": context.protocol(whole=True)} if self.scores_whole else {})


EXPERIMENTS: dict[str, Experiment] = {
    "sota": Experiment(
        title="Methods by images per class (Table 1)",
        run=run_sota,
        methods=("random", "herding", "forgetting", "dd", "ld", "dc", "dsa", "dm"),
        ipcs={"tiny": (1, 2), "small": (1, 10), "paper": (1, 10, 50)},
        scores_whole=True,
        repeats_sets=True,
        several_ipcs=True,
        recipes_for=sota_recipes,
    ),
    "batchnorm": Experiment(
        title="Instance norm and batch norm (Table 2)",
        run=run_batchnorm,
        methods=("dsa", "dm"),
        ipcs={"tiny": (2,), "small": (50,), "paper": (50,)},
        fixed_fields=("pool", "group"),  # a pool contains networks with one norm
        repeats_sets=True,
        recipes_for=batchnorm_recipes,
        protocols_for=batchnorm_protocols,
    ),
    "architectures": Experiment(
        title="Condensed on one architecture, tested on others (Table 3)",
        run=run_architectures,
        methods=("dsa", "dm"),
        ipcs={"tiny": (1,), "small": (50,), "paper": (50,)},
        fixed_fields=("network", "pool", "group"),
        repeats_sets=True,
        recipes_for=architecture_recipes,
        protocols_for=architecture_protocols,
    ),
    "networks": Experiment(
        title="Matching with networks trained to some accuracy (Table 4, figure)",
        run=run_network_groups,
        methods=("dm",),
        ipcs={"tiny": (1,), "small": (10,), "paper": (1, 10, 50)},
        accepts=lambda method: method.name == "dm",
        fixed_fields=("group",),
        repeats_sets=True,
        several_ipcs=True,
    ),
    "sizes": Experiment(
        title="100 to 1250 images per class, compared with random images (figure)",
        run=run_sizes,
        methods=("random", "dm"),
        ipcs={"tiny": (5, 10), "small": (100, 200, 500), "paper": (100, 200, 500, 1000, 1250)},
        scores_whole=True,
        repeats_sets=True,
        several_ipcs=True,
    ),
    "cost": Experiment(
        title="Accuracy by seconds of condensing (figure)",
        run=run_training_time,
        methods=("dsa", "dm"),
        ipcs={"tiny": (1,), "small": (50,), "paper": (50,)},
        accepts=lambda method: method.supports_snapshots,
    ),
    "continual": Experiment(
        title="Class-incremental learning with a condensed memory (figures)",
        run=run_continual,
        methods=("random", "herding", "dsa", "dm"),
        ipcs={"tiny": (2,), "small": (20,), "paper": (20,)},
        protocols_for=lambda context: {"scoring": memory_protocol(context)},
        dataset="cifar100",
    ),
    "nas": Experiment(
        title="Search among 720 ConvNets with proxy sets (Table 5, scatter plot)",
        run=run_nas,
        methods=("random", "dsa", "dm"),
        ipcs={"tiny": (2,), "small": (50,), "paper": (50,)},
        baselines=(EARLY_STOPPING,),
        scores_whole=True,
        protocols_for=search_protocols,
    ),
    "distribution": Experiment(
        title="Synthetic images among real images in feature space (figure)",
        run=run_feature_map,
        methods=("dc", "dsa", "dm"),
        ipcs={"tiny": (2,), "small": (50,), "paper": (50,)},
        scores_sets=False,
    ),
    "generative": Experiment(
        title="Sets drawn from generative models (appendix, figure)",
        run=run_generative,
        methods=("random", "gmmn", "vae", "gan", "mmd", "dm"),
        ipcs={"tiny": (1, 2), "small": (1, 10), "paper": (1, 10, 50)},
        repeats_sets=True,
        several_ipcs=True,
    ),
    "family": Experiment(
        title="Later methods of the family of dm, by both evaluation protocols",
        run=run_family,
        methods=("random", "dm", "idm", "datadam", "m3d", "dsdm", "dance", "tgdd", "ncfm", "dmplus"),
        ipcs={"tiny": (1,), "small": (10,), "paper": (1, 10, 50)},
        repeats_sets=True,
        several_ipcs=True,
        protocols_for=family_protocols,
    ),
}


def get_experiment(name: str) -> Experiment:
    """Return the experiment of this name."""
    check_choice("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def make_context(
    experiment: Experiment, *, scale: str, request: RunRequest, num_sets: int, **fields: Any
) -> ExperimentContext:
    """Return the context of an experiment. `fields` are other fields of `ExperimentContext`."""
    ipcs = tuple(sorted(request.ipcs)) or experiment.ipcs[scale]
    num_sets = num_sets if experiment.repeats_sets else 1
    return ExperimentContext(scale=scale, request=request, ipcs=ipcs, num_sets=num_sets, **fields)


def make_request(experiment: Experiment, **fields: Any) -> RunRequest:
    """Build the request for an experiment from the fields of `RunRequest`.

    `methods` may name baselines too. Without it, the request has the methods and baselines of the experiment.

    Raises:
        UserError: The experiment cannot do what is requested.
    """
    names = tuple(dict.fromkeys(fields.pop("methods", ()))) or (*experiment.methods, *experiment.baselines)
    for name in names:
        check_choice("a method of this experiment", name, experiment.names)
    methods = tuple(name for name in names if name not in experiment.baselines)
    baselines = tuple(name for name in names if name in experiment.baselines)
    check(bool(methods), "this experiment needs a method that makes sets", names)
    request = RunRequest(methods=methods, other_baselines=baselines, **fields)
    single_ipc = len(request.ipcs) <= 1
    check(experiment.several_ipcs or single_ipc, "this experiment takes one number of images per class", request.ipcs)
    ignored = _ignored_options(experiment, request)
    if ignored:
        raise UserError(f"this experiment has no use for {', '.join(ignored)}")
    return request


def _ignored_options(experiment: Experiment, request: RunRequest) -> list[str]:
    """Return the options of a request that have no effect on an experiment, as the command line spells them."""
    recipe_fields = [*request.recipe_fields, *(name for fields in request.method_fields.values() for name in fields)]
    options = [f"--set {name}" for name in recipe_fields if name in experiment.fixed_fields]
    if not experiment.scores_sets:
        options += [f"--{'nets' if name == 'num_networks' else name}" for name in request.protocol_fields]
    if request.whole_epochs is not None and not experiment.scores_whole:
        options.append("--whole-epochs")
    return options
