"""Reads ECS task definitions: what a task asks for, where it logs, what it mounts.

A revision never changes, so it is read once and kept for as long as there is room. A task may hold
sidecars; the container that stands for the model is the one that wants GPUs, else the first that
the task cannot live without.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from holdfast.sources.aws.calls import AwsCaller
from holdfast.sources.aws.errors import CallError, CallFailure

MIB: Final = 1 << 20

# Failures that will hit the next definition just the same; the part ends with them.
_ALL_FAIL: Final = {
    CallFailure.CREDENTIALS,
    CallFailure.DENIED,
    CallFailure.THROTTLED,
    CallFailure.UNREACHABLE,
}


@dataclass(slots=True, frozen=True)
class Definition:
    """The fields of one task definition revision that the source needs."""

    name: str  # family:revision
    container: str = ""  # the one that stands for the model
    image: str = ""
    gpus: int = 0
    reserved_bytes: int | None = None  # what ECS subtracts from the host when it places a task
    limit_bytes: int | None = None  # above it the container is killed
    filesystem: str = ""
    log_group: str = ""
    log_prefix: str = ""
    port: int | None = None  # in the container
    checked: bool = False  # ECS asks the container whether it is well


class Definitions:
    """A bounded cache of task definitions; the least recently used are dropped first."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._kept: OrderedDict[str, Definition] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, caller: AwsCaller, arn: str) -> Definition | None:
        """A definition by its ARN, cached or read now; None if the revision no longer exists."""
        found = self._kept.get(arn)
        if found is None:
            try:
                told = caller.ask("describe_task_definition", taskDefinition=arn)
            except CallError as failed:
                if failed.why in _ALL_FAIL:
                    raise
                return None
            found = self._kept[arn] = definition_of(arn, told["taskDefinition"])
            if len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        self._kept.move_to_end(arn)
        return found


def definition_of(arn: str, told: dict[str, Any]) -> Definition:
    """Extract a definition from the answer of DescribeTaskDefinition."""
    containers = told.get("containerDefinitions", [])
    main = _main(containers)
    options = main.get("logConfiguration", {}).get("options", {})
    uses_awslogs = main.get("logConfiguration", {}).get("logDriver") == "awslogs"
    whole = _mebibytes(told.get("memory"))
    reserved = [_mebibytes(one.get("memoryReservation") or one.get("memory")) for one in containers]
    ports = main.get("portMappings", [])
    return Definition(
        name=arn.rpartition("/")[2],
        container=main.get("name", ""),
        image=main.get("image", ""),
        gpus=sum(_gpus(one) for one in containers),
        reserved_bytes=whole or sum(one for one in reserved if one) or None,
        limit_bytes=_mebibytes(main.get("memory")) or whole,
        filesystem=_filesystem(told.get("volumes", [])),
        log_group=options.get("awslogs-group", "") if uses_awslogs else "",
        log_prefix=options.get("awslogs-stream-prefix", "") if uses_awslogs else "",
        port=ports[0].get("containerPort") if ports else None,
        checked=bool(main.get("healthCheck")),
    )


def _main(containers: list[dict[str, Any]]) -> dict[str, Any]:
    for one in containers:
        if _gpus(one):
            return one
    for one in containers:
        if one.get("essential", True):
            return one
    return containers[0] if containers else {}


def _gpus(container: dict[str, Any]) -> int:
    wanted = container.get("resourceRequirements") or ()
    return sum(int(one["value"]) for one in wanted if one.get("type") == "GPU")


def _filesystem(volumes: list[dict[str, Any]]) -> str:
    for one in volumes:
        mounted: str = one.get("efsVolumeConfiguration", {}).get("fileSystemId", "")
        if mounted:
            return mounted
    return ""


def _mebibytes(value: int | str | None) -> int | None:
    """ECS counts memory in MiB: numbers in containers, text on the task as a whole."""
    return int(value) * MIB if value else None


__all__ = ["MIB", "Definition", "Definitions", "definition_of"]
