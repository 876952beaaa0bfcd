"""Control's own records of replicas and models, ready to be joined with platforms' readings.

Every value here is a state without a clock in it: two equal values mean that nothing has changed,
so that a display need not compare each row to know that. Times are points, not ages.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.gpu import GpuUse


@dataclass(slots=True, frozen=True)
class ReplicaRecord:
    """Present figures of one replica that Holdfast routes requests to, as control knows them.

    Made anew for each view; ``/status`` and the joined view are both made of it. None or empty:
    unknown. What only ``/status`` shows is left out of comparisons.
    """

    id: str
    model: str
    state: str  # of core.types.State
    revision: str = ""
    reason: str = ""
    zone: str = ""
    host: str = ""
    endpoint: str = ""
    phase: str = ""  # of a launched one that is not ready yet
    launched: bool = False
    started_at: float | None = None  # seconds since 1970
    filesystem: str = ""
    needs_gpu: bool | None = None
    reserved_bytes: int | None = None
    limit_bytes: int | None = None
    used_bytes: int | None = None
    share: float | None = None  # of its model's requests
    inflight: int | None = None
    running: int | None = None  # in the engine
    waiting: int | None = None
    kv_used: float | None = None
    tokens_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    canary_s: float | None = None
    canary_verdict: str = ""  # empty: it has not been asked
    restarts: int | None = None
    gpu: GpuUse | None = None  # of a launched one, by its processes; None: unknown, or none
    memory_grows: bool = False  # its GPU memory goes with its work; else it is taken at the start
    inferences_s: float | None = None  # of an inference server: requests that ended in it
    failed_share: float | None = None  # of those, by its own counts
    queue_s: float | None = None  # mean wait in the server's queue, in the last minute
    compute_s: float | None = None  # mean time that the server computed one batch
    batch: float | None = None  # inferences for each execution
    batch_max: int | None = None  # the largest since its start
    engine_gpu_used_bytes: int | None = None  # of its devices, by its server; with others' use
    engine_gpu_total_bytes: int | None = None
    region: str = field(default="", compare=False)
    routing_share: float | None = field(default=None, compare=False)  # as gateways are told
    canary: object = field(default=None, compare=False)  # the last one, as control keeps it
    pid: int | None = field(default=None, compare=False)  # of a launched one
    last_phase: str = field(default="", compare=False)  # of a launched one, loaded or not


@dataclass(slots=True, frozen=True)
class ModelRecord:
    """Present figures of one model of the fleet file, for the view; holds no settings.

    Wanted and unplaced replicas, requests queued and in flight, rates, time to first token, errors,
    made anew for each view from control's and gateways' numbers. None: unknown.
    """

    name: str
    desired: int | None = None
    reason: str = ""  # why replicas that are wished for do not run
    queued: int | None = None  # at gateways
    inflight: int | None = None
    requests_s: float | None = None
    tokens_s: float | None = None
    prefix_hits: float | None = None
    ttft_s: float | None = None
    errors_share: float | None = None
    burn: float | None = None
    unplaced: int = 0  # launched replicas that wait for hardware


@dataclass(slots=True, frozen=True)
class FleetRecords:
    """Present figures of all replicas and models that control knows, and totals over the fleet.

    Made anew for each view; platforms' readings are not in it.
    """

    replicas: tuple[ReplicaRecord, ...] = ()
    models: tuple[ModelRecord, ...] = ()
    totals: Mapping[str, float | int | str] = field(default_factory=dict)


__all__ = ["FleetRecords", "ModelRecord", "ReplicaRecord"]
