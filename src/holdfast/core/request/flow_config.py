"""The settings of a gateway's request flow, composed from the configs of its policies."""

from dataclasses import dataclass, field

from holdfast.core.request.admission.quota import QuotaConfig
from holdfast.core.request.hedge import HedgeConfig
from holdfast.core.request.ladders.degrade import DegradeConfig
from holdfast.core.request.lane import LaneConfig
from holdfast.core.request.retry import RetryConfig
from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class FlowConfig:
    """Settings of one gateway's request flow: lanes, retries, hedges, ladders, quotas, periods."""

    lane: LaneConfig = field(default_factory=LaneConfig)  # for models without one of their own
    lanes: dict[str, LaneConfig] = field(default_factory=dict)
    retry: RetryConfig = field(default_factory=RetryConfig)
    hedge: HedgeConfig = field(default_factory=HedgeConfig)
    degrade: tuple[DegradeConfig, ...] = ()
    quotas: dict[str, QuotaConfig] = field(default_factory=dict)  # by tenant; absent = unlimited
    tenant_weights: dict[str, float] = field(default_factory=dict)
    summary_s: float = 1.0  # how often control hears what was seen
    view_stale_s: float = 10.0  # after that, quarantines on suspicion decay

    def __post_init__(self) -> None:
        require(self.summary_s > 0, "flow.summary_s", f"is {self.summary_s}", "use seconds above 0")
        stale = self.view_stale_s
        require(stale > 0, "flow.view_stale_s", f"is {stale}", "use seconds above 0")


__all__ = ["FlowConfig"]
