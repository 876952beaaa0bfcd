"""Judges a canary's answer: by the answer in the config, or by what replicas agree on.

Where the config names the answers, they decide. Else the book learns them: the first replica's
answer is provisional and admits that replica, a second replica with the same answer confirms it,
and from then on every other answer is wrong. Two that disagree before anything is confirmed prove
only that one of them is wrong: the second waits, neither is condemned, and the next replica's
answer settles it.

    nothing ──first answer──► provisional ──another replica agrees──► confirmed, for good
                                  │ another disagrees: unsettled, its voice is kept
                                  └──a third agrees with either──► confirmed, for good

A confirmed answer is never voted away: weights do not change within a revision, replicas that rot
together do. Only another revision, engine, precision or question begins anew.

Rejected: waiting for two replicas before the first is admitted. A cold fleet, or a fleet of one,
would wait for ever; a provisional answer still shows when the replica changes its mind. Rejected:
a hash of the answer. Greedy output is not bit-stable, and a hash cannot say how far two answers
lie apart. Rejected: edit distance over characters. It calls "147" and "148" nearly the same.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, isfinite
from typing import Any, Final

from holdfast.core.canary import AnswerKey, CanaryConfig, CanaryVerdict, Rule, Said, Shape
from holdfast.core.failure import Kind
from holdfast.core.health.degenerate import DegenerateConfig, DegenerateDetector, suspicious_opening
from holdfast.core.types import Decision, require

_VERSION: Final = 1  # of what ``export`` writes
_SIZE_MAX: Final = 65_536  # characters or numbers of an answer worth learning; canaries are short
_NOTE_MAX: Final = 200  # characters of a user's own reason
_PREFIX_MIN: Final = 0.5  # of the longer answer's words: "147." for "147 coins.", no "The" for all

# A word is a run of letters and digits, with the sign of a number. Scripts that put no blanks
# between words (kana, ideographs) count by the character.
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_UNSPACED}]|(?:(?<!\w)-(?=\d))?[^\W{_UNSPACED}]+")
_DIGIT: Final = re.compile(r"\d")

_NO_TEXT: Final = Decision(False, "one of the two holds no text")
_SAME_TEXT: Final = Decision(True, "the same text")


@dataclass(slots=True, frozen=True)
class Judgement:
    """The verdict on one canary answer with its reason, which quotes no word of the answer."""

    verdict: CanaryVerdict  # PASS, WRONG or UNSETTLED
    reason: str
    learned: bool = False  # the book changed: persist it
    flaw: Kind | None = None  # EMPTY or DEGENERATE, where it is no answer at all


# --- two answers ----------------------------------------------------------------------------------


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
        return _NO_TEXT
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


# --- what replicas of a revision answer -----------------------------------------------------------


@dataclass(slots=True)
class _Page:
    """What is known of one key."""

    question: str  # the name of what was asked
    confirmed: Said | None = None
    # Until then: who said what, the provisional answer first. Who takes that back has two lines.
    voices: list[tuple[str, Said]] = field(default_factory=list)


class AnswerBook:
    """Learns and keeps the right canary answer for each (model, revision, engine, precision).

    The first answer is provisional until another replica agrees. Bounded: the key that was judged
    longest ago goes first, and of the voices that disagree the oldest, never the provisional one.
    """

    __slots__ = ("_candidates_max", "_keys_max", "_pages")

    def __init__(self, *, keys_max: int = 1024, candidates_max: int = 16) -> None:
        fix = "use 1 or more"
        require(keys_max >= 1, "answers.keys_max", f"is {keys_max}", fix)
        fix = "use 2 or more: agreement takes two"
        require(candidates_max >= 2, "answers.candidates_max", f"is {candidates_max}", fix)
        self._keys_max = keys_max
        self._candidates_max = candidates_max
        self._pages: dict[AnswerKey, _Page] = {}  # the one judged last comes last

    def judge(
        self, key: AnswerKey, config: CanaryConfig, rule: Rule, replica_id: str, said: Said
    ) -> Judgement:
        """Return the ``Judgement`` of a canary's answer; learn from it while none is confirmed.

        With ``expect`` in the config, or a check, nothing is learned. Its verdict is PASS, WRONG,
        or UNSETTLED where replicas disagree and none is confirmed.
        """
        if rule is Rule.CHECK:
            return _checked(said)
        if config.expect:
            return _expected(config, rule, said)
        broken = _no_answer(rule, said)
        if broken:
            return Judgement(CanaryVerdict.WRONG, broken, flaw=_flaw_of(said))
        known = self._pages.get(key)
        confirmed = None
        if known is not None and known.question == config.question:
            self._pages[key] = self._pages.pop(key)  # to the end: it is in use
            confirmed = known.confirmed
        if confirmed is not None:
            found = agree(rule, config, said, confirmed)
            if found:
                return Judgement(
                    CanaryVerdict.PASS, f"as this revision is known to answer: {found.reason}"
                )
            return Judgement(
                CanaryVerdict.WRONG, f"not as this revision is known to answer: {found.reason}"
            )
        if _size(said) > _SIZE_MAX:
            reason = f"more than {_SIZE_MAX} characters or numbers: too long to learn, ask for less"
            return Judgement(CanaryVerdict.UNSETTLED, reason)
        bare = Said(text=said.text, vector=said.vector, tensors=said.tensors)
        return self._learn(self._open(key, config.question), config, rule, replica_id, bare)

    def known(self, key: AnswerKey) -> tuple[Said, ...]:
        """Return the learned answer for this key as a tuple of one ``Said``, or an empty tuple.

        It is the confirmed answer, else the provisional one; empty if nothing was learned.
        """
        page = self._pages.get(key)
        if page is None:
            return ()
        if page.confirmed is not None:
            return (page.confirmed,)
        return tuple(said for _, said in page.voices[:1])

    def is_confirmed(self, key: AnswerKey) -> bool:
        """Whether two replicas have agreed on the answer for this key."""
        page = self._pages.get(key)
        return page is not None and page.confirmed is not None

    def forget_replica(self, replica_id: str) -> bool:
        """Remove a replica's unconfirmed answers; ``True`` if the book changed and must be stored.

        If its answer was the provisional one, the next in line takes the place.
        """
        changed = False
        for key, page in list(self._pages.items()):
            kept = [line for line in page.voices if line[0] != replica_id]
            if len(kept) == len(page.voices):
                continue
            changed = True
            page.voices = kept
            if not kept:
                del self._pages[key]
        return changed

    def _open(self, key: AnswerKey, question: str) -> _Page:
        page = self._pages.get(key)
        if page is None or page.question != question:
            self._pages.pop(key, None)
            page = self._pages[key] = _Page(question)
            while len(self._pages) > self._keys_max:
                del self._pages[next(iter(self._pages))]
        return page

    def _learn(
        self, page: _Page, config: CanaryConfig, rule: Rule, replica_id: str, said: Said
    ) -> Judgement:
        lines = page.voices
        if not lines:
            page.voices = [(replica_id, said)]
            return Judgement(
                CanaryVerdict.PASS, "the first answer; no peer has confirmed it yet", True
            )
        for peer, answer in lines:
            if peer != replica_id and agree(rule, config, said, answer):
                page.confirmed, page.voices = answer, []
                return Judgement(
                    CanaryVerdict.PASS, f"confirmed: {peer} and {replica_id} agree", True
                )
        holder, provisional = lines[0]
        found = agree(rule, config, said, provisional)
        kept = [line for line in lines[1:] if line[0] != replica_id]
        if found:
            page.voices = [lines[0], *kept]
            taken_back = len(kept) + 1 < len(lines)
            return Judgement(
                CanaryVerdict.PASS, "as before; no peer has confirmed it yet", taken_back
            )
        own = next((answer for peer, answer in lines[1:] if peer == replica_id), None)
        changed = own is None or not agree(rule, config, said, own)
        if changed:
            room = self._candidates_max - 2  # beside the provisional one and this one
            recent = kept[-room:] if room else []
            page.voices = [lines[0], *recent, (replica_id, said)]
        whose = "its own earlier" if holder == replica_id else f"the unconfirmed {holder}'s"
        reason = f"not {whose} answer: {found.reason}; another replica must settle it"
        return Judgement(CanaryVerdict.UNSETTLED, reason, changed)

    # --- persistence ------------------------------------------------------------------------------

    def export(self) -> dict[str, object]:
        """Return the whole book as JSON-ready data, for ``restore``; writes nothing.

        It contains answers: store it, never log it.
        """
        return {
            "version": _VERSION,
            "pages": [
                {
                    "key": [key.model, key.revision, key.engine, key.precision],
                    "question": page.question,
                    "confirmed": None if page.confirmed is None else _plain(page.confirmed),
                    "voices": [[replica_id, _plain(said)] for replica_id, said in page.voices],
                }
                for key, page in self._pages.items()
            ],
        }

    @classmethod
    def restore(
        cls, data: object, *, keys_max: int = 1024, candidates_max: int = 16
    ) -> "AnswerBook":
        """Build a book from what ``export`` returned; anything else raises ``ValueError``."""
        book = cls(keys_max=keys_max, candidates_max=candidates_max)
        version, pages = _fields(data, "version", "pages")
        if version != _VERSION:
            raise ValueError(f"a book of answers of version {_VERSION} is needed")
        for entry in _list(pages)[-keys_max:]:
            names, question, confirmed, voices = _fields(
                entry, "key", "question", "confirmed", "voices"
            )
            key = AnswerKey(*(_text(name) for name in _list(names, 4)))
            if key in book._pages:
                raise ValueError("the book of answers holds a key twice")
            page = _Page(_text(question))
            lines = [(_text(who), _said(what)) for who, what in _pairs(voices)]
            if confirmed is not None:
                page.confirmed = _said(confirmed)
            else:
                page.voices = lines[:1] + lines[1:][-(candidates_max - 1) :]
            if (confirmed is None) != bool(lines):
                raise ValueError("the book of answers holds a page that is neither open nor closed")
            book._pages[key] = page
        return book


def _checked(said: Said) -> Judgement:
    note = " ".join(said.note.split())[:_NOTE_MAX]
    if said.check is None:
        return Judgement(CanaryVerdict.UNSETTLED, note or "the check said nothing")
    if said.check:
        return Judgement(CanaryVerdict.PASS, note or "the check passed")
    return Judgement(CanaryVerdict.WRONG, note or "the check did not pass")


def _expected(config: CanaryConfig, rule: Rule, said: Said) -> Judgement:
    found = _NO_TEXT
    for text in config.expect:
        found = agree(rule, config, said, Said(text=text))
        if found:
            return Judgement(CanaryVerdict.PASS, f"as the config expects: {found.reason}")
    count = len(config.expect)
    which = "the expected answer" if count == 1 else f"any of the {count} expected answers"
    return Judgement(CanaryVerdict.WRONG, f"not {which}: {found.reason}")


def _flaw_of(said: Said) -> Kind:
    """What kind of no answer it is."""
    empty = not (said.text or "").strip() and not said.vector and not said.tensors
    return Kind.EMPTY if empty else Kind.DEGENERATE


def _no_answer(rule: Rule, said: Said) -> str:
    """Why this is no answer at all, whatever the others say; empty if it may be one."""
    if rule is Rule.COSINE:
        length = hypot(*said.vector)
        return "" if length > 0 and isfinite(length) else "a vector without a direction"
    if rule is Rule.TENSOR:
        numbers = [number for _, values in said.tensors for number in values]
        if not numbers:
            return "no numbers"
        return "" if all(map(isfinite, numbers)) else "a number that is none: NaN or infinite"
    text = (said.text or "").strip()
    if not text:
        return "an empty answer"
    if suspicious_opening(text):
        return "one short token over and over; if that is right, name it in canary.expect"
    broken = DegenerateDetector(DegenerateConfig()).feed(text)
    return "" if broken is None else broken.reason


def _size(said: Said) -> int:
    return (
        len(said.text or "")
        + len(said.vector)
        + sum(len(name) + len(values) for name, values in said.tensors)
    )


# --- plain data, out and in -----------------------------------------------------------------------


def _plain(said: Said) -> dict[str, object]:
    return {
        "text": said.text,
        "vector": list(said.vector),
        "tensors": [[name, list(values)] for name, values in said.tensors],
    }


def _said(data: object) -> Said:
    text, vector, tensors = _fields(data, "text", "vector", "tensors")
    return Said(
        text=None if text is None else _text(text),
        vector=_numbers(vector),
        tensors=tuple((_text(name), _numbers(values)) for name, values in _pairs(tensors)),
    )


def _fields(data: object, *names: str) -> list[Any]:
    if not isinstance(data, dict) or data.keys() != set(names):
        raise ValueError(f"a book of answers needs a mapping of {', '.join(names)} here")
    return [data[name] for name in names]


def _list(data: object, length: int | None = None) -> list[Any]:
    if not isinstance(data, list) or (length is not None and len(data) != length):
        raise ValueError("a book of answers needs a list here, of the right length")
    return data


def _pairs(data: object) -> Iterator[list[Any]]:
    for pair in _list(data):
        yield _list(pair, 2)


def _text(data: object) -> str:
    if not isinstance(data, str):
        raise ValueError("a book of answers needs a text here")  # noqa: TRY004 - bad data, no bug
    return data


def _numbers(data: object) -> tuple[float, ...]:
    numbers = []
    for number in _list(data):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError("a book of answers needs numbers here")  # noqa: TRY004 - as above
        try:
            numbers.append(float(number))
        except OverflowError as error:
            raise ValueError("a book of answers holds a number that is too large") from error
    if not all(map(isfinite, numbers)):
        raise ValueError("a book of answers needs finite numbers here")
    return tuple(numbers)


__all__ = ["AnswerBook", "Judgement", "agree", "usual_rule", "words_of"]
