"""Slow connections beside normal clients: who is served, how fast, and how much memory it takes.

    .venv/bin/python bench/slow_connections.py --connections 1000

For each kind of slow connection, so many are opened against the data port and as many against the
admin port, and opened again where they are closed:

    head       half of a request head, then a byte now and then
    body       the first 60 KB of a larger body, then a byte now and then
    reader     a long answer is asked for and never read
    handshake  a TLS port gets a connection and nothing else

Meanwhile a normal client asks on a new connection each time, and another one reads `/livez` and
`/status` on the admin port. Printed for each kind: the share of their requests that were served,
the 99th percentile, and the largest resident memory of the gateway and of control.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import ipaddress
import random
import resource
import socket
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fault_fleet import Replica, wait_for
from operations import STAND_IN, WAITING_S, Stage, ask, chat

KINDS = ("head", "body", "reader", "handshake")
BODY_SENT = 60_000
ANSWER = 600_000  # bytes of an answer that nobody reads: more than the buffers of two kernels
WORDS = random.Random(0).randbytes(ANSWER // 2).hex()  # nothing that repeats itself
MODEL_BIG = "big"
AGAIN_S = 1.0  # until a slow client that was closed comes back
PATIENCE_S = 30.0
LOAD_RATE = 10.0  # requests of the normal client, each second

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
)
ADMIN_HEAD = b"POST /facts HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
ANSWERED = {"id": "x", "object": "chat.completion", "created": 1, "model": MODEL_BIG}
MESSAGE = {"role": "assistant", "content": WORDS}
WHOLE = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
BIG_ANSWER = orjson.dumps(ANSWERED | {"choices": [WHOLE]})
PIECE = {"index": 0, "delta": {"content": "ok"}, "text": "ok", "finish_reason": "stop"}
SMALL_ANSWER = b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps(
    ANSWERED | {"object": "chat.completion.chunk", "choices": [PIECE]}
)
BIG = orjson.dumps({"model": MODEL_BIG, "messages": [{"role": "user", "content": "much"}]})


class Figures:
    """What one normal client saw."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.failed: list[str] = []

    async def measure(self, work: Callable[[], Awaitable[str]]) -> None:
        """Do one piece of work, and note how long it took or why it failed."""
        began = time.monotonic()
        try:
            trouble = await work()
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            trouble = type(error).__name__
        self.took.append(time.monotonic() - began)
        if trouble:
            self.failed.append(trouble)

    def row(self) -> str:
        """Share served, and how long the median and the slowest hundredth took."""
        count, took = len(self.took), sorted(self.took)
        served = 100.0 * (count - len(self.failed)) / max(1, count)
        p50, p99 = (took[min(count - 1, int(count * q))] if took else 0.0 for q in (0.5, 0.99))
        why = f" {sorted(set(self.failed))[:3]}" if self.failed else ""
        times = f"p50 {p50 * 1e3:5.0f} ms, p99 {p99 * 1e3:5.0f} ms"
        return f"{served:6.2f} % of {count:4d}, {times}{why}"


# --- slow clients --------------------------------------------------------------------------------


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    # As on a network: with the segments of loopback, kernels would hold megabytes for each.
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1_400)
    peer.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
    except BaseException:
        peer.close()
        raise
    return await asyncio.open_connection(sock=peer, limit=1_024)


def _opening(kind: str, *, admin: bool) -> bytes:
    """What a slow client of this kind sends at once."""
    if kind == "handshake":
        return b""
    head = ADMIN_HEAD if admin else HEAD
    if kind == "head":
        return head + b"x-half: "
    if kind == "body":
        return head + b"content-length: 1000000\r\n\r\n" + b" " * BODY_SENT
    if admin:
        return b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 8
    return head + b"content-length: %d\r\n\r\n" % len(BIG) + BIG


async def _slow(kind: str, port: int, *, admin: bool, counts: dict[str, int]) -> None:
    """One slow client, for ever."""
    opening = _opening(kind, admin=admin)
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await _connect(port)
            counts["open"] += 1
            try:
                writer.write(opening)
                while True:
                    await asyncio.sleep(random.uniform(1.0, 3.0))
                    if kind in {"head", "body"}:
                        writer.write(b"x")
                        await writer.drain()
                    if writer.transport.is_closing() or reader.at_eof():
                        break
            finally:
                counts["open"] -= 1
                counts["closed"] += 1
                writer.transport.abort()
        await asyncio.sleep(AGAIN_S)


# --- normal clients ------------------------------------------------------------------------------


class Clients:
    """A normal client of each port, over TLS or not."""

    def __init__(self, stage: Stage, tls: ssl.SSLContext | None) -> None:
        self._stage, self._tls = stage, tls
        self.data, self.admin = Figures(), Figures()

    async def run(self) -> None:
        """Ask both ports, until cancelled."""
        await asyncio.gather(self._data(), self._admin())

    async def _data(self) -> None:
        number = 0
        while True:
            number += 1
            await self.data.measure(lambda n=number: self._chat(n))  # type: ignore[misc]
            await asyncio.sleep(1 / LOAD_RATE)

    async def _admin(self) -> None:
        while True:
            await self.admin.measure(lambda: self._get("/livez"))
            await self.admin.measure(lambda: self._get("/status"))
            await asyncio.sleep(0.5)

    async def _chat(self, number: int) -> str:
        request = chat(f"request {number}", stream=bool(number % 2))
        if self._tls is None:
            reply = await ask(self._stage.port, request, PATIENCE_S)
            return "" if reply.status == 200 and reply.text() else f"status {reply.status}"
        return await self._raw(self._stage.port, request)

    async def _get(self, path: str) -> str:
        head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        return await self._raw(self._stage.admin_port, head.encode())

    async def _raw(self, port: int, request: bytes) -> str:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=self._tls)
            try:
                writer.write(request)
                data = await reader.read()
            finally:
                writer.transport.abort()
        return "" if data.startswith(b"HTTP/1.1 200") else f"status {data[9:12].decode()}"


# --- the stage -----------------------------------------------------------------------------------


class SlowStage(Stage):
    """A stage whose ports may have TLS."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, workers=1)
        self._tls: ssl.SSLContext | None = None
        self._section = ""

    def secure(self, section: str, tls: ssl.SSLContext) -> None:
        """Let both ports have TLS; ``section``: as the fleet file says it."""
        self._tls = tls
        self.gateway = self._section = section

    def write(self, more: str = "") -> None:
        """The fleet file, with TLS where it is wanted."""
        super().write(more)
        plain = f"admin: {{listen: 127.0.0.1:{self.admin_port}"
        text = self.config.read_text().replace(plain, plain + self._section)
        self.config.write_text(text)

    def open(self, options: Sequence[str] = STAND_IN) -> None:
        """Start everything, and wait until it serves."""
        if self._tls is None:
            super().open(options)
            return
        for port, side in zip(self.engine_ports, self._side_ports, strict=True):
            self.replicas.append(Replica(port, side, options))
        for replica in self.replicas:
            wait_for(f"{replica.side}/stats", replica.process)
        self.write()
        self.start()
        url = f"https://127.0.0.1:{self.port}/readyz/m"
        end = time.monotonic() + WAITING_S
        while time.monotonic() < end:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(url, timeout=5.0, context=self._tls),
            ):
                return
            time.sleep(0.1)
        raise RuntimeError("the gateway does not serve")


async def _big_engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine whose answers are long, for whoever does not read them."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.lower().split(b"\r\n")
            length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
            asked = await reader.readexactly(length)
            kind, body = b"application/json", BIG_ANSWER
            if b"much" not in asked:  # a canary
                kind, body = b"text/event-stream", SMALL_ANSWER
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % kind)
            writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
    writer.close()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(here, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "c.pem", folder / "k.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, secret


def _memory(pid: int) -> int:
    """The resident bytes of a process; 0 once it has ended."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4_096
    return 0


async def _watch(pids: dict[str, list[int]], most: dict[str, int]) -> None:
    while True:
        for name, those in pids.items():
            most[name] = max(most[name], sum(map(_memory, those)))
        await asyncio.sleep(0.2)


async def _play(stage: Stage, kind: str, given: argparse.Namespace, tls: Any) -> dict[str, Any]:
    pids = {
        "gateway": stage.serve.processes("gateway-process"),
        "control": stage.serve.processes("control-process"),
    }
    most = {name: sum(map(_memory, those)) for name, those in pids.items()}
    before = dict(most)
    clients = Clients(stage, tls)
    counts = {"open": 0, "closed": 0}
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_watch(pids, most)), loop.create_task(clients.run())]
    for _ in range(given.connections):
        for port, admin in ((stage.port, False), (stage.admin_port, True)):
            slow = _slow(kind, port, admin=admin, counts=counts)
            tasks.append(loop.create_task(slow))
        await asyncio.sleep(0.001)
    await asyncio.sleep(given.seconds)
    opened = dict(counts)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"clients": clients, "most": most, "before": before, "counts": opened}


def _show(kind: str, found: dict[str, Any]) -> None:
    clients, most, before = found["clients"], found["most"], found["before"]
    memory = ", ".join(
        f"{name} {most[name] >> 20} MB (+{(most[name] - before[name]) >> 20})" for name in most
    )
    print(f"{kind:10s} data  {clients.data.row()}")
    print(f"{'':10s} admin {clients.admin.row()}")
    print(f"{'':10s} {memory}; slow ones open {found['counts']}", flush=True)


async def _kind(kind: str, given: argparse.Namespace) -> dict[str, Any]:
    """One kind, on a stage of its own."""
    engine = await asyncio.start_server(_big_engine, "127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        stage = SlowStage(Path(folder))
        port = engine.sockets[0].getsockname()[1]
        big = f"{{name: {MODEL_BIG}, engine: vllm, endpoints: [http://127.0.0.1:{port}]}}"
        stage.extra = f"  - {big}\n"
        tls = None
        if kind == "handshake":
            certificate, key = _certificate(Path(folder))
            tls = ssl.create_default_context(cafile=str(certificate))
            stage.secure(f", tls: {{certificate: {certificate}, key: {key}}}", tls)
        try:
            await asyncio.to_thread(stage.open)
            return await _play(stage, kind, given, tls)
        finally:
            await asyncio.to_thread(stage.close)
            engine.close()


def main() -> int:
    """Play all kinds; 0 if every normal request was served."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=1_000, help="of each kind, per port")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each kind")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4 * given.connections:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8 * given.connections), hard))
    failed = 0
    for kind in given.kinds:
        found = uvloop.run(_kind(kind, given))
        _show(kind, found)
        clients = found["clients"]
        failed += len(clients.data.failed) + len(clients.admin.failed)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
