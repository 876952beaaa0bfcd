"""The calls to Ray that the bridge makes, each blocking: nodes, placement groups, actors, records.

Records of replicas are in the cluster's own key-value store, so that a control on another host
finds them. Actors and placement groups are detached and named: they outlive every driver.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from holdfast.core.deploy.node_choice import (
    ClusterNode,
    FailedReservations,
    NodeChoice,
    NodeRequest,
    choose_node,
)
from holdfast.launchers.ray import internals
from holdfast.launchers.ray.replica_host import ReplicaHost

PLACE_S: Final = 10.0  # for a reservation of what was seen to be free: it takes a tenth of a second
# For an actor's start, which is that of a Python process. A node that loads weights with all its
# cores may need a minute, and the next one would be no faster; one that dies is not waited for.
ACTOR_S: Final = 120.0
PLACES_S: Final = 150.0  # after that no further node is tried: it is asked for anew
_LOOK_S: Final = 0.5  # between two looks whether the node that is waited for has died
_NODE_LABEL: Final = "ray.io/node-id"


class ClusterRefusalError(Exception):
    """The cluster did not do what was asked; ``room`` is False where it is only full."""

    def __init__(self, text: str, *, room: bool = True) -> None:
        super().__init__(text)
        self.room = room


class _NodeFailedError(Exception):
    """A node did not do what it was chosen for; the text says what."""


class Cluster:
    """One Ray cluster, as far as replicas of one namespace are concerned."""

    def __init__(self, address: str, namespace: str, zone_label: str, lease_s: float) -> None:
        self._namespace = namespace
        self._zone_label = zone_label
        self._lease_s = lease_s
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=True,
        )
        self._actor = ray.remote(ReplicaHost)
        self._choosing = threading.Lock()
        # Choices that no record shows yet. Orders are carried out side by side: without this, all
        # replicas that start together would be placed on the one node that is empty.
        self._chosen: dict[str, tuple[str, NodeRequest]] = {}
        self._failed = FailedReservations()

    # --- nodes -----------------------------------------------------------------------------------

    def nodes(self) -> dict[str, dict[str, Any]]:
        """All nodes that the cluster knows, dead ones too, by id."""
        draining = internals.draining_nodes()
        return {
            row["NodeID"]: {
                "id": row["NodeID"],
                "alive": bool(row["Alive"]),
                "address": row["NodeManagerAddress"],
                "port": int(row.get("NodeManagerPort") or 0),
                "hostname": row.get("NodeManagerHostname", ""),
                "zone": (row.get("Labels") or {}).get(self._zone_label, ""),
                "reason": str(row.get("DeathReasonMessage") or ""),
                "leaving": row["NodeID"] in draining,
                "deadline_ms": draining.get(row["NodeID"], 0),
            }
            for row in ray.nodes()
        }

    def _candidates(self, lost: Callable[[str], bool]) -> list[ClusterNode]:
        free, now = internals.free_by_node(), time.monotonic_ns()
        models: dict[str, dict[str, int]] = {}
        running = [
            (record["node"], record["model"])
            for replica_id, record in self.records().items()
            if not record.get("ended") and replica_id not in self._chosen
        ]
        chosen = [(node, request.model) for node, request in self._chosen.values()]
        for node_id, model in [*running, *chosen]:
            on = models.setdefault(node_id, {})
            on[model] = on.get(model, 0) + 1
        return [
            ClusterNode(
                node["id"],
                node["address"],
                node["zone"],
                free.get(node["id"], {}).get("CPU", 0.0),
                free.get(node["id"], {}).get("GPU", 0.0),
                node["leaving"],
                models.get(node["id"], {}),
                lost=lost(node["id"]),
                failed=self._failed.failed(node["id"], now),
            )
            for node in self.nodes().values()
            if node["alive"]
        ]

    def _choose(
        self,
        replica_id: str,
        request: NodeRequest,
        lost: Callable[[str], bool],
        tried: Collection[str],
    ) -> NodeChoice:
        """Choose a node that was not tried yet, and count the replica as being there."""
        with self._choosing:
            self._chosen.pop(replica_id, None)
            nodes = [node for node in self._candidates(lost) if node.id not in tried]
            choice = choose_node(request, nodes)
            if choice.node is not None:
                self._chosen[replica_id] = (choice.node.id, request)
            return choice

    # --- one replica -----------------------------------------------------------------------------

    def reserve(
        self, replica_id: str, need: Mapping[str, Any], lost: Callable[[str], bool]
    ) -> dict[str, Any]:
        """Choose a node, reserve the replica's place on it and start its actor there.

        A node that does not reserve in time, or dies meanwhile, is given up for another one.
        ``lost`` says whether a node was seen to be dead, which Ray notices much later.
        """
        request = NodeRequest(need["model"], need["gpus"], need["cpus"], need["zone"])
        self.release(replica_id)  # what an earlier life left behind
        tried: dict[str, str] = {}  # nodes that did not do it, and what they did
        deadline = time.monotonic() + PLACES_S
        try:
            while True:
                choice = self._choose(replica_id, request, lost, tried)
                if choice.node is None or time.monotonic() > deadline:
                    why = "no other node took it" if tried else choice.reason
                    raise ClusterRefusalError("; ".join([*tried.values(), why]), room=False)
                try:
                    return self._settle(replica_id, request, choice, lost)
                except _NodeFailedError as error:
                    tried[choice.node.id] = str(error)
                    self._failed.add(choice.node.id, time.monotonic_ns())
                    self.release(replica_id)
        finally:
            with self._choosing:
                self._chosen.pop(replica_id, None)

    def _settle(
        self,
        replica_id: str,
        request: NodeRequest,
        choice: NodeChoice,
        lost: Callable[[str], bool],
    ) -> dict[str, Any]:
        """Reserve a replica's place on the chosen node, start its actor there and keep its record.

        Raises ``_NodeFailedError`` where the node does not do its part.
        """
        node = choice.node
        assert node is not None, "there is nothing to do without one"
        bundle = {"CPU": float(request.cpus), "GPU": float(request.gpus)}
        # Ray refuses empty bundles; a trace of memory stands for a replica that asks for nothing.
        bundle = {name: amount for name, amount in bundle.items() if amount} or {"memory": 1.0}
        group = placement_group(
            [bundle],
            strategy="STRICT_PACK",
            name=self._name(replica_id),
            lifetime="detached",
            bundle_label_selector=[{_NODE_LABEL: node.id}],
        )
        _until(lambda: group.wait(_LOOK_S), PLACE_S, node, lost, "did not reserve its room")
        self._failed.clear(node.id)
        actor = self._actor.options(
            name=self._name(replica_id),
            namespace=self._namespace,
            lifetime="detached",
            max_restarts=0,
            num_cpus=float(request.cpus),
            num_gpus=float(request.gpus),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0),
        ).remote(replica_id, self._lease_s)
        placed = actor.place.remote(node.address)

        def answered() -> bool:
            return bool(ray.wait([placed], timeout=_LOOK_S)[0])

        _until(answered, ACTOR_S, node, lost, "did not start its actor (see its raylet's logs)")
        try:
            found = ray.get(placed, timeout=_LOOK_S)
        except (RayError, GetTimeoutError) as error:
            self.release(replica_id)
            raise ClusterRefusalError(_why_no_actor(error)) from error
        record = {
            "model": request.model,
            "node": node.id,
            "address": node.address,
            "zone": node.zone,
            "reason": choice.reason,
            **found,
        }
        self.write(replica_id, record)
        return record

    def actor(self, replica_id: str) -> Any | None:
        """The handle of a replica's actor; None: there is no such actor (any more)."""
        try:
            return ray.get_actor(self._name(replica_id), namespace=self._namespace)
        except ValueError:
            return None

    def release(self, replica_id: str) -> None:
        """End a replica's actor and give its place back; nothing where there is none."""
        actor = self.actor(replica_id)
        if actor is not None:
            ray.kill(actor)
        group = self._group(replica_id)
        if group is not None:
            ray.util.remove_placement_group(group)

    def _group(self, replica_id: str) -> PlacementGroup | None:
        try:
            return ray.util.get_placement_group(self._name(replica_id))
        except ValueError:
            return None

    def _name(self, replica_id: str) -> str:
        return f"{self._namespace}/{replica_id}"

    # --- records ---------------------------------------------------------------------------------

    def records(self) -> dict[str, dict[str, Any]]:
        """What is kept of each replica of this namespace; unreadable records are left out."""
        prefix = f"{self._namespace}/".encode()
        found: dict[str, dict[str, Any]] = {}
        for key in internals.keys(prefix):
            replica_id = key[len(prefix) :].decode()
            record = self.read(replica_id)
            if record is not None:
                found[replica_id] = record
        return found

    def read(self, replica_id: str) -> dict[str, Any] | None:
        """Return a replica's record from the cluster; None where it is missing or damaged."""
        data = internals.get(self._key(replica_id))
        try:
            record = json.loads(data) if data is not None else None
        except ValueError:
            return None
        return record if isinstance(record, dict) and "node" in record else None

    def write(self, replica_id: str, record: Mapping[str, Any]) -> None:
        """Keep a replica's record, replacing what was kept."""
        internals.put(self._key(replica_id), json.dumps(record).encode())

    def forget(self, replica_id: str) -> None:
        """Delete a replica's record."""
        internals.delete(self._key(replica_id))

    def _key(self, replica_id: str) -> bytes:
        return self._name(replica_id).encode()


def _until(
    look: Callable[[], bool],
    within_s: float,
    node: ClusterNode,
    lost: Callable[[str], bool],
    failure: str,
) -> None:
    """Look until it is true; ``_NodeFailedError`` where its node dies first, or takes too long."""
    deadline = time.monotonic() + within_s
    while not look():
        if lost(node.id):
            raise _NodeFailedError(f"{node.address} died and {failure}")
        if time.monotonic() > deadline:
            raise _NodeFailedError(f"{node.address} {failure} in {within_s:g} s")


def _why_no_actor(error: Exception) -> str:
    text = str(error)
    if "No module named 'holdfast'" in text:
        return "its node's Python lacks Holdfast; install the same version on every node"
    return f"its actor did not start: {text.strip().splitlines()[-1][:200]}"


__all__ = ["ACTOR_S", "PLACES_S", "PLACE_S", "Cluster", "ClusterRefusalError"]
