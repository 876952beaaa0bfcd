"""Pools of pods that a platform names itself, such as an InferencePool, and who belongs to one.

    pool: namespace, labels, ports ─► a pod of that namespace with all these labels, at each port

A pool without labels selects nobody: taking every pod of its namespace would send requests to
databases. A name that is in several namespaces is not guessed at. Where a pool is not there, or not
known yet, ``PoolChoice`` says why; whoever has replicas of it keeps them and takes no new ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

NAMED_MAX: Final = 5  # of others, in one text


@dataclass(frozen=True)
class PodPool:
    """A pool that a platform names, such as an InferencePool: its pods' labels and ports."""

    id: str  # namespace/name
    labels: tuple[tuple[str, str], ...] = ()
    ports: tuple[int, ...] = ()  # each is an engine of its own in every pod
    problem: str = ""  # why its pods cannot be called
    models: tuple[str, ...] = ()  # what clients call it, as its platform has it
    objectives: tuple[str, ...] = ()  # names of its goals, for people

    @cached_property
    def _wanted(self) -> frozenset[tuple[str, str]]:
        return frozenset(self.labels)

    @property
    def namespace(self) -> str:
        """The namespace of the pool and of its pods: the first part of ``id``."""
        return self.id.partition("/")[0]

    def has(self, pod: str, labels: Iterable[tuple[str, str]]) -> bool:
        """Return whether a pod (``namespace/name``) with these labels belongs to the pool.

        It does if the namespace is the same and it has all of the pool's labels; never for a pool
        without labels.
        """
        if not self.labels or pod.partition("/")[0] != self.namespace:
            return False
        return self._wanted.issubset(labels)

    def describe(self) -> str:
        """Return the pool's id, labels and ports as one text for people."""
        chosen = ",".join(f"{name}={value}" for name, value in self.labels)
        several = "ports" if len(self.ports) > 1 else "port"
        return f"{self.id}: pods with {chosen} at {several} {', '.join(map(str, self.ports))}"


@dataclass(slots=True, frozen=True)
class PodPools:
    """All pools of one platform as last listed; ``known`` False: they were never listed."""

    rows: tuple[PodPool, ...] = ()
    known: bool = False  # they were listed at least once
    problem: str = ""  # why they cannot be read now


NO_POOLS: Final = PodPools()  # of a platform that has none, or of which nobody asks


@dataclass(slots=True, frozen=True)
class PoolChoice:
    """The pool found for a name, or None with the reason; an empty reason: not listed yet."""

    pool: PodPool | None
    problem: str = ""  # empty without a pool: they were not listed yet


def choose_pool(pools: PodPools, name: str, namespace: str = "") -> PoolChoice:
    """Return the ``PoolChoice`` for a name; without a namespace it may be in any, but in one only.

    ``pool`` is None with a ``problem`` if it is missing, ambiguous or cannot be called. Raises
    nothing.
    """
    found = [one for one in pools.rows if _is_named(one, name, namespace)]
    wanted = f"{namespace}/{name}" if namespace else name
    if not pools.known:
        told = f"inference pools cannot be read: {pools.problem}" if pools.problem else ""
        return PoolChoice(None, told)
    if not found:
        near = sorted(one.id for one in pools.rows)[:NAMED_MAX]
        told = f"there are {', '.join(near)}" if near else "there is none at all"
        return PoolChoice(None, f"there is no inference pool {wanted} ({told})")
    if len(found) > 1:
        spaces = ", ".join(sorted(one.namespace for one in found)[:NAMED_MAX])
        problem = f"{wanted} is in the namespaces {spaces}: name one as discover.namespace"
        return PoolChoice(None, problem)
    if found[0].problem:
        return PoolChoice(None, f"inference pool {found[0].id}: {found[0].problem}")
    return PoolChoice(found[0])


def _is_named(pool: PodPool, name: str, namespace: str) -> bool:
    space, _, own = pool.id.partition("/")
    return own == name and namespace in ("", space)


def pool_keys(pod: str, ports: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Yield (key, port) for each engine of a pod: the pod's id for the lowest port.

    For further ports the key is ``pod:port``. So a pool with one port has replicas by the names of
    their pods.
    """
    for index, port in enumerate(sorted(set(ports))):
        yield (f"{pod}:{port}" if index else pod), port


def pod_of_key(key: str) -> str:
    """Return the pod id of a key that ``pool_keys`` made: what is before the colon."""
    return key.partition(":")[0]


__all__ = [
    "NO_POOLS",
    "PodPool",
    "PodPools",
    "PoolChoice",
    "choose_pool",
    "pod_of_key",
    "pool_keys",
]
