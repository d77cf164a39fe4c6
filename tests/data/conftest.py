from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from data_files import Refused

from condenset.errors import UserError


@contextmanager
def _refused(*parts: str) -> Iterator[None]:
    with pytest.raises(UserError) as caught:
        yield
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def refused() -> Refused:
    """`with refused("text"):` the block must raise a UserError of one line that has every text given."""
    return _refused


@pytest.fixture(autouse=True)
def own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may see, or fill, the data folder of whoever runs it."""
    monkeypatch.setenv("CONDENSET_DATA", str(tmp_path / "data"))
