"""The detail of partitioned images is measured for all decoders that fit the image size."""

from __future__ import annotations

import decoders
import typer
from typer.testing import CliRunner

import condenset as cs
from condenset.data.partition import PartLayout


def test_low_frequencies_keep_most_of_the_variance() -> None:
    images = cs.load("digits", verbose=False).train.images[:400].float() / 255
    shares = {name: decoders.remaining_variance(images, PartLayout(2, name)) for name in ("bilinear", "bicubic", "dct")}
    assert 0 < shares["bilinear"] < shares["bicubic"] < shares["dct"] < 1
    assert decoders.remaining_variance(images, PartLayout(1)) == 1


def test_rows_have_only_partitions_that_fit() -> None:
    app = typer.Typer()
    app.command()(decoders.main)
    options = ["digits", "--images", "128", *(f"--partition={partition}" for partition in (2, 3))]
    lines = CliRunner().invoke(app, options).output.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["bilinear", "2"], ["bicubic", "2"], ["dct", "2"], ["dct", "3"]]
