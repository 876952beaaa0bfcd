"""The transition table of a replica's health: its signals, conclusions and next states.

What may live here: names, transitions, and the counts of equal signals in a row; no time and no
thresholds. ``health.py`` weighs the evidence and walks this table. Most signals come from outside
and may be late, doubled or out of order; in a state where they mean nothing they lead back to it,
so that a control loop never fails on old news. The three that our own bookkeeping sends are legal
only where it may send them: elsewhere they are our own bug and raise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.core.stats import RowCounts, RowRule
from holdfast.core.types import State


class Signal(StrEnum):
    """One report about a replica that its health state machine takes.

    One from outside that comes late changes nothing.
    """

    QUEUED = "queued"  # there is no hardware to start it on yet
    LAUNCHED = "launched"  # the platform says that the process runs
    LOAD_BEGAN = "load_began"
    LOADED = "loaded"  # the engine says that it is ready; we do not take its word
    LOAD_TIMEOUT = "load_timeout"  # our own clock: ``load_deadline`` passed
    CANARY_PASS = "canary_pass"  # noqa: S105 the right answer in good time
    CANARY_SLOW = "canary_slow"  # the right answer, much later than from its peers
    CANARY_FAIL = "canary_fail"  # no answer, or an error
    UNENDED = "unended"  # answers begin and no canary's ends, with a slot free
    CANARY_WRONG = "canary_wrong"  # another answer than expected
    BUSY = "busy"  # the canary got 429 or timed out while users' streams progress: neutral
    STALLED = "stalled"  # requests are running and no token comes out
    UNKNOWN = "unknown"  # the probe itself cannot be trusted: neutral
    PASSIVE_OK = "passive_ok"  # users were served since the last report
    PASSIVE_FAILING = "passive_failing"  # a gateway's breaker opened; once per opening
    NO_SUCCESS = "no_success"  # nothing but backpressure for 10 s: not ready
    NO_HEADROOM = "no_headroom"  # its memory for requests is full: what runs may finish
    HEADROOM_BACK = "headroom_back"
    DRAINS_ITSELF = "drains_itself"  # the engine takes no new work and says so: no illness
    FROZEN = "frozen"  # the platform sees that its process is not run: a fact, no suspicion
    THAWED = "thawed"
    REFUSED = "refused"  # nobody listens
    EXITED = "exited"
    WRONG_REVISION = "wrong_revision"  # it serves another revision than declared
    TAKEN_OUT = "taken_out"  # an incident speaks against it; no canary speaks it free
    BOUND_HELD = "bound_held"  # an ejection was due and ``ejection.py`` forbids it
    DRAIN = "drain"
    UNDRAIN = "undrain"
    DRAINED = "drained"  # our own drain says that nothing is in flight any more
    SPOT_NOTICE = "spot_notice"
    STOP = "stop"
    RELAUNCH = "relaunch"  # a new incarnation begins, whoever began it


class Conclusion(StrEnum):
    """What several equal signals in a row amount to, such as a quarantine for repeated failures."""

    PASSED_ENOUGH = "passed_enough"
    FAILED_REPEATEDLY = "failed_repeatedly"
    WRONG_REPEATEDLY = "wrong_repeatedly"
    SLOW_REPEATEDLY = "slow_repeatedly"
    REFUSED_REPEATEDLY = "refused_repeatedly"
    STILL_BARRED = "still_barred"  # undrained, but it was quarantined before the drain


_ALIVE: Final = tuple(state for state in State if state not in (State.STOPPED, State.DEAD))
ROUTABLE: Final = (State.READY, State.SUSPECT)
# Evidence counts only here: before it is loaded or while it leaves, failing proves nothing.
JUDGED: Final = (State.WARMING, State.READY, State.SUSPECT, State.QUARANTINED)
_OURS: Final = (Signal.LOAD_TIMEOUT, Signal.BOUND_HELD, Signal.DRAINED)

TRANSITIONS: Final[dict[tuple[State, Signal | Conclusion], State]] = {
    **{(s, signal): s for s in State for signal in Signal if signal not in _OURS},
    **{(s, Signal.RELAUNCH): State.STARTING for s in State},
    **{(s, Signal.STOP): State.STOPPED for s in _ALIVE},
    **{(s, Signal.EXITED): State.DEAD for s in _ALIVE},
    **{(s, Signal.DRAIN): State.DRAINING for s in _ALIVE},
    **{(s, Signal.SPOT_NOTICE): State.DRAINING for s in _ALIVE},
    **{(s, Signal.WRONG_REVISION): State.QUARANTINED for s in _ALIVE if s is not State.DRAINING},
    (State.STARTING, Signal.LOAD_BEGAN): State.LOADING,
    (State.STARTING, Signal.LOADED): State.WARMING,
    (State.LOADING, Signal.LOADED): State.WARMING,
    (State.STARTING, Signal.LOAD_TIMEOUT): State.DEAD,
    (State.LOADING, Signal.LOAD_TIMEOUT): State.DEAD,
    (State.WARMING, Signal.LOAD_TIMEOUT): State.DEAD,
    (State.WARMING, Conclusion.PASSED_ENOUGH): State.READY,
    (State.WARMING, Signal.CANARY_SLOW): State.SUSPECT,  # right but slow: a tenth, not nothing
    (State.READY, Signal.CANARY_FAIL): State.SUSPECT,
    (State.READY, Signal.UNENDED): State.SUSPECT,
    (State.READY, Signal.CANARY_WRONG): State.SUSPECT,
    (State.READY, Signal.PASSIVE_FAILING): State.SUSPECT,
    (State.READY, Signal.REFUSED): State.SUSPECT,
    (State.READY, Signal.BOUND_HELD): State.SUSPECT,
    (State.READY, Conclusion.SLOW_REPEATEDLY): State.SUSPECT,
    (State.SUSPECT, Signal.BOUND_HELD): State.SUSPECT,
    (State.SUSPECT, Conclusion.PASSED_ENOUGH): State.READY,
    (State.SUSPECT, Conclusion.FAILED_REPEATEDLY): State.QUARANTINED,
    **{(s, Signal.STALLED): State.QUARANTINED for s in ROUTABLE},
    **{(s, Signal.NO_SUCCESS): State.QUARANTINED for s in ROUTABLE},
    **{(s, Signal.NO_HEADROOM): State.QUARANTINED for s in ROUTABLE},
    **{(s, Signal.FROZEN): State.QUARANTINED for s in ROUTABLE},
    **{(s, Signal.DRAINS_ITSELF): State.QUARANTINED for s in (State.WARMING, *ROUTABLE)},
    **{(s, Signal.TAKEN_OUT): State.QUARANTINED for s in ROUTABLE},
    **{(s, Conclusion.WRONG_REPEATEDLY): State.QUARANTINED for s in JUDGED},
    **{(s, Conclusion.REFUSED_REPEATEDLY): State.DEAD for s in JUDGED},
    (State.QUARANTINED, Conclusion.PASSED_ENOUGH): State.READY,
    (State.DRAINING, Signal.UNDRAIN): State.WARMING,  # nobody watched it: one canary, then ready
    (State.DRAINING, Conclusion.STILL_BARRED): State.QUARANTINED,
    (State.DRAINING, Signal.DRAINED): State.STOPPED,
    (State.STOPPED, Signal.DRAINED): State.STOPPED,
    (State.DEAD, Signal.DRAINED): State.DEAD,
}

REASONS: Final[dict[Signal | Conclusion, str]] = {
    Signal.LOAD_BEGAN: "loads the model",
    Signal.LOADED: "the engine says it is loaded; waiting for a right answer",
    Signal.LOAD_TIMEOUT: "was not admitted within its loading time",
    Signal.CANARY_SLOW: "answers right but much slower than its peers",
    Signal.CANARY_FAIL: "a canary got no answer",
    Signal.UNENDED: "no canary's answer ends there, with a slot free",
    Signal.CANARY_WRONG: "a canary got another answer than expected",
    Signal.STALLED: "requests run and no token comes out",
    Signal.PASSIVE_FAILING: "users' requests fail there",
    Signal.NO_SUCCESS: "answers nothing but backpressure",
    Signal.NO_HEADROOM: "has no room for another request",
    Signal.HEADROOM_BACK: "has room again; waiting for a right answer",
    Signal.DRAINS_ITSELF: "takes no new work, by its own word",
    Signal.FROZEN: "its process is stopped",
    Signal.THAWED: "its process runs again; waiting for right answers",
    Signal.REFUSED: "refused a connection",
    Signal.EXITED: "its process exited",
    Signal.WRONG_REVISION: "serves another revision than declared",
    Signal.TAKEN_OUT: "taken out because of an incident",
    Signal.BOUND_HELD: "its ejection is due and held back",
    Signal.DRAIN: "drains",
    Signal.UNDRAIN: "taken back from its drain; waiting for a right answer",
    Signal.DRAINED: "drained",
    Signal.SPOT_NOTICE: "drains because the platform will take it away",
    Signal.STOP: "stopped",
    Signal.RELAUNCH: "waits for its next start",  # ours, or that of whoever runs it
    Signal.QUEUED: "waits for hardware",
    Signal.LAUNCHED: "its process was started",
    Conclusion.PASSED_ENOUGH: "answered its canaries right",
    Conclusion.FAILED_REPEATEDLY: "kept failing while under suspicion",
    Conclusion.WRONG_REPEATEDLY: "answered its canaries wrong, repeatedly",
    Conclusion.SLOW_REPEATEDLY: "answers much slower than its peers, repeatedly",
    Conclusion.REFUSED_REPEATEDLY: "refuses every connection",
    Conclusion.STILL_BARRED: "taken back from its drain into its quarantine",
}


class SignalRow(StrEnum):
    """The sorts of signals that are counted in a row: passes, failures, wrong, slow, refused."""

    PASSES = "passes"
    FAILURES = "failures"
    WRONGS = "wrongs"
    SLOWS = "slows"
    REFUSALS = "refusals"


_Repeated = tuple[tuple[State, ...], SignalRow, str, Conclusion]
_FAILURES: Final = (SignalRow.FAILURES, "failures_to_quarantine", Conclusion.FAILED_REPEATEDLY)
_SLOWS: Final = (SignalRow.SLOWS, "slows_to_suspect", Conclusion.SLOW_REPEATEDLY)
_WRONGS: Final = (SignalRow.WRONGS, "wrongs_to_quarantine", Conclusion.WRONG_REPEATEDLY)
_REFUSALS: Final = (SignalRow.REFUSALS, "refusals_to_dead", Conclusion.REFUSED_REPEATEDLY)
# In these states, so many in a row (field of ``HealthConfig``) conclude this.
REPEATED: Final[dict[Signal, _Repeated]] = {
    Signal.CANARY_FAIL: ((State.SUSPECT,), *_FAILURES),
    Signal.UNENDED: ((State.SUSPECT,), *_FAILURES),
    Signal.PASSIVE_FAILING: ((State.SUSPECT,), *_FAILURES),
    Signal.CANARY_SLOW: ((State.READY,), *_SLOWS),
    Signal.CANARY_WRONG: (JUDGED, *_WRONGS),
    Signal.REFUSED: (JUDGED, *_REFUSALS),
}

_BAD: Final = (
    *(Signal.CANARY_FAIL, Signal.UNENDED, Signal.PASSIVE_FAILING, Signal.STALLED),
    *(Signal.NO_SUCCESS, Signal.NO_HEADROOM, Signal.FROZEN, Signal.BOUND_HELD, Signal.TAKEN_OUT),
)
_PASS_ENDS: Final = tuple(row for row in SignalRow if row is not SignalRow.PASSES)
_SLOW_ENDS: Final = (SignalRow.PASSES, SignalRow.WRONGS, SignalRow.REFUSALS)
_LISTENS: Final = RowRule((), (SignalRow.REFUSALS,))
# A pass ends the rows of bad signals, and each of them the row of passes.
_ROW_RULES: Final[dict[Signal, RowRule[SignalRow]]] = {
    Signal.CANARY_PASS: RowRule((SignalRow.PASSES,), _PASS_ENDS),
    Signal.CANARY_SLOW: RowRule((SignalRow.SLOWS,), _SLOW_ENDS),
    Signal.CANARY_WRONG: RowRule((SignalRow.WRONGS,), (SignalRow.PASSES,)),
    Signal.REFUSED: RowRule((SignalRow.REFUSALS,), (SignalRow.PASSES,)),
    **{signal: RowRule((SignalRow.FAILURES,), (SignalRow.PASSES,)) for signal in _BAD},
    Signal.BUSY: _LISTENS,
    Signal.PASSIVE_OK: _LISTENS,
    Signal.THAWED: RowRule((), (SignalRow.PASSES,)),  # what it answered before its stop is void
    Signal.DRAINS_ITSELF: RowRule((), (SignalRow.PASSES, SignalRow.REFUSALS)),
}


class SignalRows(RowCounts[Signal, SignalRow]):
    """How many signals of each ``SignalRow`` (passes, failures, wrong) one replica got in a row."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_ROW_RULES)

    def begin_state(self) -> None:
        """Reset the counts for a new state, except those of wrong answers and refusals."""
        self.end(SignalRow.PASSES, SignalRow.FAILURES, SignalRow.SLOWS)


@dataclass(slots=True, frozen=True)
class Change:
    """One change of a replica's health: states before and after, signal, reason, time (ns).

    ``before`` equals ``after`` if only the reason got worse.
    """

    replica_id: str
    model: str
    before: State
    after: State
    signal: Signal
    reason: str
    at: int

    def __str__(self) -> str:
        return f"{self.at} {self.before}>{self.after} on {self.signal}: {self.reason}"


class ImpossibleSignalError(Exception):
    """Raised for a signal that only our own bug can send in this state.

    The message holds the replica's history.
    """

    def __init__(self, who: str, state: State, signal: Signal, history: Iterable[Change]) -> None:
        told = " | ".join(str(change) for change in history) or "none"
        super().__init__(f"{who} is {state} and got {signal}; history, oldest first: {told}")


__all__ = [
    "JUDGED",
    "REASONS",
    "REPEATED",
    "ROUTABLE",
    "TRANSITIONS",
    "Change",
    "Conclusion",
    "ImpossibleSignalError",
    "Signal",
    "SignalRow",
    "SignalRows",
]
