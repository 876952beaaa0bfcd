"""Converts facts and incidents to JSON and back: for exports, the store and fact reports.

    {"holdfast_incident": 1, "incident": {…}, "baselines": {…}, "config": {…}}
    {"at": 1234, "kind": "ProcessEnded", "replica": "r1", …}

The first line of an export is the incident, each further line one fact with its core time. The name
of a kind stands in ``FACT_NAMES``, beside the facts. Fields are read and written as the dataclasses
declare them, so that a new field needs nothing here; a field with a default may be missing, and one
that is unknown is refused. JSON has no number for NaN and infinity: they are written as text.
Rejected: pickle, which runs what it reads.
"""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import inf, isfinite, isnan, nan
from typing import Any, Final

import msgspec

from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.facts import FACT_NAMES, Fact
from holdfast.core.diagnose.replay import IncidentExport

FORMAT: Final = 1  # of an exported incident; another number is refused
PACKED_BYTES_MAX: Final = 2 << 20  # of one export; some 100,000 facts
_FORMAT_KEY: Final = "holdfast_incident"
_UNBOUNDED: Final = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}
_MISSING: Final = "Object missing required field "  # as msgspec says it
_SHOWN_CHARS: Final = 60  # of a value that is refused

_KINDS: Final[dict[str, Any]] = {name: kind for kind, name in FACT_NAMES.items()}
_FIELDS: Final = {kind: tuple(one.name for one in fields(kind)) for kind in FACT_NAMES}
_NUMBERS: Final = {  # fields whose numbers may be infinite
    kind: tuple(one.name for one in fields(kind) if "float" in str(one.type)) for kind in FACT_NAMES
}
_BESIDE: Final = ("kind", "at")  # members of a line that are no fields of its fact
_INCIDENT_KEYS: Final = (
    *("id", "cause", "class", "title", "stage", "about", "replicas", "opened_at", "changed_at"),
    *("closed_at", "confidence", "evidence", "consequences", "other_causes", "timeline"),
    *("remedy", "action", "fix", "other_revisions"),
)
_INCIDENT_FIELDS: Final = tuple(one.name for one in fields(Incident))


def _finite(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(isfinite, value))
    return not isinstance(value, float) or isfinite(value)


def _worded(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by text."""
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _worded(one) for key, one in value.items()}
    return [_worded(one) for one in value] if isinstance(value, list | tuple) else value


def _unworded(value: Any) -> Any:
    """Turn the texts for NaN and infinity back into numbers."""
    if isinstance(value, str):
        return _UNBOUNDED.get(value, value)
    if isinstance(value, Mapping):
        return {key: _unworded(one) for key, one in value.items()}
    return [_unworded(one) for one in value] if isinstance(value, list) else value


def _convert(plain: Mapping[str, Any], kind: Any, where: str) -> Any:
    """Build a dataclass from its members; ``ValueError`` names the member that cannot be read."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
        place = where + path.replace("`", "").replace("key in ", "").removeprefix("$")
        if problem.startswith(_MISSING):
            name = problem.removeprefix(_MISSING).strip("`")
            raise ValueError(f"{place}.{name}: is missing; it has no default") from error
        raise ValueError(f"{place}: {problem[:1].lower()}{problem[1:]}") from error


def _refuse_unknown(given: Iterable[str], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{where}.{name}: is unknown; use {', '.join(known)}")


def fact_line(at: int, fact: Fact) -> bytes:
    """Encode a fact as one line of an export, with its kind and its core time (ns). No newline."""
    start = b'{"at":%d,"kind":"%s"' % (at, FACT_NAMES[type(fact)].encode())
    if all(_finite(getattr(fact, name)) for name in _NUMBERS[type(fact)]):
        body = msgspec.json.encode(fact)
    else:
        body = msgspec.json.encode(_worded(msgspec.to_builtins(fact)))
    return start + (b"}" if body == b"{}" else b"," + body[1:])


def fact_from_plain(plain: Mapping[str, Any]) -> Fact:
    """Decode a fact from a plain dict with ``kind``; ``at`` is ignored.

    Raises ``ValueError`` that names an unknown kind, or the member that is missing, unknown or
    wrong.
    """
    name = plain.get("kind")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        shown = repr(name)[:_SHOWN_CHARS]
        raise ValueError(f"kind: is {shown}; use one of {', '.join(_KINDS)}")
    own = {key: value for key, value in plain.items() if key not in _BESIDE}
    _refuse_unknown(own, _FIELDS[kind], str(name))
    for number in _NUMBERS[kind]:
        if number in own:
            own[number] = _unworded(own[number])
    fact: Fact = _convert(own, kind, str(name))
    return fact


def incident_to_plain(incident: Incident) -> dict[str, Any]:
    """Convert an incident to plain JSON data: every field, and its title; times stay core time."""
    plain = _worded(msgspec.to_builtins(incident))
    plain |= {"class": plain["failure_class"], "title": incident.title}
    return {key: plain[key] for key in _INCIDENT_KEYS}


def incident_from_plain(plain: Mapping[str, Any]) -> Incident:
    """Decode an incident from ``incident_to_plain`` data.

    Raises ``ValueError`` that names the member that is missing, unknown or wrong.
    """
    own = {name: value for name, value in plain.items() if name not in ("title", "class")}
    if "class" not in plain:
        raise ValueError("incident.class: is missing; it has no default")
    _refuse_unknown(own, _INCIDENT_FIELDS, "incident")
    own["failure_class"] = plain["class"]
    own["confidence"] = _unworded(own.get("confidence"))
    for part in ("evidence", "consequences"):
        rows = own.get(part)
        if isinstance(rows, list):
            own[part] = [
                {**row, "numbers": _unworded(row.get("numbers", {}))}
                if isinstance(row, Mapping)
                else row
                for row in rows
            ]
    incident: Incident = _convert(own, Incident, "incident")
    return incident


def export_head(
    plain: Mapping[str, Any], baselines: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the first line of an export, as a dict: format, incident, baselines and config."""
    return {_FORMAT_KEY: FORMAT, "incident": plain, "baselines": baselines, "config": config}


def read_export(lines: Iterable[str | bytes]) -> IncidentExport:
    """Decode an exported incident from its lines, with its facts in order of time.

    Blank lines are skipped. Raises ``ValueError`` that names the line and the member that cannot be
    read.
    """
    head: Mapping[str, Any] | None = None
    incident: Incident | None = None
    facts: list[tuple[int, Fact]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            plain = _members(msgspec.json.decode(line), "line")
            if head is None:
                head, incident = plain, _check_head(plain)
            else:
                facts.append((_time(plain.get("at")), fact_from_plain(plain)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error
    if head is None or incident is None:
        raise ValueError("line 1: is missing; an exported incident begins with the incident")
    facts.sort(key=lambda row: row[0])
    return IncidentExport(incident, head["baselines"], head["config"], tuple(facts))


def _check_head(head: Mapping[str, Any]) -> Incident:
    if head.get(_FORMAT_KEY) != FORMAT:
        shown = repr(head.get(_FORMAT_KEY))[:_SHOWN_CHARS]
        raise ValueError(f"{_FORMAT_KEY}: is {shown}; use {FORMAT}, the format that is known")
    for name in ("incident", "baselines", "config"):
        _members(head.get(name), name)
    return incident_from_plain(head["incident"])


def _time(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(value)[:_SHOWN_CHARS]
        raise ValueError(f"at: is {shown}; use a whole number")  # noqa: TRY004 - a file
    return value


def _members(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        shown = repr(value)[:_SHOWN_CHARS]
        raise ValueError(f"{where}: is {shown}; use an object")  # noqa: TRY004 - a file
    return value


def pack_lines(lines: Iterable[bytes]) -> bytes | None:
    """Compress the lines of an export for the store; ``None`` above 2 MiB compressed."""
    packer = zlib.compressobj(6)
    parts: list[bytes] = []
    size = 0
    for line in lines:
        parts.append(packer.compress(line + b"\n"))
        size += len(parts[-1])
        if size > PACKED_BYTES_MAX:
            return None
    parts.append(packer.flush())
    return b"".join(parts)


def unpack_lines(packed: bytes) -> list[bytes]:
    """Decompress the lines that ``pack_lines`` compressed."""
    return zlib.decompress(packed).splitlines()


__all__ = [
    "FORMAT",
    "PACKED_BYTES_MAX",
    "export_head",
    "fact_from_plain",
    "fact_line",
    "incident_from_plain",
    "incident_to_plain",
    "pack_lines",
    "read_export",
    "unpack_lines",
]
