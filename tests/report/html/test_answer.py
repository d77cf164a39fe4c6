"""The first sentence of a report."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from condenset.data.condensed_set import CondensedSet
from condenset.report.html.answer import build_answer, choose_headline, write_answer
from condenset.report.html.content import ReportContent, format_seconds
from helpers.reports import make_content, make_data, make_record, make_set


def answer(content: ReportContent) -> str:
    return str(build_answer(content).values["sentence"]).replace("\u00a0", " ")


def test_answer_compares_the_set_with_the_whole_dataset_and_random_images() -> None:
    assert answer(make_content()) == (
        "6 synthetic images replace 24: 63.3 ± 0.4% test accuracy, against 86.5% with the whole dataset and 50.0% with "
        "6 random images. Condensing took 27 s."
    )
    bars = build_answer(make_content()).values["bars"]
    assert [bar["text"] for bar in bars] == ["50.0 ± 0.4%", "63.3 ± 0.4%", "86.5 ± 0.4%"]
    assert [bar["label"] for bar in bars] == ["6 random images", "6 synthetic images (dm)", "all 24 real images"]


@pytest.mark.parametrize("fields", [{"network": "MLP"}, {"protocol": "modern"}, {"run": "b"}, {"made_from": "cats"}])
def test_answer_compares_equal_networks_protocols_and_runs_only(fields: dict[str, str]) -> None:
    common = {"network": "ConvNet", "protocol": "paper", "run": "a", "made_from": "pets"}
    records = [
        make_record("x", "random", 2, 0.4, 6, **common | fields),
        make_record("y", "random", 2, 0.5, 6, **common),
        make_record("z", "dm", 2, 0.633, 6, **common),
    ]
    assert "against 50.0% with 6 random images." in answer(make_content(records=records))
    assert answer(make_content(records=[records[0], records[2]])) == (
        "6 synthetic images replace 24: 63.3 ± 0.4% test accuracy."
    )


def test_answer_compares_with_the_whole_dataset_on_the_same_network() -> None:
    records = [
        make_record("x", "whole", None, 0.9, 24, network="MLP", protocol="paper"),
        make_record("y", "whole", None, 0.8, 24, network="ConvNet", protocol="modern"),
        make_record("z", "dm", 2, 0.633, 6, network="ConvNet", protocol="paper", run="a"),
    ]
    assert answer(make_content(records=records, train=None)) == (
        "6 synthetic images replace 24: 63.3 ± 0.4% test accuracy."
    )
    records.append(make_record("w", "whole", None, 0.7, 24, network="ConvNet", protocol="paper"))
    assert "against 70.0% with the whole dataset." in answer(make_content(records=records))


def test_answer_without_comparisons_or_dataset() -> None:
    content = make_content(records=[make_record("dm, 2 per class", "dm", 2, 0.633, 6)], train=None)
    assert answer(content) == "6 synthetic images: 63.3 ± 0.4% test accuracy."


def test_answer_about_a_set_without_score() -> None:
    record = {"label": "dm, 2 per class", "method": "dm", "ipc": 2, "images": 6, "condense_seconds": 200.0}
    assert answer(make_content(records=[record])) == (
        "6 synthetic images were made from 24 real images. They have not been scored. Condensing took 3 min 20 s."
    )


def test_selected_images_are_not_called_synthetic() -> None:
    content = make_content(records=[make_record("herding, 2 per class", "herding", 2, 0.6, 6)])
    assert answer(content).startswith("6 selected real images replace 24: 60.0")


def test_answer_names_sets_learned_at_once_and_the_time_of_their_networks() -> None:
    record = make_record("dm, 2 per class", "dm", 2, 0.6, 6, condense_seconds=5.0, pool_seconds=61.0, together=[1, 2])
    assert answer(make_content(records=[record])).endswith(
        "Condensing took 5.0 s for 1 and 2 images per class at once, after 1 min 1 s to train networks."
    )


def test_answer_names_stored_and_decoded_images_of_a_partition() -> None:
    item = make_content().sets[1]
    condensed = make_set(make_data())
    fields = {name: getattr(condensed, name) for name in ("class_names", "mean", "std", "provenance")}
    partitioned = CondensedSet.decode(condensed.images, labels=condensed.labels, partition=2, **fields)
    content = make_content(sets=[dataclasses.replace(item, condensed=partitioned)])
    assert answer(content).startswith("6 synthetic images, which decode to 24, replace 24: ")


def test_headline_is_the_best_of_the_largest_sets_without_random_images() -> None:
    records = [
        make_record("a", "dm", 1, 0.9, 3),
        make_record("b", "dm", 2, 0.6, 6),
        make_record("c", "dsa", 2, 0.7, 6),
        make_record("d", "random", 2, 0.8, 6),
        make_record("e", "whole", None, 0.9, 24),
        make_record("f", "dsa", 2, 0.75, 6),  # such as of another seed, of which nothing is known
    ]
    headline = choose_headline(make_content(records=records))
    assert headline is not None and headline["label"] == "c"
    only_random: dict[str, Any] = {"records": [records[3]]}
    assert write_answer(make_content(**only_random), records[3]).startswith("6 selected real images")
    assert choose_headline(make_content(records=[])) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0.04, "0.0 s"), (9.9, "9.9 s"), (27.2, "27 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_seconds_are_readable(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds).replace("\u00a0", " ") == text
