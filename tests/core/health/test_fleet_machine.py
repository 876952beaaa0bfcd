"""A fleet told anything in any order, with books of its own kept beside it.

The books are kept from what the fleet says (its views and actions), not from how it counts.
"""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.canary import CanaryVerdict
from holdfast.core.failure import Kind
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import (
    CanaryResult,
    DeviceMemory,
    DrainAsked,
    EngineLoads,
    Exited,
    FleetView,
    Frozen,
    Joined,
    Launch,
    Left,
    LoadReported,
    Move,
    Notice,
    Phase,
    Publish,
    Queued,
    Report,
    RestartAsked,
    RunCanary,
    Seen,
    SpotNotice,
    Stop,
    Summary,
    TakeOutAsked,
    Tally,
    Tick,
    UndrainAsked,
)
from holdfast.core.types import MILLISECOND, SECOND, Replica, State, nanos
from sampling import examples

CONFIG = FleetConfig()
NAMES = tuple(f"r{n}" for n in range(7))
MODELS = {name: "m" if n < 5 else "other" for n, name in enumerate(NAMES)}
SERVING = (State.READY, State.SUSPECT)
JUDGED = (State.WARMING, *SERVING, State.QUARANTINED)
OVER = (State.STOPPED, State.DEAD)
NAME = st.sampled_from(NAMES)
VERDICTS = (
    *("pass", "pass", "fail", "wrong", "slow"),
    *("refused", "busy", "unknown", "timeout", "unsettled"),
)
JUMPS = st.sampled_from([0, 1, 200 * MILLISECOND, SECOND, 5 * SECOND, 30 * SECOND, 700 * SECOND])


class FleetUnderFire(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(CONFIG, Random)
        self.now = 100 * SECOND
        self.views: list[FleetView] = [FleetView(0, ())]
        self.joined_at: dict[str, int] = {}
        self.leaving: set[str] = set()
        self.asked: dict[str, int] = {}  # the process whose canary is out
        self.panics: set[str] = set()
        self.frozen: set[str] = set()
        self.inflight: dict[str, int] = {}  # as gateways said, of the process that runs now
        for name in NAMES[:4]:
            self.join(name, running=True)
        self.tick(SECOND)
        self.answer_all("pass")

    # --- the books -------------------------------------------------------------------------------

    def tell(self, event) -> list:
        suspected = self.on_suspicion()
        if isinstance(event, Frozen) and not event.frozen:
            suspected[MODELS[event.replica_id]].append(event.replica_id)  # not ejected now
        if isinstance(event, UndrainAsked):  # back into the quarantine it was drained from
            suspected[MODELS[event.replica_id]].append(event.replica_id)
        actions = self.fleet.handle(event, self.now)
        for action in actions:
            if isinstance(action, Publish):
                self.book_view(action.view)
                assert action is actions[-1], "the view comes last"
            elif isinstance(action, Notice):
                self.book_notice(action)
            else:
                self.book_work(action)
        self.check_bound(suspected)
        return actions

    def book_view(self, view: FleetView) -> None:
        last = self.views[-1]
        if view.version == last.version:
            assert view == last, "an unchanged version is an unchanged view"
        else:
            assert view.version == last.version + 1
            self.views.append(view)

    def book_notice(self, notice: Notice) -> None:
        assert notice.at == self.now
        assert notice.reason
        if notice.what == "panic":
            assert notice.model not in self.panics
            self.panics.add(notice.model)
        elif notice.what == "panic over":
            self.panics.remove(notice.model)

    def book_work(self, action: RunCanary | Launch | Stop | Move) -> None:
        member = self.fleet.members[action.replica_id]  # raises for one that left
        if isinstance(action, RunCanary):
            assert self.asked.get(action.replica_id) != action.incarnation, "one at a time"
            self.asked[action.replica_id] = action.incarnation
            assert min(2.0, CONFIG.canary_deadline_min_s) <= action.deadline / SECOND
            assert action.deadline / SECOND <= CONFIG.canary_deadline_max_s
        elif isinstance(action, Launch):
            assert action.replica_id not in self.leaving, "who was sent away is not started again"
            assert 0 <= action.delay <= nanos(CONFIG.launch_backoff_max_s)
            assert member.health.state is State.STARTING
            self.frozen.discard(action.replica_id)
            self.inflight.pop(action.replica_id, None)
        elif isinstance(action, Move):
            assert member.health.state is State.DRAINING or action.replica_id in self.frozen

    def on_suspicion(self) -> dict[str, list[str]]:
        """Who is out on suspicion, by model, as gateways were told."""
        out: dict[str, list[str]] = {"m": [], "other": []}
        for view in self.views[-1].replicas:
            if view.state is State.QUARANTINED and not view.firm:
                out[view.replica.model].append(view.replica.id)
        return out

    def check_bound(self, before: dict[str, list[str]]) -> None:
        for model, out in self.on_suspicion().items():
            states = [v.state for v in self.views[-1].replicas if v.replica.model == model]
            members = len(out) + len([state for state in states if state in SERVING])
            if set(out) - set(before[model]):
                assert len(out) <= members // 2, "never past half of a pool on suspicion"

    # --- membership ------------------------------------------------------------------------------

    @rule(name=NAME, running=st.booleans())
    def join(self, name, running):
        if name not in self.fleet.members:
            self.joined_at[name] = self.now
            self.leaving.discard(name)
            self.asked.pop(name, None)
            self.frozen.discard(name)
            self.inflight.pop(name, None)
            self.tell(Joined(Replica(name, MODELS[name]), running))

    @rule(name=NAME)
    def leave(self, name):
        self.tell(Left(name))
        assert name not in self.fleet.members

    @rule(name=NAME, phase=st.sampled_from([State.STARTING, State.LOADING, State.WARMING]))
    def phase(self, name, phase):
        self.tell(Phase(name, phase))

    @rule(name=NAME)
    def waits_for_hardware(self, name):
        self.tell(Queued(name, "2 GPUs wanted"))

    @rule(name=NAME, kind=st.sampled_from([Kind.EXITED, Kind.OUT_OF_MEMORY]))
    def exit(self, name, kind):
        self.tell(Exited(name, kind))

    @rule(name=NAME)
    def spot_notice(self, name):
        self.tell(SpotNotice(name, 120 * SECOND))

    @rule(name=NAME)
    def drain(self, name):
        member = self.fleet.members.get(name)
        if member is not None:
            self.leaving.add(name)
        self.tell(DrainAsked(name, "asked for"))

    @rule(name=NAME)
    def restart(self, name):
        self.leaving.discard(name)
        self.tell(RestartAsked(name, "asked for"))
        member = self.fleet.members.get(name)
        if member is not None:
            assert member.health.state in (State.DRAINING, State.STARTING)

    @rule(name=NAME)
    def undrain(self, name):
        self.leaving.discard(name)
        self.tell(UndrainAsked(name, "asked for"))
        member = self.fleet.members.get(name)
        assert member is None or member.health.state not in OVER

    @rule(name=NAME, out=st.booleans(), until_right=st.booleans())
    def incident(self, name, out, until_right):
        member = self.fleet.members.get(name)
        before = member is not None and member.health.taken_out
        self.tell(TakeOutAsked(name, "an incident", out, until_right))
        if member is not None and (until_right or not out):
            assert member.health.taken_out is (before and out)  # right answers may bring it back

    @rule(name=NAME, frozen=st.booleans())
    def freeze(self, name, frozen):
        member = self.fleet.members.get(name)
        if member is not None and member.health.state not in OVER:
            (self.frozen.add if frozen else self.frozen.discard)(name)
        self.tell(Frozen(name, frozen))

    @rule(name=NAME, used=st.sampled_from([0.1, 0.93, 0.94, 0.99, 0.99]), count=st.integers(1, 3))
    def headroom(self, name, used, count):
        for _ in range(count):
            self.tell(EngineLoads((LoadReported("chat", name, kv_used=used),)))

    @rule(name=NAME, used=st.sampled_from([0.1, 0.93, 0.99, 0.99]), count=st.integers(1, 3))
    def device_memory(self, name, used, count):
        for _ in range(count):
            self.tell(DeviceMemory(name, used))

    # --- evidence --------------------------------------------------------------------------------

    def answer(self, name: str, verdict: str, running=None, progress=None, took=0) -> None:
        self.asked.pop(name, None)
        member = self.fleet.members.get(name)
        life = member.health.incarnation if member is not None else 0
        self.tell(
            CanaryResult(name, CanaryVerdict(verdict), took, running, progress, life, tokens=20)
        )

    @rule(
        name=NAME,
        verdict=st.sampled_from(VERDICTS),
        count=st.integers(1, 3),
        running=st.sampled_from([None, 0, 5]),
        progress=st.sampled_from([None, False, True]),
        took=st.sampled_from([0, 100 * MILLISECOND, SECOND]),
    )
    def canary(self, name, verdict, count, running, progress, took):
        for _ in range(count):
            self.answer(name, verdict, running, progress, took)

    @rule(verdict=st.sampled_from(VERDICTS))
    def answer_all(self, verdict):
        for name in list(self.asked):
            self.answer(name, verdict)

    @rule(name=NAME, verdict=st.sampled_from(VERDICTS), age=st.integers(1, 3))
    def canary_of_an_earlier_life(self, name, verdict, age):
        member = self.fleet.members.get(name)
        life = member.health.incarnation - age if member is not None else 0
        actions = self.tell(CanaryResult(name, CanaryVerdict(verdict), incarnation=life))
        assert not [a for a in actions if isinstance(a, Notice) and a.replica_id]

    @rule(
        names=st.lists(NAME, min_size=1, max_size=5),
        what=st.sampled_from(["open", "open", "half_open", "closed", "ladder moved"]),
    )
    def reports(self, names, what):
        self.tell(Seen(tuple(Report(MODELS[name], name, what, "told") for name in names)))

    @rule(
        counts=st.lists(
            st.tuples(NAME, st.integers(0, 1), st.integers(0, 2), st.integers(0, 30)), max_size=5
        )
    )
    def summary(self, counts):
        tallies = tuple(
            Tally(MODELS[name], name, good, 0, busy, inflight, 9 * good)
            for name, good, busy, inflight in counts
        )
        self.book_summary(*tallies)

    def book_summary(self, *tallies: Tally) -> None:
        self.inflight |= {tally.replica_id: tally.inflight for tally in tallies}
        self.tell(Seen((Summary(tallies),)))

    @rule(seconds=st.integers(5, 15), name=NAME)
    def only_backpressure(self, seconds, name):
        for _ in range(seconds):
            self.now += SECOND
            self.book_summary(Tally(MODELS[name], name, 0, 0, 3, 4, 0))

    @rule(jump=JUMPS)
    def tick(self, jump):
        self.now += jump
        making_room = {
            name: member.health.incarnation
            for name, member in self.fleet.members.items()
            if member.health.full
            and self.inflight.get(name)
            and member.health.state not in (State.DRAINING, *OVER)
        }
        self.tell(Tick())
        for name, life in making_room.items():
            assert self.fleet.members[name].health.incarnation == life, "its requests make room"

    # --- what must always hold -------------------------------------------------------------------

    @invariant()
    def views_tell_the_truth(self):
        view = self.views[-1]
        told = [replica.replica.id for replica in view.replicas]
        assert set(told) <= set(self.fleet.members)
        for name in set(self.fleet.members) - set(told):
            assert self.now - self.joined_at[name] < SECOND, "a newcomer is told of within a second"
        for replica in view.replicas:
            assert replica.state is self.fleet.members[replica.replica.id].health.state
        assert set(view.panic) == self.panics

    @invariant()
    def shares_follow_from_states(self):
        view = self.views[-1]
        for replica in view.replicas:
            if replica.state is State.READY:
                assert 0.1 <= replica.share <= 1.0
            elif replica.state is State.SUSPECT:
                assert replica.share == 0.1
            elif replica.state is State.QUARANTINED and not replica.firm:
                readmitted = replica.replica.model in view.panic
                assert replica.share == (0.1 if readmitted else 0.0)
            else:
                assert replica.share == 0.0

    @invariant()
    def a_stopped_process_gets_nothing(self):
        for replica in self.views[-1].replicas:
            if replica.replica.id in self.frozen:
                assert replica.share == 0.0
                assert replica.state not in SERVING

    @invariant()
    def a_full_replica_is_not_admitted(self):
        for member in self.fleet.members.values():
            assert not (member.health.full and member.health.state in SERVING)

    def teardown(self):
        """Once everything works, everybody who was not sent away serves again."""
        for name in NAMES:
            self.freeze(name, frozen=False)
            self.headroom(name, 0.1, 1)
            self.summary([(name, 0, 0, 0)])
        for _ in range(300):  # seconds: a quarantine of a minute, a slow start of half of one
            for name, member in list(self.fleet.members.items()):
                if member.health.state in (State.STARTING, State.LOADING):
                    self.phase(name, State.WARMING)
            self.tick(SECOND)
            self.answer_all("pass")
        for name, member in self.fleet.members.items():
            state = member.health.state
            if name in self.leaving:
                assert state in OVER
            else:
                assert state in (State.READY, State.STOPPED)  # stopped: the platform's notice
        ready = [v for v in self.views[-1].replicas if v.state is State.READY]
        assert {replica.share for replica in ready} <= {1.0}
        assert self.panics == set()


FleetUnderFire.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40)
TestFleetUnderFire = FleetUnderFire.TestCase
