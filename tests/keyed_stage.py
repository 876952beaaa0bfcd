"""Two gateways that share a store of idempotency keys, and clients that send keys."""

import asyncio
import json
from contextlib import asynccontextmanager
from time import monotonic_ns

import orjson

from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.gateway.request.idempotency.keyed_requests import KeyedRequests
from holdfast.testing.standin import Options

SLOW = Options(ttft_ms=150.0, tpot_ms=10.0, tokens=20)
QUICK = IdempotencyConfig(lease_s=1.0, beat_s=0.2, poll_s=0.01)


class Reply:
    """One answer as a client sees it, whole or as far as it came."""

    def __init__(self, raw):
        head, _, self.rest = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1]) if head else 0
        self.headers = dict(line.lower().split(": ", 1) for line in lines[1:])

    @property
    def body(self):
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rest
        body, rest = b"", self.rest
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        return body

    @property
    def code(self):
        return json.loads(self.body)["error"]["code"]

    @property
    def replayed(self):
        return self.headers.get("idempotent-replayed") == "true"


def request(key, content="Who is there?", path="/v1/chat/completions", **more):
    asked = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    if path.endswith("responses"):
        asked = {"model": "m", "input": content, **more}
    body = orjson.dumps(asked)
    lines = f"idempotency-key: {key}\r\n" if key is not None else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lines}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def ask(gateway, *args, **more):
    return await send(gateway, request(*args, **more))


@asynccontextmanager
async def connected(gateway):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def send(gateway, sent):
    async with connected(gateway) as (reader, writer):
        writer.write(sent)
        return Reply(await reader.read())


def executions(gateway):
    return sum(engine.engine.stats()["requests"] for engine in gateway.engines)


def use_keys(gateway, store, config=QUICK):
    keyed = KeyedRequests(
        config,
        store,
        gateway.driver.observer.counters,
        loop=asyncio.get_running_loop(),
        now_ns=monotonic_ns,
    )
    gateway.driver.use_keys(keyed)
    return keyed


@asynccontextmanager
async def peer_of(gateway):
    """A second gateway before the same engines."""
    other = type(gateway)([], gateway.file, gateway.views)
    await other.open()
    try:
        yield other
    finally:
        other.driver.close_keys()
        await other.close()


def count(gateway, result):
    values = gateway.driver.observer.counters.values
    return values.get(f'idempotency_requests_total{{result="{result}"}}', 0)


def runner(live, path, open_store):
    """A function that runs a body with two gateways before the same engines."""

    def run(body, config=QUICK, store=None, options=None, **extra):
        made = store or (lambda: open_store(path))

        async def main(gateway):
            async with peer_of(gateway) as other:
                use_keys(gateway, made(), config)
                use_keys(other, made(), config)
                try:
                    await body(gateway, other)
                finally:
                    gateway.driver.close_keys()

        more = {} if options is None else {"options": options}
        return live(main, **more, **extra)

    return run
