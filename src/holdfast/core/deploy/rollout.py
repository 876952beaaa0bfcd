"""Moves a deployment to a wished revision and count: replacement before removal.

    add one of the wished revision in one zone ─► ready, and stays so ─► remove one old there ─► …
                └─► fails, or answers wrong ─► halted: it leaves, the old revision stays

Nothing that serves leaves before its replacement has proven itself, so a rollout costs room for
one more replica and never an answer. Where there is no such room (all devices are held, and the
newcomer would wait for one for ever) one old replica is drained first and its place is passed on.
While a newcomer is unproven nothing else of its revision
starts: a bad revision meets one replica, not the fleet. Zones take turns, so that a fault which
only shows later is found in one of them. The way back is the same way: whatever still serves is
replaced before it goes.

The decision is taken anew from what exists at each call; little is remembered, so a control that
was restarted goes on where the other stopped. Rejected: a plan made at the start and worked off.
Replicas die, counts change and wishes change while it runs, and each would need its own amendment.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.core.types import State, nanos, require, seconds

_DAY_S: Final = 86_400
_ACT: Final = nanos(30)  # a driver that has not done a step by then has lost it: it is asked again


@dataclass(slots=True, frozen=True)
class RolloutConfig:
    """Settings: how long new replicas must prove themselves, and when failures stop a rollout.

    Times in seconds. Raises ``ConfigError`` when built with a bad value.
    """

    settle_s: float = 5.0  # a new replica stays ready so long before an old one leaves: one canary
    failures_max: int = 1  # replicas of a new revision that may fail before it is refused
    patience_s: float = 1_200.0  # a new replica neither ready nor failed; twice the loading time
    retry_s: float = 10.0  # after a failed replica its zone is tried so much later, doubling
    retry_max_s: float = 600.0  # the doubling ends here: a repaired zone is noticed in minutes

    def __post_init__(self) -> None:
        settle, fix = self.settle_s, "use 0 (at once) to a day, 86400 s"
        require(0 <= settle <= _DAY_S, "rollout.settle_s", f"is {settle}", fix)
        failures = self.failures_max
        require(1 <= failures <= 64, "rollout.failures_max", f"is {failures}", "use 1 to 64")
        patience, fix = self.patience_s, "use more than settle_s, up to a day"
        require(settle < patience <= _DAY_S, "rollout.patience_s", f"is {patience}", fix)
        retry, most = self.retry_s, self.retry_max_s
        fix = "use seconds above 0, up to a day"
        require(0 < retry <= _DAY_S, "rollout.retry_s", f"is {retry}", fix)
        fix = "use retry_s or more, up to a day"
        require(retry <= most <= _DAY_S, "rollout.retry_max_s", f"is {most}", fix)


@dataclass(slots=True, frozen=True)
class DeploymentGoal:
    """What one model's deployment should become: its revision, replica count and zones."""

    model: str
    revision: str
    count: int
    zones: tuple[str, ...]

    def __post_init__(self) -> None:
        fits = 0 <= self.count <= 4_096
        require(fits, "wish.count", f"is {self.count}", "use 0 to 4096 replicas")
        distinct = bool(self.zones) and len(set(self.zones)) == len(self.zones)
        require(distinct, "wish.zones", f"is {self.zones}", "name at least one zone, each once")


@dataclass(slots=True, frozen=True)
class Has:
    """One replica that exists now, with the figures that a rollout reads; times in ns."""

    id: str
    revision: str
    zone: str
    state: State
    since: int  # in this state
    wrong: bool = False  # quarantined for lies
    leaving: bool = False  # told to go, by whomever
    failed: str = ""  # why it can never be admitted: exits in a loop, load timeout, wrong canaries
    unplaced: bool = False  # it waits for a device and holds none: neither loading nor failing


@dataclass(slots=True, frozen=True)
class Add:
    """Step for the caller to carry out: launch one replica of this revision in this zone."""

    model: str
    revision: str
    zone: str


@dataclass(slots=True, frozen=True)
class Remove:
    """Step for the caller to carry out: take one replica away, drained, or at once if ``urgent``.

    ``heir`` is the revision that its devices are kept for; empty: for nobody in particular.
    """

    replica_id: str
    reason: str
    urgent: bool
    heir: str = ""


@dataclass(slots=True, frozen=True)
class Halted:
    """Step, for information: the revision is refused; the old one stays, or comes back."""

    revision: str
    reason: str


@dataclass(slots=True, frozen=True)
class Finished:
    """Step, for information: all replicas are of this revision and well. Once per rollout."""

    revision: str


Step = Add | Remove | Halted | Finished

_SERVING: Final = (State.READY, State.SUSPECT)
_GONE: Final = (State.STOPPED, State.DEAD)
_ARRIVING: Final = (State.STARTING, State.LOADING, State.WARMING)
_ZONE_FAILURES_MAX: Final = 3  # in a row; below it a zone is waited for, so that zones stay even


@dataclass(slots=True, frozen=True)
class _View:
    """What exists now, sorted by what it means for the target."""

    wish: DeploymentGoal
    target: str
    members: list[Has]  # neither gone nor leaving
    current: list[Has]  # of the target, where it is wished
    outdated: list[Has]
    per_zone: Counter[str]
    unsettled: list[Has]  # current, and not ready for long enough
    holding: int  # those that occupy hardware, the leaving too
    spare: bool  # there is hardware for one more
    now: int


@dataclass(slots=True, frozen=True)
class _Outstanding:
    step: Add | Remove
    known: frozenset[str]  # ids before it: an addition shows as one that is not among them
    until: int


@dataclass(slots=True, frozen=True)
class _Bar:
    failures: int  # in a row
    at: int  # the last
    until: int


class Rollout:
    """Decides, from what exists now, the next step of one model's deployment.

    At most one replica is added or removed at a time, and a revision that fails is refused in
    favour of ``good``, the last finished one. To restore after a restart pass ``good`` and
    ``refused``, made from ``good``, ``refused_revision`` and ``halted`` in the dict that
    ``snapshot`` returns.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        good: str | None = None,
        refused: tuple[str, str] | None = None,
    ) -> None:
        self.config = config
        self.good = good  # the revision to go back to: the last that was finished
        self.refused_revision: str | None = None
        self.halted: str | None = None  # why, while a revision is refused
        if refused is not None:
            self.refused_revision, self.halted = refused
        self.waiting = ""  # for what, in words
        self._settle = nanos(config.settle_s)
        self._patience = nanos(config.patience_s)
        self._wished: str | None = None
        self._finished: str | None = None
        self._zone: str | None = None  # whose turn it is
        self._vacated: str | None = None  # zone of one drained first, until its successor is added
        self._outstanding: _Outstanding | None = None
        self._failed: dict[str, str] = {}  # of the wished revision, why; at most failures_max
        self._well: dict[str, int] = {}  # when an unproven replica was last ready, or first seen
        self._barred: dict[str, _Bar] = {}  # zones in which replicas failed lately

    def forgive(self) -> None:
        """Forget the refused revision and the failures counted, so that it may be tried again.

        For an operator who says that the failure was not its own. Starts nothing.
        """
        self.refused_revision = self.halted = None
        self._failed.clear()
        self._well.clear()

    def refuse(self, revision: str, reason: str) -> Halted | None:
        """Refuse the incoming revision and return ``Halted``; the next steps go back to ``good``.

        ``None``: there is no other good revision, or this one is refused or finished already. For
        failures that are seen although its replicas are ready.
        """
        if self.good in (None, revision) or revision in (self.refused_revision, self._finished):
            return None
        self.refused_revision, self.halted, self._zone = revision, reason, None
        return Halted(revision, reason)

    def decide(
        self, wish: DeploymentGoal, has: Sequence[Has], now: int, *, spare: bool = True
    ) -> list[Step]:
        """Return the next steps, a new list: at most one ``Add`` or ``Remove``, beside news.

        No such step comes before the last one is seen done (or 30 s passed). Empty: nothing to do,
        or ``waiting`` says for what it waits. ``has`` are all replicas of the model. Without
        ``spare`` hardware for one more, an old one leaves first.
        """
        self._hear(wish, has)
        steps: list[Step] = []
        halt = self._judge(wish, has, now)
        if halt is not None:
            steps.append(halt)
        view = self._look(wish, has, now, spare=spare)
        if not self._acted(has, now):
            return steps
        step = self._next(view)
        if step is not None:
            self.waiting = ""
            known = frozenset(each.id for each in has)
            self._outstanding = _Outstanding(step, known, now + _ACT)
            steps.append(step)
        elif self._is_finished(view):
            self._finished = self.good = view.target
            self._zone = None
            steps.append(Finished(view.target))
        return steps

    # --- what happened ---------------------------------------------------------------------------

    def _hear(self, wish: DeploymentGoal, has: Sequence[Has]) -> None:
        """Take a changed wish, and learn what there is to go back to."""
        if wish.revision != self._wished:
            self._wished = wish.revision
            self._zone = self._finished = self._vacated = None
            if wish.revision != self.refused_revision:
                self.forgive()
        if self.good is None:
            others = [each for each in has if each.revision != wish.revision and not each.leaving]
            votes = Counter(each.revision for each in others if each.state is State.READY)
            votes = votes or Counter(each.revision for each in others if each.state not in _GONE)
            self.good = votes.most_common(1)[0][0] if votes else None

    def _target(self, wish: DeploymentGoal) -> str:
        if wish.revision == self.refused_revision and self.good is not None:
            return self.good
        return wish.revision

    def _judge(self, wish: DeploymentGoal, has: Sequence[Has], now: int) -> Halted | None:
        """Refuse the wished revision where too many of its replicas failed.

        Only where there is another to go back to: without one, trying again is all there is.
        """
        revision = wish.revision
        if revision == self.refused_revision or self.good in (None, revision):
            self._well.clear()
            return None
        present = {each.id for each in has}
        self._well = {key: at for key, at in self._well.items() if key in present}
        for each in has:
            if each.revision != revision or each.id in self._failed:
                continue
            why = self._failure(each, now)
            if not why:
                continue
            self._failed[each.id] = why
            if len(self._failed) >= self.config.failures_max:
                self.refused_revision = revision
                self.halted = f"{each.id} of revision {revision} {why}"
                self._zone = None
                return Halted(revision, self.halted)
        return None

    def _failure(self, each: Has, now: int) -> str:
        if each.failed:
            return f"failed: {each.failed}"
        if each.wrong:
            return "answers its canaries wrong"
        if each.leaving or each.unplaced or each.state is State.READY:
            self._well[each.id] = now
        elif now - self._well.setdefault(each.id, now) > self._patience:
            return f"was not ready for {seconds(self._patience):g} s"
        return ""

    def _acted(self, has: Sequence[Has], now: int) -> bool:
        """Whether the last step was done, or was lost."""
        pending = self._outstanding
        if pending is None:
            return True
        step = pending.step
        if isinstance(step, Add):
            done = any(
                each.id not in pending.known
                and (each.revision, each.zone) == (step.revision, step.zone)
                for each in has
            )
        else:
            done = not any(
                each.id == step.replica_id and not each.leaving and each.state is not State.STOPPED
                for each in has
            )
        if done or now >= pending.until:
            self._outstanding = None
            return True
        self.waiting = "the last step is being done"
        return False

    # --- what exists -----------------------------------------------------------------------------

    def _look(self, wish: DeploymentGoal, has: Sequence[Has], now: int, *, spare: bool) -> _View:
        target = self._target(wish)
        members = [each for each in has if not each.leaving and each.state is not State.STOPPED]
        current: list[Has] = []
        outdated: list[Has] = []
        for each in members:
            fits = each.revision == target and each.zone in wish.zones
            (current if fits else outdated).append(each)
        view = _View(
            wish=wish,
            target=target,
            members=members,
            current=current,
            outdated=outdated,
            per_zone=Counter(each.zone for each in members),
            unsettled=[each for each in current if not self._is_settled(each, now)],
            holding=len(members)
            + sum(1 for each in has if each.leaving and each.state not in _GONE),
            spare=spare,
            now=now,
        )
        for each in current:
            bar = self._barred.get(each.zone)
            if bar is not None and each.since > bar.at and self._is_settled(each, now):
                del self._barred[each.zone]
        self._take_turns(view, has)
        return view

    def _is_settled(self, each: Has, now: int) -> bool:
        return each.state is State.READY and now - each.since >= self._settle

    def _take_turns(self, view: _View, has: Sequence[Has]) -> None:
        """A zone keeps its turn until nothing outdated is left there, not even leaving."""
        left = {
            each.zone for each in has if each.state not in _GONE and each.revision != view.target
        }
        left |= {each.zone for each in view.outdated}
        if self._zone in left:
            return
        order = {zone: place for place, zone in enumerate(view.wish.zones)}
        ill = Counter(each.zone for each in view.outdated if each.state is not State.READY)
        # A zone that is not wished any more goes first, then where least is lost.
        rank = {zone: (zone in order, -ill[zone], order.get(zone, 0), zone) for zone in left}
        self._zone = min(left, key=rank.__getitem__, default=None)

    def _is_finished(self, view: _View) -> bool:
        whole = len(view.current) == len(view.members) == view.holding == view.wish.count > 0
        return whole and not view.unsettled and self._finished != view.target

    # --- what to do about it ---------------------------------------------------------------------

    def _next(self, view: _View) -> Add | Remove | None:
        self.waiting = ""
        hopeless = self._hopeless(view)
        if hopeless is not None:
            return hopeless
        count, members = view.wish.count, len(view.members)
        if members > count:
            surplus = self._surplus(view)
            if surplus is not None:
                return surplus
        if members < count:
            return self._repair(view)
        if view.outdated and members == count:
            return self._roll(view)
        return None

    def _hopeless(self, view: _View) -> Remove | None:
        """One that serves nobody and never will."""
        replaced = not view.spare and len(view.members) <= view.wish.count
        heir = view.target if replaced else ""
        for each in view.members:
            why = each.failed or self._failed.get(each.id)
            if why:
                if each.revision == view.target:
                    self._bar(each, view.now)
                return Remove(each.id, why, urgent=True, heir=heir)
            if each.revision == self.refused_revision and each.state not in _SERVING:
                told = f"revision {each.revision} is refused"
                return Remove(each.id, told, urgent=True, heir=heir)
        return None

    def _bar(self, each: Has, now: int) -> None:
        """Leave the zone of a failure alone for a while: the next would likely fail too."""
        bar = self._barred.pop(each.zone, None)
        failures = 1 if bar is None else bar.failures + 1
        delay = min(self.config.retry_s * 2.0 ** min(failures - 1, 32), self.config.retry_max_s)
        self._barred[each.zone] = _Bar(failures, now, now + nanos(delay))
        while len(self._barred) > 64:  # zones come from the wish; those of old wishes are dropped
            del self._barred[next(iter(self._barred))]

    def _surplus(self, view: _View) -> Remove | None:
        count, extra = view.wish.count, len(view.members) - view.wish.count
        if not view.outdated or not view.current:
            leaver = _least_missed(view.members, view.per_zone)
            return Remove(leaver.id, f"{len(view.members)} run and {count} are wished", False)
        if view.unsettled and extra == 1:
            if view.holding == len(view.members) and self._waits_in_vain(view):
                return self._drain_first(view)
            self._wait_for(view.unsettled[0])
            return None
        here = [each for each in view.outdated if each.zone == self._zone]
        leaver = _least_missed(here or view.outdated, view.per_zone)
        arriving = [each for each in view.members if each.state in _ARRIVING]
        if extra == 1 and arriving and leaver.state is State.READY:
            self._wait_for(arriving[0])
            return None
        if leaver.revision == view.target:
            return Remove(leaver.id, f"zone {leaver.zone} is not wished any more", False)
        return Remove(leaver.id, f"replaced by revision {view.target}", False)

    def _repair(self, view: _View) -> Add | None:
        """Replace what was lost, or follow a raised count."""
        vacated, zone = self._vacated, self._emptiest(view)
        if vacated is not None and vacated in view.wish.zones:
            zone = None if self._is_barred(vacated, view.now) else vacated
        if zone is None:
            return None
        self._vacated = None
        turn = vacated is not None or zone == self._zone
        known = turn or any(each.zone == zone for each in view.current)
        proven = len(view.unsettled) < len(view.current) or not view.current
        revision = view.target
        if view.outdated and self.good is not None and not (known and proven):
            revision = self.good  # a zone that has not had its turn stays with what is proven
        return Add(view.wish.model, revision, zone)

    def _roll(self, view: _View) -> Add | Remove | None:
        """One newcomer, where it is this zone's turn and all earlier ones are well."""
        if view.unsettled:
            if view.holding == view.wish.count and self._waits_in_vain(view):
                return self._drain_first(view)
            self._wait_for(view.unsettled[0])
            return None
        if view.holding > view.wish.count:
            self.waiting = "the last one leaves"
            return None
        emptiest = self._emptiest(view)
        zone = self._zone if self._zone in view.wish.zones else emptiest
        if zone is None:
            return None
        if emptiest is not None and view.per_zone[zone] - view.per_zone[emptiest] >= 2:
            # One was lost there meanwhile. Zones stay even, unless that began a second turn.
            waits = any(each.zone == emptiest for each in view.outdated)
            zone = zone if waits else emptiest
        if self._is_barred(zone, view.now):
            return None
        if not view.spare:
            return self._drain_first(view)
        return Add(view.wish.model, view.target, zone)

    def _waits_in_vain(self, view: _View) -> bool:
        """Whether all newcomers wait for devices that only a replica of before can give."""
        return not view.spare and all(each.unplaced for each in view.unsettled)

    def _drain_first(self, view: _View) -> Remove | None:
        """Take one old replica out and pass its devices on; one that holds none goes last."""
        here = [each for each in view.outdated if each.zone == self._zone] or view.outdated
        holders = [each for each in here if not each.unplaced]
        if not holders:
            holders = [each for each in view.outdated if not each.unplaced]
        leaver = _least_missed(holders or here, view.per_zone)
        if len(view.members) <= view.wish.count:
            self._vacated = leaver.zone
        why = f"drained first, for no GPU is free: revision {view.target} takes its place"
        return Remove(leaver.id, why, urgent=False, heir=view.target)

    def _wait_for(self, each: Has) -> None:
        told = "waits for a device" if each.unplaced else f"is {each.state}, not yet settled"
        self.waiting = f"{each.id} of revision {each.revision} {told}"

    def _is_barred(self, zone: str, now: int) -> bool:
        bar = self._barred.get(zone)
        if bar is None or now >= bar.until:
            return False
        self.waiting = f"replicas failed in zone {zone}, {bar.failures} in a row: tried again later"
        return True

    def _emptiest(self, view: _View) -> str | None:
        """Where the next belongs; None while it has to wait for that zone."""
        given_up = {
            zone
            for zone, bar in self._barred.items()
            if bar.failures >= _ZONE_FAILURES_MAX and view.now < bar.until
        }
        zones = [zone for zone in view.wish.zones if zone not in given_up] or view.wish.zones
        zone = min(zones, key=lambda zone: view.per_zone[zone])
        return None if self._is_barred(zone, view.now) else zone

    def snapshot(self) -> dict[str, object]:
        """Return the state as a new dict of plain data, for dashboards and for saving.

        ``good``, ``refused_revision`` and ``halted`` restore it.
        """
        step = None if self._outstanding is None else self._outstanding.step
        return {
            "wished": self._wished,
            "good": self.good,
            "refused_revision": self.refused_revision,
            "halted": self.halted,
            "zone": self._zone,
            "failures": len(self._failed),
            "waiting": self.waiting,
            "outstanding": None if step is None else str(step),
        }


def _least_missed(leavers: Sequence[Has], per_zone: Counter[str]) -> Has:
    """Who does not serve goes first, then one of the fullest zone, then the youngest.

    Of those that do not serve, one that has no device goes before one that loads.
    """

    def missed(each: Has) -> tuple[bool, bool, int, int, str]:
        ready = each.state is State.READY
        return ready, not each.unplaced, -per_zone[each.zone], -each.since, each.id

    return min(leavers, key=missed)


__all__ = [
    "Add",
    "DeploymentGoal",
    "Finished",
    "Halted",
    "Has",
    "Remove",
    "Rollout",
    "RolloutConfig",
    "Step",
]
