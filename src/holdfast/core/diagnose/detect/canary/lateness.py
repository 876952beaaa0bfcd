"""Adds up how late a replica's canaries are, until that is a sign.

    by the whole answer ─► slower than a neighbour explains, in doublings, 0.7 of one at most
    by its tokens ──────► slow all along (``pace``), or none in time: counts for 1
        └─► 2 in all, over three canaries in a row; or over two that were slow all along with little
            beside them, for 8 s, while a peer was in good time; on a slow host either for 16 s
                └─► CANARY_SLOW

Whether one canary is slow is the fleet's to say (``core.health.baseline``), and what is usual is
defined there too. Here slow ones add up by how slow they are: three that take four times as long
are a sign, five that take three times as long, and half the speed only after twenty minutes.
Neighbours on its host take half of a replica's speed for a while, and no more. What is usual is
learned where nothing ran beside. The whole of an answer beside users' requests says nothing, for
its first token may have waited for theirs, and the row goes on behind it; its tokens do, beside a
few users. Where those had a few hundred tokens at most, read and written, it is as if none were
there: an engine gives a part of every step to the prompts that it reads, and these are read soon.

A neighbour and a stall of its own together take as much as an illness does. Where the replicas on
one host, of whatever models, are slower than each was itself, its host is: what is usual is longer
there by as much, up to a neighbour's part, and a late answer that this explains is in good time. A
host that lost more than half of its speed is ill itself, and its replicas are told. Stalls last
longer on a slow host (``idle``), too.
"""

from collections import deque
from math import log2
from statistics import median
from typing import Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.canary_overtime import APART_S
from holdfast.core.diagnose.detect.canary.config import ProbingConfig
from holdfast.core.diagnose.detect.canary.idle import NEIGHBOUR, STALL_BESIDE, IdleCanaries
from holdfast.core.diagnose.detect.canary.pace import AnswerPace
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import AttemptsSeen, CanaryAnswered
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, nanos

Found = tuple[Sign, str, dict[str, float]]  # a sign, its text for people, its numbers
_SLOW_MOST: Final = 0.7  # of one canary: a single stall, however long, is one
_STEADY_MOST: Final = 1.0  # of one that was late all along: no single stall explains it
_HOST_FACTOR: Final = 1.5  # × what its slow host explains: a replica up to it is not slow itself
_USERS_LATE: Final = 3.0  # times what is usual for their prompts; load alone makes two of it
_USERS_FRESH: Final = nanos(15.0)  # how long their waits count beside a canary
_LITTLE: Final = 256  # tokens that users read and wrote beside a canary: the work of seconds
_WORK_FACTOR: Final = 1.5  # × how long tokens may take beside more than that
_TOLD: Final = nanos(2.5)  # after this, what users had beside a canary's beginning has been told
_HELD: Final = nanos(8.0)  # from the first, or from late users, to the last: bursts are shorter
_LOOKS: Final = 32  # at users' work, of which there is one a second
_FEW: Final = 2  # users beside a canary: its tokens are slower, and not many times slower


class _Book:
    """How long one replica's canaries took so far."""

    __slots__ = (
        *("latest_at", "latest_s", "pace", "row", "row_from", "slow_at", "slow_from", "slow_sum"),
        *("steadies", "users_late_at", "users_late_from", "work"),
    )

    def __init__(self) -> None:
        self.latest_s = 0.0  # of its last right answer; 0 = nobody measured
        self.latest_at = 0
        self.pace = AnswerPace()  # of the tokens after the first
        self.row = 0  # slow ones in a row
        self.slow_at = self.slow_from = 0  # the last of the row, and the first
        self.row_from = 0  # when the first of the row was asked
        self.slow_sum = 0.0  # how much slower than usual they were, added up over the row
        self.steadies = 0  # of the row, those that were late all along
        # Users' first tokens were all late, from that look on, at that one last; 0: not so.
        self.users_late_from = self.users_late_at = 0
        # When, tokens that users got since the look before, and those of prompts that wait there.
        self.work: deque[tuple[int, int, int | None]] = deque(maxlen=_LOOKS)

    def lengthen(self, slowness: float, asked: int, now: int) -> None:
        """Add one to the row of slow ones, and how slow it was."""
        self.row += 1
        self.slow_at = now
        if self.row == 1:
            self.slow_from, self.row_from = now, asked
        self.slow_sum = max(0.0, self.slow_sum + slowness)

    def in_time(self) -> None:
        """End the row of slow ones."""
        self.row = self.steadies = 0
        self.slow_sum = 0.0


class CanaryLateness:
    """Judges how late canaries are, by each replica's own past, its peers and its host.

    Keeps a book for each replica until it is forgotten.
    """

    def __init__(self, config: ProbingConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._fresh = nanos(config.fresh_s)
        self._slow = nanos(config.slow_s)
        self._idle = IdleCanaries(census, self._fresh)
        self._books: dict[str, _Book] = {}

    def forget(self, replica: str) -> None:
        """Drop what is known of a replica: it left, or its process ended."""
        self._books.pop(replica, None)
        self._idle.forget(replica)

    # --- what is told -----------------------------------------------------------------------------

    def users_seen(self, fact: AttemptsSeen, now: int) -> None:
        """Note what users' requests there read and wrote, and whether all of them wait for long."""
        book = self._books.get(fact.replica)
        if book is None:
            return
        book.work.append((now, fact.tokens, fact.prompts))
        if not fact.waits:
            return
        if min(fact.waits) < _USERS_LATE:
            book.users_late_from = book.users_late_at = 0
            return
        if now - book.users_late_at > _USERS_FRESH:  # the first, or those before were long ago
            book.users_late_from = now
        book.users_late_at = now

    def right(self, fact: CanaryAnswered, now: int) -> Found | None:
        """Take a right answer, in good time or late; return a sign if it is one too many."""
        book = self._book(fact.replica)
        book.latest_s, book.latest_at = fact.latency_s or 0.0, now
        late = self.late_all_along(fact, now)
        passed = fact.verdict is CanaryVerdict.PASS
        self._idle.add(fact, now, usual=passed and not late)
        book.pace.add(fact, now, usual=passed and not late and not fact.running)
        if passed and not late:
            if not (fact.running and (self._slowness(fact, now) or 0.0) > 0):
                book.in_time()
            return None
        if not passed and self._as_its_host(fact, now):
            book.in_time()
            return None
        return self._add(book, fact, now, late=late)

    def unended(self, fact: CanaryAnswered, now: int) -> Found | None:
        """Take an answer that came steadily and was not complete in time, like a late one."""
        late = self.late_all_along(fact, now)
        return self._add(self._book(fact.replica), fact, now, late=late)

    def unbegun(self, fact: CanaryAnswered, now: int) -> None:
        """Take a canary whose answer did not begin in time, though its engine works on little else.

        It counts like one that was late all along. It names nobody, for one whose answers are lost
        begins none either: that takes one that has begun.
        """
        if (fact.running or 0) > _FEW or not self._little_beside(fact, now):
            return
        if (self._slowness(fact, now) or 0.0) >= _SLOW_MOST:
            book = self._book(fact.replica)
            book.lengthen(_STEADY_MOST, now - nanos(fact.latency_s or 0.0), now)
            book.steadies += 1

    # --- what is known ----------------------------------------------------------------------------

    def is_late(self, replica: str) -> bool:
        """Whether its last canaries were slow."""
        return self._book(replica).row > 0

    def usual_s(self, replica: str) -> float:
        """What its answers take (s), idle, or else as the last one came; 0: nobody measured."""
        usual_s = self._idle.usual_s(replica, 1)
        return self._book(replica).latest_s if usual_s is None else usual_s

    def late_all_along(self, fact: CanaryAnswered, now: int) -> bool:
        """Whether the tokens of a canary came many times slower than usual, every one of them.

        Beside more than a few users that says nothing; beside much work of theirs, they may take
        longer.
        """
        if (fact.running or 0) > _FEW:
            return False
        peers = [peer.pace for peer in self._peers(fact.replica)]
        explained = self._idle.host_slowness(fact.replica, now)
        if not self._little_beside(fact, now):
            explained *= _WORK_FACTOR
        pace = self._book(fact.replica).pace
        return pace.is_slow(fact, peers, now, fresh=self._fresh, explained=explained)

    def _little_beside(self, fact: CanaryAnswered, now: int) -> bool:
        """Whether users had nothing or little to read and write beside a canary; unknown is much.

        The look before it counts, too: what is told was up to a second ago. And of a short one it
        is not known yet.
        """
        if not fact.running:
            return True
        took = nanos(fact.latency_s or 0.0)
        if took < _TOLD:
            return False
        since = now - took - SECOND
        looks = [one for one in self._book(fact.replica).work if one[0] >= since]
        waiting = [prompts for _, _, prompts in looks if prompts is not None]
        if not looks or len(waiting) < len(looks):
            return False
        return sum(tokens for _, tokens, _ in looks) + max(waiting) <= _LITTLE

    def began_late(self, fact: CanaryAnswered) -> bool:
        """Whether its first piece took seconds longer than its whole answers usually take."""
        usual_s = self._idle.usual_s(fact.replica)
        if fact.latency_s is None or usual_s is None:
            return False
        first_s = fact.latency_s - (fact.moved_s or 0.0) - (fact.quiet_s or 0.0)
        return first_s >= usual_s + APART_S

    def users_wait(self, fact: CanaryAnswered, now: int) -> bool:
        """Whether users beside a canary waited many times too long for first tokens, too.

        With little to read: else their own prompts may be why.
        """
        late_at = self._book(fact.replica).users_late_at
        late = late_at > 0 and now - late_at <= _USERS_FRESH
        return late and self._little_beside(fact, now)

    def peer_answered(self, replica: str, now: int) -> bool:
        """Whether a peer answered a canary lately."""
        answered_at = (peer.latest_at for peer in self._peers(replica) if peer.latest_s)
        return any(now - at <= self._fresh for at in answered_at)

    # --- how late ---------------------------------------------------------------------------------

    def _add(self, book: _Book, fact: CanaryAnswered, now: int, *, late: bool) -> Found | None:
        """Add one slow canary, finished or not, to its row; return a sign if that is enough.

        ``late``: it was so all along.
        """
        slowness = self._slowness(fact, now)
        if late:
            slowness = _SLOW_MOST
            if self._little_beside(fact, now):
                slowness = _STEADY_MOST
                book.steadies += 1
        # Without anything to compare with, the word of whoever judged it counts.
        slowness = _SLOW_MOST if slowness is None else slowness
        book.lengthen(slowness, now - nanos(fact.latency_s or 0.0), now)
        enough = book.slow_sum >= self._config.slow_sum or now - book.slow_from >= self._slow
        began = book.row_from
        if self.users_wait(fact, now):
            began = min(began, book.users_late_from)
        if self._idle.host_slowness(fact.replica, now) > 1 and now - began < STALL_BESIDE:
            return None  # a single stall may be why, however many canaries met it
        steady = book.steadies >= self._config.steady_row and now - began >= _HELD
        steady = steady and self._peer_in_time(book, fact)
        if not enough or not (book.row >= self._config.slow_row or steady):
            return None
        if self._fleet_is_slow(fact.replica, now):
            return None
        return self._told(book, fact)

    def _told(self, book: _Book, fact: CanaryAnswered) -> Found:
        text = f"{book.row} canaries in a row took much longer than usual"
        numbers = {"canaries": float(book.row)}
        if fact.latency_s is not None:
            text += f", the last after {fact.latency_s:.1f} s"
            numbers["latency_s"] = float(fact.latency_s)
            usual_s = self._idle.usual_s(fact.replica, 1)
            if usual_s is not None:
                numbers["usual_s"] = usual_s
        return (Sign.CANARY_SLOW, text, numbers)

    def _slowness(self, fact: CanaryAnswered, now: int) -> float | None:
        """How slow a canary was, up to what one of them may count for; ``None`` = not known."""
        usual_s = self._usual_now(fact, now)
        if not fact.latency_s or usual_s is None:
            return None
        return min(_SLOW_MOST, _doublings(fact.latency_s, usual_s))

    def _usual_now(self, fact: CanaryAnswered, now: int) -> float | None:
        """What is usual now: its own past, or its peers' latest where those take longer."""
        own_s = self._idle.usual_s(fact.replica)
        if own_s and fact.latency_s and _doublings(fact.latency_s, own_s) > 0:
            own_s *= self._idle.host_slowness(fact.replica, now)
        theirs = [
            peer.latest_s
            for peer in self._peers(fact.replica)
            if peer.latest_s and now - peer.latest_at <= self._fresh
        ]
        known = ([] if own_s is None else [own_s]) + ([median(theirs)] if theirs else [])
        return max(known, default=None)

    def _peer_in_time(self, book: _Book, fact: CanaryAnswered) -> bool:
        """Whether a peer was asked and answered in good time since this row of slow ones began."""
        peers = self._peers(fact.replica)
        return any(peer.latest_at > book.slow_from and not peer.row for peer in peers)

    def _as_its_host(self, fact: CanaryAnswered, now: int) -> bool:
        """Whether its host is slow at present, and that explains how long a canary took."""
        usual_s = self._idle.usual_s(fact.replica)
        if not fact.latency_s or usual_s is None:
            return False
        slowness = self._idle.host_slowness(fact.replica, now)
        return slowness > 1 and fact.latency_s <= _HOST_FACTOR * slowness * usual_s

    def _fleet_is_slow(self, replica: str, now: int) -> bool:
        peers = self._peers(replica)
        slow = sum(peer.row > 0 and now - peer.slow_at <= self._fresh for peer in peers)
        return slow > 0 and 2 * (slow + 1) > len(peers) + 1

    def _book(self, replica: str) -> _Book:
        return self._books.setdefault(replica, _Book())

    def _peers(self, replica: str) -> list[_Book]:
        model = self._census.about(replica).model
        names = self._census.of_model(model)
        return [self._books[name] for name in names if name != replica and name in self._books]


def _doublings(took_s: float, usual_s: float) -> float:
    """How many times the usual time was doubled, less what a neighbour may do to anybody."""
    return log2(took_s / usual_s) - NEIGHBOUR


__all__ = ["CanaryLateness", "Found"]
