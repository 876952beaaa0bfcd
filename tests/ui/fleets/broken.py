"""A fleet with an undersized speech model, a leak, a silence and a throttled API."""

from dataclasses import replace

from holdfast.core.view.snapshot import (
    HostRow,
    IncidentRow,
    ModelRow,
    QueueRow,
    ReplicaRow,
    Snapshot,
    UnmetRow,
)

from .calm import calm
from .rows import CPU, GIB, LEAK, MINUTE, PARLER, SILENT, SMALL, group_rows, queue_row


def broken() -> Snapshot:
    """The speech model was given 1 GB and needs 4; a leak, a silence and a throttled API beside."""
    base = calm()
    hosts = tuple(_broken_host(host) for host in base.hosts)
    groups = tuple(
        replace(
            group,
            incidents=(PARLER,) if group.name == "marigold-cpu" else (),
            faults=("1 host was replaced 12 min ago",)
            if group.name == "marigold-gpu-small"
            else (),
        )
        for group in group_rows(hosts)
    )
    sources = tuple(
        replace(
            row,
            age_s=142.0,
            error="throttled: Rate exceeded",
            failing_s=138.0,
        )
        if row.part == "sqs"
        else row
        for row in base.sources
    )
    return replace(
        base,
        version=97,
        calls=31,
        took_s=4.38,
        sources=sources,
        hosts=hosts,
        groups=groups,
        replicas=tuple(_broken_replica(row) for row in base.replicas),
        models=tuple(_broken_model(row) for row in base.models),
        queues=_broken_queues(),
        unmet=(
            UnmetRow(
                "parler-tts",
                1,
                "no container instance met all of its requirements: MEMORY",
                since_s=9 * MINUTE,
                source="aws",
            ),
            UnmetRow("llm-70b", 1, "3 GPUs wanted, 2 are left to this model", since_s=40.0),
        ),
        incidents=_broken_incidents(),
        totals=base.totals | {"requests_s": 38.0, "tokens_s": 2_210.0, "gateways_ready": 1},
        notes=("queue old-requests has no model; give it a tag 'model'",),
    )


def _broken_host(host: HostRow) -> HostRow:
    if host.id == CPU[0]:
        fault = "9.0 GB in use on reservations of 5.0 GB"
        return replace(
            host,
            reserved_bytes=5 * GIB,
            used_bytes=9 * GIB,
            running=1,
            pending=1,
            pressure=0.34,
            faults=(fault,),
            incidents=(PARLER,),
        )
    if host.id == SMALL[1]:
        return replace(host, uptime_s=12 * MINUTE, bootstrap_s=410.0)
    return host


def _broken_replica(row: ReplicaRow) -> ReplicaRow:
    if row.id == "parler-tts-0":
        return replace(
            row,
            state="dead",
            reason="exit 137, OutOfMemoryError: container killed due to memory usage",
            phase="request",
            share=0.0,
            inflight=0,
            running=0,
            tokens_s=0.0,
            ttft_s=None,
            canary_s=None,
            reserved_bytes=1 * GIB,
            limit_bytes=1 * GIB,
            used_bytes=int(3.5 * GIB),
            uptime_s=31.0,
            silent_s=44.0,
            restarts=11,
            faults=("killed for memory 11 times", "reservation 1 GB, footprint 3.5 GB"),
            incidents=(PARLER,),
        )
    if row.id == "parler-tts-1":
        return replace(row, share=1.0, inflight=4, running=4, waiting=9, ttft_s=4.2)
    if row.id == "llm-8b-1":
        return replace(
            row,
            state="suspect",
            reason="memory climbs by 41 MB a minute and not with traffic",
            used_bytes=25 * GIB,
            exhausted_in_s=73 * MINUTE,
            faults=("leak: full in 73 min",),
            incidents=(LEAK,),
        )
    if row.id == "bge-embed-1":
        return replace(
            row,
            state="quarantined",
            reason="no output for 184 s while serving",
            share=0.0,
            inflight=0,
            running=0,
            tokens_s=0.0,
            canary_s=None,
            silent_s=184.0,
            faults=("silent for 184 s",),
            incidents=(SILENT,),
        )
    return row


def _broken_model(row: ModelRow) -> ModelRow:
    if row.name == "parler-tts":
        return replace(
            row,
            ready=1,
            inflight=4,
            waiting=431,
            backlog_share=0.96,
            requests_s=0.3,
            tokens_s=21.0,
            ttft_s=4.2,
            errors_share=0.28,
            burn=61.0,
            faults=("1 of 2 ready", "28 % of requests fail"),
            incidents=(PARLER,),
        )
    if row.name == "llm-8b":
        return replace(row, incidents=(LEAK,))
    if row.name == "bge-embed":
        return replace(row, ready=1, faults=("1 of 2 ready",), incidents=(SILENT,))
    return row


def _broken_queues() -> tuple[QueueRow, ...]:
    fault = "grew from 12 to 422 in 9 min; the same work was handed out 3.4 times"
    return (
        queue_row("llm-70b", 9, 7, oldest_s=6.0, share=0.02, age_s=142.0),
        queue_row("llm-8b", 6, 12, oldest_s=3.0, share=0.01, age_s=142.0),
        queue_row("bge-embed", 3, 1, oldest_s=1.0, share=0.01, age_s=142.0),
        queue_row(
            "parler-tts",
            422,
            18,
            oldest_s=560.0,
            share=0.96,
            age_s=142.0,
            dead_letters=37,
            faults=(fault,),
            incidents=(PARLER,),
        ),
    )


def _broken_incidents() -> tuple[IncidentRow, ...]:
    return (
        IncidentRow(
            PARLER,
            "undersized of parler-tts-0",
            "runtime",
            "undersized",
            "open",
            0.97,
            "parler-tts-0",
            9 * MINUTE,
            replicas=("parler-tts-0",),
            consequences=(
                "the queue of parler-tts grew from 12 to 422 in 540 s",
                "37 more dead letters of parler-tts, 37 in all",
            ),
            action="paged: the reservation is not ours to change",
            fix="Memory reservation 1 GB, footprint 3.5 GB measured: set 4 GB. Memory limit 1 GB, "
            "footprint 3.5 GB: set 4 GB. Reservation and limit should both be what it really "
            "needs.",
        ),
        IncidentRow(
            LEAK,
            "memory leak of llm-8b-1",
            "runtime",
            "memory_leak",
            "mending",
            0.88,
            "llm-8b-1",
            41 * MINUTE,
            replicas=("llm-8b-1",),
            action="restart when memory is nearly gone, about 15:30",
            fix="Restart it before it is full, in 73 min; then look for what grows without load.",
        ),
        IncidentRow(
            SILENT,
            "hung of bge-embed-1",
            "runtime",
            "hung",
            "mending",
            0.81,
            "bge-embed-1",
            3 * MINUTE,
            replicas=("bge-embed-1",),
            action="taken out; restarts when its requests have moved",
            fix="Restart it. If it comes back, note the load under which it began.",
        ),
    )
