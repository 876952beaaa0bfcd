"""A fleet driven as the control loop drives it, for tests of what it decides."""

from random import Random

from holdfast.core.canary import CanaryConfig, CanaryVerdict
from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.fleet import Fleet
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.messages import (
    CanaryResult,
    EngineLoads,
    FleetView,
    Joined,
    LoadReported,
    Notice,
    Phase,
    Publish,
    Report,
    ReportCode,
    RunCanary,
    Seen,
    Summary,
    Tally,
    Tick,
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

    def join(
        self, name: str, *, running: bool = True, model: str = "m", server: str = "", **declared
    ) -> list:
        return self.tell(Joined(Replica(name, model, **declared), running, self.asks, server))

    def phase(self, name: str, *phases: State) -> list:
        return [action for phase in phases for action in self.tell(Phase(name, phase))]

    def canary(self, name: str, verdict: str, **kwargs) -> list:
        """A canary's answer, of the process that runs there now."""
        life = self.fleet.members[name].health.incarnation
        return self.tell(CanaryResult(name, CanaryVerdict(verdict), incarnation=life, **kwargs))

    def seen(self, *actions) -> list:
        return self.tell(Seen(actions))

    def tally(
        self, name: str, successes=0, failures=0, backpressure=0, inflight=0, tokens=0, unread=0
    ) -> list:
        counts = (successes, failures, backpressure, inflight, tokens)
        told = Tally("m", name, *counts, unread=unread)
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
                told = CanaryResult(name, CanaryVerdict(answer), took, incarnation=life)
                told.extra = action.extra
                actions += self.tell(told)
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

    def may_try(self, name: str) -> bool:
        return next(v.may_try for v in self.published[-1].replicas if v.replica.id == name)


def all_of(actions: list, kind: type) -> list:
    return [action for action in actions if isinstance(action, kind)]


def notices(actions: list, what: str | None = None) -> list[Notice]:
    return [n for n in all_of(actions, Notice) if what in (None, n.what)]


def liar(control: Control, name: str = "r1") -> list:
    """A replica that answers two canaries in a row with something wrong."""
    return control.canary(name, "wrong") + control.after(0.1).canary(name, "wrong")


def stall(control: Control, name: str) -> list:
    """A canary without an answer, with requests beside it and no token."""
    return control.canary(name, "timeout", running=4, progress=False)


def engine_says(
    control: Control, name: str, waiting: int | None, running: int | None = None
) -> list:
    """The engine's own count of requests that wait and run there; None: no word of it."""
    load = LoadReported("chat", name, waiting=waiting, running=running)
    return control.tell(EngineLoads((load,)))
