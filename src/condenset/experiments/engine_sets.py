"""Condense the sets of an experiment on an engine, all at the same time."""

from __future__ import annotations

from collections.abc import Collection

from condenset.experiments.context import ExperimentContext
from condenset.methods import METHODS
from condenset.pipeline.condensing import SetRequest, condense_missing


def condense_pairs(context: ExperimentContext, pairs: Collection[tuple[str, int]]) -> None:
    """Make the sets of all (method, images per class), which `condense_and_score` then loads.

    On an engine, the sets of all methods, sizes and seeds are condensed at the same time.
    """
    if context.run.engine is not None:
        requests = context.for_each_set(lambda suffix: _make_requests(context, pairs, suffix))
        condense_missing([request for part in requests for request in part], context.splits.train, context.run)
    context.condense_pairs(pairs)


def _make_requests(context: ExperimentContext, pairs: Collection[tuple[str, int]], suffix: str) -> list[SetRequest]:
    """Return the sets of one seed. Later sizes of the same method may be learned at once with an earlier one."""
    recipes = {(method, ipc): context.recipe(method, ipc) for method, ipc in pairs}
    paths = {pair: context.set_path(f"{pair[0]}-{pair[1]}{suffix}") for pair in recipes}
    requests, pending = [], list(recipes)
    for pair, recipe in recipes.items():
        pending.remove(pair)
        can_share = METHODS[pair[0]].can_share
        later = [other for other in pending if other[0] == pair[0] and can_share(recipe, recipes[other])]
        run = context.run.derive(job=f"{pair[0]}-{pair[1]}{suffix}", seed=context.run.seed)
        requests.append(SetRequest(paths[pair], recipe, run, {paths[other]: recipes[other] for other in later}))
    return requests
