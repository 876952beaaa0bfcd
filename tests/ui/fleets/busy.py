"""A fleet in which everything is well, and there is hardly room."""

from dataclasses import replace

from holdfast.core.view.snapshot import Snapshot

from .calm import calm
from .rows import GIB, MIB, SMALL, TEST, group_rows, queue_row, replica_row


def busy() -> Snapshot:
    """Everything is well, and there is hardly room: queues, a filling cache, one that loads."""
    base = calm()
    hosts = tuple(
        replace(host, cpus_free=0.5, pending=1 if host.id == SMALL[0] else 0, pressure=0.04)
        for host in base.hosts
    )
    loading = replica_row(
        "llm-8b-2",
        "llm-8b",
        TEST[0],
        "marigold-test",
        state="loading",
        reason="reads its weights: 6.1 of 16.1 GB",
        phase="loading",
        share=0.0,
        inflight=0,
        running=0,
        reserved_bytes=14 * GIB,
        limit_bytes=15 * GIB,
        used_bytes=6 * GIB,
        gpus=1,
        uptime_s=71.0,
    )
    replicas = tuple(
        replace(
            row,
            kv_used=None if row.kv_used is None else 0.88,
            waiting=4 if row.gpus else 0,
            inflight=(row.inflight or 0) * 5,
            running=(row.running or 0) * 4,
            ttft_s=(row.ttft_s or 0.0) * 3,
        )
        for row in base.replicas
    )
    models = tuple(
        replace(
            row,
            inflight=(row.inflight or 0) * 5,
            waiting=waiting,
            backlog_share=share,
            kv_used=None if row.kv_used is None else 0.88,
            ttft_s=(row.ttft_s or 0.0) * 3,
            requests_s=(row.requests_s or 0.0) * 4,
            tokens_s=(row.tokens_s or 0.0) * 3,
            burn=0.7,
            replicas=3 if row.name == "llm-8b" else 2,
            desired=3 if row.name == "llm-8b" else 2,
        )
        for row, waiting, share in zip(
            base.models, (58, 212, 40, 6), (0.18, 0.67, 0.13, 0.02), strict=True
        )
    )
    return replace(
        base,
        version=42,
        hosts=hosts,
        groups=group_rows(hosts),
        replicas=(*replicas, loading),
        models=models,
        queues=(
            queue_row("llm-70b", 50, 35, oldest_s=21.0, share=0.17),
            queue_row("llm-8b", 204, 60, oldest_s=34.0, share=0.68, dead_letters=1),
            queue_row("bge-embed", 40, 10, oldest_s=2.0, share=0.13),
            queue_row("parler-tts", 6, 10, oldest_s=4.0, share=0.02),
        ),
        disks=tuple(
            replace(
                disk,
                read_bytes_s=88.0 * MIB,
                metered_bytes_s=61.0 * MIB,
                used_share=0.61,
                operations_share=0.05,
                burst_credit_bytes=640.0 * GIB,
                clients=9,
            )
            for disk in base.disks
        ),
        totals=base.totals | {"requests_s": 172.0, "tokens_s": 7_137.0},
    )
