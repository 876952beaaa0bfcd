"""A fleet's whole life: who belongs to it, how each replica is, what gateways are told.

    Joined, Phase, Exited, SpotNotice ─┐                       ┌─► Launch, Stop, Move
    CanaryResult ──────────────────────┼─► health, per replica ┼─► RunCanary
    Seen (gateways' own experience) ───┘   and model           └─► Publish(view), Notice

Evidence becomes a signal for one replica's health; what the health table then wants is checked
against the bound of the pool before it happens. Gateways get a new view whenever somebody's share
changed. Driven by the control loop with real time and by the simulator with virtual time.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from holdfast.core import ejection
from holdfast.core.breaker import BreakerState
from holdfast.core.drain import Drain
from holdfast.core.failure import MEANINGS, Class, Kind
from holdfast.core.fleet_config import FleetConfig
from holdfast.core.health import ReplicaHealth
from holdfast.core.lifecycle import JUDGED, ROUTABLE, Signal
from holdfast.core.member import Member
from holdfast.core.messages import (
    CanaryResult,
    DrainAsked,
    Exited,
    FleetAction,
    FleetEvent,
    FleetView,
    Joined,
    Launch,
    Left,
    Move,
    Notice,
    Phase,
    Publish,
    ReplicaView,
    Report,
    RunCanary,
    Seen,
    SpotNotice,
    Stop,
    Tally,
    Tick,
)
from holdfast.core.types import Decision, State, nanos

_PHASES: Final = {
    State.STARTING: Signal.LAUNCHED,
    State.LOADING: Signal.LOAD_BEGAN,
    State.WARMING: Signal.LOADED,
}
_VERDICTS: Final = {
    "pass": Signal.CANARY_PASS,
    "slow": Signal.CANARY_SLOW,
    "wrong": Signal.CANARY_WRONG,
    "fail": Signal.CANARY_FAIL,
    "refused": Signal.REFUSED,
    "busy": Signal.BUSY,
    "unknown": Signal.UNKNOWN,
}
_SILENCE: Final = ("timeout", "refused", "unknown")
_NEUTRAL: Final = (Signal.UNKNOWN, Signal.BUSY)
_RIGHT: Final = (Signal.CANARY_PASS, Signal.CANARY_SLOW)
_LOADING: Final = (State.STARTING, State.LOADING, State.WARMING)


class Fleet:
    """All replicas of all models. ``handle`` is its only mutator."""

    def __init__(
        self, config: FleetConfig, streams: Callable[[str], Random], epoch: int = 0
    ) -> None:
        self._epoch = epoch  # grows with each control that takes over; gateways follow the latest
        self._config = config
        self._streams = streams
        self._members: dict[str, Member] = {}
        self._version = 0
        self._shares: dict[str, float] = {}
        self._view: FleetView | None = None
        self._looked_at = 0
        self._published_at = 0
        self._panics: dict[str, str] = {}
        self._doubts: dict[str, str] = {}
        self._canary_deadline = nanos(config.canary_deadline_s)
        self._canary_deadline_max = nanos(config.canary_deadline_max_s)
        period_s = config.health.canary_s * (1 + config.health.canary_jitter)
        self._doubt_period = nanos(period_s + config.canary_deadline_s)
        self._relaunch_after = nanos(config.relaunch_after_s)
        self._no_success = nanos(config.no_success_s)
        self._ramp = nanos(config.ramp_s)
        self._heartbeat = nanos(config.heartbeat_s)
        self._forgive = nanos(config.launch_forgive_s)
        self._handlers: dict[type, Callable[[Any, int, list[FleetAction]], None]] = {
            Joined: self._on_joined,
            Left: self._on_left,
            Phase: self._on_phase,
            Exited: self._on_exited,
            SpotNotice: self._on_spot_notice,
            CanaryResult: self._on_canary,
            Seen: self._on_seen,
            DrainAsked: self._on_drain_asked,
            Tick: self._on_tick,
        }

    def handle(self, event: FleetEvent, now: int) -> list[FleetAction]:
        """Take one event; return the work it causes, a new view last."""
        actions: list[FleetAction] = []
        self._handlers[type(event)](event, now, actions)
        self._publish(actions, now)
        return actions

    @property
    def members(self) -> dict[str, Member]:
        """The replicas by id. To be read only."""
        return self._members

    # --- membership ------------------------------------------------------------------------------

    def _on_joined(self, event: Joined, now: int, actions: list[FleetAction]) -> None:
        replica = event.replica
        if replica.id in self._members:
            raise ValueError(f"replica {replica.id!r} joined twice; ids must be unique")
        rng = self._streams(f"health/{replica.id}")
        health = ReplicaHealth(self._config.health, replica.id, replica.model, now, rng)
        member = self._members[replica.id] = Member(replica, health)
        if event.running:
            self._signal(member, Signal.LOADED, now, actions, "was running when it joined")
        else:
            actions.append(Launch(replica.id, 0, "declared"))

    def _on_left(self, event: Left, now: int, actions: list[FleetAction]) -> None:
        member = self._members.pop(event.replica_id, None)
        if member is not None:
            actions.append(self._notice(member, now, "left", "taken out of the fleet"))

    def _on_phase(self, event: Phase, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is not None:
            self._signal(member, _PHASES[event.phase], now, actions)

    def _on_exited(self, event: Exited, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None:
            return
        health = member.health
        loading = health.state in _LOADING
        if health.state is State.READY and now - health.since >= self._forgive:
            member.exits = 0
        kind = event.kind
        where = Class.LOADING if loading else MEANINGS[kind].failure_class
        self._signal(member, Signal.EXITED, now, actions, kind.value, where)
        member.drain = None
        if not member.leaving:
            self._launch_again(member, kind.value, now, actions)

    def _launch_again(
        self, member: Member, reason: str, now: int, actions: list[FleetAction]
    ) -> None:
        config = self._config
        delay_s = min(config.launch_backoff_s * 2.0**member.exits, config.launch_backoff_max_s)
        member.exits = min(member.exits + 1, 32)  # the backoff's ceiling is reached long before
        self._signal(member, Signal.RELAUNCH, now, actions, reason)
        member.begin_life()
        delay, health = nanos(delay_s), member.health
        # The backoff is not loading: counted as such, it would be cut short and begun anew forever.
        health.load_deadline = (health.load_deadline or now) + delay
        actions.append(Launch(member.replica.id, delay, reason))

    def _on_spot_notice(self, event: SpotNotice, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None:
            return
        self._signal(member, Signal.SPOT_NOTICE, now, actions)
        if member.health.state is State.DRAINING and member.drain is None:
            member.drain = Drain(self._config.drain)
            member.drain.start(now, "spot notice")

    def _on_drain_asked(self, event: DrainAsked, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None:
            return
        member.leaving = True  # also where the platform's notice came first, or it is dead just now
        self._signal(member, Signal.DRAIN, now, actions, event.reason)
        if member.health.state is State.DRAINING and member.drain is None:
            member.drain = Drain(self._config.drain)
            member.drain.start(now, event.reason)

    # --- evidence --------------------------------------------------------------------------------

    def _on_canary(self, event: CanaryResult, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None or event.incarnation != member.health.incarnation:
            return  # of an earlier life
        member.canary_out = False
        member.wake_at = now
        if event.verdict not in _SILENCE:
            member.heard_at = now
        signal, why = _read_canary(event)
        model = member.replica.model
        if signal not in _NEUTRAL:
            member.canary_at = now
            member.canary_passed = signal in _RIGHT
            failed = not member.canary_passed
            if failed and member.health.state is State.READY:
                self._ask_peers(member, now)
            if (failed or model in self._doubts) and self._doubt(model, now, actions):
                return  # every canary fails at once: hold all states
        if signal is Signal.STALLED and event.latency:
            silence = self._silence(member, event.latency, now)
            if not silence:
                actions.append(self._notice(member, now, "verdict held", silence.reason))
                return
        if signal is Signal.CANARY_WRONG and member.health.would_be_firm(signal):
            witness = self._witness(member, now)
            if not witness:
                actions.append(self._notice(member, now, "verdict held", witness.reason))
                if member.health.state not in ROUTABLE:
                    return
                signal, why = Signal.BOUND_HELD, witness.reason
        self._signal(member, signal, now, actions, why)

    def _ask_peers(self, member: Member, now: int) -> None:
        """One canary failed: whether its peers pass tells the replica's trouble from the test's."""
        for peer in self._members.values():
            if peer is not member and peer.replica.model == member.replica.model:
                peer.health.call_canary(now)
                peer.wake_at = now

    def _canaries(self, model: str) -> tuple[list[ejection.CanaryResult], int]:
        """The latest canary of each replica that could have passed one, and how many there are."""
        results = []
        members = 0
        for member in self._members.values():
            if member.replica.model == model and member.health.state in JUDGED:
                members += 1
                if member.canary_at:
                    told = (member.replica.id, member.canary_at, member.canary_passed)
                    results.append(ejection.CanaryResult(*told))
        return results, members

    def _witness(self, member: Member, now: int) -> Decision:
        results, members = self._canaries(member.replica.model)
        period = self._doubt_period
        return ejection.may_condemn(results, member.replica.id, now, period, members=members)

    def _silence(self, member: Member, waited: int, now: int) -> Decision:
        model = member.replica.model
        peers = [m for m in self._members.values() if m is not member and m.replica.model == model]
        heard_at = [peer.heard_at for peer in peers]
        return ejection.may_blame_silence(heard_at, now - waited, now)

    def _doubt(self, model: str, now: int, actions: list[FleetAction]) -> bool:
        """Whether the expected answer, or the checker, is more suspect than the replicas."""
        results, members = self._canaries(model)
        doubt = ejection.canaries_doubtful(results, now, self._doubt_period, members=members)
        before = self._doubts.pop(model, None)
        if doubt:
            self._doubts[model] = doubt.reason
            if before is None:
                actions.append(Notice(now, model, "", "canaries doubted", doubt.reason))
        elif before is not None:
            actions.append(Notice(now, model, "", "canaries trusted again", doubt.reason))
        return bool(doubt)

    def _on_seen(self, event: Seen, now: int, actions: list[FleetAction]) -> None:
        for seen in event.actions:
            if isinstance(seen, Report):
                member = self._members.get(seen.replica_id)
                if member is not None and seen.what == BreakerState.OPEN:
                    member.health.call_canary(now)
                    signal = Signal.PASSIVE_FAILING
                    self._signal(member, signal, now, actions, seen.reason, Class.RUNTIME)
            else:
                for tally in seen.tallies:
                    self._on_tally(event.gateway, tally, now, actions)

    def _on_tally(self, gateway: str, tally: Tally, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(tally.replica_id)
        if member is None:
            return
        member.inflight_at[gateway] = tally.inflight
        member.move_told = False
        if tally.successes:
            member.heard_at = now
            member.only_busy_since = None
            if member.health.state is not State.READY:
                self._signal(member, Signal.PASSIVE_OK, now, actions)
        elif tally.backpressure:
            since = member.only_busy_since
            if since is None or now - member.busy_at >= self._no_success:
                member.only_busy_since = now  # silence in between is not backpressure
            elif now - since >= self._no_success:
                member.only_busy_since = None  # readmitted, it has as long again
                self._signal(member, Signal.NO_SUCCESS, now, actions)
            member.busy_at = now

    def _signal(
        self,
        member: Member,
        signal: Signal,
        now: int,
        actions: list[FleetAction],
        detail: str = "",
        where: Class | None = None,
    ) -> None:
        """Move one replica along its table, inside the bound of its pool."""
        health = member.health
        before = health.state
        if before in ROUTABLE:
            after = health.would_become(signal)
            if after is State.QUARANTINED and not health.would_be_firm(signal):
                pool = self._pool(member.replica.model)
                bound = ejection.may_eject(self._config.ejection, pool, health)
                if not bound:
                    signal, detail = Signal.BOUND_HELD, bound.reason
        member.wake_at = now
        change = health.handle(signal, now, detail)
        if change is not None:
            actions.append(self._notice(member, now, change.after.value, change.reason, where))

    def _pool(self, model: str) -> list[ReplicaHealth]:
        return [m.health for m in self._members.values() if m.replica.model == model]

    # --- time ------------------------------------------------------------------------------------

    def _on_tick(self, _event: Tick, now: int, actions: list[FleetAction]) -> None:
        for member in self._members.values():
            if now >= member.wake_at:
                self._attend(member, now, actions)
                member.wake_at = self._next_look(member, now)

    def _attend(self, member: Member, now: int, actions: list[FleetAction]) -> None:
        """Do what time alone asks for: canaries, loading that stalls, drains, relaunches."""
        health = member.health
        state = health.state
        if health.canary_due(now) and not member.canary_out:
            member.canary_out = True
            health.canary_started(now)
            deadline = self._canary_patience(member.inflight)
            replica = member.replica
            actions.append(RunCanary(replica.id, replica.model, deadline, health.incarnation))
        if state in _LOADING and health.load_deadline and now >= health.load_deadline:
            detail = f"stuck while {state.value}"
            self._signal(member, Signal.LOAD_TIMEOUT, now, actions, detail, Class.LOADING)
            self._replace(member, Kind.LOAD_STALLED.value, now, actions)
        elif (state is State.QUARANTINED and now - health.since >= self._relaunch_after) or (
            state is State.DEAD and not member.leaving
        ):
            self._replace(member, health.reason, now, actions)
        elif member.drain is not None:
            self._advance_drain(member, now, actions)

    def _next_look(self, member: Member, now: int) -> int:
        """When time alone next asks for something; news of the member calls earlier."""
        health = member.health
        if member.drain is not None or health.state is State.DEAD:
            return now
        look = now + self._heartbeat
        if health.state in JUDGED and not member.canary_out:
            look = min(look, health.next_canary_at)
        if health.load_deadline:
            look = min(look, health.load_deadline)
        return look

    def _canary_patience(self, inflight: int) -> int:
        scaled = self._canary_deadline * (1 + inflight / self._config.canary_busy_requests)
        return min(round(scaled), self._canary_deadline_max)

    def _replace(self, member: Member, reason: str, now: int, actions: list[FleetAction]) -> None:
        actions.append(Stop(member.replica.id, reason))
        self._launch_again(member, reason, now, actions)

    def _advance_drain(self, member: Member, now: int, actions: list[FleetAction]) -> None:
        drain = member.drain
        if drain is None or member.health.state is not State.DRAINING:
            return
        step = drain.decide(member.inflight, now)
        if step.action == "move":
            if not member.move_told:
                member.move_told = True
                actions.append(Move(member.replica.model, member.replica.id))
        elif step.action == "stop":
            self._signal(member, Signal.DRAINED, now, actions, step.reason)
            actions.append(Stop(member.replica.id, step.reason))
            if not member.leaving:  # the platform takes the host, the fleet still wants the replica
                self._launch_again(member, step.reason, now, actions)

    # --- what gateways are told ------------------------------------------------------------------

    def _publish(self, actions: list[FleetAction], now: int) -> None:
        """A new view whenever a state moved; ramps of slow starts once a second."""
        moved = any(isinstance(action, Notice) for action in actions)
        if not moved and self._version and now - self._looked_at < self._ramp:
            return
        self._looked_at = now
        panics = self._look_for_panic(actions, now)
        views = []
        shares: dict[str, float] = {}
        for member in self._members.values():
            health = member.health
            readmitted = member.replica.id in panics.get(member.replica.model, ())
            share = health.share(now, panic=readmitted)
            shares[member.replica.id] = share
            views.append(
                ReplicaView(
                    member.replica,
                    health.state,
                    share,
                    health.never_readmit_by_panic,
                    health.reason,
                )
            )
        if shares == self._shares and not moved:
            if now - self._published_at >= self._heartbeat and self._view is not None:
                self._published_at = now
                actions.append(Publish(self._view))  # nothing new, but control is there
            return
        self._shares = shares
        self._published_at = now
        self._version += 1
        panic = tuple(self._panics)
        self._view = FleetView(self._version, tuple(views), panic, self._epoch)
        actions.append(Publish(self._view))

    def _look_for_panic(self, actions: list[FleetAction], now: int) -> dict[str, tuple[str, ...]]:
        readmitted: dict[str, tuple[str, ...]] = {}
        models = [member.replica.model for member in self._members.values()]
        for model in dict.fromkeys([*models, *self._panics]):
            doubtful = model in self._doubts
            panic = ejection.panic(self._config.ejection, self._pool(model), doubtful=doubtful)
            if panic.active:
                readmitted[model] = panic.readmitted
                if model not in self._panics:
                    actions.append(Notice(now, model, "", "panic", panic.reason))
                self._panics[model] = panic.reason
            elif self._panics.pop(model, None) is not None:
                actions.append(Notice(now, model, "", "panic over", panic.reason))
        return readmitted

    def _notice(
        self, member: Member, now: int, what: str, reason: str, where: Class | None = None
    ) -> Notice:
        return Notice(now, member.replica.model, member.replica.id, what, reason, where)

    def snapshot(self) -> dict[str, object]:
        """The fleet as plain data, for people and for the record."""
        return {
            "version": self._version,
            "panic": dict(self._panics),
            "doubts": dict(self._doubts),
            "replicas": {
                member.replica.id: {
                    **member.health.snapshot(),
                    "zone": member.replica.zone,
                    "revision": member.replica.revision,
                    "inflight": member.inflight,
                    "share": self._shares.get(member.replica.id, 0.0),
                }
                for member in self._members.values()
            },
        }


def _read_canary(event: CanaryResult) -> tuple[Signal, str]:
    """Busy is not dead: a canary that timed out is read by what else the engine was doing."""
    if event.verdict != "timeout":
        return _VERDICTS[event.verdict], ""
    if event.progress:
        return Signal.BUSY, "timed out while users' tokens move"
    if event.running:
        return Signal.STALLED, f"{event.running} requests running and no token emitted"
    return Signal.CANARY_FAIL, "no answer in time from an idle replica"


__all__ = ["Fleet"]
