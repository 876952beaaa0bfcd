"""Reads auto scaling groups and the EC2 machines in them.

The answer about groups does not say at which market a machine was bought, and one group may mix
both, so EC2 is asked for every machine. It is asked by filter, not by ids: a single id that has
just gone would make it refuse the whole question.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core.view.layers import Group
from holdfast.sources.aws.calls import AwsCaller, batches
from holdfast.sources.aws.config import AwsConfig


@dataclass(slots=True, frozen=True)
class GroupMember:
    """A machine as its auto scaling group reports it."""

    id: str
    group: str
    kind: str
    zone: str
    lifecycle: str  # InService is the good one
    healthy: bool


@dataclass(slots=True, frozen=True)
class Groups:
    """All auto scaling groups that were read, and their members."""

    groups: tuple[Group, ...] = ()
    members: tuple[GroupMember, ...] = ()


@dataclass(slots=True, frozen=True)
class Machine:
    """A machine as EC2 reports it."""

    id: str
    kind: str
    market: str
    zone: str
    state: str  # running is the good one
    address: str  # private; where containers on bridge and host networks listen
    launched_at: float | None


def read_groups(caller: AwsCaller, config: AwsConfig) -> Groups:
    """Read the auto scaling groups that carry the wanted tags."""
    filters = [{"Name": f"tag:{key}", "Values": [of]} for key, of in config.group_tags.items()]
    arguments: dict[str, Any] = {"Filters": filters} if filters else {}
    groups: list[Group] = []
    members: list[GroupMember] = []
    for told in caller.items(
        "describe_auto_scaling_groups",
        "AutoScalingGroups",
        PaginationConfig={"PageSize": 100},
        **arguments,
    ):
        name = told["AutoScalingGroupName"]
        groups.append(
            Group(name, told.get("DesiredCapacity"), told.get("MinSize"), told.get("MaxSize"))
        )
        members.extend(_member(one, name) for one in told.get("Instances", ()))
    return Groups(tuple(groups), tuple(members))


def _member(told: dict[str, Any], group: str) -> GroupMember:
    return GroupMember(
        id=told["InstanceId"],
        group=group,
        kind=told.get("InstanceType", ""),
        zone=told.get("AvailabilityZone", ""),
        lifecycle=told.get("LifecycleState", ""),
        healthy=told.get("HealthStatus", "Healthy").lower() == "healthy",
    )


def read_machines(caller: AwsCaller, ids: Iterable[str]) -> dict[str, Machine]:
    """Read the machines of these ids that EC2 still lists."""
    found: dict[str, Machine] = {}
    for batch in batches(sorted(set(ids))):
        for reservation in caller.items(
            "describe_instances",
            "Reservations",
            Filters=[{"Name": "instance-id", "Values": list(batch)}],
        ):
            for told in reservation.get("Instances", ()):
                found[told["InstanceId"]] = _machine(told)
    return found


def _machine(told: dict[str, Any]) -> Machine:
    return Machine(
        id=told["InstanceId"],
        kind=told.get("InstanceType", ""),
        market=told.get("InstanceLifecycle") or "on-demand",  # EC2 leaves it out for these
        zone=told.get("Placement", {}).get("AvailabilityZone", ""),
        state=told.get("State", {}).get("Name", ""),
        address=told.get("PrivateIpAddress", ""),
        launched_at=epoch(told.get("LaunchTime")),
    )


def epoch(moment: datetime | None) -> float | None:
    """Convert a time of boto3 to seconds since 1970."""
    return None if moment is None else moment.timestamp()


__all__ = ["GroupMember", "Groups", "Machine", "epoch", "read_groups", "read_machines"]
