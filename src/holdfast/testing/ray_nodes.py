"""A Ray cluster of several nodes on this machine, for ``make test-ray`` and benchmarks.

It is slow to start (ten seconds on an idle machine) and large (15 processes, 1.4 GB), so there
should be one at a time. Every node is a raylet of its own with its own workers: one that is killed
takes its workers along, as a machine would.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

START_S: Final = 300.0  # for a node to come up; Ray's own 30 s are too few on a busy machine
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing about this machine leaves it
    # A node starts a Python process per CPU beforehand: minutes of work on a small machine.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # On a busy machine its parts wait for each other for longer than they would by themselves.
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
}

_AGENT_PORTS: Final = (
    *("metrics_agent_port", "metrics_export_port"),
    *("runtime_env_agent_port", "dashboard_agent_listen_port"),
)


class RayNodes:
    """A running cluster: its address, and its nodes by name."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: dict[str, Any] = {"a": cluster.head_node}

    @property
    def address(self) -> str:
        """Where drivers connect to."""
        return str(self._cluster.address)

    @property
    def dashboard(self) -> str:
        """Where the dashboard listens, as HOST:PORT; empty: it was not asked for."""
        return str(self._cluster.head_node.webui_url or "")

    def add(self, name: str, **options: Any) -> str:
        """Start one more node in zone ``zone-NAME``; returns its id."""
        self._nodes[name] = self._cluster.add_node(**node_options(name, **options))
        return self.id(name)

    def id(self, name: str) -> str:
        """The id that Ray knows a node by."""
        return str(self._nodes[name].node_id)

    def kill(self, name: str, *, spare_engines: bool = False) -> None:
        """Kill a node's processes without a word to anybody, engines first, as a power cut would.

        ``spare_engines``: only Ray itself dies, and its workers with it. Engines are in sessions of
        their own and run on until their keepers miss the actor.
        """
        node = self._nodes.pop(name)
        if not spare_engines:
            raylets = node.all_processes["raylet"]
            for pid in descendants(*(each.process.pid for each in raylets)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def suspend(self, name: str) -> None:
        """Stop a node's raylet: Ray lists it as alive for a while, and it does nothing."""
        for each in self._nodes[name].all_processes["raylet"]:
            os.kill(each.process.pid, signal.SIGSTOP)


def descendants(*roots: int) -> list[int]:
    """All processes that descend from these, the youngest generation last."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                text = (entry / "stat").read_bytes()
                parent = int(text[text.rindex(b")") + 2 :].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, generation = [], list(roots)
    while generation:
        generation = [child for pid in generation for child in children.get(pid, ())]
        found += generation
    return found


def node_options(name: str, **more: Any) -> dict[str, Any]:
    """The options of one small node."""
    return {
        **dict(zip(_AGENT_PORTS, _free_ports(len(_AGENT_PORTS)), strict=True)),
        "num_cpus": 4,
        "num_gpus": 4,  # on paper: nothing here computes
        "object_store_memory": 80 << 20,
        "labels": {"zone": f"zone-{name}"},
        "include_log_monitor": False,
        **more,
    }


def _free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, each another one."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _with_known_ports(start: Callable[..., Any], *, dashboard: bool) -> Callable[..., Any]:
    """Write the ports of a node's agents down before its raylet starts.

    A raylet ends itself where its agents have not written them within 30 s; ours are chosen
    beforehand, so it need not wait.
    """
    from ray._raylet import persist_port  # noqa: PLC0415

    def start_at_once(*args: Any, **kwargs: Any) -> Any:
        node_id, session = args[2], args[11]
        for name in _AGENT_PORTS:
            served = dashboard or name in {"metrics_export_port", "runtime_env_agent_port"}
            persist_port(session, node_id, name, kwargs[name] if served else -1)
        return start(*args, **kwargs)

    return start_at_once


def _patient(look: Callable[..., Any]) -> Callable[..., Any]:
    """Look up a node until it is there: Ray itself gives up after 30 s."""

    def look_long(*args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return look(*args, **kwargs)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    return look_long


@contextmanager
def ray_nodes(*others: str, dashboard: bool = False, **head: Any) -> Iterator[RayNodes]:
    """Run a head ``a`` and the ``others`` for the duration of a block; nothing is left behind."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray  # noqa: PLC0415 only its own environment has it
    from ray._private import services, utils  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    services.get_node = _patient(services.get_node)
    services.start_raylet = _with_known_ports(services.start_raylet, dashboard=dashboard)
    if not dashboard:  # then agents load a tenth
        utils.get_dashboard_dependency_error = lambda: "not asked for"
    options = node_options("a", include_dashboard=dashboard, **head)
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=options)
    nodes = RayNodes(cluster)
    try:
        for name in others:
            nodes.add(name)
        yield nodes
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


__all__ = ["RayNodes", "descendants", "node_options", "ray_nodes"]
