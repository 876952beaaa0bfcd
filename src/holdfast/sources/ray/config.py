"""The settings of a Ray source."""

from dataclasses import dataclass

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class RayConfig:
    """Where a cluster's dashboard is, and how often it is read."""

    dashboard_url: str = "http://127.0.0.1:8265"
    zone_label: str = "zone"  # the label of nodes that names their zone
    token_file: str = ""  # with the bearer token of a cluster that asks for one
    period_s: float = 5.0  # between two readings: two calls each
    call_s: float = 5.0  # for one call; the dashboard answers in milliseconds or hangs
    body_bytes_max: int = 16 << 20  # above a thousand nodes with ten replicas each
    dead_s: float = 600.0  # a dead node is shown for so long; Ray lists the last thousand

    def __post_init__(self) -> None:
        for name in ("period_s", "call_s", "dead_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"ray.{name}", f"is {value}", fix)


__all__ = ["RayConfig"]
