"""How many batch items of one model may run now, beside the requests of people.

Batch work fills what is free and gives way at once. Two things can free a slot for a person: no new
item is sent, and an item that has only just begun is taken back (its prompt is read again later;
one that has run for long is left alone, since its work would be lost).

    people wait             take back as many young items as people wait, and send none for a while
    first tokens got late   a lower ceiling for items, by how late they are; it rises again later
    nobody waits, slots     grow into the free slots, except a reserve for whoever comes next
    nobody waits, unknown   grow by one at a time (no limit of the engine is known)
    gateways are silent     unknown is neither free nor full: keep a small number going

The reserve is a share of what people leave, so that batch work gets the same part of the spare at
night and at noon. How many people come in a moment varies by about the root of how many there are:
a large fleet keeps at least that many slots free, a small one a tenth of its slots. The slots of
one replica are left out altogether: items are packed onto the others (``routing.batch_pack``), so
that in a fleet of two or three a person finds an engine that reads no item's prompt, and, where
that one is taken, a slot on another.

What "late" means is learned: the p95 of first tokens while no batch item runs, in all the time that
the process lives. That p95 is of the last minute, so after each step the ceiling waits until a good
part of it is new: a step at every look would end all batch work before the first of them shows. Who
is still late without any items has a new usual, which is learned then.

Rejected: a fixed share of the slots, for batch work or as the reserve. At night it wastes the
fleet; at noon, with four of five slots taken by people, a reserve of a tenth is half of what is
left. Rejected: leaving it all to the gateway's queue, which serves people first; by then every slot
is held by an item.
"""

from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Final

from holdfast.core.stats import Ewma
from holdfast.core.types import SECOND, nanos, require


@dataclass(slots=True, frozen=True)
class SpareCapacityConfig:
    """Settings: how fast batch work grows into free slots, what it leaves free, how it gives way.

    Raises ``ConfigError`` when built with a bad value.
    """

    reserve_share: float = 0.15  # of the slots that people leave stay free: batch gets the rest
    reserve_spread: float = 1.0  # roots of all slots stay free at least: arrivals vary by one
    reserve_min: int = 1  # slots; a fleet of one slot runs batch only while nobody comes
    growth_share: float = 0.25  # of the slots, in one look: full in four looks, 0.4 s
    unknown_max: int = 16  # items at once where the engine's limit is not known
    silent_max: int = 2  # items at once while no gateway reports; a restart takes seconds
    silent_s: float = 3.0  # reports come ten times a second: so long without one is silence
    hold_s: float = 0.5  # after people waited, nothing is sent: their requests get the slots first
    late_factor: float = 1.5  # first tokens so many times later than without batch: too much
    late_share: float = 0.8  # of the present items remain at most after a step down, fewer if later
    late_s: float = 20.0  # between two steps: a third of what the p95 of first tokens looks back
    young_s: float = 1.0  # an item that began so recently may be taken back
    taken_back_share: float = 0.5  # of the young ones at most, in one look: the rest may be done

    def __post_init__(self) -> None:
        for name in ("reserve_share", "growth_share", "late_share", "taken_back_share"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"batch.pace.{name}", f"is {value}", "use a share, 0 to 1")
        for name in ("reserve_min", "unknown_max", "silent_max"):
            value = getattr(self, name)
            require(value >= 0, f"batch.pace.{name}", f"is {value}", "use 0 or more")
        spread = self.reserve_spread
        fix = "use 0 to 10"
        require(0 <= spread <= 10, "batch.pace.reserve_spread", f"is {spread}", fix)
        for name in ("silent_s", "hold_s", "late_s", "young_s"):
            value = getattr(self, name)
            require(value > 0, f"batch.pace.{name}", f"is {value}", "use more than 0 seconds")
        late = self.late_factor
        require(late > 1, "batch.pace.late_factor", f"is {late}", "use more than 1")


@dataclass(slots=True, frozen=True)
class ModelLoad:
    """Present load of one model, summed over all gateways: people waiting, requests running, slots.

    None: unknown.
    """

    waiting: int  # requests of people in the queues of gateways
    running: int  # attempts at replicas, of people and of batches
    slots: int | None  # that routable replicas have; None where no limit is known
    first_token_p95_s: float | None = None  # of people's requests
    ready: bool = True  # some replica can take requests
    replicas: int = 0  # that are routable; 0: unknown


@dataclass(slots=True, frozen=True)
class BatchPace:
    """A decision for one model: how many items may run, how many to take back now, and why."""

    running_max: int
    take_back: int
    reason: str


SPREAD_SHARE_MAX: Final = 0.1  # of the slots: at 16 slots the root of them is a quarter
LATE_SHARE_MIN: Final = 0.25  # of the present items remain at least after one step down
RISE_SHARE: Final = 0.05  # of the slots, by which a ceiling rises
LEARN_S: Final = 1.0  # between two looks at what is usual
LEARNT_MIN: Final = 5  # looks without batch before a p95 counts as usual
USUAL_HALFLIFE_S: Final = 30.0  # the gateways' own p95 moves about as fast


class SpareCapacity:
    """Decides how many batch items of one model may run beside people's requests.

    It starts and stops none; ``look`` is called about ten times a second while there is batch work,
    ``learn`` while none of the model runs. Keeps a pause after people waited, the usual time to
    first token without batch work, and a ceiling for items after first tokens got late.
    """

    def __init__(self, config: SpareCapacityConfig) -> None:
        self.config = config
        self._held_until = 0
        self._seen_at: int | None = None  # when a gateway last reported
        self._usual = Ewma(USUAL_HALFLIFE_S)  # p95 of first tokens without batch items
        self._looks = 0
        self._learnt_at = -nanos(LEARN_S)
        self._ceiling: int | None = None  # items at most, since first tokens got late
        self._step_at = 0  # when it may change again

    def learn(self, load: ModelLoad | None, now: int) -> None:
        """Take people's first tokens for usual; call it while no batch item of the model runs.

        Once a second is enough; sooner calls are left out. ``load`` None: nothing is known.
        """
        if load is None or load.first_token_p95_s is None:
            return
        if now - self._learnt_at >= nanos(LEARN_S):
            self._learnt_at = now
            self._usual.add(load.first_token_p95_s, now)
            self._looks += 1

    def look(self, load: ModelLoad | None, items: int, young: int, now: int) -> BatchPace:
        """Return the ``BatchPace`` for now: how many items may run and how many to take back.

        ``load`` None: no gateway reported since the last look. ``items``: batch items that run,
        ``young``: those of them that may be taken back. Items are taken back only while people
        wait.
        """
        config = self.config
        if load is None:
            if self._seen_at is None or now - self._seen_at > nanos(config.silent_s):
                return BatchPace(config.silent_max, 0, "gateways do not report")
            return BatchPace(items, 0, "no new report")
        self._seen_at = now
        if not load.ready:
            return BatchPace(0, 0, "no replica is ready")
        if load.waiting:
            self._held_until = now + nanos(config.hold_s)
            most = ceil(young * config.taken_back_share)
            taken = min(load.waiting, most)
            return BatchPace(max(0, items - taken), taken, f"{load.waiting} people wait")
        if now < self._held_until:
            return BatchPace(items, 0, "people waited just now")
        ceiling = self._step(load, items, now)
        if ceiling is not None and items >= ceiling:
            return BatchPace(ceiling, 0, "first tokens got late beside batch work")
        if load.slots is None:
            return BatchPace(min(items + 1, config.unknown_max), 0, "no limit is known")
        free = load.slots - load.running - self._reserve(load.slots, load.running - items)
        if load.replicas > 1:
            each = ceil(load.slots / load.replicas)
            others = load.slots - each  # one replica stays without batch work
            if each > config.reserve_min:
                others -= config.reserve_min  # and there is room on the others
            free = min(free, others - items)
        if free <= 0:
            return BatchPace(max(0, items + free), 0, "no spare slot")
        step = max(1, ceil(load.slots * config.growth_share))
        if ceiling is not None:
            step = min(step, ceiling - items)
        return BatchPace(items + min(free, step), 0, f"{free} spare slots")

    def _reserve(self, slots: int, people: int) -> int:
        """Slots that batch work leaves free."""
        config = self.config
        left = slots - max(0, people)
        spread = min(config.reserve_spread * sqrt(slots), SPREAD_SHARE_MAX * slots)
        return max(config.reserve_min, ceil(spread), ceil(left * config.reserve_share))

    def _step(self, load: ModelLoad, items: int, now: int) -> int | None:
        """Lower the ceiling where first tokens are late, raise it where they are not."""
        late = self._lateness(load)
        if now < self._step_at or (late <= 1.0 and self._ceiling is None):
            return self._ceiling
        self._step_at = now + nanos(self.config.late_s)
        if late > 1.0:
            share = max(LATE_SHARE_MIN, min(self.config.late_share, 1.0 / late))
            self._ceiling = floor(items * share)
        elif self._ceiling is not None:
            most = self.config.unknown_max if load.slots is None else load.slots
            self._ceiling += max(1, ceil(most * RISE_SHARE))
            if self._ceiling >= most:
                self._ceiling = None
        return self._ceiling

    def _lateness(self, load: ModelLoad) -> float:
        """First tokens by what is bearable: above 1 they are late. 0 where that is not known."""
        usual, p95 = self._usual.value, load.first_token_p95_s
        if p95 is None or not usual or self._looks < LEARNT_MIN:
            return 0.0
        return p95 / (usual * self.config.late_factor)


def is_young(began: int, now: int, config: SpareCapacityConfig) -> bool:
    """Return whether an item that began at ``began`` (ns) is so young that it may be taken back."""
    return now - began < config.young_s * SECOND


__all__ = ["LEARN_S", "BatchPace", "ModelLoad", "SpareCapacity", "SpareCapacityConfig", "is_young"]
