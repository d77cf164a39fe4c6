"""Put the sections of a report into one page."""

from __future__ import annotations

import base64
import hashlib

from condenset import __version__
from condenset.report.assets import get_environment, read_asset
from condenset.report.html.answer import build_answer
from condenset.report.html.classes import build_classes
from condenset.report.html.content import ReportContent, Section, Update, ignore_update
from condenset.report.html.curves import build_curves
from condenset.report.html.feature_map import build_feature_map
from condenset.report.html.gallery import Gallery
from condenset.report.html.images import build_images
from condenset.report.html.methods import build_methods
from condenset.report.html.repeat import build_repeat

NEIGHBOUR_SHARE, MAP_SHARE, ENCODING_SHARE = 0.25, 0.55, 0.2  # of the time that a page of CIFAR-10 takes
VENDOR_SCRIPTS = ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")


def render_report(content: ReportContent, update: Update = ignore_update) -> str:
    """Return the page as HTML.

    Args:
        content: The content of the page.
        update: Called with the share of the work that is complete.
    """
    gallery = Gallery(content, lambda share: update(NEIGHBOUR_SHARE * share))
    sections = [build_answer(content)]
    if content.figure:
        sections.append(_build_figure(content))
    else:
        feature_map = build_feature_map(content, gallery, lambda share: update(NEIGHBOUR_SHARE + MAP_SHARE * share))
        sections += [build_images(content, gallery), feature_map, build_curves(content)]
    sections += [build_methods(content), build_classes(content), build_repeat(content)]
    data = {
        "charts": {name: spec for section in sections for name, spec in section.charts.items()},
        "sprites": gallery.encode(lambda share: update(1 - ENCODING_SHARE * (1 - share))) if gallery.sets else {},
    }
    for section in sections:
        data |= section.data
    scripts = [*map(_read_vendor_script, VENDOR_SCRIPTS), read_asset("report.js")] if data["charts"] else []
    scripts = scripts or [read_asset("report.js")]
    return (
        get_environment()
        .get_template("report.html")
        .render(
            title=content.title,
            notices=content.notices,
            sections=[section for section in sections if not section.omitted],
            omitted=[section for section in sections if section.omitted],
            data=data,
            style=read_asset("report.css"),
            scripts=scripts,
            policy=_make_policy(scripts),
            version=__version__,
        )
    )


def _build_figure(content: ReportContent) -> Section:
    """Return the section with the figure of an experiment."""
    source = f"data:image/png;base64,{base64.b64encode(content.figure).decode()}"
    return Section(name="figure", title="The figure", values={"source": source, "title": content.title})


def _make_policy(scripts: list[str]) -> str:
    """Return a content security policy: only these scripts run, and nothing is loaded from the network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _read_vendor_script(name: str) -> str:
    """Return a bundled script without the comment that names its source map, which a browser would load."""
    lines = read_asset(f"vendor/{name}").splitlines()
    return "\n".join(line for line in lines if not line.startswith("//# sourceMappingURL"))
