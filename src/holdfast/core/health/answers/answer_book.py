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

A text that parts from the known one where the model nearly tied between two tokens (``near_ties``)
counts as the same. Where those places are, the engine is asked once for each known text.

Rejected: waiting for two replicas before the first is admitted. A cold fleet, or a fleet of one,
would wait for ever; a provisional answer still shows when the replica changes its mind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, isfinite
from typing import Any, Final

from holdfast.core.canary import (
    AnswerKey,
    CanaryConfig,
    CanaryVerdict,
    NearTie,
    Rule,
    Said,
    TokenChoice,
)
from holdfast.core.failure import Kind
from holdfast.core.health.answers.agreement import NO_TEXT, agree
from holdfast.core.health.answers.degenerate import (
    DegenerateConfig,
    DegenerateDetector,
    suspicious_opening,
)
from holdfast.core.health.answers.near_ties import near_ties, parts_at_tie
from holdfast.core.types import Decision, require

_VERSION: Final = 2  # of what ``export`` writes
_VERSIONS: Final = (1, _VERSION)  # that are read; the first one knew no near ties
_CHOICE_TRIES: Final = 3  # to learn the near ties of a text, of each control's life
_SIZE_MAX: Final = 65_536  # characters or numbers of an answer worth learning; canaries are short
_NOTE_MAX: Final = 200  # characters of a user's own reason


@dataclass(slots=True, frozen=True)
class Judgement:
    """The verdict on one canary answer with its reason, which quotes no word of the answer."""

    verdict: CanaryVerdict  # PASS, WRONG or UNSETTLED
    reason: str
    learned: bool = False  # the book changed: persist it
    flaw: Kind | None = None  # EMPTY or DEGENERATE, where it is no answer at all


# --- what replicas of a revision answer -----------------------------------------------------------


@dataclass(slots=True)
class _Page:
    """What is known of one key."""

    question: str  # the name of what was asked
    confirmed: Said | None = None
    # Until then: who said what, the provisional answer first. Who takes that back has two lines.
    voices: list[tuple[str, Said]] = field(default_factory=list)
    choice_tries: int = 0  # how often the engine was asked for the near ties of the known text

    @property
    def known(self) -> Said | None:
        """The confirmed answer, else the provisional one."""
        if self.confirmed is not None:
            return self.confirmed
        return self.voices[0][1] if self.voices else None


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
            found = _as_known(rule, config, said, confirmed)
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
        known = None if page is None else page.known
        return () if known is None else (known,)

    def is_confirmed(self, key: AnswerKey) -> bool:
        """Whether two replicas have agreed on the answer for this key."""
        page = self._pages.get(key)
        return page is not None and page.confirmed is not None

    def wants_choices(self, key: AnswerKey, config: CanaryConfig) -> bool:
        """Whether the engine should be asked which tokens of the known answer are nearly tied.

        Three times at most for one text, as not every engine can tell; only texts have tokens.
        """
        page = self._pages.get(key)
        if page is None or page.question != config.question or page.choice_tries >= _CHOICE_TRIES:
            return False
        known = page.known
        return known is not None and known.text is not None and known.near_ties is None

    def take_choices(self, key: AnswerKey, choices: Sequence[TokenChoice]) -> bool:
        """Learn near ties from the tokens of an answer to the same question; none came: a try.

        Returns ``True`` if the book changed and must be stored.
        """
        page = self._pages.get(key)
        known = None if page is None else page.known
        if page is None or known is None or known.text is None:
            return False
        page.choice_tries += 1
        ties = near_ties(known.text, choices)
        if ties is None:
            return False
        told = replace(known, near_ties=ties)
        if page.confirmed is not None:
            page.confirmed = told
        else:
            page.voices[0] = (page.voices[0][0], told)
        return True

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
            if peer != replica_id and _as_known(rule, config, said, answer):
                page.confirmed, page.voices = answer, []
                return Judgement(
                    CanaryVerdict.PASS, f"confirmed: {peer} and {replica_id} agree", True
                )
        holder, provisional = lines[0]
        found = _as_known(rule, config, said, provisional)
        kept = [line for line in lines[1:] if line[0] != replica_id]
        if found:
            page.voices = [lines[0], *kept]
            taken_back = len(kept) + 1 < len(lines)
            return Judgement(
                CanaryVerdict.PASS,
                f"as before ({found.reason}); no peer has confirmed it yet",
                taken_back,
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
        if version not in _VERSIONS:
            raise ValueError(f"a book of answers of version {_VERSION} is needed")
        for entry in _list(pages)[-keys_max:]:
            names, question, confirmed, voices = _fields(
                entry, "key", "question", "confirmed", "voices"
            )
            key = AnswerKey(*(_text(name) for name in _list(names, 4)))
            if key in book._pages:
                raise ValueError("the book of answers holds a key twice")
            page = _Page(_text(question))
            lines = [(_text(who), _said(what, version)) for who, what in _pairs(voices)]
            if confirmed is not None:
                page.confirmed = _said(confirmed, version)
            else:
                page.voices = lines[:1] + lines[1:][-(candidates_max - 1) :]
            if (confirmed is None) != bool(lines):
                raise ValueError("the book of answers holds a page that is neither open nor closed")
            book._pages[key] = page
        return book


def _as_known(rule: Rule, config: CanaryConfig, said: Said, known: Said) -> Decision:
    """Whether an answer agrees with a known one, or parts from it at a near tie."""
    found = agree(rule, config, said, known)
    if found or said.text is None or known.text is None or not known.near_ties:
        return found
    at = parts_at_tie(known.near_ties, known.text, said.text)
    if at is None:
        return found
    return Decision(True, f"they part after {at} letters, where two tokens are nearly as likely")


def _checked(said: Said) -> Judgement:
    note = " ".join(said.note.split())[:_NOTE_MAX]
    if said.check is None:
        return Judgement(CanaryVerdict.UNSETTLED, note or "the check said nothing")
    if said.check:
        return Judgement(CanaryVerdict.PASS, note or "the check passed")
    return Judgement(CanaryVerdict.WRONG, note or "the check did not pass")


def _expected(config: CanaryConfig, rule: Rule, said: Said) -> Judgement:
    found = NO_TEXT
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
        "near_ties": None
        if said.near_ties is None
        else [[tie.at, list(tie.others)] for tie in said.near_ties],
    }


def _said(data: object, version: int) -> Said:
    names = ("text", "vector", "tensors")
    text, vector, tensors, *more = _fields(data, *names, *(("near_ties",) if version > 1 else ()))
    ties = more[0] if more else None
    return Said(
        text=None if text is None else _text(text),
        vector=_numbers(vector),
        tensors=tuple((_text(name), _numbers(values)) for name, values in _pairs(tensors)),
        near_ties=None if ties is None else tuple(_tie(pair) for pair in _pairs(ties)),
    )


def _tie(pair: list[Any]) -> NearTie:
    at, others = pair
    if type(at) is not int or at < 0:
        raise ValueError("a book of answers needs a count of letters here")
    return NearTie(at, tuple(_text(other) for other in _list(others)))


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


__all__ = ["AnswerBook", "Judgement"]
