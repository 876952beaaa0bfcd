"""Turns the dashboard's JSON into rows: nodes into hosts, Serve applications into placed replicas.

    applications/ ─┬─ target groups ─► one routable row for each place that takes requests
                   └─ replicas ──────► one row each, for people: Serve routes among them itself
    nodes ─────────────────────────► hosts, with the condition that Ray says they are in

What takes requests of an application is what Serve tells load balancers: its proxies, or its
replicas where Serve lets those be asked directly. Each becomes a replica of the model that says
``discover``, and canaries find out whether it answers, whatever Serve says of it.

Members that are missing or of another type are unknown; nothing here raises on foreign data.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from holdfast.core.types import HostCondition
from holdfast.core.view.layers import Host, Placed

ROWS_MAX: Final = 10_000  # of each kind
_GIB: Final = 1 << 30
_STATES: Final = {
    "STARTING": "pending",
    "UPDATING": "running",
    "RECOVERING": "running",
    "RUNNING": "running",
    "PENDING_MIGRATION": "stopping",
    "STOPPING": "stopping",
    "STOPPED": "stopped",
}
_DRAINING: Final = ("DRAINING", "DRAINED")


def host_id(address: str, node_id: str) -> str:
    """A node's name for people: its address, and enough of its id to tell two apart."""
    return f"{address or 'node'}-{node_id[:8]}"


def hosts_of(answer: Any, zone_label: str, now: float, dead_s: float) -> tuple[Host, ...]:
    """The hosts of a list of nodes; those that died long ago are left out."""
    found = []
    for node in _nodes(answer)[:ROWS_MAX]:
        node_id, address = _text(node, "node_id"), _text(node, "node_ip")
        alive = _text(node, "state") == "ALIVE"
        ended_ms = _number(node, "end_time_ms")
        if not alive and ended_ms and now - ended_ms / 1_000 > dead_s:
            continue
        total = _mapping(node, "resources_total")
        began_ms = _number(node, "start_time_ms")
        found.append(
            Host(
                host_id(address, node_id),
                zone=_text(_mapping(node, "labels"), zone_label),
                state="" if alive else _text(node, "state").lower(),
                joined_at=began_ms / 1_000 if began_ms else None,
                cpus=_number(total, "CPU"),
                gpus=round(_number(total, "GPU") or 0),
                memory_bytes=_bytes(total),
                condition=HostCondition.READY if alive else HostCondition.UNREACHABLE,
                condition_reason="" if alive else _text(node, "state_message")[:240],
                condition_since=ended_ms / 1_000 if ended_ms and not alive else None,
            )
        )
    return tuple(found)


def placed_of(answer: Any) -> tuple[Placed, ...]:
    """The rows of all Serve applications: where each takes requests, and its replicas."""
    body = answer if isinstance(answer, Mapping) else {}
    proxies = [one for one in _mapping(body, "proxies").values() if isinstance(one, Mapping)]
    applications = {
        name: one
        for name, one in _mapping(body, "applications").items()
        if isinstance(one, Mapping)
    }
    rows = [*_targets(body, applications, proxies), *_replicas(applications)]
    return tuple(rows[:ROWS_MAX])


def _targets(
    body: Mapping[str, Any],
    applications: Mapping[str, Mapping[str, Any]],
    proxies: list[Mapping[str, Any]],
) -> Iterable[Placed]:
    port = _number(_mapping(body, "http_options"), "port") or 8_000
    nodes = {_text(one, "node_ip"): one for one in proxies}
    groups = [one for one in body.get("target_groups") or () if isinstance(one, Mapping)]
    for name, application in applications.items():
        prefix = application.get("route_prefix")
        if not isinstance(prefix, str):
            continue  # nobody can reach it over HTTP: other applications call it
        places = [
            (_text(target, "ip"), int(_number(target, "port") or port))
            for group in groups
            if group.get("route_prefix") == prefix and _text(group, "protocol") == "HTTP"
            for target in group.get("targets") or ()
            if isinstance(target, Mapping)
        ] or [(address, int(port)) for address in nodes]
        state = "stopping" if _text(application, "status") == "DELETING" else "running"
        for address, number in dict.fromkeys(places):
            proxy = nodes.get(address, {})
            node_id = _text(proxy, "node_id")
            said = _text(proxy, "status")
            plain = f"{name}.{address}.{number}".replace(":", "-")
            yield Placed(
                f"{name}/{plain}",
                name,
                "stopping" if said in _DRAINING else state,
                host=host_id(address, node_id) if node_id else "",
                address=address,
                port_said=str(number),
                path=prefix.rstrip("/"),
                labels=(("application", name),),
                started_at=_number(application, "last_deployed_time_s"),
                uid=f"{_text(proxy, 'actor_id')}/{number}",
                reason=_text(application, "message")[:240],
            )


def _replicas(applications: Mapping[str, Mapping[str, Any]]) -> Iterable[Placed]:
    for name, application in applications.items():
        for deployment, told in _mapping(application, "deployments").items():
            replicas = told.get("replicas") if isinstance(told, Mapping) else None
            for one in replicas or ():
                if isinstance(one, Mapping):
                    yield _replica(name, deployment, one)


def _replica(application: str, deployment: str, row: Mapping[str, Any]) -> Placed:
    node_id, address = _text(row, "node_id"), _text(row, "node_ip")
    said = _text(row, "state")
    return Placed(
        f"{application}/{deployment}#{_text(row, 'replica_id')}",
        application,
        _STATES.get(said, "pending"),
        host=host_id(address, node_id) if node_id else "",
        log_stream=_text(row, "log_file_path"),
        started_at=_number(row, "start_time_s"),
        ready=said == "RUNNING",
        reason="" if said == "RUNNING" else said.lower(),
    )


# --- foreign data ---------------------------------------------------------------------------------


def _nodes(answer: Any) -> list[Mapping[str, Any]]:
    """The rows of the state API, which are two results deep."""
    rows = answer
    for name in ("data", "result", "result"):
        rows = rows.get(name) if isinstance(rows, Mapping) else None
    return [one for one in rows or () if isinstance(one, Mapping)]


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _mapping(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, Mapping) else {}


def _bytes(total: Mapping[str, Any]) -> int | None:
    """Memory of a node: bytes, or text as the dashboard shows it ("12.5 GiB")."""
    value = _number(total, "memory")
    if value is not None:
        return int(value)
    amount, _, unit = _text(total, "memory").partition(" ")
    try:
        return int(float(amount) * _GIB) if unit == "GiB" else None
    except ValueError:
        return None


__all__ = ["ROWS_MAX", "host_id", "hosts_of", "placed_of"]
