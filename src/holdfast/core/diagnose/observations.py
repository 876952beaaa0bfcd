"""Turns what control and gateways report into facts, in an order that detectors can read.

    launches, canaries, engines ──────────────────────────► facts as they happen
    tallies of all gateways ─► added up for each replica ─► facts once a second

Gateways report once a second, the launcher at once. A process that dies of its first request has
therefore, for all that is known at that moment, never had one; and that is the difference between
an engine that cannot load and one that cannot serve. So the end of a process that seems to have
served nothing is held back until the gateways' next report, and further facts about that replica
wait behind it. This delays no action: the fleet knows of the end already.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final

from holdfast.core.diagnose.detect.silence import SERVING
from holdfast.core.diagnose.facts import (
    ChainDeclared,
    Compared,
    Declared,
    Fact,
    Gone,
    LineSeen,
    Looked,
    Mark,
    MemorySeen,
    ProcessEnded,
    RequestDied,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.diagnose.tallies import Tallies, canaries_doubted, canary_answered
from holdfast.core.messages import CanaryResult, Notice, Seen, Summary
from holdfast.core.types import MILLISECOND, SECOND, State

HELD: Final = 1_500 * MILLISECOND  # gateways tell every second, and a frame takes its time
HELD_MAX: Final = 256  # facts that wait behind one end
PER_FRAME_MAX: Final = 256  # deaths and comparisons taken from one frame
_LINE_PACE: Final = SECOND  # a line that means the same is said no more often
_LASTING: Final = (StateChanged, VersionsSeen)

Sink = Callable[[Fact], None]


class _Waiting:
    """The end of a process, and what was said of its replica since."""

    __slots__ = ("facts", "until")

    def __init__(self, end: ProcessEnded, until: int) -> None:
        self.facts: list[Fact] = [end]
        self.until = until


class Observations:
    """Turns reports of control and gateways into facts and passes each to ``sink``, in order.

    Knows the declared replicas of one fleet, their latest states and versions, and sums of
    gateways' reports between two rounds. Judges nothing; live control and the simulator both use
    it.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._declared: dict[str, Declared] = {}
        self._chains: dict[str, ChainDeclared] = {}
        self._addresses: dict[str, str] = {}  # host:port of a replica's URL to its id
        self._tallies = Tallies()
        self._served: dict[str, int] = {}  # attempts that ended, in this life
        self._waiting: dict[str, _Waiting] = {}
        self._lasting: dict[tuple[str, type], Fact] = {}  # what holds until it is said anew
        self._line_at: dict[tuple[str, Mark], int] = {}

    # --- who there is ----------------------------------------------------------------------------

    def declare(
        self,
        declared: Mapping[str, Declared],
        addresses: Mapping[str, str],
        chains: Iterable[ChainDeclared] = (),
    ) -> None:
        """Replace the list of replicas; emit facts for replicas and chains that are new or changed.

        A replica that is missing from ``declared`` is emitted as ``Gone`` and forgotten; a missing
        chain is not. ``addresses``: the id of the replica behind each ``host:port`` that a log may
        name.
        """
        for name in [name for name in self._declared if name not in declared]:
            self._forget(name)
            self._sink(Gone(name))
        for name, one in declared.items():
            if self._declared.get(name) != one:
                self._declared[name] = one
                self._sink(one)
        self._addresses = dict(addresses)
        for chain in chains:
            if self._chains.get(chain.name) != chain:
                self._chains[chain.name] = chain
                self._sink(chain)

    def again(self) -> list[Fact]:
        """Return the facts that still hold: replicas, chains, latest states and versions.

        For a new investigation; emits nothing.
        """
        return [*self._declared.values(), *self._chains.values(), *self._lasting.values()]

    def _forget(self, name: str) -> None:
        self._release(name)
        del self._declared[name]
        self._tallies.forget(name)
        self._served.pop(name, None)
        for key in [key for key in self._line_at if key[0] == name]:
            del self._line_at[key]
        for kind in _LASTING:
            self._lasting.pop((name, kind), None)

    # --- as it happens ---------------------------------------------------------------------------

    def saw(self, fact: Fact, now: int) -> None:
        """Pass one fact to the sink, completed from what is known here.

        The unasked end of a serving process that seems to have had no request is held back for 1.5
        s, with what follows about its replica. Equal log marks pass once a second; others are
        dropped.
        """
        if isinstance(fact, ProcessEnded):
            self._ended(fact, now)
            return
        if isinstance(fact, LineSeen):
            key = (fact.replica, fact.mark)
            last = self._line_at.get(key)
            if last is not None and now - last < _LINE_PACE:
                return
            self._line_at[key] = now
            if fact.peer:
                fact = replace(fact, peer=self._addresses.get(fact.peer, fact.peer))
        elif isinstance(fact, MemorySeen) and fact.requests is None:
            fact = replace(fact, requests=self._served.get(fact.replica, 0))
        elif isinstance(fact, VersionsSeen):
            fact = self._with_known(fact)
        self._say(getattr(fact, "replica", ""), fact)

    def _with_known(self, fact: VersionsSeen) -> VersionsSeen:
        """Two sources know different versions of one process; one that knows none takes all back.

        Hosts know CUDA and drivers, engines their own version, a platform the image.
        """
        before = self._lasting.get((fact.replica, VersionsSeen))
        told = {one.name: getattr(fact, one.name) for one in fields(fact)}
        if before is None or told == {**dict.fromkeys(told, ""), "replica": fact.replica}:
            return fact
        return replace(fact, **{name: one or getattr(before, name) for name, one in told.items()})

    def _ended(self, fact: ProcessEnded, now: int) -> None:
        name = fact.replica
        self._lasting.pop((name, VersionsSeen), None)  # the next one may run on others
        given = self._served.get(name, 0) + self._tallies.inflight(name)
        if name in self._waiting:  # it ended twice before gateways could speak: let the first go
            self._release(name)
        if not given and not fact.asked and fact.phase == SERVING:
            self._waiting[name] = _Waiting(fact, now + HELD)
            return
        self._say(name, replace(fact, served=given))
        self._served.pop(name, None)

    def notice(self, notice: Notice) -> None:
        """Emit a notice of the fleet as a fact: ``StateChanged`` or ``CanariesDoubted``.

        Other notices, and states of replicas that are not declared, are ignored.
        """
        if notice.signal and notice.replica_id in self._declared:
            state = State(notice.what)
            name = notice.replica_id
            self._say(name, StateChanged(name, state, notice.signal, notice.reason))
        elif (doubted := canaries_doubted(notice)) is not None:
            self._sink(doubted)

    def canary(self, result: CanaryResult, *, slow: bool, inflight: int) -> None:
        """Emit a canary's result as ``CanaryAnswered``; ignored for a replica that is not declared.

        ``slow``: the fleet judged its right answer as late. ``inflight``: users' requests on it.
        Extra ones are for the fleet alone: detectors count canaries, and those that are due tell
        how much time passed.
        """
        if result.replica_id in self._declared and not result.extra:
            fact = canary_answered(result, slow=slow, inflight=inflight)
            self._say(result.replica_id, fact)

    def _say(self, name: str, fact: Fact) -> None:
        if isinstance(fact, _LASTING):
            self._lasting[name, type(fact)] = fact
        waiting = self._waiting.get(name)
        if waiting is None:
            self._sink(fact)
        elif len(waiting.facts) < HELD_MAX:
            waiting.facts.append(fact)

    # --- what gateways tell ----------------------------------------------------------------------

    def seen(
        self,
        event: Seen,
        died: Iterable[tuple[str, str]] = (),
        compared: Iterable[tuple[str, str, bool]] = (),
        died_ago_s: Iterable[float] = (),
    ) -> None:
        """Take one gateway's report: tallies are summed, deaths and comparisons emitted at once.

        Replicas that are not declared are ignored. ``died_ago_s`` says of each death how many
        seconds ago it was; older gateways send none, which counts as 0.
        """
        for action in event.actions:
            for tally in action.tallies if isinstance(action, Summary) else ():
                name = tally.replica_id
                if name in self._declared:  # else: the gateway does not know yet that it is gone
                    self._tallies.take(event.gateway, tally)
                    self._served[name] = self._served.get(name, 0) + tally.ended
        ages = list(died_ago_s)
        for index, (name, fingerprint) in enumerate(list(died)[:PER_FRAME_MAX]):
            if name in self._declared:
                ago_s = max(0.0, ages[index]) if index < len(ages) else 0.0
                self._sink(RequestDied(name, fingerprint[:64], ago_s))
        for name, peer, agreed in list(compared)[:PER_FRAME_MAX]:
            if name in self._declared and peer in self._declared:
                self._sink(Compared(name, peer, agreed))

    def inflight(self, replica: str) -> int:
        """Return the number of users' requests on a replica, by each gateway's latest report."""
        return self._tallies.inflight(replica)

    def gateway_gone(self, gateway: str) -> None:
        """Count no request of this gateway as in flight any more; its sums so far are kept."""
        self._tallies.gateway_gone(gateway)

    # --- once a second ---------------------------------------------------------------------------

    def round(self, now: int) -> None:
        """Emit sums of gateways' reports since the last round, due held-back facts, and a tick.

        Called about once a second.
        """
        for attempts, answers in self._tallies.look(now):
            for fact in (attempts, *answers):  # of the life before an end that waits: not held
                self._sink(fact)
        for name in [name for name, one in self._waiting.items() if now >= one.until]:
            self._release(name)
        self._sink(Looked())

    def _release(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return
        given = self._served.pop(name, 0) + self._tallies.inflight(name)
        for fact in waiting.facts:
            done: Any = fact
            if isinstance(fact, ProcessEnded) and fact.served is None:
                done = replace(fact, served=given)
            self._sink(done)


__all__ = ["HELD", "PER_FRAME_MAX", "Observations"]
