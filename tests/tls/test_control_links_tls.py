"""Gateways of other machines reach control with a certificate of the right authority, or not."""

import asyncio
import socket

import pytest

from holdfast.config.processes.control import ControlSection
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


def section(folder, who, port):
    files = {"certificate": folder / f"{who}.pem", "key": folder / f"{who}.key"}
    return ControlSection.model_validate(
        {
            "members": [
                {"name": "a", "address": f"localhost:{port}"},
                {"name": "b", "address": "localhost:1"},
            ],
            "tls": {**files, "ca": folder / "ca.pem"},
            "lease": {"store": "sqlite", "path": folder / "lease.sqlite"},
        }
    )


def greeted(folder, who, monkeypatch, free_port, within_s=20.0):
    """Whether a gateway beside control b, with these files, hears control a."""
    monkeypatch.setattr(links_module, "_AGAIN_S", 0.02)

    async def main():
        stop, heard = asyncio.Event(), asyncio.Event()
        own = section(folder, "a", free_port)
        election = Election(own, "a", SqliteLeadership(folder / "lease.sqlite"), folder)
        leads = await election.stand_by(stop)
        hub = Hub(Listener(), leads.holds)
        async with hub.listening(folder / "s", leads.port):
            member = gateway_member(section(folder, who, free_port), "b")
            links = ControlLinks(
                Hello(member.gateway_id(0), 1), member.controls, lambda _: heard.set()
            )
            keeping = asyncio.ensure_future(links.keep())
            try:
                async with asyncio.timeout(within_s):
                    await heard.wait()
                return list(hub.gateways)
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
