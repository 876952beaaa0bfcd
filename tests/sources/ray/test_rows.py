"""Rows from the dashboard's JSON, as Ray 2.60 sends it, and from what is not that."""

import pytest

from holdfast.core.types import HostCondition
from holdfast.sources.ray.rows import hosts_of, placed_of

NODES = {
    "result": True,
    "data": {
        "result": {
            "result": [
                {
                    "node_id": "aaaaaaaabbbb",
                    "node_ip": "10.0.0.1",
                    "state": "ALIVE",
                    "state_message": None,
                    "resources_total": {"CPU": 8.0, "GPU": 4.0, "memory": 64e9},
                    "labels": {"zone": "zone-a"},
                    "start_time_ms": 1_000_000,
                    "end_time_ms": 0,
                },
                {
                    "node_id": "ccccccccdddd",
                    "node_ip": "10.0.0.2",
                    "state": "DEAD",
                    "state_message": "Unexpected termination: health check failed",
                    "resources_total": {},
                    "labels": {},
                    "end_time_ms": 1_500_000,
                },
            ]
        }
    },
}
SERVE = {
    "http_options": {"host": "0.0.0.0", "port": 8000},
    "proxies": {
        "aaaaaaaabbbb": {
            "node_id": "aaaaaaaabbbb",
            "node_ip": "10.0.0.1",
            "actor_id": "p1",
            "status": "HEALTHY",
        },
        "ccccccccdddd": {
            "node_id": "ccccccccdddd",
            "node_ip": "10.0.0.2",
            "actor_id": "p2",
            "status": "DRAINING",
        },
    },
    "applications": {
        "chat": {
            "route_prefix": "/chat",
            "status": "RUNNING",
            "message": "",
            "last_deployed_time_s": 1234.5,
            "deployments": {
                "LLM": {
                    "replicas": [
                        {
                            "replica_id": "r1",
                            "state": "RUNNING",
                            "node_id": "aaaaaaaabbbb",
                            "node_ip": "10.0.0.1",
                            "start_time_s": 1235.0,
                            "log_file_path": "/serve/r1.log",
                        },
                        {"replica_id": "r2", "state": "STARTING"},
                    ]
                }
            },
        },
        "inner": {"route_prefix": None, "status": "RUNNING", "deployments": {}},
    },
    "target_groups": [],
}


def test_nodes_are_hosts_with_zone_size_and_condition():
    well, dead = hosts_of(NODES, "zone", now=1_600.0, dead_s=600.0)
    assert (well.id, well.zone, well.cpus, well.gpus) == ("10.0.0.1-aaaaaaaa", "zone-a", 8.0, 4)
    assert well.memory_bytes == 64_000_000_000
    assert well.condition is HostCondition.READY
    assert dead.condition is HostCondition.UNREACHABLE
    assert dead.condition_reason.startswith("Unexpected termination")
    assert dead.condition_since == 1_500.0


def test_a_node_that_died_long_ago_is_not_shown():
    assert [host.id for host in hosts_of(NODES, "zone", 2_200.0, 600.0)] == ["10.0.0.1-aaaaaaaa"]


def test_an_application_has_a_row_for_each_place_that_takes_its_requests():
    rows = [row for row in placed_of(SERVE) if row.address]
    assert [(row.id, row.model, row.state) for row in rows] == [
        ("chat/chat.10.0.0.1.8000", "chat", "running"),
        ("chat/chat.10.0.0.2.8000", "chat", "stopping"),
    ]
    assert (rows[0].port_said, rows[0].path, rows[0].host) == ("8000", "/chat", "10.0.0.1-aaaaaaaa")


def test_what_serve_tells_load_balancers_counts_before_its_proxies():
    group = {
        "route_prefix": "/chat",
        "protocol": "HTTP",
        "targets": [{"ip": "10.0.0.9", "port": 30_001}, {"ip": "10.0.0.9", "port": 30_002}],
    }
    rows = [row for row in placed_of({**SERVE, "target_groups": [group]}) if row.address]
    assert [(row.address, row.port_said) for row in rows] == [
        ("10.0.0.9", "30001"),
        ("10.0.0.9", "30002"),
    ]


def test_replicas_are_rows_for_people_without_an_address():
    rows = [row for row in placed_of(SERVE) if not row.address]
    assert [(row.id, row.state, row.ready) for row in rows] == [
        ("chat/LLM#r1", "running", True),
        ("chat/LLM#r2", "pending", False),
    ]
    assert rows[0].log_stream == "/serve/r1.log"


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        "text",
        {"data": {"result": {"result": [1, {"node_id": 7}]}}},
        {"applications": {"x": {"route_prefix": "/", "deployments": {"d": {"replicas": [1]}}}}},
        {"applications": [1], "proxies": "no", "target_groups": [3]},
    ],
)
def test_what_is_not_understood_is_no_error(odd):
    hosts_of(odd, "zone", 0.0, 600.0)
    placed_of(odd)
