"""How many examples property tests draw: all of them, or a sample for the inner loop.

``make quick`` sets ``HOLDFAST_QUICK``: a twentieth of the examples, at least five, which finds what
is plainly broken within a minute. ``make test`` draws all of them.
"""

import os

QUICK = bool(os.environ.get("HOLDFAST_QUICK"))


def examples(full: int) -> int:
    """The number of examples to draw where ``full`` are drawn by ``make test``."""
    return max(5, full // 20) if QUICK else full
