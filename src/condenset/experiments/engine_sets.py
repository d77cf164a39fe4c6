"""Condense and score the sets of an experiment on an engine, all at the same time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.experiments.context import ExperimentContext
from condenset.methods import Recipe, method_of
from condenset.pipeline.condensing import SetRequest, condense_missing
from condenset.pipeline.plan import WHOLE
from condenset.pipeline.results import Record
from condenset.training.evaluation import ScoreRequest, score_together
from condenset.training.protocol import Protocol


def score_pairs(
    context: ExperimentContext, pairs: Collection[tuple[str, int]], *, whole: bool = False
) -> dict[tuple[str, int], Record]:
    """Condense and score the sets of all (method, images per class), and return their records.

    Args:
        context: The experiment.
        pairs: Methods and images per class.
        whole: Score the whole training data at the same time; `context.score_whole` then reads the result.
    """
    condense_pairs(context, pairs)
    protocol = context.protocol()
    score_repeatedly(context, {name: (name, protocol) for name in _pair_names(pairs)}, whole=whole)
    return {(method, ipc): context.condense_and_score(f"{method}-{ipc}", method, ipc) for method, ipc in pairs}


def condense_pairs(context: ExperimentContext, pairs: Collection[tuple[str, int]]) -> None:
    """Make the sets of all (method, images per class), which `condense_and_score` then loads."""
    recipes = [context.recipe(method, ipc) for method, ipc in pairs]
    condense_repeatedly(context, dict(zip(_pair_names(pairs), recipes, strict=True)))
    context.condense_pairs(pairs)


def _pair_names(pairs: Collection[tuple[str, int]]) -> list[str]:
    return [f"{method}-{ipc}" for method, ipc in pairs]


def condense_repeatedly(context: ExperimentContext, recipes: Mapping[str, Recipe]) -> None:
    """Make the sets of all parts and seeds at the same time, if there is an engine. `context.condense` then loads them.

    Args:
        context: The experiment.
        recipes: Recipes by name of their part, without the suffix of the seed.
    """
    if context.run.engine is not None:
        data = context.splits.train
        requests = context.for_each_set(lambda suffix: make_set_requests(context, recipes, data, suffix))
        condense_missing([request for part in requests for request in part], context.run)


def condense_once(context: ExperimentContext, recipes: Mapping[str, Recipe], data: ImageData) -> None:
    """Make one set of each part at the same time, from these images, if there is an engine."""
    if context.run.engine is not None:
        condense_missing(make_set_requests(context, recipes, data), context.run)


def make_set_requests(
    context: ExperimentContext, recipes: Mapping[str, Recipe], data: ImageData, suffix: str = ""
) -> list[SetRequest]:
    """Return the sets of the current seed. Later sizes of a method may be learned at once with an earlier one."""
    requests, pending = [], list(recipes)
    for name, recipe in recipes.items():
        pending.remove(name)
        method = method_of(recipe)
        later = [
            other
            for other in pending
            if method_of(recipes[other]) is method and method.can_share(recipe, recipes[other])
        ]
        others = {context.set_path(other + suffix): recipes[other] for other in later}
        with context.part(name + suffix) as run:
            requests.append(SetRequest(context.set_path(name + suffix), recipe, data, run.derive(), others))
    context.run.progress.job_label = ""  # all parts at once
    return requests


def score_repeatedly(
    context: ExperimentContext, parts: Mapping[str, tuple[str, Protocol]], *, whole: bool = False
) -> None:
    """Score the sets of all parts and seeds at the same time, if there is an engine. `context.score` then reads them.

    Args:
        context: The experiment.
        parts: The part of the set, and how it is scored, by the name of the part of the score. Names are without the
            suffix of the seed.
        whole: Score the whole training data too.
    """
    if context.run.engine is None:
        return

    def make_requests(suffix: str) -> list[ScoreRequest]:
        sets = {name: CondensedSet.load(context.set_path(name + suffix)) for name, _ in parts.values()}
        return [
            make_score_request(context, part + suffix, sets[name], protocol) for part, (name, protocol) in parts.items()
        ]

    requests = [request for requests in context.for_each_set(make_requests) for request in requests]
    if whole:
        requests.append(make_score_request(context, WHOLE, context.splits.train, context.protocol(whole=True)))
    score_together(requests, context.run)


def score_once(context: ExperimentContext, sets: Mapping[str, CondensedSet]) -> None:
    """Score sets by the name of their part at the same time, if there is an engine. `context.score` then reads them."""
    if context.run.engine is not None:
        protocol = context.protocol()
        requests = [make_score_request(context, name, condensed, protocol) for name, condensed in sets.items()]
        score_together(requests, context.run)


def make_score_request(
    context: ExperimentContext,
    name: str,
    train_set: CondensedSet | ImageData,
    protocol: Protocol,
    test_set: ImageData | None = None,
) -> ScoreRequest:
    """Return the request to score a set with the current seed. The arguments are those of `context.score`."""
    with context.part(name) as run:
        request = ScoreRequest(train_set, test_set or context.splits.require_test(), protocol, run.derive())
    context.run.progress.job_label = ""  # all parts at once
    return request
