"""A flow driven as a gateway drives it, for tests of what it decides."""

from dataclasses import replace
from random import Random

from holdfast.core.failure import Kind
from holdfast.core.messages import (
    Arrived,
    ClientGone,
    Dispatch,
    Ended,
    Finish,
    FirstContent,
    FleetView,
    ReplicaView,
    Report,
    ReportCode,
    Silent,
    Summary,
    Tally,
    Tick,
    ViewChanged,
)
from holdfast.core.request.admission.limit import LimitConfig
from holdfast.core.request.breaker import BreakerConfig
from holdfast.core.request.deadlines import DeadlineConfig
from holdfast.core.request.flow import Flow
from holdfast.core.request.flow_config import FlowConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import MILLISECOND, SECOND, Halt, Replica, Request, State, nanos

START = 100 * SECOND
TICK = 10 * MILLISECOND
PATIENT = DeadlineConfig()
QUICK = DeadlineConfig(first_token_s=2.0, between_tokens_s=2.0)
HEDGING = HedgeConfig(enabled=True, samples_min=1)
NO_BACKOFF = RetryConfig(backoff="none")


def view(name: str, share: float = 1.0, *, firm: bool = False, **declared) -> ReplicaView:
    replica = Replica(name, **{"model": "m", "slots": 4, **declared})
    state = State.READY if share else State.QUARANTINED
    return ReplicaView(replica, state, share, firm)


def lane(**config) -> LaneConfig:
    plain = {
        "routing": "round_robin",
        "limit": LimitConfig(enabled=False),
        "breaker": BreakerConfig(jitter=0.0),
    }
    return LaneConfig(**{**plain, **config})


class Gateway:
    """Drives one flow as a gateway does: tells what happened, returns what is to be done."""

    def __init__(self, *views: ReplicaView | str, lane: LaneConfig = lane(), **config) -> None:  # noqa: B008
        self.flow = Flow(FlowConfig(lane=lane, **config), Random)
        self.now = START
        self.version = 0
        self.doubts: list[Report] = []  # reports of overdue attempts, apart: most tests wait long
        self.view(*(views or ("r1", "r2", "r3")))

    def tell(self, event) -> list:
        actions = self.flow.handle(event, self.now)
        doubts = [a for a in actions if isinstance(a, Report) and a.what == ReportCode.OVERDUE]
        self.doubts += doubts
        return [action for action in actions if action not in doubts]

    def view(self, *views: ReplicaView | str, version: int | None = None) -> list:
        self.version = self.version + 1 if version is None else version
        replicas = tuple(view(v) if isinstance(v, str) else v for v in views)
        return self.tell(ViewChanged(FleetView(self.version, replicas)))

    def arrive(self, request_id: str = "q1", model: str = "m", **kwargs) -> list:
        return self.tell(Arrived(Request(request_id, model, **{"arrived": self.now, **kwargs})))

    def first(self, request_id: str = "q1", attempt: int = 0) -> list:
        return self.tell(FirstContent(request_id, attempt))

    def end(
        self, request_id: str = "q1", attempt: int = 0, kind: Kind | None = None, tokens: int = 0
    ) -> list:
        return self.tell(Ended(request_id, attempt, kind, tokens, MILLISECOND))

    def silent(self, request_id: str = "q1", attempt: int = 0, tokens: int = 0) -> list:
        return self.tell(Silent(request_id, attempt, tokens))

    def gone(self, request_id: str = "q1") -> list:
        return self.tell(ClientGone(request_id))

    def tick(self) -> list:
        return self.tell(Tick())

    def after(self, delay_s: float) -> "Gateway":
        """Let time pass without a tick."""
        self.now += nanos(delay_s)
        return self

    def wait(self, delay_s: float, every: int = TICK) -> list:
        """Let time pass tick by tick; everything but the summaries."""
        actions, until = [], self.now + nanos(delay_s)
        while self.now < until:
            self.now = min(self.now + every, until)
            actions += self.tick()
        return [action for action in actions if not isinstance(action, Summary)]

    def serve(self, request_id: str, took_s: float = 0.1, **kwargs) -> Finish:
        """One whole answer."""
        only(self.arrive(request_id, **kwargs), Dispatch)
        self.after(took_s).first(request_id)
        return only(self.end(request_id, tokens=8), Finish)

    def candidate(self, name: str):
        return self.flow.lanes["m"].pool.candidates[name]

    def tallies(self) -> dict[str, Tally]:
        """What the next summary says, by replica."""
        actions = self.after(1.0).tick()
        told = [a for a in actions if isinstance(a, Summary)]
        return {tally.replica_id: tally for summary in told for tally in summary.tallies}


def only(actions: list, kind: type):
    """The one action there is, of that kind."""
    assert [type(action) for action in actions] == [kind], actions
    return actions[0]


def last(actions: list, kind: type):
    """The last action, which is of that kind."""
    assert isinstance(actions[-1], kind), actions
    return actions[-1]


def all_of(actions: list, kind: type) -> list:
    return [action for action in actions if isinstance(action, kind)]


def events(finish: Finish) -> list[str]:
    return [what for _, what, _ in finish.story]


def full(**config) -> Gateway:
    """One replica with one slot, taken by q1."""
    gateway = Gateway(view("r1", slots=1), **config)
    only(gateway.arrive("q1"), Dispatch)
    return gateway


def shown(gateway: Gateway, **kwargs) -> Dispatch:
    """Sends q1 and shows its client some content."""
    dispatch = only(gateway.arrive("q1", **kwargs), Dispatch)
    gateway.after(0.1).first()
    return dispatch


def hedging(*views: ReplicaView | str, **config) -> Gateway:
    """A gateway that knows its usual first token: a tenth of a second."""
    config = {"hedge": HEDGING, **config}
    gateway = Gateway(*(views or ("r1", "r2", "r3")), **config)
    gateway.serve("warm")
    gateway.after(2.0)
    return gateway


def caught(gateway: Gateway, name: str = "q1", **kwargs) -> str:
    """The replica that a request was sent to and is caught at."""
    kwargs = {"whole": True, "max_tokens": 64, **kwargs}
    return only(gateway.arrive(name, **kwargs), Dispatch).replica_id


def out(name: str, halt: Halt | None, **more) -> ReplicaView:
    """A replica that gets nothing, and why."""
    return replace(view(name, 0.0), halt=halt, **more)
