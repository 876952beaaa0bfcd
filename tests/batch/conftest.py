"""A batch process in one event loop: real files, a real queue, and a small HTTP gateway."""

import asyncio
import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from time import monotonic, monotonic_ns

import pytest

from holdfast.batch.backlog import BacklogApi
from holdfast.batch.batch_desk import BatchDesk
from holdfast.batch.batches_api import BatchesApi
from holdfast.batch.file_store import FileStore
from holdfast.batch.files_api import FilesApi
from holdfast.batch.gateway_client import GatewayClient
from holdfast.batch.items import LongResults
from holdfast.batch.load_reports import LoadReports
from holdfast.batch.process import build_app
from holdfast.batch.runner import BatchRunner
from holdfast.core.batch.limits import BatchLimits
from holdfast.core.batch.spare_capacity import SpareCapacityConfig
from holdfast.core.batch.verdicts import ItemPolicyConfig
from holdfast.frames.batch_load import LoadDatagram, LoadRow
from holdfast.gateway.http.syntax import Cors
from holdfast.storage.batch_records import BatchRecords
from holdfast.storage.queues.sqlite import SqliteQueue

PATIENCE_S = 60.0  # the machine may stand still for seconds


class Gateway:
    """A gateway that answers as it is told: ``answers`` maps a prompt to (status, code)."""

    def __init__(self):
        self.answers = {}
        self.asked = Counter()
        self.tenants = Counter()
        self.now = self.most = 0
        self._writers = []
        self.hold = None  # an event: no answer before it is set
        self.deadly = None  # a prompt that ends the replica; all wait for the first time
        self.lost = []  # the prompts that were lost each time
        self._gone_until = 0.0  # a replica that is ending loses whoever asks before
        self._asking = []  # prompts, and futures of their answers

    def stand_still(self):
        """Answer nothing until the end."""
        self.hold = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        if self.hold is not None:
            self.hold.set()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(w.wait_closed() for w in self._writers), return_exceptions=True)

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = json.loads(await reader.readexactly(int(lines["content-length"])))
                self.now += 1
                self.most = max(self.most, self.now)
                try:
                    if self.hold is not None:
                        await self.hold.wait()
                    if self.deadly is not None:
                        await self._share(body["messages"][0]["content"])
                    answer = self._answer(lines, body)
                finally:
                    self.now -= 1
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def _share(self, prompt):
        """Answer from the one replica: with the deadly prompt it ends, and all others with it."""
        if self.lost and prompt != self.deadly:
            if monotonic() < self._gone_until:  # it still takes requests, and loses them
                self.answers[prompt] = (502, "replica_lost")
            return
        over = asyncio.get_running_loop().create_future()
        self._asking.append((prompt, over))
        names = {name for name, _ in self._asking}
        if self.deadly in names and (self.lost or len(names) > 1):
            self.lost.append(names)
            self._gone_until = monotonic() + 0.3
            self.answers.update(dict.fromkeys(names, (502, "replica_lost")))
            for _, one in self._asking:
                one.set_result(None)
            self._asking.clear()
        await over

    def _answer(self, lines, body):
        prompt = body["messages"][0]["content"]
        self.asked[prompt] += 1
        self.tenants[lines["x-holdfast-tenant"]] += 1
        assert lines["x-holdfast-runner"] == "secret"
        head = {b"host": lines["host"].encode()}  # a gateway without tenants takes it, too
        assert Cors((), own_hosts=()).refusal(b"POST", head) is None
        status, code = self.answers.get(prompt, (200, ""))
        if self.deadly is not None:
            self.answers.pop(prompt, None)
        told = {"error": {"code": code, "message": f"is {code}"}} if code else {"echo": prompt}
        data = json.dumps(told).encode()
        more = "retry-after-ms: 1000\r\n" if status in {429, 503} else ""
        head = f"HTTP/1.1 {status} X\r\nx-request-id: req_1\r\n{more}"
        return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


@dataclass
class Answer:
    """An answer of the application."""

    status_code: int
    content: bytes
    headers: dict[str, str]

    @property
    def text(self):
        return self.content.decode()

    def json(self):
        return json.loads(self.content)


class Client:
    """Asks the application itself, without a socket; bodies come in small pieces."""

    def __init__(self, app, tenant):
        self._app = app
        self._headers = {"x-holdfast-tenant": tenant} if tenant else {}

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def get(self, path):
        return await self.ask("GET", path)

    async def put(self, path):
        return await self.ask("PUT", path)

    async def delete(self, path):
        return await self.ask("DELETE", path)

    async def post(self, path, json_body=None, content=b""):
        body = content if json_body is None else json.dumps(json_body).encode()
        return await self.ask("POST", path, body, "application/json")

    async def upload(self, data, purpose):
        body = (
            b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n%b\r\n--x\r\n'
            b'content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n%b\r\n'
            b"--x--\r\n" % (purpose.encode(), data)
        )
        return await self.ask("POST", "/v1/files", body, "multipart/form-data; boundary=x")

    async def ask(self, method, path, body=b"", kind="", *, reset=False):
        path, _, query = path.partition("?")
        headers = {**self._headers, **({"content-type": kind} if kind else {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "server": ("batch", 80),
        }
        pieces = [body[at : at + 100] for at in range(0, len(body), 100)] or [b""]
        told = []

        async def receive():
            if pieces:
                piece = pieces.pop(0)
                return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
            return await asyncio.get_running_loop().create_future()  # the client waits

        async def send(message):
            if reset:  # the client is gone
                raise ConnectionResetError
            told.append(message)

        await self._app(scope, receive, send)
        content = b"".join(one.get("body", b"") for one in told[1:])
        headers = {name.decode(): value.decode() for name, value in told[0]["headers"]}
        return Answer(told[0]["status"], content, headers)


class Stage:
    """One life of a batch process in a folder; a second one in the same folder is its successor."""

    def __init__(self, folder, gateway, limits=None, free_bytes=None, queue=None):
        self.limits = limits or BatchLimits(disk_free_min=0)
        more = {} if free_bytes is None else {"free_bytes": free_bytes}
        self.store = FileStore(folder / "files", self.limits, **more)
        self.records = BatchRecords(folder / "batches.sqlite")
        self.queue = queue or SqliteQueue(folder / "queue.sqlite", reserve_bytes=0)
        results = LongResults(folder / "results")
        self.wall = 1_000_000.0
        self.desk = BatchDesk(self.records, self.store, self.queue, results, wall=lambda: self.wall)
        self.loads = LoadReports()
        self.gateway = GatewayClient(gateway.url, b"secret")
        self.runner = BatchRunner(
            self.desk,
            self.queue,
            self.store,
            results,
            self.gateway,
            self.loads,
            pace=SpareCapacityConfig(young_s=PATIENCE_S),  # this machine may stand still
            items=ItemPolicyConfig(pause_s=0.01, pause_max_s=0.02),
        )
        backlog = BacklogApi(self.desk, self.queue, self.runner, monotonic_ns)
        self.app = build_app(
            FilesApi(self.records, self.store, self.desk.held), BatchesApi(self.desk), backlog
        )
        self.working = None
        self.models = ["m"]  # that gateways report
        self.waiting = 0  # people, as gateways report them
        self.p95_s = None  # of their first tokens

    async def __aenter__(self):
        await self.desk.start()
        return self

    async def work(self, slots=20, *, ready=True):
        """Begin to work items off; gateways report these slots."""
        self.ready = ready
        self.working = [
            asyncio.create_task(self.runner.run()),
            asyncio.create_task(self._report(slots)),
        ]

    async def _report(self, slots):
        while True:
            running = len(self.runner._running)
            waiting, ready = self.waiting, self.ready
            rows = [
                LoadRow(model, waiting, running, slots, self.p95_s, ready=ready)
                for model in self.models
            ]
            self.loads.take(LoadDatagram("gateway-0", rows))
            await asyncio.sleep(0.02)

    async def __aexit__(self, *_):
        if self.working is not None:
            self.runner.stop()
            self.working[1].cancel()
            await asyncio.gather(*self.working, return_exceptions=True)
        await self.desk.stop()
        await self.queue.close()
        self.gateway.close()
        self.records.close()

    def client(self, tenant="default"):
        return Client(self.app, tenant)

    async def upload(self, data, tenant="default", purpose="batch"):
        return await self.client(tenant).upload(data, purpose)

    async def create(self, data, tenant="default", **more):
        file = (await self.upload(data, tenant)).json()
        async with self.client(tenant) as client:
            body = {
                "input_file_id": file["id"],
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
                **more,
            }
            answer = await client.post("/v1/batches", body)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def get(self, path, tenant="default"):
        async with self.client(tenant) as client:
            return await client.get(path)

    async def ended(self, batch_id, tenant="default"):
        """Wait until a batch has ended; returns it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                batch = (await self.get(f"/v1/batches/{batch_id}", tenant)).json()
                if batch["status"] in {"completed", "failed", "expired", "cancelled"}:
                    return batch
                self.desk._begin_step(batch_id)
                await asyncio.sleep(0.02)

    async def lines(self, file_id):
        if file_id is None:
            return {}
        text = (await self.get(f"/v1/files/{file_id}/content")).text
        told = [json.loads(line) for line in text.splitlines()]
        by_id = {line["custom_id"]: line for line in told}
        assert len(by_id) == len(told), "one record for each line"
        return by_id


def line(number, prompt=None, **changes):
    """One line of an input file."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt or f"p{number}"}]}
    told = {
        "custom_id": f"c{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }
    return json.dumps({**told, **changes}).encode() + b"\n"


@pytest.fixture
def stage(tmp_path):
    """Runs a scenario with a gateway and a maker of stages in one folder."""

    def run(scenario):
        async def main():
            async with Gateway() as gateway:

                def make(**options):
                    return Stage(tmp_path, gateway, **options)

                await scenario(gateway, make)

        asyncio.run(main())

    return run


@pytest.fixture
def make_line():
    """Makes a line of an input file."""
    return line


@pytest.fixture
def until():
    """Waits for a condition, generously."""

    async def wait(condition):
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what is awaited tells nobody
                await asyncio.sleep(0.01)

    return wait
