"""The last section: how to repeat the run."""

from __future__ import annotations

from condenset.report.html.content import ReportContent, Section


def build_repeat(content: ReportContent) -> Section:
    """Return the section with command, settings, versions, hardware and checksums."""
    section = Section(name="repeat", title="Repeat it")
    checksums = [(item.file, item.condensed.fingerprint, item.checksum) for item in content.sets if item.file]
    section.values = {"settings": dict(content.settings), "recipes": dict(content.recipes), "checksums": checksums}
    return section
