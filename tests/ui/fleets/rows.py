"""What the sample fleets share: times, names, and rows with the values most of them have."""

from typing import Any, Final

from holdfast.core.view.snapshot import GroupRow, HostRow, ModelRow, QueueRow, ReplicaRow

AT: Final = 1_794_753_000.0  # 2026-11-15 14:30:00 UTC
GIB: Final = 1 << 30
MIB: Final = 1 << 20
MINUTE: Final = 60.0
HOUR: Final = 3_600.0
DAY: Final = 86_400.0
PARLER: Final = "inc-000007"
LEAK: Final = "inc-000009"
SILENT: Final = "inc-000011"
LARGE: Final = ("i-0a11", "i-0a12", "i-0a13")
SMALL: Final = ("i-0b21", "i-0b22")
CPU: Final = ("i-0c31", "i-0c32")
TEST: Final = ("i-0d41",)


def host_row(name: str, **values: Any) -> HostRow:
    defaults = {
        "source": "aws",
        "state": "active",
        "age_s": 4.0,
        "bootstrap_s": 95.0,
        "pending": 0,
        "zone": "eu-west-2a",
    }
    return HostRow(id=name, **(defaults | values))


def group_rows(hosts: tuple[HostRow, ...]) -> tuple[GroupRow, ...]:
    bounds = {
        "marigold-gpu-large": (3, 1, 6),
        "marigold-gpu-small": (2, 1, 8),
        "marigold-cpu": (2, 2, 4),
        "marigold-test": (1, 0, 1),
    }
    return tuple(
        _group_row(name, [host for host in hosts if host.group == name], *bound)
        for name, bound in bounds.items()
    )


def _group_row(name: str, hosts: list[HostRow], desired: int, least: int, most: int) -> GroupRow:
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


def replica_row(name: str, model: str, host: str, group: str, **values: Any) -> ReplicaRow:
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


def model_row(name: str, **values: Any) -> ModelRow:
    defaults = {"ready": 2, "replicas": 2, "desired": 2, "waiting": 0, "errors_share": 0.0}
    return ModelRow(name=name, **(defaults | {"burn": 0.1, "backlog_share": 0.0} | values))


def queue_row(model: str, visible: int, in_flight: int, **values: Any) -> QueueRow:
    defaults = {"source": "aws", "delayed": 0, "dead_letters": 0, "age_s": 4.0}
    row = {"model": model, "visible": visible, "in_flight": in_flight}
    return QueueRow(name=f"{model}-requests", **(defaults | row | values))
