"""Finds what a mistyped name was meant to be, for error messages."""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Final

LISTED_MAX: Final = 20  # names in one message; a fleet may have hundreds


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that names the known name nearest to ``word``; empty where none is near."""
    near = get_close_matches(word, [*known], n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def fix_of_name(name: str, known: Collection[str], kind: str) -> str:
    """What to do about an unknown id: the near one, or those that there are; ``kind`` in plural.

    Ids are often a word and a number. Only ids of the same numbers are near: which replica was
    meant by a wrong number nobody can guess, and the next order would go to another one.
    """
    numbers = _numbers(name)
    fix = did_you_mean(name, [one for one in known if _numbers(one) == numbers])
    if fix or not known:
        return fix or f"there are no {kind}"
    more = ", …" if len(known) > LISTED_MAX else ""
    return f"there are {', '.join([*known][:LISTED_MAX])}{more}"


def _numbers(name: str) -> list[str]:
    return [digits.lstrip("0") for digits in re.findall(r"\d+", name)]


__all__ = ["did_you_mean", "fix_of_name"]
