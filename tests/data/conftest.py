from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from condenset.errors import UserError
from helpers.data_files import ExpectUserError


@contextmanager
def expect_user_error(*texts: str) -> Iterator[None]:
    with pytest.raises(UserError) as caught:
        yield
    assert [text for text in texts if text not in str(caught.value)] == [], str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def user_error() -> ExpectUserError:
    """Return a context manager: the block must raise a UserError of one line that contains every text."""
    return expect_user_error
