from itertools import pairwise
from random import Random

import pytest

from holdfast.core.canary import CanaryConfig, CanaryCost, CanaryVerdict
from holdfast.core.failure import Class, Kind
from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.ejection import EjectionConfig
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import HealthConfig, Signal
from holdfast.core.messages import (
    CallBackCanary,
    CanaryResult,
    DeviceMemory,
    DrainAsked,
    EngineLoads,
    Exited,
    FleetView,
    Frozen,
    HurryCanary,
    Joined,
    Launch,
    Left,
    LoadReported,
    Move,
    Notice,
    Phase,
    Publish,
    Report,
    ReportCode,
    RestartAsked,
    RunCanary,
    Seen,
    SpotNotice,
    Stop,
    Summary,
    Tally,
    Tick,
    UndrainAsked,
)
from holdfast.core.types import MILLISECOND, SECOND, Replica, State, nanos

START = 100 * SECOND
STEP = 200 * MILLISECOND


class Control:
    """Drives one fleet as the control loop does; replicas answer canaries as they are told to."""

    def __init__(
        self,
        *names: str,
        joined: bool = True,
        canary: CanaryConfig | None = None,
        seed: int = 0,
        slots: int = 0,
        **config,
    ) -> None:
        # What is in flight is told at once here, so nobody has to wait for gateways to tell it.
        config.setdefault("drain", DrainConfig(hear_s=0.0))
        self.fleet = Fleet(FleetConfig(**config), lambda name: Random(f"{name}/{seed}"))
        self.asks = canary or CanaryConfig()
        self.now = START
        self.published: list[FleetView] = []
        self.answers: dict[str, str | None] = {}  # others pass; None: no answer yet
        self.latencies: dict[str, int] = {}  # of answers; others are not measured
        if joined:
            for name in names:
                self.join(name, slots=slots)
            self.wait(1.0)
            self.wait(31.0, every=SECOND)  # slow starts are over

    # what happens

    def tell(self, event) -> list:
        actions = self.fleet.handle(event, self.now)
        self.published += [a.view for a in actions if isinstance(a, Publish)]
        return actions

    def join(self, name: str, *, running: bool = True, model: str = "m", **declared) -> list:
        return self.tell(Joined(Replica(name, model, **declared), running, self.asks))

    def phase(self, name: str, *phases: State) -> list:
        return [action for phase in phases for action in self.tell(Phase(name, phase))]

    def canary(self, name: str, verdict: str, **kwargs) -> list:
        """A canary's answer, of the process that runs there now."""
        life = self.fleet.members[name].health.incarnation
        return self.tell(CanaryResult(name, CanaryVerdict(verdict), incarnation=life, **kwargs))

    def seen(self, *actions) -> list:
        return self.tell(Seen(actions))

    def tally(
        self, name: str, successes=0, failures=0, backpressure=0, inflight=0, tokens=0
    ) -> list:
        told = Tally("m", name, successes, failures, backpressure, inflight, tokens)
        return self.seen(Summary((told,)))

    def kv(self, name: str, *used: float) -> list:
        """Readings of its KV cache, a second apart."""
        actions = []
        for each in used:
            actions += self.tell(EngineLoads((LoadReported("chat", name, kv_used=each),)))
            self.after(1.0)
        return actions

    def breaker_opened(self, name: str) -> list:
        return self.seen(Report("m", name, "open", "5 failures in a row"))

    def overdue(self, name: str) -> list:
        return self.seen(Report("m", name, ReportCode.OVERDUE.value, "no answer for 2 s"))

    def tick(self) -> list:
        """One tick, and the canaries it asks for answered at once."""
        actions = self.tell(Tick())
        for action in [a for a in actions if isinstance(a, RunCanary)]:
            answer = self.answers.get(action.replica_id, "pass")
            if answer is not None:
                name, life = action.replica_id, action.incarnation
                took = self.latencies.get(name, 0)
                actions += self.tell(
                    CanaryResult(name, CanaryVerdict(answer), took, incarnation=life)
                )
        return actions

    def wait(self, delay_s: float, every: int = STEP) -> list:
        actions, until = [], self.now + nanos(delay_s)
        while self.now < until:
            self.now = min(self.now + every, until)
            actions += self.tick()
        return actions

    def after(self, delay_s: float) -> "Control":
        self.now += nanos(delay_s)
        return self

    # what is seen

    def state(self, name: str) -> State:
        return self.fleet.members[name].health.state

    def states(self) -> list[State]:
        return [member.health.state for member in self.fleet.members.values()]

    def share(self, name: str) -> float:
        """As gateways were last told."""
        return next(v.share for v in self.published[-1].replicas if v.replica.id == name)

    def firm(self, name: str) -> bool:
        return next(v.firm for v in self.published[-1].replicas if v.replica.id == name)


def all_of(actions: list, kind: type) -> list:
    return [action for action in actions if isinstance(action, kind)]


def notices(actions: list, what: str | None = None) -> list[Notice]:
    return [n for n in all_of(actions, Notice) if what in (None, n.what)]


# --- from declared to ready ----------------------------------------------------------------------


def test_a_declared_replica_is_launched_and_gets_no_traffic_yet():
    control = Control(joined=False)
    actions = control.join("r1", running=False)
    assert all_of(actions, Launch) == [Launch("r1", 0, "declared")]
    assert control.state("r1") is State.STARTING
    assert control.share("r1") == 0.0


def test_a_replica_is_admitted_by_a_right_answer_and_by_nothing_less():
    control = Control(joined=False)
    control.answers["r1"] = None
    control.join("r1", running=False)
    told = control.phase("r1", State.STARTING, State.LOADING, State.WARMING)
    assert [n.what for n in notices(told)] == ["loading", "warming"]
    (canary,) = all_of(control.wait(0.2), RunCanary)
    assert (canary.replica_id, canary.model) == ("r1", "m")
    assert control.state("r1") is State.WARMING
    assert control.share("r1") == 0.0
    (notice,) = notices(control.canary("r1", "pass"))
    assert (notice.replica_id, notice.what) == ("r1", "ready")
    assert control.share("r1") > 0.0


def test_a_replica_that_was_there_before_is_not_launched_but_has_to_answer_too():
    control = Control(joined=False)
    actions = control.join("r1", running=True)
    assert all_of(actions, Launch) == []
    assert control.state("r1") is State.WARMING
    control.wait(0.2)
    assert control.state("r1") is State.READY


def test_a_second_replica_of_the_same_name_is_refused_by_name():
    control = Control("r1")
    with pytest.raises(ValueError, match="'r1' joined twice"):
        control.join("r1")


def test_a_replica_taken_out_is_no_longer_told_of():
    control = Control("r1", "r2")
    (notice,) = notices(control.tell(Left("r1")))
    assert (notice.replica_id, notice.what) == ("r1", "left")
    assert [view.replica.id for view in control.published[-1].replicas] == ["r2"]


def test_news_of_replicas_that_are_not_here_is_ignored():
    control = Control("r1")
    for event in (
        Left("r9"),
        Phase("r9", State.LOADING),
        Exited("r9"),
        SpotNotice("r9", SECOND),
        CanaryResult("r9", CanaryVerdict.WRONG),
        DrainAsked("r9", "rollout"),
        RestartAsked("r9", "wedged"),
        UndrainAsked("r9", "needed"),
        Frozen("r9", frozen=True),
        EngineLoads((LoadReported("chat", "r9", kv_used=1.0),)),
        Seen((Report("m", "r9", "open", "x"), Summary((Tally("m", "r9", 1, 0, 0, 0, 0),)))),
    ):
        assert control.tell(event) == []


def test_a_load_that_takes_too_long_is_given_up_and_begun_anew():
    control = Control(joined=False, health=HealthConfig(load_timeout_s=60.0))
    control.join("r1", running=False)
    control.phase("r1", State.STARTING, State.LOADING)
    assert all_of(control.wait(59.0, every=SECOND), Stop) == []
    actions = control.wait(2.0)
    (dead,) = notices(actions, "dead")
    assert dead.failure_class is Class.LOADING
    assert dead.reason == "was not admitted within its loading time (stuck while loading)"
    assert all_of(actions, Stop) == [Stop("r1", "load_stalled")]
    assert all_of(actions, Launch) == [Launch("r1", SECOND, "load_stalled")]
    assert control.state("r1") is State.STARTING


def test_a_replica_that_loads_but_never_answers_right_is_stuck_too():
    control = Control(joined=False, health=HealthConfig(load_timeout_s=20.0))
    control.answers["r1"] = "fail"
    control.join("r1", running=False)
    control.phase("r1", State.WARMING)
    actions = control.wait(21.0)
    assert "stuck while warming" in notices(actions, "dead")[0].reason
    assert len(all_of(actions, Launch)) == 1


def test_waiting_for_a_launch_is_not_loading():
    control = Control(
        joined=False,
        health=HealthConfig(load_timeout_s=5.0),
        launch_backoff_s=60.0,
        launch_backoff_max_s=60.0,
    )
    control.join("r1", running=False)
    control.tell(Exited("r1"))
    assert all_of(control.wait(64.0, every=SECOND), Launch) == []
    assert len(all_of(control.wait(2.0), Launch)) == 1


# --- canaries ------------------------------------------------------------------------------------


def test_a_ready_replica_is_asked_every_few_seconds_with_jitter():
    control = Control("r1")
    asked = []
    for _ in range(300):
        control.after(0.2)
        if all_of(control.tick(), RunCanary):
            asked.append(control.now)
    gaps = [(later - earlier) / SECOND for earlier, later in pairwise(asked)]
    assert 8 <= len(gaps) <= 15
    assert min(gaps) >= 3.9
    assert max(gaps) <= 6.3
    assert len(set(gaps)) > 1


def test_one_canary_at_a_time():
    control = Control("r1")
    control.answers["r1"] = None
    assert len(all_of(control.wait(60.0), RunCanary)) == 1


def test_a_canary_on_a_busy_replica_gets_more_time_within_a_bound():
    control = Control("r1", canary_deadline_s=5.0, canary_deadline_max_s=12.0)
    deadlines = []
    for inflight in (0, 16, 1000):
        control.tally("r1", successes=1, inflight=inflight)
        (canary,) = all_of(control.wait(6.5), RunCanary)[:1]
        deadlines.append(canary.deadline)
    assert deadlines == [5 * SECOND, 10 * SECOND, 12 * SECOND]


def test_an_idle_replica_whose_canaries_are_quick_has_less_time_and_after_a_silence_still_less():
    control = Control("r1", "r2")

    def deadlines() -> list[int]:
        asked = all_of(control.wait(6.5), RunCanary)
        return [canary.deadline for canary in asked if canary.replica_id == "r1"]

    assert deadlines()[0] == 5 * SECOND  # nothing is known of it
    control.latencies["r1"] = 100 * MILLISECOND
    control.wait(30.0)
    assert deadlines()[0] == 3 * SECOND
    control.answers["r1"] = "timeout"
    assert deadlines()[:3] == [3 * SECOND, 2 * SECOND, 2 * SECOND]
    control = Control("r1", "r2")
    control.latencies["r1"] = 400 * MILLISECOND
    control.wait(30.0)
    assert deadlines()[0] == 5 * SECOND  # twenty times what it takes, and no more than ever


def test_a_quarantined_replica_is_asked_soon_whether_it_still_fails_and_then_at_length():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=1)
    control.after(6.0)
    for name in ("r2", "r3"):
        control.canary(name, "pass")
    control.after(1.5)
    control.canary("r1", "timeout", latency=5 * SECOND, running=1, progress=False)
    assert control.state("r1") is State.QUARANTINED
    control.tally("r1", inflight=0)
    control.answers["r1"] = "timeout"
    asked = all_of(control.wait(10.0), RunCanary)
    times = [(one.deadline, one.longest, one.unhurried) for one in asked if one.replica_id == "r1"]
    assert times[:2] == [(5 * SECOND, 12.5 * SECOND, False), (5 * SECOND, 12.5 * SECOND, True)]


def test_an_overdue_canary_counts_when_it_is_due_and_no_other_is_sent_while_it_is_read_on():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = None
    control.wait(7.0)
    assert control.fleet.members["r1"].canary_out
    spent = control.fleet.members["r1"].budget.spent_tokens
    control.canary("r1", "timeout", latency=5 * SECOND, began=True, reads_on=True)
    assert control.state("r1") is State.SUSPECT
    assert not [c for c in all_of(control.wait(4.0), RunCanary) if c.replica_id == "r1"]
    control.canary("r1", "timeout", latency=10 * SECOND, began=True, gap_s=5.0)
    assert [c for c in all_of(control.wait(4.0), RunCanary) if c.replica_id == "r1"]
    cost = control.fleet.members["r1"].budget.spent_tokens - spent
    assert cost == control.asks.tokens  # one question, however often it was told of


def test_a_failing_canary_makes_a_suspect_with_a_tenth_of_its_share():
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "fail"))
    assert (notice.what, notice.reason) == ("suspect", "a canary got no answer")
    assert control.share("r1") == pytest.approx(0.1)
    assert control.share("r2") == 1.0


def test_a_suspect_that_keeps_failing_is_quarantined_and_asked_on():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "fail"
    actions = control.canary("r1", "fail") + control.wait(5.0)
    assert [n.what for n in notices(actions) if n.replica_id] == ["suspect", "quarantined"]
    assert control.share("r1") == 0.0
    assert not control.firm("r1")
    assert [c for c in all_of(control.wait(3.0), RunCanary) if c.replica_id == "r1"]


def test_a_suspect_that_passes_again_is_ready_again_and_starts_slowly():
    control = Control("r1", "r2", "r3")
    control.canary("r1", "fail")
    control.wait(4.0)
    assert control.state("r1") is State.READY
    assert control.share("r1") < 0.5


def test_a_quarantined_replica_comes_back_after_enough_right_answers():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "fail"
    control.canary("r1", "fail")
    control.wait(5.0)
    assert control.state("r1") is State.QUARANTINED
    control.answers["r1"] = "pass"
    control.wait(10.0)
    assert control.state("r1") is State.READY


def test_a_quarantine_without_recovery_ends_in_a_new_process():
    control = Control("r1", "r2", "r3", relaunch_after_s=30.0)
    control.answers["r1"] = "fail"
    actions = control.canary("r1", "fail") + control.wait(40.0)
    assert len(all_of(actions, Stop)) == 1
    (launch,) = all_of(actions, Launch)
    assert (launch.replica_id, launch.delay) == ("r1", SECOND)
    assert control.state("r1") is State.STARTING


def test_an_answer_of_an_earlier_process_does_not_count():
    control = Control("r1", "r2")
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    assert control.tell(CanaryResult("r1", CanaryVerdict.PASS, incarnation=0)) == []
    assert control.state("r1") is State.WARMING
    control.canary("r1", "pass")
    assert control.state("r1") is State.READY


def test_a_doubt_about_one_asks_its_peers_at_once():
    control = Control("r1", "r2", "r3")
    control.wait(6.0)
    control.canary("r1", "fail")
    asked = {canary.replica_id for canary in all_of(control.wait(1.1), RunCanary)}
    assert {"r2", "r3"} <= asked


def test_slowness_makes_a_suspect_but_never_ejects():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "slow"
    control.wait(60.0)
    assert control.state("r1") is State.SUSPECT
    assert control.share("r1") == pytest.approx(0.1)


# --- busy, stalled, unknown ----------------------------------------------------------------------


def test_a_canary_that_times_out_while_users_are_served_means_busy():
    control = Control("r1", "r2", "r3")
    for _ in range(10):
        assert notices(control.canary("r1", "timeout", running=8, progress=True)) == []
    assert control.state("r1") is State.READY


def test_a_canary_that_times_out_while_nothing_moves_means_stalled():
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "timeout", running=8, progress=False))
    assert notice.what == "quarantined"
    assert "8 requests running and no token emitted" in notice.reason


def test_what_stands_at_a_stalled_replica_is_moved_until_nothing_is_left():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8)
    actions = control.canary("r1", "timeout", running=8, progress=False)
    assert control.state("r1") is State.QUARANTINED
    assert all_of(actions, Move) == []
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1", stalled=True)]
    assert all_of(control.wait(0.2), Move) == []  # until a gateway says that something is left
    control.tally("r1", inflight=1)
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1", stalled=True)]
    control.tally("r1", inflight=0)
    assert all_of(control.wait(5.0), Move) == []


def test_what_stands_at_the_only_replica_that_there_is_stays():
    control = Control("r1", "r2")
    control.tell(Exited("r2", Kind.EXITED))
    control.tally("r1", inflight=8)
    control.canary("r1", "timeout", running=8, progress=False)
    assert all_of(control.wait(5.0), Move) == []


def test_what_runs_at_a_replica_that_is_out_for_another_reason_stays():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8)
    for _ in range(3):
        control.canary("r1", "wrong")
    assert control.state("r1") is State.QUARANTINED
    assert all_of(control.wait(5.0), Move) == []


def test_a_canary_that_was_over_before_anybody_could_tell_of_progress_means_nothing():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8, tokens=5)
    for _ in range(10):
        assert notices(control.canary("r1", "timeout", latency=SECOND, running=8)) == []
    assert control.state("r1") is State.READY


def test_it_means_stalled_where_its_requests_have_stood_for_long():
    control = Control("r1", "r2", "r3")
    control.tally("r1", inflight=8)
    for _ in range(6):
        control.after(1.0)
        control.tally("r1", inflight=8)
    (notice,) = notices(control.canary("r1", "timeout", running=8))
    assert notice.what == "quarantined"
    assert "no token" in notice.reason


def overdue(control: Control, name: str) -> list:
    """A canary that was out for ten seconds, with requests beside it and no token."""
    return control.canary(name, "timeout", latency=10 * SECOND, running=8, progress=False)


def test_the_first_stalled_canary_of_a_silent_fleet_ejects_nobody():
    control = Control("r1", "r2", "r3")
    control.after(20.0)
    (notice,) = notices(overdue(control, "r1"), "verdict held")
    assert "may be everybody's" in notice.reason
    assert control.states() == [State.READY] * 3


@pytest.mark.parametrize("sign", ["canary", "user"])
def test_a_stalled_canary_ejects_where_a_peer_was_heard_of_meanwhile(sign):
    control = Control("r1", "r2", "r3")
    control.after(20.0)
    if sign == "canary":
        control.canary("r3", "wrong")  # not right, but there
    else:
        control.tally("r3", successes=1)
    overdue(control.after(5.0), "r1")
    assert control.state("r1") is State.QUARANTINED


@pytest.mark.parametrize("running", [0, None])
def test_a_canary_that_times_out_on_an_idle_replica_is_a_failure(running):
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "timeout", running=running))
    assert (notice.what, "idle" in notice.reason) == ("suspect", True)


@pytest.mark.parametrize("verdict", ["unknown", "busy"])
def test_a_probe_that_cannot_be_trusted_changes_nothing(verdict):
    control = Control("r1", "r2", "r3")
    for _ in range(10):
        assert control.canary("r1", verdict) == []
    assert control.state("r1") is State.READY


# --- wrong answers -------------------------------------------------------------------------------


def liar(control: Control, name: str = "r1") -> list:
    return control.canary(name, "wrong") + control.after(0.1).canary(name, "wrong")


def test_repeated_wrong_answers_are_firm():
    control = Control("r1", "r2", "r3")
    assert [n.what for n in notices(liar(control))] == ["suspect", "quarantined"]
    assert control.firm("r1")
    assert control.share("r1") == 0.0


def test_a_lie_is_no_suspicion_and_no_bound_holds_it():
    control = Control("r1", "r2", ejection=EjectionConfig(share_max=0.0))
    control.canary("r2", "pass")
    liar(control)
    assert control.state("r1") is State.QUARANTINED
    assert control.firm("r1")


def test_a_liar_is_not_readmitted_by_panic():
    control = Control("r1", "r2", "r3", "r4")
    liar(control)
    for name in ("r2", "r3"):
        control.canary(name, "timeout", running=3, progress=False)
    control.canary("r4", "pass")
    assert control.published[-1].panic == ("m",)
    assert control.share("r1") == 0.0
    assert control.share("r2") > 0.0


def test_without_a_witness_for_the_expected_answer_the_verdict_is_held():
    control = Control("r1", "r2", "r3")
    control.after(60.0)  # nobody has answered lately
    control.canary("r1", "wrong")
    actions = control.after(0.1).canary("r1", "wrong")
    (held,) = notices(actions, "verdict held")
    assert "no peer gave the expected answer lately" in held.reason
    assert control.state("r1") is State.SUSPECT
    assert not control.firm("r1")


def test_a_replica_without_peers_needs_no_witness():
    control = Control("r1")
    liar(control)
    assert control.state("r1") is State.QUARANTINED


def test_a_liar_that_never_served_is_held_back_without_a_witness_too():
    control = Control("r2")
    control.join("r1", running=True)
    control.after(60.0)
    control.canary("r1", "wrong")
    actions = control.after(0.1).canary("r1", "wrong")
    assert [n.what for n in notices(actions)] == ["verdict held"]
    assert control.state("r1") is State.WARMING


# --- when every canary fails ---------------------------------------------------------------------


def test_when_every_canary_fails_at_once_the_expected_answer_is_suspect():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "wrong")
    actions = control.wait(60.0)
    (doubted,) = notices(actions, "canaries doubted")
    assert (doubted.model, doubted.replica_id) == ("m", "")
    assert State.QUARANTINED not in control.states()
    assert all(control.share(name) > 0.0 for name in ("r1", "r2", "r3"))
    assert set(control.fleet._evidence.doubts) == {"m"}


def test_a_doubt_is_over_when_somebody_passes():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "fail")
    control.wait(10.0)
    control.answers = {}
    assert len(notices(control.wait(10.0), "canaries trusted again")) == 1
    assert control.fleet._evidence.doubts == {}
    control.wait(60.0)
    assert control.states() == [State.READY] * 3


def test_who_was_asked_while_nobody_answered_is_not_condemned_by_the_first_who_goes_on():
    control = Control("r1", "r2", "r3")
    for _ in range(2):  # everybody stands still
        for name in ("r1", "r2", "r3"):
            control.canary(name, "timeout", latency=5 * SECOND)
    before = control.states()
    control.after(4.0).canary("r2", "pass")
    for _ in range(2):
        assert notices(control.canary("r1", "timeout", latency=5 * SECOND)) == []
    assert control.states() == before
    control.after(5.1).canary("r2", "pass")
    for _ in range(3):  # asked after that, its silence is its own
        control.canary("r1", "timeout", latency=5 * SECOND)
    assert control.state("r1") is State.QUARANTINED


def test_those_quarantined_on_doubtful_canaries_serve_again_though_their_state_is_held():
    control = Control("r1", "r2", "r3")
    control.answers["r1"] = "fail"
    control.canary("r1", "fail")
    control.wait(5.0)
    assert control.share("r1") == 0.0
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "fail")
    control.wait(15.0)
    assert control.state("r1") is State.QUARANTINED
    assert control.share("r1") > 0.0
    assert control.published[-1].panic == ("m",)


def test_failures_of_an_earlier_process_raise_no_doubt():
    control = Control("r1", "r2")
    control.answers = {"r1": None, "r2": None}
    control.wait(15.0)
    control.canary("r1", "fail")
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    actions = control.canary("r2", "fail")
    assert notices(actions, "canaries doubted") == []
    assert control.state("r2") is State.SUSPECT


def test_where_nobody_listens_no_canary_is_doubted_and_all_are_dead():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "refused")
    actions = control.wait(20.0)
    assert notices(actions, "canaries doubted") == []
    assert {each.replica_id for each in notices(actions, "dead")} == {"r1", "r2", "r3"}
    assert State.READY not in control.states()


def test_where_nothing_answers_states_are_held_and_no_answer_is_doubted():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "timeout")
    actions = control.wait(20.0)
    assert len(notices(actions, "canaries unanswered")) == 1
    assert notices(actions, "canaries doubted") == []
    assert State.QUARANTINED not in control.states()
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "wrong")  # they speak again
    assert len(notices(control.wait(20.0), "canaries doubted")) == 1


def test_where_users_fail_too_the_canaries_are_confirmed():
    control = Control("r1", "r2")
    control.answers = dict.fromkeys(("r1", "r2"), "fail")
    assert len(notices(control.wait(10.0), "canaries doubted")) == 1  # nobody asks: who knows
    told = []
    for _ in range(8):
        told += control.tally("r1", failures=2) + control.tally("r2", failures=1)
        told += control.wait(1.0)
    assert [n.what for n in notices(told) if "canaries" in n.what] == ["canaries confirmed"]
    for _ in range(8):
        told += control.tally("r1", successes=2)
        told += control.wait(1.0)
    assert notices(told)[-1].what == "canaries doubted"  # users are served, canaries are not


def test_engines_that_say_that_they_fail_are_believed_unless_users_are_served():
    control = Control("r1", "r2")
    control.answers = dict.fromkeys(("r1", "r2"), None)
    told = []
    for _ in range(3):
        for name in ("r1", "r2"):
            told += control.after(1.0).canary(name, "fail", status=500)
    assert [n.what for n in notices(told) if "canaries" in n.what] == ["canaries confirmed"]
    assert State.QUARANTINED not in control.states()
    control.tally("r1", successes=1)
    (doubted,) = notices(control.canary("r1", "fail", status=500), "canaries doubted")
    assert doubted.reason == "all canaries fail, and users are served"


def test_a_port_that_is_closed_while_canaries_are_doubted_is_a_death():
    control = Control("r1", "r2", "r3")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "wrong")
    assert len(notices(control.wait(20.0), "canaries doubted")) == 1
    before = control.state("r2")
    control.answers["r1"] = "refused"
    dead = notices(control.wait(20.0), "dead")
    assert {each.replica_id for each in dead} == {"r1"}
    assert control.state("r2") is before  # two others still fail together
    assert control.fleet._evidence.doubts


def test_models_are_doubted_each_for_itself():
    control = Control("r1", "r2")
    for name in ("o1", "o2"):
        control.join(name, model="other")
    control.wait(35.0)
    control.answers = {"r1": "fail", "r2": "fail"}
    (doubted,) = notices(control.wait(10.0), "canaries doubted")
    assert doubted.model == "m"
    control.canary("o1", "fail")
    assert control.state("o1") is State.SUSPECT


# --- the bound on suspicion ----------------------------------------------------------------------


def stall(control: Control, name: str) -> list:
    return control.canary(name, "timeout", running=4, progress=False)


def test_half_of_a_pool_may_be_out_on_suspicion_and_no_more():
    control = Control("r1", "r2", "r3", "r4")
    for name in ("r1", "r2", "r3"):
        control.canary("r4", "pass")
        stall(control, name)
    assert control.states().count(State.QUARANTINED) == 2
    assert control.state("r3") is State.SUSPECT


def test_beyond_the_bound_the_pool_fails_open_and_says_so():
    control = Control("r1", "r2", "r3", "r4")
    for name in ("r1", "r2"):
        control.canary("r4", "pass")
        stall(control, name)
    assert control.published[-1].panic == ()
    actions = stall(control, "r3")
    (panic,) = notices(actions, "panic")
    assert (panic.model, panic.replica_id) == ("m", "")
    assert "failing open" in panic.reason
    assert control.published[-1].panic == ("m",)
    assert [control.share(f"r{n}") for n in (1, 2, 3)] == [pytest.approx(0.1)] * 3
    assert "held back" in control.fleet.members["r3"].health.reason


def test_a_panic_is_over_when_enough_are_well_again():
    control = Control("r1", "r2", "r3", "r4")
    for name in ("r1", "r2", "r3"):
        control.canary("r4", "pass")
        stall(control, name)
    actions = control.wait(30.0)
    assert len(notices(actions, "panic over")) == 1
    assert control.published[-1].panic == ()
    assert control.states() == [State.READY] * 4


def test_a_panic_ends_with_the_model_it_was_about():
    control = Control("r1", "r2")
    control.join("o1", model="other")
    control.canary("r2", "pass")
    stall(control, "r1")
    control.canary("r1", "pass")
    stall(control, "r2")
    assert control.published[-1].panic == ("m",)
    control.tell(Left("r1"))
    control.tell(Left("r2"))
    control.wait(2.0)
    assert control.published[-1].panic == ()


def test_the_dead_do_not_count_as_ejected():
    control = Control("r1", "r2", "r3", "r4")
    control.tell(Exited("r1"))
    control.tell(Exited("r2"))
    control.canary("r4", "pass")
    stall(control, "r3")
    assert control.state("r3") is State.QUARANTINED


# --- what gateways have seen ---------------------------------------------------------------------


def test_an_opened_breaker_makes_a_suspect_and_calls_its_canary():
    control = Control("r1", "r2", "r3")
    control.wait(6.0)
    (notice,) = notices(control.breaker_opened("r1"))
    assert (notice.what, notice.failure_class) == ("suspect", Class.RUNTIME)
    assert "5 failures in a row" in notice.reason
    asked = [canary.replica_id for canary in all_of(control.wait(1.3), RunCanary)]
    assert "r1" in asked


def test_repeated_openings_quarantine():
    control = Control("r1", "r2", "r3")
    for _ in range(3):
        control.breaker_opened("r1")
    assert control.state("r1") is State.QUARANTINED


@pytest.mark.parametrize("what", ["closed", "half_open", "ladder moved"])
def test_other_reports_say_nothing_about_a_replica(what):
    control = Control("r1", "r2")
    assert control.seen(Report("m", "r1", what, "x")) == []


def test_nothing_but_backpressure_for_ten_seconds_is_not_ready():
    control = Control("r1", "r2", "r3")
    seen = []
    for _ in range(11):
        seen.append(control.state("r1"))
        control.tally("r1", backpressure=3)
        control.after(1.0)
    assert seen == [State.READY] * 11
    assert control.state("r1") is State.QUARANTINED
    assert control.fleet.members["r1"].health.reason == "answers nothing but backpressure"
    assert not control.firm("r1")


def test_one_success_among_the_backpressure_is_enough():
    control = Control("r1", "r2", "r3")
    for second in range(30):
        control.tally("r1", backpressure=3, successes=int(second % 8 == 0))
        control.after(1.0)
    assert control.state("r1") is State.READY


def test_a_replica_back_from_its_backpressure_has_its_ten_seconds_again():
    control = Control("r1", "r2", "r3")
    for _ in range(12):
        control.tally("r1", backpressure=3)
        control.after(1.0)
    control.wait(6.0)
    assert control.state("r1") is State.READY  # a right answer was enough
    control.tally("r1", backpressure=1)
    assert control.state("r1") is State.READY


def test_two_refusals_an_hour_apart_are_not_an_hour_of_backpressure():
    control = Control("r1", "r2", "r3")
    control.tally("r1", backpressure=1)
    control.after(3600.0)
    control.tally("r1", backpressure=1)
    assert control.state("r1") is State.READY


def test_users_that_are_served_show_that_somebody_listens():
    control = Control("r1", "r2", "r3")
    control.canary("r1", "refused")
    control.tally("r1", successes=5)
    control.canary("r1", "refused")
    assert control.state("r1") is State.SUSPECT
    control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD


# --- ends and new beginnings ---------------------------------------------------------------------


def test_a_process_that_exits_is_launched_again():
    control = Control("r1", "r2")
    actions = control.tell(Exited("r1"))
    assert [n.what for n in notices(actions)] == ["dead", "starting"]
    assert all_of(actions, Launch) == [Launch("r1", SECOND, "exited")]
    assert notices(actions)[0].failure_class is Class.RUNTIME
    assert control.share("r1") == 0.0


def test_an_exit_while_loading_is_a_failure_of_loading():
    control = Control(joined=False)
    control.join("r1", running=False)
    control.phase("r1", State.STARTING, State.LOADING)
    actions = control.tell(Exited("r1", Kind.OUT_OF_MEMORY))
    assert notices(actions)[0].failure_class is Class.LOADING
    assert notices(actions)[0].reason == "its process exited (out_of_memory)"


def test_a_crash_loop_is_launched_ever_more_slowly_up_to_a_bound():
    control = Control("r1", launch_backoff_max_s=10.0)
    delays = []
    for _ in range(7):
        (launch,) = all_of(control.tell(Exited("r1")), Launch)
        delays.append(launch.delay // SECOND)
    assert delays == [1, 2, 4, 8, 10, 10, 10]


def test_a_long_life_forgives_earlier_exits():
    control = Control("r1", launch_forgive_s=100.0)
    for _ in range(3):
        control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    (launch,) = all_of(control.after(50.0).tell(Exited("r1")), Launch)
    assert launch.delay == 8 * SECOND
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    (launch,) = all_of(control.after(101.0).tell(Exited("r1")), Launch)
    assert launch.delay == SECOND


def test_a_replica_that_refuses_every_connection_is_dead_and_replaced():
    control = Control("r1", "r2", "r3")
    control.canary("r1", "refused")
    control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD
    assert control.firm("r1")
    actions = control.wait(0.2)
    assert [type(a) for a in actions if isinstance(a, Stop | Launch)] == [Stop, Launch]
    assert control.state("r1") is State.STARTING


def test_the_history_of_an_earlier_process_is_void():
    control = Control("r1", "r2", "r3")
    liar(control)
    control.tally("r1", inflight=48)
    control.tell(Exited("r1"))
    control.answers["r1"] = None
    control.phase("r1", State.WARMING)
    (canary,) = all_of(control.wait(0.2), RunCanary)[:1]
    assert (canary.replica_id, canary.deadline) == ("r1", 5 * SECOND)
    control.canary("r1", "pass")
    assert control.state("r1") is State.READY
    assert not control.firm("r1")


# --- leaving -------------------------------------------------------------------------------------


def test_a_drained_replica_gets_no_new_work_and_stops_when_it_is_empty():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    (notice,) = notices(control.tell(DrainAsked("r1", "rollout")))
    assert (notice.what, notice.reason) == ("draining", "drains (rollout)")
    assert control.share("r1") == 0.0
    assert all_of(control.wait(5.0), Stop) == []
    control.tally("r1", successes=2, inflight=0)
    actions = control.wait(0.4)
    (stop,) = all_of(actions, Stop)
    assert (stop.replica_id, stop.reason) == ("r1", "nothing in flight; rollout")
    assert control.state("r1") is State.STOPPED
    assert all_of(control.wait(120.0, every=SECOND), Launch | Stop) == []


def test_what_is_left_at_the_deadline_is_moved_and_then_it_stops():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0, move_s=10.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert all_of(control.wait(29.0), Move | Stop) == []
    assert all_of(control.wait(2.0), Move | Stop) == [Move("m", "r1")]
    control.tally("r1", inflight=1)  # one could not be moved yet: ask again
    assert all_of(control.wait(2.0), Move | Stop) == [Move("m", "r1")]
    control.tally("r1", inflight=0)
    (stop,) = all_of(control.wait(1.0), Move | Stop)
    assert isinstance(stop, Stop)


def test_what_cannot_be_moved_in_time_is_cut():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0, move_s=10.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert all_of(control.wait(39.0), Stop) == []
    assert len(all_of(control.wait(2.0), Stop)) == 1


def test_a_replica_whose_host_is_taken_away_comes_back_elsewhere():
    control = Control("r1", "r2")
    control.tell(SpotNotice("r1", 120 * SECOND))
    actions = control.wait(0.4)
    assert len(all_of(actions, Stop)) == 1
    assert len(all_of(actions, Launch)) == 1
    assert control.state("r1") is State.STARTING


def test_a_replica_that_is_dead_when_it_is_sent_away_is_not_started_again():
    control = Control("r1", "r2", "r3")
    for _ in range(2):
        control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD
    control.tell(DrainAsked("r1", "scaled down"))
    assert all_of(control.wait(120.0, every=SECOND), Launch) == []


def test_in_flight_requests_of_all_gateways_count():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    for gateway, inflight in (("g1", 1), ("g2", 2)):
        tally = Tally("m", "r1", 1, 0, 0, inflight, 0)
        control.tell(Seen((Summary((tally,)),), gateway))
    assert all_of(control.wait(1.0), Stop) == []
    control.tell(Seen((Summary((Tally("m", "r1", 1, 0, 0, 0, 0),)),), "g1"))
    assert all_of(control.wait(1.0), Stop) == []  # the other one still has two
    control.tell(Seen((Summary((Tally("m", "r1", 1, 0, 0, 0, 0),)),), "g2"))
    assert len(all_of(control.wait(1.0), Stop)) == 1


def test_a_drained_replica_that_exits_is_not_launched_again():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert all_of(control.tell(Exited("r1")), Launch) == []
    assert control.state("r1") is State.DEAD
    assert all_of(control.wait(120.0, every=SECOND), Launch | Stop) == []


def test_a_stopped_replica_that_exits_late_is_not_launched_again():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert control.state("r1") is State.STOPPED
    assert all_of(control.tell(Exited("r1")), Launch) == []


def test_a_stopped_replica_cannot_be_drained_again():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert control.tell(DrainAsked("r1", "again")) == []
    assert all_of(control.wait(60.0, every=SECOND), Move | Stop) == []


def test_a_second_request_to_drain_changes_nothing():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(20.0)
    control.tell(DrainAsked("r1", "again"))
    assert len(all_of(control.wait(12.0), Move)) == 1


def test_a_replica_that_still_loads_can_be_drained_at_once():
    control = Control(joined=False)
    control.join("r1", running=False)
    control.phase("r1", State.LOADING)
    control.tell(DrainAsked("r1", "scaled down"))
    assert len(all_of(control.wait(0.2), Stop)) == 1
    assert control.state("r1") is State.STOPPED


def test_a_spot_notice_drains():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    (notice,) = notices(control.tell(SpotNotice("r1", 120 * SECOND)))
    assert notice.what == "draining"
    assert control.share("r1") == 0.0
    assert len(all_of(control.wait(31.0), Move)) == 1


def test_a_host_that_was_taken_away_is_replaced():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(SpotNotice("r1", 120 * SECOND))
    control.tell(SpotNotice("r1", 60 * SECOND))
    assert len(all_of(control.tell(Exited("r1")), Launch)) == 1
    assert control.state("r1") is State.STARTING


def test_a_drain_asked_for_after_a_spot_notice_still_means_not_to_come_back():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(SpotNotice("r1", 120 * SECOND))
    control.tell(DrainAsked("r1", "scaled down"))
    assert all_of(control.tell(Exited("r1")), Launch) == []


# --- restarted, and taken back ------------------------------------------------------------------


def test_a_restart_drains_first_and_then_launches_anew():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    (notice,) = notices(control.tell(RestartAsked("r1", "an operator's wish")))
    assert (notice.what, notice.reason) == ("draining", "drains (an operator's wish)")
    assert all_of(control.wait(5.0), Stop | Launch) == []
    control.tally("r1", successes=2)
    actions = all_of(control.wait(0.4), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]
    assert control.state("r1") is State.STARTING
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    assert control.state("r1") is State.READY


def test_a_restart_of_a_stopped_replica_launches_it_at_once():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert control.state("r1") is State.STOPPED
    (launch,) = all_of(control.tell(RestartAsked("r1", "wanted again")), Launch)
    assert launch == Launch("r1", SECOND, "wanted again")
    assert control.state("r1") is State.STARTING


def test_a_restart_of_a_dead_replica_launches_it_at_once():
    control = Control("r1", "r2", "r3")
    for _ in range(2):
        control.canary("r1", "refused")
    assert control.state("r1") is State.DEAD
    assert len(all_of(control.tell(RestartAsked("r1", "wedged")), Launch)) == 1
    assert control.state("r1") is State.STARTING


def test_a_restart_after_a_drain_was_asked_for_means_to_come_back():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "scaled down"))
    control.tell(RestartAsked("r1", "no, only restarted"))
    control.tally("r1", successes=2)
    assert len(all_of(control.wait(0.4), Launch)) == 1


def test_restarts_that_were_asked_for_are_no_crash_loop():
    control = Control("r1", "r2")
    for _ in range(8):
        control.tell(RestartAsked("r1", "again"))
        (launch,) = all_of(control.wait(0.4), Launch)
        assert launch.delay == SECOND
        control.phase("r1", State.WARMING)
        control.wait(1.0)


def test_an_undrained_replica_serves_on_after_one_right_answer():
    control = Control("r1", "r2")
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(5.0)
    (notice,) = notices(control.tell(UndrainAsked("r1", "needed")))
    assert notice.what == "warming"
    control.wait(0.4)
    assert control.state("r1") is State.READY
    control.wait(60.0)
    assert control.state("r1") is State.READY
    assert len(all_of(control.tell(Exited("r1")), Launch)) == 1  # and it is wanted again


def test_an_undrained_liar_goes_back_to_its_quarantine():
    control = Control("r1", "r2", "r3")
    liar(control)
    control.tally("r1", inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    control.tell(UndrainAsked("r1", "needed"))
    assert control.state("r1") is State.QUARANTINED
    assert control.firm("r1")


def test_undrained_while_its_streams_move_it_comes_back_as_a_start():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=10.0, move_s=10.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(DrainAsked("r1", "rollout"))
    assert len(all_of(control.wait(11.0), Move)) == 1
    assert control.tell(UndrainAsked("r1", "needed")) == []
    assert control.state("r1") is State.DRAINING
    control.tally("r1", inflight=0)
    actions = all_of(control.wait(0.4), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]


def test_an_undrained_replica_that_stopped_is_launched():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "rollout"))
    control.wait(0.4)
    assert len(all_of(control.tell(UndrainAsked("r1", "needed")), Launch)) == 1
    control.phase("r1", State.WARMING)
    control.wait(0.4)
    assert control.state("r1") is State.READY


def test_a_host_that_will_be_taken_away_cannot_be_had_back_but_its_replica_is_replaced():
    control = Control("r1", "r2", drain=DrainConfig(deadline_s=30.0))
    control.tally("r1", successes=1, inflight=2)
    control.tell(SpotNotice("r1", 120 * SECOND))
    control.tell(DrainAsked("r1", "scaled down"))
    for _ in range(3):
        control.wait(9.0)
        assert control.tell(UndrainAsked("r1", "needed")) == []
    assert control.state("r1") is State.DRAINING
    assert len(all_of(control.wait(4.0), Move)) == 1  # asking for it does not prolong the drain
    control.tally("r1", inflight=0)
    assert len(all_of(control.wait(0.4), Launch)) == 1


def test_undrain_of_a_replica_that_serves_changes_nothing():
    control = Control("r1", "r2")
    assert control.tell(UndrainAsked("r1", "needed")) == []
    assert control.state("r1") is State.READY


# --- no room for requests ------------------------------------------------------------------------


def test_a_full_replica_is_taken_out_at_the_second_reading_in_a_row():
    control = Control("r1", "r2", "r3")
    assert control.kv("r1", 0.97) == []
    (notice,) = notices(control.kv("r1", 0.97))
    assert notice.what == "quarantined"
    assert notice.reason == "has no room for another request (97% of its KV cache is in use)"
    assert control.share("r1") == 0.0
    assert not control.firm("r1")


def test_one_reading_of_a_full_cache_is_a_burst():
    control = Control("r1", "r2", "r3")
    assert notices(control.kv("r1", 0.99, 0.5, 0.99, 0.94, 0.99, 0.93)) == []
    assert control.state("r1") is State.READY


def test_an_engine_that_stops_telling_is_neither_full_nor_empty():
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.99)
    control.wait(60.0)
    assert control.state("r1") is State.READY
    control.kv("r2", 0.99, 0.99)
    control.tally("r2", inflight=4)
    control.wait(60.0)
    assert control.state("r2") is State.QUARANTINED


def test_the_line_is_the_models_own():
    control = Control("r1", "r2", "r3", canary=CanaryConfig(headroom_min=0.5))
    control.kv("r1", 0.6, 0.6)
    assert control.state("r1") is State.QUARANTINED
    control = Control("r1", "r2", "r3", canary=CanaryConfig(headroom_min=0.0))
    control.kv("r1", 1.0, 1.0, 1.0)
    assert control.state("r1") is State.READY


def test_a_full_gpu_takes_out_a_replica_that_tells_no_cache():
    control = Control("r1", "r2", "r3")
    assert notices(control.tell(DeviceMemory("r1", 0.97))) == []  # once may be a spike
    (notice,) = notices(control.tell(DeviceMemory("r1", 0.97)))
    assert "97% of the GPU memory it could have is in use" in notice.reason
    assert control.state("r1") is State.QUARANTINED
    control.tell(DeviceMemory("r1", 0.5))
    control.wait(10.0)
    assert control.state("r1") is State.READY


def test_a_full_gpu_says_nothing_of_a_replica_that_tells_its_cache():
    """An engine that takes its memory at the start is full for ever, and serves."""
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.2)
    for _ in range(5):
        control.tell(DeviceMemory("r1", 0.99))
    assert control.state("r1") is State.READY
    for used in (float("nan"), float("inf")):
        control.tell(DeviceMemory("r2", used))
        control.tell(DeviceMemory("r2", used))
    assert control.state("r2") is State.READY
    assert control.tell(DeviceMemory("nobody", 1.0)) == []


def test_room_and_one_right_answer_bring_it_back_and_a_little_room_does_not():
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.97, 0.97)
    control.tally("r1", inflight=4)
    control.wait(10.0)
    assert control.state("r1") is State.QUARANTINED  # right answers alone make no room
    assert notices(control.kv("r1", 0.94, 0.94, 0.93)) == []
    (notice,) = notices(control.kv("r1", 0.92))
    assert (notice.what, "has room again" in notice.reason) == ("quarantined", True)
    control.wait(3.0)
    assert control.state("r1") is State.READY


def test_a_replica_out_for_lack_of_room_is_not_counted_as_ill():
    control = Control("r1", "r2", "r3")
    for _ in range(5):
        control.kv("r1", 0.97, 0.97, 0.5)
        control.wait(3.0)
        assert control.state("r1") is State.READY


def test_half_of_a_pool_may_be_full_and_the_others_are_held_back():
    control = Control("r1", "r2", "r3", "r4", "r5")
    for name in ("r1", "r2", "r3", "r4", "r5"):
        control.kv(name, 0.99, 0.99)
    assert control.states() == [State.QUARANTINED] * 2 + [State.SUSPECT] * 3
    assert "held back" in control.fleet.members["r3"].health.reason
    assert control.published[-1].panic == ("m",)
    control.kv("r1", 0.5)
    control.wait(3.0)
    assert control.state("r1") is State.READY
    control.kv("r3", 0.99)  # there is room within the bound now
    assert control.state("r3") is State.QUARANTINED


def test_a_replica_held_back_serves_on_as_soon_as_it_has_room():
    control = Control("r1")
    control.kv("r1", 0.99, 0.99)
    assert control.state("r1") is State.SUSPECT
    control.kv("r1", 0.4)
    control.wait(4.0)
    assert control.state("r1") is State.READY


def test_a_full_replica_with_requests_in_flight_is_never_launched_anew():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    control.tally("r1", successes=1, inflight=3)
    control.kv("r1", 0.99, 0.99)
    for _ in range(10):
        control.kv("r1", 0.99)
        assert all_of(control.wait(60.0, every=SECOND), Stop | Launch) == []
    assert control.state("r1") is State.QUARANTINED


def test_nor_is_one_whose_engine_has_stopped_telling():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    control.tally("r1", successes=1, inflight=3)
    control.kv("r1", 0.99, 0.99)
    assert all_of(control.wait(600.0, every=SECOND), Stop | Launch) == []


def test_nor_is_one_that_is_warming_after_a_drain_was_called_off():
    control = Control("r1", "r2", "r3", health=HealthConfig(load_timeout_s=60.0))
    control.answers["r1"] = "fail"
    control.tally("r1", successes=1, inflight=3)
    control.tell(DrainAsked("r1", "rollout"))
    control.tell(UndrainAsked("r1", "needed"))
    control.kv("r1", 0.99, 0.99)
    assert control.state("r1") is State.WARMING
    assert all_of(control.wait(120.0, every=SECOND), Stop | Launch) == []
    control.tally("r1", inflight=0)
    assert len(all_of(control.wait(3.0), Launch)) == 1


def test_one_that_stays_full_with_nothing_in_flight_is_launched_anew():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    control.tally("r1", successes=1, inflight=3)
    control.kv("r1", 0.99, 0.99)
    control.wait(100.0, every=SECOND)
    control.tally("r1", successes=3)
    for _ in range(55):
        control.kv("r1", 0.99)
        assert all_of(control.tick(), Stop | Launch) == []
    actions = all_of(control.wait(10.0), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]
    assert not control.fleet.members["r1"].health.full


def test_a_full_replica_is_not_admitted_before_it_has_room():
    control = Control("r2", "r3")
    control.join("r1")
    control.answers["r1"] = None
    control.kv("r1", 0.99, 0.99)
    for verdict in ("pass", "slow", "pass"):
        control.canary("r1", verdict)
        assert control.state("r1") is State.WARMING
    control.kv("r1", 0.1)
    control.canary("r1", "pass")
    assert control.state("r1") is State.READY


def test_readings_of_a_replica_that_loads_or_leaves_do_no_harm():
    control = Control("r1", "r2", "r3")
    control.join("r4", running=False)
    control.phase("r4", State.LOADING)
    assert notices(control.kv("r4", 1.0, 1.0, 1.0)) == []
    control.tally("r1", inflight=1)
    control.tell(DrainAsked("r1", "rollout"))
    assert notices(control.kv("r1", 1.0, 1.0, 0.1)) == []
    assert (control.state("r4"), control.state("r1")) == (State.LOADING, State.DRAINING)


# --- stopped processes ---------------------------------------------------------------------------


def freeze(control: Control, *names: str) -> list:
    return [action for name in names for action in control.tell(Frozen(name, frozen=True))]


def thaw(control: Control, *names: str) -> list:
    return [action for name in names for action in control.tell(Frozen(name, frozen=False))]


def test_a_stopped_process_is_out_at_once_and_its_streams_are_moved_once_gateways_know():
    control = Control("r1", "r2", "r3")
    control.tally("r1", successes=1, inflight=4)
    actions = freeze(control, "r1")
    (notice,) = notices(actions)
    assert (notice.what, notice.reason) == ("quarantined", "its process is stopped")
    assert (control.share("r1"), control.firm("r1")) == (0.0, True)
    assert all_of(actions, Move) == []  # moved before the view, they could come back here
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1")]
    assert all_of(control.wait(5.0), Move) == []
    control.tally("r1", inflight=1)  # one was sent there meanwhile
    assert all_of(control.wait(0.2), Move) == [Move("m", "r1")]


def test_streams_of_a_stopped_process_stay_where_nobody_else_could_go_on_with_them():
    control = Control("r1", "r2")
    control.join("o1", model="other")
    control.tally("r1", successes=1, inflight=4)
    freeze(control, "r2", "r1")
    assert all_of(control.wait(5.0), Move) == []
    thaw(control, "r2")
    assert all_of(control.wait(10.0), Move) == [Move("m", "r1")]


def test_stopped_processes_are_not_counted_against_the_bound():
    control = Control("r1", "r2", "r3", "r4")
    freeze(control, "r1", "r2", "r3")
    assert control.states() == [State.QUARANTINED] * 3 + [State.READY]
    assert control.published[-1].panic == ()
    control.tell(Frozen("r4", frozen=True))
    assert control.state("r4") is State.QUARANTINED


def test_a_stopped_process_is_not_brought_back_by_panic():
    control = Control("r1", "r2", "r3", "r4")
    freeze(control, "r1")
    for name in ("r2", "r3"):
        control.canary("r4", "pass")
        stall(control, name)
    assert control.published[-1].panic == ("m",)
    assert control.share("r1") == 0.0
    assert control.share("r2") > 0.0


def test_a_stopped_process_is_not_asked_and_no_answer_of_before_admits_it():
    control = Control("r1", "r2", "r3")
    freeze(control, "r1")
    asked = [canary.replica_id for canary in all_of(control.wait(20.0), RunCanary)]
    assert "r1" not in asked
    for _ in range(30):
        control.canary("r1", "pass")
    assert control.state("r1") is State.QUARANTINED


def test_a_process_that_runs_again_has_to_answer_right_a_few_times():
    control = Control("r1", "r2", "r3")
    freeze(control, "r1")
    control.canary("r1", "pass")  # was under way when it was stopped
    control.wait(20.0)
    (notice,) = notices(thaw(control, "r1"))
    assert (notice.what, "runs again" in notice.reason) == ("quarantined", True)
    assert control.share("r1") == 0.0
    assert not control.firm("r1")
    seen = [control.state("r1")]
    passes = 0
    while control.state("r1") is not State.READY:
        control.after(0.2)
        passes += len([c for c in all_of(control.tick(), RunCanary) if c.replica_id == "r1"])
        seen.append(control.state("r1"))
        assert len(seen) < 60
    assert passes == 3


def test_a_process_that_runs_again_has_the_time_of_a_quarantine_that_just_began():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    freeze(control, "r1")
    assert all_of(control.wait(59.0), Stop) == []
    thaw(control, "r1")
    assert all_of(control.wait(20.0), Stop) == []
    assert control.state("r1") is State.READY


def test_a_process_that_stays_stopped_is_replaced():
    control = Control("r1", "r2", "r3", relaunch_after_s=60.0)
    freeze(control, "r1")
    actions = all_of(control.wait(61.0), Stop | Launch)
    assert [type(action) for action in actions] == [Stop, Launch]
    control.phase("r1", State.WARMING)
    control.wait(1.0)
    assert control.state("r1") is State.READY


def test_news_of_a_stop_that_is_known_or_never_was_changes_nothing():
    control = Control("r1", "r2", "r3")
    assert thaw(control, "r1") == []
    freeze(control, "r1")
    assert freeze(control, "r1") == []
    control.answers["r2"] = "fail"
    stall(control, "r2")
    for _ in range(7):
        assert thaw(control, "r2") == []  # buys no time
        control.wait(10.0)
    assert control.fleet.members["r2"].health.incarnation == 1


@pytest.mark.parametrize("phase", [State.STARTING, State.LOADING, State.WARMING])
def test_a_process_stopped_before_it_served_loses_nothing(phase):
    control = Control("r2", "r3")
    control.join("r1", running=False)
    control.phase("r1", phase)
    freeze(control, "r1")
    assert control.state("r1") is phase
    control.canary("r1", "pass")
    control.canary("r1", "slow")
    assert control.state("r1") is phase
    thaw(control, "r1")
    control.phase("r1", State.WARMING)
    control.wait(0.4)
    assert control.state("r1") is State.READY


def test_a_stopped_process_that_ends_is_launched_anew_with_nothing_held_against_it():
    control = Control("r1", "r2", "r3")
    freeze(control, "r1")
    (launch,) = all_of(control.tell(Exited("r1", detail="killed by SIGKILL")), Launch)
    assert launch.reason == "exited: killed by SIGKILL"
    assert control.state("r1") is State.STARTING
    control.phase("r1", State.WARMING)
    control.wait(0.4)
    assert control.state("r1") is State.READY


def test_a_stopped_process_that_ends_while_it_leaves_stays_away():
    control = Control("r1", "r2")
    control.tally("r1", inflight=1)
    control.tell(DrainAsked("r1", "rollout"))
    freeze(control, "r1")
    assert all_of(control.wait(0.4), Move) == [Move("m", "r1")]
    control.tell(Exited("r1"))
    assert control.state("r1") is State.DEAD
    assert not control.fleet.members["r1"].health.frozen
    assert all_of(control.wait(120.0, every=SECOND), Launch | Stop | Move) == []
    assert freeze(control, "r1") == []


def test_a_stopped_peer_does_not_make_the_canaries_doubtful():
    control = Control("r1", "r2")
    control.answers = {"r1": None}
    control.wait(6.0)
    freeze(control, "r1")
    control.canary("r1", "timeout")
    actions = control.canary("r2", "fail")
    assert notices(actions, "canaries doubted") == []
    assert control.state("r2") is State.SUSPECT


# --- slow answers --------------------------------------------------------------------------------

USUAL = 400 * MILLISECOND


def timed_pool(*names: str, **kwargs) -> Control:
    """Everybody has a usual."""
    control = Control(*names, **kwargs)
    control.latencies = dict.fromkeys(names, USUAL)
    control.wait(60.0)
    return control


def canaries_until(control: Control, name: str, state: State) -> int:
    """How many canaries it took."""
    asked = 0
    for _ in range(1000):
        if control.state(name) is state:
            return asked
        control.after(0.05)
        asked += len([c for c in all_of(control.tick(), RunCanary) if c.replica_id == name])
    raise AssertionError(f"{name} never became {state}")


def test_thrice_as_slow_is_suspect_after_three_in_a_row_and_not_earlier():
    control = timed_pool("r1", "r2", "r3")
    control.latencies["r1"] = 3 * USUAL
    assert canaries_until(control, "r1", State.SUSPECT) == 3
    assert "peers take 0.400 s" in control.fleet.members["r1"].health.reason
    control.wait(120.0)
    assert control.state("r1") is State.SUSPECT  # and never worse
    assert control.share("r1") == pytest.approx(0.1)
    control.latencies["r1"] = USUAL
    control.wait(4.0)
    assert control.state("r1") is State.READY


@pytest.mark.parametrize("slow", [1, 2])
def test_fewer_slow_answers_in_a_row_do_nothing(slow):
    control = timed_pool("r1", "r2", "r3")
    for _ in range(10):
        for _ in range(slow):
            assert notices(control.canary("r1", "pass", latency=10 * USUAL)) == []
        control.canary("r1", "pass", latency=USUAL)
    assert control.state("r1") is State.READY


@pytest.mark.parametrize("busy", ["engine", "gateways"])
def test_a_busy_replica_is_not_suspected_for_being_slow(busy):
    control = timed_pool("r1", "r2", "r3")
    if busy == "gateways":
        control.tally("r1", successes=1, inflight=5)
    for _ in range(10):
        running = 5 if busy == "engine" else 0
        control.canary("r1", "pass", latency=10 * USUAL, running=running)
    assert control.state("r1") is State.READY


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_pool_that_becomes_slow_as_a_whole_suspects_nobody(seed, size):
    names = [f"r{n}" for n in range(size)]
    control = timed_pool(*names, seed=seed)
    control.latencies = dict.fromkeys(names, 3 * USUAL)
    assert notices(control.wait(60.0)) == []
    assert control.states() == [State.READY] * size


def test_a_slow_answer_asks_the_peers_at_once():
    control = timed_pool("r1", "r2", "r3")
    control.canary("r1", "pass", latency=3 * USUAL)
    control.after(0.01)
    asked = {canary.replica_id for canary in all_of(control.tick(), RunCanary)}
    assert {"r2", "r3"} <= asked


def test_a_new_process_has_a_usual_of_its_own():
    control = timed_pool("r1", "r2", "r3")
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    control.latencies["r1"] = 3 * USUAL
    control.wait(60.0)
    assert control.state("r1") is State.READY


# --- what canaries may cost ----------------------------------------------------------------------


def gaps(control: Control, name: str, duration_s: int, **tally) -> list[float]:
    """Seconds between its canaries, with a tally each second."""
    asked = []
    for step in range(duration_s * 10):
        if tally and step % 10 == 0:
            control.tally(name, **tally)
        control.after(0.1)
        if any(canary.replica_id == name for canary in all_of(control.tick(), RunCanary)):
            asked.append(control.now)
    return [(later - earlier) / SECOND for earlier, later in pairwise(asked)]


SERVING = {"successes": 1, "inflight": 2}


def spend(control: Control, name: str, inflight: int = 2) -> None:
    """Users have known it for long: nothing is left of the canaries it was admitted with."""
    control.tally(name, successes=1, inflight=inflight, tokens=1)
    control.fleet.members[name].canary_charged = True
    for _ in range(4):
        control.canary(name, "pass")


def test_a_used_replica_with_few_tokens_is_asked_less_often_within_a_bound():
    control = Control("r1", "r2", canary=CanaryConfig(stretch_max_s=20.0))
    spend(control, "r1")
    waits = gaps(control, "r1", 200, **SERVING, tokens=10)
    assert min(waits) >= 20.0
    assert max(waits) <= 21.2


def test_a_used_replica_with_many_tokens_is_asked_as_usual():
    control = Control("r1", "r2")
    spend(control, "r1")
    waits = gaps(control, "r1", 60, **SERVING, tokens=20_000)[1:]
    assert max(waits) <= 6.2


def test_the_canaries_of_a_used_replica_keep_within_their_share():
    control = Control("r1", "r2")
    spend(control, "r1")
    waits = gaps(control, "r1", 600, **SERVING, tokens=60)
    cost = CanaryConfig().tokens
    assert cost / (60 * sum(waits) / len(waits)) <= 0.01
    assert max(waits) < 18.0


def test_a_lightly_used_replica_is_asked_as_often_as_an_idle_one():
    control = Control("r1", "r2")
    spend(control, "r1")
    asked = []
    for second in range(600):
        if second % 3 == 0:
            control.tally("r1", inflight=1)
        elif second % 3 == 2:
            control.tally("r1", successes=1, tokens=200)
        waited = all_of(control.wait(1.0), RunCanary)
        asked += [second for canary in waited if canary.replica_id == "r1"]
    assert max(later - earlier for earlier, later in pairwise(asked)) <= 9


def engine_says(control: Control, name: str, waiting: int | None) -> list:
    return control.tell(EngineLoads((LoadReported("chat", name, waiting=waiting),)))


def test_a_busy_replica_whose_engine_has_nobody_waiting_is_asked_as_usual():
    control = Control("r1", "r2")
    spend(control, "r1")
    engine_says(control, "r1", 0)
    assert max(gaps(control, "r1", 60, successes=1, inflight=20, tokens=10)) <= 6.2
    engine_says(control, "r1", 3)
    assert gaps(control, "r1", 60, successes=1, inflight=20, tokens=10) == []
    engine_says(control, "r1", None)  # no word any more: by what gateways count
    assert gaps(control, "r1", 60, successes=1, inflight=20, tokens=10) == []
    assert max(gaps(control, "r1", 60, successes=1, inflight=0, tokens=10)) <= 6.2


@pytest.mark.parametrize(("waiting", "out"), [(0, True), (3, False), (None, False)])
def test_a_replica_that_drips_with_a_slot_free_is_not_busy_for_ever(waiting, out):
    control = Control("r1", "r2", "r3")
    engine_says(control, "r1", waiting)
    control.answers["r1"] = None
    for _ in range(8):
        control.wait(6.0)
        control.tally("r1", successes=0, inflight=2, tokens=1)
        control.canary("r1", "timeout", latency=5 * SECOND, running=2, progress=True)
    assert (control.state("r1") is State.QUARANTINED) is out
    assert control.state("r2") is State.READY


def test_answers_in_one_piece_that_take_long_on_all_replicas_are_no_stall():
    control = Control("r1", "r2", "r3", slots=2)
    for second in range(1, 13):  # a short machine: every answer takes twelve seconds
        for name in ("r1", "r2", "r3"):
            control.tally(name, inflight=2)
        control.after(1.0)
        beside = control.fleet.users_beside("r3", control.now - 6 * SECOND, control.now)
        assert beside.progress is None, second
        assert beside.running == 2


@pytest.mark.parametrize(("slots", "seconds"), [(8, 6), (2, 31)])
def test_long_answers_of_peers_excuse_nobody_with_a_free_slot_and_nobody_for_ever(slots, seconds):
    control = Control("r1", "r2", slots=slots)
    for _ in range(seconds):
        for name in ("r1", "r2"):
            control.tally(name, inflight=2)
        control.after(1.0)
    beside = control.fleet.users_beside("r1", control.now - 5 * SECOND, control.now)
    assert beside.progress is False


def test_a_replica_whose_whole_answers_do_not_come_while_its_peers_do_stands():
    control = Control("r1", "r2", "r3", slots=2)
    for second in range(12):
        for name in ("r1", "r2"):
            control.tally(name, inflight=2, successes=second % 2, tokens=20 * (second % 2))
        control.tally("r3", inflight=2)
        control.after(1.0)
    beside = control.fleet.users_beside("r3", control.now - 6 * SECOND, control.now)
    assert beside.progress is False


def test_a_second_silence_in_a_row_is_judged_by_what_was_heard_since_the_first():
    control = Control("r1", "r2", "r3", slots=8)
    control.answers["r1"] = None
    control.wait(6.0)
    for _ in range(3):  # two seconds are too short to hear of a peer in their midst
        control.tally("r1", inflight=1)
        control.wait(2.0)
        control.canary("r1", "timeout", latency=2 * SECOND, running=1, progress=False)
    assert control.state("r1") is State.QUARANTINED
    assert [control.state(name) for name in ("r2", "r3")] == [State.READY] * 2


def test_tokens_that_move_now_and_then_do_not_begin_the_row_of_unanswered_canaries_anew():
    control = Control("r1", "r2", "r3", slots=8)
    control.answers["r1"] = None
    control.wait(6.0)
    control.tally("r1", inflight=1, tokens=1)
    for progress in (True, False, True):
        control.canary("r1", "timeout", latency=2 * SECOND, running=1, progress=progress)
        control.tally("r1", inflight=1, tokens=int(progress))
    assert control.state("r1") is State.SUSPECT
    assert "no canary's answer ends there" in control.fleet.members["r1"].health.reason


def test_a_busy_replica_whose_peers_do_not_answer_either_is_busy():
    control = Control("r1", "r2")
    for name in ("r1", "r2"):
        engine_says(control, name, 0)
        control.answers[name] = None
    for _ in range(8):
        control.wait(6.0)
        for name in ("r1", "r2"):
            control.tally(name, inflight=2, tokens=1)
            control.canary(name, "timeout", latency=5 * SECOND, running=2, progress=True)
    assert control.states() == [State.READY, State.READY]


def test_declared_slots_say_what_is_free_where_the_engine_does_not():
    control = Control("r1", "r2", slots=4)
    spend(control, "r1", inflight=4)
    assert gaps(control, "r1", 60, successes=1, inflight=4, tokens=10) == []
    assert max(gaps(control, "r1", 60, successes=1, inflight=3, tokens=10)) <= 6.2


def test_a_canary_gives_way_to_users_once_and_not_twice_in_a_row():
    control = Control("r1", "r2")
    engine_says(control, "r1", 0)
    control.answers["r1"] = None
    control.wait(7.0)  # one is under way
    control.tally("r1", inflight=1)
    called_back = all_of(engine_says(control, "r1", 1), CallBackCanary)
    assert [action.replica_id for action in called_back] == ["r1"]
    engine_says(control, "r1", 0)
    control.tally("r1", successes=1, tokens=5, inflight=1)
    assert "r1" in [canary.replica_id for canary in all_of(control.wait(7.0), RunCanary)]
    assert not all_of(engine_says(control, "r1", 1), CallBackCanary)


def test_a_canary_that_settles_a_doubt_gives_way_to_nobody():
    control = Control("r1", "r2")
    engine_says(control, "r1", 0)
    control.answers["r1"] = None
    control.wait(1.1)
    control.overdue("r1")
    assert "r1" in [canary.replica_id for canary in all_of(control.wait(0.2), RunCanary)]
    control.tally("r1", inflight=1)
    assert not all_of(engine_says(control, "r1", 1), CallBackCanary)


def test_an_overdue_attempt_has_a_canary_asked_at_once_and_a_hundred_have_one_a_second():
    control = Control("r1", "r2")
    control.wait(1.1)
    control.overdue("r1")
    assert "r1" in [canary.replica_id for canary in all_of(control.wait(0.2), RunCanary)]
    asked = []
    for _ in range(100):
        control.overdue("r1")
        asked += [c for c in all_of(control.wait(0.1), RunCanary) if c.replica_id == "r1"]
    assert 9 <= len(asked) <= 11
    assert control.state("r1") is State.READY


def test_a_paid_endpoint_is_asked_within_its_budget_and_no_more_often_in_doubt():
    paid = CanaryConfig(cost=CanaryCost.BILLED)
    control = Control("r1", "r2", canary=paid)
    asked = 0
    for _ in range(1_200):
        control.overdue("r1")
        control.tally("r1", successes=1, tokens=20)
        asked += sum(c.replica_id == "r1" for c in all_of(control.wait(1.0), RunCanary))
    # 24,000 tokens pay 0.85 % for canaries of eight; four at admission, two on credit, one in 300 s
    assert asked <= 24_000 * 0.0085 / 8 + 4 + 2 + 4


def test_a_paid_endpoint_that_nobody_uses_is_asked_every_five_minutes():
    control = Control("r1", "r2", canary=CanaryConfig(cost=CanaryCost.BILLED))
    control.wait(60.0)
    waits = gaps(control, "r1", 1_200)
    assert min(waits) >= 300.0


def test_a_newly_admitted_replica_is_asked_as_usual_for_a_minute_of_use():
    control = Control("r1", "r2")
    waits = gaps(control, "r1", 50, **SERVING, tokens=1)
    assert max(waits) <= 6.2
    control.wait(0.1)
    spend(control, "r1")
    assert gaps(control, "r1", 60, **SERVING, tokens=1) == []
    for verdict in ("fail", "pass", "pass"):
        control.canary("r1", verdict)
    assert control.state("r1") is State.READY
    assert max(gaps(control, "r1", 30, **SERVING, tokens=1)) <= 6.2


def test_an_idle_replica_is_asked_as_usual():
    control = Control("r1", "r2")
    assert max(gaps(control, "r1", 60)) <= 6.2


def test_requests_that_run_without_tokens_end_the_stretching():
    control = Control("r1", "r2")
    spend(control, "r1")
    control.wait(20.0)
    asked = all_of(control.wait(5.5), RunCanary)
    assert "r1" in [canary.replica_id for canary in asked]
    assert max(gaps(control, "r1", 60, inflight=2)) <= 6.2


@pytest.mark.parametrize("cause", ["peer", "breaker", "slow"])
def test_doubt_has_a_used_replica_asked_whatever_it_costs(cause):
    control = Control("r1", "r2", "r3")
    spend(control, "r1")
    gaps(control, "r1", 20, **SERVING, tokens=1)
    if cause == "peer":
        control.canary("r2", "wrong")
        limit_s = 0.2
    elif cause == "breaker":
        control.breaker_opened("r1")
        limit_s = 1.3  # as a suspect
    else:
        control.canary("r1", "slow")
        assert control.state("r1") is State.READY
        limit_s = 6.2
    asked = all_of(control.wait(limit_s), RunCanary)
    assert "r1" in [canary.replica_id for canary in asked]


def test_a_canary_that_told_nothing_is_sent_again_at_the_usual_pace():
    control = Control("r1", "r2")
    spend(control, "r1")
    control.tally("r1", **SERVING, tokens=1_000)  # one is earned
    control.answers["r1"] = "unknown"
    assert max(gaps(control, "r1", 60, **SERVING, tokens=1)) <= 6.2


def test_a_suspect_is_asked_as_usual_however_busy_it_is():
    control = Control("r1", "r2", "r3")
    spend(control, "r1")
    control.canary("r1", "fail")
    control.answers["r1"] = "slow"  # right enough to stay where it is
    waits = gaps(control, "r1", 20, **SERVING, tokens=10)
    assert control.state("r1") is State.SUSPECT
    assert max(waits) <= 1.4


def test_a_canary_that_reached_nobody_cost_nothing():
    control = Control("r1", "r2", "r3")
    control.tally("r1", successes=1, tokens=1000)
    budget = control.fleet.members["r1"].budget
    before = budget.share(control.now)
    control.canary("r1", "unknown")
    assert budget.share(control.now) == before
    control.canary("r1", "pass", tokens=25)
    assert budget.share(control.now) > before


# --- what cannot be settled ----------------------------------------------------------------------


def test_an_unsettled_answer_admits_nobody_and_condemns_nobody():
    control = Control("r2", "r3")
    control.join("r1")
    control.answers = dict.fromkeys(("r1", "r2", "r3"), "unsettled")
    assert notices(control.wait(60.0)) == []
    assert control.states() == [State.READY, State.READY, State.WARMING]
    assert control.fleet._evidence.doubts == {}


def test_a_canarys_own_words_are_in_the_reason():
    control = Control("r1", "r2", "r3")
    (notice,) = notices(control.canary("r1", "fail", detail="HTTP 500 before a token"))
    assert notice.reason == "a canary got no answer (HTTP 500 before a token)"


def test_an_exits_own_words_are_in_the_reason():
    control = Control("r1", "r2")
    actions = control.tell(Exited("r1", Kind.OUT_OF_MEMORY, "killed by SIGKILL"))
    assert notices(actions)[0].reason == ("its process exited (out_of_memory: killed by SIGKILL)")


# --- what gateways are told ----------------------------------------------------------------------


def test_a_new_view_is_published_whenever_a_state_moves_and_versions_grow():
    control = Control("r1", "r2", "r3")
    before = control.published[-1].version
    actions = control.canary("r1", "fail")
    assert isinstance(actions[-1], Publish)
    assert actions[-1].view.version == before + 1
    versions = [view.version for view in control.published]
    assert versions == sorted(versions)


def test_an_unchanged_view_is_repeated_so_that_gateways_do_not_doubt_control():
    control = Control("r1", "r2", heartbeat_s=2.0)
    control.published = []
    control.wait(20.0)
    assert 9 <= len(control.published) <= 11
    assert len({view.version for view in control.published}) == 1


def test_a_slow_start_is_published_step_by_step():
    control = Control("r1", joined=False)
    control.join("r1")
    control.wait(0.2)
    shares = []
    for _ in range(32):
        control.wait(1.0)
        shares.append(control.share("r1"))
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[14] == pytest.approx(0.1 + 0.9 * 15 / 30, abs=0.05)
    assert shares[-1] == 1.0


def test_an_empty_fleet_is_told_of_too_so_that_gateways_know_that_control_is_there():
    control = Control(joined=False)
    assert all(isinstance(action, Publish) for action in control.wait(10.0))
    assert {(view.version, view.replicas) for view in control.published} == {(1, ())}


def test_the_same_events_cause_the_same_actions():
    def run() -> str:
        control = Control("r1", "r2", "r3")
        control.answers = {"r1": "fail"}
        actions = control.wait(90.0) + control.tell(Exited("r2")) + control.wait(30.0)
        return repr(actions)

    assert run() == run()


# --- what gateways have not told yet -------------------------------------------------------------


def test_one_that_served_is_empty_only_after_every_gateway_had_time_to_tell():
    control = Control("r1", "r2", drain=DrainConfig(hear_s=2.0))
    control.tell(DrainAsked("r1", "fewer are wished"))
    assert not all_of(control.wait(1.0), Stop)
    control.tally("r1", inflight=1)  # sent there just before the gateway heard of the drain
    assert not all_of(control.wait(5.0), Stop)
    control.tally("r1", successes=1)
    assert all_of(control.wait(0.5), Stop)


def test_one_that_never_served_leaves_at_once():
    control = Control(joined=False, drain=DrainConfig(hear_s=2.0))
    control.join("r1", running=False)
    control.phase("r1", State.STARTING, State.LOADING)
    control.tell(DrainAsked("r1", "fewer are wished"))
    assert all_of(control.wait(0.5), Stop)


def test_a_slow_canary_is_asked_again_soon():
    control = Control("r1", "r2")
    control.canary("r1", "slow")
    assert control.state("r1") is State.READY
    again = [canary.replica_id for canary in all_of(control.wait(2.2), RunCanary)]
    assert "r1" in again


def test_a_quarantined_replica_has_longer_to_show_how_it_fails():
    control = Control("r1", "r2", "r3", canary_deadline_s=5.0, canary_deadline_max_s=30.0)
    control.answers["r1"] = "fail"
    asked = [c for c in all_of(control.wait(60.0), RunCanary) if c.replica_id == "r1"]
    assert {(c.longest, c.unhurried) for c in asked} == {
        (round(12.5 * SECOND), False),
        (round(12.5 * SECOND), True),
    }


# --- an engine that drains by itself -------------------------------------------------------------


def says_draining(control: Control, name: str, delay_s: float) -> list:
    """The engine answers each of its canaries that it takes no new work, for so long."""
    control.answers[name] = None
    actions, until = [], control.now + nanos(delay_s)
    while control.now < until:
        control.now += STEP
        for action in control.tick():
            actions.append(action)
            if isinstance(action, RunCanary) and action.replica_id == name:
                actions += control.canary(name, "busy", draining=True)
    control.answers.pop(name)
    return actions


def test_an_engine_that_drains_and_says_so_gets_no_new_work_and_is_not_restarted():
    control = Control("r1", "r2", "r3", relaunch_after_s=30.0)
    control.canary("r1", "busy", draining=True)
    assert (control.state("r1"), control.share("r1")) == (State.QUARANTINED, 0.0)
    assert "takes no new work, by its own word" in control.fleet.members["r1"].health.reason
    control.tally("r1", inflight=0)
    actions = says_draining(control, "r1", 120.0)
    assert all_of(actions, Stop) == all_of(actions, Launch) == all_of(actions, Move) == []
    assert [notice.what for notice in notices(actions)] == []
    assert control.states()[1:] == [State.READY, State.READY]
    assert not control.fleet.members["r1"].health.on_suspicion


def test_it_serves_again_after_one_right_answer():
    control = Control("r1", "r2")
    control.canary("r1", "busy", draining=True)
    control.wait(3.0)
    assert control.state("r1") is State.READY


def test_a_drain_of_its_own_is_a_fact_that_no_bound_holds_and_no_panic_takes_back():
    control = Control("r1", "r2")
    for name in ("r1", "r2"):
        control.answers[name] = None
        control.canary(name, "busy", draining=True)
    assert control.states() == [State.QUARANTINED] * 2
    assert [control.share(name) for name in ("r1", "r2")] == [0.0, 0.0]
    assert not control.published[-1].panic


def test_a_drain_of_its_own_without_an_end_is_stuck_and_gets_a_new_process():
    control = Control("r1", "r2", relaunch_after_s=30.0, health=HealthConfig(load_timeout_s=60.0))
    control.canary("r1", "busy", draining=True)
    actions = says_draining(control, "r1", 100.0)
    assert [stop.replica_id for stop in all_of(actions, Stop)] == ["r1"]


def test_one_that_drains_before_it_was_ever_ready_is_not_stuck_in_its_start():
    control = Control(joined=False, health=HealthConfig(load_timeout_s=20.0))
    control.join("r1")
    control.tick()
    control.answers["r1"] = None
    control.canary("r1", "busy", draining=True)
    assert all_of(says_draining(control, "r1", 19.0), Stop) == []


def test_one_that_loads_by_its_own_word_stays_where_it_is():
    control = Control("r1", "r2")
    control.canary("r1", "busy")
    assert control.state("r1") is State.READY
    control.tell(Exited("r1"))
    control.phase("r1", State.WARMING)
    control.canary("r1", "busy")
    assert control.state("r1") is State.WARMING


# --- what a right answer does not outrank --------------------------------------------------------


def test_a_right_answer_does_not_take_back_an_operator_s_drain():
    control = Control("r1", "r2")
    control.tell(DrainAsked("r1", "maintenance"))
    control.canary("r1", "pass")
    assert control.state("r1") in (State.DRAINING, State.STOPPED)
    assert control.share("r1") == 0.0


def test_a_right_answer_does_not_make_room_that_is_known_to_be_gone():
    control = Control("r1", "r2", "r3")
    control.kv("r1", 0.99, 0.99)
    for _ in range(5):
        control.canary("r1", "pass")
    assert (control.state("r1"), control.share("r1")) == (State.QUARANTINED, 0.0)


def test_a_right_answer_does_not_admit_another_revision():
    control = Control("r1", "r2", "r3")
    health = control.fleet.members["r1"].health
    health.handle(Signal.WRONG_REVISION, control.now)
    for _ in range(12):
        control.canary("r1", "pass")
    assert control.state("r1") is State.QUARANTINED


def asked_beside(control: Control, name: str, inflight: int) -> RunCanary:
    """The canary that a doubt calls beside so many requests; it gets no answer."""
    control.answers[name] = None
    control.wait(1.1)
    control.tally(name, inflight=inflight, tokens=1)
    control.overdue(name)
    return next(c for c in all_of(control.wait(0.2), RunCanary) if c.replica_id == name)


def test_a_canary_loses_the_time_that_it_got_for_requests_which_left_without_a_token():
    control = Control("r1", "r2")
    assert asked_beside(control, "r1", inflight=32).deadline == 15 * SECOND
    control.after(1.5)
    assert not all_of(control.tally("r1", failures=2, inflight=32), HurryCanary)
    control.after(1.0)
    (hurry,) = all_of(control.tally("r1", failures=30, inflight=0), HurryCanary)
    assert (hurry.replica_id, hurry.deadline) == ("r1", 5 * SECOND - 2500 * MILLISECOND)
    assert not all_of(control.tally("r1", failures=1, inflight=0), HurryCanary), "said once"


def test_a_canary_whose_time_is_over_by_then_is_ended_at_once():
    control = Control("r1", "r2")
    asked_beside(control, "r1", inflight=32)
    control.after(9.0)
    (hurry,) = all_of(control.tally("r1", failures=32, inflight=0), HurryCanary)
    assert hurry.deadline == 0


def test_a_canary_keeps_its_time_where_tokens_move_beside_it_or_requests_stay():
    control = Control("r1", "r2")
    asked_beside(control, "r1", inflight=32)
    control.after(2.0)
    assert not all_of(control.tally("r1", inflight=31), HurryCanary), "they are still there"
    control.after(1.0)
    assert not all_of(control.tally("r1", tokens=5, inflight=0), HurryCanary), "it is busy"
    control.after(1.0)
    assert not all_of(control.tally("r1", inflight=0), HurryCanary), "it was, since it was asked"


def test_nobody_is_hurried_without_a_canary_or_in_quarantine():
    control = Control("r1", "r2")
    control.tally("r1", inflight=32)
    assert not all_of(control.tally("r1", inflight=0), HurryCanary)
    asked_beside(control, "r1", inflight=32)
    for _ in range(3):
        control.canary("r1", "wrong")
    assert control.states()[0] is State.QUARANTINED
    control.tally("r1", inflight=32)
    control.wait(3.0)  # it is asked again
    control.after(7.0)
    assert not all_of(control.tally("r1", failures=32, inflight=0), HurryCanary)
