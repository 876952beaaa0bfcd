"""Adds up the demand for each model from the reports of gateways, engines and the fleet.

Unknown stays unknown: a gateway that does not report its queue is not one with an empty queue. The
sum over the others is then a lower bound: enough to grow by, and never a reason to shrink.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.core.deploy.autoscale import Demand
from holdfast.core.messages import LoadReported
from holdfast.core.types import State

_STARTING: Final = (State.STARTING.value, State.LOADING.value, State.WARMING.value)


class DemandTracker:
    """Keeps each engine's last reported load; computes a model's demand for the autoscaler."""

    def __init__(self) -> None:
        self._loads: dict[str, LoadReported] = {}

    def loads(self, loads: Iterable[LoadReported]) -> None:
        """Store the loads that engines reported; one with neither queue nor KV use is forgotten."""
        for load in loads:
            if load.kv_used is None and load.waiting is None:
                self._loads.pop(load.replica_id, None)
            else:
                self._loads[load.replica_id] = load

    def of(
        self,
        model: str,
        gauges: Sequence[Mapping[str, float]],
        rows: Sequence[Mapping[str, Any]],
        now: int,
        device_memory: Mapping[str, float] | None = None,
    ) -> Demand:
        """Compute a model's demand from gateways, engines' loads and replicas; ``None`` is unknown.

        ``gauges`` has one mapping per gateway, empty if silent; sums over gateways that report are
        lower bounds. ``rows`` has the replicas of all models: loads of engines not among them are
        forgotten. ``device_memory`` has the share of GPU memory in use, by replica id.
        """
        self._forget_all_but({row["id"] for row in rows})
        mine = [row for row in rows if row["model"] == model]
        states = [row["state"] for row in mine]
        ready = [row["id"] for row in mine if row["state"] == State.READY.value]
        kv = [load.kv_used for name in ready if (load := self._loads.get(name)) is not None]
        memory = device_memory or {}
        late = _said(gauges, "first_token_p95_seconds", model)
        rate = _said(gauges, "tokens_per_second", model)
        # Looked at once a second, a short request is seldom in flight: what ran since counts, too.
        active = [one for one in _said(gauges, "active_requests", model) if one is not None]
        return Demand(
            at=now,
            queued_tokens=_least(_said(gauges, "queued_tokens", model)),
            queued=self._queued(_said(gauges, "queued_requests", model), mine),
            running=max(sum(int(row["inflight"]) for row in mine), round(sum(active))),
            kv_used=tuple(used for used in kv if used is not None),
            memory_used=tuple(memory[name] for name in ready if name in memory),
            first_token_p95=max((one for one in late if one is not None), default=None),
            token_rate=_whole(rate),
            ready=len(ready),
            starting=sum(states.count(state) for state in _STARTING),
        )

    def gauges(self) -> dict[str, float]:
        """Prometheus gauges of waiting requests and KV-cache use that engines last reported."""
        told: dict[str, float] = {}
        for load in self._loads.values():
            labels = f'{{model="{load.model}",replica="{load.replica_id}"}}'
            if load.waiting is not None:
                told[f"replica_waiting{labels}"] = load.waiting
            if load.kv_used is not None:
                told[f"replica_kv_used{labels}"] = load.kv_used
        return told

    def _forget_all_but(self, present: set[str]) -> None:
        if not self._loads.keys() <= present:
            self._loads = {name: one for name, one in self._loads.items() if name in present}

    def _queued(
        self, said: Sequence[float | None], rows: Sequence[Mapping[str, Any]]
    ) -> int | None:
        """Requests that wait at gateways plus those that wait inside engines."""
        loads = [self._loads.get(row["id"]) for row in rows]
        # One that does not tell adds nothing: what waits in it is in flight at our gateways, too.
        inside = sum(load.waiting or 0 for load in loads if load is not None)
        outside = _least(said)
        return inside or None if outside is None else outside + inside


def queued_at_gateways(model: str, gauges: Sequence[Mapping[str, float]]) -> int | None:
    """Requests that wait at gateways for a model, summed over the gateways that report.

    A lower bound if some do not. None: none reports, or only some do and their sum is 0.
    """
    return _least(_said(gauges, "queued_requests", model))


def _said(gauges: Sequence[Mapping[str, float]], name: str, model: str) -> list[float | None]:
    """Each gateway's value of a model's gauge; ``None`` for a gateway that does not report it."""
    series = f'{name}{{model="{model}"}}'
    return [one.get(series) for one in gauges]


def _least(said: Sequence[float | None]) -> int | None:
    """The sum of the known values, as a lower bound; None where some are unknown and it is 0."""
    total = round(sum(one for one in said if one is not None))
    known = bool(said) and None not in said
    return total if known or total else None


def _whole(said: Sequence[float | None]) -> float | None:
    """The sum, only if every gateway reports: a partial rate would be a false reason to shrink."""
    known = [one for one in said if one is not None]
    return sum(known) if known and len(known) == len(said) else None


__all__ = ["DemandTracker", "queued_at_gateways"]
