"""Config of the AWS source: what is read of an account, how often, and at which rate.

Everything that costs money or runs into a quota stands here with its reason. Rates are ceilings of
this source alone; an account is shared with deployments and consoles that must not be starved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.core.types import require


@dataclass(slots=True, frozen=True)
class RateConfig:
    """How many requests per second one service may get, retries included."""

    per_s: float = 10.0  # sustained; a refresh every 15 s needs under 4/s of all services together
    burst: int = 20  # at once; half of the smallest documented bucket (cluster reads of ECS: 50)

    def __post_init__(self) -> None:
        require(self.per_s > 0, "aws.rates.per_s", f"is {self.per_s}", "use more than 0")
        require(self.burst >= 1, "aws.rates.burst", f"is {self.burst}", "use 1 or more")


def _rates() -> Mapping[str, RateConfig]:
    return {
        "sqs": RateConfig(per_s=40.0, burst=60),  # one call per queue: three quarters of all
        "logs": RateConfig(per_s=2.0, burst=5),  # FilterLogEvents: 5/s for a whole account
        "efs": RateConfig(per_s=2.0, burst=4),  # asked every few minutes
    }


@dataclass(slots=True, frozen=True)
class AwsConfig:
    """Which ECS cluster is read, with its groups, queues, filesystems and logs, and how often."""

    region: str = ""  # empty: as the profile or the environment says
    cluster: str = "default"  # the name that ECS gives to a cluster nobody named
    endpoint_url: str = ""  # empty: AWS itself; a private endpoint or a stand-in otherwise
    profile: str = ""  # of ~/.aws/config; empty: what boto3 finds (environment, role of the host)
    period_s: float = 15.0  # 54 calls for 200 tasks and 40 queues: 3.6 a second
    group_tags: Mapping[str, str] = field(default_factory=dict)  # empty: all groups of the region
    queue_prefix: str = ""  # empty: all queues of the region, unless names are given
    queue_names: tuple[str, ...] = ()  # instead of a prefix
    queue_suffixes: tuple[str, ...] = ("-requests", "-queue")  # left off where no tag says more
    model_tag: str = "model"  # on queues, services and tasks; else the name of queue or service
    filesystems: tuple[str, ...] = ()  # EFS ids beside those that task definitions mount
    cuda_attribute: str = "fleet.cuda-version"  # AWS has no field for it; user data can set one
    driver_attribute: str = "ecs.capability.gpu-driver-version"  # of a container instance
    read_logs: bool = True  # silence and phases; needs containers that log through awslogs
    read_memory: bool = True  # Container Insights; metrics nobody publishes cost nothing
    read_gpus: bool = True  # figures of GPUs that the CloudWatch agent publishes
    phase_key: str = "phase"  # in JSON lines: loading, loaded, request, heartbeat
    log_lookback_s: float = 3_600.0  # what the first reading searches; then only what is new
    log_overlap_s: float = 120.0  # searched again each time: lines arrive late and out of order
    log_delay_max_s: float = 120.0  # a pipe slower than this is itself a fault, not an excuse
    log_pages_max: int = 4  # of 1,000 lines for 100 streams; then streams are asked one by one
    log_tails_each: int = 10  # streams asked one by one in a refresh; the rest wait their turn
    log_confirm_s: float = 60.0  # silent for so long, a stream is asked by itself to be sure
    metrics_s: float = 60.0  # CloudWatch makes a value a minute and charges for every question
    metrics_window_s: float = 900.0  # how old a value may be; SQS publishes with minutes of delay
    names_s: float = 60.0  # lists of queues and services change with deployments only
    machines_s: float = 60.0  # of EC2: new ones at once; that one ends its group tells sooner
    efs_s: float = 300.0  # modes change by hand; their load comes from metrics
    tags_s: float = 3_600.0  # per queue, one of them anew in a refresh
    queue_metrics_above: int = 100  # queues beyond which counts come from metrics, a minute late
    queue_details_each: int = 25  # beyond it: queues whose redrive policy is read in a refresh
    definitions_max: int = 1_000  # task definitions kept; they never change, so they never expire
    tasks_max: int = 5_000  # of each desired status; ECS allows that many in a service
    stopped_max: int = 500  # ended tasks shown, the newest; one that crashes leaves 360 an hour
    connect_s: float = 3.0  # endpoints of a region answer in milliseconds
    answer_s: float = 8.0  # per attempt; a described page of 100 tasks takes under one second
    attempts: int = 4  # botocore's adaptive mode waits up to 1, 2 and 4 s between them
    part_s: float = 12.0  # then a service counts as hanging and the others are shown without it
    session_s: float = 60.0  # between new sessions where credentials fail: each costs 0.3 s of CPU
    rate: RateConfig = field(default_factory=RateConfig)  # of services without one of their own
    rates: Mapping[str, RateConfig] = field(default_factory=_rates)  # by service: sqs, logs, efs …

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            require(value > 0, f"aws.{name}", f"is {value}", "use more than 0")
        require(bool(self.cluster), "aws.cluster", "is empty", "name the ECS cluster to read")
        require(
            not (self.queue_prefix and self.queue_names),
            "aws.queue_names",
            "is given beside queue_prefix",
            "use one of the two",
        )
        require(
            self.attempts <= 10, "aws.attempts", f"is {self.attempts}", "use 10 or fewer"
        )  # ten attempts wait for minutes; the next refresh tries again anyway

    def rate_of(self, service: str) -> RateConfig:
        """The rate limit of one service."""
        return self.rates.get(service, self.rate)


_POSITIVE = (
    "period_s",
    "log_lookback_s",
    "log_overlap_s",
    "log_delay_max_s",
    "log_pages_max",
    "log_tails_each",
    "log_confirm_s",
    "metrics_s",
    "metrics_window_s",
    "names_s",
    "machines_s",
    "efs_s",
    "tags_s",
    "queue_metrics_above",
    "queue_details_each",
    "definitions_max",
    "tasks_max",
    "stopped_max",
    "connect_s",
    "answer_s",
    "attempts",
    "part_s",
    "session_s",
)


__all__ = ["AwsConfig", "RateConfig"]
