"""Score the sets of an experiment; on an engine, all at the same time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.experiments.context import ExperimentContext
from condenset.pipeline.plan import WHOLE
from condenset.pipeline.results import Record
from condenset.training.protocol import Protocol
from condenset.training.scoring import ScoreRequest, score_together


def score_pairs(
    context: ExperimentContext, pairs: Collection[tuple[str, int]], *, whole: bool = False
) -> dict[tuple[str, int], Record]:
    """Condense and score the sets of all (method, images per class), and return their records.

    Args:
        context: The experiment.
        pairs: Methods and images per class.
        whole: Score the whole training data at the same time; `context.score_whole` then reads the result.
    """
    recipes = {f"{method}-{ipc}": context.recipe(method, ipc) for method, ipc in pairs}
    context.condense_all(recipes)
    protocol = context.protocol()
    score_repeatedly(context, {name: (name, protocol) for name in recipes}, whole=whole)
    return {(method, ipc): context.condense_and_score(f"{method}-{ipc}", method, ipc) for method, ipc in pairs}


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
