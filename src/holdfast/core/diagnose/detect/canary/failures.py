"""Detects failing canaries: wrong answers, no answer, errors, refusals and late answers.

    wrong ─► CANARY_WRONG, from the first on: no healthy replica gives one
    timeout, twice ─► its page is green, or it has none: CANARY_SILENT;
                      not even the page: NOTHING_ANSWERS; not even a connection: UNREACHABLE
    timeout, with pieces ─► seconds apart, and not once: SLOW_TOKENS; steadily: as slow
    fail, twice ─► CANARY_ERRORS    refused, twice ─► REFUSES    slow, and often ─► CANARY_SLOW
    busy, unknown, unsettled ─► nothing: a busy replica is alive, and a lost probe says nothing

A timeout while users' tokens move is a busy replica, whatever the canary got. While every canary of
a model fails, what they share is suspect: the checker where answers came, else whatever keeps all
of them silent. No replica is accused by canaries until one of them passes, or users' requests fail
as well; except of a closed port, which nothing shared closes. While a model has never answered, its
failed canaries prove nothing: its replicas are not started yet.

How late answers add up until they are a sign is ``lateness``.

The fleet counts rows of canaries too (``core.health.lifecycle.SignalRows``), by the same class and
another table. It asks whether a replica may serve: silence and errors are one row, of which users'
failures are part, and each state begins it anew. Here the question is how a replica fails: silence,
errors and refusals are rows of their own, which any answer ends, even a wrong one.

Rejected: a share of failed canaries over a window. Failures in a row are rarer by chance and come
to a verdict sooner; only wrong answers, which may come now and then, are counted over a window too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from holdfast.core.canary import CanarySuspect, CanaryVerdict
from holdfast.core.canary_overtime import BodyPieces, PieceFlow
from holdfast.core.diagnose.detect.canary.config import ProbingConfig
from holdfast.core.diagnose.detect.canary.lateness import CanaryLateness, Found
from holdfast.core.diagnose.detect.canary.steadiness import AnswerSteadiness
from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanariesDoubted,
    CanaryAnswered,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Kind
from holdfast.core.health.lifecycle import Signal
from holdfast.core.stats import RowCounts, RowRule
from holdfast.core.types import State, nanos

_DOUBTS_MAX: Final = 1_024  # models; the oldest doubt goes first
_MODELS_MAX: Final = 10_000  # that have answered; the oldest goes first
_PAUSES_MIN: Final = 2  # answers with one long pause that make a drip
_FLAWS: Final = {
    Kind.EMPTY.value: (Sign.EMPTY_ANSWERS, "a canary got an answer that is none: empty"),
    Kind.DEGENERATE.value: (Sign.DEGENERATE, "a canary got an answer that is none: degenerate"),
    Kind.CUT.value: (Sign.STREAMS_CUT, "a canary got an answer that ended without a finish reason"),
    Kind.RESET.value: (Sign.CONNECTIONS_LOST, "canaries lost their connection under the answer"),
}
_SECONDS_APART: Final = (PieceFlow.PAUSED, PieceFlow.APART)
_IN_PIECES: Final = (PieceFlow.STEADY, *_SECONDS_APART)
_CLEAR: Final = (*_IN_PIECES, PieceFlow.STOPPED)
_NO_END: Final = "canaries' answers begin and do not end, with a slot free"
_DRIPS: Final = (Sign.SLOW_TOKENS, "answers come in pieces seconds apart, with a slot free")
_UNENDED: Final = {  # what it is called, by how the pieces came of which the last were read
    PieceFlow.PAUSED: _DRIPS,
    PieceFlow.APART: _DRIPS,
    PieceFlow.STEADY: (
        Sign.CANARY_SLOW,
        "answers come and do not end in time, with a slot free",
    ),
}
_SOME: Final = 4  # users beside: one long prompt of theirs parts its pieces, and not twice in a row


_DOUBT_SIGNS: Final = {  # of a doubt that holds back what canaries say of single replicas
    CanarySuspect.CHECKER: Sign.CANARIES_DOUBTED,
    CanarySuspect.SHARED: Sign.CANARIES_UNANSWERED,
}


@dataclass(slots=True)
class _Doubt:
    """That the fleet doubts every canary of a model: who is suspected, since when, and why."""

    sign: Sign
    since: int
    detail: str
    pace: Pace = field(default_factory=Pace)


class _Row(StrEnum):
    ERRORS = "errors"
    REFUSALS = "refusals"
    SILENCES = "silences"
    UNCONNECTED = "unconnected"  # silences without even a connection


_UNHEARD: Final = (_Row.ERRORS, _Row.REFUSALS, _Row.SILENCES, _Row.UNCONNECTED)
_ROW_RULES: Final[dict[CanaryVerdict | Kind, RowRule[_Row]]] = {
    CanaryVerdict.PASS: RowRule((), _UNHEARD),
    CanaryVerdict.SLOW: RowRule((), _UNHEARD),  # their row: see ``lateness``
    CanaryVerdict.WRONG: RowRule((), _UNHEARD),
    CanaryVerdict.BUSY: RowRule((), _UNHEARD),
    CanaryVerdict.UNSETTLED: RowRule((), _UNHEARD),
    CanaryVerdict.FAIL: RowRule((_Row.ERRORS,), (_Row.SILENCES,)),
    CanaryVerdict.REFUSED: RowRule((_Row.REFUSALS,), (_Row.SILENCES,)),
    CanaryVerdict.TIMEOUT: RowRule((_Row.SILENCES,), (_Row.UNCONNECTED,)),
    Kind.CONNECT_TIMEOUT: RowRule((_Row.SILENCES, _Row.UNCONNECTED)),
}


class _Book:
    """What one replica's canaries got so far."""

    __slots__ = (*("aparts", "flow", "pace", "pages", "reading", "rows", "steadiness", "unended"),)

    def __init__(self, steadiness: AnswerSteadiness | None = None) -> None:
        self.steadiness = AnswerSteadiness() if steadiness is None else steadiness
        self.pace = Pace()
        self.pages: list[bool | None] = []  # of the timeouts in a row, the last ones
        self.rows: RowCounts[CanaryVerdict | Kind, _Row] = RowCounts(_ROW_RULES)
        self.flow = PieceFlow.NONE  # how pieces came of the last answers that were not complete
        self.reading = False  # its last canary is overdue, counted, and still read
        self.aparts = 0  # canaries in a row whose pieces came seconds apart
        self.unended = 0  # canaries in a row that got the beginning of an answer, and no end

    def count(self, outcome: CanaryVerdict | Kind) -> None:
        """Add one canary to the rows."""
        self.rows.count(outcome)
        if not self.rows[_Row.SILENCES]:
            self.pages.clear()

    def answered(self, verdict: CanaryVerdict) -> None:
        """Add one canary after which it is known that somebody is there and speaks."""
        self.count(verdict)
        for sign in (*_SILENCE, Sign.CANARY_ERRORS, Sign.REFUSES):
            self.pace.over(sign)


_SILENCE: Final = (Sign.CANARY_SILENT, Sign.NOTHING_ANSWERS, Sign.UNREACHABLE)


class ProbingDetector:
    """Finds replicas whose canaries are wrong, and those that repeatedly fail or are slow.

    Keeps rows of results per replica. While all canaries of a model are doubted, it reports one
    sign about the model instead, except for refused connections.
    """

    reads: ClassVar[tuple[type, ...]] = (
        *(AttemptsSeen, CanaryAnswered, CanariesDoubted, ProcessEnded, StateChanged),
    )

    def __init__(self, config: ProbingConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._lateness = CanaryLateness(config, census)
        self._books: dict[str, _Book] = {}
        self._settled = nanos(config.doubt_s)
        self._doubts: dict[str, _Doubt] = {}  # by model; until one of its replicas passes
        self._speak: dict[str, None] = {}  # models of which some replica has answered, ever

    def take(
        self,
        fact: AttemptsSeen | CanaryAnswered | CanariesDoubted | ProcessEnded | StateChanged,
        now: int,
    ) -> Sequence[Evidence]:
        """Take a canary, a doubt about all of a model's, users' waits, an end, a state.

        Returns evidence. One wrong answer is a sign at once; most others take two or more in a row.
        An end of its process drops the counts of a replica.
        """
        if isinstance(fact, AttemptsSeen):
            self._lateness.users_seen(fact, now)
            return NOTHING
        if isinstance(fact, CanariesDoubted):
            return self._doubted(fact, now) if fact.model in self._speak else NOTHING
        if isinstance(fact, StateChanged):
            return self._changed(fact, now)
        if isinstance(fact, ProcessEnded):
            self._renew(fact.replica)
            return NOTHING
        if fact.verdict.answered:
            self._speaks(fact.replica)
        book = self._books.get(fact.replica)
        if book is None:
            book = self._books[fact.replica] = _Book()
        found = self._weigh(book, fact, now)
        if not found:
            return NOTHING
        about = self._census.about(fact.replica)
        if about.model in self._doubts and fact.verdict is not CanaryVerdict.REFUSED:
            return self._say_doubt(about.model, now)
        sign, text, numbers = found
        # The second wrong answer confirms the first and is told at once.
        key = (sign, min(numbers["wrong"], 2)) if sign is Sign.CANARY_WRONG else sign
        told = []
        if book.pace.due(key, now):
            told.append(Evidence(sign, about, now, "canary", text, numbers))
        flawed, text = _FLAWS.get(fact.flaw, (None, ""))
        if "fast" in numbers:
            flawed, text = Sign.FAST_ERRORS, "its canaries get errors faster than any answer comes"
        if flawed is not None and book.pace.due(flawed, now):
            told.append(Evidence(flawed, about, now, "canary", text))
        return told

    def _changed(self, fact: StateChanged, now: int) -> Sequence[Evidence]:
        """Note who has answered; tell of a replica where the fleet found that no answer ends."""
        if fact.state is State.READY:
            self._speaks(fact.replica)
        if fact.signal != Signal.UNENDED:
            return NOTHING
        book = self._books.setdefault(fact.replica, _Book())
        sign, text = _UNENDED.get(book.flow, (Sign.STALLED, _NO_END))
        if not book.pace.due(sign, now):
            return NOTHING
        return (Evidence(sign, self._census.about(fact.replica), now, "canary", text),)

    def _speaks(self, replica: str) -> None:
        model = self._census.about(replica).model
        if model not in self._speak:
            self._speak[model] = None
            if len(self._speak) > _MODELS_MAX:
                del self._speak[next(iter(self._speak))]

    def _renew(self, replica: str) -> None:
        """Drop what a process answered: it says nothing of the next one, only of their model."""
        book = self._books.get(replica)
        if book is not None:
            book.steadiness.begin_process()
            self._books[replica] = _Book(book.steadiness)
        self._lateness.forget(replica)

    def forget(self, replica: str) -> None:
        """Drop the canary counts of a replica; doubts about its model stay."""
        self._books.pop(replica, None)
        self._lateness.forget(replica)

    def _weigh(self, book: _Book, fact: CanaryAnswered, now: int) -> Found | None:
        verdict = fact.verdict
        counted, book.reading = book.reading, fact.reads_on
        if verdict not in (CanaryVerdict.TIMEOUT, CanaryVerdict.UNKNOWN):
            book.unended = book.aparts = 0
            book.flow = PieceFlow.NONE
        if verdict is CanaryVerdict.WRONG:
            return self._add_wrong(book, fact.replica, now)
        if verdict.right:
            return self._right(book, fact, now)
        if verdict in (CanaryVerdict.BUSY, CanaryVerdict.UNSETTLED):
            book.answered(verdict)
        elif verdict is CanaryVerdict.TIMEOUT:
            return self._silent(book, fact, now, counted=counted)
        elif verdict is CanaryVerdict.FAIL:
            book.count(verdict)
            errors = book.rows[_Row.ERRORS]
            if errors >= self._config.errors_row:
                text = f"{errors} canaries in a row got no answer but an error"
                if fact.status is not None:
                    text += f", the last with status {fact.status}"
                numbers = {"canaries": float(errors)}
                if self._is_fast(fact):
                    numbers["fast"] = 1.0
                return (Sign.CANARY_ERRORS, text, numbers)
        elif verdict is CanaryVerdict.REFUSED:
            book.count(verdict)
            refusals = book.rows[_Row.REFUSALS]
            if refusals >= self._config.refused_row:
                text = f"{refusals} canaries in a row were refused: nobody listens"
                return (Sign.REFUSES, text, {"canaries": float(refusals)})
        return None

    def _is_fast(self, fact: CanaryAnswered) -> bool:
        """Whether a server error came in less than a tenth of the time its answers take."""
        if not fact.latency_s or (fact.status or 0) < 500:
            return False
        return fact.latency_s < self._lateness.usual_s(fact.replica) / 10

    def _right(self, book: _Book, fact: CanaryAnswered, now: int) -> Found | None:
        book.answered(fact.verdict)
        book.steadiness.add(now, wrong=False)
        model = self._census.about(fact.replica).model
        self._doubts.pop(model, None)  # the expected answer can be given
        found = self._lateness.right(fact, now)
        if not self._lateness.is_late(fact.replica):
            book.pace.over(Sign.CANARY_SLOW)
        return found

    def _pieces(self, book: _Book, fact: CanaryAnswered, now: int) -> Found | None:
        """Judge a canary that got pieces and no end: seconds apart it drips, steadily it is slow.

        A single user beside it does not make a replica's tokens seconds apart; several may.
        """
        moved = fact.moved_s or 0.0
        if book.flow is PieceFlow.STEADY:
            book.answered(CanaryVerdict.SLOW)
            return self._lateness.unended(fact, now)
        # One pause may be the host's, and everybody's: not twice in a row, and not where the first
        # piece was seconds late as well.
        once = book.flow is PieceFlow.PAUSED and book.aparts < _PAUSES_MIN
        if once and not self._lateness.began_late(fact):
            return None
        text = f"a canary's answer came piece by piece for {moved:.1f} s and did not end"
        return (Sign.SLOW_TOKENS, text, {"moved_s": moved})

    def _tells(self, book: _Book, fact: CanaryAnswered, flow: PieceFlow, now: int) -> bool:
        """Whether an answer in pieces says something of a replica that serves others meanwhile."""
        beside = fact.running or 0
        if flow is PieceFlow.STEADY:
            return self._lateness.late_all_along(fact, now)
        late = self._lateness.began_late(fact) and self._lateness.users_wait(fact, now)
        twice = book.aparts > 1 or late or flow is PieceFlow.APART
        heard = self._lateness.peer_answered(fact.replica, now)
        return beside <= 1 or (beside <= _SOME and twice and heard)

    def _never_ends(self, book: _Book, replica: str, now: int) -> bool:
        """Whether its answers begin and do not end, while a peer's do."""
        unended = book.unended >= self._config.silent_row
        return unended and self._lateness.peer_answered(replica, now)

    def _silent(
        self, book: _Book, fact: CanaryAnswered, now: int, *, counted: bool
    ) -> Found | None:
        """Judge a canary that timed out; ``counted``: it did before, and was read on since."""
        beside = fact.running or 0
        alone = beside <= 1  # several users may make its tokens seconds apart
        flow = _came(fact).flow
        if flow in _CLEAR:
            book.flow = flow
        in_pieces = flow in _IN_PIECES
        if in_pieces or not (fact.began and alone):
            book.unended = 0
        elif not counted:
            book.unended += 1
        if flow in _SECONDS_APART:
            book.aparts += 1
        if in_pieces and fact.progress and self._tells(book, fact, flow, now):
            return self._pieces(book, fact, now)
        # Whether others are served is unknown, and there are others: it may be busy with them.
        may_be_busy = fact.progress is None and bool(fact.running)
        if (fact.progress or fact.reads_on) and self._never_ends(book, fact.replica, now):
            return (Sign.STALLED, _NO_END, {})
        if fact.reads_on:
            return None  # how it ends counts
        if fact.progress:
            book.answered(CanaryVerdict.BUSY)
            if not fact.began:
                self._lateness.unbegun(fact, now)
        if fact.progress or may_be_busy:
            return None
        if in_pieces:
            return self._pieces(book, fact, now)
        row = self._config.silent_row
        if fact.progress is None and fact.running is None:
            row += 1  # it might be busy with what nobody counts
        spoke = fact.status is not None  # its page did, with an error; the question got nothing
        last = book.pages = [*book.pages, spoke or fact.page_ok][-row:]
        unconnected = fact.flaw == Kind.CONNECT_TIMEOUT
        book.count(Kind.CONNECT_TIMEOUT if unconnected else fact.verdict)
        silences = book.rows[_Row.SILENCES]
        numbers = {"canaries": float(silences)}
        told = f"{silences} canaries in a row got no answer"
        if book.rows[_Row.UNCONNECTED] >= row:
            return (Sign.UNREACHABLE, f"{told}, and no connection was opened", numbers)
        if len(last) < row or len(set(last)) > 1:
            return None
        if last[-1] is False:
            return (Sign.NOTHING_ANSWERS, f"{told}, nor did its own page", numbers)
        if book.unended >= row:
            text = f"the answers of {silences} canaries in a row began and did not end"
            return (Sign.STALLED, text, numbers)
        if last[-1] is None:  # an engine without a page is no more silent by chance than others
            return (Sign.CANARY_SILENT, f"{told}; it has no page that could tell more", numbers)
        page = f"answered {fact.status}" if spoke else "was well"
        return (Sign.CANARY_SILENT, f"{told} while its own page {page}", numbers)

    def _peers(self, replica: str) -> list[_Book]:
        model = self._census.about(replica).model
        return [
            book
            for name in self._census.of_model(model)
            if name != replica and (book := self._books.get(name)) is not None
        ]

    def _add_wrong(self, book: _Book, replica: str, now: int) -> Found:
        book.answered(CanaryVerdict.WRONG)
        answers = book.steadiness
        answers.add(now, wrong=True)
        count = answers.wrong
        text = f"{count} of its last {len(answers)} canaries got another answer than expected"
        if self._peers_vary(replica, now):
            count = answers.wrong_row
            text += ", and so did its peers': this model may answer in more than one way"
        numbers = {"wrong": float(count), "canaries": float(len(answers))}
        return Sign.CANARY_WRONG, text, numbers

    def _peers_vary(self, replica: str, now: int) -> bool:
        """Whether its peers, too, answer wrong now and then, and right again.

        Then wrong answers count in a row alone: what half of a pool has is no one's own.
        """
        peers = [peer.steadiness for peer in self._peers(replica)]
        varying = sum(peer.varies(now) for peer in peers)
        return varying > 0 and 2 * varying >= sum(peer.is_known for peer in peers)

    def _doubted(self, fact: CanariesDoubted, now: int) -> Sequence[Evidence]:
        sign = _DOUBT_SIGNS.get(fact.suspect)
        if sign is None:  # the replicas themselves are suspected: canaries are believed
            self._doubts.pop(fact.model, None)
            return NOTHING
        known = self._doubts.get(fact.model)
        if known is None or known.sign is not sign:
            while len(self._doubts) >= _DOUBTS_MAX:
                self._doubts.pop(next(iter(self._doubts)))
            self._doubts[fact.model] = _Doubt(sign, now, fact.detail)
        return self._say_doubt(fact.model, now)

    def _say_doubt(self, model: str, now: int) -> Sequence[Evidence]:
        doubt = self._doubts[model]
        if now - doubt.since < self._settled or not doubt.pace.due(doubt.sign, now):
            return NOTHING
        text = doubt.detail or "every canary fails at once"
        return [Evidence(doubt.sign, About(model=model), now, "canary", text)]


def _came(fact: CanaryAnswered) -> BodyPieces:
    """The arrival times of the pieces of a canary's answer that missed its deadline."""
    moved_s = fact.moved_s or 0.0
    return BodyPieces(
        moved_s,
        fact.gap_s or 0.0,
        fact.quiet_s or 0.0,
        began=fact.began or moved_s > 0,
        next_gap_s=fact.next_gap_s or 0.0,
    )


__all__ = ["ProbingDetector"]
