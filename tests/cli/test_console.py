"""Tables and warnings."""

from __future__ import annotations

import io
import re
import sys
import warnings

import pytest

from condenset.cli.console import one_line_warnings, print_evaluation, print_records, print_table
from condenset.data.reading.file_scan import DatasetWarning


class Terminal(io.StringIO):
    """Output that is a terminal."""

    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> Terminal:
    """Make stdout a terminal of this width. A fixture cannot: pytest replaces stdout before the test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    return terminal


def test_brackets_in_a_table_are_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch, width=120)
    print_table(("network", "options"), [("convnet", "norm='instance' [none, batch, instance]")])
    assert "norm='instance' [none, batch, instance]" in terminal.getvalue()
    assert "┃" in terminal.getvalue()


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_table_folds_long_cells(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    terminal = use_terminal(monkeypatch, width)
    print_table(("network", "options"), [("a" * 40, "some words " * 9)] * 3)
    text = re.sub(r"\x1b\[\d+m", "", terminal.getvalue())  # without colours
    assert max(map(len, text.splitlines())) <= width
    assert text.count("a") == 3 * 40 and "…" not in text
    assert "network" in text.splitlines()[1] and "options" in text.splitlines()[1]  # columns stay columns


def test_a_table_breaks_lines_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "convnet(width=64, depth=2)"
    for width in (60, 80, 120):
        terminal = use_terminal(monkeypatch, width)
        print_table(("images per class", "networks", "file"), [("1", words, "random-100.safetensors")] * 2)
        text = terminal.getvalue()
        assert text.count("convnet(width=64,") == text.count("random-100.safetensors") == text.count("depth=2)") == 2


def test_a_network_of_all_rows_is_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    score = {"accuracy_mean": 0.9, "accuracy_std": 0.01, "accuracies": [0.9, 0.9], "condense_seconds": 1.4}
    records = [
        {"method": method, "ipc": 10, **score, "network": "convnet(width=64, depth=2)", "together": [1, 10]}
        for method in ("random", "dm", "whole")
    ]
    terminal = use_terminal(monkeypatch, width=80)
    print_records(records, as_json=False)
    lines = terminal.getvalue().splitlines()
    assert lines[0] == "networks: 2 × convnet(width=64, depth=2)"
    assert "networks" not in lines[2] and len(lines) == 1 + 3 + 3 + 1  # one line per row


def test_a_table_is_plain_text_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "long name"), [("first", "x"), ("2", "[y]")])
    assert capsys.readouterr().out == "a      long name\nfirst  x\n2      [y]\n"


def test_records_are_printed_in_percent_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    score = {"accuracy_mean": 0.9301, "accuracy_std": 0.0042, "accuracies": [0.9, 0.95], "network": "convnet"}
    records = [
        {"method": "dm", "ipc": 10, **score, "condense_seconds": 12.34, "evaluate_seconds": 5.0},
        {"method": "dm", "ipc": 1, "network": None, "condense_seconds": 12.34, "together": [1, 10]},
        {"method": "whole", "ipc": None, **score, "condense_seconds": 0.0, "evaluate_seconds": 5.0},
        {"method": "random", "ipc": 1, "network": None, "condense_seconds": 0.2},
        {"method": None, "ipc": None, "network": None, "condense_seconds": None},
    ]
    print_records(records, as_json=False)
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        ["method", "images per class", "accuracy %", "networks", "condense s", "evaluate s"],
        ["dm", "10", "93.0 ± 0.4", "2 × convnet", "12.3", "5.0"],
        ["dm", "1", "-", "-", "12.3 for 1, 10", "-"],
        ["whole", "all", "93.0 ± 0.4", "2 × convnet", "-", "5.0"],
        ["random", "1", "-", "-", "0.2", "-"],
        ["-", "-", "-", "-", "-", "-"],
    ]


def test_records_without_scores_have_no_empty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        {"method": "dm", "ipc": 1, "network": "convnet", "condense_seconds": 12.34},
        {"method": "random", "ipc": 1, "network": None, "condense_seconds": 0.2},
    ]
    print_records(records, as_json=False)
    header = capsys.readouterr().out.splitlines()[0]
    assert header.split("  ") == ["method", "images per class", "networks", "condense s"]
    print_records(records[1:], as_json=False)  # without a network
    assert capsys.readouterr().out.splitlines()[0].split("  ") == ["method", "images per class", "condense s"]


def test_unbalanced_test_images_show_the_balanced_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    score = {"accuracy_mean": 0.9, "accuracy_std": 0.0, "accuracies": [0.9], "network": "mlp", "balanced_accuracy": 0.5}
    record = {"file": "a.safetensors", "dataset": "pets", "method": "dm", "ipc": 1, **score, "condense_seconds": 1.0}
    for counts, is_shown in (([20, 10, 10], False), ([21, 10, 10], True), ([12, 12, 1], True), ([9, 9, 0], False)):
        for print_table_of in (print_records, print_evaluation):
            print_table_of([{**record, "test_images": counts}], as_json=False)
            header, row = capsys.readouterr().out.splitlines()[-2:]
            assert ("balanced" in header) == is_shown == ("50.0" in row)


def test_subclasses_of_user_warnings_are_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    with one_line_warnings():
        warnings.simplefilter("always")
        warnings.warn("a file is left out", DatasetWarning, stacklevel=1)
    assert capsys.readouterr().err == "condenset: warning: a file is left out\n"


def test_a_warning_is_one_line_without_a_stack_trace(capsys: pytest.CaptureFixture[str]) -> None:
    message = "a kernel failed,\nanother is used.\nException raised from f at g.cpp:7\nframe #0: …"
    with one_line_warnings():
        warnings.simplefilter("always")
        for _ in range(2):  # the same text is printed once
            warnings.warn(message, stacklevel=1)
    assert capsys.readouterr().err == "condenset: warning: a kernel failed, another is used.\n"
