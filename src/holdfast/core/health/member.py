"""The record that control keeps of one replica: health, canaries, users' requests, drain."""

from collections import deque
from typing import Final

from holdfast.core.canary import CanaryConfig, CanaryVerdict
from holdfast.core.engine_work import PromptReading
from holdfast.core.failure import Kind
from holdfast.core.health.baseline import CanaryBudget, LatencyBaseline
from holdfast.core.health.drain import Drain
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.health.lifecycle import Signal
from holdfast.core.messages import CanaryResult, Tally
from holdfast.core.types import SECOND, Replica, State, nanos

_RIGHT: Final = (Signal.CANARY_PASS, Signal.CANARY_SLOW)
_STILLS_MAX: Final = 64  # times between signs of users' requests; one a second for a while
_STILLS_FOR: Final = 30 * SECOND
_QUEUE_FRESH: Final = 15 * SECOND  # pages are read once in 5 s at the least
_HEARD_APART: Final = SECOND // 4
_HEARD_MAX: Final = 32  # times it was heard of, so far apart: they reach back over a canary's wait
_LOST_APART: Final = 600 * SECOND  # between two connections that a network may lose
NEVER: Final = 1 << 62


class Member:
    """One replica as control's fleet keeps it: health, latency baseline, canary budget, drain.

    A record of what canaries and gateways reported; the fleet decides.
    """

    __slots__ = (
        "baseline",
        "budget",
        "busy_at",
        "called_back",
        "canary",
        "canary_asked_at",
        "canary_at",
        "canary_charged",
        "canary_error",
        "canary_extra",
        "canary_lost_at",
        "canary_out",
        "canary_passed",
        "canary_took",
        "canary_until",
        "canary_verdict",
        "canary_yields",
        "drain",
        "excused_at",
        "exits",
        "extra_at",
        "failed_at",
        "full_readings",
        "health",
        "heard",
        "inflight_at",
        "leaving",
        "may_try",
        "most_running",
        "move_told",
        "moved_at",
        "only_busy_since",
        "overdue_at",
        "peers_asked",
        "progress_at",
        "prompts",
        "replica",
        "served_at",
        "server",
        "silent_from",
        "slow",
        "stills",
        "tells_kv",
        "told_at",
        "unanswered",
        "waiting",
        "waiting_at",
        "wake_at",
    )

    def __init__(
        self, replica: Replica, health: ReplicaHealth, canary: CanaryConfig, server: str = ""
    ) -> None:
        self.replica = replica
        self.server = server or replica.id  # whose slots it shares with others that listen there
        self.health = health
        self.canary = canary
        self.budget = CanaryBudget(canary)
        self.leaving = False  # drained on request: it is not started again
        self.exits = 0  # in a row, without a long life between
        self.busy_at = 0
        self.canary_passed = True
        self.progress_at = 0  # some user last got anything from it, of whichever process
        self.begin_life()

    def begin_life(self) -> None:
        """Reset everything that was observed of the previous process of this replica."""
        self.drain: Drain | None = None
        self.move_told = False  # gateways were asked to move what is left; their next word decides
        self.inflight_at: dict[str, int] = {}  # as each gateway last said
        self.only_busy_since: int | None = None
        self.waiting: int | None = None  # requests in its engine's own queue; None: not known
        self.waiting_at = 0  # when it was told
        self.most_running = 0  # requests at once that its engine's page has shown
        self.unanswered = 0  # canaries in a row that got nothing within their time
        self.stills: deque[tuple[int, int]] = deque(maxlen=_STILLS_MAX)  # when it ended; how long
        self.overdue_at = 0  # when a gateway last said that a request there is overdue
        self.silent_from = 0  # since when no canary and no user got anything there; 0: they do
        self.canary_out = False
        self.canary_asked_at = self.canary_until = 0  # the one under way, or the last
        self.canary_charged = False  # the one under way, or the last: it spends what was earned
        self.canary_extra = False  # the one under way, or the last: between two that are due
        self.extra_at = NEVER  # an extra one may be asked from then on
        self.may_try = True  # a breaker's trial there may be a user's request
        self.called_back = False  # the last canary: users needed its slot
        self.canary_yields = False  # the one under way, or the last: to a user who needs its slot
        self.canary_at = 0
        self.canary_verdict: CanaryVerdict | None = None  # of the latest that says anything of it
        self.canary_error = False  # the engine said that it fails (5xx)
        self.canary_took = 0  # until the latest was right; 0: it was not, or it is not known
        self.canary_lost_at: int | None = None  # when a canary's connection last was reset
        self.peers_asked = False  # the one under way is late, and peers were asked meanwhile
        self.heard: deque[int] = deque(maxlen=_HEARD_MAX)  # it answered a canary or a user
        self.wake_at = 0  # no earlier tick has anything to do here
        self.baseline = LatencyBaseline(self.canary)
        self.slow = False  # its latest canary was right, and late
        self.moved_at = 0  # users last got tokens from it, or began to wait for some
        self.told_at: dict[str, int] = {}  # when each gateway last said anything of it
        self.served_at = self.failed_at = 0  # users were last answered there, or failed
        self.prompts = PromptReading()
        self.full_readings = 0  # in a row, of memory without room
        self.tells_kv = False  # its engine has told how full its cache is
        self.excused_at = 0  # its quarantine had an excuse: work that makes room, or a stop

    def call_back_canary(self) -> bool:
        """Whether the canary under way gives way to users who need its slot.

        If so it counts as ended; the caller must cancel it.
        """
        if not (self.canary_out and self.canary_yields and self.knows_its_slots):
            return False
        if self.has_free_slot or not self.inflight:
            return False
        self.canary_out = False
        self.called_back = self.called_back or not self.canary_extra
        return True

    def outdate_canary(self) -> bool:
        """Whether the canary under way cannot settle a doubt that comes now; if so it is ended.

        What users got since it was asked would excuse its silence, though they get nothing now. One
        that a doubt asked is left alone. The caller must cancel it, and ask anew.
        """
        excused = self.progress_at >= self.canary_asked_at + SECOND  # as ``users_beside`` reads it
        if not (self.canary_out and self.canary_yields and excused):
            return False
        self.canary_out, self.called_back = False, True
        return True

    def canary_ended(self, result: CanaryResult, signal: Signal, now: int) -> None:
        """Record a conclusive canary: when it ended, its verdict, whether it passed or was slow."""
        self.called_back = False
        self.canary_at = now
        self.canary_verdict = result.verdict
        failed = result.verdict is CanaryVerdict.FAIL
        self.canary_error = failed and (result.status or 0) >= 500
        self.canary_passed = signal in _RIGHT
        self.slow = signal is Signal.CANARY_SLOW
        self.canary_took = result.latency if self.canary_passed else 0

    def lost_on_the_way(self, result: CanaryResult, now: int) -> bool:
        """Note whether this canary's connection was reset; return whether to ask again instead.

        So it is where the replica is ready and lost none in the ten minutes before: networks lose
        a connection now and then, and that proves nothing of the replica.
        """
        if result.flaw is not Kind.RESET:
            return False
        before, self.canary_lost_at = self.canary_lost_at, now
        seldom = before is None or now - before >= _LOST_APART
        return seldom and self.health.state is State.READY

    def peers_due(self) -> int:
        """When (ns) to ask its peers, where the canary under way is not answered by then.

        After half of its time; where canaries are quick, later, so that what peers answer is a
        second old at its end: old enough to count, and later than what users last got.
        """
        half = (self.canary_asked_at + self.canary_until) // 2
        usual = self.baseline.median()
        if usual is None:
            return half
        return max(half, self.canary_until - SECOND - max(SECOND // 4, 2 * usual))

    def note_silence(self, result: CanaryResult, now: int) -> None:
        """Count canaries in a row that timed out, and note since when nothing moved there."""
        if not result.verdict.silent:
            self.unanswered = 0
        elif result.verdict is CanaryVerdict.TIMEOUT:
            self.unanswered += 1
        if result.progress:
            self.silent_from = 0
        elif result.verdict is CanaryVerdict.TIMEOUT:
            self.silent_from = self.silent_from or now - result.latency

    def hear(self, now: int) -> None:
        """Note that the replica answered a canary or a user, right or wrong."""
        self.silent_from = 0
        if not self.heard or now - self.heard[-1] >= _HEARD_APART:
            self.heard.append(now)

    def heard_by(self, now: int) -> int:
        """The last time up to ``now`` at which the replica answered anything; 0 = not lately."""
        return max((at for at in self.heard if at <= now), default=0)

    def users(self, gateway: str, told: Tally, now: int) -> None:
        """Record one gateway's tally of its users' requests on this replica.

        A reported failure makes the replica's canary due, as a breaker would wait for the fifth.
        """
        before = self.inflight
        if told.tokens or told.moved or not before:
            if before:
                self.stills.append((now, now - self.moved_at))
            self.moved_at = now
        self.progress_at = now if told.progressed else self.progress_at
        self.inflight_at[gateway] = told.inflight
        self._take_prompts(gateway, told, now)
        self.told_at[gateway] = now
        self.budget.served(told.tokens, now, earns=self.canary.billed or not self.has_free_slot)
        self.served_at = now if told.successes else self.served_at
        # Requests that fail everywhere are no replica's fault, but users did fail.
        self.failed_at = now if told.failures or told.withdrawn else self.failed_at
        if told.failures:
            self.call_canary(now)

    def _take_prompts(self, gateway: str, told: Tally, now: int) -> None:
        """Take a gateway's word on its long prompts, by how long nothing has come from here."""
        since = max(self.moved_at, self.heard[-1] if self.heard else 0)
        if self.silent_from > self.progress_at:  # an idle one was asked, and did not answer
            since = self.silent_from
        explained = None if told.explained_s is None else nanos(told.explained_s)
        self.prompts.told(gateway, told.unread, explained, now - since)

    def stillness(self, now: int) -> int:
        """The longest time (ns) in the last 30 s in which requests there showed no progress.

        About a second for streams; for answers that come in one piece, as long as they take.
        """
        lasting = now - self.moved_at if self.inflight else 0
        lately = (still for at, still in self.stills if now - at <= _STILLS_FOR)
        return max((lasting, *lately))

    def stands(self, now: int, patience: int) -> bool:
        """Whether requests are on the replica and none got a token for ``patience`` (ns)."""
        return self.inflight > 0 and now - self.moved_at >= patience

    @property
    def awaited_in_vain(self) -> bool:
        """Whether a user's request there is overdue, and nothing at all has come from it since."""
        heard_at = self.heard[-1] if self.heard else 0
        return self.overdue_at > max(self.progress_at, heard_at)

    def may_read_prompts(self, now: int) -> bool:
        """Whether long prompts explain that requests there got no token up to now."""
        return self.inflight > 0 and self.prompts.explains(now - self.moved_at)

    def doubted(self, now: int, patience: int) -> bool:
        """Whether anything speaks against the replica, so that its canary is worth what it costs.

        Its state is not READY, its last canary failed or was slow, a canary was called for, or
        users' requests got no token for ``patience`` (ns).
        """
        ill = self.slow or not self.canary_passed or self.health.state is not State.READY
        return ill or self.health.called or self.stands(now, patience)

    def call_canary(self, now: int) -> None:
        """Make its next canary due because of a doubt, at most one a second."""
        self.health.call_canary(now)
        self.wake_at = now

    def take_queue(self, waiting: int | None, running: int | None, now: int) -> None:
        """Note how many requests wait in its engine's own queue and run there, by its page."""
        self.waiting, self.waiting_at = waiting, now
        self.most_running = max(self.most_running, running or 0)

    @property
    def slots(self) -> int:
        """Requests that it runs at once: as declared, else the most its page has shown, else 1."""
        return self.replica.slots or max(1, self.most_running)

    def forget_old_queue(self, now: int) -> None:
        """Drop what its page said long ago: a page that cannot be read shows no free slot."""
        if now - self.waiting_at > _QUEUE_FRESH:
            self.waiting = None

    @property
    def has_free_slot(self) -> bool:
        """Whether a canary would take no slot from users, as far as is known.

        By the engine's own queue and the declared slots; where neither is known, only while no
        request is in flight.
        """
        slots = self.replica.slots
        if self.waiting is None:
            return self.inflight < max(1, slots)
        return self.waiting == 0 and (not slots or self.inflight < slots)

    @property
    def knows_its_slots(self) -> bool:
        """Whether ``has_free_slot`` rests on the engine's word or a declaration, not on a guess."""
        return self.waiting is not None or self.replica.slots > 0

    @property
    def explains_lateness(self) -> bool:
        """Whether requests there are known to delay a canary: by all slots, or by a long prompt."""
        full = self.knows_its_slots and not self.has_free_slot
        return self.inflight > 0 and (full or self.prompts.awaited)

    def may_be_asked(self, now: int, patience: int) -> bool:
        """Whether a canary that is due may be sent: it is free, or worth it, or was earned."""
        doubted = self.doubted(now, patience)
        if self.canary.billed:
            return self.budget.affords(now, doubted=doubted)
        return doubted or self.has_free_slot or self.budget.affords(now)

    @property
    def may_be_asked_extra(self) -> bool:
        """Whether a canary that is not due may be sent: it costs nothing, and nothing is in doubt.

        In doubt, canaries have a pace of their own.
        """
        health = self.health
        well = health.state is State.READY and not health.frozen
        return well and self.has_free_slot and not self.canary.billed

    def canary_started(self, now: int, patience: int, *, extra: bool) -> None:
        """Note that a canary is under way, whether it is charged, and whether it yields to users.

        One that settles a doubt does not, nor the one after a canary that was called back: an
        engine that stands still has requests waiting, too, and would never be asked to the end.
        An ``extra`` one always does.
        """
        self.canary_extra, self.extra_at = extra, NEVER
        self.canary_yields = extra or not (self.called_back or self.doubted(now, patience))
        self.canary_out = True
        self.peers_asked = False
        self.canary_charged = self.canary.billed or not self.has_free_slot

    @property
    def stands_still(self) -> bool:
        """Whether requests there make no progress: its process is frozen, or no token comes."""
        health = self.health
        stalled = health.state is State.QUARANTINED and health.cause is Signal.STALLED
        return health.frozen or (stalled and self.inflight > 0)

    @property
    def inflight(self) -> int:
        """Requests on the replica now, summed over all gateways."""
        return sum(self.inflight_at.values())


__all__ = ["NEVER", "Member"]
