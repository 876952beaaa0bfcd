"""One simulated replica: a process that starts, loads, serves, and fails by injected faults.

Faults are kept as a list of what is active; their joint effect is worked out when it changes, so
that a healthy replica costs one attribute test per request.
"""

from random import Random
from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.plan.faults import Fault, FaultKind
from holdfast.core.types import MILLISECOND, Replica, nanos
from holdfast.sim.engine import Engine
from holdfast.sim.request_record import EngineRun

GARBAGE_TOKENS: Final = 16  # of an opening that repeats: held back so long, then rejected
ANSWER_AT_ONCE: Final = MILLISECOND  # a 500 or a 429 that costs the replica nothing
REFUSED_AFTER: Final = MILLISECOND // 5  # a closed port answers within a round trip
CONNECT_TIMEOUT: Final = nanos(1.0)  # a partition: nobody answers at all

_SILENT: Final = frozenset(
    (FaultKind.HANG, FaultKind.PARTITION, FaultKind.STOP)
)  # nothing comes out any more
_UNSEEN: Final = (Kind.EMPTY, Kind.DEGENERATE)  # rejected before a client sees a word
# Of an answer in one piece nothing comes before all of it: a fault that lets a beginning pass finds
# no middle in it.
_MIDWAY: Final = (Kind.CUT, Kind.RESET)
_DOWN: Final = (FaultKind.CRASH, FaultKind.ZONE_LOSS, FaultKind.REGION_LOSS)


class SimulatedReplica:
    """A replica's process and engine, and the faults that are active on it."""

    __slots__ = (
        "dies_at_request",
        "engine",
        "faults",
        "flaky",
        "flaky_tokens",
        "frozen",
        "hung",
        "incarnation",
        "instant",
        "next_check",
        "next_doubt",
        "overhead",
        "replica",
        "rng",
        "serving",
        "stalls",
        "stalls_loading",
        "tokens_seen",
        "touched",
        "truncates",
        "up",
        "wrong",
        "wrong_share",
    )

    def __init__(self, replica: Replica, engine: Engine, rng: Random) -> None:
        self.replica = replica
        self.engine = engine
        self.rng = rng
        self.faults: list[Fault] = []
        self.up = False  # the process runs
        self.serving = False  # and its port answers
        self.incarnation = 0
        self.touched = False  # some fault is active: look closer at each request
        self.hung = False
        self.frozen = False  # the process is stopped, not only its engine
        self.wrong = False  # every answer it gives is wrong
        self.wrong_share = 0.0  # or so much of it
        self.dies_at_request = False
        self.stalls: int | None = None  # streams stop after so many tokens
        self.stalls_loading = False
        self.flaky = 0.0  # probability that an attempt fails
        self.flaky_tokens = 1  # after so much work, unseen
        self.instant: tuple[Kind, int] | None = None  # answered without the engine
        self.truncates: tuple[Kind, int] | None = None  # ends as that after so many tokens
        self.overhead = 0  # nanoseconds on the way to the engine and back
        self.next_check = 0  # the pending look for silent streams, 0 = none
        self.next_doubt = 0  # no earlier is a stream told that pauses without being silent yet
        self.tokens_seen = 0  # user tokens out, for telling busy from stalled

    @property
    def down(self) -> bool:
        """Whether an active fault keeps the host from running anything."""
        return any(fault.kind in _DOWN for fault in self.faults)

    @property
    def garbles(self) -> bool:
        """Whether its answers are one token over and over."""
        return self.truncates is not None and self.truncates[0] is Kind.DEGENERATE

    def apply_faults(self, now: int) -> None:
        """Compute the joint effect of the active faults and apply it to the engine."""
        was_hung = self.hung
        kinds = {fault.kind: fault for fault in self.faults}
        self.touched = bool(self.faults)
        self.hung = self.serving and not _SILENT.isdisjoint(kinds)
        self.frozen = self.serving and FaultKind.STOP in kinds
        lies = kinds.get(FaultKind.WRONG_OUTPUT)
        share = lies.probability if lies is not None else 0.0
        self.wrong = share >= 1.0
        self.wrong_share = 0.0 if self.wrong else share
        self.dies_at_request = FaultKind.OOM in kinds
        stall = kinds.get(FaultKind.STALL)
        self.stalls = None if stall is None else stall.tokens
        self.stalls_loading = FaultKind.LOAD_STALL in kinds
        self._apply_flaky()
        self.instant = self._instant(kinds)
        self.truncates = self._truncates(kinds)
        if self.serving:
            self._apply_pace(kinds, was_hung, now)

    def _apply_flaky(self) -> None:
        passes = 1.0
        self.flaky_tokens = 1
        for fault in self.faults:
            if fault.kind is FaultKind.FLAKY:
                passes *= 1.0 - fault.probability
                self.flaky_tokens = max(self.flaky_tokens, fault.tokens)
        self.flaky = 1.0 - passes

    def _apply_pace(self, kinds: dict[FaultKind, Fault], was_hung: bool, now: int) -> None:
        factor = 1.0
        for fault in self.faults:
            if fault.kind is FaultKind.SLOW:
                factor *= fault.factor
        drip = nanos(kinds[FaultKind.DRIP].interval_s) if FaultKind.DRIP in kinds else 0
        if self.hung and not was_hung:
            self.engine.hang(now)
        self.engine.pace(factor, float(drip), now)
        if was_hung and not self.hung:
            self.engine.resume(now)

    def _instant(self, kinds: dict[FaultKind, Fault]) -> tuple[Kind, int] | None:
        if FaultKind.PARTITION in kinds:
            return Kind.CONNECT_TIMEOUT, CONNECT_TIMEOUT
        if FaultKind.BLACK_HOLE in kinds:
            return Kind.SERVER_ERROR, ANSWER_AT_ONCE
        if FaultKind.REFUSE_BUSY in kinds:
            return Kind.OVERLOADED, ANSWER_AT_ONCE
        return None

    def _truncates(self, kinds: dict[FaultKind, Fault]) -> tuple[Kind, int] | None:
        if FaultKind.EMPTY in kinds:
            return Kind.EMPTY, 1
        if FaultKind.GARBAGE in kinds:
            return Kind.DEGENERATE, GARBAGE_TOKENS
        if FaultKind.CUT in kinds:
            return Kind.CUT, kinds[FaultKind.CUT].tokens
        if FaultKind.RESET in kinds:
            return Kind.RESET, kinds[FaultKind.RESET].tokens
        return None

    def spoil(self, run: EngineRun) -> None:
        """Decide whether and how an active fault will end this run."""
        if self.wrong_share and self.rng.random() < self.wrong_share:
            run.wrong = True
        if self.flaky and self.rng.random() < self.flaky:
            run.output = min(run.output, self.flaky_tokens)
            run.ends_as, run.mute = Kind.SERVER_ERROR, True
        elif self.truncates is not None:
            kind, tokens = self.truncates
            if tokens and kind in _MIDWAY and run.whole:
                return
            # One that breaks off at its last token has no end either.
            whole = tokens > run.output or (kind is Kind.DEGENERATE and tokens == run.output)
            run.wrong = run.wrong or kind is Kind.DEGENERATE
            if not whole or kind is Kind.EMPTY:
                run.output, run.ends_as = max(1, tokens), kind
                run.mute = kind in _UNSEEN or tokens == 0
        elif self.stalls is not None and self.stalls <= run.output:
            if self.stalls and run.whole:
                return
            run.output, run.parks = max(1, self.stalls), True
            run.mute = self.stalls == 0


__all__ = ["ANSWER_AT_ONCE", "CONNECT_TIMEOUT", "REFUSED_AFTER", "SimulatedReplica"]
