"""Detects waiting work: growing queues, dead letters, backed-up chains, models without replicas.

    depth of a model's queue, what the model finished meanwhile ─► growing, or standing still
    a model of a chain whose queue grows, and a later one that is short ─► it waits for that one
    states of a model's replicas ─► none ready, and not because somebody wanted it so

A queue is reported when it harms: it rose through a whole minute, is near its highest, and what
waits now waits a minute more. Depth alone says little. A burst rises at once and falls; a fast
model works off five hundred in twelve seconds. A queue that stands still while its model finishes
nothing is as bad as one that grows, and is reported under the same sign. While a model is started
and nothing of it has failed, its queue is allowed to wait.

How much is finished is known where gateways report it. For a queue of a platform whose consumers
are not watched the age of its oldest message decides instead; and where that is unknown too, growth
alone does.

Rejected: a slope fitted by least squares. One jump gives a fine slope. Pairs of samples are counted
instead: in a queue that grows nearly every later one is larger.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.evidence import About, Evidence, Sign
from holdfast.core.diagnose.facts import (
    AttemptsSeen,
    ChainDeclared,
    Looked,
    QueueSeen,
    StateChanged,
)
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.health.lifecycle import ROUTABLE
from holdfast.core.types import State, nanos, require, seconds

MODELS_MAX: Final = 1_024  # whose queues are watched; beyond it ``refused`` counts
CHAINS_MAX: Final = 256
LINKS_MAX: Final = 64  # models of one chain; later ones are not looked at
_SAMPLES: Final = 64
_SOURCE: Final = "queues"
_STARTS: Final = (State.STARTING, State.LOADING, State.WARMING)
_LEAVES: Final = (State.DRAINING, State.STOPPED)
_FAILED: Final = (State.DEAD, State.QUARANTINED)

_Fact = QueueSeen | ChainDeclared | AttemptsSeen | StateChanged | Looked


@dataclass(slots=True, frozen=True)
class QueuesConfig:
    """Settings of ``QueuesDetector``: how long and how fast a queue must grow or stand."""

    window_s: float = 60.0  # it grows through all of it; bursts of a few seconds are daily life
    stand_s: float = 120.0  # standing still; one long answer in one piece is done by then
    sample_s: float = 4.0  # between two kept samples
    samples_min: int = 3  # in the window; platforms that are asked once in a while give few
    gap_s: float = 300.0  # samples further apart belong to different stories
    growth_min: int = 5  # requests more than at its beginning
    growth_share: float = 0.10  # and this share of the depth: large queues breathe
    rising_pairs: float = 0.90  # of all pairs of samples the later is larger; noise has half
    peak_share: float = 0.90  # of its highest in the window: below it, it drains already
    wait_s: float = 60.0  # what waits now, waits so long: less is no harm yet
    start_s: float = 300.0  # a model that is being started may let its queue wait for so long
    unready_s: float = 15.0  # without a ready replica; a restart in place is over by then

    def __post_init__(self) -> None:
        for name in ("window_s", "stand_s", "sample_s", "gap_s", "wait_s", "start_s", "unready_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"queues.{name}", f"is {value}", fix)
        for name in ("window_s", "stand_s"):
            value = getattr(self, name)
            fix = f"use at most {_SAMPLES - 2} times sample_s: no more samples are kept"
            fits = value <= self.sample_s * (_SAMPLES - 2)
            require(fits, f"queues.{name}", f"is {value}", fix)
        few = f"is {self.samples_min}"
        require(3 <= self.samples_min <= 16, "queues.samples_min", few, "use 3 to 16")
        growth = f"is {self.growth_min}"
        require(self.growth_min >= 1, "queues.growth_min", growth, "use 1 or more")
        for name in ("growth_share", "rising_pairs", "peak_share"):
            value = getattr(self, name)
            require(0 < value <= 1, f"queues.{name}", f"is {value}", "use a share up to 1")


@dataclass(slots=True, frozen=True)
class _Sample:
    at: int
    waiting: int
    oldest_s: float | None
    done: int  # finished by the model since it is watched
    tokens: int


@dataclass(slots=True)
class _Queue:
    samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    watched: bool = False  # gateways tell what this model finishes
    done: int = 0
    tokens: int = 0
    dead: int | None = None  # dead letters as they were told last
    grew_at: int | None = None  # the sign held at this time
    new_dead: int = 0  # since it was said last


@dataclass(slots=True)
class _Life:
    model: str
    state: State
    at: int
    lost: bool  # it serves no more, and nobody had asked for that


class QueuesDetector:
    """Finds models whose queue grows or stands still, and models without a ready replica.

    Keeps samples per queue, chains, and replicas' states. ``waits_for``: by model, the later model
    of a chain that holds it up now.
    """

    reads: ClassVar[tuple[type, ...]] = (
        *(QueueSeen, ChainDeclared, AttemptsSeen, StateChanged, Looked),
    )

    def __init__(self, config: QueuesConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._queues: dict[str, _Queue] = {}
        self._chains: dict[str, tuple[str, ...]] = {}
        self._lives: dict[str, _Life] = {}  # as many as the census holds
        self._of: dict[str, dict[str, _Life]] = {}  # the same by model
        self._unready: dict[str, int] = {}  # models without a ready replica, and since when
        self._pace = Pace()
        self._now = 0
        self.waits_for: dict[str, str] = {}  # a model of a chain to the later one that holds it up
        self.refused = 0  # models and chains that did not fit

    def take(self, fact: _Fact, now: int) -> Sequence[Evidence]:
        """Take a queue's depth, finished work, a chain, a state or a tick; return due evidence.

        Always about a model: queue grows, dead letters, chain waits, no replica ready. Finished
        work and chains are only stored.
        """
        self._now = now
        if isinstance(fact, Looked):
            return [said for model in tuple(self._unready) for said in self._judge(model, now)]
        if isinstance(fact, QueueSeen):
            return list(self._depth(fact, now))
        if isinstance(fact, ChainDeclared):
            if fact.name in self._chains or len(self._chains) < CHAINS_MAX:
                self._chains[fact.name] = fact.models[:LINKS_MAX]
            else:
                self.refused += 1
            return NOTHING
        known = self._census.replicas.get(fact.replica)
        if known is None:
            return NOTHING
        if isinstance(fact, StateChanged):
            return list(self._state(known.model, fact, now))
        queue = self._queue(known.model)
        if queue is not None:
            queue.watched = True
            queue.done += fact.successes
            queue.tokens += fact.tokens
        return NOTHING

    def forget(self, replica: str) -> None:
        """Drop the state of a replica that left the fleet; its model's queue stays."""
        life = self._lives.pop(replica, None)
        if life is None:
            return
        others = self._of[life.model]
        del others[replica]
        if not others:
            del self._of[life.model]
            self._served(life.model)
        elif not any(one.state in ROUTABLE for one in others.values()):
            self._unready.setdefault(life.model, self._now)  # the last that served went

    def _queue(self, model: str) -> _Queue | None:
        queue = self._queues.get(model)
        if queue is None:
            if len(self._queues) >= MODELS_MAX:
                self.refused += 1
                return None
            queue = self._queues[model] = _Queue()
        return queue

    # --- depth ----------------------------------------------------------------------------------

    def _depth(self, fact: QueueSeen, now: int) -> Iterator[Evidence]:
        queue = self._queue(fact.model)
        if queue is None:
            return
        self._keep(queue, fact, now)
        yield from self._dead_letters(queue, fact, now)
        told = self._growth(fact, queue, now)
        if told is None:
            queue.grew_at = None
            self._pace.over((Sign.QUEUE_GROWS, fact.model))
        else:
            queue.grew_at = now
            if self._pace.due((Sign.QUEUE_GROWS, fact.model), now):
                yield told
        # A model that works well and waits for a later one need not hurt by itself to tell of it.
        rises = self._rises(self._window(queue, self._config.window_s))
        yield from self._chain(
            fact, self._bottleneck(fact.model, now) if told or rises else None, now
        )

    def _keep(self, queue: _Queue, fact: QueueSeen, now: int) -> None:
        samples = queue.samples
        sample = _Sample(now, fact.waiting, fact.oldest_s, queue.done, queue.tokens)
        if samples and now - samples[-1].at > nanos(self._config.gap_s):
            samples.clear()
        if len(samples) > 1 and now - samples[-2].at < nanos(self._config.sample_s):
            samples[-1] = sample
        else:
            samples.append(sample)

    def _window(self, queue: _Queue, span_s: float) -> list[_Sample]:
        """The shortest look back that is long enough, or nothing."""
        last = queue.samples[-1].at
        window: list[_Sample] = []
        for sample in reversed(queue.samples):
            window.append(sample)
            enough = len(window) >= self._config.samples_min
            if enough and last - sample.at >= nanos(span_s):
                return window[::-1]
        return []

    def _growth(self, fact: QueueSeen, queue: _Queue, now: int) -> Evidence | None:
        config = self._config
        window = self._window(queue, config.window_s)
        grows = self._rises(window) and self._wait(queue, window) >= config.wait_s
        if not grows:
            window = self._window(
                queue, config.window_s if self._hurt(fact.model) else config.stand_s
            )
        stands = not grows and self._stands(fact.model, queue, window)
        if not (grows or stands) or self._starts(fact.model, now):
            return None
        first, last = window[0], window[-1]
        span = seconds(last.at - first.at)
        numbers = {"waiting": float(last.waiting), "grew": float(last.waiting - first.waiting)}
        numbers["span_s"] = span
        if grows:
            text = f"the queue of {fact.model} grew from {first.waiting} to {last.waiting}"
        else:
            text = f"the queue of {fact.model} stands at {last.waiting}"
        text += f" in {span:.0f} s"
        if queue.watched:
            numbers["finished_s"] = (last.done - first.done) / span
            text += f" while {last.done - first.done} were finished"
        if fact.oldest_s is not None:
            numbers["oldest_s"] = fact.oldest_s
            text += f"; the oldest waits {fact.oldest_s:.0f} s"
        if fact.deliveries is not None and fact.deliveries > 1:
            numbers["deliveries"] = fact.deliveries
            text += f"; the same work was handed out {fact.deliveries:.1f} times"
        about = About(model=fact.model)
        return Evidence(Sign.QUEUE_GROWS, about, now, _SOURCE, text, numbers)

    def _rises(self, window: list[_Sample]) -> bool:
        if not window:
            return False
        config = self._config
        depths = [sample.waiting for sample in window]
        grown = depths[-1] - depths[0]
        if grown < max(config.growth_min, config.growth_share * depths[-1]):
            return False
        if depths[-1] < config.peak_share * max(depths):
            return False
        pairs = list(combinations(depths, 2))
        rising = sum(later > earlier for earlier, later in pairs)
        return rising >= config.rising_pairs * len(pairs)

    def _wait(self, queue: _Queue, window: list[_Sample]) -> float:
        """How long what waits now will have waited; infinite where nothing is known of it."""
        first, last = window[0], window[-1]
        waits = [] if last.oldest_s is None else [last.oldest_s]
        if queue.watched:
            done = last.done - first.done
            waits.append(last.waiting * seconds(last.at - first.at) / done if done else inf)
        return max(waits, default=inf)

    def _stands(self, model: str, queue: _Queue, window: list[_Sample]) -> bool:
        """Work waits, its depth does not fall, and nothing of it is done."""
        if not window:
            return False
        first, last = window[0], window[-1]
        if last.waiting < first.waiting or min(sample.waiting for sample in window) < 1:
            return False
        if queue.watched:
            return last.done == first.done and last.tokens == first.tokens
        if first.oldest_s is not None and last.oldest_s is not None:
            unmoved = last.oldest_s - first.oldest_s >= 0.9 * seconds(last.at - first.at)
            return unmoved and last.oldest_s >= self._config.wait_s
        return self._unready.get(model, last.at) <= first.at and self._hurt(model)

    def _hurt(self, model: str) -> bool:
        return any(one.lost for one in self._of.get(model, {}).values())

    def _starts(self, model: str, now: int) -> bool:
        """It is being started, nothing of it has failed, and that is not too long ago."""
        lives = self._of.get(model, {}).values()
        if any(one.lost or one.state in ROUTABLE for one in lives):
            return False
        patience = nanos(self._config.start_s)
        return any(one.state in _STARTS and now - one.at < patience for one in lives)

    def _dead_letters(self, queue: _Queue, fact: QueueSeen, now: int) -> Iterator[Evidence]:
        if fact.dead_letters is None:
            return
        before, queue.dead = queue.dead, fact.dead_letters
        if before is None or fact.dead_letters < before:
            queue.new_dead = 0  # what lay there before, or what was cleared away
            return
        queue.new_dead += fact.dead_letters - before
        key = (Sign.DEAD_LETTERS, fact.model)
        if not queue.new_dead or not self._pace.due(key, now):
            return
        letters = "letter" if queue.new_dead == 1 else "letters"
        text = (
            f"{queue.new_dead} more dead {letters} of {fact.model}, {fact.dead_letters} in all:"
            " work was given up"
        )
        numbers = {"grew": float(queue.new_dead), "dead_letters": float(fact.dead_letters)}
        queue.new_dead = 0
        about = About(model=fact.model)
        yield Evidence(Sign.DEAD_LETTERS, about, now, _SOURCE, text, numbers)

    # --- chains ---------------------------------------------------------------------------------

    def _chain(
        self, fact: QueueSeen, found: tuple[str, str, str] | None, now: int
    ) -> Iterator[Evidence]:
        key = (Sign.CHAIN_WAITS, fact.model)
        if found is None:
            self.waits_for.pop(fact.model, None)
            self._pace.over(key)
            return
        chain, model, why = found
        self.waits_for[fact.model] = model
        if self._pace.due(key, now):
            text = f"{fact.model} waits for {model}, a later model of chain {chain}, {why}"
            numbers = {"waiting": float(fact.waiting)}
            later = self._queues.get(model)
            if later is not None and later.samples:
                numbers["later_waiting"] = float(later.samples[-1].waiting)
            about = About(model=fact.model)
            yield Evidence(Sign.CHAIN_WAITS, about, now, _SOURCE, text, numbers)

    def _bottleneck(self, model: str, now: int) -> tuple[str, str, str] | None:
        """The last model behind it that is short, in any chain: what lies before it only waits."""
        for name, models in self._chains.items():
            if model not in models:
                continue
            later = models[models.index(model) + 1 :]
            for one in reversed([other for other in later if other != model]):
                why = self._short(one, now)
                if why:
                    return name, one, why
        return None

    def _short(self, model: str, now: int) -> str:
        if model in self._unready and self._hurt(model):
            return "of which no replica is ready"
        queue = self._queues.get(model)
        if queue is None or not queue.samples:
            return ""
        last = queue.samples[-1]
        if now - last.at > nanos(self._config.gap_s) or not last.waiting:
            return ""
        if queue.grew_at is not None:
            return f"whose own queue grows: {last.waiting} wait there"
        window = self._window(queue, self._config.window_s)
        known = queue.watched or last.oldest_s is not None
        wait = self._wait(queue, window) if window and known else 0.0
        if wait < self._config.wait_s:
            return ""
        return f"where {last.waiting} wait for longer than {self._config.wait_s:.0f} s"

    # --- who is ready ---------------------------------------------------------------------------

    def _state(self, model: str, fact: StateChanged, now: int) -> Iterator[Evidence]:
        before = self._lives.get(fact.replica)
        if before is not None and before.model != model:
            self.forget(fact.replica)
            before = None
        life = _Life(model, fact.state, now, _lost(before, fact.state))
        self._lives[fact.replica] = self._of.setdefault(model, {})[fact.replica] = life
        if any(one.state in ROUTABLE for one in self._of[model].values()):
            self._served(model)
            return
        self._unready.setdefault(model, now)
        yield from self._judge(model, now)

    def _served(self, model: str) -> None:
        self._unready.pop(model, None)
        self._pace.over((Sign.NO_REPLICA_READY, model))

    def _judge(self, model: str, now: int) -> Iterator[Evidence]:
        lives, key = self._of[model], (Sign.NO_REPLICA_READY, model)
        lasted = now - self._unready[model]
        lost = sum(one.lost for one in lives.values())
        if lasted < nanos(self._config.unready_s) or not lost:
            return
        if any(name not in lives for name in self._census.of_model(model)):
            return  # of some nothing is known: they may well be ready
        if not self._pace.due(key, now):
            return
        counts: dict[str, int] = {}
        for one in lives.values():
            counts[one.state.value] = counts.get(one.state.value, 0) + 1
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        text = f"no replica of {model} is ready for {seconds(lasted):.0f} s: {states}"
        numbers = {"replicas": float(len(lives)), "lost": float(lost), "for_s": seconds(lasted)}
        queue = self._queues.get(model)
        if queue is not None and queue.samples:
            numbers["waiting"] = float(queue.samples[-1].waiting)
            text += f"; {queue.samples[-1].waiting} requests wait"
        yield Evidence(Sign.NO_REPLICA_READY, About(model=model), now, _SOURCE, text, numbers)


def _lost(before: _Life | None, state: State) -> bool:
    """Whether it serves no more without having been asked to stop."""
    if state in ROUTABLE or state in _LEAVES:
        return False
    if before is not None and before.state in _LEAVES:
        return False
    served = before is not None and (before.lost or before.state in ROUTABLE)
    return served or state in _FAILED


__all__ = ["CHAINS_MAX", "LINKS_MAX", "MODELS_MAX", "QueuesConfig", "QueuesDetector"]
