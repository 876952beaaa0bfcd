"""Runs the facts of an exported incident through the diagnosis again.

    an export: config, baselines and facts ─► a fresh Investigation ─► the incident found now

The export holds all that the verdict was based on, so a doubted verdict can be followed step by
step, and a changed rule can be tested on last month's incidents. Nothing of the expected incident
is shown to the investigation; it only serves to find its counterpart afterwards.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from holdfast.core.diagnose.evidence import Incident
from holdfast.core.diagnose.facts import Fact
from holdfast.core.diagnose.investigation import Investigation, InvestigationConfig


@dataclass(slots=True, frozen=True)
class IncidentExport:
    """A record of one incident with the config, baselines and facts that reproduce its verdict."""

    incident: Incident
    baselines: Mapping[str, Any]  # plain data of the drift detector
    config: Mapping[str, Any]  # plain data of the ``InvestigationConfig``
    facts: tuple[tuple[int, Fact], ...]  # with their core times, oldest first


def config_to_plain(config: InvestigationConfig) -> dict[str, Any]:
    """Return the config as nested dicts, for JSON; ``config_from_plain`` reads them back."""
    return asdict(config)


def config_from_plain(plain: Mapping[str, Any]) -> InvestigationConfig:
    """Build the config from plain data; defaults fill gaps.

    Raises ``ValueError`` for unknown names and for values that a part refuses.
    """
    parts: dict[str, Any] = {}
    known = {one.name: one for one in fields(InvestigationConfig)}
    for name, values in plain.items():
        if name not in known or not isinstance(values, Mapping):
            raise ValueError(f"config.{name}: is not a part of the configuration")
        part: Any = known[name].type
        own = {one.name for one in fields(part)}
        unknown = sorted(set(values) - own)
        if unknown:
            raise ValueError(f"config.{name}.{unknown[0]}: is not a part of the configuration")
        read = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        parts[name] = part(**read)
    return InvestigationConfig(**parts)


def replay(export: IncidentExport) -> Incident | None:
    """Run an export's facts through a fresh investigation; return the incident it finds.

    Of several the most like the exported one, with the id and cause it gets now; ``None`` if none
    is about the same model, host, filesystem or replicas. Compares no causes and carries nothing
    out.
    """
    investigation = Investigation(config_from_plain(export.config), baselines=export.baselines)
    for at, fact in export.facts:
        investigation.take(fact, at)
    expected = export.incident
    found = [one for one in investigation.incidents.values() if _overlap(one, expected)]
    return max(found, key=lambda one: _likeness(one, expected), default=None)


def _overlap(one: Incident, other: Incident) -> bool:
    """Whether they can be about the same thing at all."""
    places = ("model", "host", "filesystem")
    shared = any(getattr(one.about, name) == getattr(other.about, name) != "" for name in places)
    return shared or one.about == other.about or not set(one.replicas).isdisjoint(other.replicas)


def _likeness(one: Incident, other: Incident) -> tuple[bool, int, int]:
    together = len(set(one.replicas) & set(other.replicas))
    return one.about == other.about, together, -abs(one.opened_at - other.opened_at)


__all__ = ["IncidentExport", "config_from_plain", "config_to_plain", "replay"]
