"""Amounts of memory as people write them: 4GiB, 4GB, 512M, or a number of bytes."""

from __future__ import annotations

import re
from fractions import Fraction

from condenset.errors import check, is_number, is_whole

POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
WRITTEN = re.compile(r"(\d{1,20}(?:\.\d{1,20})?) *(?:([kmgt])(i?b)?|b)?", re.IGNORECASE | re.ASCII)


def in_bytes(size: int | str) -> int:
    """The number of bytes; GB is decimal, GiB binary, and so is a bare G, as memory is sold and limits are set."""
    found = WRITTEN.fullmatch(size.strip()) if isinstance(size, str) else None
    if found:
        number, prefix, unit = found[1], (found[2] or "").lower(), (found[3] or "").lower()
        base = 1000 if unit == "b" else 1024
        size = round(Fraction(number) * base ** POWERS[prefix])
    fits = is_whole(size) and is_number(int(size)) and int(size) >= 1
    check(fits, "memory must be a size such as 4GiB, 4GB, 512M or a number of bytes", size)
    return int(size)


def shown(size: int) -> str:
    """`3.68 GiB`, for a person."""
    for prefix in ("T", "G", "M", "K"):
        unit: int = 1024 ** POWERS[prefix.lower()]
        if size >= unit:
            number = size / unit
            return f"{number:.3g} {prefix}iB" if number < 999.5 else f"{number:.0f} {prefix}iB"  # never 1e+03
    return f"{size} B"
