"""Links of several controls on one machine: who is believed, on real sockets, and who is not."""

import asyncio
import contextlib
import os
import socket
from types import SimpleNamespace

import pytest

from holdfast.config.processes.control import ControlSection
from holdfast.control.gateways import hub as hub_module
from holdfast.control.gateways.hub import Hub
from holdfast.core.types import ConfigError
from holdfast.frames import (
    BlockFrame,
    Challenge,
    ConfigFrame,
    FrameReader,
    Hello,
    Introduction,
    Proof,
    Welcome,
    encode,
)
from holdfast.frames import control_links as links_module
from holdfast.frames.authentication import gateway_proof
from holdfast.frames.control_links import ControlLinks
from holdfast.storage.leadership.sqlite import SqliteLeadership
from holdfast.wire.election import Election, gateway_member
from holdfast.wire.link_secret import keep_link_secret

HELLO = Hello("b/gateway-0", 1)
NONCE = b"n" * 32


class Listener:
    """Control's part behind the hub: greets with what nobody else may see."""

    def greeting(self, gateway):
        return [Welcome(1, "a", secret=b"fingerprints", term=3), ConfigFrame(1, b"{}")]

    def on_gone(self, gateway):
        """Nobody counts."""


class Pair:
    """A machine with controls a and b; a leads. ``ports``: where each is reached and listens."""

    def __init__(self, folder, a_listens=None):
        self.folder = folder
        self.ports = {name: free_port() for name in "ab"}
        self.a_listens = a_listens or self.ports["a"]
        self.hub = None
        keep_link_secret(self.section("a"))

    def section(self, name):
        members = [
            {"name": own, "address": f"127.0.0.1:{port}"} for own, port in self.ports.items()
        ]
        listen = {"listen": f"127.0.0.1:{self.a_listens}"} if name == "a" else {}
        lease = {"store": "sqlite", "path": self.folder / "lease.sqlite"}
        return ControlSection.model_validate({"members": members, "lease": lease, **listen})

    @contextlib.asynccontextmanager
    async def leads(self):
        """Control a leads and listens while the block runs."""
        store = SqliteLeadership(self.folder / "lease.sqlite")
        election = Election(self.section("a"), "a", store, self.folder)
        leading = await election.stand_by(asyncio.Event())
        self.hub = Hub(Listener(), leading.holds)
        async with self.hub.listening(self.folder / "s", leading.port):
            yield
        await election.leave()

    @contextlib.asynccontextmanager
    async def gateway(self, name="b", hello=HELLO):
        """A gateway beside control ``name`` keeps its links to the others while the block runs."""
        heard = []
        member = gateway_member(self.section(name), name)
        links = ControlLinks(hello, member.controls, heard.append)
        keeping = asyncio.ensure_future(links.keep())
        try:
            yield SimpleNamespace(links=links, heard=heard)
        finally:
            keeping.cancel()
            links.close()
            await asyncio.gather(keeping, return_exceptions=True)

    async def stranger(self, *data):
        """What a process gets that connects to control a, says this and reads to the end."""
        with Stranger(self.a_listens) as stranger:
            for one in data:
                await stranger.say(one)
            return await stranger.rest()


class Stranger:
    """A process of this machine that has no secret; it has what came before a reset, too."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    async def say(self, one):
        data = one if isinstance(one, bytes) else encode(one)
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def some(self):
        return await asyncio.get_running_loop().sock_recv(self._socket, 65_536)

    async def rest(self):
        told = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while data := await self.some():
                    told += data
        return told


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 conditions of the other end
            await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(links_module, "_AGAIN_S", 0.02)


async def read_out(reader, writer, seen):
    """Read what a gateway says until it leaves."""
    told = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            told += data
    seen.append(told)
    writer.close()


@contextlib.asynccontextmanager
async def in_the_place_of(port, serve):
    """Somebody else listens at a control's port."""
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()


# --- who connects to control ---------------------------------------------------------------------


def test_a_gateway_and_a_standby_of_the_pair_are_heard(tmp_path):
    async def main():
        pair = Pair(tmp_path)
        standby = Hello("control/b", 1, observes=True)
        async with pair.leads(), pair.gateway() as one, pair.gateway(hello=standby) as two:
            await until(lambda: len(one.heard) == 2 and len(two.heard) == 2)
            assert one.links.connected
            assert one.links.term == 3
            assert list(pair.hub.gateways) == ["b/gateway-0"]
            assert [each.id for each in pair.hub.observers] == ["control/b"]
            pair.hub.broadcast(BlockFrame([("x" * 3_000, 1.0)]))  # more than a stranger may send
            await until(lambda: len(one.heard) == 3)

    asyncio.run(main())


@pytest.mark.parametrize(
    "said",
    [
        [HELLO],  # as every version before had it
        [Hello("control/b", 1, observes=True)],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x00\x10\x00\x00 a megabyte is announced"],
        [b"\x00\x00\x00\x07\x91\xa5later"],  # a tag that nobody knows
        [Introduction("b/gateway-0", False, "b", NONCE)],  # another control is wanted
        [Introduction("c/gateway-0", False, "a", NONCE)],  # no member
        [Introduction("b", False, "a", NONCE)],
        [Introduction("control/c", True, "a", NONCE)],
        [Introduction("b/gateway-0", False, "a", b"short")],
        [Proof(b"p" * 32), HELLO],
    ],
)
def test_a_stranger_gets_a_closed_connection_and_no_frame(tmp_path, said):
    async def main():
        pair = Pair(tmp_path)
        async with pair.leads():
            assert await pair.stranger(*said) == b""
            assert not pair.hub.gateways
            assert not pair.hub.observers
            assert pair.hub.refused == 1

    asyncio.run(main())


def test_without_the_secret_no_challenge_is_answered(tmp_path):
    async def main():
        pair = Pair(tmp_path)
        introduction = Introduction("b/gateway-0", False, "a", NONCE)
        async with pair.leads():
            guess = Proof(gateway_proof(b"guess" * 8, introduction, NONCE))
            told = FrameReader().feed(await pair.stranger(introduction, guess, HELLO))
            assert [type(frame) for frame in told] == [Challenge]
            echo = told[0].proof  # control's own proof is not the caller's
            told = FrameReader().feed(await pair.stranger(introduction, Proof(echo), HELLO))
            assert [type(frame) for frame in told] == [Challenge]
            assert not pair.hub.gateways

    asyncio.run(main())


def test_whoever_has_the_secret_is_whom_it_proved_to_be(tmp_path):
    async def main():
        pair = Pair(tmp_path)
        secret = pair.section("a").shared_secret.read_bytes().strip()
        introduction = Introduction("b/gateway-0", False, "a", NONCE)
        async with pair.leads():
            with Stranger(pair.a_listens) as other:
                await other.say(introduction)
                (challenge,) = FrameReader().feed(await other.some())
                await other.say(Proof(gateway_proof(secret, introduction, challenge.nonce)))
                await other.say(Hello("control/b", 1, observes=True))
                assert await other.rest() == b""
            assert not pair.hub.observers

    asyncio.run(main())


def test_a_recorded_dialogue_proves_nothing_later(tmp_path):
    said = []

    async def main():
        pair = Pair(tmp_path, a_listens=free_port())

        async def record(reader, writer):
            there, back = await asyncio.open_connection("127.0.0.1", pair.a_listens)

            async def answers():
                while data := await there.read(65_536):
                    writer.write(data)

            task = asyncio.ensure_future(answers())
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65_536):
                    said.append(data)
                    back.write(data)
            task.cancel()
            for end in (back, writer):
                end.close()

        async with pair.leads():
            async with in_the_place_of(pair.ports["a"], record), pair.gateway() as gateway:
                await until(lambda: len(gateway.heard) == 2)
            await until(lambda: not pair.hub.gateways)
            told = FrameReader().feed(await pair.stranger(*said))
            assert [type(frame) for frame in told] in ([], [Challenge])
            assert not pair.hub.gateways

    asyncio.run(main())


def test_who_does_not_say_who_it_is_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "AUTHENTICATED_S", 0.05)

    async def main():
        pair = Pair(tmp_path)
        async with pair.leads(), pair.gateway() as gateway:
            await until(lambda: len(gateway.heard) == 2)
            assert await pair.stranger() == b""
            told = await pair.stranger(Introduction("b/gateway-0", False, "a", NONCE))
            assert len(told) < 200
            assert gateway.links.connected

    asyncio.run(main())


def test_of_too_many_who_do_not_say_who_they_are_the_oldest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "UNPROVEN_MAX", 3)

    async def main():
        pair = Pair(tmp_path)
        async with pair.leads():
            with contextlib.ExitStack() as open_ones:
                silent = [open_ones.enter_context(Stranger(pair.a_listens)) for _ in range(3)]
                async with pair.gateway() as gateway:
                    await until(lambda: len(gateway.heard) == 2)
                    assert await silent[0].rest() == b""
                    assert pair.hub.refused == 1
                    assert list(pair.hub.gateways) == ["b/gateway-0"]

    asyncio.run(main())


# --- who stands in control's place ---------------------------------------------------------------


def test_a_forged_leader_is_not_believed_and_its_term_not_kept(tmp_path):
    seen = []

    async def forge(reader, writer):
        writer.write(encode(Welcome(9, "forged", term=99)) + encode(ConfigFrame(9, b"{}")))
        await read_out(reader, writer, seen)

    async def main():
        pair = Pair(tmp_path)
        async with pair.gateway() as gateway:
            async with in_the_place_of(pair.ports["a"], forge):
                await until(lambda: len(seen) >= 2)
            assert (gateway.heard, gateway.links.term) == ([], 0)
            assert not gateway.links.connected
            async with pair.leads():
                await until(lambda: len(gateway.heard) == 2)
                assert gateway.links.term == 3  # the true one, though it is lower
        for data in seen:
            assert {type(frame) for frame in FrameReader().feed(data)} <= {Introduction}

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        Challenge(NONCE, b"p" * 32),
        Challenge(b"", b""),
        BlockFrame([]),
        b"\x00\x10\x00\x00 a megabyte is announced",
        b"\x00\x00\x00\x07\x91\xa5later",
    ],
)
def test_whoever_does_not_prove_to_be_control_is_left(tmp_path, answer):
    seen = []

    async def forge(reader, writer):
        await reader.read(1)
        writer.write(answer if isinstance(answer, bytes) else encode(answer))
        writer.write(encode(Welcome(9, "forged", term=99)))
        await read_out(reader, writer, seen)

    async def main():
        pair = Pair(tmp_path)
        async with pair.gateway() as gateway, in_the_place_of(pair.ports["a"], forge):
            await until(lambda: len(seen) >= 2)
            assert (gateway.heard, gateway.links.term) == ([], 0)

    asyncio.run(main())


def test_a_control_that_never_answers_is_left(tmp_path, monkeypatch):
    """An older version skips the introduction, as it does not know its tag."""
    monkeypatch.setattr(links_module, "AUTHENTICATED_S", 0.05)
    seen = []

    async def skip(reader, writer):
        await read_out(reader, writer, seen)

    async def main():
        pair = Pair(tmp_path)
        async with pair.gateway() as gateway, in_the_place_of(pair.ports["a"], skip):
            await until(lambda: len(seen) >= 2)
            assert gateway.heard == []

    asyncio.run(main())


def test_a_stranger_in_one_controls_place_cannot_pass_anothers_proofs_on(tmp_path):
    passed = []

    async def main():
        pair = Pair(tmp_path)

        async def relay(reader, writer):
            there, back = await asyncio.open_connection("127.0.0.1", pair.ports["a"])
            with contextlib.suppress(ConnectionError):
                back.write(await reader.read(65_536))
                passed.append(await there.read(65_536))
                writer.write(passed[-1])
            for end in (back, writer):
                end.close()

        async with pair.leads(), pair.gateway("a", Hello("a/gateway-0", 1)) as gateway:
            async with in_the_place_of(pair.ports["b"], relay):
                await until(lambda: len(passed) >= 2)
            assert set(passed) == {b""}
            assert gateway.heard == []
            assert not pair.hub.gateways

    asyncio.run(main())


# --- the secret ----------------------------------------------------------------------------------


def secret_of(folder, **more):
    """A section whose lease, and with it the secret, is in a folder; and the secret's path."""
    members = [
        {"name": name, "address": f"127.0.0.1:{port}"} for name, port in (("a", 1), ("b", 2))
    ]
    lease = {"store": "sqlite", "path": folder / "lease.sqlite"}
    section = ControlSection.model_validate({"members": members, "lease": lease, **more})
    return section, section.shared_secret


def test_the_first_control_makes_the_secret_and_the_others_keep_it(tmp_path):
    section, path = secret_of(tmp_path / "shared")
    keep_link_secret(section)
    assert path == tmp_path / "shared" / "lease.sqlite.secret"
    assert path.stat().st_mode & 0o777 == 0o600
    made = path.read_bytes()
    keep_link_secret(section)
    assert path.read_bytes() == made
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    other, own = secret_of(tmp_path, secret_file=tmp_path / "of-two-hosts")
    keep_link_secret(other)
    assert own.read_bytes() != made


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o602])
def test_a_secret_that_others_can_read_or_write_is_refused(tmp_path, mode):
    section, path = secret_of(tmp_path, secret_file=tmp_path / "s")
    keep_link_secret(section)
    path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        keep_link_secret(section)
    assert refused.value.field == "control.secret_file"
    assert "open to other users" in refused.value.problem


def test_a_secret_that_is_short_or_no_file_is_refused(tmp_path):
    section, path = secret_of(tmp_path)
    path.write_text("x" * 31)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        keep_link_secret(section)
    assert refused.value.field == "control.lease.path"
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError):
        keep_link_secret(section)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_secret_that_another_user_laid_there_is_refused(tmp_path, monkeypatch):
    section, path = secret_of(tmp_path)
    keep_link_secret(section)
    os.chown(path, 12_345, 12_345)
    with pytest.raises(ConfigError) as refused:
        keep_link_secret(section)
    assert "not a file of this user" in refused.value.problem


def test_a_secret_that_is_written_anew_is_used_at_the_next_connection(tmp_path):
    async def main():
        pair = Pair(tmp_path)
        path = pair.section("a").shared_secret
        async with pair.leads(), pair.gateway() as gateway:
            await until(lambda: len(gateway.heard) == 2)
            path.write_text("another secret that is long enough")
            pair.hub.current("b/gateway-0").drop("to come again")
            await until(lambda: len(gateway.heard) == 4)
            path.unlink()  # as where a disk is gone for a while: the last one stands
            pair.hub.current("b/gateway-0").drop("to come again")
            await until(lambda: len(gateway.heard) == 6)

    asyncio.run(main())
