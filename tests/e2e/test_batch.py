"""Files and batches through a real fleet: the official SDK, large uploads, kills, a poison item."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from hashlib import sha256

import openai
import pytest

PATIENCE_S = 120.0  # the machine may stand still for seconds
KEYS = {"red": "hf-red-0123456789abcdef0123456789", "blue": "hf-blue-0123456789abcdef012345"}
LINES = 60


def line(number, prompt=None):
    body = {"model": "m", "messages": [{"role": "user", "content": prompt or f"word {number}"}]}
    return {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


def jsonl(lines):
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class Fleet:
    """Stand-ins and ``holdfast serve`` with batches and two tenants."""

    def __init__(self, folder, stand_ins=2, fault=(), ttft_ms=10, tpot_ms=1):
        self.folder = folder
        http = importlib.import_module("operations_http")
        self.ports = [http.free_port() for _ in range(stand_ins)]
        self.port, self.admin_port = http.free_port(), http.free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.log = folder / "serve.log"
        self.file = folder / "fleet.yaml"
        self.stand_ins = []
        self._fault = fault
        self._ttft_ms, self._tpot_ms = ttft_ms, tpot_ms
        self._processes = []

    def start(self):
        command = [sys.executable, "-m", "holdfast"]
        speed = ["--ttft-ms", str(self._ttft_ms), "--tpot-ms", str(self._tpot_ms), "--slots", "8"]
        for port in self.ports:
            own = [*command, "stand-in", "--port", str(port), *speed, *self._fault]
            self.stand_ins.append(subprocess.Popen(own, stdout=subprocess.DEVNULL))
        self._processes += self.stand_ins
        self.file.write_text(self._text())
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        with self.log.open("wb") as log:
            serve = [*command, "serve", "-c", str(self.file)]
            self._processes.append(subprocess.Popen(serve, stderr=log, env=environment))
        self.until(lambda: self.status("/readyz/m") == 200)
        self.until(lambda: self.status("/v1/batches", "red") == 200)

    def _text(self):
        tenants = "".join(
            f"  - {{name: {name}, keys: ['sha256:{sha256(key.encode()).hexdigest()}']}}\n"
            for name, key in KEYS.items()
        )
        endpoints = "".join(
            f"      - {{id: s{n}, url: 'http://127.0.0.1:{port}', slots: 8}}\n"
            for n, port in enumerate(self.ports)
        )
        return (
            f"gateway: {{listen: '127.0.0.1:{self.port}'}}\n"
            f"admin: {{listen: '127.0.0.1:{self.admin_port}'}}\n"
            f"batch: {{enabled: true}}\ntenants:\n{tenants}"
            f"models:\n  - name: m\n    engine: openai\n    endpoints:\n{endpoints}"
        )

    def stop(self):
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)

    def sdk(self, tenant="red"):
        return openai.OpenAI(base_url=f"{self.base}/v1", api_key=KEYS[tenant], max_retries=8)

    def status(self, path, tenant=None, headers=None, data=None):
        allowed = {"authorization": f"Bearer {KEYS[tenant]}"} if tenant else {}
        request = urllib.request.Request(self.base + path, data, {**allowed, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def until(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, self.log.read_text()[-3_000:]
            time.sleep(0.1)

    def pid(self, child):
        found = None
        for text in self.log.read_text().splitlines():
            if text.startswith("{") and '"event":"started"' in text:
                said = json.loads(text)
                found = said["pid"] if said["child"] == child else found
        return found

    def dead_letters(self, queue):
        state = self.folder / "state"
        command = [sys.executable, "-m", "holdfast", "queue", "peek", queue, "--state", "dead"]
        told = subprocess.run(
            [*command, "--json", "-c", str(self.file)],
            env={**os.environ, "XDG_STATE_HOME": str(state)},
            capture_output=True,
            check=True,
        )
        return [json.loads(one) for one in told.stdout.splitlines()]

    def ended(self, sdk, batch_id):
        end = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < end, self.log.read_text()[-3_000:]
            with contextlib.suppress(openai.APIStatusError, openai.APIConnectionError):
                batch = sdk.batches.retrieve(batch_id)
                if batch.status in {"completed", "failed", "expired", "cancelled"}:
                    return batch
            time.sleep(0.2)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory, ops):
    running = Fleet(tmp_path_factory.mktemp("batch"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def records(sdk, batch):
    found = []
    for name in (batch.output_file_id, batch.error_file_id):
        if name is not None:
            found += [json.loads(one) for one in sdk.files.content(name).text.splitlines()]
    return found


def test_the_official_sdk_uploads_runs_reads_lists_and_deletes(fleet):
    sdk = fleet.sdk()
    data = jsonl(line(n) for n in range(LINES))
    file = sdk.files.create(file=("in.jsonl", data), purpose="batch")
    assert (file.bytes, file.purpose) == (len(data), "batch")
    batch = sdk.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"for": "sdk"},
    )
    done = fleet.ended(sdk, batch.id)
    assert (done.status, done.request_counts.completed) == ("completed", LINES)
    told = records(sdk, done)
    assert sorted(one["custom_id"] for one in told) == sorted(f"c{n}" for n in range(LINES))
    assert all(one["response"]["body"]["choices"] for one in told)
    assert next(iter(sdk.batches.list(limit=1))).id == batch.id
    assert sdk.files.content(file.id).content == data
    assert sdk.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        fleet.sdk("blue").batches.retrieve(batch.id)
    with pytest.raises(openai.NotFoundError):
        fleet.sdk("blue").files.content(done.output_file_id)
    with pytest.raises(openai.BadRequestError):
        sdk.files.create(file=("x", b"x"), purpose="fine-tune")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{fleet.base}/v1", api_key="hf-no").files.list()


def test_an_upload_larger_than_any_request_goes_through_and_one_too_large_does_not(fleet):
    sdk = fleet.sdk()
    data = b"x" * (33 << 20)  # beyond gateway.http.body_bytes_max
    file = sdk.files.create(file=("large.jsonl", data), purpose="batch")
    assert file.bytes == len(data)
    assert sdk.files.content(file.id).content == data
    length = {"content-length": str(300 << 20), "content-type": "multipart/form-data; boundary=x"}
    assert fleet.status("/v1/files", "red", length, data=b"x" * 1_000) in {413, 0}
    assert fleet.status("/readyz/m") == 200


def test_nobody_can_speak_as_the_runner_or_for_another_tenant(fleet):
    forged = {"x-holdfast-runner": "0" * 64, "x-holdfast-tenant": "red"}
    body = json.dumps(line(1)["body"]).encode()
    json_type = {"content-type": "application/json"}
    assert fleet.status("/v1/chat/completions", None, {**forged, **json_type}, body) == 401
    blue = fleet.sdk("blue")
    spoofed = openai.OpenAI(
        base_url=f"{fleet.base}/v1",
        api_key=KEYS["blue"],
        default_headers={"x-holdfast-tenant": "red"},
    )
    assert [one.id for one in spoofed.batches.list()] == [one.id for one in blue.batches.list()]
    assert fleet.status("/internal/backlog", "red") == 404


def test_kill_9_of_each_process_loses_nothing_and_doubles_nothing(fleet):
    sdk = fleet.sdk()
    number = 200
    file = sdk.files.create(
        file=("in.jsonl", jsonl(line(n) for n in range(number))), purpose="batch"
    )
    batch = sdk.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    body, kind = json.dumps(line(1)["body"]).encode(), {"content-type": "application/json"}
    for child in ("batch", "gateway-0", "control"):
        time.sleep(0.3)
        before = fleet.pid(child)
        os.kill(before, signal.SIGKILL)
        if child == "batch":  # others are served; it says when to come again
            assert fleet.status("/v1/batches", "red") in {503, 200}
            assert fleet.status("/v1/chat/completions", "red", kind, body) == 200
        fleet.until(lambda child=child, before=before: fleet.pid(child) != before)
    fleet.until(lambda: fleet.status("/v1/batches", "red") == 200)
    done = fleet.ended(sdk, batch.id)
    told = [one["custom_id"] for one in records(sdk, done)]
    assert sorted(told) == sorted(f"c{n}" for n in range(number))
    assert done.status == "completed"


def test_a_poison_item_ends_two_replicas_at_most_and_all_other_lines_finish(tmp_path, ops):
    # Four engines that end with whatever request holds the word: nobody starts them again.
    deadly = ("--fault", "oom", "--fault-with", "marker=cucumber")
    fleet = Fleet(tmp_path, stand_ins=4, fault=deadly, ttft_ms=200, tpot_ms=40)
    try:
        fleet.start()
        sdk = fleet.sdk()
        lines = [line(n, "divide by the cucumber" if n == 40 else None) for n in range(LINES)]
        file = sdk.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
        batch = sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        done = fleet.ended(sdk, batch.id)
        ended = [process for process in fleet.stand_ins if process.poll() is not None]
        assert len(ended) == 2
        counts = done.request_counts
        assert (counts.completed, counts.failed) == (LINES - 1, 1)
        (bad,) = [one for one in records(sdk, done) if one["error"] is not None]
        assert (bad["custom_id"], bad["error"]["code"]) == ("c40", "dead_letter")
        dead = fleet.dead_letters("batch/red/m")
        assert [one["id"].rpartition("/")[2] for one in dead] == ["41"]  # lines count from 1
        lost = [entry["note"] for entry in dead[0]["story"]]
        assert [note["code"] for note in lost] == ["replica_lost"] * len(ended)
    finally:
        fleet.stop()
