"""A Ray cluster of two nodes on this machine, for ``make test-ray`` and benchmarks.

It is slow to start (ten seconds) and large (15 processes, 1.4 GB), so there is one at a time.
"""

import os
from contextlib import contextmanager

# Nothing about this machine leaves it, and no test waits for a dashboard that it does not use.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
# A node starts a Python process per CPU beforehand, and takes 30 s for that where others work too.
os.environ.setdefault("RAY_enable_worker_prestart", "0")
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")

START_ATTEMPTS = 4


class Nodes:
    """The cluster, its address, and its nodes by name."""

    def __init__(self, cluster, names):
        self.cluster = cluster
        self.names = names

    @property
    def address(self):
        return self.cluster.address

    def add(self, name, **more):
        for attempt in range(START_ATTEMPTS):
            try:
                self.names[name] = self.cluster.add_node(**node_options(name, **more))
                break
            except Exception as error:
                # Ray gives a node 30 s to come up, whatever else the machine has to do.
                if "timed out during startup" not in str(error) or attempt == START_ATTEMPTS - 1:
                    raise
        return self.names[name]

    def kill(self, name):
        """End a node's raylet as a power cut would: no word to anybody."""
        self.cluster.remove_node(self.names.pop(name), allow_graceful=False)


def node_options(name, **more):
    return {
        "num_cpus": 4,
        "include_log_monitor": False,
        "num_gpus": 4,
        "object_store_memory": 80 << 20,
        "labels": {"zone": f"zone-{name}"},
        **more,
    }


@contextmanager
def two_nodes(*, dashboard=False):
    """A head ``a`` and a second node ``b``; everything is ended with the block."""
    import ray  # noqa: PLC0415 only this environment has it
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    head = node_options("a", include_dashboard=dashboard)
    cluster = Cluster(initialize_head=True, connect=False, head_node_args=head)
    nodes = Nodes(cluster, {"a": cluster.head_node})
    try:
        nodes.add("b")
        yield nodes
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()
