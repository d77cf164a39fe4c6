from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from condenset import UserError
from condenset.io.bytesize import format_bytes, parse_bytes

UNITS = {"": 1, "B": 1, "kB": 1000, "KiB": 1024, "K": 1024, "MB": 1000**2, "M": 1024**2, "mib": 1024**2}
UNITS |= {"GB": 1000**3, "gb": 1000**3, "GiB": 1024**3, "G": 1024**3, "g": 1024**3, "TB": 1000**4, "TiB": 1024**4}


@given(st.integers(1, 10**12), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_sizes_are_parsed(number: int, unit: str, space: str) -> None:
    assert parse_bytes(f"{number}{space}{unit}") == number * UNITS[unit]
    assert parse_bytes(number) == number


@given(st.integers(1, 2**60))
@example(1152)  # 1.12 KiB, which is 1146.88 bytes
@example(1000 * 1024 - 1)  # not 1e+03 KiB
def test_format_and_parse_agree_to_three_digits(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.005)


def test_fractions() -> None:
    assert parse_bytes("1.5GiB") == 3 * 2**29
    assert parse_bytes("0.5 gb") == 500_000_000
    assert format_bytes(3 * 2**29) == "1.5 GiB"
    assert format_bytes(1010 * 2**20) == "1010 MiB"


@pytest.mark.parametrize(
    "size",
    [
        "",
        "4 parsecs",
        "GiB",
        "-4GiB",
        "0",
        "0.1",
        "4iB",
        "4GG",
        "1e9",
        "nan",
        "9" * 5000,
        "\u0663",
        0,
        -1,
        True,
        1.5,
        10**400,
    ],
)
def test_invalid_sizes_are_rejected(size: object) -> None:
    with pytest.raises(UserError, match="memory must be a size such as 4GiB, 4GB, 512M or a number of bytes, but got"):
        parse_bytes(size)  # type: ignore[arg-type]


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_an_error(text: str) -> None:
    try:
        assert parse_bytes(text) >= 1
    except UserError as error:
        assert "\n" not in str(error)
