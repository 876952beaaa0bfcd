"""The values that platforms report: groups, hosts, placed replicas, queues, filesystems.

    AWS, Kubernetes, agents, this host ─► Reading ─┬─► snapshot_join ─► Snapshot (people)
                                                   └─► reading_diff ─► facts ─► detectors

A source reads one platform and returns a *reading*: everything it knows at that moment, each part
with the time of its last successful read. When one call of several fails, its part keeps what it
had, with its age and the reason, and the others go on: a view with one old part is worth more than
no view. ``None`` is unknown everywhere; it is neither zero nor full.

Facts, which detectors read, are single observations; a reading is a state. Both are needed: a table
of hosts cannot be drawn from changes, and an incident cannot be timed from states.
"""

from dataclasses import dataclass

from holdfast.core.gpu import GpuDevice, GpuUse
from holdfast.core.types import HostCondition
from holdfast.core.view.pod_pools import NO_POOLS, PodPools


@dataclass(slots=True, frozen=True)
class Part:
    """One kind of query of a source to its platform: when it last succeeded, its error and cost."""

    name: str  # autoscaling, ecs, sqs, pods …
    at: float | None = None  # when it was last read well, seconds since 1970; None: never
    error: str = ""  # why the last try failed; empty: it did not
    failing_since: float | None = None
    calls: int = 0  # made for the last reading
    took_s: float = 0.0
    feeds: tuple[str, ...] = ()  # kinds of rows, as in ``staleness``; empty: by its name


@dataclass(slots=True, frozen=True)
class Group:
    """Hosts of one kind as a platform lists them (auto scaling group, node group): wanted counts.

    None: unknown.
    """

    name: str
    desired: int | None = None
    minimum: int | None = None
    maximum: int | None = None


@dataclass(slots=True, frozen=True)
class Host:
    """Figures now of one machine that replicas run on, as its platform or agent reports them.

    None or empty: unknown.
    """

    id: str
    group: str = ""
    kind: str = ""  # g5.4xlarge
    market: str = ""  # on-demand, spot, capacity-block; empty: unknown
    zone: str = ""
    state: str = ""  # as its platform says; empty: nothing is wrong
    remarks: str = ""  # of its platform, good or bad: nobody here knows
    launched_at: float | None = None
    joined_at: float | None = None  # when it could first be used
    cpus: float | None = None
    cpus_free: float | None = None  # not reserved; says nothing about load
    memory_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None  # really in use
    gpus: int | None = None
    gpus_free: int | None = None
    running: int | None = None
    pending: int | None = None
    cuda: str = ""
    driver: str = ""
    pressure: float | None = None  # share of the last 10 s in which memory held somebody up
    gpu_memory_bytes: int | None = None  # of all its GPUs
    gpu_used_bytes: int | None = None
    gpu_busy: float | None = None  # share of the time in which they computed, 0 to 1
    gpu_fault: str = ""  # what a driver reported last, for people
    load: float | None = None  # processes that run or wait for a CPU, mean of the last minute
    disk_bytes: int | None = None  # of its own filesystem that is nearest to full
    disk_free_bytes: int | None = None
    condition: HostCondition | None = None  # whether it can run replicas; None: nobody says
    condition_reason: str = ""  # in its platform's words
    condition_since: float | None = None
    devices: tuple[GpuDevice, ...] = ()  # its GPUs one by one, as far as somebody reads them
    notice: str = ""  # why its platform takes it away within minutes; empty: nobody says so


@dataclass(slots=True, frozen=True)
class Placed:
    """Figures now of one replica as its platform lists it (a task, pod or process), ended or not.

    None or empty: unknown. Times are seconds since 1970.
    """

    id: str
    model: str
    state: str  # pending, running, stopping or stopped
    host: str = ""
    revision: str = ""
    replica: str = ""  # its id in the fleet, where Holdfast routes to it
    endpoint: str = ""
    needs_gpu: bool | None = None
    gpus: int | None = None
    reserved_bytes: int | None = None
    limit_bytes: int | None = None
    used_bytes: int | None = None
    filesystem: str = ""
    log_stream: str = ""
    image: str = ""
    created_at: float | None = None
    started_at: float | None = None
    stopped_at: float | None = None
    exit_code: int | None = None
    oom: bool = False  # the platform says that memory was the reason
    restarts: int | None = None
    reason: str = ""  # for people: why it waits or why it ended
    phase: str = ""  # what its log said last: loading, loaded, request, serving
    spoke_at: float | None = None  # when it last wrote anything, delays of the log taken out
    read_bytes: int | None = None  # of its weights, while it loads
    gpu_used_bytes: int | None = None
    address: str = ""  # where it can be reached, without a port
    labels: tuple[tuple[str, str], ...] = ()  # as its platform has them
    uid: str = ""  # differs where another took over the id
    digest: str = ""  # of its image, where the platform says which bytes run
    image_asked: str = ""  # the image's name in its definition, where ``image`` has more
    ready: bool | None = None  # its platform's own probes say so
    served: bool | None = None  # it had been ready in the life that ended last; None: unknown
    ended_began_at: float | None = None  # when that life began
    ports: tuple[tuple[str, int], ...] = ()  # that it declares, with their names
    port_said: str = ""  # the one that its engine listens on, as the pod itself says
    path: str = ""  # below which it answers, without a last slash
    gpu: GpuUse | None = None  # of the GPUs it runs on; None: unknown, or it has none
    devices: tuple[str, ...] = ()  # ids of the GPUs it runs on
    notice: str = ""  # why its platform is about to end it; empty: nobody says so


@dataclass(slots=True, frozen=True)
class Queue:
    """Figures now of one queue of a platform with work for one model: waiting, in flight, dead.

    None: unknown.
    """

    name: str
    model: str
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    dead_letters: int | None = None
    dead_letter_queue: str = ""
    oldest_s: float | None = None
    drain_s: float | None = None  # until it is worked off, at the present rate
    deferrable: bool | None = None  # True: batch work, which waits by nature; its age is no fault


@dataclass(slots=True, frozen=True)
class Disk:
    """Figures now of one shared filesystem that hosts read weights from: its load and its limits.

    None: unknown.
    """

    id: str
    mode: str = ""  # bursting, provisioned, elastic, nfs4, ceph
    read_bytes_s: float | None = None
    metered_bytes_s: float | None = None
    permitted_bytes_s: float | None = None  # None: it has no ceiling, or nobody knows it
    operations_share: float | None = None  # of the operations it permits, 0 to 1
    burst_credit_bytes: float | None = None
    clients: int | None = None
    size_bytes: int | None = None
    free_bytes: int | None = None
    operations_s: float | None = None  # asked of it by the hosts that tell


@dataclass(slots=True, frozen=True)
class DesiredReplicas:
    """How many replicas of one model a platform is asked for, how many it has now, and why fewer.

    None: unknown.
    """

    model: str
    desired: int | None = None
    running: int | None = None
    pending: int | None = None
    reason: str = ""  # what the platform last said about not being able to
    since: float | None = None
    gpus: int | None = None  # that each replica needs


@dataclass(slots=True, frozen=True)
class Reading:
    """Everything that one source (a platform, an agent, this host) reports at one moment.

    A state, not news; times are seconds since 1970. Rows of a part that failed are those of its
    last success.
    """

    source: str  # its name in the fleet file
    kind: str  # local, aws, kubernetes, agent
    at: float
    parts: tuple[Part, ...] = ()
    groups: tuple[Group, ...] = ()
    hosts: tuple[Host, ...] = ()
    placed: tuple[Placed, ...] = ()
    queues: tuple[Queue, ...] = ()
    disks: tuple[Disk, ...] = ()
    wishes: tuple[DesiredReplicas, ...] = ()
    notes: tuple[str, ...] = ()  # what it could not make sense of, for people
    pools: PodPools = NO_POOLS  # of pods, where the platform has some by name


__all__ = ["DesiredReplicas", "Disk", "Group", "Host", "Part", "Placed", "Queue", "Reading"]
