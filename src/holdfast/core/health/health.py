"""The health state of one (replica, model) and the share of traffic it may get.

Signals come in from probes, canaries, users' outcomes and the platform; several equal ones in a row
amount to a conclusion; the table in ``lifecycle.py`` says where each leads. Only a right answer to
a real canary admits. The first doubt costs nine tenths of the traffic, repeated doubt all of it,
and each relapse asks for twice the proof. Slowness alone never ejects: a slow replica still
answers, and a tenth of its share is cure enough. Wrong answers are a fact and no suspicion: neither
time nor panic clears them.

Rejected: one score with thresholds. It cannot say why, it lets many good latencies buy back one
wrong answer, and two thresholds on a noisy number flap.
"""

from collections import deque
from dataclasses import dataclass, fields
from math import inf
from random import Random
from typing import Final

from holdfast.core.health.lifecycle import (
    JUDGED,
    REASONS,
    REPEATED,
    ROUTABLE,
    TRANSITIONS,
    Change,
    Conclusion,
    ImpossibleSignalError,
    Signal,
    SignalRow,
    SignalRows,
)
from holdfast.core.health.liveness import Symptom, symptom_of
from holdfast.core.types import SECOND, State, nanos, require


@dataclass(slots=True, frozen=True)
class HealthConfig:
    """Settings of health: canary intervals, failures to quarantine, passes to admit, slow start.

    The same for all replicas. Checked when built: raises ``ConfigError``.
    """

    canary_s: float = 5.0  # when ready, at the rarest; cheap ones are asked up to 5 times as often
    canary_suspect_s: float = 1.0  # doubt is expensive: settle it soon
    canary_warming_s: float = 1.0  # users wait for this replica, nobody is on it
    canary_quarantined_s: float = 2.0  # idle anyway, but an ill engine should not be hammered
    canary_jitter: float = 0.2  # share of the period, either way: fleets must not beat in step
    passes_to_admit: int = 1  # a real completion; it finds an engine that dies at first use
    passes_to_clear: int = 2  # of suspicion
    passes_to_readmit: int = 3  # from quarantine
    passes_to_readmit_wrong: int = 10  # corruption is often partial: one right answer proves little
    passes_max: int = 24  # the doubling for relapses stops here: under a minute of canaries
    failures_to_quarantine: int = 2  # further ones, while suspect
    wrongs_to_quarantine: int = 2  # in a row; one may be a change of the canary itself
    wrong_spells_max: int = 2  # quarantined for lies this often: only a relaunch helps
    slows_to_suspect: int = 3  # in a row; one slow answer is a long prompt beside it
    refusals_to_dead: int = 2  # in a row, with no user served in between
    suspect_share: float = 0.1  # of its weight: enough to notice recovery, few users hurt
    slow_start_s: float = 30.0  # linear; caches are cold and the herd would come at once
    slow_start_floor: float = 0.1  # of its weight at the moment of admission
    forgive_s: float = 300.0  # ready for so long, earlier relapses are forgotten
    load_timeout_s: float = 600.0  # launch to admission; large weights over a network take minutes
    history_max: int = 32  # changes kept per replica; the oldest go first

    def __post_init__(self) -> None:
        for each in fields(self):
            name = each.name
            value, field = getattr(self, name), f"health.{name}"
            if name.endswith("_s"):
                require(0 < value < inf, field, f"is {value}", "use finite seconds above 0")
            elif name == "canary_jitter":
                require(0 <= value < 1, field, f"is {value}", "use a share in [0, 1)")
            elif name in ("suspect_share", "slow_start_floor"):
                require(0 < value <= 1, field, f"is {value}", "use a share in (0, 1]")
            else:
                require(value >= 1, field, f"is {value}", "use a count of 1 or more")
        slower = f"is {self.canary_suspect_s}, slower than canary_s"
        watched = self.canary_suspect_s <= self.canary_s
        require(watched, "health.canary_suspect_s", slower, "watch suspects at least as often")
        few = f"is {self.passes_to_readmit_wrong}, below passes_to_readmit"
        harder = self.passes_to_readmit_wrong >= self.passes_to_readmit
        require(harder, "health.passes_to_readmit_wrong", few, "lies need at least as much proof")


_CALLS_APART: Final = SECOND  # canaries that doubts ask for: whoever raises them is not trusted
_FACTS: Final = (
    *(Conclusion.WRONG_REPEATEDLY, Signal.WRONG_REVISION, Signal.FROZEN),
    Signal.DRAINS_ITSELF,
)
_REMOVABLE: Final = (*ROUTABLE, State.QUARANTINED)
_ENDED: Final = (State.STOPPED, State.DEAD)
# Out for the time being, and it said so.
_HONEST: Final = (Signal.NO_SUCCESS, Signal.NO_HEADROOM, Signal.DRAINS_ITSELF)


class ReplicaHealth:
    """The health state machine of one (replica, model), with the evidence for its state.

    Runs in control; ``handle`` moves it by signals, and it sends no canary itself.
    """

    def __init__(
        self, config: HealthConfig, replica_id: str, model: str, now: int, rng: Random
    ) -> None:
        self.config = config
        self.replica_id = replica_id
        self.model = model
        self._rng = rng
        self._canary_ns = {
            State.WARMING: nanos(config.canary_warming_s),
            State.READY: nanos(config.canary_s),
            State.SUSPECT: nanos(config.canary_suspect_s),
            State.QUARANTINED: nanos(config.canary_quarantined_s),
        }
        self._forgive_ns = nanos(config.forgive_s)
        self._load_timeout_ns = nanos(config.load_timeout_s)
        self._slow_start_ns = nanos(config.slow_start_s)
        self.history: deque[Change] = deque(maxlen=config.history_max)
        self._reason = "declared; waits for its first start"
        self._told: Signal | Conclusion | None = None  # what the reason says
        self.incarnation = 0  # tag canaries with it and drop the answers of an earlier one
        self._begin_life(now)

    def _begin_life(self, now: int) -> None:
        """Everything known of an earlier incarnation is void, the good and the bad."""
        self.state, self.since = State.STARTING, now
        self.cause: Signal | Conclusion = Signal.RELAUNCH  # what led into this state
        self.wrong = False  # quarantined for lies and not yet proven honest
        self.wrong_revision = False
        self.taken_out = False  # an incident speaks against it, and canaries do not refute that
        self.held = False  # its ejection is due, and the pool's bound forbids it
        self.full = False  # without room for another request, by its own account
        self.frozen = False  # its process is not run, by the platform's account
        self.load_deadline: int | None = now + self._load_timeout_ns
        self.next_canary_at = now  # at the earliest: a saturated one must have earned it
        self._canary_sent_at = now - _CALLS_APART
        self.called = False  # the next canary is wanted whatever it costs
        self._tally = SignalRows()
        self._needed = self.config.passes_to_admit  # passes in a row that lead out of this state
        self._illnesses = 0  # times it left ready on evidence, since it was last well for long
        self._wrong_spells = 0
        self._quarantined = False  # and not yet readmitted; a drain does not wash it off
        self._doomed = False  # the platform will take it: no undrain

    @property
    def on_suspicion(self) -> bool:
        """Whether it is quarantined for failing, not on a fact; the ejection limit counts it."""
        fact = self.wrong or self.wrong_revision or self.frozen or self.drains_itself
        return self.state is State.QUARANTINED and not fact

    @property
    def drains_itself(self) -> bool:
        """Whether it is out because its engine said that it takes no new work."""
        return self.state is State.QUARANTINED and self.cause is Signal.DRAINS_ITSELF

    def drain_excuse(self, now: int) -> bool:
        """Whether its own drain explains its quarantine: no longer than a start may take."""
        return self.drains_itself and now - self.since < self._load_timeout_ns

    @property
    def never_readmit_by_panic(self) -> bool:
        """Whether it is dead, frozen, giving wrong answers or of another revision.

        A pool that fails open leaves it out all the same: it is worse than no answer.
        """
        gone = self.state is State.DEAD or self.frozen
        return gone or self.wrong or self.wrong_revision

    @property
    def barred(self) -> bool:
        """Whether right canaries cannot readmit it: wrong again, wrong revision, or taken out.

        A relaunch does; one taken out also if the incident takes that back.
        """
        liar = self.wrong and self._wrong_spells >= self.config.wrong_spells_max
        return liar or self.wrong_revision or self.taken_out

    def share(self, now: int, *, panic: bool = False) -> float:
        """The part of its declared weight that routing may use now, 0 to 1.

        In a panic, replicas quarantined on suspicion get the share of suspects, so that a pool
        whose checker is broken is loaded evenly.
        """
        if self.state is State.READY:
            elapsed = now - self.since
            if elapsed >= self._slow_start_ns:
                return 1.0
            floor = self.config.slow_start_floor
            return floor + (1.0 - floor) * max(0, elapsed) / self._slow_start_ns
        if self.state is State.SUSPECT or (panic and self.on_suspicion):
            return self.config.suspect_share
        return 0.0

    def let_back(self) -> None:
        """Let canaries decide again about a replica that an incident had taken out."""
        if self.taken_out and self._told is Signal.TAKEN_OUT:
            self._reason = "was taken out because of an incident that is over"
        self.taken_out = False

    @property
    def symptom(self) -> Symptom:
        """Return the ``Symptom`` of a quarantined replica: what is wrong, to decide what to do.

        Frozen comes first; else by what led there and whether it answered right since.
        """
        if self.frozen:
            return Symptom.PROCESS_STOPPED
        right = self._tally[SignalRow.PASSES] > 0
        return symptom_of(self.cause, right_since=right, barred=self.barred)

    @property
    def passes_left(self) -> int | None:
        """How many more right answers readmit a quarantined replica.

        ``None``: not quarantined, none was right since, or no answer can readmit it.
        """
        passes = self._tally[SignalRow.PASSES]
        if self.state is not State.QUARANTINED or self.barred or not passes:
            return None
        return max(0, self._needed - passes)

    def canary_due(self, now: int) -> bool:
        """Whether a canary should be sent now. Asking changes nothing."""
        return self.state in JUDGED and not self.frozen and now >= self.next_canary_at

    def canary_started(self, now: int, *, extra: bool = False) -> None:
        """Note that a canary was sent, and schedule the next one a jittered period later.

        An ``extra`` one leaves the schedule as it is.
        """
        self._canary_sent_at = now
        if not extra:
            self._schedule_canary(now)

    def _schedule_canary(self, now: int) -> None:
        period = self._canary_ns.get(self.state, 0)
        jitter = self.config.canary_jitter * (2.0 * self._rng.random() - 1.0)
        self.next_canary_at = now + round(period * (1.0 + jitter))
        self.called = False

    def call_canary(self, now: int) -> None:
        """Make a canary due because of a doubt, at once but at least a second after the last.

        It is then sent though it costs users a slot. Sends nothing itself.
        """
        self.canary_by(max(now, self._canary_sent_at + _CALLS_APART))
        self.called = True

    def canary_by(self, now: int) -> None:
        """Make the next canary due at this time at the latest."""
        self.next_canary_at = min(self.next_canary_at, now)

    def would_become(self, signal: Signal) -> State:
        """The state that ``handle`` would lead to with this signal. Changes nothing."""
        return self._next(signal, self._conclude(signal))

    def would_be_firm(self, signal: Signal) -> bool:
        """Whether the signal would be a fact about it, exempt from the ejection limit."""
        return self._conclude(signal) in _FACTS

    def handle(self, signal: Signal, now: int, detail: str = "") -> Change | None:
        """Take one signal; return the change of state or of reason, ``None`` if nothing changed.

        Raises ``ImpossibleSignalError`` for a signal that its state cannot get. Does not check the
        ejection limit.
        """
        verdict = self._conclude(signal)
        before, after = self.state, self._next(signal, verdict)
        if before in JUDGED:
            self._tally.count(signal)
        if signal in (Signal.QUEUED, Signal.LAUNCHED) and before is State.STARTING:
            self.load_deadline = now + self._load_timeout_ns  # queueing for hardware is not loading
            self._explain(signal, detail)
        if signal is Signal.CANARY_PASS and before is State.READY and detail:
            self._explain(Conclusion.PASSED_ENOUGH, detail)  # who confirms its answers may change
        graver = self._mark(verdict)
        if after is not before or verdict is Signal.RELAUNCH:
            self._enter(before, after, verdict, now)
        elif not graver:
            return None
        if verdict is Signal.BOUND_HELD:  # the next failure asks for the ejection again
            self._tally.lengths[SignalRow.FAILURES] = self.config.failures_to_quarantine - 1
        self._explain(verdict, detail)
        change = Change(self.replica_id, self.model, before, after, signal, self._reason, now)
        self.history.append(change)
        return change

    def _explain(self, verdict: Signal | Conclusion, detail: str) -> None:
        """Set the reason of the present state, in words for people."""
        self._told = verdict
        text = REASONS[verdict]
        if verdict is Signal.RELAUNCH and detail:  # the reason of the life before, in full
            self._reason = f"{text}: {detail}"
        else:
            self._reason = f"{text} ({detail})" if detail else text

    @property
    def reason(self) -> str:
        """Return why it is in its present state, for people, with right answers since, if any."""
        reason = self._reason
        if self.state not in (State.SUSPECT, State.QUARANTINED):
            return reason
        passes = self._tally[SignalRow.PASSES]
        if not passes or self.barred:
            return reason
        return f"{reason}; {passes} of {self._needed} right answers since"

    def _next(self, signal: Signal, verdict: Signal | Conclusion) -> State:
        after = TRANSITIONS.get((self.state, verdict))
        if after is None:
            who = f"{self.replica_id}/{self.model}"
            raise ImpossibleSignalError(who, self.state, signal, self.history)
        return after

    def _conclude(self, signal: Signal) -> Signal | Conclusion:
        """What the signal amounts to on top of those counted so far. Changes nothing."""
        state, tally = self.state, self._tally
        if state is State.DRAINING and signal is Signal.UNDRAIN:
            if self._doomed:
                return Signal.SPOT_NOTICE  # it will be taken whatever we decide
            return Conclusion.STILL_BARRED if self._quarantined else signal
        if state not in JUDGED:
            return signal
        if signal is Signal.CANARY_PASS and state is not State.READY:
            out = self.barred or self.full or self.frozen
            enough = tally[SignalRow.PASSES] + 1 >= self._needed and not out
            return Conclusion.PASSED_ENOUGH if enough else signal
        if signal is Signal.CANARY_SLOW and state is State.WARMING and (self.full or self.frozen):
            return Signal.UNKNOWN  # right, but nobody could be served there now
        if signal in REPEATED:
            states, row, limit, verdict = REPEATED[signal]
            if state in states and tally[row] + 1 >= getattr(self.config, limit):
                return verdict
        return signal

    def _mark(self, verdict: Signal | Conclusion) -> bool:
        """Set the marks that outlive a state; whether matters are graver than the state tells."""
        if verdict is Conclusion.WRONG_REPEATEDLY and not self.wrong:
            self.wrong = True
            self._wrong_spells += 1
            self._needed = self.config.passes_to_readmit_wrong
            return True
        if verdict is Signal.WRONG_REVISION and not self.wrong_revision:
            running = self.state not in _ENDED
            self.wrong_revision = self._quarantined = running
            return running
        if verdict is Signal.BOUND_HELD and not self.held:
            self.held = True
            return True
        if verdict is Signal.TAKEN_OUT and self.state in _REMOVABLE:
            before, self.taken_out = self.taken_out, True
            return not before
        if verdict in (Signal.NO_HEADROOM, Signal.HEADROOM_BACK) and self.state in JUDGED:
            before, self.full = self.full, verdict is Signal.NO_HEADROOM
            return before is not self.full and self.state is State.QUARANTINED
        if verdict in (Signal.FROZEN, Signal.THAWED) and self.state not in _ENDED:
            before, self.frozen = self.frozen, verdict is Signal.FROZEN
            return before is not self.frozen
        if verdict is Signal.SPOT_NOTICE:
            self._doomed = True
        return False

    def _enter(self, before: State, after: State, verdict: Signal | Conclusion, now: int) -> None:
        """Begin a state: its clock, its proof, its canaries."""
        if after is State.STARTING:
            self._begin_life(now)
            self.incarnation += 1
            return
        ill = after in (State.SUSPECT, State.QUARANTINED) and verdict not in _HONEST
        if before is State.READY and ill:
            well_for_long = now - self.since >= self._forgive_ns
            self._illnesses = 1 if well_for_long else self._illnesses + 1
        self.state, self.since, self.cause = after, now, verdict
        self.held = verdict is Signal.BOUND_HELD
        if after is State.READY:
            self.wrong = self._quarantined = False
        elif after is State.QUARANTINED:
            self._quarantined = True
        elif after in _ENDED:
            self.full = self.frozen = False  # of a process that is gone
        self._tally.begin_state()
        self._needed = self._proof(after, verdict)
        if after not in (State.LOADING, State.WARMING):
            self.load_deadline = None
        elif self.load_deadline is None:  # undrained: one canary, but not for ever
            self.load_deadline = now + self._load_timeout_ns
        self._schedule_canary(now)
        if after is State.WARMING:
            self.call_canary(now)

    def _proof(self, state: State, verdict: Signal | Conclusion) -> int:
        """Passes in a row that lead out of a state: each relapse asks for twice as many."""
        config = self.config
        if state is State.QUARANTINED and self.wrong:
            return config.passes_to_readmit_wrong
        if state not in (State.SUSPECT, State.QUARANTINED) or verdict in _HONEST:
            return config.passes_to_admit  # an honest 429 owes no more proof than a newcomer
        base = config.passes_to_clear if state is State.SUSPECT else config.passes_to_readmit
        return max(base, min(base << min(max(self._illnesses - 1, 0), 9), config.passes_max))


__all__ = [
    "TRANSITIONS",
    "Change",
    "Conclusion",
    "HealthConfig",
    "ImpossibleSignalError",
    "ReplicaHealth",
    "Signal",
]
