"""A replica that control launched: its start command, its process and its state.

The command is kept with the replica, not looked up in the file: while a new revision comes in, an
old replica that dies must come back as what it was.
"""

import socket
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

import orjson

from holdfast.config.fleet_file import EndpointSection, ModelSection
from holdfast.config.launch import VISIBLE
from holdfast.config.platforms.kubernetes import ENGINE_PORT_DEFAULT
from holdfast.control.deploy.gpu_request import devices_of, gpu_request_of
from holdfast.core.deploy.gpu_placement import GpuRequest, Overcommit
from holdfast.core.deploy.rollout import Has
from holdfast.core.failure import Kind
from holdfast.core.health.health import ReplicaHealth
from holdfast.core.types import State, require
from holdfast.engines import Dialect, dialect
from holdfast.engines.launch_command import LaunchSpec, command_line, environment, fill_device
from holdfast.ports import Order, Place, PlaceRequest

_PLATFORM: Final = ("on", "node", "address", "devices", "cpus", "any_zone", "node_zone")
GPUS: Final = "gpus"  # in the note of an order: the devices of its process
UNIT: Final = "unit"  # in the note of an order on a platform: what the store keeps of a replica
EARLY_EXITS_MAX: Final = 3  # of a replica that was never ready: it will not be
HOST: Final = "127.0.0.1"  # the process launcher starts replicas on this machine
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 of a pod's own network


@dataclass(slots=True, eq=False)
class LaunchedReplica:
    """A replica that control launches: its start settings, its process and its phase.

    It may have no process yet (``pid`` is None).
    """

    id: str
    model: str
    revision: str
    zone: str
    region: str
    engine: str
    build: str  # what a rollout tells apart: the revision, and a digest of how it is started
    spec: LaunchSpec
    environment: dict[str, str] = field(default_factory=dict)  # what the file adds
    version: str = ""  # of the engine, where it is known
    pass_env: list[str] = field(default_factory=list)  # what it gets of control's environment
    held: bool = False  # drained by an operator: it stays until it is asked back
    loaded: bool = False  # the process that runs said so; another control then finds it serving
    was_ready: bool = False  # in this life or an earlier one
    on: str = ""  # the platform that runs it; empty: this host
    node: str = ""  # the host that its platform chose, in the platform's words
    address: str = ""  # of that host; empty: this one
    devices: int = 0  # GPUs that its platform is asked for
    cpus: float = 0.0  # that its platform sets aside for it
    any_zone: bool = False  # the file names no zones: its platform spreads replicas over its own
    node_zone: str = ""  # the zone of the host that its platform chose; empty: unknown
    platform: dict[str, Any] = field(default_factory=dict)  # what only its platform reads
    gpu_request: GpuRequest | None = None  # what is chosen for it; None: nothing
    gpus: list[str] = field(default_factory=list)  # UUIDs of the devices that its process has
    # Not kept beyond this process:
    pid: int | None = None
    phase: str = ""  # of its loading, as its log told
    doing: str = ""  # the same by the names that patience with silence goes by
    began: int | None = None  # its process, in core time
    removing: bool = False
    why_removed: str = ""
    early_exits: int = 0  # before it was ever ready
    failed: str = ""  # why it can never be admitted
    fatal: tuple[Kind, str] | None = None  # what its log named last as a cause
    gpu_numbers: tuple[str, ...] = ()  # of its devices, in the driver's order, for the next start
    lacks: str = ""  # why it has no device yet, while it waits for one
    heir: str = ""  # whom its devices are kept for when it ends
    nccl: str = ""  # its version, as its log told

    @property
    def url(self) -> str:
        """The http URL of the replica's address and port; on this host it is 127.0.0.1."""
        address = self.address or HOST
        return (
            f"http://[{address}]:{self.spec.port}"
            if ":" in address
            else (f"http://{address}:{self.spec.port}")
        )

    def note_health(self, health: ReplicaHealth | None) -> bool:
        """Learn from the fleet's judgement whether it was ever ready, or can never be admitted.

        ``health``: None where the fleet has no such replica. Returns whether it is known only now
        that it was ready: that is to be stored.
        """
        if health is None or self.was_ready:
            return False
        # Between two looks it may have been ready and have fallen ill: its history tells.
        self.was_ready = any(change.after is State.READY for change in health.history)
        if not self.was_ready:
            if health.wrong or health.wrong_revision:
                self.failed = health.reason
            elif self.early_exits >= EARLY_EXITS_MAX:
                self.failed = f"ended {self.early_exits} times before it was ready"
        return self.was_ready

    def presence(self, health: ReplicaHealth | None) -> Has:
        """The replica as a rollout counts it, by the fleet's judgement of it."""
        state = health.state if health is not None else State.STARTING
        if state is State.STOPPED and self.held and not self.removing:
            state = State.READY  # an operator keeps its place: nobody is to be launched for it
        elif self.removing:
            state = State.DRAINING  # until its process is gone it occupies what the next one needs
        return Has(
            self.id,
            self.build,
            self.zone,
            state,
            health.since if health is not None else 0,
            wrong=health.wrong if health is not None else False,
            leaving=self.removing,
            failed=self.failed,
            unplaced=bool(self.lacks),
        )

    def place_request(self) -> PlaceRequest:
        """Build the request for a place on its platform: zone, GPUs, CPUs. Sends nothing.

        It holds the start order, too, for platforms that start the replica themselves.
        """
        order = self._order(self._pod_spec()) if self.platform else None
        zone = "" if self.any_zone else self.zone
        return PlaceRequest(self.id, self.model, zone, self.devices, self.cpus, order)

    def take_place(self, place: Place) -> None:
        """Take the host, address, zone and port that its platform has chosen for it."""
        self.node, self.address, self.node_zone = place.host, place.address, place.zone
        self.spec = replace(self.spec, host=place.listen or place.address, port=place.port)

    def leave_place(self, taken: set[int]) -> None:
        """Reset its address to this host, with a free port not in ``taken``.

        Called when its platform gave the address of its ended process to another replica.
        """
        self.node = self.address = ""
        self.spec = replace(self.spec, host=HOST, port=free_port(taken))

    def _pod_spec(self) -> LaunchSpec:
        """Its settings in a pod: an address of its own, and so a port that nobody else has."""
        port = (self.platform.get("kubernetes") or {}).get("port") or ENGINE_PORT_DEFAULT
        return replace(self.spec, host=ANY_ADDRESS, port=port)

    def order(self) -> Order:
        """Build the launcher's start order: command, environment, port, note. Starts nothing.

        Raises ``ConfigError`` where the engine cannot be started so.
        """
        return self._order(self.spec)

    def _order(self, settings: LaunchSpec) -> Order:
        known, spec = dialect(self.engine), replace(settings, device=",".join(self.gpus))
        said = {name: fill_device(value, spec) for name, value in self.environment.items()}
        around = {**environment(known, spec), **self._visible(known), **said}
        note = {"model": self.model} | ({GPUS: spec.device} if self.gpus else {})
        if self.platform:  # a control on another host, without this one's store, goes on with it
            note[UNIT] = orjson.dumps(self.to_store()).decode()
        words, passed = command_line(known, spec), tuple(self.pass_env)
        return Order(self.id, words, around, spec.port, note, passed, self.on, self.platform)

    def _visible(self, known: Dialect) -> dict[str, str]:
        """The variables that let an engine see its own devices and no others."""
        if not self.gpus:
            return {}
        numbers = self.gpu_numbers
        if known.counts_gpus and numbers and all(each.isdigit() for each in numbers):
            return {VISIBLE: ",".join(numbers), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return {VISIBLE: ",".join(self.gpus)}

    @property
    def visible_gpus(self) -> str:
        """The GPUs its process may see, comma-separated; empty means all.

        Those chosen for it, else ``CUDA_VISIBLE_DEVICES`` of the fleet file.
        """
        return ",".join(self.gpus) or self.environment.get(VISIBLE, "")

    def adopt_gpus(self, order: Order) -> None:
        """Set its GPUs to those that its running process was started with, by that order."""
        told = order.note.get(GPUS, "")
        self.gpus = told.split(",") if told else []

    def endpoint(self) -> EndpointSection:
        """The replica as an endpoint section, to be added to the fleet file in use."""
        return EndpointSection(
            url=self.url,
            id=self.id,
            zone=self.node_zone or self.zone,
            region=self.region,
            revision=self.revision,
            slots=self.spec.slots,
            host=self.node,
        )

    def sibling(self, replica_id: str, zone: str, taken: set[int]) -> "LaunchedReplica":
        """A new replica of the same build and settings, with another id, zone and free port.

        Its process, GPUs and place are not copied.
        """
        spec = replace(self.spec, host=HOST, port=free_port(taken))
        told = (self.region, self.engine, self.build, spec, dict(self.environment), self.version)
        return LaunchedReplica(
            *(replica_id, self.model, self.revision, zone, *told),
            pass_env=list(self.pass_env),
            on=self.on,
            devices=self.devices,
            cpus=self.cpus,
            any_zone=self.any_zone,
            platform=dict(self.platform),
            gpu_request=self.gpu_request,
        )

    def to_store(self) -> dict[str, Any]:
        """The fields that must survive this process, as plain data; ``from_store`` reads it."""
        names = (
            *("id", "model", "revision", "zone", "region", "engine", "build"),
            *("environment", "version", "pass_env", "held", "loaded", "was_ready"),
        )
        spec = {name: value for name, value in asdict(self.spec).items() if name != "device"}
        kept = {**{name: getattr(self, name) for name in names}, "spec": spec}
        if self.gpu_request is not None:  # of all others an earlier control can read it all
            kept["gpu_request"], kept["gpus"] = asdict(self.gpu_request), list(self.gpus)
        if self.on:  # as above
            kept |= {name: getattr(self, name) for name in _PLATFORM}
        if self.platform:
            kept["platform"] = self.platform
        return kept

    @classmethod
    def from_store(cls, data: dict[str, Any]) -> "LaunchedReplica":
        """Rebuild a replica, without a process, from ``to_store`` data.

        Raises ``TypeError``, ``KeyError`` or ``ValueError`` where it cannot be read.
        """
        said = data["spec"]
        lists = {name: tuple(said[name]) for name in ("arguments", "command")}
        built: dict[str, Any] = {"spec": LaunchSpec(**{**said, **lists})}
        asked = data.get("gpu_request")
        if asked is not None:
            beside = Overcommit(asked["overcommit"])
            built["gpu_request"] = GpuRequest(**{**asked, "overcommit": beside})
        return cls(**{**data, **built})


def build_of(model: ModelSection, version: str) -> str:
    """The name of a model's build: its revision, ``+``, and a digest of its start settings.

    Replicas with the same build need not be replaced by a rollout; number, zones and memory bounds
    do not count.
    """
    assert model.launch is not None, "only launched models have builds"
    how = model.launch.model_dump(mode="json", exclude={"replicas", "zones", "region", "memory"})
    for name, unset in (
        ("pass_env", []),
        ("gpus", None),
        ("gpu_share", None),
        ("on", ""),
        ("cpus", 0),
        ("kubernetes", None),
    ):
        if how[name] == unset:
            del how[name]  # or a fleet of before this key would be replaced for nothing
    pod = how.get("kubernetes", {})
    if pod and pod["run_as"] is None and not pod["capabilities"]:
        del pod["run_as"], pod["capabilities"]  # the pod of before these keys
    text = orjson.dumps([how, model.engine, model.served_as, version], option=orjson.OPT_SORT_KEYS)
    return f"{model.revision}+{blake2b(text, digest_size=4).hexdigest()}"


def new_launched_replica(
    model: ModelSection, number: int, zone: str, weights: str, version: str, taken: set[int]
) -> LaunchedReplica:
    """Build a new replica ``model-number`` on a free port not in ``taken``; starts nothing.

    Raises ``ConfigError`` where its GPU settings contradict each other or no port is free.
    """
    launch = model.launch
    assert launch is not None, "only launched models have launched replicas"
    spec = LaunchSpec(
        weights=weights,
        served_as=model.served_as or model.name,
        host=HOST,
        port=free_port(taken),
        tensor_parallel=launch.tensor_parallel,
        pipeline_parallel=launch.pipeline_parallel,
        context=launch.context,
        quantisation=launch.quantisation,
        memory_fraction=launch.memory_fraction,
        slots=launch.slots,
        threads=launch.threads,
        embedded=launch.embedded,
        arguments=tuple(launch.arguments),
        command=tuple(launch.command),
        revision=model.revision,
    )
    return LaunchedReplica(
        id=f"{model.name}-{number}",
        model=model.name,
        revision=model.revision,
        zone=zone,
        region=launch.region,
        engine=model.engine,
        build=build_of(model, version),
        spec=spec,
        environment=dict(launch.environment),
        version=version,
        pass_env=list(launch.pass_env),
        on=launch.on,
        devices=devices_of(model) if launch.on else 0,
        cpus=launch.cpus,
        any_zone=bool(launch.on) and "zones" not in launch.model_fields_set,
        platform=launch.model_dump(mode="json") if launch.kubernetes is not None else {},
        gpu_request=gpu_request_of(model),
    )


def free_port(taken: set[int]) -> int:
    """Find a port of this host that nothing listens on and that is not in ``taken``.

    It is not reserved. Raises ``ConfigError`` after 64 attempts.
    """
    for _ in range(64):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in taken:
            return port
    require(False, "launch", "finds no free port", "stop what listens on so many")
    raise AssertionError("require raised")


def is_free(port: int) -> bool:
    """Whether this port of 127.0.0.1 can be bound now; nothing stays bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


__all__ = [
    "EARLY_EXITS_MAX",
    "HOST",
    "LaunchedReplica",
    "build_of",
    "free_port",
    "is_free",
    "new_launched_replica",
]
