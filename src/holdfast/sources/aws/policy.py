"""Builds the IAM policy that the source needs, and nothing beyond it.

Four kinds of question differ in how far they can be narrowed. Some know no resources and are bound
to a region at most. What concerns tasks is bound to the cluster by a condition; the list of its
hosts is a question to the cluster itself, where that condition does not exist. Queues and log
groups are named. A test reads a fleet and compares: every operation that was called is here, and
nothing else is.
"""

from dataclasses import dataclass
from typing import Any, Final

ANYWHERE: Final = (
    "autoscaling:DescribeAutoScalingGroups",
    "cloudwatch:GetMetricData",
    "ec2:DescribeInstances",
    "ecs:DescribeTaskDefinition",
    "elasticfilesystem:DescribeFileSystems",
    "sqs:ListQueues",
)
OF_CLUSTER: Final = ("ecs:ListContainerInstances",)
IN_CLUSTER: Final = (
    "ecs:DescribeContainerInstances",
    "ecs:DescribeServices",
    "ecs:DescribeTasks",
    "ecs:ListServices",
    "ecs:ListTasks",
)
OF_QUEUES: Final = ("sqs:GetQueueAttributes", "sqs:ListQueueTags")
OF_LOGS: Final = ("logs:FilterLogEvents", "logs:GetLogEvents")


@dataclass(slots=True, frozen=True)
class PolicyScope:
    """The resources that a policy allows to be read; an asterisk allows all."""

    region: str = "*"
    account: str = "*"
    cluster: str = "*"
    queues: tuple[str, ...] = ("*",)  # names, or beginnings of names with an asterisk
    log_groups: tuple[str, ...] = ("*",)  # none: logs are not read
    partition: str = "aws"  # aws-cn, aws-us-gov


def policy(scope: PolicyScope) -> dict[str, Any]:
    """Build the IAM policy document for this scope."""
    cluster = _arn(scope, "ecs", f"cluster/{scope.cluster}")
    statements = [
        _allow("ReadWhatHasNoOwner", ANYWHERE, ["*"]),
        _allow("ListTheHosts", OF_CLUSTER, [cluster]),
        _allow("ReadTheCluster", IN_CLUSTER, ["*"]),
        _allow("CountTheQueues", OF_QUEUES, [_arn(scope, "sqs", one) for one in scope.queues]),
    ]
    if scope.region != "*":
        statements[0]["Condition"] = {"StringEquals": {"aws:RequestedRegion": scope.region}}
    statements[2]["Condition"] = {"ArnLike": {"ecs:cluster": cluster}}
    if scope.log_groups:
        groups = [_arn(scope, "logs", f"log-group:{one}:*") for one in scope.log_groups]
        statements.append(_allow("HearTheReplicas", OF_LOGS, groups))
    return {"Version": "2012-10-17", "Statement": statements}


def actions(document: dict[str, Any]) -> set[str]:
    """The set of all actions that a policy document allows."""
    return {action for statement in document["Statement"] for action in statement["Action"]}


def _arn(scope: PolicyScope, service: str, resource: str) -> str:
    return f"arn:{scope.partition}:{service}:{scope.region}:{scope.account}:{resource}"


def _allow(name: str, allowed: tuple[str, ...], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(allowed), "Resource": resources}


__all__ = ["PolicyScope", "actions", "policy"]
