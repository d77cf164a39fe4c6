"""The page of `condenset serve` in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from condenset.report.server import RunServer
from helpers.browser import open_browser
from helpers.run_directories import write_run
from helpers.run_server import serve_runs

pytestmark = pytest.mark.xdist_group("browser")

SCRIPT = "<img src=x onerror=alert(1)>"
REFUSALS = ("Failed to load resource", "blocked by CORS policy")  # what the browser prints if the server refuses


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunServer]:
    with serve_runs(tmp_path / "runs") as server:
        yield server


@pytest.fixture
def page(browser: Any, server: RunServer) -> Iterator[Any]:
    """A page that must not print anything to the console, or open a dialog."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append("dialog"), dialog.dismiss()))
    page.set_default_timeout(20_000)
    yield page
    context.close()
    assert [problem for problem in problems if not any(text in problem for text in REFUSALS)] == []


def update(page: Any) -> None:
    """Have the page ask for the runs now, as it does when it becomes visible again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_progress_is_live_and_names_are_text(page: Any, server: RunServer) -> None:
    directory = write_run(server.directory / "active", state="running", job=SCRIPT, step=1, total=4)
    write_run(server.directory / SCRIPT, state="failed", error=SCRIPT)
    page.goto(server.url)
    page.get_by_text("2 runs, 1 running").wait_for()
    assert page.locator("article h2").all_inner_texts() == ["active\nrunning", f"{SCRIPT}\nfailed"]
    assert page.locator("article img").count() == 0
    assert page.locator("progress").evaluate("bar => bar.value") == 0.25
    status = json.loads((directory / "status.json").read_text())
    (directory / "status.json").write_text(json.dumps(status | {"step": 3}))
    update(page)
    page.get_by_text("75%").wait_for()
    (directory / "status.json").write_text(json.dumps(status | {"state": "finished"}))
    update(page)
    page.get_by_text("2 runs, 0 running").wait_for()
    assert page.locator("progress").count() == 0
    is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(is_wide)  # it fits a phone


def test_reports_are_written_opened_and_isolated(page: Any, server: RunServer) -> None:
    write_run(server.directory / "group" / "a b")
    write_run(server.directory / "empty")
    page.goto(server.url)
    page.get_by_role("button", name="Write the report of empty").click()
    page.get_by_text("The report could not be written: there are no results").wait_for()
    button = page.get_by_role("button", name="Write the report of group/a b")
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Open the report of group/a b").click()
    page.wait_for_function("document.title !== 'waiting'")
    assert page.title() == "refused"  # a report cannot read other runs


def test_runs_are_filtered(page: Any, server: RunServer) -> None:
    page.goto(server.url)
    page.get_by_text("No runs yet").wait_for()
    for name in ("apple", "banana", "cherry", "date"):
        write_run(server.directory / name)
    update(page)
    page.get_by_text("4 runs").wait_for()
    page.get_by_label("Filter").fill("anan dm")
    assert page.locator("article h2").all_inner_texts() == ["banana\nfinished"]
