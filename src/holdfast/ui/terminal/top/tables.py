"""Tables of platforms: groups, hosts, filesystems, and the sources themselves.

The first column is the mark, the second the name, under the title of its section. Memory of groups
and hosts is what is *reserved* against what there is, because that is what a platform places by;
what is really in use stands beside it, and the two differ where a reservation is wrong.
"""

from typing import Any, Final

from holdfast.core.view.snapshot import HostRow, SourceRow
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.columns import (
    AGE,
    age,
    bad,
    fill_tone,
    info,
    muted,
    name_column,
    uptime,
)
from holdfast.ui.terminal.top.figure_format import (
    UNKNOWN,
    bar,
    count,
    latency,
    left_of,
    of_total,
    share,
    size,
    span,
)
from holdfast.ui.terminal.top.gpu_columns import gpu_columns
from holdfast.ui.terminal.top.row_status import (
    INCIDENT,
    MARK,
    WRONG,
    about,
    about_source,
    faulty,
    mark,
    severity,
)
from holdfast.ui.terminal.top.table import Column, Table


def _reserved(row: Any) -> float | None:
    """What is taken, as the platform counts it; where nobody reserves, what is in use."""
    found: float | None = row.used_bytes if row.reserved_bytes is None else row.reserved_bytes
    return found


def _memory_tone(row: Any) -> Tone:
    part = _reserved(row)
    if part is None or not row.memory_bytes:
        return Tone.PLAIN
    return fill_tone(part / row.memory_bytes)


def _tasks(row: Any) -> str:
    if row.running is None and row.pending is None:
        return UNKNOWN
    return f"{count(row.running or 0)}+{count(row.pending or 0)}"


def _tasks_tone(row: Any) -> Tone:
    return Tone.WARN if row.pending else Tone.PLAIN


def _used_tone(row: Any) -> Tone:
    """More in use than was set aside: what a platform does not see."""
    more = row.used_bytes and row.reserved_bytes and row.used_bytes > row.reserved_bytes
    return Tone.WARN if more else Tone.MUTED


def _used(row: Any) -> str:
    return f"{size(row.used_bytes)}{'!' if _used_tone(row) is Tone.WARN else ''}"


def _resources() -> tuple[Column, ...]:
    """Of a group and of a host alike."""
    return (
        Column(
            "cpu left",
            lambda row: left_of(row.cpus_free, row.cpus),
            rank=4,
            order=lambda row: row.cpus_free,
        ),
        Column(
            "memory",
            lambda row: of_total(_reserved(row), row.memory_bytes),
            rank=1,
            tone=_memory_tone,
            wide=8,
            order=_reserved,
        ),
        Column("in use", _used, rank=20, tone=_used_tone, wide=5, order=lambda row: row.used_bytes),
        Column(
            "gpu free",
            lambda row: left_of(row.gpus_free, row.gpus) if row.gpus else UNKNOWN,
            rank=2,
            order=lambda row: row.gpus_free,
        ),
        Column("task", _tasks, rank=3, tone=_tasks_tone, wide=4, order=lambda row: row.running),
    )


_UP: Final = Column("up", uptime, rank=8, wide=3, order=lambda row: row.uptime_s)
_TYPE: Final = Column("type", lambda row: row.kind, rank=7, left=True, least=10)
_MARKET: Final = Column("market", lambda row: row.market, rank=9, left=True, least=6)

GROUPS: Final = Table(
    "groups",
    "GROUPS",
    (
        MARK,
        name_column(lambda row: row.name),
        _TYPE,
        _MARKET,
        _UP,
        *_resources(),
        Column(
            "hosts",
            lambda row: f"{row.hosts}" + ("" if row.desired is None else f"/{row.desired}"),
            rank=12,
            order=lambda row: row.hosts,
        ),
        AGE,
        INCIDENT,
        WRONG,
    ),
    key=lambda row: f"{row.source}/{row.name}",
    faulty=faulty,
    about=about,
    severity=severity,
)


def _pressure_tone(row: HostRow) -> Tone:
    if row.pressure is None or row.pressure < 0.1:
        return Tone.PLAIN
    return Tone.WARN if row.pressure < 0.4 else Tone.BAD


HOSTS: Final = Table(
    "hosts",
    "HOSTS",
    (
        MARK,
        name_column(lambda row: row.id, 10),
        Column("group", lambda row: row.group, rank=10, left=True, least=12),
        _TYPE,
        _MARKET,
        _UP,
        *_resources(),
        *gpu_columns(11),
        Column("state", lambda row: row.state, rank=15, left=True),
        Column(
            "stall",
            lambda row: share(row.pressure),
            rank=14,
            tone=_pressure_tone,
            order=lambda row: row.pressure,
        ),
        Column("cuda", lambda row: row.cuda, rank=24, left=True),
        Column("driver", lambda row: row.driver, rank=41, left=True),
        Column("zone", lambda row: row.zone, rank=40, left=True),
        Column(
            "boot", lambda row: span(row.bootstrap_s), rank=45, order=lambda row: row.bootstrap_s
        ),
        AGE,
        INCIDENT,
        WRONG,
    ),
    key=lambda row: f"{row.source}/{row.id}",
    faulty=faulty,
    about=about,
    severity=severity,
)


def _per_second(value: float | None) -> str:
    return UNKNOWN if value is None else f"{size(value)}/s"


DISKS: Final = Table(
    "disks",
    "FILESYSTEMS",
    (
        MARK,
        name_column(lambda row: row.id),
        Column("mode", lambda row: row.mode, rank=5, left=True),
        Column(
            "reads",
            lambda row: _per_second(row.read_bytes_s),
            rank=4,
            wide=7,
            order=lambda row: row.read_bytes_s,
        ),
        Column(
            "of permitted",
            lambda row: share(row.used_share),
            rank=1,
            tone=lambda row: fill_tone(row.used_share),
            order=lambda row: row.used_share,
        ),
        Column("", lambda row: bar(row.used_share, 8), rank=30, tone=info, left=True, wide=8),
        Column(
            "metered",
            lambda row: of_total(row.metered_bytes_s, row.permitted_bytes_s),
            rank=12,
            order=lambda row: row.metered_bytes_s,
        ),
        Column(
            "operations",
            lambda row: share(row.operations_share),
            rank=2,
            tone=lambda row: fill_tone(row.operations_share),
            order=lambda row: row.operations_share,
        ),
        Column(
            "credit",
            lambda row: size(row.burst_credit_bytes),
            rank=6,
            order=lambda row: row.burst_credit_bytes,
        ),
        Column("clients", lambda row: count(row.clients), rank=8, order=lambda row: row.clients),
        AGE,
        INCIDENT,
        WRONG,
    ),
    key=lambda row: f"{row.source}/{row.id}",
    faulty=faulty,
    about=about,
    severity=severity,
)


def _error_tone(row: SourceRow) -> Tone:
    return Tone.BAD if row.error else Tone.GOOD


SOURCES: Final = Table(
    "sources",
    "SOURCES",
    (
        Column("", mark, tone=bad, left=True, wide=2),
        name_column(lambda row: f"{row.source} {row.part}"),
        Column("kind", lambda row: row.kind, rank=20, tone=muted, left=True),
        Column("age", age, order=lambda row: row.age_s),
        Column("calls", lambda row: count(row.calls), rank=10, order=lambda row: row.calls),
        Column("took", lambda row: latency(row.took_s), rank=11, order=lambda row: row.took_s),
        Column(
            "how it is",
            lambda row: about_source(row) or "read well",
            tone=_error_tone,
            left=True,
            least=20,
        ),
    ),
    key=lambda row: f"{row.source}/{row.part}",
    faulty=faulty,
    about=about_source,
    severity=severity,
)

__all__ = ["DISKS", "GROUPS", "HOSTS", "SOURCES"]
