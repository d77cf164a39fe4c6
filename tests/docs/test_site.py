"""The documentation site builds without warnings, is complete, and needs no network."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer

import condenset as cs
from condenset.cli.main import app
from helpers.browser import open_browser
from helpers.pages import ROOT

RESOURCES = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class PageParser(HTMLParser):
    """Collect the ids, links and resources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in RESOURCES and RESOURCES[tag] in values:
            self.resources.append(values[RESOURCES[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    messages = [line for line in process.stderr.splitlines() if not line.startswith("INFO    -  ")]
    assert process.returncode == 0, "\n".join(messages)
    assert "WARNING" not in process.stderr
    yield directory


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, PageParser]:
    return {path: PageParser(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_links_and_resources_exist(site: Path, pages: dict[Path, PageParser]) -> None:
    missing = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are absolute
        for link in [*page.links, *page.resources]:
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"(https?|mailto):|data:", target):
                continue
            file = (path.parent / target.partition("?")[0]).resolve() if target else path
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].ids):
                missing.append(f"{path.relative_to(site)}: {link}")
    assert missing == []


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[Path, PageParser]) -> None:
    loaded = [link for page in pages.values() for link in page.resources if re.match(r"(https?:)?//", link)]
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert loaded == []
    assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", styles) == []


def test_api_reference_has_every_public_name(site: Path, pages: dict[Path, PageParser]) -> None:
    ids = {name for path, page in pages.items() if path.parent.name == "api" for name in page.ids}
    documented = {name.rsplit(".", 1)[-1] for name in ids}
    assert set(cs.__all__) - documented == set()
    assert "condenset.CondensedSet.save" in ids


def test_command_reference_has_every_option(site: Path) -> None:
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        text = (site / "reference" / "commands" / f"{name}.html").read_text(encoding="utf-8")
        for item in [command, *getattr(command, "commands", {}).values()]:
            for parameter in item.params:
                if parameter.param_type_name == "option" and not parameter.hidden:
                    assert any(option in text for option in parameter.opts), f"{name} {parameter.opts}"


def test_method_reference_has_every_field(site: Path) -> None:
    text = (site / "reference" / "methods.html").read_text(encoding="utf-8")
    for name, method in cs.METHODS.items():
        assert f'id="{name}"' in text
        assert all(f"<code>{field.name}</code>" in text for field in dataclasses.fields(method.recipe))


def test_formulas_are_mathml(site: Path) -> None:
    text = (site / "concepts" / "distribution-matching.html").read_text(encoding="utf-8")
    assert text.count("<math ") >= 3
    assert "arithmatex" not in text and "$$" not in text


def test_site_works_in_a_browser_without_a_server(site: Path) -> None:
    problems: list[str] = []
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if "://" in request.url[5:] else None)
        page.set_default_timeout(20_000)
        page.goto((site / "concepts" / "distribution-matching.html").as_uri())
        assert page.evaluate("document.body.getAttribute('data-md-color-scheme')") == "slate"
        assert page.evaluate("document.documentElement.scrollWidth") <= 400  # wide tables scroll by themselves
        page.locator("label[for=__search]").first.click()
        page.locator("input.md-search__input").press_sequentially("discrepancy")
        # Results of the first letters appear before those of the whole word.
        page.locator(".md-search-result__link[href*='distribution-matching.html']").first.wait_for(state="attached")
    assert problems == []
