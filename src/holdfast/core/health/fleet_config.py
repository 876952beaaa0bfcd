"""Settings of a fleet's health checks, composed from the configs of its policies."""

from dataclasses import dataclass, field

from holdfast.core.health.drain import DrainConfig
from holdfast.core.health.ejection import EjectionConfig
from holdfast.core.health.health import HealthConfig
from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class FleetConfig:
    """Settings of a fleet: health checks, ejection, drains, canaries, relaunches, view updates."""

    health: HealthConfig = field(default_factory=HealthConfig)
    ejection: EjectionConfig = field(default_factory=EjectionConfig)
    drain: DrainConfig = field(default_factory=DrainConfig)
    canary_deadline_s: float = 5.0  # a few tokens on an idle replica take well under a second
    canary_deadline_min_s: float = 3.0  # for one whose canaries are known to be quick
    canary_deadline_max_s: float = (
        30.0  # on a busy one the deadline grows with its running requests
    )
    canary_busy_requests: int = 16  # so many running requests double the deadline
    launch_backoff_s: float = 1.0  # after an exit; doubles while it keeps dying
    launch_backoff_max_s: float = 60.0  # a crash loop costs one load a minute, not more
    launch_forgive_s: float = 300.0  # alive for so long, earlier exits are forgotten
    relaunch_after_s: float = 60.0  # in quarantine without recovery: only a new process helps
    no_success_s: float = 10.0  # nothing but backpressure for so long: not ready
    ramp_s: float = 1.0  # how often growing shares are published during slow start
    heartbeat_s: float = 2.0  # an unchanged view is sent again: gateways doubt a silent control

    def __post_init__(self) -> None:
        for name in (
            "canary_deadline_s",
            "canary_deadline_min_s",
            "launch_backoff_s",
            "launch_forgive_s",
            "relaunch_after_s",
            "no_success_s",
            "ramp_s",
            "heartbeat_s",
        ):
            value = getattr(self, name)
            require(value > 0, f"fleet.{name}", f"is {value}", "use seconds above 0")
        longest, least = self.canary_deadline_max_s, self.canary_deadline_s
        fix = f"use at least fleet.canary_deadline_s, {least}"
        require(longest >= least, "fleet.canary_deadline_max_s", f"is {longest}", fix)
        longest, least = self.launch_backoff_max_s, self.launch_backoff_s
        fix = f"use at least fleet.launch_backoff_s, {least}"
        require(longest >= least, "fleet.launch_backoff_max_s", f"is {longest}", fix)
        busy = self.canary_busy_requests
        require(busy >= 1, "fleet.canary_busy_requests", f"is {busy}", "use 1 or more")


__all__ = ["FleetConfig"]
