"""How long to wait for an answer: deadlines learned from what each pool delivers.

Nobody can configure how long a first token takes: it depends on model, hardware, prompt and load.
So a pool starts with wide deadlines and then follows its own p99.9 per class of prompt length
(``learned_deadline.py``), with a generous factor; a long prompt has at least what it takes to read
it (``prompts/reading_pace.py``). Between the two, from the first canary and the
first few requests on, a wait is a large multiple of what those took, and never below 15 s: a
lightly used gateway would not have a hundred samples for an hour. Two things make a wait longer,
also where they turn out after the attempt was made: a waiting queue in the engine that is longer
than usual, and a pool that as a whole has become slower than its median. Within a minute of the end
of an overload the waits no longer follow it, but for those who meet a queue again. A deadline that
fires is evidence against the replica only while its peers deliver.
When more than a quarter of the pool fires, the likelier culprit is the deadline: the fleet is slow
and no replica is sick, so deadlines double and retries, which would make it slower, stop. The
doubling also keeps learning alive, because an attempt that was given up leaves no sample; if even
the largest rise does not help, what was learned is forgotten.

When a whole pool stands still, some attempt's deadline is the first to fire. Where half of the
peers have work and none of them has delivered either, that proves nothing yet: the attempt waits
on until the deadlines of the others could fire too. An attempt that waited through such a silence
starts its wait again at the moment the pool is back.

Rejected: one fixed timeout. It either kills long prompts or lets a hung replica hold everybody
for minutes.
"""

from bisect import bisect_left
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import partial
from math import inf
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.request.learned_deadline import GROUPS, DeadlineRise, LearnedDeadline
from holdfast.core.request.prompts.reading_pace import (
    PACED_TOKENS,
    SLOW_PER_TOKEN,
    ReadingPace,
    unhurried,
)
from holdfast.core.types import MILLISECOND, SECOND, Request, nanos, require

_REPLICAS_MAX: Final = 4096  # remembered; when full, the one known longest is forgotten
_NEVER: Final = 1 << 62
# How the pool is doing now. One very slow replica must not excuse itself: it counts as three times
# slower at most, and a normal answer weighs four slow ones, so that one slow of two stays normal.
_PACE_UP, _PACE_DOWN = 0.05, 0.2
_PACE_MAX: Final = 3.0
_PACE_NORMAL: Final = 2.0
_DOUBT_PER_TOKEN: Final = MILLISECOND  # a prompt at 1,000 tokens/s: doubt is cheap
_STOOD: Final = 5 * SECOND  # at a replica that is known to stand still
_USUAL_FACTOR: Final = 2  # of the median answer in one piece: its own length explains no more


@dataclass(slots=True, frozen=True)
class DeadlineConfig:
    """Settings: how long requests of one pool may wait, and how these deadlines are learned.

    Checked when built: raises ``ConfigError``.
    """

    first_token_s: float = 60.0  # until learned: above a cold long prompt on a busy engine
    first_token_samples_min: int = 100  # per class of prompt length; fewer say nothing of a tail
    first_token_floor_s: float = 1.0  # a pause of a process or a network is not a failure
    first_token_factor: float = 4.0  # on p99.9: a healthy replica practically never gets there
    early_samples_min: int = 8  # until learned: so many first tokens bound what is possible
    early_factor: float = 8.0  # on the longest of them: few samples say little of a tail
    canary_factor: float = 20.0  # on a canary's time: it is short, and asked when there is room
    early_floor_s: float = 15.0  # and no less: another gateway's request may be ahead of it
    doubt_s: float = 2.0  # until learned: a stream without a first token after it is in doubt
    doubt_whole_s: float = 3.0  # the same for answers in one piece: it only asks a canary
    doubt_floor_s: float = 1.0  # once learned: canaries are asked once a second at most
    between_tokens_s: float = 30.0  # until learned: a long prefill may pause every stream
    between_tokens_samples_min: int = 1000  # gaps; some ten streams
    between_tokens_floor_s: float = 1.0  # as for the first token
    between_tokens_factor: float = 10.0  # gaps are small and their tail is heavy
    answer_samples_min: int = 200  # answers in one piece, per class of allowed length
    answer_floor_s: float = 5.0  # a long answer among short ones is not a failure
    answer_factor: float = 8.0  # on p99.9: lengths of answers vary more than first tokens do
    request_s: float = 600.0  # the whole request, and the limit of every learned deadline
    quantile: float = 0.999  # the tail that still belongs to normal service
    prompt_bounds: tuple[int, ...] = (256, 1024, 4096, 16384)  # tokens; upper ends of the classes
    forget_s: float = 600.0  # samples live half to all of this, if newer ones can replace them
    waiting_scale_max: float = 8.0  # a hung engine's queue grows too and must not excuse it
    firing_window_s: float = 10.0  # firings this close together may have one cause
    firing_share: float = 0.25  # of the pool; above it the fleet is slow
    rise_max: int = 8  # with a factor of 4 that is 32 times p99.9; beyond, learning starts over
    calm_s: float = 10.0  # without a slow fleet, before a rise is halved

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "prompt_bounds":
                value = getattr(self, field.name)
                self._require(0 < value < inf, field.name, "use a positive number")
        self._require_at_most("first_token_s", "request_s")
        self._require_at_most("first_token_floor_s", "first_token_s")
        self._require_at_most("between_tokens_s", "request_s")
        self._require_at_most("answer_floor_s", "request_s")
        self._require_at_most("between_tokens_floor_s", "between_tokens_s")
        for name in (
            "first_token_factor",
            "between_tokens_factor",
            "answer_factor",
            "early_factor",
            "canary_factor",
            "waiting_scale_max",
        ):
            self._require(getattr(self, name) >= 1, name, "use at least 1: waits must not shrink")
        self._require(0.5 <= self.quantile < 1, "quantile", "use 0.5 to below 1, such as 0.999")
        self._require(self.firing_share < 1, "firing_share", "use a share of the pool below 1")
        bounds = self.prompt_bounds
        ascending = all(low < high for low, high in zip((0, *bounds), bounds, strict=False))
        fix = "use at most 16 ascending token counts"
        self._require(ascending and len(bounds) <= 16, "prompt_bounds", fix)

    def for_answers(self) -> "DeadlineConfig":
        """Return a copy for answers in one piece, whose first token is also their last.

        It has the longer waits of whole answers in place of those for first tokens.
        """
        return replace(
            self,
            first_token_s=self.request_s,
            first_token_samples_min=self.answer_samples_min,
            first_token_floor_s=self.answer_floor_s,
            first_token_factor=self.answer_factor,
            doubt_s=self.doubt_whole_s,
            # What is usual for whole answers is never below this: they need no floor of their own.
            doubt_floor_s=min(self.doubt_floor_s, self.answer_floor_s / self.answer_factor),
        )

    def _require_at_most(self, name: str, other: str) -> None:
        limit = getattr(self, other)
        self._require(getattr(self, name) <= limit, name, f"use at most {other} ({limit})")

    def _require(self, condition: bool, name: str, fix: str) -> None:
        require(condition, f"deadlines.{name}", f"is {getattr(self, name)}", fix)


@dataclass(slots=True, frozen=True)
class TimeoutVerdict:
    """What a deadline that fired means: whether it counts against the replica, whether to retry.

    With both false nobody is to blame yet: the attempt goes on waiting.
    """

    counts: bool  # against the replica
    retry: bool  # another replica may do better
    reason: str


class _Delivery(StrEnum):
    """How a replica's last first token came: in normal time, late, or not within its deadline."""

    WELL = "well"
    SLOW = "slow"
    FIRED = "fired"


_WELL: Final = _Delivery.WELL
_SLOW: Final = _Delivery.SLOW
_FIRED: Final = _Delivery.FIRED


class _Recent:
    """What one replica last did about a first token, and which sample group it belongs to."""

    __slots__ = ("at", "group", "last", "silent_from")

    def __init__(self, group: int) -> None:
        self.group = group
        self.last = _WELL
        self.at = -_NEVER  # no evidence yet
        self.silent_from = _NEVER  # its first firing of a row in which no peer delivered


class Deadlines:
    """The learned deadlines of one model's pool in one gateway, in ns: first tokens, and gaps.

    First tokens by prompt length. It starts with the configured wide waits and learns from
    ``observe_first_token``, ``observe_gaps`` and ``fired``; it sets no timers.
    """

    __slots__ = (
        "_admitted",
        "_answers",
        "_back_at",
        "_bounds",
        "_canary",
        "_classes",
        "_config",
        "_doubt_floor",
        "_doubt_wait",
        "_early_floor",
        "_early_from",
        "_evidence",
        "_gaps",
        "_pace",
        "_replicas",
        "_rise",
        "_silent_from",
        "_slow_until",
        "_stuck",
        "_wide",
        "_window",
        "firings",
        "reading",
        "request",
        "scale",
    )

    def __init__(
        self,
        config: DeadlineConfig,
        *,
        answers: bool = False,
        reading: ReadingPace | None = None,
    ) -> None:
        self._config = config
        # How fast long prompts are read; answers in one piece share what was learned from streams.
        self.reading = reading or ReadingPace(config.quantile, config.forget_s)
        self._answers = answers  # for those in one piece, which take as long as they are
        self._canary = 0  # the slowest usual canary of the pool; 0 = unknown
        self._doubt_wait = nanos(config.doubt_s)
        self._doubt_floor = nanos(config.doubt_floor_s)
        self._early_floor = nanos(config.early_floor_s)
        self._early_from = 0  # before that, waits are wide until learned: the pool was slow
        self.request = nanos(config.request_s)
        self._bounds = config.prompt_bounds
        learned = partial(
            LearnedDeadline,
            limit_s=config.request_s,
            quantile=config.quantile,
            forget_s=config.forget_s,
        )
        self._classes = [
            learned(
                wide_s=config.first_token_s,
                floor_s=config.first_token_floor_s,
                factor=config.first_token_factor,
                samples_min=config.first_token_samples_min,
            )
            for _ in range(len(self._bounds) + 1)
        ]
        self._gaps = learned(
            wide_s=config.between_tokens_s,
            floor_s=config.between_tokens_floor_s,
            factor=config.between_tokens_factor,
            samples_min=config.between_tokens_samples_min,
        )
        self._wide = nanos(config.first_token_s)
        self._window = nanos(config.firing_window_s)
        self._evidence = nanos(min(config.first_token_floor_s, config.between_tokens_floor_s))
        self._rise = DeadlineRise(config.rise_max, config.calm_s)
        self._slow_until = 0
        self._stuck = False  # several fired and nobody has delivered since
        self._back_at = 0  # when it came back from the last such silence
        self._silent_from = _NEVER  # the largest rise has not helped and nothing has arrived since
        self._replicas: dict[str, _Recent] = {}
        self._admitted = self.firings = 0
        self._pace = 1.0  # recent first tokens of the whole pool, in medians of their class
        self.scale = 1.0  # by which waits are longer than they were learned

    def expect_canary(self, canary_s: float | None) -> None:
        """Store how long the slowest replica's canaries usually take (seconds); ``None``: unknown.

        Bounds the waits while too few requests were seen to learn from.
        """
        self._canary = 0 if canary_s is None else nanos(canary_s)

    def wait(
        self, request: Request, waiting: int | None, ahead: int, now: int, queue: int = 0
    ) -> int:
        """How long (ns) a new attempt of this request may take to its first token.

        Before enough was learned it may be shortened by canaries and the first few samples.
        ``waiting`` is the engine's own queue as it told it (``None``: unknown), ``queue`` what is
        known of it now, if that is more, and ``ahead`` the attempts this gateway has there already.
        Asked once per attempt: it counts ``waiting``.
        """
        learned = self._classes[bisect_left(self._bounds, request.size)]
        deadline = self._first_token(learned, waiting, now, queue)
        if request.prompt_tokens >= PACED_TOKENS:
            return self._wait_for_long(request, learned, deadline, waiting, ahead, now)
        if learned.settled or waiting or now < self._early_from:
            return deadline
        early = self._early(request, learned)
        if not early:
            return deadline
        return min(deadline, early * (1 + ahead) * self._rise.value)

    def _wait_for_long(
        self,
        request: Request,
        learned: LearnedDeadline,
        deadline: int,
        waiting: int | None,
        ahead: int,
        now: int,
    ) -> int:
        """The wait for a long prompt: it grows with its length, up to the limit of the request."""
        reading = self.reading.allowance(request.prompt_tokens, now)
        if learned.settled:
            # A class of answers says nothing of prompts, and the last one of prompts has no end.
            needed = deadline + reading if self._answers else max(deadline, reading)
            return min(needed, self.request)
        deadline = min(deadline + reading, self.request)
        early = 0 if waiting or now < self._early_from else self._early(request, learned)
        if not early:
            return deadline
        early = max(early, self._early_floor + reading)
        return min(deadline, early * (1 + ahead) * self._rise.value)

    def _early(self, request: Request, learned: LearnedDeadline) -> int:
        """A generous wait from canaries and few samples; 0 where those say nothing."""
        sampled = learned.count() >= self._config.early_samples_min
        base = int(self._config.canary_factor * self._canary)
        if self._answers:
            # A whole answer may be as long as it is allowed to: one canary's time per token is
            # several times what any engine takes. Of unknown length nothing can be said.
            if not (self._canary and request.max_tokens):
                return 0
            base += self._canary * request.max_tokens
        elif not (self._canary or sampled):
            return 0
        if sampled:
            base = max(base, int(self._config.early_factor * learned.largest))
        return max(base, self._early_floor) + request.prompt_tokens * SLOW_PER_TOKEN

    def doubt_after(self, request: Request) -> int:
        """How long (ns) a first token of this request may take before its replica is in doubt.

        Then control is asked to send a canary; the attempt itself goes on.
        """
        learned = self._classes[bisect_left(self._bounds, request.size)]
        if learned.settled:
            return max(learned.norm, self._doubt_floor)
        return self._doubt_wait + request.prompt_tokens * _DOUBT_PER_TOKEN

    def first_look(self, request: Request) -> int:
        """How long (ns) after its start an attempt without a first token is first looked at.

        It is the norm for its length once learned, else no later than ``doubt_after``.
        """
        learned = self._classes[bisect_left(self._bounds, request.size)]
        if learned.settled:
            return learned.norm
        doubt = self._doubt_wait + request.prompt_tokens * _DOUBT_PER_TOKEN
        return learned.norm if learned.norm < doubt else doubt

    def first_token(self, prompt_tokens: int, waiting: int | None, now: int) -> int:
        """The wait (ns) for a first token: learned, or wide until learned; asked once per attempt.

        ``waiting`` is the chosen engine's own queue, which is remembered: only a queue longer than
        usual asks for more time. Unlike ``wait`` it uses neither canaries nor few samples.
        """
        learned = self._classes[bisect_left(self._bounds, prompt_tokens)]
        return self._first_token(learned, waiting, now)

    def _first_token(
        self, learned: LearnedDeadline, waiting: int | None, now: int, queue: int = 0
    ) -> int:
        if now >= learned.refresh_at:
            learned.refresh(now, self._rise.settle(now))
        deadline = learned.deadline
        if waiting is not None:
            learned.attempts += 1
            learned.waiting += waiting
            queue = max(queue, waiting)
            if queue > learned.waiting_typical:
                deadline = learned.scaled(queue, self._config.waiting_scale_max)
        if self.scale > 1.0:
            return min(int(deadline * self.scale), self.request)
        return deadline

    def wait_behind(self, request: Request, queue: int) -> int:
        """How long (ns) a first token may take now behind an engine's own queue; 0 if it is usual.

        For an attempt that is under way: the queue is not counted again.
        """
        learned = self._classes[bisect_left(self._bounds, request.size)]
        if queue <= learned.waiting_typical:
            return 0
        allowed = learned.scaled(queue, self._config.waiting_scale_max)
        return min(int(allowed * self.scale), self.request)

    def between_tokens(self, now: int) -> int:
        """How long (ns) a stream may pause between two tokens: learned, or wide until learned."""
        gaps = self._gaps
        if now >= gaps.refresh_at:
            gaps.refresh(now, self._rise.settle(now))
        return gaps.deadline

    def first_token_typical(self, prompt_tokens: int) -> int | None:
        """The median first token (ns) for this prompt length; ``None`` below 20 samples."""
        return self._classes[bisect_left(self._bounds, prompt_tokens)].median

    def first_token_norm(self, prompt_tokens: int) -> int:
        """The longest first token (ns) that counts as normal for this prompt length.

        Until learned it is the limit of the whole request.
        """
        return self._classes[bisect_left(self._bounds, prompt_tokens)].norm

    def first_token_quantile(self, prompt_tokens: int, q: float, samples_min: int) -> int | None:
        """Return the ``q`` quantile (ns) of first tokens for this prompt length.

        ``None`` below ``samples_min`` samples.
        """
        learned = self._classes[bisect_left(self._bounds, prompt_tokens)]
        return learned.quantile(q, samples_min)

    def observe_first_token(
        self, replica_id: str, prompt_tokens: int, elapsed: int, now: int
    ) -> int | None:
        """Learn from a first token after ``elapsed`` ns; also notes that the replica delivers.

        Returns the median for its prompt length as before this sample, ``None`` below 20 samples.
        """
        replica = self._replicas.get(replica_id) or self._admit(replica_id)
        learned = self._classes[bisect_left(self._bounds, prompt_tokens)]
        if self._stuck:
            self._stuck, self._back_at = False, now
        if elapsed <= learned.norm:
            replica.last, replica.at = _WELL, now
        elif replica.last is not _FIRED or now - replica.at >= self._window:
            replica.last, replica.at = _SLOW, now
        median = learned.median
        if median and learned.settled:
            ratio = elapsed / median
            more = (ratio if ratio < _PACE_MAX else _PACE_MAX) - self._pace
            self._pace = pace = self._pace + more * (_PACE_UP if more > 0.0 else _PACE_DOWN)
            self.scale = pace if pace > _PACE_NORMAL else 1.0
        learned.fresh += 1
        largest = learned.largest
        learned.largest = elapsed if elapsed > largest else largest
        group = learned.groups[replica.group]
        group.young_total += elapsed
        group.young.add(elapsed * 1.0)  # the sketch compares floats, and mixing costs double
        return median

    def observe_prompt(self, replica_id: str, tokens: int, elapsed: int) -> None:
        """Learn from a stream's first token how fast a long prompt was read.

        ``elapsed`` is in ns. Call it before ``observe_first_token``.
        """
        replica = self._replicas.get(replica_id) or self._admit(replica_id)
        self.reading.observe(replica.group, tokens, elapsed)

    def observe_gaps(self, worst_gap: int, count: int, replica_id: str = "") -> None:
        """Learn from an ended stream: ``count`` gaps between tokens, the longest in ns.

        With ``count`` 0 nothing is learned.
        """
        if count > 0:
            replica = self._replicas.get(replica_id)
            self._gaps.add_worst(0 if replica is None else replica.group, worst_gap, count)

    def fired(
        self, replica_id: str, peers: int, now: int, busy: int = 0, started: int | None = None
    ) -> TimeoutVerdict:
        """Judge an attempt's deadline that fired: blame the replica, the whole pool, or nobody yet.

        If many replicas of the pool fired lately, deadlines double and the verdict allows no retry.
        ``peers`` is the number of other replicas, ``busy`` how many of them have attempts under
        way, ``started`` when the attempt began. Aborts nothing itself.
        """
        replica = self._replicas.get(replica_id) or self._admit(replica_id)
        self.firings += 1
        since = self._evidence_from(replica, now)
        replica.last, replica.at = _FIRED, now
        firing = well = slow = joined = 0
        for other in self._replicas.values():
            if other.last is _FIRED:
                firing += now - other.at < self._window
                joined += other.at >= replica.silent_from
            elif other.at > since:
                well += other.last is _WELL
                slow += other.last is _SLOW
        if started is not None and started < self._back_at and now - self._back_at < self._wide:
            return self._wait(now, "it waited through a silence of the whole pool")
        # Idle peers are no witnesses, but a good place to try again.
        silent = 0 < peers <= 2 * busy and not (well or slow) and self._window >= self._evidence
        if not silent:
            replica.silent_from = _NEVER
        elif replica.silent_from == _NEVER:
            replica.silent_from = now
        self._stuck = silent and max(firing, joined) >= 2
        peers_slow = firing - 1 + slow > well
        # One replica firing alone is that replica's trouble, however small the pool; only the
        # single replica of a pool cannot be told from its fleet.
        if peers == 0 or (firing >= 2 and firing > self._config.firing_share * (peers + 1)):
            what = f"{firing} of {peers + 1} replicas fire"
            return self._doubt(now, what, peers_well=peers > 0 and not peers_slow)
        if silent and self._may_be_everybody(replica, joined, now):
            return self._wait(now, f"nobody delivers, and {busy} of its peers have work")
        self._slow_until = 0
        if peers_slow:
            return TimeoutVerdict(
                False, True, f"its peers are slow too: {slow} slow, {well} normal"
            )
        return TimeoutVerdict(
            True, True, f"it fired and its peers are not slow: {well} deliver normally"
        )

    def _evidence_from(self, replica: _Recent, now: int) -> int:
        """The time from which a peer's delivery is evidence for the attempt that fires now."""
        again = replica.last is _FIRED and now - replica.at <= self._longest() + self._window
        if not again:
            replica.silent_from = _NEVER  # it has delivered meanwhile, or was not asked for long
        return min(replica.silent_from, now - self._evidence)

    def _may_be_everybody(self, replica: _Recent, joined: int, now: int) -> bool:
        """Whether the whole pool may be stuck, so that no single replica can be blamed yet."""
        waited = now - replica.silent_from
        if waited < min(self._longest(), self._window):
            return True
        return joined >= 2 and waited < self._wide

    def _longest(self) -> int:
        known = [one.deadline for one in self._classes if one.is_learned()]
        return max(known or [one.deadline for one in self._classes])

    def _wait(self, now: int, why: str) -> TimeoutVerdict:
        self._slow_until = now + self._window
        return TimeoutVerdict(False, False, f"{why}: nobody can be blamed yet")

    def fleet_slow(self, now: int) -> bool:
        """Whether a firing within the window was judged the whole pool's slowness or silence."""
        return now < self._slow_until

    def _admit(self, replica_id: str) -> _Recent:
        if len(self._replicas) >= _REPLICAS_MAX:
            del self._replicas[next(iter(self._replicas))]
        replica = self._replicas[replica_id] = _Recent(self._admitted % GROUPS)
        self._admitted += 1
        return replica

    def _doubt(self, now: int, what: str, *, peers_well: bool) -> TimeoutVerdict:
        self._slow_until = now + self._window
        learnt = (*self._classes, self._gaps)
        known = any(one.is_learned() for one in self._classes)
        longest = self._longest()
        # Attempts made under the present deadlines fire until the longest of them is over. With
        # long ones it is better to rise too often than to give up everybody's requests meanwhile.
        if not self._rise.lift(now, min(longest, self._window), longest):
            if known:
                self._rise.reset()  # to the wide deadlines; where those failed the rise stays
            for one in learnt:
                one.forget()
            self.reading.forget()
            self._early_from = now + nanos(self._config.forget_s)
            self._silent_from = now + self._wide if known else now
        for one in learnt:
            one.refresh_at = 0
        if any(one.has_samples() for one in learnt):
            self._silent_from = _NEVER
        if peers_well:
            return TimeoutVerdict(True, False, f"{what}, though its peers deliver normally")
        if now >= self._silent_from:
            return TimeoutVerdict(
                True, False, f"{what}, and nothing came even at the widest deadline"
            )
        return TimeoutVerdict(
            False, False, f"{what}: the fleet is slow, deadlines x {self._rise.value}"
        )


def stuck(
    waited: int, prompt_tokens: int, *, begun: bool, usual: int = 0, norm: int = _NEVER
) -> Kind | None:
    """Which timeout an attempt has failed with after ``waited`` ns on a stalled replica.

    ``None``: it stays. 5 s are enough once tokens came; before that 10 ms more per prompt token
    up to a minute, or 1 ms per token, and at least twice ``usual``, the usual time of an answer in
    one piece (ns, 0 = unknown). Where it was learned how long such answers take at most (``norm``),
    that takes the place of the 5 s and of twice the usual.
    """
    if begun:
        return Kind.BETWEEN_TOKENS_TIMEOUT if waited >= _STOOD else None
    reading = unhurried(prompt_tokens)
    enough = min(max(_STOOD + reading, _USUAL_FACTOR * usual), norm + reading)
    return Kind.FIRST_TOKEN_TIMEOUT if waited >= enough else None


__all__ = ["DeadlineConfig", "Deadlines", "TimeoutVerdict", "stuck"]
