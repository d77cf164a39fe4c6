"""The HTML report of a run: one page without network access, with its images, charts and scripts inside."""

from condenset.report.html.content import FeatureNetwork, ReportContent, ReportedSet
from condenset.report.html.page import render_report

__all__ = ["FeatureNetwork", "ReportContent", "ReportedSet", "render_report"]
