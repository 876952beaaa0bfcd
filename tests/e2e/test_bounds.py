"""Bounds on descriptors, connections and memory, on real processes with little of each."""

import asyncio
import contextlib
import json
import re
import socket
import sys
import urllib.error
from pathlib import Path
from subprocess import Popen

import pytest
import uvloop

DESCRIPTORS = 64
HALF_SENT = 70
BODY_BYTES = 32 << 20
WAIT_S = 30.0


class NarrowPopen:
    """Starts a command whose processes may have so few descriptors."""

    def __init__(self, descriptors):
        self._limit = f'ulimit -n {descriptors}; exec "$@"'

    def __call__(self, command, **given):
        if command[0] == sys.executable and "serve" in command:
            command = ["sh", "-c", self._limit, "sh", *command]
        return Popen(command, **given)


@pytest.fixture
def stage(ops, tmp_path, monkeypatch):
    """Make a stage with one gateway process, perhaps with few descriptors; it is closed."""
    made = []

    def make(descriptors=None, gateway=""):
        if descriptors is not None:
            monkeypatch.setattr(ops.subprocess, "Popen", NarrowPopen(descriptors))
        stage = ops.Stage(tmp_path, workers=1)
        stage.gateway = gateway
        made.append(stage)
        stage.open()
        return stage

    yield make
    for stage in made:
        stage.close()


@contextlib.contextmanager
def held(port, number, sends=b""):
    """So many connections of clients that send this and then wait."""
    peers = []
    try:
        for _ in range(number):
            peer = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
            peers.append(peer)
            peer.sendall(sends)
        yield peers
    finally:
        for peer in peers:
            peer.close()


def fate(peer):
    """What came of a connection: open, answered with a status, closed in order, or reset."""
    peer.setblocking(False)
    try:
        data = peer.recv(4_096)
    except BlockingIOError:
        return "open"
    except ConnectionError:
        return "reset"
    return f"answered {data[9:12].decode()}" if data else "closed"


def page(ops, url):
    """Status and text of a page; 0 where there is none."""
    try:
        return 200, ops.call(url, timeout_s=5.0)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def metrics(ops, stage):
    """The counters and gauges of the fleet."""
    found = re.findall(r"^(holdfast_\S+) (\S+)$", ops.call(f"{stage.admin}/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in found}


def memory(pid):
    """The resident bytes of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4_096


def test_a_want_of_descriptors_is_told_and_no_replica_is_blamed_for_it(ops, stage):
    stage = stage(DESCRIPTORS)

    async def play():
        for number in range(8):
            assert not await ops.harm(stage.port, number)
        with held(stage.port, 80) as peers:
            loud = [ops.harm(stage.port, number) for number in range(8)]
            said = await asyncio.gather(*loud)
            await ops.until(lambda: bool(shortages(ops, stage)), "the shortage is counted")
            fates = {fate(peer) for peer in peers}
            await ops.until(lambda: "own_shortage" in causes(ops, stage), "it is an incident")
        assert not fates & {"reset"}, "a client that is turned away is told so"
        assert not [why for why in said if why.startswith("reset")], said
        assert '"a shortage of' in stage.serve.said()
        states = {row["state"] for row in stage.status()["replicas"]}
        assert states == {"ready"}
        assert causes(ops, stage) == {"own_shortage"}
        for number in range(8):
            assert not await ops.harm(stage.port, number), "it serves again"

    uvloop.run(play())


def shortages(ops, stage):
    with contextlib.suppress(OSError):
        found = metrics(ops, stage)
        return {name: n for name, n in found.items() if "shortages_total" in name and n}
    return {}


def causes(ops, stage):
    with contextlib.suppress(OSError):
        listed = ops.call(f"{stage.admin}/incidents")["incidents"]
        return {incident["cause"] for incident in listed}
    return set()


@pytest.mark.parametrize("descriptors", [None, 128, DESCRIPTORS])
def test_half_sent_heads_leave_the_admin_port_alive(ops, stage, descriptors):
    stage = stage(descriptors)
    number = HALF_SENT if descriptors is not None else 1_000
    with held(stage.admin_port, number, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ") as _:
        for _ in range(3):
            assert page(ops, f"{stage.admin}/livez") == (200, "alive\n")
        assert page(ops, f"{stage.admin}/status")[0] == 200


def test_half_sent_bodies_have_one_bound_together(ops, stage):
    stage = stage()
    asyncio.run(ops.until(lambda: bool(stage.gateways()), "the gateway is ready"))
    (pid,) = stage.gateways()
    before = memory(pid)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % BODY_BYTES
    )
    with held(stage.port, 4, head) as peers:
        for peer in peers:
            with contextlib.suppress(OSError):  # refused meanwhile
                peer.sendall(b" " * (BODY_BYTES - 1))

        async def play():
            for number in range(8):
                assert not await ops.harm(stage.port, number)

        uvloop.run(play())
        grown = memory(pid) - before
        fates = [fate(peer) for peer in peers]
    assert grown < 110 << 20, f"{grown >> 20} MB"
    assert "answered 503" in fates, fates
    assert json.dumps(fates).count("reset") == 0, fates
