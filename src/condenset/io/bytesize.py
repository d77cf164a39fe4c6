"""Byte sizes as text: 4GiB, 4GB, 512M, or a number of bytes."""

from __future__ import annotations

import re
from fractions import Fraction

from condenset.errors import check, is_int, is_number

POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
PATTERN = re.compile(r"(\d{1,20}(?:\.\d{1,20})?) *(?:([kmgt])(i?b)?|b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(size: int | str) -> int:
    """Return a number of bytes. GB is decimal; GiB and a bare G are binary."""
    match = PATTERN.fullmatch(size.strip()) if isinstance(size, str) else None
    if match:
        number, prefix, unit = match[1], (match[2] or "").lower(), (match[3] or "").lower()
        base = 1000 if unit == "b" else 1024
        size = round(Fraction(number) * base ** POWERS[prefix])
    is_size = is_int(size) and is_number(int(size)) and int(size) >= 1
    check(is_size, "memory must be a size such as 4GiB, 4GB, 512M or a number of bytes", size)
    return int(size)


def format_bytes(size: int) -> str:
    """Return a size as text, such as `3.68 GiB`."""
    for prefix in ("T", "G", "M", "K"):
        unit: int = 1024 ** POWERS[prefix.lower()]
        if size >= unit:
            number = size / unit
            return f"{number:.3g} {prefix}iB" if number < 999.5 else f"{number:.0f} {prefix}iB"  # never 1e+03
    return f"{size} B"
