"""The state of a whole fleet: which replicas there are, their health, the view for gateways.

    Joined, Phase, Exited, SpotNotice ─┐                       ┌─► Launch, Stop, Move
    CanaryResult ──────────────────────┼─► health, per replica ┼─► RunCanary
    Seen (gateways' own experience) ───┘   and model           └─► Publish(view), Notice

Evidence becomes a signal for one replica's health; what the health table then wants is checked
against the bound of the pool before it happens. Gateways get a new view whenever a replica's share
changed. Driven by the control loop with real time and by the simulator with virtual time.
"""

from collections.abc import Callable
from math import isfinite
from random import Random
from typing import Any, Final

from holdfast.core.canary import CanaryVerdict
from holdfast.core.engine_work import EnginePage
from holdfast.core.failure import MEANINGS, Class, Kind
from holdfast.core.health import ejection
from holdfast.core.health.baseline import CanaryPace
from holdfast.core.health.canary_evidence import (
    CanaryEvidence,
    UsersBeside,
    read_canary,
    users_beside,
)
from holdfast.core.health.drain import Drain
from holdfast.core.health.fleet_config import FleetConfig
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.health.lifecycle import JUDGED, ROUTABLE, Signal
from holdfast.core.health.liveness import spares_work
from holdfast.core.health.member import NEVER, Member
from holdfast.core.health.view_publisher import Publisher
from holdfast.core.messages import (
    CallBackCanary,
    CanaryAsked,
    CanaryResult,
    DeviceMemory,
    DrainAsked,
    EngineLoads,
    Exited,
    FleetAction,
    FleetEvent,
    Frozen,
    HurryCanary,
    Joined,
    Launch,
    Left,
    Move,
    Notice,
    Phase,
    Queued,
    Report,
    ReportCode,
    RestartAsked,
    RunCanary,
    Seen,
    SpotNotice,
    Stop,
    TakeOutAsked,
    Tally,
    Tick,
    UndrainAsked,
)
from holdfast.core.request.breaker import BreakerState
from holdfast.core.types import SECOND, State, nanos

_PHASES: Final = {
    State.STARTING: Signal.LAUNCHED,
    State.LOADING: Signal.LOAD_BEGAN,
    State.WARMING: Signal.LOADED,
}
_NEUTRAL: Final = (Signal.UNKNOWN, Signal.BUSY, Signal.DRAINS_ITSELF)
_LOADING: Final = (State.STARTING, State.LOADING, State.WARMING)
_ENDED: Final = (State.STOPPED, State.DEAD)
_UNANSWERED_MAX: Final = 3  # canaries in a row, while users' tokens move and a slot is free
_USUAL_FACTOR: Final = 20  # on an idle replica's canary: no noise of a healthy one is as long
_OVERTIME: Final = 2.5  # times the deadline, for an answer that is read on: two drips of 5 s
_DOUBTS: Final = (BreakerState.OPEN.value, ReportCode.OVERDUE.value)  # reports that call a canary


class Fleet:
    """All replicas of all models as control's state machine; ``handle`` is its only mutator.

    It does no I/O: it returns actions such as canaries, launches, stops, notices and views.
    """

    def __init__(
        self, config: FleetConfig, streams: Callable[[str], Random], epoch: int = 0
    ) -> None:
        self._config = config
        self._streams = streams
        self._members: dict[str, Member] = {}
        # The epoch grows with each control that takes over; gateways follow the latest.
        self._publisher = Publisher(config, epoch)
        self._evidence = CanaryEvidence(config, self._members)
        self._pace = CanaryPace(nanos(config.health.canary_s))
        self._canary_deadline = nanos(config.canary_deadline_s)
        self._canary_least = min(nanos(config.canary_deadline_min_s), self._canary_deadline)
        self._canary_again = min(self._canary_least, 2 * SECOND)
        self._canary_deadline_max = nanos(config.canary_deadline_max_s)
        self._relaunch_after = nanos(config.relaunch_after_s)
        self._no_success = nanos(config.no_success_s)
        # Gateways tell once a second: what is not told for two has not happened.
        self._unserved = max(nanos(config.health.canary_s), 2 * SECOND)
        self._slow_again = 2 * nanos(config.health.canary_suspect_s)  # a second opinion, soon
        self._heartbeat = nanos(config.heartbeat_s)
        self._forgive = nanos(config.launch_forgive_s)
        self._handlers: dict[type, Callable[[Any, int, list[FleetAction]], None]] = {
            Joined: self._on_joined,
            Left: self._on_left,
            Phase: self._on_phase,
            Queued: self._on_queued,
            Exited: self._on_exited,
            Frozen: self._on_frozen,
            EngineLoads: self._on_engine_loads,
            DeviceMemory: self._on_device_memory,
            SpotNotice: self._on_spot_notice,
            CanaryResult: self._on_canary,
            Seen: self._on_seen,
            DrainAsked: self._on_drain_asked,
            RestartAsked: self._on_restart_asked,
            UndrainAsked: self._on_undrain_asked,
            TakeOutAsked: self._on_take_out_asked,
            CanaryAsked: self._on_canary_asked,
            Tick: self._on_tick,
        }

    def handle(self, event: FleetEvent, now: int) -> list[FleetAction]:
        """Take one event at time ``now`` (ns); return the actions for the driver, in order.

        A view for gateways comes last if one is due. Unknown replica ids are ignored; a replica
        that joins twice raises ``ValueError``.
        """
        actions: list[FleetAction] = []
        self._handlers[type(event)](event, now, actions)
        self._publisher.look(self._members, self._evidence.doubts, actions, now)
        return actions

    @property
    def members(self) -> dict[str, Member]:
        """All replicas of all models, as ``Member`` by replica id; for reading only."""
        return self._members

    def users_beside(self, replica_id: str, since: int, now: int) -> UsersBeside:
        """What users' requests did on a replica since ``since`` (ns): number running, tokens moved.

        Explains a canary without an answer; both ``None`` for an unknown replica.
        """
        member = self._members.get(replica_id)
        if member is None:
            return UsersBeside()
        return users_beside(member, since, now, self._evidence.peers_stillness(member, now))

    # --- membership ------------------------------------------------------------------------------

    def _on_joined(self, event: Joined, now: int, actions: list[FleetAction]) -> None:
        replica = event.replica
        if replica.id in self._members:
            raise ValueError(f"replica {replica.id!r} joined twice; ids must be unique")
        rng = self._streams(f"health/{replica.id}")
        health = ReplicaHealth(self._config.health, replica.id, replica.model, now, rng)
        member = Member(replica, health, event.canary, event.server)
        self._members[replica.id] = member
        self._pace.join(member.server, replica.model)
        if event.running:
            self._signal(member, Signal.LOADED, now, actions, "was running when it joined")
        else:
            actions.append(Launch(replica.id, 0, "declared"))

    def _on_left(self, event: Left, now: int, actions: list[FleetAction]) -> None:
        member = self._members.pop(event.replica_id, None)
        if member is not None:
            self._pace.leave(member.server, member.replica.model)
            actions.append(self._notice(member, now, "left", "taken out of the fleet"))

    def _on_phase(self, event: Phase, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is not None:
            self._signal(member, _PHASES[event.phase], now, actions)

    def _on_queued(self, event: Queued, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is not None:
            self._signal(member, Signal.QUEUED, now, actions, event.reason)

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
        told = f"{kind.value}: {event.detail}" if event.detail else kind.value
        self._signal(member, Signal.EXITED, now, actions, told, where)
        member.drain = None
        if not member.leaving:
            self._launch_again(member, told, now, actions)

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
        served = member.health.state in ROUTABLE
        self._signal(member, Signal.SPOT_NOTICE, now, actions)
        if member.health.state is State.DRAINING and member.drain is None:
            member.drain = Drain(self._config.drain)
            member.drain.start(now, "spot notice", served=served)

    def _on_drain_asked(self, event: DrainAsked, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None:
            return
        member.leaving = True  # also where the platform's notice came first, or it is dead just now
        self._begin_drain(member, event.reason, now, actions)

    def _on_restart_asked(self, event: RestartAsked, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None:
            return
        member.leaving = False
        member.exits = 0  # whoever asks has seen to what made it exit
        if member.health.state in _ENDED:
            self._replace(member, event.reason, now, actions)
        else:
            self._begin_drain(member, event.reason, now, actions)

    def _begin_drain(
        self, member: Member, reason: str, now: int, actions: list[FleetAction]
    ) -> None:
        served = member.health.state in ROUTABLE
        self._signal(member, Signal.DRAIN, now, actions, reason)
        if member.health.state is State.DRAINING and member.drain is None:
            member.drain = Drain(self._config.drain)
            member.drain.start(now, reason, served=served)

    def _on_undrain_asked(self, event: UndrainAsked, now: int, actions: list[FleetAction]) -> None:
        """Serve on while the drain still waits; else come back as a start."""
        member = self._members.get(event.replica_id)
        if member is None:
            return
        member.leaving = False  # where streams are being moved, the drain ends in a relaunch
        if member.health.state in _ENDED:
            self._replace(member, event.reason, now, actions)
        elif member.drain is not None:
            doomed = member.health.would_become(Signal.UNDRAIN) is State.DRAINING
            if not doomed and member.drain.abandon(now):
                member.drain = None
                self._signal(member, Signal.UNDRAIN, now, actions, event.reason)

    def _on_take_out_asked(self, event: TakeOutAsked, now: int, actions: list[FleetAction]) -> None:
        """On the word of an incident, within the bound of the pool.

        No canary refutes it, but for an incident that says that the replica answers nothing.
        """
        member = self._members.get(event.replica_id)
        if member is None or not event.out:
            if member is not None:
                member.health.let_back()
            return
        health = member.health
        pool = self._pool(member.replica.model)
        bound = ejection.may_eject(self._config.ejection, pool, health)
        if event.until_right and health.state not in ROUTABLE:
            return  # it is out, and comes back as it would anyway
        if health.state in ROUTABLE and not bound:
            actions.append(self._notice(member, now, "not taken out", bound.reason))
        else:
            self._signal(member, Signal.TAKEN_OUT, now, actions, event.reason)
            health.taken_out = health.taken_out and not event.until_right

    # --- evidence --------------------------------------------------------------------------------

    def _on_canary_asked(self, event: CanaryAsked, now: int, _actions: list[FleetAction]) -> None:
        for name in event.replica_ids:
            member = self._members.get(name)
            if member is not None and member.health.state in JUDGED:
                member.call_canary(now)

    def _on_frozen(self, event: Frozen, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None or member.health.frozen is event.frozen:
            return
        self._signal(member, Signal.FROZEN if event.frozen else Signal.THAWED, now, actions)
        member.move_told = False
        if not event.frozen:  # it gets the time of a quarantine that begins now
            member.excused_at = now
            member.health.call_canary(now)

    def _on_engine_loads(self, event: EngineLoads, now: int, actions: list[FleetAction]) -> None:
        for load in event.loads:
            member = self._members.get(load.replica_id)
            if member is not None:
                member.take_queue(load.waiting, load.running, now)
                told = (load.running, load.kv_used, load.generated, load.steps)
                member.prompts.look(EnginePage(*told), now)
                self._make_room(member, actions)
                if load.kv_used is not None:  # not told: neither full nor empty, nothing changes
                    member.tells_kv = True
                    self._on_headroom(member, load.kv_used, "its KV cache", now, actions)

    def _on_device_memory(self, event: DeviceMemory, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        # Its own word on its cache is better: that is what its requests need.
        if member is not None and not member.tells_kv and isfinite(event.used):
            what = "the GPU memory it could have"
            self._on_headroom(member, event.used, what, now, actions)

    def _make_room(self, member: Member, actions: list[FleetAction]) -> None:
        if member.call_back_canary():
            actions.append(CallBackCanary(member.replica.id))

    def _on_headroom(
        self, member: Member, used: float, what: str, now: int, actions: list[FleetAction]
    ) -> None:
        """Two readings in a row take it out; half as much again as the least brings it back."""
        free, least = 1.0 - used, member.canary.headroom_min
        if free < least:
            member.full_readings += 1
            if member.full_readings >= 2 and not member.health.full:
                told = f"{used:.0%} of {what} is in use"
                self._signal(member, Signal.NO_HEADROOM, now, actions, told)
            return
        member.full_readings = 0
        if member.health.full and free >= 1.5 * least:
            self._signal(member, Signal.HEADROOM_BACK, now, actions)

    def _on_canary(self, event: CanaryResult, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(event.replica_id)
        if member is None or event.incarnation != member.health.incarnation:
            return  # of an earlier life
        member.canary_out = event.reads_on
        member.wake_at = now
        member.forget_old_queue(now)
        if not event.verdict.silent:
            member.hear(now)
        if event.verdict.computed and not event.reads_on:  # an error at once took nothing
            charged = member.canary_charged and event.verdict is not CanaryVerdict.FAIL
            member.budget.spent(event.tokens, now, charged=charged)
        late = event.verdict is CanaryVerdict.TIMEOUT
        peers_still = self._evidence.peers_stillness(member, now) if late else 0
        stands = member.stands(now, max(self._unserved, 2 * peers_still))
        stands = stands and not member.may_read_prompts(now)
        signal, why = read_canary(event, stands=stands)
        # An extra one only says whether the answer is right: rows and samples stay what they were.
        if signal is Signal.CANARY_PASS and event.latency and not event.extra:
            signal, why = self._evidence.in_good_time(member, event)
            if signal is Signal.CANARY_PASS:
                self._pace.saw(member.replica.model, event.latency)
        if member.lost_on_the_way(event, now):
            signal, why = Signal.UNKNOWN, event.detail
            member.call_canary(now)
        member.note_silence(event, now)
        if self._unended(member, signal, now):
            signal, why = Signal.UNENDED, f"{member.unanswered} canaries in a row"
        model = member.replica.model
        # One that tells nothing is as good as none: then a user's request must tell.
        may_try = event.verdict.right or not event.verdict.conclusive
        if may_try or member.health.state in ROUTABLE:
            self._let_try(member, may_try=may_try)
        if signal not in _NEUTRAL:
            member.canary_ended(event, signal, now)
            failed = not member.canary_passed
            if signal is not Signal.CANARY_PASS and member.health.state is State.READY:
                self._evidence.ask_peers(member, now)
                if member.slow:
                    member.health.canary_by(now + self._slow_again)
            doubted = failed or model in self._evidence.doubts
            held = doubted and self._evidence.doubt(model, now, actions)
            if held and signal is not Signal.REFUSED:  # a closed port is no matter of opinion
                return  # every canary fails at once: hold all states
        waited = event.latency if event.verdict is CanaryVerdict.TIMEOUT else 0
        if waited and self._evidence.was_doubted(model, now - waited):
            return  # it was asked while nobody answered, and another was the first to go on
        if waited and self._moves(member, signal):
            silence = self._evidence.silence(member, now)
            if not silence:
                actions.append(self._notice(member, now, "verdict held", silence.reason))
                member.call_canary(now)
                return
        if signal is Signal.CANARY_WRONG and member.health.would_be_firm(signal):
            witness = self._evidence.witness(member, now)
            if not witness:
                actions.append(self._notice(member, now, "verdict held", witness.reason))
                if member.health.state not in ROUTABLE:
                    return
                signal, why = Signal.BOUND_HELD, witness.reason
        self._signal(member, signal, now, actions, why)
        if signal is Signal.CANARY_PASS:
            self._plan_extra(member)
        if signal is Signal.DRAINS_ITSELF and member.health.drain_excuse(now):
            member.excused_at = now  # it ends what it has; a new process would cut that

    def _plan_extra(self, member: Member) -> None:
        """Plan the next extra canary, after one that was answered right in good time."""
        asked_at, share = member.canary_asked_at, member.canary.slots_share
        rest = member.health.next_canary_at - asked_at
        later = self._pace.between(member.server, member.slots, share, rest)
        member.extra_at = NEVER if later is None else asked_at + later

    def _let_try(self, member: Member, *, may_try: bool) -> None:
        """Say whether a breaker's trial at a replica may be a user's request; gateways are told."""
        if member.may_try is not may_try:
            member.may_try = may_try
            self._publisher.hurry()

    @staticmethod
    def _moves(member: Member, signal: Signal) -> bool:
        """Whether a silence would move a replica that serves: into suspicion, or out.

        Answers that do not end are none: for those a peer was a witness already.
        """
        health = member.health
        if health.state not in ROUTABLE or signal is Signal.UNENDED:
            return False
        return health.would_become(signal) is not health.state

    def _unended(self, member: Member, signal: Signal, now: int) -> bool:
        """Whether a replica cannot be merely busy: it has a free slot, and its peers answer.

        One whose tokens drip out is busy by the look of it for ever, because a few of them move.
        """
        if signal is not Signal.BUSY or not (member.knows_its_slots and member.has_free_slot):
            return False
        if member.may_read_prompts(now):
            return False  # an engine gives all of a step to the prompt that it reads
        if member.unanswered:
            member.call_canary(now)  # that it has work would explain one missing answer, not two
        return member.unanswered >= _UNANSWERED_MAX and bool(self._evidence.witness(member, now))

    def _on_seen(self, event: Seen, now: int, actions: list[FleetAction]) -> None:
        for seen in event.actions:
            if isinstance(seen, Report):
                member = self._members.get(seen.replica_id)
                if member is not None and seen.what == BreakerState.OPEN:
                    signal = Signal.PASSIVE_FAILING
                    self._let_try(member, may_try=False)  # a canary goes first, and it is called
                    self._signal(member, signal, now, actions, seen.reason, Class.RUNTIME)
                if member is not None and seen.what == ReportCode.OVERDUE:
                    member.overdue_at = now
                if member is not None and seen.what in _DOUBTS:
                    if member.outdate_canary():
                        actions.append(CallBackCanary(member.replica.id))
                    member.call_canary(now)  # last: a new state has a pace of its own
            else:
                for tally in seen.tallies:
                    self._on_tally(event.gateway, tally, now, actions)

    def _on_tally(self, gateway: str, tally: Tally, now: int, actions: list[FleetAction]) -> None:
        member = self._members.get(tally.replica_id)
        if member is None:
            return
        member.users(gateway, tally, now)
        self._make_room(member, actions)
        self._hurry_canary(member, now, actions)
        member.move_told = False
        if tally.successes:
            member.hear(now)
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
            moved = health.cause if change.after is not before else signal
            notice = self._notice(member, now, change.after.value, change.reason, where)
            notice.signal = moved.value
            actions.append(notice)
            if health.state is State.READY and before is not State.READY:
                member.budget.renew()

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
        self._ask(member, now, actions)
        if member.stands_still and not member.move_told and self._has_routable_peer(member):
            member.move_told = True  # no deadline must find out what is known
            actions.append(Move(member.replica.model, member.replica.id, not health.frozen))
        quarantined = state is State.QUARANTINED
        makes_room = health.full and member.inflight > 0  # a new process would cut what does
        if makes_room or (quarantined and member.inflight > 0 and spares_work(health.symptom)):
            member.excused_at = now
        stuck = state in _LOADING and health.load_deadline and now >= health.load_deadline
        if stuck and not makes_room:
            detail = f"stuck while {state.value}"
            self._signal(member, Signal.LOAD_TIMEOUT, now, actions, detail, Class.LOADING)
            self._replace(member, Kind.LOAD_STALLED.value, now, actions)
        elif (state is State.DEAD and not member.leaving) or (
            quarantined and now - max(health.since, member.excused_at) >= self._relaunch_after
        ):
            self._replace(member, health.reason, now, actions)
        elif member.drain is not None:
            self._advance_drain(member, now, actions)

    def _ask(self, member: Member, now: int, actions: list[FleetAction]) -> None:
        """Send a canary that is due, if it takes nothing from users or is worth it."""
        health = member.health
        if member.canary_out:
            if self._waits_alone(member) and now >= member.peers_due():
                member.peers_asked = True
                self._evidence.ask_peers(member, now)
            return
        extra = not health.canary_due(now)
        if extra and now < member.extra_at:
            return
        member.forget_old_queue(now)
        if not (member.may_be_asked_extra if extra else member.may_be_asked(now, self._unserved)):
            if not extra:
                self._let_try(member, may_try=True)  # no budget for one: a user tells, as before
            return
        if member.canary_verdict is CanaryVerdict.TIMEOUT and health.state in ROUTABLE:
            self._evidence.ask_peers(member, now)  # heard meanwhile, they make its silence its own
        member.canary_started(now, self._unserved, extra=extra)
        health.canary_started(now, extra=extra)
        deadline = self._canary_patience(member)
        member.canary_asked_at, member.canary_until = now, now + deadline
        replica = member.replica
        longest = round(_OVERTIME * max(deadline, self._canary_deadline))
        longest = min(longest, self._canary_deadline_max)
        asked = (replica.id, replica.model, deadline, health.incarnation, longest)
        unhurried = self._is_unhurried(member)
        actions.append(RunCanary(*asked, unhurried=unhurried, extra=extra))

    @staticmethod
    def _waits_alone(member: Member) -> bool:
        """Whether the canary under way is all there is to tell how a replica that serves is.

        Where it is late, its peers are asked before its time is over: heard meanwhile, they make
        the silence its own, and silent as well, everybody's. Users' requests tell nothing more
        once one is overdue and nothing has come since.
        """
        in_vain = member.awaited_in_vain and not member.explains_lateness
        alone = not member.inflight or in_vain
        return alone and not member.peers_asked and member.health.state in ROUTABLE

    def _has_routable_peer(self, member: Member) -> bool:
        model = member.replica.model
        return any(
            peer.health.state in ROUTABLE
            for peer in self._members.values()
            if peer is not member and peer.replica.model == model
        )

    def _next_look(self, member: Member, now: int) -> int:
        """When time alone next asks for something; news of the member calls earlier."""
        health = member.health
        if member.drain is not None or health.state is State.DEAD or member.stands_still:
            return now
        look = now + self._heartbeat
        if member.canary_out:
            look = min(look, member.peers_due()) if self._waits_alone(member) else look
        elif health.state in JUDGED:
            for due in (health.next_canary_at, member.extra_at):
                look = min(look, due if due > now else now + SECOND)  # due already: no slot is free
        if health.load_deadline:
            look = min(look, health.load_deadline)
        return look

    def _canary_patience(self, member: Member) -> int:
        """How long a canary may take: longer beside users' requests, shorter where it is known.

        A replica whose canaries are quick has no reason to take the whole of it, and one that has
        just been silent for so long still less. Requests beside it explain a longer wait, unless a
        slot is known to be free; where all are taken or a long prompt is read, it has the whole.
        """
        usual, deadline = member.baseline.median(), self._canary_deadline
        idle, free = member.inflight == 0, member.has_free_slot
        if usual is not None and not member.explains_lateness and member.health.state in ROUTABLE:
            again = member.canary_verdict is CanaryVerdict.TIMEOUT and idle
            least = self._canary_again if again else self._canary_least
            deadline = min(max(least, _USUAL_FACTOR * usual), deadline)
            if free:
                return deadline
        return min(round(deadline * self._beside(member)), self._canary_deadline_max)

    @staticmethod
    def _is_unhurried(member: Member) -> bool:
        """Whether nobody waits for its verdict, so that how it fails is worth the time.

        In quarantine; but the first canary there tells, soon, whether it still fails.
        """
        health = member.health
        return health.state is State.QUARANTINED and member.canary_at > health.since

    def _beside(self, member: Member) -> float:
        """By how much the requests on a replica lengthen the time that its canary may take."""
        return 1 + member.inflight / self._config.canary_busy_requests

    def _hurry_canary(self, member: Member, now: int, actions: list[FleetAction]) -> None:
        """Take back the time that a canary was given for requests beside it, once they are gone.

        Gateways cut off a replica that hangs within seconds: what was beside its canary left
        without a token, and excuses nothing any more. Where tokens moved meanwhile it is busy, and
        its canary keeps its time.
        """
        if not member.canary_out:
            return
        asked_at = member.canary_asked_at
        # A summary covers the second before it: what it tells of earlier is not meant.
        if member.progress_at >= asked_at + SECOND or member.health.state not in ROUTABLE:
            return
        until = max(now, asked_at + round(self._canary_deadline * self._beside(member)))
        if until + SECOND <= member.canary_until:
            member.canary_until = until
            actions.append(HurryCanary(member.replica.id, until - now))

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

    # --- for people ------------------------------------------------------------------------------

    def _notice(
        self, member: Member, now: int, what: str, reason: str, where: Class | None = None
    ) -> Notice:
        return Notice(now, member.replica.model, member.replica.id, what, reason, where)


__all__ = ["Fleet"]
