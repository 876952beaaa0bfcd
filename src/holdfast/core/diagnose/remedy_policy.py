"""Decides what is done about an incident: one remedy per cause, within limits.

    incident ─► its cause's remedy ─► may it be done on this evidence? to this replica? now?
             ─► Act, or a sentence that says why not

A wrong action costs more than a late one, so every bound errs on the side of doing nothing and
saying so. Nothing is done past half a pool, counting those that are out already; a replica that is
out costs nothing more. One restart per model at a time, and none of the same replica again for ten
minutes: what a restart did not mend, the next one does not either. A restart also ends what could
still tell causes apart, so on evidence that is not sure yet a replica is only taken out, and
restarted when the cause has settled. One that is said to answer nothing comes back sooner, as soon
as its canaries are right. What is held back because of other replicas is looked at again
until it may be done, the replica is ready by itself, or the incident is over; waiting for another
replica's restart alone pages no operator. What Holdfast did not start it cannot restart, and an
operator is paged instead. What only others report (agents, scripts) takes no replica out of service
before something that Holdfast sees itself agrees: its canary is asked at once, and any failure of
it, or a state that is not *ready*, is enough. Whoever holds an agent's token could otherwise empty
half a pool with a sentence. While a deployment moves to a new revision and half of what moved is
ill, the move is stopped and nothing else is done: the old ones still serve.

Rejected: to act on confidence alone. A cause can be certain and its remedy harmful all the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from holdfast.core.diagnose.causes.rule import Scope
from holdfast.core.diagnose.dependency_graph import DependencyGraph
from holdfast.core.diagnose.evidence import REPORTED, Incident, Remedy, Stage, TimelineEntry
from holdfast.core.diagnose.facts import Fact, RolloutSeen, StateChanged
from holdfast.core.diagnose.incident_case import IncidentCase
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
from holdfast.core.health.lifecycle import ROUTABLE, Signal
from holdfast.core.types import State, nanos, require, seconds

_TAKES_AWAY: Final = (Remedy.TAKE_OUT, Remedy.DRAIN_AND_RESTART, Remedy.RELOCATE)
_RESTARTS: Final = (Remedy.DRAIN_AND_RESTART, Remedy.RELOCATE)
# A replica that answers canaries right has none of these, whoever would have had to restart it.
_ANSWERS_NOTHING: Final = (Cause.FROZEN, Cause.HUNG, Cause.STALLED, Cause.STARVED)
_PASSIVE: Final = (Remedy.OBSERVE, Remedy.PAGE)
_LOOK_AGAIN_S: Final = 5.0  # at what was held back because of other replicas
_HELD_S: Final = 2.0  # the end of a process is told this much after its new start, at most
_FRESH_S: Final = 45.0  # signs are repeated every 30 s: older ones no longer say how it is now
ROLLOUTS_MAX: Final = 1_024  # models on their way at a time; beyond it nobody stops one
BOOKS_MAX: Final = 10_000  # replicas of which the last action is remembered; the oldest goes


@dataclass(slots=True, frozen=True)
class RemedyConfig:
    """Settings: limits of automatic remedies, for all models.

    Checked when built: raises ``ConfigError``.
    """

    dry_run: bool = False  # True: everything is decided and written down, nothing is done
    share_max: float = 0.5  # of a pool may be out, by whatever reason: the rest carries the load
    again_s: float = 600.0  # until the same replica is restarted again: it did not help before
    restart_s: float = 300.0  # a restart counts as under way so long, unless reported done
    settle_s: float = 20.0  # before a restart on evidence that is not sure: how it fails may show
    sure: float = 0.9  # confidence at which a restart waits for nothing more

    def __post_init__(self) -> None:
        share = self.share_max
        fits = 0 < share <= 0.5
        require(fits, "acting.share_max", f"is {share}", "use a share above 0, at most 0.5")
        sure = self.sure
        require(0 < sure <= 1, "acting.sure", f"is {sure}", "use a share in (0, 1]")
        for name in ("again_s", "restart_s", "settle_s"):
            value = getattr(self, name)
            fits = 0 <= value <= 86_400
            require(fits, f"acting.{name}", f"is {value}", "use seconds up to a day")


@dataclass(slots=True, frozen=True)
class Act:
    """A finding: an action that the policy wants done to a replica or model; nothing is done yet.

    ``dry_run``: it is only to be reported. ``replica`` is empty where it concerns a model.
    """

    incident_id: str
    remedy: Remedy
    replica: str  # "" where it concerns a model
    model: str
    reason: str
    dry_run: bool
    until_right: bool = False  # who is taken out comes back once its canaries are right


@dataclass(slots=True)
class _Done:
    remedy: Remedy
    model: str
    at: int
    under_way: bool = True
    back: bool = False  # it was ready since, and its incident says so


class _Book:
    """What was decided about one incident so far."""

    __slots__ = ("asked", "look_at", "waiting")

    def __init__(self) -> None:
        self.asked: set[tuple[Remedy, str]] = set()  # of whom what was asked
        self.look_at: int | None = None  # when more may be done, only because time has passed
        self.waiting: set[tuple[str, str]] = set()  # who waits, and why: as told


class _Held(NamedTuple):
    """Why something is not done to a replica now."""

    why: str
    passes: bool = False  # it is because of others: look again
    calls: bool = True  # somebody should know


_ONLY_REPORTED: Final = _Held(
    "only a report from outside says so; its canary is asked", passes=True, calls=False
)


class RemedyPolicy:
    """Decides which remedies the incidents of a fleet get, within limits; executes none.

    Remembers per incident what was asked for, per replica the last act, and per model its rollout.
    """

    __slots__ = (
        *("_books", "_census", "_config", "_done", "_doubted", "_relations", "_rolling"),
        "_started",
    )

    def __init__(
        self, config: RemedyConfig, census: ReplicaRegistry, relations: DependencyGraph
    ) -> None:
        self._config = config
        self._census = census
        self._relations = relations
        self._done: dict[str, _Done] = {}  # by replica, the last thing that was asked for
        self._books: dict[str, _Book] = {}  # by incident
        self._rolling: dict[str, str] = {}  # the revision that each model moves to
        self._doubted: dict[str, str] = {}  # replicas whose canary is to be asked, and why
        self._started: dict[str, int] = {}  # replicas started anew and not ready yet: since when

    def saw(self, fact: Fact) -> None:
        """Note from ``RolloutSeen`` which models are being rolled out; ignore other facts."""
        if isinstance(fact, RolloutSeen):
            if fact.what != "began":
                self._rolling.pop(fact.model, None)
            elif fact.model in self._rolling or len(self._rolling) < ROLLOUTS_MAX:
                self._rolling[fact.model] = fact.revision

    def decide(self, case: IncidentCase, now: int) -> list[Act]:
        """Return the new acts for an incident that opened or changed, maybe none; none comes twice.

        Writes into the incident what is asked for, or why nothing is done. Empty for closed ones.
        What is held back because of other replicas comes up again by ``settled``.
        """
        incident = case.incident
        if incident.stage is Stage.CLOSED:
            return []
        book = self._books.setdefault(incident.id, _Book())
        book.look_at = None
        remedy = incident.remedy
        if case.acts and self._spreads(case):
            halt = self._ask(case, Remedy.STOP_ROLLOUT, "", incident.about.model, now)
            return [halt] if halt is not None else []
        if remedy not in _PASSIVE and not case.acts:
            self._say(case, "observed: this evidence alone is not enough to act on", now)
            return []
        if remedy in _RESTARTS:
            book.look_at = self._settles_at(incident, now)
            if book.look_at is not None:
                remedy = Remedy.TAKE_OUT
        if remedy in _TAKES_AWAY:
            acts = [self._about_replica(case, name, remedy, now) for name in case.root_replicas()]
        else:
            acts = [self._ask(case, remedy, "", incident.about.model, now)]
        return [act for act in acts if act is not None]

    def _settles_at(self, incident: Incident, now: int) -> int | None:
        """When its cause will have settled; None: it has."""
        settled = incident.opened_at + nanos(self._config.settle_s)
        if incident.confidence >= self._config.sure or not incident.opened_at <= now < settled:
            return None
        return settled

    def settled(self, now: int) -> list[str]:
        """Return ids of incidents to ``decide`` on again, because a waiting time has passed.

        Each is returned once per waiting time.
        """
        due = []
        for name, book in self._books.items():
            if book.look_at is not None and now >= book.look_at:
                book.look_at = None
                due.append(name)
        return due

    def take_doubted(self) -> dict[str, str]:
        """Return replicas whose canaries should be asked now, with reasons; clear the list."""
        doubted, self._doubted = self._doubted, {}
        return doubted

    def done(self, case: IncidentCase, text: str, now: int) -> None:
        """Write what an executed act led to into the incident.

        An open one is then mending. Restarts of its root replicas no longer count as under way, so
        that others may follow.
        """
        for replica in case.root_replicas():
            if replica in self._done:
                self._done[replica].under_way = False
        self._record(case, text, now)

    @staticmethod
    def _record(case: IncidentCase, text: str, now: int) -> None:
        incident = case.incident
        incident.action = text
        incident.stage = Stage.MENDING if incident.stage is Stage.OPEN else incident.stage
        case.tell(TimelineEntry(now, "action", str(incident.about), text))

    def closed(self, incident: Incident, *, joined: bool = False) -> None:
        """Drop the records of a closed incident; its replicas' restarts count as finished.

        With ``joined``, for one merged into another incident, those restarts stay under way.
        """
        self._books.pop(incident.id, None)
        for replica in () if joined else incident.replicas:
            if replica in self._done:
                self._done[replica].under_way = False

    def forget(self, replica: str) -> None:
        """Drop the last act on a replica that left the fleet, and that it is being started."""
        self._done.pop(replica, None)
        self._started.pop(replica, None)

    def moved(self, fact: StateChanged, cases: Iterable[IncidentCase], now: int) -> list[Incident]:
        """Write into a replica's incidents that it is started anew, or is ready again after that.

        ``cases`` are the open ones with this replica at their root; who had it restarted makes no
        difference. Return the incidents that were written to; other states change nothing.
        """
        replica = fact.replica
        known = self._census.replicas.get(replica)
        if fact.state is State.STARTING and fact.signal == Signal.RELAUNCH:
            if known is None or not known.managed:
                return []
            while len(self._started) >= BOOKS_MAX:
                self._started.pop(next(iter(self._started)))
            self._started.pop(replica, None)
            self._started[replica] = now
            return [case.incident for case in cases if self._say_started(case, replica, now)]
        if fact.state is not State.READY:
            return []
        started = self._started.pop(replica, None)
        return [case.incident for case in cases if self._say_ready(case, replica, started, now)]

    def _say_started(self, case: IncidentCase, replica: str, now: int) -> bool:
        """Say that a replica starts anew, unless its incident asked for that and said so."""
        book = self._books.get(case.incident.id)
        if book is not None and any((remedy, replica) in book.asked for remedy in _RESTARTS):
            return False
        self._say(case, f"{replica} is started again", now)
        return True

    def _say_ready(self, case: IncidentCase, replica: str, started: int | None, now: int) -> bool:
        """Say that a replica is ready again, if it was started anew or taken out for this case."""
        incident = case.incident
        book = self._books.get(incident.id)
        asked = book is not None and any((one, replica) in book.asked for one in _TAKES_AWAY)
        last = self._done.get(replica)
        acted = last.at if asked and last is not None and not last.back else None
        if started is not None and started >= incident.opened_at - nanos(_HELD_S):
            since = min(started, acted) if acted is not None else started
            text = f"{replica} was restarted and is ready again after {seconds(now - since):.0f} s"
        elif acted is not None:
            text = f"{replica} is ready again after {seconds(now - acted):.0f} s"
        else:
            return False
        if last is not None:
            last.under_way, last.back = False, True
        self._record(case, text, now)
        return True

    # --- bounds -----------------------------------------------------------------------------------

    def _spreads(self, case: IncidentCase) -> bool:
        """Whether half of what was rolled out so far has it: more of it would have it, too."""
        model = case.incident.about.model
        revision = self._rolling.get(model)
        if revision is None:
            return False
        new = [
            name
            for name in self._census.of_model(model)
            if self._census.replicas[name].revision == revision
        ]
        ill = set(new).intersection(case.root_replicas())
        return bool(ill) and 2 * len(ill) >= len(new)

    def _about_replica(
        self, case: IncidentCase, replica: str, remedy: Remedy, now: int
    ) -> Act | None:
        known = self._census.replicas.get(replica)
        model = known.model if known is not None else case.incident.about.model
        book = self._books[case.incident.id]
        if (remedy, replica) in book.asked:
            return None
        own = [piece.evidence.at for piece in case.seen_at((Scope.REPLICA.value, replica))]
        if self._relations.ready_at.get(replica, -1) > max(own, default=case.fresh_at):
            return None  # it came back by itself: a restart would only end its work
        held = self._uncorroborated(case, replica) or self._held(replica, model, remedy, now)
        if held is None:
            if book.waiting and now - case.fresh_at > nanos(_FRESH_S):
                return None  # nobody says any more that it needs this; whoever does is news
            return self._ask(case, remedy, replica, model, now)
        if held.passes:
            book.look_at = now + nanos(_LOOK_AGAIN_S)
        if (replica, held.why) not in book.waiting:
            book.waiting.add((replica, held.why))
            if held is _ONLY_REPORTED:
                self._doubted[replica] = f"{case.incident.title}, by report only"
            what = remedy.value.replace("_", " ")
            self._say(case, f"{what} of {replica} held back: {held.why}", now, refused=True)
        if not held.calls:
            return None
        return self._ask(case, Remedy.PAGE, replica, model, now, why=held.why)

    def _uncorroborated(self, case: IncidentCase, replica: str) -> _Held | None:
        """Whether only agents or logs accuse this replica, so that it is not acted on yet."""
        if self._relations.states.get(replica, State.READY) is not State.READY:
            return None
        seen = [piece.evidence for piece in case.seen_at((Scope.REPLICA.value, replica))]
        told = seen or [one for one in case.incident.evidence if one.about.replica == replica]
        alone = bool(told) and all(piece.source == REPORTED for piece in told)
        return _ONLY_REPORTED if alone else None

    def _held(self, replica: str, model: str, remedy: Remedy, now: int) -> _Held | None:
        known = self._census.replicas.get(replica)
        if remedy in _RESTARTS:
            if known is None or not known.managed:
                return _Held("Holdfast did not start it")
            last = self._done.get(replica)
            if last is not None and last.remedy in _RESTARTS:
                since = seconds(now - last.at)
                if since < self._config.again_s:
                    return _Held(f"it was restarted {since:.0f} s ago")
            if self._restarting(model, replica, now):
                why = f"another replica of {model} is being restarted"
                return _Held(why, passes=True, calls=False)
        if self._is_out(replica, now):
            return None
        pool = set(self._census.of_model(model)) | {replica}
        out = sum(self._is_out(name, now) for name in pool)
        allowed = int(len(pool) * self._config.share_max)
        if out + 1 > allowed:
            return _Held(f"{out} of {len(pool)} replicas of {model} are out already", passes=True)
        return None

    def _restarting(self, model: str, replica: str, now: int) -> bool:
        return any(
            name != replica and one.model == model and one.remedy in _RESTARTS
            for name, one in self._under_way(now)
        )

    def _under_way(self, now: int) -> Iterable[tuple[str, _Done]]:
        span = nanos(self._config.restart_s)
        return (
            (name, one)
            for name, one in self._done.items()
            if one.under_way and 0 <= now - one.at < span
        )

    def _is_out(self, replica: str, now: int) -> bool:
        """Whether it takes no work: by its state, or since we said so a moment ago."""
        state = self._relations.states.get(replica, State.READY)
        if state not in ROUTABLE:
            return True
        return any(name == replica for name, _ in self._under_way(now))

    # --- words ------------------------------------------------------------------------------------

    def _ask(
        self,
        case: IncidentCase,
        remedy: Remedy,
        replica: str,
        model: str,
        now: int,
        *,
        why: str = "",
    ) -> Act | None:
        incident = case.incident
        asked = self._books[incident.id].asked
        if (remedy, replica) in asked:
            return None
        asked.add((remedy, replica))
        if remedy is Remedy.OBSERVE:
            self._say(case, "observed", now)
            return None
        dry = self._config.dry_run
        if remedy in _TAKES_AWAY and not dry:
            while len(self._done) >= BOOKS_MAX:
                self._done.pop(next(iter(self._done)))
            self._done.pop(replica, None)
            self._done[replica] = _Done(remedy, model, now)
            incident.stage = Stage.MENDING
        what = remedy.value.replace("_", " ")
        reason = why or f"{incident.title}, confidence {incident.confidence:.0%}"
        told = f"{what} {replica or model}".strip() + (" (dry run)" if dry else "")
        self._say(case, f"{told}: {why}" if why else told, now)
        until_right = remedy is Remedy.TAKE_OUT and incident.cause in _ANSWERS_NOTHING
        return Act(incident.id, remedy, replica, model, reason, dry, until_right)

    @staticmethod
    def _say(case: IncidentCase, text: str, now: int, *, refused: bool = False) -> None:
        incident = case.incident
        if incident.action == text:
            return
        incident.action = text
        what = "refused" if refused else "action"
        case.tell(TimelineEntry(now, what, str(incident.about), text))


__all__ = ["BOOKS_MAX", "ROLLOUTS_MAX", "Act", "RemedyConfig", "RemedyPolicy"]
