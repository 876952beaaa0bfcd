"""Watches InferencePools of the Gateway API inference extension, and the names of their models.

    inference.networking.k8s.io/v1             inferencepools ────────┐
    inference.networking.x-k8s.io/v1alpha2     inferencepools ────────┼─► PodPools
                                               inferencemodels ───────┤
                                               inferenceobjectives ───┘

Both groups may be installed while a cluster moves from one to the other; they are different objects
there, and a pool of both is that of v1. A cluster that has neither is told as such: a 404 says only
that a path does not exist. Models and objectives are names for people and for a comparison with the
fleet file, so what is refused of them is no error.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeGuard

from holdfast.core.view.layers import Part, Placed
from holdfast.core.view.pod_pools import PodPool, PodPools
from holdfast.core.view.staleness import POOLS
from holdfast.sources.kubernetes.api import Json, KubernetesApi
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.sources.kubernetes.object_watch import ObjectWatch

GROUP: Final = "inference.networking.k8s.io"
OLD_GROUP: Final = "inference.networking.x-k8s.io"
PART: Final = "inference pools"
PORT_MAX: Final = 65_535
PORTS_MAX: Final = 8  # of one pool, as its schema has it
NAMES_MAX: Final = 32  # models of one pool that are named

_PLAIN: Final = ("", "http")  # application protocols that Holdfast speaks
_ABSENT: Final = (
    f"404: this cluster has no inferencepools, neither of {GROUP}/v1 nor of "
    f"{OLD_GROUP}/v1alpha2; install the Gateway API inference extension"
)


@dataclass(slots=True, frozen=True)
class PoolModel:
    """A name that belongs to a pool: of a model that clients ask for, or of an objective."""

    pool: str  # namespace/name
    name: str


def read_pool(thing: Json) -> PodPool:
    """Parse an InferencePool of either group."""
    meta, spec = thing["metadata"], thing.get("spec") or {}
    selector = spec.get("selector") or {}
    labels = selector.get("matchLabels") if "matchLabels" in selector else selector
    chosen = {str(name): str(value) for name, value in (labels or {}).items()}
    listed = spec.get("targetPorts") or ()
    told = [one.get("number") for one in listed] if listed else [spec.get("targetPortNumber")]
    ports = [one for one in told if _is_port(one)]
    return PodPool(
        f"{meta['namespace']}/{meta['name']}",
        tuple(sorted(chosen.items())),
        tuple(sorted(set(ports)))[:PORTS_MAX],
        _problem(spec, chosen, ports),
    )


def _is_port(number: Any) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and 1 <= number <= PORT_MAX


def _problem(spec: Json, labels: dict[str, str], ports: list[int]) -> str:
    """Why its pods cannot be called; empty where they can."""
    if not labels:
        return "its selector has no labels, so that it selects no pod"
    if not ports:
        return "it names no port"
    protocol = str(spec.get("appProtocol") or "")
    if protocol.lower() not in _PLAIN:
        return f"its appProtocol is {protocol[:40]}, and Holdfast speaks HTTP/1.1"
    return ""


def read_model(thing: Json) -> PoolModel:
    """Parse an InferenceModel: the name that clients use, and the pool that serves it."""
    return PoolModel(_pool_of(thing), str(thing["spec"]["modelName"])[:256])


def read_objective(thing: Json) -> PoolModel:
    """Parse an InferenceObjective: its own name with its priority, and the pool it is for."""
    priority = thing["spec"].get("priority")
    told = f" (priority {priority})" if isinstance(priority, int) else ""
    return PoolModel(_pool_of(thing), f"{thing['metadata']['name']}{told}")


def _pool_of(thing: Json) -> str:
    return f"{thing['metadata']['namespace']}/{thing['spec']['poolRef']['name']}"


class InferencePools:
    """Keeps the inference pools of an API server, of both groups, in memory."""

    def __init__(
        self,
        api: KubernetesApi,
        config: KubernetesConfig,
        changed: Callable[[], None],
        chance: Random,
    ) -> None:
        space = f"namespaces/{config.namespace}/" if config.namespace else ""
        new, old = f"apis/{GROUP}/v1/{space}", f"apis/{OLD_GROUP}/v1alpha2/{space}"
        self._made: PodPools | None = None  # of the rows as they are; None: they changed
        self._spaces: dict[str, list[PodPool]] = {}
        self._changed = changed

        def watch(path: str, read: Callable[[Json], Any]) -> ObjectWatch[Any]:
            limit = config.pools_max
            return ObjectWatch[Any](
                PART, path, read, api, config, limit=limit, changed=self._change, chance=chance
            )

        self._pools: tuple[ObjectWatch[PodPool], ...] = (
            watch(f"{new}inferencepools", read_pool),
            watch(f"{old}inferencepools", read_pool),
        )
        self._models: ObjectWatch[PoolModel] = watch(f"{old}inferencemodels", read_model)
        self._goals: ObjectWatch[PoolModel] = watch(f"{old}inferenceobjectives", read_objective)

    def runs(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Its watches, each to be run as a task."""
        return tuple(one.run() for one in self._all())

    def _all(self) -> tuple[ObjectWatch[Any], ...]:
        return (*self._pools, self._models, self._goals)

    def _change(self) -> None:
        self._made = None
        self._changed()

    @property
    def settled(self) -> bool:
        """Whether each list of pools came or was refused."""
        return all(one.listed or one.failing for one in self._pools)

    @property
    def problem(self) -> str:
        """Why pools cannot be read as they are now; empty where they can."""
        if all(one.absent for one in self._pools):
            return _ABSENT
        return next((one.error for one in self._pools if one.error and not one.absent), "")

    def part(self, now: float) -> Part:
        """How current they are: one part for both groups."""
        parts = [one.part(now) for one in self._all()]
        present = [part for one, part in zip(self._pools, parts, strict=False) if not one.absent]
        ages = [part.at for part in present]
        since = [part.failing_since for part in parts[:2] if part.failing_since is not None]
        problem = self.problem
        return Part(
            PART,
            None if None in ages else min((at for at in ages if at is not None), default=None),
            problem,
            min(since, default=None) if problem else None,
            sum(part.calls for part in parts),
            max(part.took_s for part in parts),
            (POOLS,),
        )

    def pools(self) -> PodPools:
        """All pools that are known now, with the names of their models."""
        if self._made is None:
            rows: dict[str, PodPool] = {}
            for watch in reversed(self._pools):  # v1 last: it stays where both have one
                rows.update(watch.rows)
            models, goals = _by_pool(self._models), _by_pool(self._goals)
            self._made = PodPools(
                tuple(
                    replace(one, models=models.get(one.id, ()), objectives=goals.get(one.id, ()))
                    for _, one in sorted(rows.items())
                ),
                any(one.listed for one in self._pools) and self.settled,
                self.problem,
            )
            self._spaces = {}
            for one in self._made.rows:
                self._spaces.setdefault(one.namespace, []).append(one)
        return self._made

    def takes(self, placed: Placed) -> bool:
        """Whether a pod belongs to any of them."""
        self.pools()
        own = self._spaces.get(placed.id.partition("/")[0], ())
        return any(one.has(placed.id, placed.labels) for one in own)

    def notes(self, placed: tuple[Placed, ...]) -> list[str]:
        """What is odd about pools, for people: no pod, or none that could be called."""
        told = []
        for pool in self.pools().rows:
            if pool.problem:
                told.append(f"inference pool {pool.id}: {pool.problem}")
            elif not any(pool.has(one.id, one.labels) for one in placed):
                told.append(f"inference pool {pool.describe()}: there is no such pod")
        return told


def _by_pool(watch: ObjectWatch[PoolModel]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for row in watch.rows.values():
        names = found.setdefault(row.pool, [])
        if len(names) < NAMES_MAX:
            names.append(row.name)
    return {pool: tuple(sorted(set(names))) for pool, names in found.items()}


__all__ = [
    "GROUP",
    "OLD_GROUP",
    "PART",
    "InferencePools",
    "read_model",
    "read_objective",
    "read_pool",
]
