"""The mark at the front of a row, and whether the row has a fault.

``!7`` is a row that incident ``inc-000007`` concerns, ``!`` one with a fault without an incident.
Both are letters, because not all people see colours, and a copied message has none.
"""

from typing import Any, Final

from holdfast.core.view.snapshot import IncidentRow, ReplicaRow, SourceRow
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.figure_format import words_span
from holdfast.ui.terminal.top.table import Column

# States in which a replica does its work or is on its way to it, or was asked to leave.
_WELL: Final = frozenset(
    {"ready", "running", "starting", "loading", "warming", "pending", "draining", "stopping"}
)
_SEVERITY: Final = {"dead": 4, "quarantined": 3, "suspect": 2}
_STATES: Final = {
    "ready": Tone.GOOD,
    "running": Tone.GOOD,
    "suspect": Tone.WARN,
    "draining": Tone.WARN,
    "stopping": Tone.WARN,
    "pending": Tone.WARN,
    "quarantined": Tone.BAD,
    "dead": Tone.BAD,
    "stopped": Tone.MUTED,
}


def short_id(incident: str) -> str:
    """The short form of an incident's id: ``7`` for ``inc-000007``; other ids stay as they are."""
    number = incident.rpartition("-")[2]
    return str(int(number)) if number.isascii() and number.isdecimal() else incident


def mark(row: Any) -> str:
    """The mark at the front of a row: its incident, ``!`` for another fault, else empty."""
    incidents: tuple[str, ...] = getattr(row, "incidents", ())
    if incidents:
        return f"!{short_id(incidents[0])}{'+' if len(incidents) > 1 else ''}"
    return "!" if faulty(row) else ""


def faulty(row: Any) -> bool:
    """Whether a row has a fault, an incident or a bad state."""
    if isinstance(row, SourceRow):
        return bool(row.error) or row.age_s is None
    if isinstance(row, ReplicaRow) and row.state not in _WELL and row.state != "stopped":
        return True
    return bool(getattr(row, "faults", ()) or getattr(row, "incidents", ()))


def severity(row: Any) -> int:
    """How urgent a row is, for sorting; higher is worse."""
    if isinstance(row, ReplicaRow):
        return _SEVERITY.get(row.state, int(faulty(row)))
    return int(faulty(row))


def about(row: Any) -> str:
    """All faults of a row in one line."""
    reason = getattr(row, "reason", "")
    told = (reason, *getattr(row, "faults", ()))
    return "; ".join(dict.fromkeys(part for part in told if part))


def about_source(row: SourceRow) -> str:
    """What is wrong with a part of a source."""
    if not row.error:
        return "" if row.age_s is not None else "not read yet"
    lasting = f" for {words_span(row.failing_s)}" if row.failing_s is not None else ""
    return f"fails{lasting}: {row.error}"


def about_incident(row: IncidentRow) -> str:
    """The advice for an incident."""
    return row.fix or row.action or row.title


def wrong_tone(row: Any) -> Tone:
    """The tone of a text about faults: bad if there is a fault."""
    return Tone.BAD if getattr(row, "incidents", ()) or faulty(row) else Tone.PLAIN


def name_tone(row: Any) -> Tone:
    """The tone of a row's name."""
    return Tone.BAD if faulty(row) else Tone.STRONG


def state_tone(state: str) -> Tone:
    """The tone of a replica's state."""
    return _STATES.get(state, Tone.INFO)


MARK: Final = Column("", mark, tone=wrong_tone, left=True, wide=2)
INCIDENT: Final = Column(
    "incident", lambda row: ", ".join(row.incidents[:2]), rank=60, tone=wrong_tone, left=True
)
WRONG: Final = Column(
    "what is wrong",
    lambda row: "; ".join(row.faults),
    rank=70,
    tone=wrong_tone,
    left=True,
    least=24,
)

__all__ = [
    "INCIDENT",
    "MARK",
    "WRONG",
    "about",
    "about_incident",
    "about_source",
    "faulty",
    "mark",
    "name_tone",
    "severity",
    "short_id",
    "state_tone",
    "wrong_tone",
]
