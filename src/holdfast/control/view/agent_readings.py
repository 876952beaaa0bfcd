"""Prepares agents' readings for the view: corrects their clocks and marks silent agents.

Clocks of hosts differ. Ages are counted from when a report *arrived*. Times inside a reading are
shifted by the clock difference that the report shows, and by the same difference until it changes
clearly: otherwise every report would shift every row by its own network delay.

A shared filesystem is reported by each host that mounts it, and each knows only its own share of
the traffic. Together they are one row.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from holdfast.core.view.layers import Disk, Part, Placed, Reading
from holdfast.sources.agent_report import AgentReport

CLOCK_NOTED_S: Final = 5.0
_MONTH_S: Final = 30 * 86_400.0
_TIMES: Final = frozenset(
    {"at", "failing_since", "launched_at", "joined_at", "created_at", "started_at", "stopped_at"}
    | {"spoke_at", "since"}
)

RowT = TypeVar("RowT")


@dataclass(slots=True)
class AgentRecord:
    """The last report of one agent, with its arrival time, clock offset and allowance.

    ``reading`` is its reading in control's time.
    """

    report: AgentReport
    arrived: float  # by a clock that goes forward
    arrived_at: float  # seconds since 1970
    offset_s: float  # to be added to its times
    tokens: float  # reports that it may send at once
    number: int = 0  # of the last thing that was taken
    before: str = ""  # the life before this one
    reports: int = 0
    name: str = ""
    reading: Reading = field(init=False)

    def __post_init__(self) -> None:
        self.reading = in_our_time(self.report.reading, self.offset_s)


def shown(name: str, agent: AgentRecord, silent_s: float | None, wall: float) -> Reading:
    """One agent's last reading as the view shows it.

    If ``silent_s`` is given, its first part says for how long it is silent, and its host is marked.
    Shared filesystems are left out: ``summed`` has them.
    """
    reading = agent.reading
    took_s = round(sum(part.took_s for part in reading.parts), 6)
    own = Part("report", at=agent.arrived_at, calls=1, took_s=took_s)
    hosts, parts = reading.hosts, reading.parts
    if silent_s is not None:
        told = f"no report for {silent_s:.0f} s"
        own = replace(own, error=told, failing_since=agent.arrived_at)
        hosts = tuple(replace(host, state="silent", devices=()) for host in hosts)
        parts = ()
    return replace(
        reading,
        source=name,
        kind="agent",
        at=wall,
        parts=(own, *(part for part in parts if part.name != own.name)),
        hosts=hosts,
        disks=(),
        notes=tuple(_notes(agent)),
    )


def summed(readings: list[Reading]) -> tuple[Disk, ...]:
    """Merge hosts' rows of shared filesystems into one row each.

    Rates are added, hosts counted as clients; size and free space are the first known ones.
    """
    by_name: dict[str, list[Disk]] = {}
    for reading in readings:
        for disk in reading.disks:
            by_name.setdefault(disk.id, []).append(disk)
    return tuple(
        replace(
            rows[0],
            read_bytes_s=_sum([row.read_bytes_s for row in rows]),
            operations_s=_sum([row.operations_s for row in rows]),
            size_bytes=next((row.size_bytes for row in rows if row.size_bytes is not None), None),
            free_bytes=next((row.free_bytes for row in rows if row.free_bytes is not None), None),
            clients=len(rows),
        )
        for rows in by_name.values()
    )


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 1) if known else None


def faded(row: Placed) -> Placed:
    """A copy of a row without its measured figures, because its agent is silent.

    What and where the replica is stays.
    """
    return replace(
        row, used_bytes=None, read_bytes=None, spoke_at=None, gpu_used_bytes=None, gpu=None
    )


def _notes(agent: AgentRecord) -> list[str]:
    own = agent.report.own
    notes = list(agent.reading.notes)
    if abs(agent.offset_s) > CLOCK_NOTED_S:
        way = "behind" if agent.offset_s > 0 else "ahead"
        notes.append(f"its clock is {abs(agent.offset_s):.0f} s {way}; times were corrected")
    if own.dropped:
        notes.append(f"{own.dropped} things of its logs were dropped before they could be told")
    if own.skipped_bytes:
        notes.append(f"{own.skipped_bytes} bytes of logs came faster than they are read")
    return notes


def in_our_time(reading: Reading, offset_s: float) -> Reading:
    """A copy of a reading with all times shifted by ``offset_s`` to control's clock.

    Times before February 1970 become None; queues and wanted replicas are left out, as no agent can
    know them.
    """
    return replace(
        reading,
        parts=tuple(_moved(row, offset_s) for row in reading.parts),
        hosts=tuple(_moved(row, offset_s) for row in reading.hosts),
        placed=tuple(_moved(row, offset_s) for row in reading.placed),
        queues=(),  # an agent sees a host; who speaks of queues and wishes is no agent
        wishes=(),
    )


def _moved(row: RowT, offset_s: float) -> RowT:
    times: dict[str, Any] = {}
    for one in fields(row):  # type: ignore[arg-type]
        value = getattr(row, one.name)
        if one.name in _TIMES and value is not None:
            times[one.name] = value + offset_s if value > _MONTH_S else None
    return replace(row, **times) if times else row  # type: ignore[type-var]


__all__ = ["CLOCK_NOTED_S", "AgentRecord", "faded", "in_our_time", "shown", "summed"]
