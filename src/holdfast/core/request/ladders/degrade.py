"""Degradation by a ladder of models: under overload a share of requests gets a lesser answer.

When the asked-for model is saturated, breaks its objective or fails, a growing share of requests
gives up the first dimension of the operator's order: quality (the next smaller model) or
completeness (a cap on the tokens of an answer). When all is well for a while the share shrinks
again. Three things keep it from flapping: leaving needs a better reading than entering, both must
last, and a return that fails at once, or would by the rule of three, waits longer. A model of which
no replica may be chosen needs no such patience: it is left at once, and comes back as slowly.
Nothing moves to a rung without room, and whoever is moved is told.

Rejected: switching all traffic at one threshold. The switch empties the upper model, which then
looks well, and everybody comes back at once: the remedy is its own alarm.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf
from random import Random
from typing import Final
from zlib import crc32

from holdfast.core.types import Priority, Request, nanos, require


class Dimension(StrEnum):
    """What an answer can lose under overload."""

    QUALITY = "quality"  # a smaller model answers
    COMPLETENESS = "completeness"  # the answer may have fewer tokens than was asked for
    LATENCY = "latency"  # it waits longer in its model's queue


class Level(StrEnum):
    """Whether the traffic of a ladder is moving down, moving up, or staying.

    STEADY is the top: everybody gets the model asked for; DEGRADED stays part or all of the way
    down.
    """

    STEADY = "steady"  # everybody gets what was asked for
    DEGRADING = "degrading"
    DEGRADED = "degraded"
    RECOVERING = "recovering"


class LadderMove(StrEnum):
    """A step along a ladder of models, or that none came for a while; changes its ``Level``."""

    DOWN = "down"
    BOTTOM = "bottom"  # the last step down: everybody is on the smallest model
    UP = "up"
    TOP = "top"  # the last step up
    SETTLED = "settled"  # no step for as long as one may take


class _Mood(StrEnum):
    """What the readings of the watched model say."""

    BREACH = "breach"  # one is past its limit
    WELL = "well"  # all that are known are good
    BETWEEN = "between"


TRANSITIONS: Final[dict[tuple[Level, LadderMove], Level]] = {
    **{(level, LadderMove.DOWN): Level.DEGRADING for level in Level},
    **{(level, LadderMove.BOTTOM): Level.DEGRADED for level in Level},
    **{(level, LadderMove.UP): Level.RECOVERING for level in Level if level is not Level.STEADY},
    **{(level, LadderMove.TOP): Level.STEADY for level in Level if level is not Level.STEADY},
    (Level.DEGRADING, LadderMove.SETTLED): Level.DEGRADED,
    (Level.RECOVERING, LadderMove.SETTLED): Level.DEGRADED,
}


@dataclass(slots=True, frozen=True)
class DegradeConfig:
    """The models of a ladder, best first, and the readings at which traffic moves along it.

    Checked when built: raises ``ConfigError``.
    """

    ladder: tuple[str, ...]  # model names, best first
    order: tuple[Dimension, ...] = (Dimension.QUALITY, Dimension.LATENCY)
    patience_s: float = 2.0  # in a queue, before a model with room answers: a person notices more
    capped_tokens: int = 256  # of an answer whose completeness is given up: a screen of text
    enter_saturation: float = 0.95  # share of capacity in use; beyond it queues grow without end
    leave_saturation: float = 0.75  # well below the queue's knee, where noise does not reach back
    enter_attainment: float = 0.95  # share of requests within their objective, below which to act
    leave_attainment: float = 0.99  # and from which on it is met again
    enter_error_share: float = 0.10  # of attempts on the upper model
    leave_error_share: float = 0.02  # ordinary noise of a large fleet
    outage_error_share: float = 0.5  # most fail: a gradual move would only prolong the errors
    step_s: float = 2.0  # a breach must last so long, and a step must show before the next
    hold_s: float = 10.0  # well for so long before a step back
    hold_max_s: float = 120.0  # the doubled wait after failed returns stops here
    share_step: float = 0.25  # of the traffic per step
    interactive_only: bool = True  # a batch item can wait for the model it asked for
    stale_s: float = 60.0  # without new readings an old verdict no longer binds anybody

    def __post_init__(self) -> None:
        named = len(self.ladder) >= 2 and all(self.ladder)
        once = len(dict.fromkeys(self.ladder)) == len(self.ladder)
        finite = "use finite seconds above 0"
        apart = "leave a gap: it is what keeps the ladder from flapping"
        ordered = len(dict.fromkeys(self.order)) == len(self.order)
        problem = f"is {', '.join(self.order) or 'empty'}"
        fix = "name quality, and what else may be lost, each once"
        require(ordered and Dimension.QUALITY in self.order, "degrade.order", problem, fix)
        for field, fits, fix in (
            ("ladder", named and once, "name at least two models, each once, best first"),
            ("patience_s", 0 < self.patience_s < inf, finite),
            ("capped_tokens", self.capped_tokens >= 1, "use 1 token or more"),
            ("step_s", 0 < self.step_s < inf, finite),
            ("stale_s", 0 < self.stale_s < inf, finite),
            ("hold_s", self.step_s <= self.hold_s < inf, "use at least step_s"),
            ("hold_max_s", self.hold_s <= self.hold_max_s < inf, "use at least hold_s"),
            ("enter_saturation", 0 < self.enter_saturation < inf, "use a share above 0"),
            ("leave_saturation", 0 <= self.leave_saturation < self.enter_saturation, apart),
            ("enter_attainment", 0 < self.enter_attainment < 1, "use a share in (0, 1)"),
            ("leave_attainment", self.enter_attainment < self.leave_attainment <= 1, apart),
            ("enter_error_share", 0 < self.enter_error_share <= 1, "use a share in (0, 1]"),
            ("leave_error_share", 0 <= self.leave_error_share < self.enter_error_share, apart),
            ("outage_error_share", 0 < self.outage_error_share <= 1, "use a share in (0, 1]"),
            ("share_step", 0 < self.share_step <= 1, "use a share in (0, 1]"),
        ):
            require(fits, f"degrade.{field}", f"is {getattr(self, field)}", fix)


@dataclass(slots=True, frozen=True)
class DegradeChange:
    """One change of a ladder's level: from ``at`` (ns) on ``share`` of the traffic is on ``model``.

    The rest is on the model above it; at the top ``share`` is 0. Where the step caps answers,
    ``share`` of them is capped and ``model`` serves them.
    """

    at: int
    before: Level
    after: Level
    model: str
    share: float
    reason: str


class LadderError(Exception):
    """Raised for a step that the ladder's level does not allow.

    It is a bug; the message tells the ladder's history.
    """


_AS_ASKED: Final = "as asked"


class Degrader:
    """Decides which model of its ladder serves each request, from readings of load and errors.

    The way down has one stage for each smaller model and one for capped answers, in the operator's
    order; ``observe`` moves a share of the traffic one step along it at a time. ``choose`` and
    ``caps`` only read. One per ladder and gateway.
    """

    __slots__ = (
        "_depth",
        "_depth_max",
        "_hold_max_ns",
        "_hold_ns",
        "_index",
        "_mood",
        "_mood_since",
        "_moved",
        "_moved_at",
        "_observed_at",
        "_rng",
        "_rung",
        "_share",
        "_stage",
        "_stages",
        "_stale_ns",
        "_step_ns",
        "_steps_per_stage",
        "config",
        "history",
        "level",
    )

    def __init__(self, config: DegradeConfig, rng: Random) -> None:
        self.config = config
        self._rng = rng
        self._step_ns = nanos(config.step_s)
        self._hold_ns = nanos(config.hold_s)
        self._hold_max_ns = nanos(config.hold_max_s)
        self._stale_ns = nanos(config.stale_s)
        self._stages = _stages(config)
        self._steps_per_stage = ceil(1.0 / config.share_step - 1e-9)
        self._depth_max = self._steps_per_stage * len(self._stages)
        self._index = {model: i for i, model in enumerate(config.ladder)}
        self._moved = tuple((model, f"degraded to {model}") for model in config.ladder)
        self.level = Level.STEADY
        self.history: deque[DegradeChange] = deque(maxlen=32)  # the oldest go first
        self._depth = 0  # steps down from the top
        self._stage, self._share = 0, 0.0  # whole stages given up, and the share in the next one
        self._rung = 0  # of the models: those whole stages lead here
        self._moved_at: int | None = None
        self._mood, self._mood_since = _Mood.BETWEEN, 0  # what the readings say, and since when
        self._observed_at = 0

    @property
    def watched(self) -> str:
        """The model whose readings ``observe`` expects: the best one that still has traffic."""
        return self.config.ladder[self._rung]

    @property
    def below(self) -> str | None:
        """The model that would get traffic by a step down; ``None`` where no other one would."""
        if self._depth == self._depth_max or self._stages[self._stage] is not Dimension.QUALITY:
            return None
        return self.config.ladder[self._rung + 1]

    @property
    def above(self) -> str | None:
        """The model that would get traffic by a step up; ``None`` where no other one would."""
        if not self._depth:
            return None
        stage = (self._depth - 1) // self._steps_per_stage
        if self._stages[stage] is not Dimension.QUALITY:
            return None
        return self.config.ladder[self._stages[:stage].count(Dimension.QUALITY)]

    def rungs(self, request: Request) -> tuple[str, ...]:
        """The models that may answer a request beside its own: those below it, best first.

        None for a request of another ladder, and for batch requests where these can wait.
        """
        asked = self._index.get(request.model)
        bound = request.holder or not request.degradable
        if asked is None or bound or self._can_wait(request):
            return ()
        return self.config.ladder[asked + 1 :]

    def choose(self, request: Request, now: int) -> tuple[str, str]:
        """Return (model, reason): the model of the ladder that serves this request, and why.

        Its own model where it is not moved. Requests of one session get the same place, others are
        drawn. Batch requests are not moved by default, and nobody is when the last reading is too
        old.
        """
        model = request.model
        if not self._depth or not request.degradable:
            return model, _AS_ASKED
        if self._can_wait(request):
            return model, "as asked: it can wait"
        asked = self._index.get(model)
        if asked is None or now - self._observed_at > self._stale_ns:
            return model, _AS_ASKED
        rung = self._rung
        if self._share and self._stages[self._stage] is Dimension.QUALITY:
            rung += self._drawn(request)
        return self._moved[rung] if rung > asked else (model, _AS_ASKED)

    def caps(self, request: Request, now: int) -> int:
        """How many tokens the answer to a request may have at most; 0: as many as was asked for.

        Never fewer for tools, guided output and batch requests: half of such an answer is none.
        """
        if not self._depth or not request.cappable or request.priority is not Priority.INTERACTIVE:
            return 0
        if now - self._observed_at > self._stale_ns or request.model not in self._index:
            return 0
        cap = self.config.capped_tokens
        if Dimension.COMPLETENESS not in self._stages[: self._stage]:
            rest = self._stages[self._stage :]
            begun = self._share and rest[0] is Dimension.COMPLETENESS and self._drawn(request)
            if not begun:
                return 0
        return cap if not request.max_tokens or request.max_tokens > cap else 0

    def _can_wait(self, request: Request) -> bool:
        return self.config.interactive_only and request.priority is not Priority.INTERACTIVE

    def _drawn(self, request: Request) -> bool:
        """Whether a request is among the share of the stage that is being given up."""
        session = request.session
        return (_place(session) if session else self._rng.random()) < self._share

    def observe(
        self,
        now: int,
        saturation: float | None,
        slo_attainment: float | None,
        error_share: float | None,
        lower_has_room: bool | None,
        *,
        upper_has_room: bool | None = None,
        lost: bool = False,
    ) -> DegradeChange | None:
        """Take readings of ``watched``; return the step that the ladder takes now, else ``None``.

        ``None`` as a reading is unknown. ``lower_has_room`` is about ``below``, ``upper_has_room``
        about ``above``: False forbids a step there, unknown does not. ``lost``: no replica of it
        may be chosen, which is a fact and needs no second look. Called about once a second.
        """
        self._observed_at = now
        breach = self._breach(saturation, slo_attainment, error_share)
        if lost:
            breach, error_share = "no replica may be chosen", 1.0
        well = not breach and self._well(saturation, slo_attainment, error_share)
        mood = _Mood.BREACH if breach else _Mood.WELL if well else _Mood.BETWEEN
        if mood is not self._mood:
            self._mood, self._mood_since = mood, now
        rest = inf if self._moved_at is None else now - self._moved_at
        lasted = min(now - self._mood_since, rest)
        forth = breach and self._depth < self._depth_max and lower_has_room is not False
        if forth and (lost or lasted >= self._step_ns):
            return self._go_down(breach, error_share, rest, now)
        if self._depth and upper_has_room is not False:
            # Nobody is on the model above, which has room: how full this one is says nothing of it.
            if upper_has_room and self.above is not None and not self._share:
                well, patience = True, self._hold_ns
                lasted = rest
            else:
                patience = self._patience(saturation)
            if well and lasted >= patience:
                return self._move(self._depth - 1, "well for long enough", now)
        if self.level in (Level.DEGRADING, Level.RECOVERING) and rest >= self._hold_ns:
            return self._enter(LadderMove.SETTLED, "neither worse nor well enough to return", now)
        return None

    def _breach(self, saturation: float | None, met: float | None, errors: float | None) -> str:
        """Describe the reading that is past its limit; empty when none is."""
        config = self.config
        patient = config.order[0] is Dimension.LATENCY  # a full model is waited for
        if not patient and saturation is not None and saturation >= config.enter_saturation:
            return f"saturated at {saturation:.0%}"
        if met is not None and met < config.enter_attainment:
            return f"only {met:.1%} within the objective"
        if errors is not None and errors >= config.enter_error_share:
            return f"{errors:.0%} of attempts fail"
        return ""

    def _well(self, saturation: float | None, met: float | None, errors: float | None) -> bool:
        """Whether all known readings are good, and at least one is known."""
        config = self.config
        return (
            not (saturation is None and met is None and errors is None)
            and (saturation is None or saturation <= config.leave_saturation)
            and (met is None or met >= config.leave_attainment)
            and (errors is None or errors <= config.leave_error_share)
        )

    def _patience(self, saturation: float | None) -> int:
        """How long readings must be good before a step up; longer if it would overload again."""
        # Not for ever, as some of the upper model's load may never have moved (batch, for one).
        kept = 1.0 - self._share
        grown = (saturation or 0.0) * min(1.0, kept + self.config.share_step) / kept
        return self._hold_ns if grown < self.config.enter_saturation else self._hold_max_ns

    def _go_down(self, why: str, errors: float | None, rest: float, now: int) -> DegradeChange:
        if self.level in (Level.RECOVERING, Level.STEADY) and rest < self._hold_ns:
            self._hold_ns = min(2 * self._hold_ns, self._hold_max_ns)  # the return came too early
        elif rest > self._hold_max_ns:
            self._hold_ns = nanos(self.config.hold_s)
        outage = errors is not None and errors >= self.config.outage_error_share
        return self._move(self._next_model() if outage else self._depth + 1, why, now)

    def _next_model(self) -> int:
        """The depth at which everybody has left the watched model: no cap on answers mends it."""
        rest = self._stages[self._stage :]
        skipped = rest.index(Dimension.QUALITY) if Dimension.QUALITY in rest else len(rest) - 1
        return (self._stage + skipped + 1) * self._steps_per_stage

    def _move(self, depth: int, why: str, now: int) -> DegradeChange:
        down = depth > self._depth
        self._depth, self._moved_at = depth, now
        self._stage, step = divmod(depth, self._steps_per_stage)
        self._share = step * self.config.share_step
        self._rung = self._stages[: self._stage].count(Dimension.QUALITY)
        if down:
            return self._enter(
                LadderMove.BOTTOM if depth == self._depth_max else LadderMove.DOWN, why, now
            )
        return self._enter(LadderMove.UP if depth else LadderMove.TOP, why, now)

    def _enter(self, move: LadderMove, why: str, now: int) -> DegradeChange:
        before, after = self.level, TRANSITIONS.get((self.level, move))
        if after is None:
            past = " | ".join(f"{c.at} {c.before}>{c.after} {c.reason}" for c in self.history)
            raise LadderError(f"{before} cannot take {move}; history: {past or 'none'}")
        self.level = after
        share = self._share if self._share or not self._depth else 1.0
        stage = self._stages[self._stage if self._share or not self._depth else self._stage - 1]
        lower = self._share > 0 and stage is Dimension.QUALITY
        model = self.config.ladder[self._rung + 1 if lower else self._rung]
        told = f"{share:.0%} of the traffic on {model}"
        if stage is Dimension.COMPLETENESS:
            told = f"{share:.0%} of the answers of {model} capped at {self.config.capped_tokens}"
        reason = f"{why}: {told}" if self._depth else why
        change = DegradeChange(now, before, after, model, share, reason)
        self.history.append(change)
        return change


def _stages(config: DegradeConfig) -> tuple[Dimension, ...]:
    """What is given up one after the other: a stage for each smaller model, one for the cap."""
    stages: list[Dimension] = []
    for dimension in config.order:
        if dimension is Dimension.QUALITY:
            stages += [dimension] * (len(config.ladder) - 1)
        elif dimension is Dimension.COMPLETENESS:
            stages.append(dimension)
    return tuple(stages)


def _place(session: str) -> float:
    """A session's fixed place in [0, 1): as shares move, each session moves once."""
    return crc32(session.encode(errors="replace")) / 2**32


__all__ = [
    "DegradeChange",
    "DegradeConfig",
    "Degrader",
    "Dimension",
    "LadderError",
    "LadderMove",
    "Level",
]
