"""Pictures of fleets for tests of what people see: calm, busy, broken and big.

The fleet is the one of the first article: four groups on one cloud, large and small language
models, embeddings, and a speech model that was given 1 GB and needs 4. Everything is fixed, so that
a screen can be compared letter by letter.
"""

from dataclasses import replace
from typing import Any, Final

from holdfast.core.view.snapshot import (
    DiskRow,
    GroupRow,
    HostRow,
    IncidentRow,
    ModelRow,
    QueueRow,
    ReplicaRow,
    Snapshot,
    SourceRow,
    UnmetRow,
)

AT: Final = 1_794_753_000.0  # 2026-11-15 14:30:00 UTC
GIB: Final = 1 << 30
MIB: Final = 1 << 20
MINUTE: Final = 60.0
HOUR: Final = 3_600.0
DAY: Final = 86_400.0

PARLER: Final = "inc-000007"
LEAK: Final = "inc-000009"
SILENT: Final = "inc-000011"

_LARGE: Final = ("i-0a11", "i-0a12", "i-0a13")
_SMALL: Final = ("i-0b21", "i-0b22")
_CPU: Final = ("i-0c31", "i-0c32")
_TEST: Final = ("i-0d41",)


# --- rows of the calm fleet -----------------------------------------------------------------------


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


def _host(name: str, **values: Any) -> HostRow:
    defaults = {
        "source": "aws",
        "state": "active",
        "age_s": 4.0,
        "bootstrap_s": 95.0,
        "pending": 0,
        "zone": "eu-west-2a",
    }
    return HostRow(id=name, **(defaults | values))


def _hosts() -> tuple[HostRow, ...]:
    large = [
        _host(
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
        for place, name in enumerate(_LARGE)
    ]
    small = [
        _host(
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
        for place, name in enumerate(_SMALL)
    ]
    plain = [
        _host(
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
        for place, name in enumerate(_CPU)
    ]
    tests = [
        _host(
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
        for name in _TEST
    ]
    return (*large, *small, *plain, *tests)


def _groups(hosts: tuple[HostRow, ...]) -> tuple[GroupRow, ...]:
    bounds = {
        "marigold-gpu-large": (3, 1, 6),
        "marigold-gpu-small": (2, 1, 8),
        "marigold-cpu": (2, 2, 4),
        "marigold-test": (1, 0, 1),
    }
    return tuple(
        _group(name, [host for host in hosts if host.group == name], *bound)
        for name, bound in bounds.items()
    )


def _group(name: str, hosts: list[HostRow], desired: int, least: int, most: int) -> GroupRow:
    def total(field: str) -> Any:
        return sum(getattr(host, field) or 0 for host in hosts)

    return GroupRow(
        name=name,
        source="aws",
        kind=hosts[0].kind,
        market=hosts[0].market,
        hosts=len(hosts),
        desired=desired,
        minimum=least,
        maximum=most,
        uptime_s=min(host.uptime_s or 0.0 for host in hosts),
        uptime_max_s=max(host.uptime_s or 0.0 for host in hosts),
        cpus=total("cpus"),
        cpus_free=total("cpus_free"),
        memory_bytes=total("memory_bytes"),
        reserved_bytes=total("reserved_bytes"),
        used_bytes=total("used_bytes"),
        gpus=total("gpus"),
        gpus_free=total("gpus_free"),
        running=total("running"),
        pending=total("pending"),
        age_s=4.0,
    )


def _replica(name: str, model: str, host: str, group: str, **values: Any) -> ReplicaRow:
    defaults = {
        "state": "ready",
        "source": "aws",
        "routed": True,
        "revision": "12",
        "zone": "eu-west-2a",
        "endpoint": f"http://{host}:8000",
        "phase": "serving",
        "waiting": 0,
        "restarts": 0,
        "uptime_s": 5 * HOUR,
        "silent_s": 2.0,
        "filesystem": "fs-4711",
        "log_stream": f"{model}/{model}/{name}",
        "image": f"{model}:12",
        "age_s": 4.0,
    }
    return ReplicaRow(id=name, model=model, host=host, group=group, **(defaults | values))


def _replicas() -> tuple[ReplicaRow, ...]:
    llm = [
        _replica(
            f"llm-70b-{place}",
            "llm-70b",
            _LARGE[place],
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
        _replica(
            f"llm-8b-{place}",
            "llm-8b",
            _SMALL[place],
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
        _replica(
            f"bge-embed-{place}",
            "bge-embed",
            _CPU[place],
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
        _replica(
            f"parler-tts-{place}",
            "parler-tts",
            _CPU[place],
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


def _model(name: str, **values: Any) -> ModelRow:
    defaults = {"ready": 2, "replicas": 2, "desired": 2, "waiting": 0, "errors_share": 0.0}
    return ModelRow(name=name, **(defaults | {"burn": 0.1, "backlog_share": 0.0} | values))


def _models() -> tuple[ModelRow, ...]:
    return (
        _model(
            "llm-70b",
            inflight=7,
            requests_s=1.4,
            tokens_s=119.0,
            kv_used=0.34,
            prefix_hits=0.42,
            ttft_s=0.41,
        ),
        _model(
            "llm-8b",
            inflight=12,
            requests_s=9.8,
            tokens_s=380.0,
            kv_used=0.22,
            prefix_hits=0.61,
            ttft_s=0.12,
        ),
        _model("bge-embed", inflight=2, requests_s=31.0, tokens_s=1_800.0, ttft_s=0.03),
        _model("parler-tts", inflight=2, requests_s=0.8, tokens_s=80.0, ttft_s=0.9),
    )


def _queue(model: str, visible: int, in_flight: int, **values: Any) -> QueueRow:
    defaults = {"source": "aws", "delayed": 0, "dead_letters": 0, "age_s": 4.0}
    row = {"model": model, "visible": visible, "in_flight": in_flight}
    return QueueRow(name=f"{model}-requests", **(defaults | row | values))


def _queues() -> tuple[QueueRow, ...]:
    return (
        _queue("llm-70b", 2, 7, oldest_s=3.0, share=0.5),
        _queue("llm-8b", 1, 12, oldest_s=1.0, share=0.25),
        _queue("bge-embed", 1, 2, oldest_s=0.5, share=0.25),
        _queue("parler-tts", 0, 2, oldest_s=0.0, share=0.0),
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


# --- the fleets -----------------------------------------------------------------------------------


def calm() -> Snapshot:
    """Everything is well, and little happens."""
    hosts = _hosts()
    return Snapshot(
        at=AT,
        version=41,
        calls=23,
        took_s=1.72,
        sources=_sources(),
        groups=_groups(hosts),
        hosts=hosts,
        replicas=_replicas(),
        models=_models(),
        queues=_queues(),
        disks=_disks(),
        totals={"requests_s": 43.0, "tokens_s": 2_379.0, "gateways": 2, "gateways_ready": 2},
    )


def busy() -> Snapshot:
    """Everything is well, and there is hardly room: queues, a filling cache, one that loads."""
    base = calm()
    hosts = tuple(
        replace(host, cpus_free=0.5, pending=1 if host.id == _SMALL[0] else 0, pressure=0.04)
        for host in base.hosts
    )
    loading = _replica(
        "llm-8b-2",
        "llm-8b",
        _TEST[0],
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
        groups=_groups(hosts),
        replicas=(*replicas, loading),
        models=models,
        queues=(
            _queue("llm-70b", 50, 35, oldest_s=21.0, share=0.17),
            _queue("llm-8b", 204, 60, oldest_s=34.0, share=0.68, dead_letters=1),
            _queue("bge-embed", 40, 10, oldest_s=2.0, share=0.13),
            _queue("parler-tts", 6, 10, oldest_s=4.0, share=0.02),
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
        for group in _groups(hosts)
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
    if host.id == _CPU[0]:
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
    if host.id == _SMALL[1]:
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
        _queue("llm-70b", 9, 7, oldest_s=6.0, share=0.02, age_s=142.0),
        _queue("llm-8b", 6, 12, oldest_s=3.0, share=0.01, age_s=142.0),
        _queue("bge-embed", 3, 1, oldest_s=1.0, share=0.01, age_s=142.0),
        _queue(
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


def incident_page(name: str = PARLER) -> dict[str, Any]:
    """One incident as ``GET /incidents/ID`` tells it."""
    row = next(one for one in broken().incidents if one.id == name)
    opened = AT - row.opened_s
    who = {"replica": row.about, "model": row.about.rpartition("-")[0]}
    page: dict[str, Any] = {
        "id": row.id,
        "stage": row.stage,
        "class": row.failure_class,
        "cause": row.cause,
        "title": row.title,
        "about": who,
        "replicas": list(row.replicas),
        "opened_at": opened,
        "changed_at": opened + 60,
        "closed_at": None,
        "confidence": row.confidence,
        "other_causes": ["out_of_memory"] if name == PARLER else [],
        "remedy": "page" if name == PARLER else "drain_and_restart",
        "action": row.action,
        "fix": row.fix,
        "evidence": [],
        "consequences": [],
        "timeline": [],
    }
    if name == PARLER:
        page |= _parler_story(opened, who)
    return page


def _parler_story(opened: float, who: dict[str, str]) -> dict[str, Any]:
    killed = "killed for memory 31 s after it was ready, with 1 request on it"
    sized = "memory limit 1.0 GB, footprint at least 3.5 GB, it was killed there: set 4 GB"
    grew = "the queue of parler-tts grew from 12 to 422 in 540 s"
    dead = "37 more dead letters of parler-tts, 37 in all"
    model = {"model": "parler-tts"}
    return {
        "evidence": [
            {
                "sign": "killed_for_memory",
                "about": who,
                "at": opened,
                "source": "platform",
                "text": killed,
            },
            {
                "sign": "limit_too_low",
                "about": who,
                "at": opened + 2,
                "source": "sizing",
                "text": sized,
            },
        ],
        "consequences": [
            {
                "sign": "queue_grows",
                "about": model,
                "at": opened + 60,
                "source": "queues",
                "text": grew,
            },
            {
                "sign": "dead_letters",
                "about": model,
                "at": opened + 300,
                "source": "queues",
                "text": dead,
            },
        ],
        "timeline": [
            {
                "at": opened,
                "what": "killed_for_memory",
                "about": who["replica"],
                "text": killed,
                "source": "platform",
            },
            {
                "at": opened + 2,
                "what": "cause",
                "about": "",
                "text": "undersized, 97 % sure",
                "source": "",
            },
            {
                "at": opened + 60,
                "what": "queue_grows",
                "about": "parler-tts",
                "text": grew,
                "source": "queues",
            },
            {
                "at": opened + 61,
                "what": "action",
                "about": "",
                "text": "paged: the reservation is not ours to change",
                "source": "",
            },
        ],
    }


def request_story(name: str = "req_8f3a12c4-17") -> dict[str, Any]:
    """One request as ``GET /explain/ID`` tells it."""
    return {
        "request_id": name,
        "asked_for": "parler-tts",
        "served_by": "parler-tts",
        "tenant": "acme",
        "streamed": True,
        "replica": "parler-tts-1",
        "status": 200,
        "code": "",
        "reason": "answered",
        "attempts": 2,
        "continued": False,
        "story": [
            {"at_s": 0.0, "what": "admitted", "detail": "tenant acme, interactive"},
            {"at_s": 0.0004, "what": "chosen", "detail": "parler-tts-0: least token work of 2"},
            {"at_s": 1.204, "what": "failed", "detail": "connection reset before the first token"},
            {"at_s": 1.2101, "what": "retried", "detail": "parler-tts-1: 1 of 2 retries"},
            {"at_s": 5.91, "what": "answered", "detail": "first token after 4.7 s"},
        ],
    }


def big(replicas: int = 500, models: int = 20, version: int = 1) -> Snapshot:
    """As many as one control should show; another ``version`` moves the figures."""
    a_host = 4  # replicas on it
    hosts = tuple(
        _host(
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
            _group(name, members, len(members), 1, 64)
            for name in sorted({host.group for host in hosts})
            if (members := [host for host in hosts if host.group == name])
        ),
        hosts=hosts,
        replicas=rows,
        models=tuple(_big_model(name, rows, version) for name in names),
        queues=tuple(
            _queue(
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
    return _replica(
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


__all__ = [
    "AT",
    "LEAK",
    "PARLER",
    "SILENT",
    "big",
    "broken",
    "busy",
    "calm",
    "incident_page",
    "request_story",
]
