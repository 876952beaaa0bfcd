"""Config of launched replicas: how Holdfast starts the replicas of a model itself.

One section holds for all replicas of a model: they are alike, or an answer could not be compared
with another's. Hosts and ports are not part of it; control chooses free ones and tells the
gateways. Which options become which arguments is each engine's own matter; an engine that the
file cannot describe is started by a command.

Rejected: a shell line as the command. Its quoting is a second language inside the file, and what
was reviewed would not be what runs. Rejected: secrets under ``environment``; the file travels to
every gateway and is printed for operators.
"""

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from holdfast.config.incidents import MemorySection
from holdfast.config.platforms.kubernetes import PodSection, check_hosts
from holdfast.config.sections import Duration, Section
from holdfast.core.deploy.gpu_placement import DEVICES_MAX
from holdfast.core.types import ConfigError, require

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"  # what an engine may see of its host's GPUs
DEVICE: Final = "{device}"  # stands for the UUIDs of the chosen GPUs
REPLICAS_MAX: Final = 256  # of one model on one host: each is a process, a port and a log

_SECRET: Final = re.compile(
    r"(?:.*_)?(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)"
)

_Variable = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# A NUL ends a string for the kernel: an argument would be cut where nobody sees it.
_Word = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$", description="text")]
_Variables = dict[_Variable, _Word]


def names_secret(name: str) -> bool:
    """Whether the name of a variable looks like that of a secret."""
    return _SECRET.fullmatch(name.upper()) is not None


def _without_secrets(value: object) -> object:
    """Refuse what is named like a secret before anything could repeat its value."""
    for name in value if isinstance(value, dict) else ():
        if isinstance(name, str) and names_secret(name):
            fix = "set it where holdfast itself is started, and name it under pass_env"
            raise ConfigError("variable", f"{name[:80]} is, by its name, a secret", fix)
    return value


class LaunchSection(Section):
    """How many replicas to start, in which zones, and with which settings."""

    on: Literal["", "ray", "kubernetes"] = ""  # empty: this host
    replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX, description="a number of replicas")] = 1
    zones: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64, description="a zone")]],
        Field(min_length=1, max_length=64, description="zones"),
    ] = Field(default_factory=lambda: ["zone-a"])
    region: Annotated[str, Field(min_length=1, max_length=64, description="a region")] = "region-a"
    weights: _Word = ""
    command: Annotated[list[_Word], Field(max_length=256)] = Field(default_factory=list)
    arguments: Annotated[list[_Word], Field(max_length=256)] = Field(default_factory=list)
    environment: Annotated[
        _Variables,
        BeforeValidator(_without_secrets, json_schema_input_type=_Variables),
        Field(max_length=256, repr=False),
    ] = Field(default_factory=dict)
    pass_env: Annotated[
        list[_Variable], Field(max_length=256, description="names of variables")
    ] = Field(default_factory=list)
    tensor_parallel: Annotated[int, Field(ge=1, le=1024, description="devices")] = 1
    pipeline_parallel: Annotated[int, Field(ge=1, le=1024, description="stages")] = 1
    gpus: Annotated[int, Field(ge=0, le=DEVICES_MAX, description="devices")] | None = None
    cpus: Annotated[float, Field(ge=0, le=4096, description="CPUs")] = 0.0
    gpu_share: Annotated[float, Field(gt=0, le=1, description="a share")] | None = None
    context: Annotated[int, Field(ge=0, description="tokens; 0 = the engine's own")] = 0
    quantisation: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    memory_fraction: Annotated[float, Field(gt=0, le=1, description="a share")] | None = None
    slots: Annotated[int, Field(ge=0, le=65_536, description="requests at once")] = 0
    threads: Annotated[int, Field(ge=0, le=4096, description="threads")] = 0
    embedded: bool = False
    memory: MemorySection = MemorySection()
    kubernetes: PodSection | None = None  # what its pods are, with on: kubernetes


class RaySection(Section):
    """The Ray cluster that replicas with ``launch.on: ray`` run on."""

    address: Annotated[str, Field(min_length=1, max_length=255, description="HOST:PORT")] = "auto"
    namespace: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="a name")
    ] = "holdfast"
    zone_label: Annotated[
        str, Field(min_length=1, max_length=317, description="a label of nodes")
    ] = "zone"
    lease_s: Annotated[Duration, Field(ge=30, le=86_400, description="seconds")] = 300.0


def check_launch(launch: LaunchSection, engine: str) -> None:
    """Refuse settings that this engine cannot be started with; names fields below a model."""
    first_at: dict[str, int] = {}
    for index, zone in enumerate(launch.zones):
        first = first_at.setdefault(zone, index)
        field, problem = f"model.launch.zones.{index}", f"is {zone!r}, as that of zones[{first}]"
        require(first == index, field, problem, "list each zone once")
    for index, name in enumerate(launch.pass_env):
        field, problem = f"model.launch.pass_env.{index}", f"is {name!r}, as in environment"
        fix = "remove one of the two: a variable has one value"
        require(name not in launch.environment, field, problem, fix)
    commanded = bool(launch.command)
    named = not commanded or bool(launch.command[0])
    require(named, "model.launch.command.0", "is empty", "begin with the program to run")
    fix = "give the command that starts one, or name the engine it is"
    known = commanded or engine != "openai"
    require(known, "model.launch.command", "is missing: openai is a protocol, no program", fix)
    fits = not launch.embedded or engine == "llamacpp"
    fix = "remove it, or use engine: llamacpp"
    require(fits, "model.launch.embedded", f"is set for {engine}, which has none", fix)
    once = not (launch.embedded and commanded)
    fix = "remove one of the two: the embedded engine is started without it"
    require(once, "model.launch.command", "is set beside embedded", fix)
    fix = "name a file, a directory or a model that the engine can load"
    require(commanded or bool(launch.weights), "model.launch.weights", "is missing", fix)
    _check_gpus(launch)
    _check_platform(launch)


def _check_platform(launch: LaunchSection) -> None:
    """Refuse settings that only this host, or only another platform, can carry out."""
    elsewhere = bool(launch.on)
    _check_pod(launch)
    fix = "remove it, or add launch.on: this host sets no CPUs aside"
    require(elsewhere or not launch.cpus, "model.launch.cpus", "is set for this host", fix)
    if not elsewhere:
        return
    fix = "remove it: a device is given to one replica there"
    require(launch.gpu_share is None, "model.launch.gpu_share", f"is set for {launch.on}", fix)
    words = (*launch.command, *launch.arguments, *launch.environment.values())
    fix = f"remove it: {launch.on} sets {VISIBLE} for the engine"
    named = any(DEVICE in word for word in words)
    require(not named, "model.launch.command", f"has {DEVICE} for {launch.on}", fix)


def _check_pod(launch: LaunchSection) -> None:
    """Refuse a pod without Kubernetes, Kubernetes without a pod, and hosts that do not fit."""
    pod = launch.kubernetes
    if launch.on != "kubernetes":
        fix = "remove it, or set launch.on: kubernetes"
        require(pod is None, "model.launch.kubernetes", "is set for another platform", fix)
        return
    fix = "add kubernetes: {image: name@sha256:…}"
    require(pod is not None, "model.launch.kubernetes", "is missing", fix)
    assert pod is not None, "require raised"
    check_hosts(pod, "model.launch.kubernetes", commanded=bool(launch.command))
    fix = "remove it: the engine's own image has its own server"
    require(not launch.embedded, "model.launch.embedded", "is set for kubernetes", fix)


def _check_gpus(launch: LaunchSection) -> None:
    """Refuse a number of devices that contradicts the rest of the section."""
    gpus, split = launch.gpus, launch.tensor_parallel * launch.pipeline_parallel
    if gpus:
        problem = f"is {gpus}, and tensor_parallel times pipeline_parallel is {split}"
        fix = f"use {split} or more, or lower those two"
        require(gpus >= split, "model.launch.gpus", problem, fix)
    shared = launch.gpu_share is None or gpus != 0
    fix = "remove it, or give gpus the number of devices of one replica"
    require(shared, "model.launch.gpu_share", "is set, and gpus is 0", fix)
    by_hand = launch.environment.get(VISIBLE)
    chosen = not gpus or by_hand is None or DEVICE in by_hand
    field, fix = (
        f"model.launch.environment.{VISIBLE}",
        "remove one of the two: gpus chooses by itself",
    )
    require(chosen, field, "is set beside gpus", fix)
    words = {
        **{f"command.{index}": word for index, word in enumerate(launch.command)},
        **{f"arguments.{index}": word for index, word in enumerate(launch.arguments)},
        **{f"environment.{name}": value for name, value in launch.environment.items()},
    }
    for place, word in words.items():
        fix = "set gpus to the number of devices of one replica, or remove the place"
        known = bool(gpus) or DEVICE not in word
        require(known, f"model.launch.{place}", f"has {DEVICE}, and gpus is not set", fix)


__all__ = [
    "DEVICE",
    "REPLICAS_MAX",
    "VISIBLE",
    "LaunchSection",
    "RaySection",
    "check_launch",
    "names_secret",
]
