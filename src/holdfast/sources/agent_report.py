"""The report that an agent sends to control: one reading, and new log events of its host.

    {"life": …, "at": …, "period_s": 5, "reading": {…}, "lines": [{"mark": …}], "phases": […], …}

Both sides read this one description, and a report that does not fit it is refused with the name
of the field. Events are numbered, because an answer can be lost on its way back: an event that
is sent again is recognised by its number. Events carry their *age*, never a time of day: clocks
of hosts differ by more than a detector's patience. Of a log line only its mark is sent; its text
may hold what users wrote.

Unknown fields are ignored, so that a newer agent can report to an older control.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.core.diagnose.facts import Mark
from holdfast.core.view.layers import Reading

REPORT_BYTES_MAX: Final = 256 << 10  # 64 replicas, each with a line, are some 40 KB
THINGS_MAX: Final = 256  # lines, phases and faults of one report, each
ROWS_MAX: Final = 256  # of one kind in a reading
TEXT_CHARS_MAX: Final = 256
NUMBER_MAX: Final = 1e18  # an exabyte

Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
Age = Annotated[float, Meta(ge=0, le=86_400)]
Number = Annotated[int, Meta(ge=0)]
PhaseName = Literal["starting", "loading", "compile", "warm-up", "serving"]


class ReportedLine(msgspec.Struct, frozen=True):
    """A log line of a replica that has a known meaning, sent as its mark."""

    number: Number
    age_s: Age
    replica: Name
    mark: Mark
    peer: Text = ""  # an address that it names


class ReportedPhase(msgspec.Struct, frozen=True):
    """The phase of loading that a replica's log shows."""

    number: Number
    age_s: Age
    replica: Name
    phase: PhaseName


class ReportedGpuFault(msgspec.Struct, frozen=True):
    """A GPU fault (Xid) that the driver reported for a GPU of a replica."""

    number: Number
    age_s: Age
    replica: Name
    xid: Number
    fatal: bool
    detail: Text = ""


ReportedEvent = ReportedLine | ReportedPhase | ReportedGpuFault


class AgentStatus(msgspec.Struct, frozen=True):
    """State of the agent itself: its version, memory, CPU use, and what it had to drop."""

    version: Text = ""
    rss_bytes: Number | None = None
    cpu_share: Annotated[float, Meta(ge=0)] | None = None  # of one CPU, since its start
    dropped: Number = 0  # things that were never told, for want of room or for their age
    skipped_bytes: Number = 0  # of logs, which came faster than they are read


class AgentReport(msgspec.Struct, frozen=True):
    """One report of an agent: a reading of its host and the events since the last report."""

    life: Name  # of the agent's process: the next one begins its numbers anew
    at: Annotated[float, Meta(gt=0, le=1e11)]  # by the agent's clock, when it was sent
    period_s: Annotated[float, Meta(ge=1, le=300)]
    reading: Reading
    lines: Annotated[tuple[ReportedLine, ...], Meta(max_length=THINGS_MAX)] = ()
    phases: Annotated[tuple[ReportedPhase, ...], Meta(max_length=THINGS_MAX)] = ()
    faults: Annotated[tuple[ReportedGpuFault, ...], Meta(max_length=THINGS_MAX)] = ()
    own: AgentStatus = AgentStatus()
    leaving: bool = False  # it was told to end: this is its last


class BadAgentReportError(Exception):
    """A report was refused; the text names the field."""


_DECODER: Final = msgspec.json.Decoder(AgentReport)
_ENCODER: Final = msgspec.json.Encoder()


def encode(report: AgentReport) -> bytes:
    """Encode a report as JSON bytes."""
    return _ENCODER.encode(report)


def decode(body: bytes) -> AgentReport:
    """Decode and check a report; raises ``BadAgentReportError`` where it does not fit."""
    try:
        report = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise BadAgentReportError(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAgentReportError("the body is no JSON") from error
    for where, problem in _problems(report.reading):
        raise BadAgentReportError(f"{problem} - at `$.reading.{where}`")
    return report


def _problems(reading: Reading) -> Iterator[tuple[str, str]]:
    """What the description above cannot say of a reading, which is a plain dataclass."""
    for field in fields(reading):
        value = getattr(reading, field.name)
        if not isinstance(value, tuple):
            yield from _value(field.name, value)
            continue
        if len(value) > ROWS_MAX:
            yield field.name, f"Expected at most {ROWS_MAX} rows, got {len(value)}"
        for index, row in enumerate(value):
            yield from _row(f"{field.name}[{index}]", row)


def _row(where: str, row: Any) -> Iterator[tuple[str, str]]:
    if not is_dataclass(row):
        yield from _value(where, row)
        return
    for field in fields(row):
        yield from _value(f"{where}.{field.name}", getattr(row, field.name))


def _value(where: str, value: object) -> Iterator[tuple[str, str]]:
    if is_dataclass(value):  # figures of GPUs, inside the row of a host or of a replica
        yield from _row(where, value)
    elif isinstance(value, tuple):
        if len(value) > ROWS_MAX:
            yield where, f"Expected at most {ROWS_MAX} things, got {len(value)}"
        for one in value:
            yield from _value(where, one)
    elif isinstance(value, str):
        if len(value) > TEXT_CHARS_MAX or not value.isprintable():
            yield where, f"Expected a line of at most {TEXT_CHARS_MAX} characters"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        # Exit codes are negative for signals, and nothing else is.
        least = -256 if where.endswith(".exit_code") else 0
        if not isfinite(value) or not least <= value <= NUMBER_MAX:
            yield where, f"Expected a number from {least} to {NUMBER_MAX:g}"


__all__ = [
    "REPORT_BYTES_MAX",
    "ROWS_MAX",
    "TEXT_CHARS_MAX",
    "THINGS_MAX",
    "AgentReport",
    "AgentStatus",
    "BadAgentReportError",
    "ReportedEvent",
    "ReportedGpuFault",
    "ReportedLine",
    "ReportedPhase",
    "decode",
    "encode",
]
