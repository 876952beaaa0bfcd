"""Reads CloudWatch metrics: one query for all values that only metrics have.

Up to 500 metrics fit into one ``GetMetricData``; each is charged, so it is asked once a minute,
which is as often as they change. The minute that is under way is left out: its sums are not whole.
Quotients are made here and not by metric math, which is charged again and cannot say why it has no
value.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.sources.aws.calls import AwsCaller, batches
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.gpus import METRICS, NAMESPACE

MINUTE_S: Final = 60
QUERIES_MAX: Final = 500  # in one call

EFS: Final = "AWS/EFS"
SQS: Final = "AWS/SQS"
INSIGHTS: Final = "ECS/ContainerInsights"

_OF_DISKS: Final = (
    ("MeteredIOBytes", "Sum"),
    ("DataReadIOBytes", "Sum"),
    ("PercentIOLimit", "Maximum"),
    ("ClientConnections", "Sum"),
)
# Without a ceiling these say nothing: in elastic mode the permitted rate is that of writes alone.
_OF_LIMITED_DISKS: Final = (("PermittedThroughput", "Average"), ("BurstCreditBalance", "Minimum"))
_OF_QUEUES: Final = (("ApproximateAgeOfOldestMessage", "Maximum"),)
_COUNTS: Final = (
    ("ApproximateNumberOfMessagesVisible", "Maximum"),
    ("ApproximateNumberOfMessagesNotVisible", "Maximum"),
    ("ApproximateNumberOfMessagesDelayed", "Maximum"),
)


@dataclass(slots=True, frozen=True)
class MetricQuery:
    """One metric of one resource, to be read."""

    namespace: str
    metric: str
    stat: str
    about: str  # a filesystem, a queue, a service
    dimensions: tuple[tuple[str, str], ...]


@dataclass(slots=True, frozen=True)
class MetricSubjects:
    """The resources whose metrics are wanted."""

    disks: dict[str, bool]  # id → whether its throughput has a ceiling
    queues: tuple[str, ...] = ()  # that serve models: age of the oldest message
    counted: tuple[str, ...] = ()  # whose counts have to come from metrics
    services: tuple[str, ...] = ()
    gpu_hosts: tuple[str, ...] = ()  # ids of instances with one GPU


Metrics = dict[tuple[str, str], float]  # (about, metric) → newest value


def questions(wanted: MetricSubjects, config: AwsConfig) -> Iterator[MetricQuery]:
    """All metric queries for these resources."""
    for disk, limited in wanted.disks.items():
        of = (("FileSystemId", disk),)
        for metric, stat in (*_OF_DISKS, *(_OF_LIMITED_DISKS if limited else ())):
            yield MetricQuery(EFS, metric, stat, disk, of)
    for queue in wanted.queues:
        for metric, stat in _OF_QUEUES:
            yield MetricQuery(SQS, metric, stat, queue, (("QueueName", queue),))
    for queue in wanted.counted:
        for metric, stat in _COUNTS:
            yield MetricQuery(SQS, metric, stat, queue, (("QueueName", queue),))
    if config.read_memory:
        for service in wanted.services:
            where = (("ClusterName", config.cluster), ("ServiceName", service))
            yield MetricQuery(INSIGHTS, "MemoryUtilized", "Average", service, where)
    if config.read_gpus:
        for host in wanted.gpu_hosts:
            for metric, stat in METRICS:
                yield MetricQuery(NAMESPACE, metric, stat, host, (("InstanceId", host),))


def read_metrics(
    caller: AwsCaller, asked: Iterable[MetricQuery], now: float, config: AwsConfig
) -> Metrics:
    """The newest complete minute of each metric; metrics without a value are left out."""
    end = int(now) // MINUTE_S * MINUTE_S
    start = end - int(config.metrics_window_s) // MINUTE_S * MINUTE_S
    found: Metrics = {}
    for batch in batches(list(asked), QUERIES_MAX):
        results = caller.items(
            "get_metric_data",
            "MetricDataResults",
            MetricDataQueries=[_query(number, one) for number, one in enumerate(batch)],
            StartTime=datetime.fromtimestamp(start, UTC),
            EndTime=datetime.fromtimestamp(end, UTC),
            ScanBy="TimestampDescending",
        )
        for result in results:
            if result.get("Values"):
                one = batch[int(result["Id"][1:])]
                # The newest comes first, and later pages of the same metric are older.
                found.setdefault((one.about, one.metric), float(result["Values"][0]))
    return found


def _query(number: int, one: MetricQuery) -> dict[str, Any]:
    return {
        "Id": f"m{number}",
        "MetricStat": {
            "Metric": {
                "Namespace": one.namespace,
                "MetricName": one.metric,
                "Dimensions": [{"Name": name, "Value": value} for name, value in one.dimensions],
            },
            "Period": MINUTE_S,
            "Stat": one.stat,
        },
    }


__all__ = ["MINUTE_S", "MetricQuery", "MetricSubjects", "Metrics", "questions", "read_metrics"]
