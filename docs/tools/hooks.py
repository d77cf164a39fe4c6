"""Hooks of MkDocs: add the generated reference pages and source files, and turn formulas into MathML."""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import reference  # noqa: E402  (in this directory)

LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}


def on_config(config: Any) -> Any:
    """Replace the directories in the navigation by the generated pages in them."""
    pages = reference.generate_pages()
    config.extra["generated"] = pages
    for entry in next(part["Reference"] for part in config.nav if "Reference" in part):
        if isinstance(entry, dict) and "Changelog" not in entry:
            ((title, directory),) = entry.items()
            entry[title] = [path for path in pages if path.startswith(f"{directory}/")]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and a page for each file of the repository that a page links to."""
    for path, text in config.extra["generated"].items():
        files.append(File.generated(config, path, content=text))
    pages = files.documentation_pages()
    sources = {source for page in pages for source in list_sources(page.src_uri, page.content_string)}
    for source in sorted(sources):
        files.append(File.generated(config, f"source/{source}.md", content=make_source_page(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files of the repository at their pages."""
    uri = page.file.src_uri

    def replace(match: re.Match[str]) -> str:
        source = resolve_source(uri, match[1])
        up = posixpath.relpath(f"source/{source}.md", posixpath.dirname(uri) or ".")
        return f"]({up})" if source else match[0]

    return LINK.sub(replace, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Replace formulas by MathML, which browsers show without a script, and keep `63.3 ± 0.5` on one line."""
    content = re.sub(r"(\d) ± (\d)", "\\1\u00a0±\u00a0\\2", content)
    return FORMULA.sub(lambda match: convert_formula(match[2], block=match[1] == "div"), content)


def convert_formula(latex: str, block: bool) -> str:
    """Return a formula as MathML."""
    return str(convert(html.unescape(latex).strip(), display="block" if block else "inline"))


def list_sources(uri: str, markdown: str) -> set[str]:
    """Return the files of the repository outside docs/ that a page links to."""
    return {source for target in LINK.findall(markdown) if (source := resolve_source(uri, target))}


def resolve_source(uri: str, target: str) -> str | None:
    """Return the path of a linked file in the repository, or None if the link stays inside docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), target))
    return path if not path.startswith(("docs/", "..")) and (ROOT / path).is_file() else None


def make_source_page(source: str) -> str:
    """Return a page that shows a file of the repository."""
    language = LANGUAGES.get(Path(source).suffix, "text")
    text = (ROOT / source).read_text(encoding="utf-8")
    if source == "CHANGELOG.md":
        return text
    return f"---\nsearch:\n  exclude: true\n---\n# {source}\n\n````{language}\n{text}\n````\n"
