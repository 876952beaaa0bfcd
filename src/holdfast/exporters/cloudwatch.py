"""Sends figures of each model to Amazon CloudWatch, for alarms and autoscaling.

    GPUMemoryUtilization, InferenceQueueDepth, AvgInferenceLatencyMs and a few more, by Model

The first is the share of memory that requests fill: of the KV cache where an engine reports it,
else of the replicas' GPUs, else of those that an inference server tells of. Of engines that set
their cache aside at the start and report none it is not sent: they use 90 % of a GPU for ever, and
an autoscaler would scale once and never again. What is not known is not sent: a zero would distort
an average.

boto3 is imported when the first bundle is sent, in the exporter's own thread; without the extra
``aws`` there is a clear error at the start instead.
"""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.config.exporters import CloudWatchSection
from holdfast.exporters.delivery import Delivery, MissingExtraError

BATCH_MAX: Final = 1_000  # metrics in one call, by AWS
BATCH_BYTES_MAX: Final = 900_000  # of a call; AWS takes 1 MB, and our estimate is rough
ROOM: Final = 20_000  # points that may wait: ten minutes of 20 models, while AWS is away
_HIGH_RESOLUTION_S: Final = 60.0  # below it, points are kept by the second
_DATUM_BYTES: Final = 220  # of one without its names, as AWS's protocol writes it
_DIMENSION_BYTES: Final = 80
_TRIES: Final = 3


@dataclass(slots=True, frozen=True)
class Point:
    """One value of one metric at one time."""

    name: str
    value: float
    unit: str  # of CloudWatch's: Percent, Count, Milliseconds, Count/Second, None
    at: float  # seconds since 1970
    model: str = ""  # empty: of the whole fleet
    more: Mapping[str, str] = field(default_factory=dict)  # further dimensions


@dataclass(slots=True, frozen=True)
class ModelPeriod:
    """Figures of one model in the last period; None where unknown."""

    model: str
    memory_used: float | None = None  # share, 0 to 1
    kv_used: float | None = None  # share, 0 to 1
    queued: float | None = None  # requests that wait, at gateways and in engines
    requests: int | None = None  # that ended
    errors: int | None = None  # of them, with a status from 500 on
    latency_s: float | None = None  # mean of those that were answered
    first_token_p95_s: float | None = None
    tokens_s: float | None = None
    ready: int | None = None
    desired: int | None = None
    gpu_busy: float | None = None  # share of the time with work, mean of its replicas
    gpu_temperature_c: float | None = None  # of the hottest
    queue_s: float | None = None  # mean wait in inference servers' queues
    compute_s: float | None = None  # mean time of an execution there
    batch: float | None = None  # inferences for each execution there
    failed_share: float | None = None  # of what ended there, by their own counts, 0 to 1


# Metric, unit, field, factor. The first three are what the usual autoscaling recipes expect.
_METRICS: Final = (
    ("GPUMemoryUtilization", "Percent", "memory_used", 100.0),
    ("InferenceQueueDepth", "Count", "queued", 1.0),
    ("AvgInferenceLatencyMs", "Milliseconds", "latency_s", 1_000.0),
    ("KVCacheUtilization", "Percent", "kv_used", 100.0),
    ("FirstTokenP95Ms", "Milliseconds", "first_token_p95_s", 1_000.0),
    ("TokensPerSecond", "Count/Second", "tokens_s", 1.0),
    ("RequestCount", "Count", "requests", 1.0),
    ("ErrorCount", "Count", "errors", 1.0),
    ("ReadyReplicas", "Count", "ready", 1.0),
    ("DesiredReplicas", "Count", "desired", 1.0),
    ("GPUUtilization", "Percent", "gpu_busy", 100.0),
    ("GPUTemperature", "None", "gpu_temperature_c", 1.0),
    ("InferenceQueueMs", "Milliseconds", "queue_s", 1_000.0),
    ("InferenceComputeMs", "Milliseconds", "compute_s", 1_000.0),
    ("InferenceBatchSize", "Count", "batch", 1.0),
    ("InferenceFailures", "Percent", "failed_share", 100.0),
)
NAMES: Final = (*(name for name, *_ in _METRICS), "OpenIncidents")


def points(figures: Sequence[ModelPeriod], incidents: int, at: float) -> list[Point]:
    """The known figures of a model as points for CloudWatch."""
    found = [Point("OpenIncidents", incidents, "Count", at)]
    for one in figures:
        for name, unit, member, factor in _METRICS:
            value = getattr(one, member)
            if value is not None:
                found.append(Point(name, float(value) * factor, unit, at, one.model))
    return found


class CloudWatchExporter:
    """Sends points to CloudWatch by ``put_metric_data``."""

    def __init__(self, section: CloudWatchSection) -> None:
        if importlib.util.find_spec("boto3") is None:
            raise MissingExtraError("exporters.cloudwatch", "aws")
        self._section = section
        self._client: Any = None
        self.delivery: Delivery[Point] = Delivery(
            "cloudwatch", self._send, room=ROOM, bundle=BATCH_MAX
        )

    def _send(self, bundle: list[Point]) -> None:
        if self._client is None:
            self._client = _client(self._section)
        quick = self._section.period < _HIGH_RESOLUTION_S
        data = [_datum(point, self._section.dimensions, quick=quick) for point in bundle]
        for batch in batches(data):
            self._client.put_metric_data(Namespace=self._section.namespace, MetricData=batch)


def batches(data: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split points into parts that AWS takes in one call."""
    part: list[dict[str, Any]] = []
    size = 0
    for datum in data:
        bytes_more = _size(datum)
        if part and (len(part) >= BATCH_MAX or size + bytes_more > BATCH_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(datum)
        size += bytes_more
    if part:
        yield part


def _size(datum: dict[str, Any]) -> int:
    names = sum(
        _DIMENSION_BYTES + len(one["Name"]) + len(one["Value"]) for one in datum["Dimensions"]
    )
    return _DATUM_BYTES + len(datum["MetricName"]) + names


def _datum(point: Point, shared: Mapping[str, str], *, quick: bool) -> dict[str, Any]:
    dimensions = {**shared, **point.more}
    if point.model:
        dimensions["Model"] = point.model
    return {
        "MetricName": point.name,
        "Value": point.value,
        "Unit": point.unit,
        "Timestamp": datetime.fromtimestamp(point.at, UTC),
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
        "StorageResolution": 1 if quick else 60,
    }


def _client(section: CloudWatchSection) -> Any:
    """A client of boto3's; credentials from wherever AWS's own tools find them."""
    boto3: Any = importlib.import_module("boto3")
    botocore: Any = importlib.import_module("botocore.config")
    session = boto3.session.Session(profile_name=section.profile, region_name=section.region)
    config = botocore.Config(
        connect_timeout=5,
        read_timeout=10,
        retries={"mode": "standard", "max_attempts": _TRIES},
        disable_request_compression=True,  # a few KB in a minute are not worth a second spelling
    )
    return session.client("cloudwatch", endpoint_url=section.endpoint_url, config=config)


__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_MAX",
    "NAMES",
    "CloudWatchExporter",
    "ModelPeriod",
    "Point",
    "batches",
    "points",
]
