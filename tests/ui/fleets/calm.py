"""A fleet in which everything is well, and little happens."""

from holdfast.core.view.snapshot import (
    DiskRow,
    HostRow,
    ModelRow,
    QueueRow,
    ReplicaRow,
    Snapshot,
    SourceRow,
)

from .rows import (
    AT,
    CPU,
    DAY,
    GIB,
    HOUR,
    LARGE,
    MIB,
    MINUTE,
    SMALL,
    TEST,
    group_rows,
    host_row,
    model_row,
    queue_row,
    replica_row,
)


def calm() -> Snapshot:
    """Everything is well, and little happens."""
    hosts = _hosts()
    return Snapshot(
        at=AT,
        version=41,
        calls=23,
        took_s=1.72,
        sources=_sources(),
        groups=group_rows(hosts),
        hosts=hosts,
        replicas=_replicas(),
        models=_models(),
        queues=_queues(),
        disks=_disks(),
        totals={"requests_s": 43.0, "tokens_s": 2_379.0, "gateways": 2, "gateways_ready": 2},
    )


def _sources() -> tuple[SourceRow, ...]:
    parts = (
        ("autoscaling", 1, 0.11),
        ("ec2", 1, 0.14),
        ("ecs", 8, 0.52),
        ("sqs", 8, 0.31),
        ("efs", 1, 0.09),
        ("cloudwatch", 1, 0.20),
        ("logs", 2, 0.35),
    )
    cloud = [
        SourceRow("aws", "aws", part, 4.0, calls=calls, took_s=took) for part, calls, took in parts
    ]
    return (*cloud, SourceRow("local", "local", "host", 2.0, calls=1, took_s=0.004))


def _hosts() -> tuple[HostRow, ...]:
    large = [
        host_row(
            name,
            group="marigold-gpu-large",
            kind="g5.4xlarge",
            market="on-demand",
            uptime_s=(9 - place) * DAY,
            cpus=16.0,
            cpus_free=8.0 if place < 2 else 16.0,
            memory_bytes=62 * GIB,
            reserved_bytes=24 * GIB if place < 2 else 0,
            used_bytes=21 * GIB if place < 2 else 1 * GIB,
            gpus=1,
            gpus_free=0 if place < 2 else 1,
            running=1 if place < 2 else 0,
            cuda="12.1",
            driver="535.183.01",
            pressure=0.0,
        )
        for place, name in enumerate(LARGE)
    ]
    small = [
        host_row(
            name,
            group="marigold-gpu-small",
            kind="g4dn.2xlarge",
            market="spot",
            zone="eu-west-2b",
            uptime_s=5 * HOUR + 40 * MINUTE * place,
            cpus=8.0,
            cpus_free=4.0,
            memory_bytes=31 * GIB,
            reserved_bytes=14 * GIB,
            used_bytes=12 * GIB,
            gpus=1,
            gpus_free=0,
            running=1,
            cuda="11.8",
            driver="520.61.05",
            pressure=0.0,
        )
        for place, name in enumerate(SMALL)
    ]
    plain = [
        host_row(
            name,
            group="marigold-cpu",
            kind="r5.xlarge",
            market="on-demand",
            uptime_s=31 * DAY - place * DAY,
            cpus=4.0,
            cpus_free=2.0,
            memory_bytes=31 * GIB,
            reserved_bytes=8 * GIB,
            used_bytes=7 * GIB,
            gpus=0,
            gpus_free=0,
            running=2,
            pressure=0.01,
        )
        for place, name in enumerate(CPU)
    ]
    tests = [
        host_row(
            name,
            group="marigold-test",
            kind="g4dn.xlarge",
            market="spot",
            uptime_s=52 * MINUTE,
            cpus=4.0,
            cpus_free=4.0,
            memory_bytes=15 * GIB,
            reserved_bytes=0,
            used_bytes=1 * GIB,
            gpus=1,
            gpus_free=1,
            running=0,
            cuda="12.1",
            driver="535.183.01",
            pressure=0.0,
        )
        for name in TEST
    ]
    return (*large, *small, *plain, *tests)


def _replicas() -> tuple[ReplicaRow, ...]:
    llm = [
        replica_row(
            f"llm-70b-{place}",
            "llm-70b",
            LARGE[place],
            "marigold-gpu-large",
            share=0.5,
            inflight=3 + place,
            running=3 + place,
            kv_used=0.31 + 0.06 * place,
            tokens_s=58.0 + 3 * place,
            ttft_s=0.41,
            canary_s=0.62,
            reserved_bytes=24 * GIB,
            limit_bytes=48 * GIB,
            used_bytes=21 * GIB,
            gpus=1,
            uptime_s=6 * DAY,
        )
        for place in range(2)
    ]
    small = [
        replica_row(
            f"llm-8b-{place}",
            "llm-8b",
            SMALL[place],
            "marigold-gpu-small",
            zone="eu-west-2b",
            share=0.5,
            inflight=6,
            running=6,
            kv_used=0.22,
            tokens_s=190.0,
            ttft_s=0.12,
            tpot_s=0.02,
            canary_s=0.18,
            reserved_bytes=14 * GIB,
            limit_bytes=28 * GIB,
            used_bytes=12 * GIB,
            gpus=1,
        )
        for place in range(2)
    ]
    embed = [
        replica_row(
            f"bge-embed-{place}",
            "bge-embed",
            CPU[place],
            "marigold-cpu",
            share=0.5,
            inflight=1,
            running=1,
            tokens_s=900.0,
            ttft_s=0.03,
            canary_s=0.04,
            reserved_bytes=4 * GIB,
            limit_bytes=8 * GIB,
            used_bytes=3 * GIB,
            gpus=0,
            uptime_s=12 * DAY,
        )
        for place in range(2)
    ]
    speech = [
        replica_row(
            f"parler-tts-{place}",
            "parler-tts",
            CPU[place],
            "marigold-cpu",
            share=0.5,
            inflight=1,
            running=1,
            tokens_s=40.0,
            ttft_s=0.9,
            canary_s=1.1,
            reserved_bytes=4 * GIB,
            limit_bytes=4 * GIB,
            used_bytes=int(3.5 * GIB),
            gpus=0,
            uptime_s=12 * DAY,
        )
        for place in range(2)
    ]
    return (*llm, *small, *embed, *speech)


def _models() -> tuple[ModelRow, ...]:
    return (
        model_row(
            "llm-70b",
            inflight=7,
            requests_s=1.4,
            tokens_s=119.0,
            kv_used=0.34,
            prefix_hits=0.42,
            ttft_s=0.41,
        ),
        model_row(
            "llm-8b",
            inflight=12,
            requests_s=9.8,
            tokens_s=380.0,
            kv_used=0.22,
            prefix_hits=0.61,
            ttft_s=0.12,
        ),
        model_row("bge-embed", inflight=2, requests_s=31.0, tokens_s=1_800.0, ttft_s=0.03),
        model_row("parler-tts", inflight=2, requests_s=0.8, tokens_s=80.0, ttft_s=0.9),
    )


def _queues() -> tuple[QueueRow, ...]:
    return (
        queue_row("llm-70b", 2, 7, oldest_s=3.0, share=0.5),
        queue_row("llm-8b", 1, 12, oldest_s=1.0, share=0.25),
        queue_row("bge-embed", 1, 2, oldest_s=0.5, share=0.25),
        queue_row("parler-tts", 0, 2, oldest_s=0.0, share=0.0),
    )


def _disks() -> tuple[DiskRow, ...]:
    return (
        DiskRow(
            "fs-4711",
            "aws",
            mode="bursting",
            read_bytes_s=0.6 * MIB,
            metered_bytes_s=0.2 * MIB,
            permitted_bytes_s=100 * MIB,
            used_share=0.002,
            operations_share=0.01,
            burst_credit_bytes=2_100.0 * GIB,
            clients=8,
            age_s=31.0,
        ),
    )
