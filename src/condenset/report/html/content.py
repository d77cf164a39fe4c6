"""What a report is made from, and what its sections consist of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.ipc import format_ipc
from condenset.methods import METHODS
from condenset.runs.snapshots import Snapshot

Record = Mapping[str, Any]
Update = Callable[[float], None]  # called with the share of a task that is complete


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportedSet:
    """A condensed set of a report.

    Attributes:
        label: Its name for readers, such as "dm, 10 per class".
        condensed: The set.
        snapshots: Its images at earlier iterations, in order.
        checksum: The SHA-256 of its file.
        file: The name of its file.
    """

    label: str
    condensed: CondensedSet
    snapshots: Sequence[Snapshot] = ()
    checksum: str = ""
    file: str = ""

    @property
    def snapshot_problem(self) -> str:
        """Why networks cannot train on the snapshots. Empty: they can, or there are none."""
        return self.snapshots[0].find_problem(self.condensed) if self.snapshots else ""

    @property
    def is_synthetic(self) -> bool:
        """Whether the images were learned. Coreset methods select real images."""
        return is_synthetic(str(self.condensed.provenance.get("method")))


@dataclass(frozen=True, kw_only=True)
class FeatureNetwork:
    """A network that maps images to features.

    Attributes:
        embed: Maps (N, C, H, W) normalised images to (N, F) features.
        description: Which network it is, as the end of a sentence.
    """

    embed: Callable[[Tensor], Tensor]
    description: str


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """The results of one or several runs on one dataset.

    Attributes:
        title: The title of the page.
        answer: The first sentence. Empty: it is written from the records.
        records: The records of results.json, each with a `label`. Those of runs also have the `scoring`, a `Protocol`,
            and the `test_fingerprint`.
        sets: The condensed sets.
        steps: Events of iterations: `label`, `step`, `seconds` and `loss`.
        snapshot_scores: Accuracies of networks trained on snapshots: `label`, `step`, `seconds` and `accuracy`.
        curve_command: The command that trains networks on the snapshots. Empty: there are none to train on.
        train: The training images. None: they are not available.
        data_problem: Why the training images are not available.
        features: The network of the feature map. None: there is none.
        notices: Remarks at the top of the page.
        settings: How to repeat the runs: text by label.
        recipes: The text of the config files by name.
        figure: The figure of an experiment as PNG.
        table: The table of an experiment: its columns, then its rows.
    """

    title: str
    answer: str = ""
    records: Sequence[Record] = ()
    sets: Sequence[ReportedSet] = ()
    steps: Sequence[Record] = ()
    snapshot_scores: Sequence[Record] = ()
    curve_command: str = ""
    train: ImageData | None = None
    data_problem: str = ""
    features: FeatureNetwork | None = None
    notices: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    recipes: Mapping[str, str] = field(default_factory=dict)
    figure: bytes = b""
    table: Sequence[Sequence[str]] = ()

    @property
    def scored(self) -> list[Record]:
        """The records with an accuracy."""
        return [record for record in self.records if "accuracy_mean" in record]


@dataclass(kw_only=True)
class Section:
    """A part of the page. Its template is `sections/NAME.html`.

    Attributes:
        name: Identifies the section in links and templates.
        title: Its heading.
        values: What the template shows.
        charts: Vega-Lite specifications by the id of their element.
        data: JSON for the script of the page.
        omitted: Why the section is left out. Empty: it is not.
    """

    name: str
    title: str
    values: dict[str, Any] = field(default_factory=dict)
    charts: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    omitted: str = ""


def ignore_update(share: float) -> None:
    """Show no progress."""


def is_synthetic(method: str) -> bool:
    """Return whether a method learns images. Methods of other packages count as such."""
    return method not in METHODS or not METHODS[method].is_coreset


def name_job(method: object, ipc: object) -> str:
    """Return the name of a set for readers, such as "dm, 10 per class"."""
    if ipc is None:
        return "whole dataset" if method == "whole" else str(method)
    return f"{method}, {format_ipc(ipc)} per class"


def format_percent(fraction: float | None) -> str:
    """Return 0.633 as 63.3."""
    return "–" if fraction is None else f"{100 * fraction:.1f}"


def format_seconds(seconds: float | None) -> str:
    """Return seconds as 1.5 s, 27 s, 3 min 20 s or 2 h 5 min."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f}\u00a0s" if seconds < 9.95 else f"{seconds:.0f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s"
    return f"{minutes // 60}\u00a0h {minutes % 60}\u00a0min"
