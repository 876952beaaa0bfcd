"""The facts of the last while, kept so that an incident can be looked at again.

    fact ─► FactLog ─► of(incident) ─► lines of JSON ─► the same facts ─► the same verdict

An incident that cannot be run again is an anecdote. The log is a ring with a bound; what falls out
of it is gone, except what lasts until it is said anew: declarations, versions, hosts, states. Of
those the latest is kept, for without them a replay would not know who was there.

``of`` gives more than the facts of the replicas in question. Detectors compare a replica with its
peers, and a chain with its later models, so their facts belong to the verdict too.

Plain data is made and read by what the dataclasses themselves declare. A field that was added to a
fact is written and read from then on, and a file that says something else is refused with the name
of the field. Rejected: pickle, which runs what it reads. Rejected: one hand-written pair of
functions for each of 25 kinds, in which the next field would be forgotten.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from math import inf, isfinite, isnan, nan
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from holdfast.core.diagnose.evidence import About, Incident
from holdfast.core.diagnose.facts import (
    KINDS_OF_FACT,
    CanariesDoubted,
    ChainDeclared,
    Compared,
    Declared,
    Fact,
    FilesystemSeen,
    Gone,
    HostSeen,
    LineSeen,
    Looked,
    ProcessFrozen,
    QueueSeen,
    RolloutSeen,
    StateChanged,
    VersionsSeen,
)
from holdfast.core.types import require

FORMAT: Final = 1  # of an exported incident; another number is refused
KEPT_MAX: Final = 50_000  # facts that outlive the ring; the one said longest ago goes first
_FORMAT_KEY: Final = "holdfast_incident"
_UNBOUNDED: Final = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}  # JSON has no such numbers

_Read = Callable[[object, str], Any]


# --- plain data -----------------------------------------------------------------------------------


def _plain(value: object) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value


def _refuse(where: str, value: object, wanted: str) -> ValueError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return ValueError(f"{where}: is {shown}; use {wanted}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _refuse(where, value, "text")
    return value


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(where, value, "true or false")
    return value


def _whole(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(where, value, "a whole number")
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, str) and value in _UNBOUNDED:
        return _UNBOUNDED[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(where, value, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _refuse(where, value, "a number below 1.8e308") from error


_SIMPLE: Final[dict[object, _Read]] = {str: _text, bool: _truth, int: _whole, float: _number}


def _mapping(value: object, where: str) -> Mapping[object, object]:
    if not isinstance(value, Mapping):
        raise _refuse(where, value, "an object")
    return value


def _reader(kind: Any) -> _Read:
    """How a value of this annotation is read; each is built once, when the module is loaded."""
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _optional(_reader(next(one for one in arguments if one is not NoneType)))
    if origin in (tuple, list):
        return _several(origin, _reader(arguments[0]))
    if origin is not None:
        return _table(_reader(arguments[0]), _reader(arguments[1]))
    return _choice(kind) if issubclass(kind, StrEnum) else _record(kind)


def _optional(inner: _Read) -> _Read:
    return lambda value, where: None if value is None else inner(value, where)


def _several(make: Callable[[Iterable[Any]], Any], inner: _Read) -> _Read:
    def read(value: object, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _refuse(where, value, "a list")
        return make(inner(one, f"{where}[{n}]") for n, one in enumerate(value))

    return read


def _table(key: _Read, inner: _Read) -> _Read:
    def read(value: object, where: str) -> Any:
        rows = _mapping(value, where).items()
        return {key(name, where): inner(one, f"{where}.{name}") for name, one in rows}

    return read


def _choice(kind: type[StrEnum]) -> _Read:
    known = {one.value: one for one in kind}

    def read(value: object, where: str) -> Any:
        found = known.get(value) if isinstance(value, str) else None
        if found is None:
            raise _refuse(where, value, f"a name of {kind.__name__}, such as {next(iter(known))!r}")
        return found

    return read


def _record(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    readers = {one.name: _reader(hints[one.name]) for one in fields(kind)}
    needed = tuple(
        one.name for one in fields(kind) if one.default is MISSING is one.default_factory
    )

    def read(value: object, where: str) -> Any:
        given = _mapping(value, where)
        for name in needed:
            if name not in given:
                raise ValueError(f"{where}.{name}: is missing; it has no default")
        read_so_far: dict[str, Any] = {}
        for key, one in given.items():
            reader = readers.get(str(key))
            if reader is None:
                raise ValueError(f"{where}.{key}: is unknown; use {', '.join(readers)}")
            read_so_far[str(key)] = reader(one, f"{where}.{key}")
        return kind(**read_so_far)

    return read


_FACTS: Final[dict[str, _Read]] = {kind.__name__: _record(kind) for kind in KINDS_OF_FACT}
_INCIDENT: Final = _record(Incident)
_ABOUT_FACTS: Final = ("kind", "at")  # beside a fact's own fields


def to_plain(fact: Fact) -> dict[str, Any]:
    """A fact as JSON knows it, with its kind; fields that have their default are left out."""
    plain: dict[str, Any] = {"kind": type(fact).__name__}
    for one in fields(fact):
        value = getattr(fact, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if default is MISSING or value != default:
            plain[one.name] = _plain(value)
    return plain


def from_plain(plain: Mapping[str, Any]) -> Fact:
    """The fact again; ``ValueError`` names the field that cannot be read."""
    kind = plain.get("kind")
    read = _FACTS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise _refuse("kind", kind, f"one of {', '.join(_FACTS)}")
    own = {name: value for name, value in plain.items() if name not in _ABOUT_FACTS}
    fact: Fact = read(own, str(kind))
    return fact


_INCIDENT_KEYS: Final = (
    *("id", "cause", "class", "title", "stage", "about", "replicas", "opened_at", "changed_at"),
    *("closed_at", "confidence", "evidence", "consequences", "other_causes", "timeline"),
    *("remedy", "action", "fix"),
)


def incident_to_plain(incident: Incident) -> dict[str, Any]:
    """An incident as JSON knows it, every field of it, and its title."""
    plain = _plain(incident)
    plain |= {"class": plain["failure_class"], "title": incident.title}
    return {key: plain[key] for key in _INCIDENT_KEYS}


def incident_from_plain(plain: Mapping[str, Any]) -> Incident:
    """The incident again; ``ValueError`` names the field that cannot be read."""
    own = {name: value for name, value in plain.items() if name != "title"}
    if "class" not in own:
        raise ValueError("incident.class: is missing; it has no default")
    own["failure_class"] = own.pop("class")
    incident: Incident = _INCIDENT(own, "incident")
    return incident


# --- the exported file ----------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Export:
    """One incident and all that is needed to come to it again."""

    incident: Incident
    baselines: Mapping[str, Any]  # plain data of the drift detector
    config: Mapping[str, Any]
    facts: tuple[tuple[int, Fact], ...]  # with their times, oldest first


def to_lines(export: Export) -> Iterator[str]:
    """One line of JSON for the incident, and one for each fact; ASCII, so that lines are lines."""
    head = {
        _FORMAT_KEY: FORMAT,
        "incident": incident_to_plain(export.incident),
        "baselines": export.baselines,
        "config": export.config,
    }
    yield json.dumps(head, allow_nan=False)
    for at, fact in export.facts:
        yield json.dumps({"at": at, **to_plain(fact)}, allow_nan=False)


def from_lines(lines: Iterable[str]) -> Export:
    """An exported incident; ``ValueError`` names the line and the field."""
    head: Mapping[Any, Any] | None = None
    facts: list[tuple[int, Fact]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            plain: Any = _mapping(json.loads(line), "line")
            if head is None:
                head = plain
                _check_head(head)
                continue
            facts.append((_whole(plain.get("at"), "at"), from_plain(plain)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
    if head is None:
        raise ValueError("line 1: is missing; an exported incident begins with the incident")
    incident = incident_from_plain(head["incident"])
    facts.sort(key=lambda one: one[0])
    return Export(incident, head["baselines"], head["config"], tuple(facts))


def _check_head(head: Mapping[Any, Any]) -> None:
    if head.get(_FORMAT_KEY) != FORMAT:
        raise _refuse(_FORMAT_KEY, head.get(_FORMAT_KEY), f"{FORMAT}, the format that is known")
    for name in ("incident", "baselines", "config"):
        _mapping(head.get(name), name)
    incident_from_plain(head["incident"])


# --- the log --------------------------------------------------------------------------------------

_LASTING: Final[dict[type, str]] = {  # what lasts until it is said anew, and by what it is known
    Declared: "replica",
    VersionsSeen: "replica",
    StateChanged: "replica",
    ProcessFrozen: "replica",
    HostSeen: "host",
    ChainDeclared: "name",
    RolloutSeen: "model",
}


@dataclass(slots=True)
class _Concern:
    """Whom an incident concerns, and whom these are compared with."""

    replicas: set[str]
    models: set[str]
    hosts: set[str]
    filesystems: set[str]

    def holds(self, fact: Fact) -> bool:
        """Whether a fact belongs to it."""
        match fact:
            case Looked():
                return True
            case HostSeen():
                return fact.host in self.hosts
            case FilesystemSeen():
                return fact.filesystem in self.filesystems
            case QueueSeen() | RolloutSeen() | CanariesDoubted():
                return fact.model in self.models
            case ChainDeclared():
                return not self.models.isdisjoint(fact.models)
            case Compared() | LineSeen() if fact.peer in self.replicas:
                return True
        return fact.replica in self.replicas


class FactLog:
    """The last facts of a fleet, in a ring, and what outlasts it."""

    __slots__ = ("_kept", "_max", "_ring", "dropped")

    def __init__(self, max_facts: int = 100_000) -> None:
        fix = "use 1 or more; a replica makes two or three facts a second"
        require(max_facts >= 1, "factlog.max_facts", f"is {max_facts}", fix)
        self._max = max_facts
        self._ring: deque[tuple[int, Fact]] = deque()
        self._kept: dict[tuple[str, str], tuple[int, Fact]] = {}
        self.dropped = 0  # that fell out of the ring and were not kept

    def __len__(self) -> int:
        return len(self._ring) + len(self._kept)

    def add(self, fact: Fact, now: int) -> None:
        """One more, in the order of time."""
        self._ring.append((now, fact))
        if len(self._ring) > self._max:
            self._outlast(*self._ring.popleft())

    def _outlast(self, at: int, fact: Fact) -> None:
        kind = type(fact)
        if isinstance(fact, Gone):
            for other, by in _LASTING.items():
                if by == "replica":
                    self._kept.pop((other.__name__, fact.replica), None)
        name = _LASTING.get(kind)
        if name is None:
            self.dropped += 1
            return
        key = (kind.__name__, str(getattr(fact, name)))
        self._kept.pop(key, None)  # so that they stay in the order of time
        self._kept[key] = (at, fact)
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
            self.dropped += 1

    def of(self, incident: Incident) -> list[tuple[int, Fact]]:
        """All that concerns it, oldest first, up to its end where it has ended."""
        facts = [*self._kept.values(), *self._ring]
        concern = _concern(incident, [fact for _, fact in facts])
        end = incident.closed_at
        return [
            (at, fact) for at, fact in facts if (end is None or at <= end) and concern.holds(fact)
        ]


def _concern(incident: Incident, facts: list[Fact]) -> _Concern:
    evidence = [*incident.evidence, *incident.consequences]
    abouts = [incident.about, *(one.about for one in evidence)]
    declared = [fact for fact in facts if isinstance(fact, Declared)]
    replicas = {*incident.replicas, *(one.replica for one in abouts)} - {""}
    for fact in facts:  # a line that names another replica makes it part of the story
        if isinstance(fact, LineSeen | Compared) and fact.peer and fact.replica in replicas:
            replicas.add(fact.peer)
    replicas |= {one.replica for one in declared if _shares(one, incident.about)}
    models = {one.model for one in abouts} | {
        one.model for one in declared if one.replica in replicas
    }
    models.discard("")
    chains = [set(fact.models) for fact in facts if isinstance(fact, ChainDeclared)]
    models |= set().union(*(chain for chain in chains if not chain.isdisjoint(models)))
    replicas |= {one.replica for one in declared if one.model in models}
    there = [one for one in declared if one.replica in replicas]
    hosts = {one.host for one in abouts} | {one.host for one in there}
    filesystems = {one.filesystem for one in abouts} | {one.filesystem for one in there}
    return _Concern(replicas, models, hosts - {""}, filesystems - {""})


def _shares(one: Declared, about: About) -> bool:
    """Whether an incident of a host or a filesystem is one of this replica too."""
    if about.replica:
        return False
    by_host = bool(about.host) and one.host == about.host
    return by_host or (bool(about.filesystem) and one.filesystem == about.filesystem)


__all__ = [
    "FORMAT",
    "KEPT_MAX",
    "Export",
    "FactLog",
    "from_lines",
    "from_plain",
    "incident_from_plain",
    "incident_to_plain",
    "to_lines",
    "to_plain",
]
