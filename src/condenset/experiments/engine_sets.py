"""Condense the sets of an experiment on an engine, all at the same time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from condenset.data.image_data import ImageData
from condenset.experiments.context import ExperimentContext
from condenset.methods import Recipe, method_of
from condenset.pipeline.condensing import SetRequest, condense_missing


def condense_pairs(context: ExperimentContext, pairs: Collection[tuple[str, int]]) -> None:
    """Make the sets of all (method, images per class), which `condense_and_score` then loads."""
    condense_repeatedly(context, {f"{method}-{ipc}": context.recipe(method, ipc) for method, ipc in pairs})
    context.condense_pairs(pairs)


def condense_repeatedly(context: ExperimentContext, recipes: Mapping[str, Recipe]) -> None:
    """Make the sets of all parts and seeds at the same time, if there is an engine. `context.condense` then loads them.

    Args:
        context: The experiment.
        recipes: Recipes by name of their part, without the suffix of the seed.
    """
    if context.run.engine is not None:
        requests = context.for_each_set(lambda suffix: _make_requests(context, recipes, suffix))
        condense_missing([request for part in requests for request in part], context.splits.train, context.run)


def condense_once(context: ExperimentContext, recipes: Mapping[str, Recipe], data: ImageData) -> None:
    """Make one set of each part at the same time, from these images, if there is an engine."""
    if context.run.engine is not None:
        condense_missing(_make_requests(context, recipes, ""), data, context.run)


def _make_requests(context: ExperimentContext, recipes: Mapping[str, Recipe], suffix: str) -> list[SetRequest]:
    """Return the sets of one seed. Later sizes of the same method may be learned at once with an earlier one."""
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
            requests.append(SetRequest(context.set_path(name + suffix), recipe, run.derive(), others))
    context.run.progress.job_label = ""  # all parts at once
    return requests
