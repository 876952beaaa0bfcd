"""Reads ECS services: how many tasks a model should have, and why it has fewer.

A task that fits nowhere does not exist: it is in no list of tasks, and no count shows it. Only the
events of its service tell, so they are read here. They are the newest hundred, mixed with good
news; what counts is the run of complaints since the service was last steady.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.sources.aws.calls import AwsCaller, batches
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.machines import epoch
from holdfast.sources.aws.tasks import SERVICES_AT_ONCE, tag_of

UNSTEADY: Final = "unable to consistently start"  # whose tasks tell the reason
_COMPLAINTS: Final = ("unable to place", UNSTEADY, "was unable to")
_STEADY: Final = "has reached a steady state"


@dataclass(slots=True, frozen=True)
class Service:
    """One ECS service: its wanted and running tasks, and its complaint."""

    name: str
    model: str
    desired: int | None
    running: int | None
    pending: int | None
    reason: str
    since: float | None


class Services:
    """Reads services; their names are cached for a while."""

    def __init__(self, config: AwsConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._arns: list[str] = []
        self._listed_at: float | None = None

    def read(self, caller: AwsCaller) -> tuple[Service, ...]:
        """Read all services of the cluster."""
        found: list[Service] = []
        for batch in batches(self._listed(caller), SERVICES_AT_ONCE):
            answer = caller.ask(
                "describe_services",
                cluster=self._config.cluster,
                services=list(batch),
                include=["TAGS"],
            )
            active = (told for told in answer["services"] if told.get("status") != "INACTIVE")
            found.extend(_service(told, self._config) for told in active)
        return tuple(found)

    def _listed(self, caller: AwsCaller) -> list[str]:
        now = self._clock()
        if self._listed_at is None or now - self._listed_at >= self._config.names_s:
            self._arns = list(
                caller.items(
                    "list_services",
                    "serviceArns",
                    cluster=self._config.cluster,
                    PaginationConfig={"PageSize": 100},
                )
            )
            self._listed_at = now
        return self._arns


def _service(told: dict[str, Any], config: AwsConfig) -> Service:
    reason, since = complaint(told.get("events", []))
    name = told["serviceName"]
    return Service(
        name=name,
        model=tag_of(told.get("tags", ()), config.model_tag) or name,
        desired=told.get("desiredCount"),
        running=told.get("runningCount"),
        pending=told.get("pendingCount"),
        reason=reason,
        since=since,
    )


def complaint(events: list[dict[str, Any]]) -> tuple[str, float | None]:
    """What the service says it cannot do, and since when; empty if it was steady since."""
    reason, since = "", None
    newest_first = sorted(events, key=lambda one: epoch(one.get("createdAt")) or 0.0, reverse=True)
    for event in newest_first:
        message = event.get("message", "")
        if _STEADY in message:
            break
        if any(text in message for text in _COMPLAINTS):
            reason = reason or message[:300]
            since = epoch(event.get("createdAt"))
    return reason, since


__all__ = ["UNSTEADY", "Service", "Services", "complaint"]
