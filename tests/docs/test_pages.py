"""The pages of the documentation: short paragraphs, valid links, valid commands and valid code."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import typing
from pathlib import Path

import pytest

import condenset as cs
from helpers.command_parsing import load_app, parse_command
from helpers.pages import (
    DOCS,
    PAGES,
    ROOT,
    list_anchors,
    list_commands,
    list_links,
    list_paragraphs,
    name_of,
    read_blocks,
    read_prose,
    slugify,
)

MAX_CHARACTERS = 450  # five lines of the site
GENERATED = DOCS / "reference"  # pages that the site generates


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paragraphs_are_short(page: Path) -> None:
    long = [paragraph[:80] for paragraph in list_paragraphs(page) if len(paragraph) > MAX_CHARACTERS]
    assert long == []


def test_readme_describes_methods_in_the_words_of_the_command() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(name, method.summary) for name, method in cs.METHODS.items()]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_exist(page: Path) -> None:
    for link in list_links(page):
        if re.match(r"https?:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if path.is_relative_to(GENERATED) and path != GENERATED / "index.md":
            continue  # tests/docs/test_site.py checks them
        assert path.exists(), link
        assert path.is_relative_to(ROOT), link
        assert not anchor or anchor in list_anchors(path), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lists_look_the_same_on_github_and_on_the_site(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?m)^ {1,3}```", text) == [], "indent code in lists by four spaces"
    assert re.findall(r"(?m)^\d+\. .*\n\n- ", text) == [], "put a sentence between a numbered list and other items"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_parse(page: Path) -> None:
    for line in list_commands(page):
        parse_command(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name in ("guides", "start")], ids=name_of)
def test_options_exist(page: Path) -> None:
    group = load_app()
    commands = [group, *group.commands.values()]
    commands += [item for command in commands[1:] for item in getattr(command, "commands", {}).values()]
    parameters = [parameter for command in commands for parameter in command.params]
    known = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", " ".join(re.findall(r"`([^`]+)`", read_prose(page)))))
    assert mentioned - known <= {"--help", "--logdir"}


def test_a_wrong_option_does_not_parse() -> None:
    with pytest.raises(Exception, match="--no-such-option"):
        parse_command(["run", "digits", "--no-such-option"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_compile_and_call_what_exists(page: Path) -> None:
    for block in read_blocks(page):
        if block.language == "python":
            tree = ast.parse(block.code.replace("…", "..."))
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cs":
                    assert hasattr(cs, node.attr), f"{block.page}: cs.{node.attr}"
                if isinstance(node, ast.Call):
                    check_keywords(node)


def check_keywords(call: ast.Call) -> None:
    """Assert that a function of the public API accepts the keywords of a call in a page."""
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value) != "cs":
        return
    function = getattr(cs, call.func.attr)
    names: set[str] = set()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            hints = typing.get_type_hints(inspect.unwrap(function))
            options = typing.get_args(hints.get(parameter.name, None))
            if not options:
                return  # any keyword
            names |= set(typing.get_type_hints(options[0]))
        else:
            names.add(parameter.name)
    unknown = {keyword.arg for keyword in call.keywords if keyword.arg} - names
    if call.func.attr == "condense":
        unknown -= {name for method in cs.METHODS.values() for name in method.recipe.__dataclass_fields__}
        unknown -= {"offset"}  # a field of the method in docs/guides/own-method.md
    assert not unknown, f"cs.{call.func.attr} has no {sorted(unknown)}"


def test_a_wrong_keyword_is_noticed() -> None:
    call = ast.parse("cs.evaluate(condensed, test, no_such_field=1)").body[0]
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    with pytest.raises(AssertionError, match="no_such_field"):
        check_keywords(call.value)


def test_every_method_is_explained() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "concepts").glob("*.md"))
    missing = [name for name in cs.METHODS if f"`{name}`" not in text]
    assert missing == [], "explain them in a page of docs/concepts"


def test_slugs_are_those_of_github() -> None:
    assert slugify("Recipes and `--set`") == "recipes-and---set"
    assert slugify("The paper's experiments") == "the-papers-experiments"
