"""Detects failures of users' requests on a replica: refusals, resets, timeouts, errors, nonsense.

    the last 10 s of one replica: three failures of a kind, and a fifth of all that ended
                                  or two of them, and nothing succeeded
    since it last mostly succeeded: three of a kind, and half of all that ended
    the last 2 s: five of a kind, which open a breaker, and a fifth of all that ended
        └─► a timeout, and most of its peers have it too? ── yes ─► the fleet is slow: nobody

One failure is chance and says nothing. A share alone would accuse a replica with one request that
failed, a number alone the one with the most traffic; together they accuse neither. Timeouts wait
two seconds for reports on the peers: in a fleet that gets slow as a whole, one replica is always
the first. And timeouts that come all at once are one pause, however many requests were in it: they
count when a canary gets no answer either, or when they come again. Missing reports do not count: a
replica that is asked once in ten seconds has none for a while. Beside as many answers that end well
they are load, and beside fewer, or a canary that was answered since, unless they go on for most of
the window. Timeouts while a long prompt is read do not count at all: everything else there waits.

Backpressure is no failure. It is a sign only where a replica says nothing else for the whole
window. Rejected: the breaker's own counts. A breaker has to be quick and may be wrong, evidence
has to be right.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    CanaryAnswered,
    LoadSeen,
    Looked,
    ProcessEnded,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.engine_work import EnginePage, PromptReading
from holdfast.core.failure import MEANINGS, Kind, Outcome
from holdfast.core.types import SECOND, nanos, require, seconds

_REPORTS_MAX: Final = 256  # of one replica in a window; the oldest goes first

SIGNS: Final[Mapping[Kind, tuple[Sign, str]]] = {
    Kind.REFUSED: (Sign.REFUSES, "were refused: nobody listens"),
    Kind.CONNECT_TIMEOUT: (Sign.UNREACHABLE, "could not connect in time"),
    Kind.RESET: (Sign.CONNECTIONS_LOST, "lost their connection under the answer"),
    Kind.EXITED: (Sign.CONNECTIONS_LOST, "lost their connection under the answer"),
    Kind.CUT: (Sign.STREAMS_CUT, "ended without a finish reason"),
    Kind.FIRST_TOKEN_TIMEOUT: (Sign.NO_FIRST_TOKEN, "got no first token in time"),
    Kind.BETWEEN_TOKENS_TIMEOUT: (Sign.NO_NEXT_TOKEN, "began and got no further token in time"),
    Kind.SERVER_ERROR: (Sign.ERRORS, "got a server error"),
    Kind.OUT_OF_MEMORY: (Sign.ERRORS, "got a server error"),
    Kind.EMPTY: (Sign.EMPTY_ANSWERS, "got an empty answer"),
    Kind.MALFORMED: (Sign.MALFORMED, "got bytes that are not the protocol"),
    Kind.DEGENERATE: (Sign.DEGENERATE, "got one token over and over"),
}
_WHAT: Final = dict(SIGNS.values())
_PAUSES: Final = (Sign.NO_FIRST_TOKEN, Sign.NO_NEXT_TOKEN)  # all that runs there has them at once
_AT_ONCE: Final = 5 * SECOND // 2  # gateways tell once a second, each in its own
_TIMEOUTS: Final = (Sign.NO_FIRST_TOKEN, Sign.NO_NEXT_TOKEN, Sign.UNREACHABLE)

_LATELY: Final = 2 * SECOND  # a breaker takes a busy replica out within that
_ROW: Final = 5  # failures that open a breaker


@dataclass(slots=True, frozen=True)
class AttemptsConfig:
    """Settings of ``AttemptsDetector``: how many failures, in which time and share, are a sign.

    Checked when built: raises ``ConfigError``.
    """

    window_s: float = 10.0  # long enough for three requests, short enough to be news
    failures_min: int = 3  # of a kind: two at once come from one lost connection
    share_min: float = 0.2  # of what ended: ill replicas fail much, busy ones a little
    alone_min: int = 2  # where nothing succeeded: there is nothing to take a share of
    settle_s: float = 2.0  # timeouts wait for the peers' reports, which come every second
    pause_s: float = 3.0  # and for a word of whoever paused once: it goes on, or a canary finds out
    attract_factor: float = 1.2  # times its fair share; routing moves loads by less than that

    def __post_init__(self) -> None:
        window, settle = self.window_s, self.settle_s
        require(1 <= window <= 600, "attempts.window_s", f"is {window}", "use 1 to 600 seconds")
        fix = "use 0 or more seconds, less than the window"
        require(0 <= settle < window, "attempts.settle_s", f"is {settle}", fix)
        pause = self.pause_s
        require(0 <= pause < window, "attempts.pause_s", f"is {pause}", fix)
        share, factor = self.share_min, self.attract_factor
        require(0 < share <= 1, "attempts.share_min", f"is {share}", "use a share in (0, 1]")
        require(factor > 1, "attempts.attract_factor", f"is {factor}", "use a factor above 1")
        alone, least = self.alone_min, self.failures_min
        fix = "use 2 or more: one failure is chance"
        require(alone >= 2, "attempts.alone_min", f"is {alone}", fix)
        require(least >= alone, "attempts.failures_min", f"is {least}", "use alone_min or more")


class _Report:
    __slots__ = ("at", "backpressure", "fact", "failures", "fast")

    def __init__(self, fact: AttemptsSeen, at: int, *, reads: bool) -> None:
        self.at = at
        self.fact = fact
        self.failures: Counter[Sign] = Counter()
        self.backpressure = fact.backpressure + fact.failures.get(Kind.OVERLOADED, 0)
        for kind, count in fact.failures.items():
            # Kinds that are neutral say nothing about the replica: a client left, a hedge won.
            if kind in SIGNS and MEANINGS[kind].outcome is Outcome.FAILURE:
                sign = SIGNS[kind][0]
                if not (reads and sign in _PAUSES):
                    self.failures[sign] += count
        # Refusals are quick by nature; what attracts is a replica that answers, and wrongly.
        self.fast = min(fact.fast, self.failures[Sign.ERRORS])


class _Total:
    """All reports of a window, added up."""

    __slots__ = ("backpressure", "ended", "failures", "fast", "inflight", "share", "successes")

    def __init__(self, reports: Sequence[_Report]) -> None:
        self.failures: Counter[Sign] = Counter()
        self.successes = self.backpressure = self.fast = 0
        weighed = weight = 0.0
        for report in reports:
            fact = report.fact
            self.successes += fact.successes
            self.backpressure += report.backpressure
            self.fast += report.fast
            self.failures.update(report.failures)
            if fact.share is not None:
                attempts = fact.successes + report.backpressure + report.failures.total()
                weighed += fact.share * attempts
                weight += attempts
        self.share = weighed / weight if weight else None
        self.inflight = reports[-1].fact.inflight if reports else 0
        self.ended = self.successes + self.backpressure + self.failures.total()


class _Book:
    __slots__ = (
        *("answered_at", "held_up", "missed_at", "moved_at", "pace", "prompts", "pushed_back"),
        *("reads", "reports", "since"),
    )

    def __init__(self, now: int) -> None:
        self.reports: deque[_Report] = deque(maxlen=_REPORTS_MAX)
        self.since: dict[Sign, int] = {}  # when each sign that now shows began to
        self.answered_at: int | None = None  # its last canary that was answered right
        self.missed_at: int | None = None  # its last canary that was not answered at all
        self.held_up = False  # users' tokens moved while that waited
        self.pushed_back: int | None = None  # since when it says nothing but "busy"
        self.moved_at = now  # users last got anything from it
        self.prompts = PromptReading()
        self.reads = False  # a long prompt, when it was last reported on
        self.pace = Pace()

    def take(self, fact: AttemptsSeen, now: int) -> _Report:
        """Keep a report; timeouts while a long prompt is read, or was just now, are left out."""
        if fact.tokens or fact.successes:
            self.moved_at = now
        still = now - self.moved_at
        explained = None if fact.explained_s is None else nanos(fact.explained_s)
        self.prompts.told("", fact.unread, explained, still)
        before, self.reads = self.reads, self.prompts.explains(still)
        report = _Report(fact, now, reads=before or self.reads)
        self.reports.append(report)
        return report


class AttemptsDetector:
    """Finds failing replicas in gateways' reports on users' requests, over the last ten seconds.

    Keeps a window of reports per replica. One replica may show several signs: refusals, resets,
    timeouts, errors, empty answers, and backpressure if it says nothing else. Timeouts that most
    peers have too accuse nobody.
    """

    reads: ClassVar[tuple[type, ...]] = (
        *(AttemptsSeen, CanaryAnswered, LoadSeen, ProcessEnded, Looked),
    )

    def __init__(self, config: AttemptsConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._window = nanos(config.window_s)
        self._settle = nanos(config.settle_s)
        self._pause = nanos(config.pause_s)
        self._goes_on = round(0.7 * self._window)  # timeouts beside successes must last so long
        self._books: dict[str, _Book] = {}
        self._open: dict[str, None] = {}  # replicas with a sign that shows, in order

    def take(
        self, fact: AttemptsSeen | CanaryAnswered | LoadSeen | ProcessEnded | Looked, now: int
    ) -> Sequence[Evidence]:
        """Take a report on a replica's requests, a canary, an end or a tick; return due evidence.

        Canaries and an engine's load alone show nothing here. Signs that hold are repeated every
        30 s, also at ticks; an end of the process drops the replica's window.
        """
        if isinstance(fact, Looked):
            found: list[Evidence] = []
            for replica in tuple(self._open):
                found += self._judge(replica, self._books[replica], now)
            return found
        if isinstance(fact, ProcessEnded):
            self.forget(fact.replica)  # what was refused to the dead says nothing of the next life
            return NOTHING
        book = self._books.get(fact.replica)
        if isinstance(fact, CanaryAnswered):
            if book is not None and fact.verdict.right:
                book.answered_at = now
            elif book is not None and fact.verdict.failed:
                book.missed_at, book.held_up = now, bool(fact.progress)
            return NOTHING
        if isinstance(fact, LoadSeen):
            if book is not None:
                told = (fact.running, fact.kv_used, fact.generated, fact.steps)
                book.prompts.look(EnginePage(*told), now)
            return NOTHING
        if book is None:
            book = self._books[fact.replica] = _Book(now)
        if book.reports:
            now = max(now, book.reports[-1].at)  # a clock that steps back: no time has passed
        report = book.take(fact, now)
        if fact.successes:
            book.pushed_back = None
        elif report.backpressure and book.pushed_back is None:
            book.pushed_back = now
        if not (report.failures or report.backpressure or book.since):
            return NOTHING
        return self._judge(fact.replica, book, now)

    def forget(self, replica: str) -> None:
        """Drop the reports and open signs of a replica; an end of its process does the same."""
        self._books.pop(replica, None)
        self._open.pop(replica, None)

    def _total(self, book: _Book, now: int) -> _Total:
        while book.reports and now - book.reports[0].at >= self._window:
            book.reports.popleft()
        return _Total(book.reports)

    def _judge(self, replica: str, book: _Book, now: int) -> Sequence[Evidence]:
        total = self._total(book, now)
        # A busy replica is taken out after a few failures, which its successes of a moment ago
        # would outnumber for the whole window: what it did since they ended counts by itself.
        lately = [report for report in book.reports if now - report.at <= _LATELY]
        showing = {
            **self._showing(book, _Total(lately), now, share=self._config.share_min, least=_ROW),
            **self._showing(book, _Total(_row(book.reports)), now, share=0.5),
            **self._showing(book, total, now, share=self._config.share_min),
        }
        for sign in tuple(book.since):
            if sign not in showing:
                del book.since[sign]
                book.pace.over(sign)
        found: list[Evidence] = []
        for sign, (text, numbers) in showing.items():
            began = book.since.setdefault(sign, now)
            if sign in _TIMEOUTS and (
                now - began < self._settle
                or (sign in _PAUSES and self._one_pause(book, sign, now))
                or self._fleet_has(sign, replica, now)
            ):
                continue
            if book.pace.due(sign, now):
                about = self._census.about(replica)
                found.append(Evidence(sign, about, now, "gateway", text, numbers))
        if Sign.FAST_ERRORS in showing:
            found += self._attracts(replica, book, total, now)
        if book.since:
            self._open[replica] = None
        else:
            self._open.pop(replica, None)
        return found

    def _showing(
        self, book: _Book, total: _Total, now: int, *, share: float, least: int = 0
    ) -> dict[Sign, tuple[str, dict[str, float]]]:
        showing = {}
        for sign, count in total.failures.items():
            if count >= least and self._enough(count, total, share):
                showing[sign] = self._told(count, total, _WHAT[sign])
        if Sign.ERRORS in showing and 2 * total.fast >= total.failures[Sign.ERRORS]:
            what = "got a server error faster than any real answer comes"
            showing[Sign.FAST_ERRORS] = self._told(total.fast, total, what)
        if (
            total.successes == 0
            and total.backpressure >= self._config.failures_min
            and book.pushed_back is not None
            and now - book.pushed_back >= self._window - SECOND
        ):
            what = "were turned away as too many, and none was served"
            showing[Sign.BACKPRESSURE] = self._told(total.backpressure, total, what)
        return showing

    def _enough(self, count: int, total: _Total, share: float) -> bool:
        config = self._config
        if count >= config.failures_min and count >= share * total.ended:
            return True
        alone = total.successes == 0 and share == config.share_min  # in the whole window
        return alone and count >= config.alone_min and 2 * count >= total.ended

    def _told(self, count: int, total: _Total, what: str) -> tuple[str, dict[str, float]]:
        window = f"the last {seconds(self._window):.0f} s"
        text = f"{count} of {total.ended} requests of {window} {what}"
        return text, {"count": float(count), "ended": float(total.ended)}

    def _one_pause(self, book: _Book, sign: Sign, now: int) -> bool:
        """Whether it stood still once and went on, or may yet; or is just busy with others."""
        times = [report.at for report in book.reports if report.failures[sign]]
        first, last = times[0], times[-1]
        answered = book.answered_at if book.answered_at is not None else first
        since = [report for report in book.reports if report.at >= first]
        well = sum(report.fact.successes for report in since if report.at > first)
        serves = well > 0
        missed = book.missed_at is not None and book.missed_at > first - self._pause
        # Streams stop while a long prompt is read, and a canary waits behind it as long.
        missed = missed and not (sign is Sign.NO_NEXT_TOKEN and book.held_up)
        may_go_on = now - last < self._pause
        if last - first > _AT_ONCE:
            # Who never begins an answer does not begin a canary's either. Who begins one and stops
            # may end a canary's, but not behind the last of its timeouts, for long.
            begins = sign is Sign.NO_NEXT_TOKEN
            serves = serves or answered > (last if begins else first)
            busy = well >= sum(report.failures[sign] for report in since)
            twice = begins and len(times) == 2 and may_go_on and not missed  # pauses, so far
            return busy or twice or (serves and last - first < self._goes_on)
        tokens = any(report.at > last and report.fact.tokens for report in book.reports)
        return serves or tokens or answered > last or not missed or may_go_on

    # --- peers ---

    def _peers(self, replica: str, now: int) -> list[_Total]:
        """The windows of those of its model that had anything to do."""
        model = self._census.about(replica).model
        books = (self._books.get(name) for name in self._census.of_model(model) if name != replica)
        totals = [self._total(book, now) for book in books if book is not None]
        return [total for total in totals if total.ended or total.inflight]

    def _fleet_has(self, sign: Sign, replica: str, now: int) -> bool:
        """Whether most of the replicas, itself counted, show the same."""
        peers = self._peers(replica, now)
        # Requests that hang and none that ended are the same trouble, not yet timed out.
        alike = sum(
            bool(peer.failures[sign]) or (peer.inflight > 0 and not peer.ended) for peer in peers
        )
        return alike > 0 and 2 * (alike + 1) > len(peers) + 1

    def _attracts(self, replica: str, book: _Book, total: _Total, now: int) -> Sequence[Evidence]:
        others = len(self._peers(replica, now))
        if total.share is None or not others:
            return NOTHING
        fair = 1 / (others + 1)
        if total.share <= self._config.attract_factor * fair:
            return NOTHING
        if not book.pace.due(Sign.ATTRACTS, now):
            return NOTHING
        text = (
            f"it fails and gets {total.share:.0%} of its model's requests, where {fair:.0%} would "
            "be its share"
        )
        numbers = {"share": total.share, "fair_share": fair}
        about = self._census.about(replica)
        return [Evidence(Sign.ATTRACTS, about, now, "gateway", text, numbers)]


def _row(reports: deque[_Report]) -> list[_Report]:
    """The reports since its successes last outnumbered its failures."""
    row: list[_Report] = []
    for report in reversed(reports):
        if report.fact.successes > report.failures.total():
            break
        row.append(report)
    return row[::-1]


__all__ = ["SIGNS", "AttemptsConfig", "AttemptsDetector"]
