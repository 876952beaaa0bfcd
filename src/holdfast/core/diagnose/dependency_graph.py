"""Tells which failures can spread to whom: by host, filesystem, model, chain or blamed peer.

    filesystem, host ─► replica ─► model ─► models earlier in its chain
    prefill ─► decode, once the log of the one blames the other

A failure spreads along these arrows and along no others. Two replicas that fail at once without an
arrow between them failed twice. The state and phase of each replica are kept here too, since a sign
means one thing while loading and another while serving.
"""

from typing import Final

from holdfast.core.diagnose.causes.rule import Rules, Scope
from holdfast.core.diagnose.evidence import About
from holdfast.core.diagnose.facts import (
    ChainDeclared,
    Declared,
    Fact,
    Gone,
    LineSeen,
    Mark,
    PhaseSeen,
    ProcessEnded,
    StateChanged,
)
from holdfast.core.diagnose.incident_case import IncidentCase, Subject
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND, State

_BLAMES: Final = (Mark.TRANSFER_FAILED, Mark.COLLECTIVE_TIMEOUT)
_DOWN: Final = (State.STARTING, State.LOADING, State.DRAINING, State.STOPPED)  # need not serve
_LOADING_PHASES: Final = ("starting", "loading", "compile", "compiling", "warm-up", "warmup")
_OVER: Final = (State.READY, State.STOPPED, State.DRAINING)  # nothing is wrong with it any more
BLAME_HOLDS: Final = 300 * SECOND  # a prefill that is seen dead later than this is other news
BLAMED_MAX: Final = 16  # peers that one replica may blame at a time
CHAINS_MAX: Final = 256
KNOWN_MAX: Final = 20_000  # replicas of which a state is kept


class DependencyGraph:
    """Keeps, for a whole fleet, replicas' states and phases, chains of models, and blame in logs.

    Answers whether a failure of one case can spread to another replica, model or host. Opens and
    changes no case.
    """

    __slots__ = (
        *("_blames", "_census", "_chains", "_ended", "_loading", "_rules"),
        *("ready_at", "states"),
    )

    def __init__(self, rules: Rules, census: ReplicaRegistry) -> None:
        self._rules = rules
        self._census = census
        self.states: dict[str, State] = {}
        self.ready_at: dict[str, int] = {}  # when it last became ready
        self._loading: dict[str, bool] = {}
        self._ended: set[str] = set()  # whose process is gone, and of whom nothing was heard since
        self._blames: dict[str, dict[str, int]] = {}  # replica: peer or "" for unnamed: when
        self._chains: dict[str, tuple[str, ...]] = {}

    def take(self, fact: Fact, now: int) -> None:
        """Update states, phases, chains and blame from one fact; facts of other kinds are ignored.

        ``Gone`` deletes all of a replica; new replicas and chains beyond the bounds are ignored.
        """
        if isinstance(fact, StateChanged):
            self._state(fact, now)
        elif isinstance(fact, PhaseSeen | ProcessEnded):
            asked = isinstance(fact, ProcessEnded) and fact.asked
            self._phase(fact.replica, _LOADING_PHASES[0] if asked else fact.phase)
            if isinstance(fact, PhaseSeen):
                self._ended.discard(fact.replica)
            elif len(self._ended) < KNOWN_MAX:
                self._ended.add(fact.replica)
        elif isinstance(fact, LineSeen) and fact.mark in _BLAMES:
            self._blame(fact, now)
        elif isinstance(fact, ChainDeclared):
            if fact.name in self._chains or len(self._chains) < CHAINS_MAX:
                self._chains[fact.name] = fact.models
        elif isinstance(fact, Gone):
            self.forget(fact.replica)

    def _state(self, fact: StateChanged, now: int) -> None:
        if fact.replica not in self.states and len(self.states) >= KNOWN_MAX:
            return
        before = self.states.get(fact.replica)
        self.states[fact.replica] = fact.state
        if fact.state is not State.DEAD:  # who dies while it loads has not served
            self._loading[fact.replica] = fact.state in _DOWN
        if fact.state is State.READY and before is not State.READY:
            self.ready_at[fact.replica] = now

    def _phase(self, replica: str, phase: str) -> None:
        if phase and (replica in self._loading or len(self._loading) < KNOWN_MAX):
            self._loading[replica] = phase in _LOADING_PHASES

    def _blame(self, fact: LineSeen, now: int) -> None:
        if fact.replica not in self._blames and len(self._blames) >= KNOWN_MAX:
            return
        blamed = self._blames.setdefault(fact.replica, {})
        if fact.peer not in blamed and len(blamed) >= BLAMED_MAX:
            del blamed[min(blamed, key=blamed.__getitem__)]
        blamed[fact.peer] = now

    def forget(self, replica: str) -> None:
        """Delete all of a replica that left the fleet, but for what others' logs blame on it."""
        for book in (self.states, self.ready_at, self._loading, self._blames):
            book.pop(replica, None)
        self._ended.discard(replica)

    def replaced(self, case: IncidentCase) -> bool:
        """Whether every replica at a case's root has ended and is known to a platform only.

        A platform starts a replacement under another name, whose like failure then continues this
        case. False if a root replica has a health state, or if no root is a replica.
        """
        replicas = case.root_replicas()
        return bool(replicas) and all(
            one in self._ended and one not in self.states for one in replicas
        )

    def loading(self, replica: str) -> bool:
        """Whether a replica is loading or not started yet; false for an unknown one."""
        return self._loading.get(replica, False)

    def over(self, replica: str) -> bool:
        """Whether a replica's state lets its incident close: ready, draining, stopped, unknown."""
        state = self.states.get(replica)
        return state is None or state in _OVER

    def downstream(self, model: str) -> frozenset[str]:
        """Return the names of the models that come after this one in any chain; may be empty."""
        later: set[str] = set()
        for models in self._chains.values():
            if model in models:
                later.update(models[models.index(model) + 1 :])
        return frozenset(later)

    def blames(self, replica: str, other: str, now: int, *, named: bool = False) -> bool:
        """Whether one replica's recent log blames the other, by its id or its host's address.

        A line that names no peer blames every replica of the same model with the opposite role.
        With ``named`` only lines that name a peer count.
        """
        for peer, at in self._blames.get(replica, {}).items():
            if now - at > BLAME_HOLDS or (named and not peer):
                continue
            accused = self._census.replicas.get(other)
            if peer == other or (accused is not None and self._is(peer, replica, accused)):
                return True
        return False

    def _is(self, peer: str, replica: str, accused: Declared) -> bool:
        if peer:
            address = peer.partition("://")[2] or peer
            return bool(accused.host) and address.partition(":")[0] == accused.host
        mine = self._census.replicas.get(replica)
        apart = mine is not None and bool(mine.role) and bool(accused.role)
        return (
            apart
            and mine is not None
            and (mine.model == accused.model and mine.role != accused.role)
        )

    def suffers(self, subject: Subject, about: About, case: IncidentCase, now: int) -> bool:
        """Whether a case's failure can have spread to this subject; attaches nothing.

        True for a root of the case, for a replica in the same host, filesystem or model (by the
        cause's scope) or blaming a root replica, and for a model whose own, later or local replicas
        are roots.
        """
        kind, name = subject
        scope = self._rules[case.cause].scope
        for (root_kind, root), where in case.roots.items():
            if (root_kind, root) == subject:
                return True
            if kind == Scope.REPLICA.value:
                # What one replica shows of its host is not yet the fault of others there.
                of_place = scope is not Scope.HOST or not where.replica
                if of_place and self._same_place(about, where, scope):
                    return True
                if root_kind == Scope.REPLICA.value and self.blames(name, root, now):
                    return True
            elif kind == Scope.MODEL.value and self._model_suffers(name, (root_kind, root), where):
                return True
        return False

    def shares(self, about: About, case: IncidentCase) -> bool:
        """Whether ``about`` has the host, filesystem or model of one of the case's roots.

        Which of these counts is the scope of the case's cause; always false for causes of one
        replica.
        """
        scope = self._rules[case.cause].scope
        return any(self._same_place(about, where, scope) for where in case.roots.values())

    @staticmethod
    def _same_place(about: About, where: About, scope: Scope) -> bool:
        if scope is Scope.HOST:
            return bool(about.host) and about.host == where.host
        if scope is Scope.FILESYSTEM:
            return bool(about.filesystem) and about.filesystem == where.filesystem
        same = not where.revision or not about.revision or where.revision == about.revision
        return scope is Scope.MODEL and bool(about.model) and about.model == where.model and same

    def _model_suffers(self, model: str, root: Subject, where: About) -> bool:
        """A model suffers from its own, from what comes after it, and from where it lives."""
        if not where.model:
            return self._serves_from(model, *root)
        if where.model == model or where.model in self.downstream(model):
            return True
        # What is about a chain is about all of it, whichever model was seen to wait.
        return root[0] == Scope.MODEL.value and model in self.downstream(where.model)

    def houses_all(self, model: str, case: IncidentCase) -> bool:
        """Whether all replicas of a model share the place that the case's cause sits in.

        That is a host, a filesystem or the model, by the cause's scope. False for a model without
        replicas.
        """
        abouts = [self._census.about(one) for one in self._census.of_model(model)]
        return bool(abouts) and all(self.shares(about, case) for about in abouts)

    def _serves_from(self, model: str, kind: str, place: str) -> bool:
        """Whether a replica of a model lives on this host or filesystem."""
        if kind not in (Scope.HOST.value, Scope.FILESYSTEM.value):
            return False
        models = {model, *self.downstream(model)}
        return any(
            one.model in models and getattr(one, kind) == place
            for one in self._census.replicas.values()
        )


__all__ = ["BLAMED_MAX", "BLAME_HOLDS", "CHAINS_MAX", "KNOWN_MAX", "DependencyGraph"]
