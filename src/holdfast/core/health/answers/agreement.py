"""Whether two canary answers count as the same, and by which rule to compare them.

Rejected: a hash of the answer. Greedy output is not bit-stable, and a hash cannot say how far two
answers lie apart. Rejected: edit distance over characters. It calls "147" and "148" nearly the
same.
"""

import re
from collections.abc import Mapping, Sequence
from math import hypot, isfinite
from typing import Final

from holdfast.core.canary import CanaryConfig, Rule, Said, Shape
from holdfast.core.types import Decision

_PREFIX_MIN: Final = 0.5  # of the longer answer's words: "147." for "147 coins.", no "The" for all

# A word is a run of letters and digits, with the sign of a number. Scripts that put no blanks
# between words (kana, ideographs) count by the character.
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_UNSPACED}]|(?:(?<!\w)-(?=\d))?[^\W{_UNSPACED}]+")
_DIGIT: Final = re.compile(r"\d")

NO_TEXT: Final = Decision(False, "one of the two holds no text")
_SAME_TEXT: Final = Decision(True, "the same text")


def usual_rule(config: CanaryConfig, said: Said, *, bit_stable: bool) -> Rule:
    """Return the ``Rule`` to compare by where the config names none, by question and answer.

    Text without ``expect`` is compared exactly where output is ``bit_stable``, else by similarity.
    """
    if said.check is not None:
        return Rule.CHECK
    if config.shape is Shape.EMBEDDING:
        return Rule.COSINE
    if config.shape is Shape.INFER:
        return Rule.TENSOR if said.tensors else Rule.EXACT
    if config.expect:
        return Rule.CONTAINS
    return Rule.EXACT if bit_stable else Rule.SIMILAR


def agree(rule: Rule, config: CanaryConfig, left: Said, right: Said) -> Decision:
    """Whether two answers count as the same by a rule, as a ``Decision`` with its reason.

    ``contains`` looks for right inside left; texts are compared without regard to white space.
    """
    if rule is Rule.COSINE:
        return _cosine(config.cosine_min, left.vector, right.vector)
    if rule is Rule.TENSOR:
        return _tensors(config.tolerance, dict(left.tensors), dict(right.tensors))
    if rule is Rule.CHECK:
        passed = left.check is True and right.check is True
        return Decision(passed, "both passed their check" if passed else "a check did not pass")
    if left.text is None or right.text is None:
        return NO_TEXT
    said, known = " ".join(left.text.split()), " ".join(right.text.split())
    if said == known:
        return _SAME_TEXT
    if rule is Rule.CONTAINS:
        found = bool(known) and known in said
        return Decision(found, f"the expected text is {'' if found else 'not '}in it")
    if rule is Rule.SIMILAR:
        return _similar(config.similarity, said, known)
    pairs = zip(said, known, strict=False)
    alike = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(said), len(known)))
    return Decision(False, f"the texts part after {alike} of {max(len(said), len(known))} letters")


def _similar(needed: float, said: str, known: str) -> Decision:
    left, right = words_of(said), words_of(known)
    if not left or not right:
        return Decision(False, "one of the two holds no word")
    most = max(len(left), len(right))
    if _one_begins_the_other(left, right) and min(len(left), len(right)) >= _PREFIX_MIN * most:
        return Decision(True, f"one is the beginning of the other, {most} words long")
    # A number is what was asked for: one digit off is wrong, however alike the rest. The last ones
    # may be missing where an answer was cut.
    numbers = [[word for word in words if _DIGIT.search(word)] for words in (left, right)]
    if not (_one_begins_the_other(*numbers) and bool(numbers[0]) == bool(numbers[1])):
        return Decision(False, "they name different numbers")
    common = _common_words(left, right)
    share = 2 * common / (len(left) + len(right))
    of = f"{common} words of {len(left)} and {len(right)} in common: {share:.2f}"
    return Decision(share >= needed, f"{of}, {needed:g} needed")


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words (runs of letters and digits), to compare texts by."""
    return _WORD.findall(text.casefold())


def _one_begins_the_other(left: Sequence[str], right: Sequence[str]) -> bool:
    shared = min(len(left), len(right))
    return left[:shared] == right[:shared]


def _common_words(left: Sequence[str], right: Sequence[str]) -> int:
    """The length of the longest common subsequence, a bit per word: long answers stay cheap."""
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(left)) - 1
    unmatched = full
    for word in right:
        hit = unmatched & places.get(word, 0)
        unmatched = ((unmatched + hit) | (unmatched - hit)) & full
    return len(left) - unmatched.bit_count()


def _cosine(needed: float, left: Sequence[float], right: Sequence[float]) -> Decision:
    if len(left) != len(right):
        return Decision(False, f"{len(left)} dimensions against {len(right)}")
    lengths = hypot(*left), hypot(*right)
    if not all(length > 0 and isfinite(length) for length in lengths):
        return Decision(False, "a vector without a direction")
    cosine = sum(a / lengths[0] * (b / lengths[1]) for a, b in zip(left, right, strict=True))
    # Equal vectors may miss 1 by rounding, which a bound of exactly 1 must forgive.
    near = cosine >= needed or left == right
    return Decision(near, f"cosine {cosine:.4f}, {needed:g} needed")


_Tensors = Mapping[str, Sequence[float]]


def _tensors(tolerance: float, left: _Tensors, right: _Tensors) -> Decision:
    if not left or left.keys() != right.keys():
        return Decision(False, "not the same tensors")
    for name, numbers in left.items():
        others = right[name]
        if len(numbers) != len(others):
            return Decision(False, f"{len(numbers)} numbers against {len(others)} in {name}")
        # Beside larger neighbours a number near zero is rounding noise; among its equals it is not.
        noise = min(1.0, max(map(abs, (*numbers, *others)), default=0.0))
        for at, (a, b) in enumerate(zip(numbers, others, strict=True)):
            apart = abs(a - b)
            if a != b and not (isfinite(apart) and apart <= tolerance * max(abs(a), abs(b), noise)):
                return Decision(False, f"number {at} of {name} is beyond the tolerance")
    return Decision(True, "every number is within the tolerance")


__all__ = ["NO_TEXT", "agree", "usual_rule", "words_of"]
