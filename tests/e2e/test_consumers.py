"""A fleet that lives on SQS, as its people have it: requests in one queue, answers in a bucket.

SQS and S3 are moto's, behind HTTP; everything else is real: ``holdfast serve`` with its gateway,
control and batch process, a stand-in, and SIGKILL.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time

import boto3
import pytest
from moto.server import ThreadedMotoServer

PATIENCE_S = 180.0  # the machine may stand still for seconds
REGION = "eu-west-2"
MESSAGES = 40


class Fleet:
    """An account with a queue, its dead letters and a bucket; a stand-in; ``holdfast serve``."""

    def __init__(self, folder):
        self.folder = folder
        self.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        self.moto.start()
        self.url = "http://{}:{}".format(*self.moto.get_host_and_port())
        self.sqs = self._client("sqs")
        self.s3 = self._client("s3")
        where = {"LocationConstraint": REGION}
        self.s3.create_bucket(Bucket="answers", CreateBucketConfiguration=where)
        self.dead = self.sqs.create_queue(QueueName="llm-8b-dlq")["QueueUrl"]
        arn = f"arn:aws:sqs:{REGION}:123456789012:llm-8b-dlq"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5})
        made = self.sqs.create_queue(
            QueueName="llm-8b-requests", Attributes={"RedrivePolicy": policy}
        )
        self.queue = made["QueueUrl"]
        http = importlib.import_module("operations_http")
        self.ports = [http.free_port() for _ in range(4)]
        self.file = folder / "fleet.yaml"
        self.log = folder / "serve.log"
        self._processes = []

    def _client(self, service):
        return boto3.client(service, region_name=REGION, endpoint_url=self.url)

    def start(self):
        command = [sys.executable, "-m", "holdfast"]
        engine, side, gateway, admin = self.ports
        speed = ["--ttft-ms", "10", "--tpot-ms", "1", "--slots", "8"]
        own = [*command, "stand-in", "--port", str(engine), "--side-port", str(side), *speed]
        self._processes.append(subprocess.Popen(own, stdout=subprocess.DEVNULL))
        place = f"region: {REGION}, endpoint_url: '{self.url}'"
        self.file.write_text(
            f"gateway: {{listen: '127.0.0.1:{gateway}'}}\n"
            f"admin: {{listen: '127.0.0.1:{admin}'}}\n"
            "models:\n  - name: llm-8b\n    served_as: m\n    engine: openai\n    endpoints:\n"
            f"      - {{url: 'http://127.0.0.1:{engine}', slots: 8}}\n"
            "consumers:\n  - model: llm-8b\n    priority: interactive\n"
            f"    from: {{kind: sqs, queue: llm-8b-requests, {place}}}\n"
            f"    reply: {{kind: s3, bucket: answers, prefix: llm-8b/, {place}}}\n"
        )
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        with self.log.open("wb") as log:
            serve = [*command, "serve", "-c", str(self.file)]
            self._processes.append(subprocess.Popen(serve, stderr=log, env=environment))

    def stop(self):
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)
        self.moto.stop()

    def send(self, numbers):
        for number in numbers:
            body = {"messages": [{"role": "user", "content": f"word {number}"}], "max_tokens": 4}
            told = json.dumps({"id": f"order-{number}", "body": body})
            self.sqs.send_message(QueueUrl=self.queue, MessageBody=told)

    def answers(self):
        listed = self.s3.list_objects_v2(Bucket="answers").get("Contents") or ()
        return {one["Key"] for one in listed}

    def left(self):
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self.sqs.get_queue_attributes(QueueUrl=self.queue, AttributeNames=names)
        return sum(int(value) for value in told["Attributes"].values())

    def kill(self, child):
        pid = None
        for text in self.log.read_text().splitlines():
            if text.startswith("{") and '"event":"started"' in text:
                said = json.loads(text)
                pid = said["pid"] if said["child"] == child else pid
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(pid, signal.SIGKILL)

    def until(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.log.read_text()[-3_000:]
            time.sleep(0.2)

    def command(self, *words):
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words, "-c", str(self.file)],
            env=environment | {"NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def fleet(tmp_path, monkeypatch, ops):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    running = Fleet(tmp_path)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_a_queue_is_worked_off_across_kills_and_its_backlog_is_seen(fleet):
    fleet.send(range(MESSAGES // 2))
    fleet.until(lambda: len(fleet.answers()) >= 5)
    fleet.kill("gateway-0")
    fleet.send(range(MESSAGES // 2, MESSAGES))
    fleet.until(lambda: len(fleet.answers()) >= MESSAGES // 2)
    fleet.until(lambda: len(fleet.answers()) == MESSAGES)
    fleet.until(lambda: not fleet.left())
    assert fleet.answers() == {f"llm-8b/order-{number}.json" for number in range(MESSAGES)}
    body = fleet.s3.get_object(Bucket="answers", Key="llm-8b/order-7.json")["Body"].read()
    reply = json.loads(body)
    assert reply["response"]["status_code"] == 200
    assert reply["response"]["body"]["choices"][0]["message"]["content"]
    fleet.sqs.send_message(QueueUrl=fleet.queue, MessageBody="no JSON")
    fleet.until(lambda: len(fleet.answers()) == MESSAGES + 1)
    (row,) = [
        row
        for row in json.loads(fleet.command("top", "--once", "--json"))["queues"]
        if row["name"] == "llm-8b-requests"
    ]
    assert (row["model"], row["dead_letters"]) == ("llm-8b", 0)
    queues = json.loads(fleet.command("queue", "ls", "--json"))["queues"]
    (own,) = [queue for queue in queues if queue["queue"] == "consume/llm-8b"]
    assert own["counts"]["done"] == MESSAGES, own
