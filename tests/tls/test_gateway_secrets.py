"""A running gateway uses the certificates and tokens that are in their files now."""

import asyncio
import contextlib
import socket
import ssl

import orjson
import pytest
import uvloop

from holdfast.config.fleet_file import FleetFile
from holdfast.control.gateways.state_file import write_state
from holdfast.core.messages import FleetView, ReplicaView
from holdfast.core.types import State
from holdfast.frames import ConfigFrame, view_to_frame
from holdfast.gateway import process as module
from holdfast.gateway.process import GatewayProcess
from holdfast.gateway.request import engine_secrets

PATIENCE_S = 30.0
ANSWER = orjson.dumps(
    {
        "id": "a",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Nobody is there."},
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }
)


class Engine:
    """An engine over HTTP or TLS; keeps the tokens and certificates that it was shown."""

    def __init__(self, context=None):
        self._context = context
        self.tokens = []
        self.callers = []  # DER of the certificates

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            tls = writer.get_extra_info("ssl_object")
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(
                    line.lower().split(b": ", 1)
                    for line in head.split(b"\r\n")[1:]
                    if b": " in line
                )
                await reader.readexactly(int(lines.get(b"content-length", 0)))
                self.tokens.append(lines.get(b"authorization", b""))
                self.callers.append(tls and tls.getpeercert(binary_form=True))
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                    b"\r\n%b" % (len(ANSWER), ANSWER)
                )
                await writer.drain()
        writer.close()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()


class Gateway:
    """A gateway process as a task, which starts from the state that control left on disk."""

    def __init__(self, folder, model, gateway=None):
        data = {"models": [{"name": "m", "engine": "vllm", **model}], "gateway": gateway or {}}
        data["gateway"]["draining"] = {"grace_s": 0.0, "deadline_s": 1.0}
        file = FleetFile.from_json(orjson.dumps(data))
        replicas = tuple(ReplicaView(one.replica, State.READY, 1.0) for one in file.replicas())
        state = folder / "state.frames"
        write_state(state, ConfigFrame(1, file.to_json()), view_to_frame(FleetView(1, replicas)))
        self._process = GatewayProcess(0, str(folder / "no.sock"), state)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]

    async def __aenter__(self):
        accepts = asyncio.Event()
        run = self._process.run(self._listener, accepts.set)
        self._task = asyncio.get_running_loop().create_task(run)
        async with asyncio.timeout(PATIENCE_S):
            await accepts.wait()
        return self

    async def __aexit__(self, *_):
        self._process.stop()
        await asyncio.wait_for(self._task, PATIENCE_S)
        self._listener.close()

    async def chat(self):
        """The status of one answer."""
        body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Who?"}]})
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        raw = await reader.read()
        writer.close()
        return int(raw.split()[1])

    async def shown(self):
        """The certificate that whoever connects now is shown, as DER."""
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting)
        try:
            return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def der(certificate):
    return ssl.PEM_cert_to_DER_cert(certificate.pem.decode())


async def comes_true(question):
    async with asyncio.timeout(PATIENCE_S):
        while not await question():  # noqa: ASYNC110 conditions of the other end
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Look at the files at every turn."""
    monkeypatch.setattr(module, "_CONTROL_WAIT_S", 0.02)
    monkeypatch.setattr(engine_secrets, "LOOK", 0)


def play(scene):
    async def main():
        async with asyncio.timeout(2 * PATIENCE_S):
            await scene()

    uvloop.run(main())


def test_new_connections_see_a_renewed_certificate_and_open_ones_stay(certified, tmp_path):
    first, second = certified("localhost"), certified("localhost")
    certificate, key = first.write(tmp_path, "port")
    tls = {"certificate": str(certificate), "key": str(key)}

    async def scene():
        model = {"endpoints": ["http://127.0.0.1:9"]}
        async with Gateway(tmp_path, model, {"tls": tls}) as gateway:
            assert await gateway.shown() == der(first)
            trusting = ssl.create_default_context(cafile=certificate)
            kept = await asyncio.open_connection("localhost", gateway.port, ssl=trusting)
            certificate.write_bytes(second.pem)  # its key is not there yet
            for _ in range(5):
                assert await gateway.shown() == der(first)
            second.write(tmp_path, "port")

            async def renewed():
                return await gateway.shown() == der(second)

            await comes_true(renewed)
            reader, writer = kept
            writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

    play(scene)


def test_a_token_of_an_engine_is_rotated_by_writing_its_file_anew(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("the-first-token\n")

    async def scene():
        async with Engine() as engine:
            url = f"http://127.0.0.1:{engine.port}"
            model = {"endpoints": [url], "api_key_file": str(secret)}
            async with Gateway(tmp_path, model) as gateway:
                assert await gateway.chat() == 200
                assert engine.tokens[-1] == b"bearer the-first-token"
                secret.write_text("")  # somebody begins to write it
                for _ in range(5):
                    assert await gateway.chat() == 200
                secret.unlink()
                for _ in range(5):
                    assert await gateway.chat() == 200
                assert set(engine.tokens) == {b"bearer the-first-token"}
                secret.write_text("the-second-token\n")

                async def rotated():
                    assert await gateway.chat() == 200
                    return engine.tokens[-1] == b"bearer the-second-token"

                await comes_true(rotated)

    play(scene)


def test_a_renewed_client_certificate_is_shown_to_engines(certified, tmp_path):
    authority = certified("authority")
    ca, _ = authority.write(tmp_path, "ca")
    served = certified("localhost", by=authority).write(tmp_path, "engine")
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    asking.load_cert_chain(*served)
    asking.verify_mode = ssl.CERT_REQUIRED
    first, second = (certified("holdfast", by=authority) for _ in range(2))
    certificate, key = first.write(tmp_path, "ours")

    async def scene():
        async with Engine(asking) as engine:
            tls = {"ca": str(ca), "certificate": str(certificate), "key": str(key)}
            model = {"endpoints": [f"https://localhost:{engine.port}"], "tls": tls}
            async with Gateway(tmp_path, model) as gateway:
                assert await gateway.chat() == 200
                assert engine.callers[-1] == der(first)
                certificate.write_bytes(second.pem)  # its key is not there yet
                for _ in range(5):
                    assert await gateway.chat() == 200
                second.write(tmp_path, "ours")

                async def renewed():
                    assert await gateway.chat() == 200
                    return engine.callers[-1] == der(second)

                await comes_true(renewed)
                assert set(engine.callers) == {der(first), der(second)}

    play(scene)
