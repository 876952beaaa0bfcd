"""Against a CloudWatch of moto's, on loopback."""

import importlib.util
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from moto.server import ThreadedMotoServer

from holdfast.config.exporters import CloudWatchSection
from holdfast.exporters import cloudwatch
from holdfast.exporters.cloudwatch import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    NAMES,
    CloudWatchExporter,
    ModelPeriod,
    batches,
    points,
)
from holdfast.exporters.delivery import MissingExtraError

NOW = 1_800_000_000.0
KNOWN = ModelPeriod(
    "m",
    memory_used=0.7,
    gpu_busy=0.5,
    gpu_temperature_c=71,
    kv_used=0.7,
    queued=12,
    requests=100,
    errors=2,
    latency_s=0.25,
    first_token_p95_s=0.5,
    tokens_s=900.0,
    ready=2,
    desired=3,
    queue_s=0.002,
    compute_s=0.03,
    batch=4.0,
    failed_share=0.25,
)


@pytest.fixture(scope="module")
def aws():
    """The URL of a fake AWS."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def section(aws, **more):
    return CloudWatchSection(region="eu-west-1", endpoint_url=aws, **more)


def stored(aws, namespace):
    """What CloudWatch has: by metric, dimensions and value."""
    client = boto3.client("cloudwatch", region_name="eu-west-1", endpoint_url=aws)
    found = {}
    at = datetime.fromtimestamp(NOW, UTC)
    for metric in client.list_metrics(Namespace=namespace)["Metrics"]:
        told = client.get_metric_statistics(
            Namespace=namespace,
            MetricName=metric["MetricName"],
            Dimensions=metric["Dimensions"],
            StartTime=at - timedelta(minutes=5),
            EndTime=at + timedelta(minutes=5),
            Period=60,
            Statistics=["Average"],
        )
        dimensions = {one["Name"]: one["Value"] for one in metric["Dimensions"]}
        values = [point["Average"] for point in told["Datapoints"]]
        found[metric["MetricName"]] = (dimensions, values)
    client.close()
    return found


def test_figures_arrive_under_the_names_that_autoscalers_know(aws):
    exporter = CloudWatchExporter(section(aws, dimensions={"ClusterName": "prod"}))
    exporter.delivery.offer(points([KNOWN], 1, NOW))
    exporter.delivery.close(20)
    assert exporter.delivery.failed == 0
    assert exporter.delivery.sent == len(NAMES)
    found = stored(aws, "Holdfast")
    assert set(found) == set(NAMES)
    ours = {"ClusterName": "prod", "Model": "m"}
    assert found["GPUMemoryUtilization"] == (ours, [pytest.approx(70.0)])
    assert found["InferenceQueueDepth"] == (ours, [12.0])
    assert found["AvgInferenceLatencyMs"] == (ours, [250.0])
    assert found["InferenceQueueMs"] == (ours, [2.0])
    assert found["InferenceFailures"] == (ours, [25.0])
    assert found["OpenIncidents"] == ({"ClusterName": "prod"}, [1.0])


def test_many_figures_go_in_several_calls(aws):
    exporter = CloudWatchExporter(section(aws, namespace="Many", period=1.0))
    figures = [ModelPeriod(f"m{number}", queued=1, ready=1) for number in range(600)]
    exporter.delivery.offer(points(figures, 0, NOW))
    exporter.delivery.close(60)
    assert (exporter.delivery.sent, exporter.delivery.failed) == (1201, 0)


def test_what_is_not_known_is_not_sent():
    told = points([ModelPeriod("m", ready=0)], 0, NOW)
    assert [(one.name, one.value) for one in told] == [("OpenIncidents", 0), ("ReadyReplicas", 0.0)]


def test_a_call_is_neither_too_long_nor_too_large():
    small = [{"MetricName": "x", "Dimensions": []}] * 2_500
    assert [len(part) for part in batches(small)] == [BATCH_MAX, BATCH_MAX, 500]
    wide = {"MetricName": "x" * 200, "Dimensions": [{"Name": "n" * 255, "Value": "v" * 255}] * 20}
    parts = list(batches([wide] * 200))
    assert sum(map(len, parts)) == 200
    assert len(parts) > 1
    assert all(len(part) * 11_000 < BATCH_BYTES_MAX * 1.2 for part in parts)
    assert list(batches([])) == []


def test_an_aws_that_is_not_there_costs_nothing_but_the_figures(monkeypatch):
    monkeypatch.setattr(cloudwatch, "_TRIES", 1)
    exporter = CloudWatchExporter(section("http://127.0.0.1:1"))
    exporter.delivery.offer(points([KNOWN], 0, NOW))
    exporter.delivery.close(30)
    assert exporter.delivery.failed == len(NAMES)


def test_without_the_extra_it_says_which(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match="aws"):
        CloudWatchExporter(CloudWatchSection())
