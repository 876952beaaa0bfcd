"""Any sequence of signals, checked against what must hold of every life."""

from random import Random

import pytest
from health_stage import FAIL, PASS, SLOW, WRONG
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.core.health.health import (
    TRANSITIONS,
    Conclusion,
    HealthConfig,
    ImpossibleSignalError,
    ReplicaHealth,
    Signal,
)
from holdfast.core.health.lifecycle import JUDGED, ROUTABLE
from holdfast.core.types import SECOND, State
from sampling import examples

NEUTRAL = (
    *(Signal.BUSY, Signal.UNKNOWN, Signal.PASSIVE_OK, Signal.LAUNCHED, Signal.LOADED),
    Signal.HEADROOM_BACK,
)
ENDED = (State.STOPPED, State.DEAD)


class Lives(RuleBasedStateMachine):
    """Any legal sequence of signals, checked against what must hold of every life."""

    @initialize(seed=st.integers(0, 1000), wrongs=st.integers(1, 3), passes=st.integers(1, 3))
    def begin(self, seed, wrongs, passes):
        config = HealthConfig(
            wrongs_to_quarantine=wrongs, passes_to_admit=passes, history_max=5, slow_start_s=3.0
        )
        self.now = 0
        self.health = ReplicaHealth(config, "r1", "m", 0, Random(seed))
        self.passed = self.right = False  # since the last launch
        self.passes_in_row = 0
        self.full = self.frozen = False  # as we were told, of the process that runs now

    @rule(
        signal=st.sampled_from(list(Signal))
        | st.sampled_from([PASS, PASS, PASS, WRONG, FAIL, Signal.LOADED])
        | st.sampled_from([Signal.FROZEN, Signal.THAWED, Signal.NO_HEADROOM, Signal.HEADROOM_BACK]),
        step=st.integers(0, 5 * SECOND),
    )
    def any_signal(self, signal, step):
        self.take(signal, step)

    def take(self, signal, step):
        self.now += step
        health = self.health
        before, lied, barred = health.state, health.wrong, health.barred
        if (before, signal) not in TRANSITIONS:
            with pytest.raises(ImpossibleSignalError):
                health.handle(signal, self.now)
            assert health.state is before
            return
        expected, firm = health.would_become(signal), health.would_be_firm(signal)
        change = health.handle(signal, self.now)
        if signal in (Signal.FROZEN, Signal.THAWED) and before not in ENDED:
            self.frozen = signal is Signal.FROZEN
        if signal in (Signal.NO_HEADROOM, Signal.HEADROOM_BACK) and before in JUDGED:
            self.full = signal is Signal.NO_HEADROOM
        if health.state in ENDED or signal is Signal.RELAUNCH:
            self.full = self.frozen = False
        if signal is PASS:
            self.passes_in_row += 1
        elif signal not in NEUTRAL:
            self.passes_in_row = 0
        if signal is Signal.RELAUNCH:
            self.passed = self.right = False
            self.passes_in_row = 0
        elif before in JUDGED:
            self.passed |= signal is PASS
            self.right |= signal in (PASS, SLOW)
        assert health.state is expected
        assert (change is not None) or health.state is before
        if change is not None:
            assert health.history[-1] is change
            assert (change.before, change.after, change.at) == (before, health.state, self.now)
        if before is State.DEAD and health.state is not State.DEAD:
            assert signal is Signal.RELAUNCH
        if health.state is State.READY and before is not State.READY:
            assert signal is PASS
            assert not barred
        if lied and not health.wrong and signal is not Signal.RELAUNCH:
            assert self.passes_in_row >= health.config.passes_to_readmit_wrong
        if firm and before is not State.DEAD and before is not State.STOPPED:
            said = signal is Signal.DRAINS_ITSELF
            assert said or health.wrong or health.wrong_revision or health.frozen

    @rule(count=st.integers(2, 14))
    def right_answers(self, count):
        for _ in range(count):
            self.take(PASS, SECOND)

    @precondition(lambda self: self.health.canary_due(self.now))
    @rule()
    def canary(self):
        self.health.canary_started(self.now)
        periods = (1.0, 5.0, 1.0, 2.0)
        assert self.now < self.health.next_canary_at <= self.now + 1.2 * max(periods) * SECOND

    @rule(step=st.integers(0, 10**14))
    def time_passes(self, step):
        lied, state = self.health.wrong, self.health.state
        self.now += step
        self.health.share(self.now)
        self.health.canary_due(self.now)
        assert (self.health.wrong, self.health.state) == (lied, state)

    @invariant()
    def holds(self):
        health = self.health
        share, panicked = health.share(self.now), health.share(self.now, panic=True)
        assert 0.0 <= share <= panicked <= 1.0
        assert (share > 0) == (health.state in ROUTABLE)
        if health.never_readmit_by_panic:
            assert panicked == 0.0
        if health.state is State.READY:
            assert self.passed
        if health.state in ROUTABLE:
            assert self.right
            assert not health.wrong
            assert not health.wrong_revision
            assert (self.full, self.frozen) == (False, False)
        assert (health.full, health.frozen) == (self.full, self.frozen)
        if self.frozen:
            assert panicked == 0.0
            assert not health.on_suspicion
            assert not health.canary_due(self.now)
        if health.held:
            assert health.state is State.SUSPECT
        assert len(health.history) <= 5
        loading = health.state in (State.STARTING, State.LOADING, State.WARMING)
        assert (health.load_deadline is not None) == loading


Lives.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
TestLives = Lives.TestCase


def test_verdicts_are_concluded_and_never_reported():
    assert not set(Conclusion) & set(Signal)
