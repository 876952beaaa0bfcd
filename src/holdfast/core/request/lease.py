"""Leases of what all gateways share: shares of quotas and retry budget, and half-open trials.

**Shares.** Each gateway enforces its share of a rate by itself; the shares follow what each was
asked for lately, so that a tenant whose only connection ended up at one gateway of four still gets
nearly its whole quota. Two memories make the demand: a short one reacts within a few rounds, a
faint long one remembers a tenant that comes every ten seconds. A floor stays everywhere, so that
a newcomer is served while its demand is still unknown.

The bound. What is lent never exceeds 1 in sum: a gateway's loss is told first, and what it lost is
lent to others one round (``round_s``) later. So over any time ``T`` a tenant with rate ``r`` and
burst ``b`` gets at most ``b + r·T`` as long as every gateway hears its frame within one round. A
gateway that hears ``d`` later than that may overspend ``r·d`` times the share it lost; one that is
cut off keeps its last share, and after ``hold_s`` that share is lent again: then it may overspend
``r`` times its last share for as long as it stays cut off. While one gateway process replaces
another in the same place, both may use the share of that place, until the older one drains. What a
gateway says to hold, such as requests under way, stays with it: lent again, it would run twice.

**Trials.** A replica whose breakers are open gets one trial, not one of each gateway. Gateways say
again and again what they would try and what they are trying. One of them is lent the turn and has
it alone for as long as it says that its trial runs; it passes on when the holder wants it no more,
or has not used it, or has not been heard of, for ``trial_s``, and then one round later. So two
trials overlap only where a gateway falls silent in the middle of one.

Rejected: asking control at each request: the request path waits for nobody. Rejected: equal parts;
a client with one connection would get 1/n of what it pays for. Rejected: giving gains at once with
the losses; whoever hears its gain first then overspends with every move, thousands of times a day.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final

from holdfast.core.types import nanos, require

_LONG_WEIGHT: Final = 0.001  # of the long memory: it decides only where the short one is empty
_PRIOR: Final = 1e-6  # requests; so long after the last one, everybody gets the same again
_EXACT: Final = 1e-9  # float rounding


@dataclass(slots=True, frozen=True)
class LeaseConfig:
    """Settings: how fast shares move between gateways, and how long a gateway may hold a trial.

    Checked when built: raises ``ConfigError``.
    """

    round_s: float = 0.1  # between two looks; above any delay of a unix socket
    short_s: float = 0.5  # memory of demand: below it, chance moves the shares to and fro
    long_s: float = 60.0  # a quota is counted by the minute: who comes once in one is remembered
    floor: float = 0.02  # of the whole, for each gateway; at most a quarter of it for all together
    step_min: float = 0.03  # smaller moves are not worth a frame
    hold_s: float = 2.0  # a gateway that is cut off comes back within this, or is dead
    trial_s: float = 2.0  # a first token of a well replica is there by then
    wanting_max: int = 4_096  # trials under way or asked for; further ones are refused

    def __post_init__(self) -> None:
        for name in ("round_s", "short_s", "long_s", "hold_s", "trial_s"):
            value = getattr(self, name)
            require(0 < value <= 3_600, f"lease.{name}", f"is {value}", "use 0.001 to 3600 seconds")
        for name in ("floor", "step_min"):
            value = getattr(self, name)
            require(0 < value < 0.25, f"lease.{name}", f"is {value}", "use a share below 0.25")
        longer = self.long_s > self.short_s
        require(longer, "lease.long_s", f"is {self.long_s}", "use more than lease.short_s")
        wanting = self.wanting_max
        require(wanting >= 1, "lease.wanting_max", f"is {wanting}", "use 1 or more")


class _Memory:
    """One gateway's recent demand for one resource, in a short and a long average."""

    __slots__ = ("long", "seen", "short")

    def __init__(self, now: int) -> None:
        self.short = 0.0
        self.long = 0.0
        self.seen = now

    def fade(self, now: int, short_ns: int, long_ns: int) -> float:
        """The demand as of ``now``, with both averages decayed to it."""
        passed = now - self.seen
        if passed > 0:
            self.short *= exp(-passed / short_ns)
            self.long *= exp(-passed / long_ns)
            self.seen = now
        return self.short + _LONG_WEIGHT * self.long


class _Good:
    """One shared resource: the demand and the share of each gateway."""

    __slots__ = ("held", "lent", "memories", "moving")

    def __init__(self, gateways: Sequence[str], now: int) -> None:
        self.held = dict.fromkeys(gateways, 0.0)
        self.memories = {gateway: _Memory(now) for gateway in gateways}
        self.lent = dict.fromkeys(gateways, 1.0 / len(gateways))
        self.moving = False


class Shares:
    """Divides shared resources (quotas, retries) among gateways by demand; shares sum to at most 1.

    Runs in control. The set of gateway places is fixed: a process that is replaced takes over the
    share of its place. Resources must be declared; others are ignored.
    """

    def __init__(self, config: LeaseConfig, gateways: Sequence[str], now: int) -> None:
        assert gateways, "shares need somebody to lend to"
        self._config = config
        self._gateways = tuple(gateways)
        self._short = nanos(config.short_s)
        self._long = nanos(config.long_s)
        self._hold = nanos(config.hold_s)
        self._floor = min(config.floor, 0.25 / len(gateways))
        self._goods: dict[str, _Good] = {}
        self._gone: dict[str, int] = dict.fromkeys(gateways, now)  # since when; none came yet

    def declare(self, goods: Iterable[str], now: int) -> None:
        """Set the names of the resources to share.

        New ones start with equal shares, those that stay keep theirs, others are dropped.
        """
        self._goods = {
            name: self._goods.get(name) or _Good(self._gateways, now)
            for name in dict.fromkeys(goods)
        }

    def came(self, gateway: str) -> None:
        """Note that a gateway process is connected in this place.

        What its predecessor held is cleared.
        """
        self._gone.pop(gateway, None)
        for good in self._goods.values():
            if gateway in good.held:
                good.held[gateway] = 0.0  # what its predecessor held has ended with it

    def went(self, gateway: str, now: int) -> None:
        """Note that the gateway of this place is disconnected.

        It keeps its share for ``hold_s`` and then falls to the floor.
        """
        if gateway in self._gateways:
            self._gone.setdefault(gateway, now)

    def demanded(self, gateway: str, good: str, amount: float, now: int) -> None:
        """Add to a gateway's recent demand for a resource what clients asked for, refused or not.

        Shares move only at the next ``rebalance``; unknown names are ignored.
        """
        known = self._goods.get(good)
        memory = None if known is None else known.memories.get(gateway)
        if memory is not None and amount > 0:
            memory.fade(now, self._short, self._long)
            memory.short += amount
            memory.long += amount

    def holds(self, gateway: str, good: str, share: float) -> None:
        """Note which share of a resource a gateway uses now and cannot give back at once.

        Requests under way are such a thing: lent to another gateway, they would run twice.
        """
        known = self._goods.get(good)
        if known is not None and gateway in known.held:
            known.held[gateway] = min(1.0, max(0.0, share))

    def rebalance(self, now: int) -> bool:
        """Move the shares towards demand; return whether any moved.

        Called every ``round_s``; what one gateway loses is lent to others a round later, so that
        shares never sum to more than 1.
        """
        moved = False
        for good in self._goods.values():
            moved |= self._rebalance(good, now)
        return moved

    def of(self, gateway: str) -> dict[str, float]:
        """Return the shares (0 to 1) that a gateway has now, by resource.

        ``KeyError`` for an unknown gateway.
        """
        return {name: good.lent[gateway] for name, good in self._goods.items()}

    def _rebalance(self, good: _Good, now: int) -> bool:
        targets = self._targets(good, now)
        lent = good.lent
        largest = max(abs(targets[gateway] - share) for gateway, share in lent.items())
        if largest < (_EXACT if good.moving else self._config.step_min):
            good.moving = False
            return False
        # What is lost now may still be in use; what was lost a round ago is free.
        free = max(0.0, 1.0 - sum(lent.values()))
        gains = sum(target - lent[g] for g, target in targets.items() if target > lent[g])
        part = min(1.0, free / gains) if gains else 0.0
        good.moving = True
        for gateway, target in targets.items():
            gain = target - lent[gateway]
            lent[gateway] += gain * part if gain > 0 else gain
        return True

    def _targets(self, good: _Good, now: int) -> dict[str, float]:
        """The shares that follow from demand; they sum to 1."""
        demands: dict[str, float] = {}
        targets: dict[str, float] = {}
        for gateway, memory in good.memories.items():
            gone = self._gone.get(gateway)
            if gone is None:
                demands[gateway] = memory.fade(now, self._short, self._long) + _PRIOR
            elif now - gone < self._hold:
                targets[gateway] = good.lent[gateway]  # it may be there still, and spend
            else:
                targets[gateway] = self._floor  # for whoever takes this place next
        if not demands:
            return dict(good.lent)
        rest = 1.0 - sum(targets.values())
        held = sum(good.held[gateway] for gateway in demands)
        fits = min(1.0, rest / held) if held else 1.0
        free = max(0.0, rest - held * fits)
        floor = min(self._floor, free / (2 * len(demands)))
        spare, total = free - floor * len(demands), sum(demands.values())
        for gateway, demand in demands.items():
            targets[gateway] = good.held[gateway] * fits + floor + spare * demand / total
        return targets


TrialKey = tuple[str, str]  # model, replica id


class _Trial:
    """Which gateway may try one replica, until when, and which gateways wait for it."""

    __slots__ = ("free_at", "holder", "until", "waiting")

    def __init__(self) -> None:
        self.holder = ""
        self.until = 0
        self.free_at = 0  # nobody is lent it before
        self.waiting: deque[str] = deque()


class Trials:
    """Decides which one gateway may try a (model, replica) whose breakers are open.

    Runs in control; gateways ask in turn and hold a lease for a limited time.
    """

    def __init__(self, config: LeaseConfig) -> None:
        self._lease = nanos(config.trial_s)
        self._round = nanos(config.round_s)
        self._wanting_max = config.wanting_max
        self._trials: dict[TrialKey, _Trial] = {}
        self.refused = 0  # asked for beyond ``wanting_max``

    def told(
        self, gateway: str, wanted: Collection[TrialKey], running: Collection[TrialKey], now: int
    ) -> bool:
        """Take in which trials a gateway wants and which it runs; return whether a lease moved.

        Trials it names no more are released; beyond ``wanting_max`` new ones are refused and
        counted.
        """
        moved = False
        for key, trial in list(self._trials.items()):
            if key not in wanted and key not in running:
                moved |= self._leaves(key, trial, gateway, now)
        for key in dict.fromkeys((*running, *wanted)):
            found = self._trials.get(key)
            if found is None:
                if len(self._trials) >= self._wanting_max:
                    self.refused += 1
                    continue
                found = self._trials[key] = _Trial()
            if found.holder == gateway:
                if key in running:
                    found.until = now + self._lease  # as long as it says so, nobody else tries
            elif gateway not in found.waiting:
                found.waiting.append(gateway)
            moved |= self._lend(found, now)
        return moved

    def went(self, gateway: str, now: int) -> None:
        """Remove a gateway that is gone from all waiting lists.

        A lease that it holds is kept until it expires.
        """
        for key, trial in list(self._trials.items()):
            if gateway != trial.holder:
                self._leaves(key, trial, gateway, now)

    def expire(self, now: int) -> bool:
        """Pass on trials held past their time, if others wait; return whether a lease moved.

        Called every ``round_s``.
        """
        moved = False
        for trial in self._trials.values():
            if trial.holder and now >= trial.until and trial.waiting:
                trial.waiting.append(trial.holder)  # it has not said that it wants it no more
                trial.holder = ""
                trial.free_at = now + self._round  # its loss is told first
                moved = True
            moved |= self._lend(trial, now)
        return moved

    def held_by(self, gateway: str) -> tuple[TrialKey, ...]:
        """Return the (model, replica id) pairs that this gateway alone may try now."""
        return tuple(key for key, trial in self._trials.items() if trial.holder == gateway)

    def _leaves(self, key: TrialKey, trial: _Trial, gateway: str, now: int) -> bool:
        if gateway in trial.waiting:
            trial.waiting.remove(gateway)
        held = trial.holder == gateway
        if held:  # it says so itself: the next one may begin at once
            trial.holder = ""
            trial.free_at = now
            self._lend(trial, now)
        if not trial.holder and not trial.waiting:
            del self._trials[key]
        return held

    def _lend(self, trial: _Trial, now: int) -> bool:
        if trial.holder or not trial.waiting or now < trial.free_at:
            return False
        trial.holder = trial.waiting.popleft()
        trial.until = now + self._lease
        return True


__all__ = ["LeaseConfig", "Shares", "TrialKey", "Trials"]
