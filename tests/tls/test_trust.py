import asyncio
import ssl

import pytest

from holdfast.control.access.trust import NOT_THE_SAME, is_loopback, trusting
from holdfast.control.fetch import FetchError, UntrustedError, fetch
from holdfast.core.types import ConfigError
from holdfast.ui.terminal.top.link import Link, LinkError

TOKEN = "planted-token-3Hd8"


def asked(port, ca=None, certificate=None):
    """What a question comes to, and what the port heard of it."""

    async def main():
        async with port as open_port:
            tls = trusting(open_port.url, ca, certificate)
            return await fetch(open_port.url, "/status", 10.0, bearer=TOKEN, tls=tls)

    return asyncio.run(main())


def test_the_certificate_of_the_file_is_believed_on_loopback_whatever_its_name(port, own, tmp_path):
    file, _ = own.write(tmp_path, "own")
    made = port(own)
    assert asked(made, certificate=file).status == 200
    assert TOKEN.encode() in made.heard


def test_of_a_file_with_a_chain_only_the_first_counts(port, own, signed, tmp_path):
    file, _ = signed.write(tmp_path, "chain", own)
    assert asked(port(signed, own), certificate=file).status == 200
    with pytest.raises(UntrustedError):
        asked(port(own), certificate=file)


def test_one_whom_that_certificate_signed_is_not_told_the_token(port, own, signed, tmp_path):
    file, _ = own.write(tmp_path, "own")
    made = port(signed, own)
    with pytest.raises(UntrustedError, match=NOT_THE_SAME):
        asked(made, certificate=file)
    assert made.heard == b""


@pytest.mark.parametrize("trusted", ["stranger", "system", "expired"])
def test_strangers_are_told_nothing(port, own, stranger, certified, tmp_path, trusted):
    shown = certified("control.example.org", days=-1) if trusted == "expired" else own
    made = port(shown)
    known = {"stranger": stranger, "expired": shown}.get(trusted)
    file = known.write(tmp_path, "known")[0] if known else None
    with pytest.raises(UntrustedError, match="certificate is not trusted"):
        asked(made, certificate=file)
    assert made.heard == b""


def test_an_authority_that_is_named_is_asked_for_the_name_too(port, own, certified, tmp_path):
    file, _ = own.write(tmp_path, "own")
    made = port(own)
    with pytest.raises(UntrustedError, match=r"mismatch.*127\.0\.0\.1"):
        asked(made, ca=file)
    local, _ = certified("localhost").write(tmp_path, "local")
    context = trusting("https://localhost:1", ca=local)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_elsewhere_the_name_must_fit(own, tmp_path):
    file, _ = own.write(tmp_path, "own")
    context = trusting("https://10.0.0.7:8001", certificate=file)
    assert context.check_hostname
    assert own.made.serial_number in {
        int(one["serialNumber"], 16) for one in context.get_ca_certs()
    }


def test_without_tls_there_is_nothing_to_believe(tmp_path):
    assert trusting("http://127.0.0.1:8001", certificate=tmp_path / "none") is None


@pytest.mark.parametrize("text", [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_files_that_cannot_be_used_are_named_with_the_fix(tmp_path, text):
    file = tmp_path / "file.pem"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigError, match=r"admin\.tls\.certificate: is .*file\.pem.*--ca"):
        trusting("https://127.0.0.1:1", certificate=file)
    with pytest.raises(ConfigError, match=r"--ca: is .*file\.pem.*name a PEM file"):
        trusting("https://127.0.0.1:1", ca=file)


def test_a_certificate_that_is_none_inside_is_told(tmp_path):
    file = tmp_path / "file.pem"
    file.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for url in ("https://127.0.0.1:1", "https://10.0.0.7:1"):
        with pytest.raises(ConfigError, match="holds no certificate"):
            trusting(url, certificate=file)


def test_loopback_is_what_cannot_be_elsewhere():
    for url in ("https://127.0.0.1:1", "https://[::1]:1", "https://localhost", "https://127.8.0.1"):
        assert is_loopback(url)
    for url in ("https://10.0.0.7:1", "https://example.org", "https://localhost.example.org"):
        assert not is_loopback(url)


def test_who_speaks_no_tls_is_told_apart(tmp_path, own):
    file, _ = own.write(tmp_path, "own")

    async def main():
        async def plain(_, writer):
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(plain, "127.0.0.1", 0)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            tls = trusting(url, certificate=file)
            with pytest.raises(FetchError, match="no TLS there"):
                await fetch(url, "/status", 10.0, tls=tls)
            with pytest.raises(LinkError, match="no TLS there"):
                [piece async for piece in Link(url, tls=tls).pieces("/view/stream")]

    asyncio.run(main())


def test_the_link_of_top_believes_the_same(port, own, stranger, tmp_path):
    file, _ = own.write(tmp_path, "own")
    other, _ = stranger.write(tmp_path, "other")

    async def main():
        async with port(own) as open_port:
            link = Link(open_port.url, TOKEN, trusting(open_port.url, certificate=file))
            assert (await link.ask("/status")).body == b"{}"
            assert [piece async for piece in link.pieces("/view/stream")] == [b"{}"]
            link = Link(open_port.url, TOKEN, trusting(open_port.url, certificate=other))
            with pytest.raises(LinkError, match="not trusted"):
                await link.ask("/status")
            with pytest.raises(LinkError, match="not trusted"):
                [piece async for piece in link.pieces("/view/stream")]

    asyncio.run(main())
