"""Tables of the fleet: replicas, models, queues, unmet demands, incidents."""

from typing import Final

from holdfast.core.view.snapshot import ModelRow, QueueRow, ReplicaRow
from holdfast.ui.terminal.top.colours import Tone
from holdfast.ui.terminal.top.columns import (
    AGE,
    SOURCE,
    age,
    age_tone,
    bad,
    fill_tone,
    info,
    muted,
    name_column,
    strong,
    uptime,
)
from holdfast.ui.terminal.top.figure_format import (
    bar,
    count,
    latency,
    of_total,
    rate,
    share,
    span,
)
from holdfast.ui.terminal.top.gpu_columns import gpu_columns
from holdfast.ui.terminal.top.row_status import (
    INCIDENT,
    MARK,
    WRONG,
    about,
    about_incident,
    faulty,
    severity,
    short_id,
    state_tone,
    wrong_tone,
)
from holdfast.ui.terminal.top.table import Column, Table

_SERVING: Final = frozenset({"ready", "running"})


def _limit(row: ReplicaRow) -> int | None:
    return row.reserved_bytes if row.limit_bytes is None else row.limit_bytes


def _footprint(row: ReplicaRow) -> str:
    sign = "!" if _footprint_tone(row) is Tone.BAD else ""
    return f"{of_total(row.used_bytes, _limit(row))}{sign}"


def _footprint_tone(row: ReplicaRow) -> Tone:
    limit = _limit(row)
    if row.used_bytes is None or not limit:
        return Tone.PLAIN
    return fill_tone(row.used_bytes / limit)


def _silence_tone(row: ReplicaRow) -> Tone:
    """Silence is judged by those who know how often it speaks; here it is only shown."""
    return Tone.BAD if faulty(row) and (row.silent_s or 0) >= 60 else Tone.MUTED


def _why(row: ReplicaRow) -> str:
    """Of one that serves, only what is wrong: why it may serve is no news."""
    return about(row) if faulty(row) or row.state not in _SERVING else ""


REPLICAS: Final = Table(
    "replicas",
    "REPLICAS",
    (
        MARK,
        name_column(lambda row: row.id, 12),
        Column(
            "state",
            lambda row: row.state,
            tone=lambda row: state_tone(row.state),
            left=True,
            wide=7,
        ),
        Column("model", lambda row: row.model, rank=6, left=True, least=8),
        Column(
            "memory",
            _footprint,
            rank=2,
            tone=_footprint_tone,
            wide=8,
            order=lambda row: row.used_bytes,
        ),
        Column(
            "full in",
            lambda row: span(row.exhausted_in_s),
            rank=3,
            tone=bad,
            order=lambda row: row.exhausted_in_s,
        ),
        *gpu_columns(7),
        Column("busy", lambda row: count(row.inflight), rank=4, order=lambda row: row.inflight),
        Column("wait", lambda row: count(row.waiting), rank=5, order=lambda row: row.waiting),
        Column(
            "kv",
            lambda row: share(row.kv_used),
            rank=14,
            tone=lambda row: fill_tone(row.kv_used),
            wide=4,
            order=lambda row: row.kv_used,
        ),
        Column(
            "tok/s", lambda row: rate(row.tokens_s), rank=10, wide=5, order=lambda row: row.tokens_s
        ),
        Column(
            "ttft", lambda row: latency(row.ttft_s), rank=9, wide=5, order=lambda row: row.ttft_s
        ),
        Column(
            "canary",
            lambda row: latency(row.canary_s),
            rank=18,
            wide=5,
            order=lambda row: row.canary_s,
        ),
        Column(
            "silent",
            lambda row: span(row.silent_s),
            rank=12,
            tone=_silence_tone,
            order=lambda row: row.silent_s,
        ),
        Column("phase", lambda row: row.phase, rank=31, left=True),
        Column(
            "restarts", lambda row: count(row.restarts), rank=16, order=lambda row: row.restarts
        ),
        Column("up", uptime, rank=11, wide=3, order=lambda row: row.uptime_s),
        Column("share", lambda row: share(row.share), rank=20, wide=4, order=lambda row: row.share),
        Column("host", lambda row: row.host, rank=22, left=True, least=8),
        Column("group", lambda row: row.group, rank=30, left=True, least=10),
        Column("rev", lambda row: row.revision, rank=42, left=True),
        Column("zone", lambda row: row.zone, rank=44, left=True),
        AGE,
        INCIDENT,
        Column(
            "why",
            _why,
            rank=13,
            tone=wrong_tone,
            left=True,
            least=34,
        ),
    ),
    key=lambda row: f"{row.source}/{row.id}",
    faulty=faulty,
    about=about,
    severity=severity,
)


def _ready(row: ModelRow) -> str:
    return f"{row.ready}/{row.replicas if row.desired is None else row.desired}"


def _ready_tone(row: ModelRow) -> Tone:
    wanted = row.replicas if row.desired is None else row.desired
    if row.ready >= wanted:
        return Tone.GOOD
    return Tone.WARN if row.ready else Tone.BAD


def _burn_tone(row: ModelRow) -> Tone:
    if row.burn is None or row.burn < 1:
        return Tone.PLAIN
    return Tone.WARN if row.burn < 10 else Tone.BAD


MODELS: Final = Table(
    "models",
    "MODELS",
    (
        MARK,
        name_column(lambda row: row.name, 12),
        Column("ready", _ready, tone=_ready_tone, order=lambda row: row.ready),
        Column(
            "waiting", lambda row: count(row.waiting), rank=1, wide=5, order=lambda row: row.waiting
        ),
        Column(
            "share",
            lambda row: share(row.backlog_share),
            rank=5,
            wide=4,
            order=lambda row: row.backlog_share,
        ),
        Column("busy", lambda row: count(row.inflight), rank=4, order=lambda row: row.inflight),
        Column(
            "req/s",
            lambda row: rate(row.requests_s),
            rank=3,
            wide=5,
            order=lambda row: row.requests_s,
        ),
        Column(
            "tok/s", lambda row: rate(row.tokens_s), rank=7, wide=5, order=lambda row: row.tokens_s
        ),
        Column(
            "ttft", lambda row: latency(row.ttft_s), rank=6, wide=5, order=lambda row: row.ttft_s
        ),
        Column(
            "kv",
            lambda row: share(row.kv_used),
            rank=9,
            tone=lambda row: fill_tone(row.kv_used),
            wide=4,
            order=lambda row: row.kv_used,
        ),
        Column(
            "hits",
            lambda row: share(row.prefix_hits),
            rank=12,
            wide=4,
            order=lambda row: row.prefix_hits,
        ),
        Column(
            "errors",
            lambda row: share(row.errors_share),
            rank=2,
            tone=lambda row: Tone.BAD if (row.errors_share or 0) >= 0.01 else Tone.PLAIN,
            order=lambda row: row.errors_share,
        ),
        Column(
            "burn",
            lambda row: rate(row.burn),
            rank=8,
            tone=_burn_tone,
            wide=4,
            order=lambda row: row.burn,
        ),
        INCIDENT,
        WRONG,
    ),
    key=lambda row: row.name,
    faulty=faulty,
    about=about,
    severity=severity,
)


def _dead_tone(row: QueueRow) -> Tone:
    return Tone.BAD if row.dead_letters else Tone.PLAIN


def _dead(row: QueueRow) -> str:
    return f"{count(row.dead_letters)}{'!' if row.dead_letters else ''}"


QUEUES: Final = Table(
    "queues",
    "BACKLOG",
    (
        MARK,
        name_column(lambda row: row.name, 16),
        Column(
            "visible", lambda row: count(row.visible), tone=strong, order=lambda row: row.visible
        ),
        Column(
            "in flight",
            lambda row: count(row.in_flight),
            rank=2,
            order=lambda row: row.in_flight,
        ),
        Column("dead letters", _dead, rank=1, tone=_dead_tone, order=lambda row: row.dead_letters),
        Column("oldest", lambda row: span(row.oldest_s), rank=3, order=lambda row: row.oldest_s),
        Column(
            "drains in",
            lambda row: span(row.drain_s) if row.drain_s is not None else "",
            rank=21,
            order=lambda row: row.drain_s,
        ),
        Column("share", lambda row: share(row.share), rank=4, wide=5, order=lambda row: row.share),
        Column("", lambda row: bar(row.share, 8), rank=10, tone=info, left=True, wide=8),
        Column(
            "delayed",
            lambda row: count(row.delayed) if row.delayed else "",
            rank=20,
            order=lambda row: row.delayed,
        ),
        Column("age", age, rank=9, tone=age_tone, order=lambda row: row.age_s),
        Column("model", lambda row: row.model, rank=55, left=True),
        INCIDENT,
        WRONG,
    ),
    key=lambda row: f"{row.source}/{row.name}",
    faulty=faulty,
    about=about,
    severity=severity,
)

UNMET: Final = Table(
    "unmet",
    "CANNOT BE MET",
    (
        Column("", lambda _: "!", tone=bad, left=True, wide=2),
        Column("name", lambda row: row.model, tone=bad, left=True, least=12),
        Column("missing", lambda row: str(row.missing), rank=2, tone=strong),
        Column("since", lambda row: span(row.since_s), rank=1, order=lambda row: row.since_s),
        Column("why", lambda row: row.reason, left=True, least=16),
        SOURCE,
    ),
    key=lambda row: f"{row.model}/{row.reason}",
    faulty=lambda _: True,
    about=lambda row: row.reason,
)

WARNINGS: Final = Table(
    "warnings",
    "EARLY WARNINGS",
    (
        MARK,
        name_column(lambda row: row.about),
        Column("kind", lambda row: row.kind, rank=5, left=True),
        Column(
            "used",
            lambda row: share(row.used_share),
            rank=1,
            tone=lambda row: fill_tone(row.used_share),
            order=lambda row: row.used_share,
        ),
        Column("what", lambda row: row.text, left=True, least=24),
    ),
    key=lambda row: f"{row.kind}/{row.about}/{row.text}",
    faulty=lambda _: False,
    about=lambda row: row.text,
)

_STAGES: Final = {"open": Tone.BAD, "mending": Tone.WARN, "closed": Tone.GOOD}
_CLASSES: Final = {"loading": Tone.WARN, "runtime": Tone.BAD, "routing": Tone.INFO}

INCIDENTS: Final = Table(
    "incidents",
    "INCIDENTS",
    (
        Column("", lambda row: f"!{short_id(row.id)}", tone=bad, left=True, wide=2),
        Column("name", lambda row: row.title, tone=strong, left=True, least=24),
        Column(
            "class",
            lambda row: row.failure_class,
            rank=2,
            tone=lambda row: _CLASSES.get(row.failure_class, Tone.PLAIN),
            left=True,
        ),
        Column(
            "stage",
            lambda row: row.stage,
            rank=3,
            tone=lambda row: _STAGES.get(row.stage, Tone.PLAIN),
            left=True,
        ),
        Column("since", lambda row: span(row.opened_s), rank=1, order=lambda row: row.opened_s),
        Column("sure", lambda row: share(row.confidence), rank=6, order=lambda row: row.confidence),
        Column("done", lambda row: row.action, rank=31, left=True, least=20),
        Column("to do", lambda row: row.fix, rank=30, left=True, least=40),
        Column("id", lambda row: row.id, rank=20, tone=muted, left=True),
    ),
    key=lambda row: row.id,
    faulty=lambda row: row.stage != "closed",
    about=about_incident,
)

__all__ = ["INCIDENTS", "MODELS", "QUEUES", "REPLICAS", "UNMET", "WARNINGS"]
