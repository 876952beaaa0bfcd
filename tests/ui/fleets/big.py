"""A fleet as large as one control should show."""

from dataclasses import replace

from holdfast.core.view.snapshot import ModelRow, ReplicaRow, Snapshot

from .broken import _broken_incidents
from .calm import _disks, _sources
from .rows import AT, DAY, GIB, PARLER, _group_row, host_row, queue_row, replica_row


def big(replicas: int = 500, models: int = 20, version: int = 1) -> Snapshot:
    """As many as one control should show; another ``version`` moves the figures."""
    a_host = 4  # replicas on it
    hosts = tuple(
        host_row(
            f"i-{place:04x}",
            group=f"pool-{place % 8}",
            kind="p5.48xlarge" if place % 8 < 4 else "g6.12xlarge",
            market="spot" if place % 2 else "on-demand",
            uptime_s=DAY + 60.0 * place,
            cpus=192.0,
            cpus_free=float((place * 7 + version) % 190),
            memory_bytes=2_000 * GIB,
            reserved_bytes=(900 + (place * 13 + version) % 900) * GIB,
            used_bytes=(800 + (place * 17 + version) % 900) * GIB,
            gpus=8,
            gpus_free=(place + version) % 5,
            running=a_host,
        )
        for place in range(-(-replicas // a_host))
    )
    rows = tuple(_big_replica(place, models, version) for place in range(replicas))
    names = [f"model-{place:02d}" for place in range(models)]
    return Snapshot(
        at=AT + version,
        version=version,
        calls=61,
        took_s=2.9,
        sources=_sources(),
        groups=tuple(
            _group_row(name, members, len(members), 1, 64)
            for name in sorted({host.group for host in hosts})
            if (members := [host for host in hosts if host.group == name])
        ),
        hosts=hosts,
        replicas=rows,
        models=tuple(_big_model(name, rows, version) for name in names),
        queues=tuple(
            queue_row(
                name,
                (place * 31 + version * 7) % 400,
                place * 3,
                oldest_s=float(place * 2 + version % 9),
                share=1 / models,
            )
            for place, name in enumerate(names)
        ),
        disks=_disks(),
        incidents=tuple(replace(one, replicas=(rows[0].id,)) for one in _broken_incidents()),
        totals={"requests_s": 4_100.0, "tokens_s": 910_000.0, "gateways": 16},
    )


def _big_replica(place: int, models: int, version: int) -> ReplicaRow:
    model = f"model-{place % models:02d}"
    faulty = place % 97 == 0
    host = place // 4
    return replica_row(
        f"{model}-{place // models}",
        model,
        f"i-{host:04x}",
        f"pool-{host % 8}",
        state="suspect" if faulty else "ready",
        reason="two canaries were slow" if faulty else "",
        share=models / 500,
        inflight=(place * 5 + version) % 40,
        running=(place * 5 + version) % 32,
        waiting=(place + version) % 6,
        kv_used=((place * 7 + version) % 100) / 100,
        tokens_s=1_500.0 + (place * 11 + version * 3) % 700,
        ttft_s=0.2 + ((place + version) % 50) / 100,
        canary_s=0.3,
        reserved_bytes=400 * GIB,
        limit_bytes=450 * GIB,
        used_bytes=(300 + (place + version) % 100) * GIB,
        gpus=2,
        faults=("slower than its peers",) if faulty else (),
        incidents=(PARLER,) if faulty else (),
    )


def _big_model(name: str, rows: tuple[ReplicaRow, ...], version: int) -> ModelRow:
    mine = [row for row in rows if row.model == name]
    return ModelRow(
        name,
        ready=sum(row.state == "ready" for row in mine),
        replicas=len(mine),
        desired=len(mine),
        inflight=sum(row.inflight or 0 for row in mine),
        waiting=sum(row.waiting or 0 for row in mine),
        backlog_share=0.05,
        requests_s=205.0 + version % 10,
        tokens_s=sum(row.tokens_s or 0.0 for row in mine),
        kv_used=sum(row.kv_used or 0.0 for row in mine) / max(1, len(mine)),
        prefix_hits=0.5,
        ttft_s=0.4,
        errors_share=0.001,
        burn=0.4,
    )
