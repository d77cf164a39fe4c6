"""The report in a real browser: Chromium, driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from condenset.pipeline.report.run import save_page
from helpers.browser import open_browser
from helpers.reports import SCRIPT, make_content

pytestmark = pytest.mark.xdist_group("browser")


@dataclass
class OpenPage:
    """A page in the browser, and what it did.

    Attributes:
        page: The page of Playwright.
        problems: Messages of the console, errors and dialogs.
        requests: Addresses that the page asked for, except for itself and the data in it.
    """

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def background(self, selector: str) -> str:
        """Return the image that an element shows."""
        text: str = self.page.locator(selector).first.evaluate("element => getComputedStyle(element).backgroundImage")
        return text


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    save_page(path, make_content())
    return path


def open_report(browser: Any, report: Path, **options: Any) -> Iterator[OpenPage]:
    """Open a report in a new page, and check at the end that it made no trouble and used no network."""
    context = browser.new_context(viewport={"width": 1100, "height": 800}, **options)
    opened = OpenPage(context.new_page())
    opened.page.on("console", lambda message: opened.problems.append(f"{message.type}: {message.text}"))
    opened.page.on("pageerror", lambda error: opened.problems.append(str(error)))
    opened.page.on("dialog", lambda dialog: (opened.problems.append("dialog"), dialog.dismiss()))
    local = ("file:", "data:", "blob:")
    opened.page.on(
        "request", lambda request: None if request.url.startswith(local) else opened.requests.append(request.url)
    )
    opened.page.set_default_timeout(20_000)
    opened.page.goto(report.as_uri())
    opened.page.locator("#chart-confusion svg").wait_for()
    yield opened
    assert opened.problems == []
    assert opened.requests == []
    context.close()


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[OpenPage]:
    yield from open_report(browser, report)


def expect(locator: Any) -> Any:
    """Return assertions of Playwright, which wait until they hold."""
    from playwright.sync_api import expect

    return expect(locator)


def hover(page: Any, selector: str, text: str) -> None:
    """Point at a mark until its tooltip appears: a chart above may still be drawn and move the mark away."""
    tooltip = page.locator("#tooltip")
    for attempt in range(10):
        page.mouse.move(0, 0)
        page.locator(selector).hover(force=True)
        try:
            expect(tooltip).to_contain_text(text, timeout=2_000)
            return
        except AssertionError:
            if attempt == 9:
                raise


def test_slider_shows_earlier_images(opened: OpenPage) -> None:
    page, slider = opened.page, opened.page.locator("#step")
    assert page.locator("#step-label").inner_text() == "final"
    final, initial = (opened.background(f".tile.{kind}") for kind in ("now", "initial"))
    assert final != initial
    slider.focus()
    slider.press("Home")
    assert page.locator("#step-label").inner_text() == "initial"
    assert opened.background(".tile.now") == initial
    slider.press("ArrowRight")
    assert page.locator("#step-label").inner_text().replace("\u00a0", " ") == "iteration 10 (0.5 s)"
    page.locator("#play").click()
    expect(page.locator("#step-label")).to_have_text("final")
    assert opened.background(".tile.now") == final


def test_filter_shows_one_class_and_its_name_is_text(opened: OpenPage) -> None:
    page = opened.page
    assert page.locator(".class-row:visible").count() == 3
    page.locator("#class-choice").select_option(label=SCRIPT)
    assert page.locator(".class-row:visible").count() == 1
    assert page.locator(".class-row:visible .class-name").inner_text() == SCRIPT
    page.locator("#set-choice").select_option(label="random, 2 per class")
    assert page.locator(".class-row:visible").count() == 1
    assert page.locator("#set-note").inner_text() == "This method selects real images, so they do not change."
    assert not page.locator("#step-control").is_visible()


def test_hovering_a_point_of_the_map_shows_its_image(opened: OpenPage) -> None:
    page, tooltip = opened.page, opened.page.locator("#tooltip")
    assert not tooltip.is_visible()
    hover(page, "#chart-map .mark-symbol.role-mark path >> nth=-1", "synthetic")
    assert tooltip.inner_text() == f"{SCRIPT}, synthetic"
    assert opened.background("#tooltip .picture").startswith('url("blob:')
    hover(page, "#chart-confusion .mark-rect.role-mark path >> nth=0", "predicted class: cat")
    expect(tooltip).to_contain_text("90.0")


def test_table_is_sorted_by_any_column(opened: OpenPage) -> None:
    page = opened.page
    button = page.get_by_role("button", name="accuracy, %")
    column = page.locator("table.sortable td:nth-child(1)")
    button.focus()
    button.press("Enter")
    assert column.all_inner_texts() == ["random", "dm", "whole dataset"]
    button.press("Enter")
    assert column.all_inner_texts() == ["whole dataset", "dm", "random"]
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("accuracy, %")
    page.get_by_role("button", name="images per class").click()
    assert column.all_inner_texts()[-1] == "whole dataset"


def test_keyboard_moves_between_images_and_enlarges_them(opened: OpenPage) -> None:
    page = opened.page
    page.locator("button.tile").first.focus()
    for key, label in (
        ("ArrowRight", "cat, image 2 of 2"),
        ("ArrowDown", "dog, image 2 of 2"),
        ("Home", "dog, image 1 of 2"),
        ("ArrowUp", "cat, image 1 of 2"),
    ):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == f"{label}. Enlarge."
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    zoom = page.locator("#zoom")
    zoom.wait_for()
    assert page.locator("#zoom-title").inner_text() == "cat, image 1 of 2"
    assert page.locator("#zoom-neighbours .picture").count() == 3
    page.keyboard.press("ArrowRight")
    assert page.locator("#zoom-title").inner_text() == "cat, image 2 of 2"
    page.keyboard.press("Escape")
    zoom.wait_for(state="hidden")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "cat, image 1 of 2. Enlarge."


def test_choice_of_a_set_changes_the_charts_of_the_classes(opened: OpenPage) -> None:
    page = opened.page
    bar = page.locator("#chart-classes .mark-rect.role-mark path").first
    before = bar.get_attribute("d")
    page.locator("#classes-choice").select_option(label="whole dataset")
    expect(bar).not_to_have_attribute("d", before)


def test_phone_needs_no_horizontal_scrolling_and_dark_mode_is_dark(browser: Any, report: Path) -> None:
    for opened in open_report(browser, report, color_scheme="dark"):
        opened.page.set_viewport_size({"width": 390, "height": 844})
        width = opened.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390
        color = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, color.removeprefix("rgb(").removesuffix(")").split(", "))) < 60
