"""Engines behind a private authority, which ask who calls them."""

import asyncio
import ssl

import orjson
import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.control.fetch import fetch
from holdfast.control.http_client import FetchError
from holdfast.gateway.request.settings import targets_of


def fleet(port, **model):
    url = f"https://localhost:{port}"
    models = [{"name": "m", "engine": "vllm", "endpoints": [url], **model}]
    return FleetFile.from_json(orjson.dumps({"models": models}))


async def answer(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
    await writer.drain()
    writer.close()


def test_a_private_authority_is_trusted_and_our_own_certificate_shown(certified, tmp_path):
    authority = certified("authority")
    ca, _ = authority.write(tmp_path, "ca")
    served, key = certified("localhost", by=authority).write(tmp_path, "engine")
    ours, our_key = certified("holdfast", by=authority).write(tmp_path, "ours")
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    asking.load_cert_chain(served, key)
    asking.verify_mode = ssl.CERT_REQUIRED

    async def main():
        server = await asyncio.start_server(answer, "localhost", 0, ssl=asking)
        port = server.sockets[0].getsockname()[1]
        tls = {"ca": str(ca), "certificate": str(ours), "key": str(our_key)}
        file = fleet(port, tls=tls)
        (deployed,) = file.replicas()
        told = await fetch(deployed.url, "/health", 5.0, tls=deployed.context())
        assert (told.status, told.body) == (200, b"ok")
        for less in (None, {"ca": str(ca)}):  # a stranger to us, or we to it
            (other,) = fleet(port, tls=less).replicas()
            with pytest.raises(FetchError):
                await fetch(other.url, "/health", 5.0, tls=other.context())
        loop = asyncio.get_running_loop()
        first = targets_of(file, {}, loop, lambda: 0)["m-1"].upstream
        assert first.trusted is deployed.context()
        again = targets_of(file, {"m-1": targets_of(file, {}, loop, lambda: 0)["m-1"]}, loop, int)
        assert again["m-1"].upstream.trusted is first.trusted
        certified("holdfast", by=authority).write(tmp_path, "ours")
        (renewed,) = file.replicas()
        assert renewed.context() is not first.trusted  # and new connections use it
        server.close()

    asyncio.run(main())


def test_files_that_cannot_be_used_trust_nobody_new(tmp_path):
    (deployed,) = fleet(1, tls={"ca": str(tmp_path / "none.pem")}).replicas()
    assert deployed.context() is None


def test_the_token_of_an_engine_stands_in_a_file(tmp_path):
    secret = tmp_path / "token"
    (deployed,) = fleet(1, api_key_file=str(secret)).replicas()
    assert deployed.token({}) is None
    secret.write_text("engine-token\n")
    assert deployed.token({}) == "engine-token"
    loop = asyncio.new_event_loop()
    targets = targets_of(fleet(1, api_key_file=str(secret)), {}, loop, lambda: 0)
    loop.close()
    assert targets["m-1"].headers == b"authorization: Bearer engine-token\r\n"


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"tls": {"certificate": "/a.pem"}}, "name both, or neither"),
        ({"api_key_file": "/t", "api_key_env": "T"}, "is set beside api_key_env"),
        ({"api_key_file": "t"}, "is a relative path"),
        ({"tls": {}, "endpoints": ["http://a:1"]}, "is without TLS"),
    ],
)
def test_what_cannot_be_meant_is_refused(model, told):
    with pytest.raises(ValueError, match=told):
        fleet(1, **model)
