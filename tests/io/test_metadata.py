from __future__ import annotations

import json
import os
import tomllib
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from condenset.errors import UserError
from condenset.io.files import read_rows, write_tensors
from condenset.io.metadata import (
    MAX_BYTES,
    format_toml,
    holds_config,
    read_json,
    read_tensor_file,
    read_tensor_metadata,
    read_toml,
)

INVALID_JSON = {"empty": b"", "truncated": b"{", "not UTF-8": b"\xff", "deep": b"[" * 10**5, "huge": b"9" * 10**5}


def test_valid_json_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"ä": 1}]', encoding="utf-8")
    assert read_json(path, "a list", is_valid=lambda value: isinstance(value, list)) == [{"ä": 1}]


@pytest.mark.parametrize("kind", INVALID_JSON)
def test_invalid_json_is_a_user_error_with_a_hint(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(INVALID_JSON[kind])
    with pytest.raises(UserError) as caught:
        read_json(path, "a list of results", hint="delete it to compute it again")
    assert str(caught.value) == f"{path} is not a list of results; delete it to compute it again"


def test_content_is_validated(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    with pytest.raises(UserError, match=r"is not a list of results$"):
        read_json(path, "a list of results", is_valid=lambda value: isinstance(value, list))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_json(tmp_path / "missing.json", "anything")
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # sparse: takes no disk space
    with pytest.raises(UserError, match=f"must have at most {MAX_BYTES} bytes"):
        read_json(path, "anything")


def test_tensor_file_with_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.arange(6).reshape(3, 2)}, {"key": json.dumps({"a": 1}), "other": "[]"})
    tensors, metadata = read_tensor_file(path, "key", "a checkpoint")
    assert tensors["x"].tolist() == [[0, 1], [2, 3], [4, 5]] and metadata == {"a": 1}
    assert read_tensor_metadata(path, "key", "a checkpoint") == {"a": 1}
    assert read_rows(path, "x", [2, 0]).tolist() == [[4, 5], [0, 1]]
    assert read_rows(path, "x", [3]).numel() == read_rows(path, "y", [0]).numel() == 0
    for key in ("other", "missing"):
        with pytest.raises(UserError, match=r"is not a checkpoint; delete it$"):
            read_tensor_file(path, key, "a checkpoint", hint="delete it")
    path.write_bytes(b"x")
    with pytest.raises(UserError, match=r"is not a readable \.safetensors file: .*; delete it$"):
        read_tensor_metadata(path, "key", "a checkpoint", hint="delete it")


TOML_VALUES = st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none()


@given(st.dictionaries(st.sampled_from("abc"), TOML_VALUES))
def test_toml_round_trip(values: dict[str, object]) -> None:
    expected = {key: value for key, value in values.items() if value is not None}
    assert tomllib.loads("\n".join(format_toml(values))) == expected


def test_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("\n".join(format_toml({"names": ["a", "b"], "lr": 0.1, "text": "ß\x7f"})), encoding="utf-8")
    assert read_toml(path) == {"names": ["a", "b"], "lr": 0.1, "text": "ß\x7f"}
    for content in (b"a = ", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.toml is not TOML: "):
            read_toml(path)


def test_large_config_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"# condenset 0.1.0: a run")
    os.truncate(path, 3 << 30)  # sparse: takes no disk space
    tracemalloc.start()
    assert holds_config(tmp_path)
    with pytest.raises(UserError, match="must have at most 4194304 bytes"):
        read_toml(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_config_files_of_other_programs_are_not_ours(tmp_path: Path) -> None:
    assert not holds_config(tmp_path)
    (tmp_path / "recipe.toml").write_text("soup = true")
    assert not holds_config(tmp_path)
    (tmp_path / "recipe.toml").write_text("# condenset 0.1.0: a run")
    assert holds_config(tmp_path)
