"""The section of queues that others fill: what it takes, and what it refuses with the fix."""

import pytest

from holdfast.config.document import ConfigFileError
from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.wire.message_queues import check_boxes, open_boxes

BASE = """models:
  - {name: m, engine: openai, endpoints: ['http://127.0.0.1:9']}
consumers:
"""
SQS = "from: {kind: sqs, queue: q, region: eu-west-2}"
REDIS = "from: {kind: redis, stream: s, url_env: QUEUE_URL}"
FOLDER = "reply: {kind: folder, path: /tmp/answers}"


def read(tmp_path, text, more=""):
    path = tmp_path / "fleet.yaml"
    path.write_text(f"{more}{BASE}{text}")
    return load(path, FleetFile)


def test_a_queue_for_a_model_is_three_lines(tmp_path):
    file = read(tmp_path, f"  - {{model: m, {SQS}, {FOLDER}}}\n")
    (consumer,) = file.consumers
    assert (consumer.called, consumer.priority, consumer.inbox.called) == ("m", "batch", "q")
    assert FleetFile.from_json(file.to_json()) == file
    check_boxes(consumer)
    inbox, outbox = open_boxes(consumer)
    assert type(inbox).__name__ == "SqsInbox"
    assert outbox.answer_bytes_max is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"  - {{model: x, {SQS}, {FOLDER}}}\n", "consumers[0].model: is 'x'"),
        (f"  - {{model: m, {SQS}}}\n", "consumers[0].reply: is missing"),
        (f"  - {{model: m, from: {{kind: sqs}}, {FOLDER}}}\n", "from.queue: is missing"),
        (f"  - {{model: m, from: {{kind: kafka}}, {FOLDER}}}\n", "use one of sqs, redis"),
        (
            f"  - {{model: m, from: {{kind: redis, url_env: Q}}, {FOLDER}}}\n",
            "from.stream: is missing",
        ),
        (
            f"  - {{model: m, from: {{kind: redis, stream: a, list: b, url_env: Q}}, {FOLDER}}}\n",
            "is set beside list",
        ),
        (f"  - {{model: m, from: {{kind: redis, stream: a}}, {FOLDER}}}\n", "url_env: is missing"),
        (f"  - {{model: m, {SQS}, reply: {{kind: folder, path: x}}}}\n", "write the whole path"),
        (f"  - {{model: m, tenant: bob, {SQS}, {FOLDER}}}\n", "is no tenant of this file"),
        (f"  - {{model: m, path: /v1/files, {SQS}, {FOLDER}}}\n", "consumers[0].path"),
        (f"  - {{model: m, keep_s: 1, {SQS}, {FOLDER}}}\n", "consumers[0].keep_s"),
        (
            f"  - {{model: m, {SQS}, {FOLDER}}}\n  - {{model: m, {REDIS}, {FOLDER}}}\n",
            "consumers[1].name: is 'm', as that of consumers[0]",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_line_and_the_fix(tmp_path, text, problem):
    with pytest.raises(ConfigFileError) as refused:
        read(tmp_path, text)
    assert problem in str(refused.value)
    assert "fleet.yaml:" in str(refused.value)


def test_a_tenant_must_be_there_and_may_use_the_model(tmp_path):
    key = "sha256:" + "ab" * 32
    tenants = f"tenants: [{{name: red, keys: ['{key}'], models: [m]}}]\n"
    assert read(tmp_path, f"  - {{model: m, tenant: red, {SQS}, {FOLDER}}}\n", tenants)
    with pytest.raises(ConfigFileError, match="use one of red"):
        read(tmp_path, f"  - {{model: m, {SQS}, {FOLDER}}}\n", tenants)


def test_a_url_that_is_not_set_is_named_before_anything_starts(tmp_path):
    (consumer,) = read(tmp_path, f"  - {{model: m, {REDIS}, {FOLDER}}}\n").consumers
    with pytest.raises(ConfigError, match="names QUEUE_URL, which is not set"):
        check_boxes(consumer, {})
    check_boxes(consumer, {"QUEUE_URL": "redis://127.0.0.1:6379/0"})
