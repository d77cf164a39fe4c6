"""The page of a report: its sections, its size and its safety."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset.report.html import ReportContent, render_report
from condenset.report.html.classes import build_classes
from condenset.report.html.curves import build_curves
from condenset.report.html.gallery import Gallery
from condenset.report.html.methods import build_methods
from condenset.report.html.neighbours import find_neighbours
from condenset.report.html.sprites import LOSSLESS, Sprite
from condenset.runs.snapshots import to_pixels
from helpers.reports import SCRIPT, make_content, make_data, make_record, make_reported_set

MAX_PAGE_BYTES = 5_000_000


def read_data(page: str) -> dict[str, Any]:
    """Return the JSON of a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data: dict[str, Any] = json.loads(text)
    return data


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(make_content())


def test_sections_are_in_order(page: str) -> None:
    names = ["answer", "images", "map", "curves", "methods", "classes", "repeat"]
    assert re.findall(r'<section id="([a-z]+)"', page) == names


def test_names_of_users_are_text(page: str) -> None:
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert SCRIPT in read_data(page)["classes"][0]["names"]


def test_page_allows_only_its_own_scripts_and_no_network(page: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe-eval" not in policy and "http" not in policy
    assert not re.findall(r'<[a-z]+ [^>]*(?:src|href)="(?!data:|#)', page.partition("</footer>")[0])
    assert "sourceMappingURL" not in page


def test_sections_without_data_are_left_out_with_the_reason() -> None:
    content = make_content(train=None, features=None, data_problem="the dataset is not available.", steps=[])
    page = render_report(content)
    assert re.findall(r'<section id="([a-z]+)"', page) == [
        "answer",
        "images",
        "methods",
        "classes",
        "repeat",
        "omitted",
    ]
    assert "Map of the images: the dataset is not available." in page
    assert "Learning the images: no method of this report learns in iterations." in page
    assert "The nearest real images are left out: the dataset is not available." in page


def test_report_of_an_experiment_has_its_figure_and_table() -> None:
    content = ReportContent(
        title="sizes",
        answer="All sizes.",
        figure=b"\x89PNG",
        table=[["method", "%"], ["dm", "63.0 ± 0.4"], ["a|b", "7"]],
    )
    page = render_report(content)
    assert '<p class="answer">All sizes.</p>' in page
    assert '<img class="figure" src="data:image/png;base64,iVBORw==" alt="Figure of the experiment: sizes.' in page
    assert '<td data-value="63.0">63.0 ± 0.4</td>' in page
    assert len(page) < 100_000  # without charts, it does not need their library


def test_page_of_incompressible_images_is_small() -> None:
    data = make_data(20, 32, class_names=tuple(map(str, range(10))))
    sets = [make_reported_set(data, "dm", 50, 10), make_reported_set(data, "random", 50, 0)]
    content = make_content(sets=sets, train=data, features=None, data_problem="-", records=[])
    page = render_report(content)
    assert 1_000_000 < len(page.encode()) < MAX_PAGE_BYTES


def test_gallery_shows_fewer_images_of_many_large_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.report.html.gallery.MAX_PIXEL_BYTES", 12 * 3 * 8 * 8)
    data = make_data()
    gallery = Gallery(make_content(sets=[make_reported_set(data, "dm", 8), make_reported_set(data, "dsa", 2)]))
    assert [shown.per_class for shown in gallery.sets] == [2, 2]
    shown = gallery.sets[0]
    assert torch.equal(shown.positions, torch.tensor([0, 1, 8, 9, 16, 17]))
    assert [len(pixels) for _, _, pixels in shown.snapshots] == [6, 6, 6]
    snapshot = shown.item.snapshots[1]
    assert torch.equal(shown.snapshots[1][2], snapshot.images[[0, 1, 8, 9, 16, 17]])


def test_neighbours_are_the_most_similar_images_of_the_class() -> None:
    data = make_data()
    images = to_pixels(data.images[[3, 10]].float() / 255 + 0.01)
    (indices,) = find_neighbours([images], [torch.tensor([0, 1])], data)
    assert indices[:, 0].tolist() == [3, 10]
    assert data.labels[indices].tolist() == [[0] * 3, [1] * 3]
    few = make_data(2)
    (indices,) = find_neighbours([images], [torch.tensor([0, 1])], few)
    assert indices[:, 2].tolist() == [-1, -1]


def test_lossless_sprite_has_the_pixels_of_the_images(tmp_path: Path) -> None:
    import io

    import numpy as np
    from PIL import Image

    images = make_data(2).images
    sprite = Sprite(images)
    with Image.open(io.BytesIO(sprite.encode(LOSSLESS))) as sheet:
        pixels = np.asarray(sheet)
    assert (sprite.columns, pixels.shape) == (3, (16, 24, 3))
    assert np.array_equal(pixels[8:16, 16:24], images[5].permute(1, 2, 0).numpy())
    assert np.array_equal(np.asarray(pixels[:8, 8:16]), images[1].permute(1, 2, 0).numpy())


def test_curves_are_thinned_and_repeated_steps_count_once() -> None:
    steps = [{"label": "dm", "step": step, "seconds": step / 9, "loss": 1.0} for step in range(1, 1001)]
    section = build_curves(make_content(steps=[*steps[:700], *steps[500:]]))
    values = section.charts["chart-loss-steps"]["data"]["values"]
    assert 100 <= len(values) <= 151
    assert [value["step"] for value in values] == sorted({value["step"] for value in values})
    assert values[-1]["step"] == 1000


def test_seconds_of_losses_that_were_read_at_once_are_interpolated() -> None:
    times = {1: 1.0, 2: 3.0, 3: 3.0, 4: 3.0, 5: 4.0}
    steps = [{"label": "dm", "step": step, "seconds": seconds, "loss": 1.0} for step, seconds in times.items()]
    values = build_curves(make_content(steps=steps)).charts["chart-loss-seconds"]["data"]["values"]
    assert [value["seconds"] for value in values] == [1.0, 1.667, 2.333, 3.0, 4.0]


def test_table_has_a_column_of_balanced_accuracies_only_for_unbalanced_classes() -> None:
    assert "balanced, %" not in build_methods(make_content()).values["columns"]
    unbalanced = make_record("dm, 2 per class", "dm", 2, 0.6, 6, test_images=[90, 10, 10])
    assert "balanced, %" in build_methods(make_content(records=[unbalanced])).values["columns"]


@pytest.mark.parametrize("matrix", [None, [[1, 2], [3, 4]], [["x"] * 3] * 3, "abc"])
def test_invalid_confusion_matrix_is_left_out(matrix: object) -> None:
    record = make_record("dm, 2 per class", "dm", 2, 0.6, 6, confusion=matrix)
    (entry,) = build_classes(make_content(records=[record])).data["classes"]
    assert entry["confusion"] is None and entry["accuracies"] == [60.0, 100.0, 50.0]


def test_the_answer_decides_which_set_is_shown_first() -> None:
    page = render_report(make_content())
    assert '<option value="1" selected>dm, 2 per class</option>' in page
    assert read_data(page)["classes"][0]["label"] == "dm, 2 per class"


def test_progress_grows_to_the_whole() -> None:
    shares: list[float] = []
    render_report(make_content(), shares.append)
    assert shares == sorted(shares) and len(shares) > 5
    assert (shares[0], shares[-1]) == (0, 1)


def test_curves_say_how_to_add_the_accuracies() -> None:
    command = "condenset report runs/pets --nets 1"
    assert f"train a network on each snapshot: <code>{command}</code>" in render_report(
        make_content(curve_command=command)
    )
    assert "on each snapshot" not in render_report(make_content())  # there are no snapshots to train on


def test_slider_is_described_only_with_snapshots() -> None:
    data = make_data()
    without = make_content(sets=[make_reported_set(data, "dm", 2, 0)])
    assert "Move the slider" in render_report(make_content())
    assert "Move the slider" not in render_report(without)


def test_short_class_names_are_level_in_the_confusion_matrix() -> None:
    def angle(names: list[str]) -> int:
        record = make_record("dm, 2 per class", "dm", 2, 0.6, 6, class_names=names)
        spec = build_classes(make_content(records=[record])).charts["chart-confusion"]
        return int(spec["encoding"]["x"]["axis"]["labelAngle"])

    assert (angle(["0", "1", "2"]), angle(["aeroplane", "automobile", "helicopter and more"])) == (0, -60)


def test_axis_of_seconds_mentions_moved_points_only_if_there_are_some() -> None:
    def title(seconds: float) -> list[str]:
        records = [make_record("x", method, 2, 0.6, 6, condense_seconds=seconds) for method in ("dm", "dsa")]
        spec = build_methods(make_content(records=records)).charts["chart-methods"]
        return list(spec["layer"][0]["encoding"]["x"]["title"])

    assert title(0.0) == ["seconds of condensing", "(less than 0.1 drawn at 0.1)"]
    assert title(5.0) == ["seconds of condensing"]
