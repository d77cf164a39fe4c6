"""Read the templates, styles and scripts of the pages."""

from __future__ import annotations

import functools
from importlib import resources

import jinja2


@functools.cache
def read_asset(name: str) -> str:
    """Return the text of a file below `html/assets`, such as `templates/runs.html`."""
    # not files("condenset.report.html"), which imports PyTorch
    return resources.files("condenset.report").joinpath("html", "assets", *name.split("/")).read_text(encoding="utf-8")


@functools.cache
def get_environment() -> jinja2.Environment:
    """Return the environment of the templates. User strings are untrusted, so that everything is escaped."""
    loader = jinja2.FunctionLoader(lambda name: read_asset(f"templates/{name}"))
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
