"""Finds the known name that a mistyped one was meant to be, for error messages."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the known name nearest to ``word``; empty where none is near."""
    near = get_close_matches(word, [*known], n=1)
    return f"did you mean '{near[0]}'?" if near else ""


__all__ = ["did_you_mean"]
