"""Gateways of other machines reach control with a certificate of the right authority, or not."""

import asyncio
import contextlib
import socket
import sys

import pytest

from holdfast.config.certificates import made_for
from holdfast.config.processes.control import ControlSection
from holdfast.control.gateways import hub as hub_module
from holdfast.control.gateways.hub import Hub
from holdfast.frames import Hello, Welcome
from holdfast.frames import control_links as links_module
from holdfast.frames.control_links import ControlLinks
from holdfast.storage.leadership.sqlite import SqliteLeadership
from holdfast.wire.election import Election, gateway_member


class Listener:
    def greeting(self, gateway):
        return [Welcome(1, "a", term=3)]

    def on_gone(self, gateway):
        """Nobody counts."""


@pytest.fixture
def folder(tmp_path, certified):
    authority = certified("the authority of controls")
    authority.write(tmp_path, "ca")
    for name in ("a", "b"):
        certified("localhost", by=authority).write(tmp_path, name)
    certified("localhost").write(tmp_path, "stranger")
    return tmp_path


def section(folder, who, port, b_at="localhost:1"):
    files = {"certificate": folder / f"{who}.pem", "key": folder / f"{who}.key"}
    return ControlSection.model_validate(
        {
            "members": [
                {"name": "a", "address": f"localhost:{port}"},
                {"name": "b", "address": b_at},
            ],
            "tls": {**files, "ca": folder / "ca.pem"},
            "lease": {"store": "sqlite", "path": folder / "lease.sqlite"},
        }
    )


def greeted(folder, who, monkeypatch, free_port, within_s=20.0, b_at="localhost:1", hello=None):
    """Who hears control a, of a gateway beside control b, or this one, with these files."""
    monkeypatch.setattr(links_module, "_AGAIN_S", 0.02)

    async def main():
        stop, heard = asyncio.Event(), asyncio.Event()
        own = section(folder, "a", free_port, b_at)
        election = Election(own, "a", SqliteLeadership(folder / "lease.sqlite"), folder)
        leads = await election.stand_by(stop)
        hub = Hub(Listener(), leads.holds)
        async with hub.listening(folder / "s", leads.port):
            member = gateway_member(section(folder, who, free_port, b_at), "b")
            said = hello or Hello(member.gateway_id(0), 1)
            links = ControlLinks(said, member.controls, lambda _: heard.set())
            keeping = asyncio.ensure_future(links.keep())
            try:
                async with asyncio.timeout(within_s):
                    await heard.wait()
                return [*hub.gateways, *(one.id for one in hub.observers)]
            except TimeoutError:
                return []
            finally:
                keeping.cancel()
                links.close()
                await asyncio.gather(keeping, return_exceptions=True)
                await election.leave()

    return asyncio.run(main())


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_a_gateway_with_a_certificate_of_the_authority_is_heard(folder, monkeypatch, free_port):
    assert greeted(folder, "b", monkeypatch, free_port) == ["b/gateway-0"]


def test_a_stranger_is_not(folder, monkeypatch, free_port):
    assert greeted(folder, "stranger", monkeypatch, free_port, within_s=1.0) == []


@pytest.mark.parametrize("b_at", ["b.example.org:1", "10.0.0.7:1"])
@pytest.mark.parametrize(
    "hello",
    [Hello("b/gateway-0", 1), Hello("control/b", 1, observes=True)],
    ids=lambda one: one.gateway_id,
)
def test_a_certificate_of_another_member_speaks_for_nobody_else(
    folder, monkeypatch, free_port, hello, b_at
):
    """Both are signed by the authority; "b" shows one that was made for the host of a."""
    heard = greeted(folder, "b", monkeypatch, free_port, within_s=0.7, b_at=b_at, hello=hello)
    assert heard == []


@pytest.mark.parametrize(
    "hello",
    [
        Hello("c/gateway-0", 1),
        Hello("gateway-0", 1),
        Hello("b", 1),
        Hello("b/gateway-0", 1, observes=True),
        Hello("control/c", 1, observes=True),
    ],
    ids=lambda one: one.gateway_id,
)
def test_a_certificate_is_of_no_use_to_whoever_is_no_member(folder, monkeypatch, free_port, hello):
    assert greeted(folder, "b", monkeypatch, free_port, within_s=0.7, hello=hello) == []


def test_a_standby_with_its_own_certificate_hears_all(folder, certified, monkeypatch, free_port):
    authority = certified("another authority of controls")
    authority.write(folder, "ca")
    certified("localhost", by=authority).write(folder, "a")
    certified("b.example.org", by=authority).write(folder, "b")
    own = Hello("control/b", 1, observes=True)
    heard = greeted(folder, "b", monkeypatch, free_port, b_at="b.example.org:1", hello=own)
    assert heard == ["control/b"]


@pytest.mark.parametrize(
    ("names", "host", "fits"),
    [
        (["b.example.org"], "B.Example.org", True),
        (["a.example.org", "*.example.org"], "b.example.org", True),
        (["*.example.org"], "x.b.example.org", False),
        (["*.example.org"], "example.org", False),
        (["10.0.0.7"], "10.0.0.7", True),
        (["2001:DB8:0:0:0:0:0:1"], "2001:db8::1", True),
        (["b"], "b", True),
        (["b.example.org"], "b.example.org.evil.example", False),
        ([], "b", False),
    ],
)
def test_the_names_of_a_certificate_are_read_as_callers_read_them(names, host, fits):
    assert made_for(names, host) is fits


def test_strangers_at_the_port_do_not_add_up(folder, monkeypatch, free_port):
    """Who connects and does not finish a handshake is given up, and members are heard meanwhile."""
    places = [socket.socket() for _ in range(12)]

    class Crowd(Hub):
        @contextlib.asynccontextmanager
        async def listening(self, path, port=None):
            async with super().listening(path, port):
                for one in places:
                    one.connect(("localhost", free_port))
                    one.sendall(b"\x16\x03\x01")
                yield

    monkeypatch.setattr(sys.modules[__name__], "Hub", Crowd)
    monkeypatch.setattr(hub_module, "UNPROVEN_MAX", 8)
    with contextlib.ExitStack() as open_ones:
        for one in places:
            open_ones.callback(one.close)
        assert greeted(folder, "b", monkeypatch, free_port) == ["b/gateway-0"]


def test_callers_are_known_by_name_after_the_certificate_of_control_was_renewed(
    folder, certified, monkeypatch, free_port
):
    keep = Election.keep

    class Renewed(Hub):
        @contextlib.asynccontextmanager
        async def listening(self, path, port=None):
            authority.write(folder, "ca")
            certified("localhost", by=authority).write(folder, "a")
            certified("localhost", by=authority).write(folder, "b")
            async with super().listening(path, port):
                renewing = asyncio.ensure_future(keep(elections[0], elections[0]._leadership.term))
                yield
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)

    class Kept(Election):
        def __init__(self, *given):
            super().__init__(*given)
            elections.append(self)

    authority, elections = certified("a second authority"), []
    monkeypatch.setattr(sys.modules[__name__], "Hub", Renewed)
    monkeypatch.setattr(sys.modules[__name__], "Election", Kept)
    assert greeted(folder, "b", monkeypatch, free_port) == ["b/gateway-0"]
    elections.clear()
    assert greeted(folder, "stranger", monkeypatch, free_port, within_s=0.7) == []
