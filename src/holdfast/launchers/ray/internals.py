"""What is used of Ray beyond its public interface, in one place, with what is done without it.

    which nodes are drained    no public call    without it: a node that leaves is noticed as lost
    what is free on each node  no public call    without it: what each node has in all; a node that
                                                 turns out to be full is given up after 10 s
    the key-value store        ``ray.experimental.internal_kv``, on which Ray's own libraries rest

Everything else (nodes, actors, placement groups, labels) is public. A Ray that lacks one of the
first two is served all the same; without the third nothing can be kept, and the bridge says so.
"""

import sys
from collections.abc import Mapping
from typing import Final

import ray
from ray.experimental import internal_kv

_KV: Final = b"holdfast-replicas"
_warned: Final[set[str]] = set()  # each is said once


def draining_nodes() -> dict[str, int]:
    """The nodes that are drained, each with its deadline (ms since 1970; 0: none)."""
    try:
        from ray._private.state import state  # noqa: PLC0415 Serve reads it there, too

        found = state.get_draining_nodes()
    except (ImportError, AttributeError) as error:
        _warn(f"which nodes are drained cannot be read from this Ray: {error}")
        return {}
    return {node: int(deadline or 0) for node, deadline in found.items()}


def free_by_node() -> dict[str, Mapping[str, float]]:
    """The CPUs and GPUs that are free on each node, by the node's id."""
    try:
        from ray._private.state import state  # noqa: PLC0415 as above

        return {node: dict(free) for node, free in state.available_resources_per_node().items()}
    except (ImportError, AttributeError) as error:
        _warn(f"what is free on nodes cannot be read from this Ray: {error}")
        return {row["NodeID"]: dict(row["Resources"]) for row in ray.nodes() if row["Alive"]}


def _warn(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        sys.stderr.write(f"{text}\n")  # the bridge's log


# --- the cluster's key-value store ----------------------------------------------------------------


def keys(prefix: bytes) -> list[bytes]:
    """All keys of ours that begin so."""
    found = internal_kv._internal_kv_list(prefix, namespace=_KV)  # noqa: SLF001
    return [bytes(key) for key in found]


def get(key: bytes) -> bytes | None:
    """The value of a key; None: there is none."""
    value: bytes | None = internal_kv._internal_kv_get(key, namespace=_KV)  # noqa: SLF001
    return value


def put(key: bytes, value: bytes) -> None:
    """Set the value of a key."""
    internal_kv._internal_kv_put(key, value, namespace=_KV)  # noqa: SLF001


def delete(key: bytes) -> None:
    """Delete a key; nothing happens where there is none."""
    internal_kv._internal_kv_del(key, namespace=_KV)  # noqa: SLF001


__all__ = ["delete", "draining_nodes", "free_by_node", "get", "keys", "put"]
