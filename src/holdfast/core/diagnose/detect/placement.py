"""Detects replicas on hosts without the GPU or the memory that they need.

Schedulers place what was declared, not what is needed: a model that needs a GPU lands on a host
without one and crawls or dies, a large one on a host whose memory others have taken. Each layer
looks healthy; only placement and room held together show it.

    needs a GPU, the host has none ──────────────────────────────► on a CPU host
    needs more than the host has at all ─────────────────────────► no room
    needs more than what is free there and its own reservation ──► no room, if that is certain

The last is certain when its weights lie in host memory and its reservation is known. Otherwise it
is said only after the replica died there for want of memory or before it ever served: weights on a
GPU cost the host nothing, and packing hosts full is good practice. A replica that is ready has
found room, whatever was declared.

Rejected: taking an unknown number of GPUs for none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.detect.memory_limits import GB
from holdfast.core.diagnose.detect.silence import COMPILE, LOADING, STARTING, WARM_UP
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import Declared, HostSeen, Looked, ProcessEnded, StateChanged
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.health.lifecycle import ROUTABLE
from holdfast.core.types import require

_SOURCE: Final = "placement"
_SIGNS: Final = (Sign.ON_CPU, Sign.NO_ROOM)
_BEFORE_SERVING: Final = (STARTING, LOADING, COMPILE, WARM_UP)

_Fact = Declared | HostSeen | StateChanged | ProcessEnded | Looked


@dataclass(slots=True, frozen=True)
class PlacementConfig:
    """Settings of ``PlacementDetector``: by which share a host must be too small to be a sign.

    Checked when built: raises ``ConfigError``.
    """

    margin: float = 0.02  # of what it needs; declared sizes and hosts' totals are rounded

    def __post_init__(self) -> None:
        good = 0 <= self.margin < 1
        require(good, "placement.margin", f"is {self.margin}", "use 0 to below 1, such as 0.02")


@dataclass(slots=True)
class _Book:
    host: str
    ready: bool = False  # now: it has found room
    died: bool = False  # here, and for want of memory or before it served


class PlacementDetector:
    """Finds replicas on a host without the GPU or the memory that they are declared to need.

    Keeps per replica its host, whether it is ready and whether it died there; moves nothing.
    """

    reads: ClassVar[tuple[type, ...]] = (Declared, HostSeen, StateChanged, ProcessEnded, Looked)

    def __init__(self, config: PlacementConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._books: dict[str, _Book] = {}  # as many as the census holds
        self._on: dict[str, dict[str, None]] = {}  # host to its replicas
        self._open: dict[str, None] = {}
        self._pace = Pace()

    def take(self, fact: _Fact, now: int) -> Sequence[Evidence]:
        """Take a declaration, a host, a replica's state or end, or a tick; return evidence.

        ``ON_CPU`` and ``NO_ROOM`` about a replica, repeated at ticks while they hold. A host's
        figures judge all its replicas.
        """
        if isinstance(fact, Looked):
            names = tuple(self._open)
        elif isinstance(fact, HostSeen):
            names = tuple(self._on.get(fact.host, ()))
        else:
            if not self._note(fact):
                return NOTHING
            names = (fact.replica,)
        return [said for name in names for said in self._judge(name, now)]

    def forget(self, replica: str) -> None:
        """Drop host, readiness and deaths of a replica that left the fleet."""
        book = self._books.pop(replica, None)
        if book is None:
            return
        here = self._on[book.host]
        del here[replica]
        if not here:
            del self._on[book.host]
        self._over(replica)

    def _over(self, replica: str) -> None:
        self._open.pop(replica, None)
        for sign in _SIGNS:
            self._pace.over((sign, replica))

    def _note(self, fact: Declared | StateChanged | ProcessEnded) -> bool:
        """Whether it is known well enough to be judged."""
        known = self._census.replicas.get(fact.replica)
        if known is None or not known.host:
            self.forget(fact.replica)
            return False
        book = self._books.get(fact.replica)
        if book is None or book.host != known.host:
            self.forget(fact.replica)
            book = self._books[fact.replica] = _Book(known.host)
            self._on.setdefault(known.host, {})[fact.replica] = None
        if isinstance(fact, StateChanged):
            book.ready = fact.state in ROUTABLE
        elif isinstance(fact, ProcessEnded):
            book.ready = False
            killed = fact.oom or fact.signal == 9 or fact.code in (137, -9)
            book.died |= not fact.asked and (killed or fact.phase in _BEFORE_SERVING)
        return True

    def _judge(self, replica: str, now: int) -> Iterator[Evidence]:
        known, book = self._census.replicas.get(replica), self._books[replica]
        host = self._census.hosts.get(book.host)
        found: tuple[Evidence | None, ...] = (None, None)
        if known is not None and host is not None:
            found = (self._on_cpu(known, host, now), self._no_room(known, host, now))
        if not any(found):
            self._over(replica)
            return
        self._open[replica] = None
        for sign, evidence in zip(_SIGNS, found, strict=True):
            if evidence is None:
                self._pace.over((sign, replica))
            elif self._pace.due((sign, replica), now):
                yield evidence

    def _on_cpu(self, known: Declared, host: HostSeen, now: int) -> Evidence | None:
        if known.needs_gpu is not True or host.gpus != 0:
            return None
        kind = f" of group {host.group}" if host.group else ""
        text = f"{known.model} needs a GPU and runs on {host.host}{kind}, which has none"
        about = self._census.about(known.replica)
        return Evidence(Sign.ON_CPU, about, now, _SOURCE, text, {"gpus": 0.0})

    def _no_room(self, known: Declared, host: HostSeen, now: int) -> Evidence | None:
        book = self._books[known.replica]
        reserved = known.reserved_bytes
        held = 0 if known.weights_bytes is None else known.weights_bytes + (known.kv_bytes or 0)
        need = max(held, reserved or 0)
        if book.ready or not need:
            return None
        bound = need * (1 - self._config.margin)
        in_host = known.needs_gpu is False or host.gpus == 0
        free = None if host.free_bytes is None else host.free_bytes + (reserved or 0)
        numbers = {"needed_bytes": float(need)}
        if host.memory_bytes is not None and bound > host.memory_bytes:
            room = f"{host.host} has {host.memory_bytes / GB:.1f} GB in all"
            numbers["memory_bytes"] = float(host.memory_bytes)
        elif (
            free is not None and bound > free and (book.died or (in_host and reserved is not None))
        ):
            room = f"{host.host} has {free / GB:.1f} GB for it"
            if host.memory_bytes is not None:
                room += f" of {host.memory_bytes / GB:.1f} GB"
                numbers["memory_bytes"] = float(host.memory_bytes)
            numbers["room_bytes"] = float(free)
        else:
            return None
        if reserved is not None:
            numbers["reserved_bytes"] = float(reserved)
        what = "weights and cache" if held >= need else "its reservation"
        text = f"{known.model} needs {need / GB:.1f} GB for {what}, and {room}"
        about = self._census.about(known.replica)
        return Evidence(Sign.NO_ROOM, about, now, _SOURCE, text, numbers)


__all__ = ["PlacementConfig", "PlacementDetector"]
