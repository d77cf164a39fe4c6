"""The first section: the result in one sentence, and the accuracies that it compares."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from condenset.data.condensed_set import CondensedSet
from condenset.data.ipc import format_ipc, mean_ipc
from condenset.methods import METHODS
from condenset.report.html.content import (
    Record,
    ReportContent,
    ReportedSet,
    Section,
    format_percent,
    format_seconds,
    is_synthetic,
)
from condenset.training.scores import format_accuracy, name_accuracy

COMPARED_FIELDS = ("network", "protocol", "evaluate_lr", "learned_steps", "made_from")  # of a record


def build_answer(content: ReportContent) -> Section:
    """Return the section with the answer."""
    section = Section(name="answer", title="The result")
    record = None if content.answer else choose_headline(content)
    if record is None:
        section.values = {"sentence": content.answer or content.title, "bars": [], "method": ""}
        return section
    method = str(record.get("method"))
    record = pool_seeds(content, record)
    section.values = {
        "sentence": write_answer(content, record),
        "bars": _make_bars(content, record),
        "method": f"Method {method}. {METHODS[method].summary}" if method in METHODS else "",
    }
    return section


def choose_headline(content: ReportContent) -> Record | None:
    """Return the record that the answer is about: the best method among the largest sets, except random images.

    Several sets of one method and size, such as of several runs, are represented by the first one, not by the best.
    Nothing else depends on this choice.
    """
    records = [record for record in content.records if record.get("ipc") is not None and record.get("images")]
    records = [record for record in records if record.get("method") != "random"] or records
    scored = [record for record in records if "accuracy_mean" in record] or records
    first: dict[tuple[str, str], Record] = {}
    for record in scored:
        first.setdefault((str(record.get("method")), str(record["ipc"])), record)

    def rank(record: Record) -> tuple[int, float]:
        return _size(record), pool_seeds(content, record).get("accuracy_mean", 0.0)

    return max(first.values(), key=rank, default=None)


def pool_seeds(content: ReportContent, record: Record) -> Record:
    """Return a record with the networks of all runs that differ from its run in the seed only, and their `num_seeds`.

    A record that no other run repeats with another seed is returned as it is.
    """
    repetitions = {record.get("seed"): record}  # the same seed gives the same networks
    for other in content.scored:
        if _is_repetition(content, other, record):
            repetitions.setdefault(other.get("seed"), other)
    if len(repetitions) == 1:
        return record
    accuracies = [accuracy for item in repetitions.values() for accuracy in item["accuracies"]]
    mean, std = statistics.fmean(accuracies), statistics.pstdev(accuracies)
    fields = {"accuracies": accuracies, "accuracy_mean": mean, "accuracy_std": std}
    return {**record, **fields, "num_seeds": len(repetitions)}


def _is_repetition(content: ReportContent, record: Record, other: Record) -> bool:
    """Return whether two records of runs have equal settings, apart from the seed."""
    if "scoring" not in record or "scoring" not in other or record.get("run") is None:
        return False
    fields = ("method", "ipc", "network", "scoring")
    has_equal_fields = all(record.get(name) == other.get(name) for name in fields)
    return has_equal_fields and _read_settings(content, record) == _read_settings(content, other)


def _read_settings(content: ReportContent, record: Record) -> tuple[Any, ...]:
    """Return recipe and precision of the set of a record; those of the whole dataset are in its `scoring`."""
    condensed = _find_condensed(content, record)
    provenance = condensed.provenance if condensed else {}
    return provenance.get("recipe_identity", provenance.get("recipe")), provenance.get("precision")


def _size(record: Record) -> int:
    ipc = record["ipc"]
    return mean_ipc(tuple(ipc) if isinstance(ipc, list) else ipc)


def write_answer(content: ReportContent, record: Record) -> str:
    """Return the answer about a record, such as "500 synthetic images replace 50,000: 63.3% test accuracy, …"."""
    whole, random = _find_whole(content, record), _find_random(content, record)
    num_train = _count_train_images(content)
    images = _describe_images(content, record)
    time = _describe_time(record)
    if "accuracy_mean" not in record:
        source = f" from {num_train:,} real images" if num_train else ""
        return f"{images} were made{source}. They have not been scored.{time}"
    replaced = f" replace {num_train:,}" if num_train else ""
    others = [f"{format_percent(whole['accuracy_mean'])}% with the whole dataset"] if whole else []
    if random:
        others.append(f"{format_percent(random['accuracy_mean'])}% with {random['images']:,} random images")
    seeds = f" over {record['num_seeds']} seeds" if "num_seeds" in record else ""
    against = f", against {' and '.join(others)}" if others else ""
    return f"{images}{replaced}: {format_accuracy(record)}% {name_accuracy([record])}{seeds}{against}.{time}"


def _describe_images(content: ReportContent, record: Record) -> str:
    """Return the number and kind of the images. Sets with a partition decode to more images than they store."""
    kind, condensed = _name_kind(str(record.get("method"))), _find_condensed(content, record)
    if condensed is not None and condensed.compact is not None:
        return f"{len(condensed.compact):,} {kind} images, which decode to {len(condensed):,},"
    num = record["images"]
    return f"{num:,} {kind} {'image' if num == 1 else 'images'}"


def _name_kind(method: str) -> str:
    return "synthetic" if is_synthetic(method) else "selected real"


def _find_condensed(content: ReportContent, record: Record) -> CondensedSet | None:
    return next((item.condensed for item in content.sets if item.label == record.get("label")), None)


def _describe_time(record: Record) -> str:
    seconds, pool, together = (record.get(name) for name in ("condense_seconds", "pool_seconds", "together"))
    if not seconds:
        return ""
    text = f" Condensing took {format_seconds(seconds)}"
    if together:
        text += f" for {' and '.join(format_ipc(ipc) for ipc in together)} images per class at once"
    return text + (f", after {format_seconds(pool)} to train networks." if pool else ".")


def _count_train_images(content: ReportContent) -> int | None:
    whole = next((record for record in content.scored if record.get("method") == "whole"), None)
    return whole["images"] if whole else len(content.train) if content.train else None


def _find_whole(content: ReportContent, headline: Record) -> Record | None:
    candidates = [record for record in content.scored if record.get("method") == "whole"]
    return _find_comparable(content, candidates, headline)


def _find_random(content: ReportContent, headline: Record) -> Record | None:
    """Return the record of random images of the same number."""
    if headline.get("method") == "random":
        return None
    candidates = [item for item in content.scored if item.get("method") == "random" and item["ipc"] == headline["ipc"]]
    return _find_comparable(content, candidates, headline)


def _find_comparable(content: ReportContent, candidates: Iterable[Record], headline: Record) -> Record | None:
    """Return the first candidate that the headline can be compared with, over the seeds if the headline is."""
    record = next((item for item in candidates if _is_comparable(item, headline)), None)
    return pool_seeds(content, record) if record and "num_seeds" in headline else record


def _is_comparable(record: Record, headline: Record) -> bool:
    """Return whether two records differ in their images only: same network, protocol and dataset, and no other run."""
    has_equal_fields = all(record.get(name) == headline.get(name) for name in COMPARED_FIELDS)
    return has_equal_fields and record.get("run") in (None, headline.get("run"))


def _make_bars(content: ReportContent, headline: Record) -> list[dict[str, Any]]:
    """Return the accuracies of random images, the set and the whole dataset, for bars."""
    records = [_find_random(content, headline), headline, _find_whole(content, headline)]
    return [
        {
            "label": _name_bar(content, record),
            "percent": format_percent(record["accuracy_mean"]),
            "width": round(100 * record["accuracy_mean"], 2),
            "text": f"{format_accuracy(record)}%",
            "is_headline": record is headline,
        }
        for record in records
        if record and "accuracy_mean" in record
    ]


def _name_bar(content: ReportContent, record: Record) -> str:
    """Return what networks train on, such as "100 synthetic images (dm)"."""
    method = str(record["method"])
    if method == "whole":
        seeds = f" ({record['num_seeds']} seeds)" if "num_seeds" in record else ""
        return f"all {record['images']:,} real images{seeds}"
    runs = f"{record['num_seeds']} seeds" if "num_seeds" in record else record.get("run")
    sources = [name for name in (method if method != "random" else "", runs) if name]
    kind = "random" if method == "random" else _name_kind(method)
    condensed = _find_condensed(content, record)
    num = len(condensed.compact) if condensed is not None and condensed.compact is not None else record["images"]
    return f"{num:,} {kind} images" + (f" ({', '.join(sources)})" if sources else "")


def find_set(content: ReportContent) -> ReportedSet | None:
    """Return the set that the answer is about, or the first one."""
    record = choose_headline(content)
    label = record["label"] if record else ""
    return next((item for item in content.sets if item.label == label), content.sets[0] if content.sets else None)
