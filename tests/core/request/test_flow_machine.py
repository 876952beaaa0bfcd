"""An adversarial driver against a flow, with books of its own kept beside it.

The driver reports whatever may happen in whatever order, late and doubled news included, lets time
jump and takes replicas away under the requests. The books share no arithmetic with what they check.
"""

from dataclasses import replace
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.failure import Kind
from holdfast.core.messages import (
    Abort,
    Arrived,
    ClientGone,
    Dispatch,
    Ended,
    Finish,
    FirstContent,
    FleetView,
    LoadReported,
    Quiet,
    ReplicaHalted,
    ReplicaView,
    Report,
    ReportCode,
    Silent,
    Summary,
    Tick,
    ViewChanged,
)
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.admission.queue import QueueConfig
from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.failover import FailoverConfig
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.ladders.degrade import DegradeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.pool import TRIAL_REASON
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import MILLISECOND, SECOND, Halt, Priority, Replica, Request, State
from sampling import examples

START = 100 * SECOND
TICK = 10 * MILLISECOND
WHOLE = 40 * SECOND
BATCH_WAIT = 8 * SECOND
REPLICAS = {
    replica.id: replica
    for replica in (
        *(Replica(f"b{n}", "big", slots=2 - n % 2, revision=str(1 + n // 3)) for n in range(5)),
        Replica("s0", "small", slots=2),
        Replica("s1", "small", slots=1),
    )
}
RETRY = RetryConfig(attempts=2, continuations=2, moves=1, backoff_base_s=0.05, backoff_max_s=0.1)
CONFIG = FlowConfig(
    lane=LaneConfig(
        queue=QueueConfig(
            depth_max=4,
            batch_depth_max=2,
            wait_interactive_s=5.0,
            wait_batch_s=BATCH_WAIT / SECOND,
            wait_no_replica_s=2.0,
        ),
        deadlines=DeadlineConfig(first_token_s=2.0, between_tokens_s=2.0, request_s=WHOLE / SECOND),
        breaker=BreakerConfig(consecutive=2, minimum=3, window=5, cooldown_s=0.5),
        limit=LimitConfig(initial=4),
        failover=FailoverConfig(allowed_revisions=("1", "2")),
    ),
    retry=RETRY,
    hedge=HedgeConfig(enabled=True, samples_min=1, share_max=0.5, utilisation_max=1.0),
    degrade=(DegradeConfig(ladder=("big", "small"), step_s=1.0, hold_s=1.0, share_step=0.5),),
    quotas={"metered": QuotaConfig(requests_per_minute=30.0, tokens_per_minute=3000.0)},
)
MODELS = 2  # of the ladder: down, and back where the smaller one refuses
SHARES = st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 1.0, 1.0])
JUMPS = st.sampled_from([0, 1, TICK, 6 * TICK, SECOND // 2, SECOND, 2 * SECOND, 15 * SECOND])
BROKEN = (Kind.CUT, Kind.RESET, Kind.DRAINED)
ANSWERED_404 = {"path_not_served", "response_lost"}  # by a replica that was asked


class Out:
    """One attempt that is under way, as the books have it."""

    def __init__(self, dispatch: Dispatch, generation: int) -> None:
        self.replica_id = dispatch.replica_id
        self.model = dispatch.model
        self.place = (dispatch.model, dispatch.replica_id, generation)
        self.trial = dispatch.reason == TRIAL_REASON
        self.content = False


class Account:
    """One request, as the books have it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        queue = BATCH_WAIT if request.priority is Priority.BATCH else 0
        self.deadline = request.deadline or request.arrived + WHOLE + queue
        self.live: dict[int, Out] = {}
        self.dispatched = 0
        self.resumed = 0
        self.revision = ""  # of the content that was shown


class FlowUnderFire(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.flow = Flow(CONFIG, Random)
        self.now = START
        self.arrived = 0
        self.open: dict[str, Account] = {}
        self.closed: list[str] = []
        self.version = 0
        self.shares: dict[str, float] = {}
        self.generations: dict[str, int] = dict.fromkeys(REPLICAS, 0)
        self.decayed: list[str] = []  # quarantines that control's silence has turned into trials
        self.answered = False  # the event under way reports a complete answer
        self.view([1.0] * len(REPLICAS), firm=False)
        self.warm_up()

    def warm_up(self) -> None:
        """The usual first token is known from the start, so that whoever is late is hedged."""
        for model in ("big", "small"):
            request = self.ask(model)
            self.now += 50 * MILLISECOND
            self.show(request.id, 0)
            self.finish(request.id, 0, None, 9)
        self.now += 2 * SECOND

    # --- the books -------------------------------------------------------------------------------

    def tell(self, event) -> list:
        actions = self.flow.handle(event, self.now)
        for action in actions:
            if isinstance(action, Dispatch):
                self.book_dispatch(action)
            elif isinstance(action, Abort):
                self.book_abort(action)
            elif isinstance(action, Finish):
                self.book_finish(action)
            elif isinstance(action, Report):
                if action.what == ReportCode.VIEW_STALE:
                    assert self.shares[action.replica_id] == 0.0
                    self.decayed.append(action.replica_id)
            else:
                assert isinstance(action, Summary)
                assert action.tallies
        return actions

    def book_dispatch(self, action: Dispatch) -> None:
        account = self.open[action.request.id]  # raises for one that is finished
        replica = REPLICAS[action.replica_id]
        out = Out(action, self.generations[replica.id])
        assert action.attempt == account.dispatched, "attempts are numbered in order"
        assert action.model == replica.model
        assert account.request.holder in ("", replica.id), "nobody else keeps it"
        assert self.shares.get(replica.id, 0.0) > 0 or replica.id in self.decayed
        assert action.silence_max > 0
        if account.revision:
            assert action.resume_tokens > 0, "what was shown is continued, never started again"
            assert replica.revision == account.revision
            assert account.request.continuable
            account.resumed += 1
        else:
            assert action.resume_tokens == 0
        if out.trial:
            others = [o for a in self.open.values() for o in a.live.values() if o.trial]
            assert out.place not in [other.place for other in others], "one trial at a time"
            waited = "queued" in [what for _, what, _ in self.flow.lives[action.request.id].story]
            assert account.dispatched == 0 or waited
        account.live[action.attempt] = out
        account.dispatched += 1
        bound = RETRY.attempts + 1 + RETRY.continuations + RETRY.moves
        bound += len(REPLICAS)  # sent on by each that lacks the path
        assert account.dispatched <= bound + MODELS, "one more at each other model of its ladder"
        assert account.resumed <= RETRY.continuations
        assert len(account.live) <= 2
        assert not any(o.content for o in account.live.values()), "nothing races shown content"

    def book_abort(self, action: Abort) -> None:
        out = self.open[action.request_id].live.pop(action.attempt)
        assert out.replica_id == action.replica_id

    def book_finish(self, action: Finish) -> None:
        account = self.open.pop(action.request_id)  # raises for a second one
        self.closed.append(action.request_id)
        assert account.live == {}, "nothing runs for a finished request"
        assert action.shown == bool(account.revision)
        assert action.attempts == account.dispatched
        assert account.resumed <= action.continued <= RETRY.continuations
        assert (action.status == 200) == self.answered
        assert action.story
        if action.status in (429, 404) and action.code not in ANSWERED_404:
            assert action.attempts == 0
        if not account.request.continuable:
            assert action.continued == 0

    def attempts_out(self) -> list[tuple[str, int, Out]]:
        return [(r, n, out) for r, a in self.open.items() for n, out in a.live.items()]

    def pick(self, pick: int) -> tuple[str, int, Out]:
        out = self.attempts_out()
        return out[pick % len(out)]

    # --- requests --------------------------------------------------------------------------------

    def ask(self, model: str, **kwargs: object) -> Request:
        self.arrived += 1
        request = Request(f"q{self.arrived}", model, arrived=self.now, **kwargs)
        self.open[request.id] = Account(request)
        self.tell(Arrived(request))
        return request

    def show(self, request_id: str, number: int) -> None:
        """The client sees content: the trial has passed and the revision is bound."""
        account = self.open[request_id]
        attempt = account.live[number]
        attempt.content, attempt.trial = True, False
        account.revision = REPLICAS[attempt.replica_id].revision
        self.tell(FirstContent(request_id, number))
        assert list(account.live) == [number], "rivals are called back"

    def finish(self, request_id: str, number: int, kind: Kind | None, tokens: int) -> None:
        del self.open[request_id].live[number]
        self.answered = kind is None
        event = Ended(request_id, number, kind, tokens, 20 * MILLISECOND)
        event.status = 404
        self.tell(event)
        self.answered = False
        if kind is None:
            assert request_id in self.closed

    @rule(
        model=st.sampled_from(["big", "big", "big", "small"]),
        count=st.integers(1, 4),
        kind=st.fixed_dictionaries(
            {
                "tenant": st.sampled_from(["a", "b", "metered"]),
                "priority": st.sampled_from(Priority),
                "continuable": st.sampled_from([True, True, False]),
                "hedgeable": st.sampled_from([True, True, False]),
                "prompt_tokens": st.sampled_from([0, 10, 300]),
                "max_tokens": st.sampled_from([0, 100]),
                "whole": st.sampled_from([True, False, False]),
                "stores": st.sampled_from([True, False, False]),
                "path": st.sampled_from(["", "/v1/embeddings"]),
            }
        ),
        holder=st.sampled_from(["", "", "", *REPLICAS, "nobody"]),
        lasts=st.sampled_from([0, 0, 0, SECOND // 2, 6 * SECOND]),
    )
    def arrive(self, model, count, kind, lasts, holder):
        if holder in REPLICAS:
            model = REPLICAS[holder].model
        for _ in range(count):
            deadline = self.now + lasts if lasts else 0
            self.ask(model, deadline=deadline, holder=holder, degradable=not holder, **kind)

    @rule()
    def arrive_for_nobody(self):
        assert self.ask("unheard").id in self.closed

    @precondition(attempts_out)
    @rule(pick=st.integers(0, 99))
    def first_content(self, pick):
        request_id, number, attempt = self.pick(pick)
        if attempt.content:
            assert self.tell(FirstContent(request_id, number)) == []
        else:
            self.show(request_id, number)

    @precondition(attempts_out)
    @rule(pick=st.integers(0, 99), kind=st.sampled_from([None, *Kind]))
    def end(self, pick, kind):
        request_id, number, attempt = self.pick(pick)
        self.finish(request_id, number, kind, 5 if attempt.content or kind is None else 0)

    @precondition(attempts_out)
    @rule(pick=st.integers(0, 99), tokens=st.sampled_from([0, 1, 40]), kind=st.sampled_from(BROKEN))
    def break_a_stream(self, pick, tokens, kind):
        request_id, number, attempt = self.pick(pick)
        if not attempt.content:
            self.show(request_id, number)
        self.finish(request_id, number, kind, tokens)

    @precondition(attempts_out)
    @rule(pick=st.integers(0, 99), count=st.integers(1, 3))
    def refuse(self, pick, count):
        for _ in range(count):
            if self.attempts_out():
                request_id, number, attempt = self.pick(pick)
                if not attempt.content:
                    self.finish(request_id, number, Kind.REFUSED, 0)

    @precondition(attempts_out)
    @rule(pick=st.integers(0, 99), tokens=st.sampled_from([0, 3]))
    def silence(self, pick, tokens):
        request_id, number, attempt = self.pick(pick)
        if attempt.content:
            self.tell(Silent(request_id, number, tokens))

    @precondition(attempts_out)
    @rule(pick=st.integers(0, 99))
    def pause(self, pick):
        """A pause asks a canary and does nothing to the request."""
        request_id, number, attempt = self.pick(pick)
        actions = self.tell(Quiet(request_id, number))
        assert [(a.what, a.replica_id) for a in actions] in (
            [],
            [(ReportCode.OVERDUE, attempt.replica_id)],
        )

    @precondition(lambda self: self.open)
    @rule(pick=st.integers(0, 99))
    def client_leaves(self, pick):
        request_id = list(self.open)[pick % len(self.open)]
        actions = self.tell(ClientGone(request_id))
        finish = next(a for a in actions if isinstance(a, Finish))
        assert (finish.request_id, finish.status) == (request_id, 499)

    @rule(pick=st.integers(0, 99), number=st.integers(0, 6), kind=st.sampled_from([None, *Kind]))
    def old_news(self, pick, number, kind):
        """Of finished requests, of attempts that were called back, of nobody at all."""
        known = [*self.closed[-5:], *list(self.open)[:5], "never"]
        request_id = known[pick % len(known)]
        account = self.open.get(request_id)
        if account is not None and number in account.live:
            return
        for event in (
            FirstContent(request_id, number),
            Ended(request_id, number, kind, 7),
            Silent(request_id, number, 7),
            Quiet(request_id, number),
        ):
            assert self.tell(event) == []
        if account is None:
            assert self.tell(ClientGone(request_id)) == []

    # --- the world -------------------------------------------------------------------------------

    @rule(
        shares=st.one_of(
            st.just([]), st.lists(SHARES, min_size=len(REPLICAS), max_size=len(REPLICAS))
        ),
        firm=st.booleans(),
        halt=st.sampled_from([None, None, *Halt]),
        ready_in_s=st.sampled_from([None, None, 0.0, 4.0, 60.0]),
        canary_s=st.sampled_from([None, 0.1, 1.0]),
    )
    def view(self, shares, firm, halt=None, ready_in_s=None, canary_s=None):
        """A new view; a share of 0 with an odd place leaves the replica out altogether."""
        self.version += 1
        views = []
        for place, (replica, share) in enumerate(zip(REPLICAS.values(), shares, strict=False)):
            if share or place % 2 == 0:
                state = State.READY if share else State.QUARANTINED
                row = ReplicaView(replica, state, share, firm and not share, "", halt)
                views.append(replace(row, canary_s=canary_s, ready_in_s=ready_in_s))
        self.last_view = FleetView(self.version, tuple(views))
        for name in self.shares:
            if name not in [view.replica.id for view in views]:
                self.generations[name] += 1
        self.decayed = []
        self.shares = {view.replica.id: view.share for view in views}
        self.tell(ViewChanged(self.last_view))

    @rule(name=st.sampled_from([*REPLICAS, "nobody"]), halt=st.sampled_from(Halt))
    def halted(self, name, halt):
        """What was shown or stores something stays; what leaves has somewhere to go."""
        stay = {
            (request_id, number)
            for request_id, number, attempt in self.attempts_out()
            if attempt.content
            or self.open[request_id].revision
            or self.open[request_id].request.stores
        }
        model = REPLICAS[name].model if name in REPLICAS else "big"
        for action in self.tell(ReplicaHalted(model, name, halt)):
            if isinstance(action, Abort):
                assert (action.request_id, action.attempt) not in stay
                moved = self.open[action.request_id]
                assert moved.live

    @rule(age=st.integers(0, 2))
    def old_view(self, age):
        """The last one again shows that control is there; an older one changes nothing."""
        if age:
            assert self.tell(ViewChanged(FleetView(self.version - age, ()))) == []
        else:
            self.decayed = []
            self.tell(ViewChanged(self.last_view))

    @rule(
        name=st.sampled_from([*REPLICAS, "nobody"]),
        waiting=st.one_of(st.none(), st.integers(0, 20)),
    )
    def load(self, name, waiting):
        model = REPLICAS[name].model if name in REPLICAS else "big"
        assert self.tell(LoadReported(model, name, 100, waiting, 0.5)) == []

    @rule(jump=JUMPS)
    def tick(self, jump):
        self.now += jump
        self.tell(Tick())
        for account in self.open.values():
            assert account.deadline > self.now - 2 * TICK, "no request outlives its deadline"

    @rule(count=st.integers(5, 60))
    def ticks(self, count):
        for _ in range(count):
            self.tick(TICK)

    # --- what must always hold -------------------------------------------------------------------

    @invariant()
    def the_flow_knows_the_same_requests(self):
        assert list(self.flow.lives) == list(self.open)
        assert len(self.closed) + len(self.open) == self.arrived
        assert len(set(self.closed)) == len(self.closed)

    @invariant()
    def every_slot_has_its_attempt(self):
        out = [attempt for _, _, attempt in self.attempts_out()]
        for model, lane in self.flow.lanes.items():
            assert lane.pool.inflight == len([o for o in out if o.model == model])
            for name, candidate in lane.pool.candidates.items():
                place = (model, name, self.generations[name])
                held = [o for o in out if o.place == place]
                assert candidate.inflight == len(held) <= candidate.slots
                assert candidate.own_tokens >= 0
                trial_out = candidate.breaker._trial_out
                assert trial_out == any(o.trial for o in held)

    @invariant()
    def the_queues_hold_only_the_living(self):
        for lane in self.flow.lanes.values():
            assert lane.queue.held.keys() <= self.open.keys()
            for request_id in lane.queue.held:
                assert self.open[request_id].live == {}

    def teardown(self):
        """Nobody reports anything any more: deadlines alone must bring everything to an end."""
        for _ in range(8):
            self.tick(WHOLE // 4)
        assert self.open == {}
        assert self.flow.lives == {}
        for lane in self.flow.lanes.values():
            assert lane.pool.inflight == 0
            assert lane.queue.held == {}
            assert lane.queue.tokens == 0
            for candidate in lane.pool.candidates.values():
                assert (candidate.inflight, candidate.own_tokens) == (0, 0)
        for _ in range(3):
            self.tick(40 * SECOND)
        assert len(self.flow._wheel) == 0


FlowUnderFire.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40)
TestFlowUnderFire = FlowUnderFire.TestCase
