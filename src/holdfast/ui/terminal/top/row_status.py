"""What stands at the front of a row, and whether something is wrong with it.

``!7`` is a row that incident ``inc-000007`` concerns, ``!`` one with a fault that no incident tells
of. Both are letters, because a colour is not seen by everybody and not copied into a message.
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
    """``7`` for ``inc-000007``; what is named otherwise stays as it is."""
    number = incident.rpartition("-")[2]
    return str(int(number)) if number.isascii() and number.isdecimal() else incident


def mark(row: Any) -> str:
    """The front of a row."""
    incidents: tuple[str, ...] = getattr(row, "incidents", ())
    if incidents:
        return f"!{short_id(incidents[0])}{'+' if len(incidents) > 1 else ''}"
    return "!" if faulty(row) else ""


def faulty(row: Any) -> bool:
    """Whether it belongs on the list of what is wrong."""
    if isinstance(row, SourceRow):
        return bool(row.error) or row.age_s is None
    if isinstance(row, ReplicaRow) and row.state not in _WELL and row.state != "stopped":
        return True
    return bool(getattr(row, "faults", ()) or getattr(row, "incidents", ()))


def severity(row: Any) -> int:
    """What comes first where somebody looks for what is wrong: the higher."""
    if isinstance(row, ReplicaRow):
        return _SEVERITY.get(row.state, int(faulty(row)))
    return int(faulty(row))


def about(row: Any) -> str:
    """All that is wrong with it, in one line."""
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
    """What should be done about one."""
    return row.fix or row.action or row.title


def wrong_tone(row: Any) -> Tone:
    """Of text that tells of a fault, where there is one."""
    return Tone.BAD if getattr(row, "incidents", ()) or faulty(row) else Tone.PLAIN


def name_tone(row: Any) -> Tone:
    """Of the name of a row."""
    return Tone.BAD if faulty(row) else Tone.STRONG


def state_tone(state: str) -> Tone:
    """Of the word for a replica's state."""
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
