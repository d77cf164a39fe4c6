"""Read the pages of the documentation: code blocks, links, headings and paragraphs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2`*[ ]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of a page."""

    page: str
    language: str
    code: str


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return page.relative_to(ROOT).as_posix()


def read_blocks(page: Path) -> list[CodeBlock]:
    """Return the fenced blocks of a page."""
    matches = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [CodeBlock(name_of(page), match[3].strip(), re.sub(rf"(?m)^{match[1]}", "", match[4])) for match in matches]


def read_prose(page: Path) -> str:
    """Return the text of a page without code blocks and comments."""
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.DOTALL)


def slugify(title: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of all headings of a page."""
    return {slugify(title) for title in re.findall(r"^#{1,6} (.+)$", read_prose(page), re.MULTILINE)}


def list_links(page: Path) -> list[str]:
    """Return the targets of all links and images of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", read_prose(page))


def list_paragraphs(page: Path) -> list[str]:
    """Return paragraphs, items of lists and cells of tables as a reader sees them, without link targets."""
    paragraphs: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", read_prose(page)):
        cells = re.split(r" \| |\n", block) if block.lstrip().startswith("|") else [" ".join(block.split())]
        paragraphs += [re.sub(r"\]\([^)]*\)", "]", cell) for cell in cells]
    return paragraphs


def list_commands(page: Path) -> list[str]:
    """Return the lines `condenset …` of the blocks, and the complete commands in running text."""
    lines = [line for block in read_blocks(page) if block.language != "python" for line in block.code.splitlines()]
    inline = re.findall(r"`(condenset [^`]+)`", read_prose(page))
    commands = [line.strip().removeprefix("$ ") for line in lines if re.match(r"\s*(\$ )?condenset ", line)]
    return [command for command in [*commands, *inline] if "…" not in command]
