"""Parses amounts and times as Kubernetes writes them: ``250m``, ``16Gi``, ``2026-11-15T12:00:00Z``.

A value that cannot be parsed is None, which means unknown, never zero.
"""

import re
from datetime import UTC, datetime
from typing import Final

_QUANTITY: Final = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,2})|([KMGTPE]i)|([numkMGTPE]))?"
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def quantity(written: object) -> float | None:
    """Parse a number with a suffix that Kubernetes allows, such as ``250m`` or ``16Gi``."""
    if isinstance(written, int | float) and not isinstance(written, bool):
        return float(written)
    match = _QUANTITY.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        return None
    if match[3]:
        return float(match[1]) * float(1 << _BINARY[match[3]])
    # One conversion of the whole text: 100m is 0.1, not 100 × 0.001.
    power = match[2] or (f"e{_DECIMAL[match[4]]}" if match[4] else "")
    return float(match[1] + power)


def whole(written: object) -> int | None:
    """Parse a quantity as an integer, such as bytes."""
    value = quantity(written)
    return None if value is None else round(value)


def moment(written: object) -> float | None:
    """Parse a time stamp to seconds since 1970."""
    if not isinstance(written, str):
        return None
    try:
        # datetime keeps microseconds; a container's own stamps have nine digits.
        trimmed = re.sub(r"(\.\d{6})\d+", r"\1", written)
        read = datetime.fromisoformat(trimmed)
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


__all__ = ["moment", "quantity", "whole"]
