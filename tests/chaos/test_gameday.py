"""A game day's own requests, streamed and in one piece, against a stand-in on loopback."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import pytest

from holdfast.chaos.gameday import GameDay
from holdfast.chaos.target import ChaosError, ChaosTarget
from holdfast.config.chaos import PlanFile
from holdfast.testing.standin import Options, StandIn, fault

NEVER: Iterator[list[dict[str, Any]]] = repeat([])


@dataclass(slots=True, frozen=True)
class Paper(ChaosTarget):
    """A fleet of one replica, whose control lets everything be done to its own view."""

    told: Iterator[list[dict[str, Any]]] = NEVER  # incidents, look by look

    async def replicas(self):
        return [{"id": "m-1", "model": "m", "state": "ready", "share": 1.0}]

    async def incidents(self):
        return next(self.told)

    async def check(self, replica):
        pass

    async def disturb(self, replica, kind, seconds, **how):
        pass

    async def undisturb(self, replica):
        pass


def plan(*, stream):
    steps = [{"fault": "probe_blind", "replica": "m-1", "for": 0.05}]
    traffic = {"rate": 200.0, "tokens": 8, "late": 60.0, "stream": stream}
    return PlanFile.model_validate({"settle": 0.0, "traffic": traffic, "steps": steps})


async def played(url, *, stream, told=NEVER):
    target = Paper("http://x", told=told)
    return await GameDay(target, url, plan(stream=stream), lambda _: None).run()


async def with_stand_in(ailment=None, *, stream):
    replica = await StandIn(Options(ttft_ms=0.0, tpot_ms=0.0)).start()
    try:
        if ailment is not None:
            replica.set_fault(ailment)
        return await played(replica.url, stream=stream)
    finally:
        await replica.stop()


@pytest.mark.parametrize("stream", [True, False])
def test_a_well_fleet_harms_nobody_in_either_shape(stream):
    record = asyncio.run(with_stand_in(stream=stream))
    assert record.asked
    assert not record.harmed
    assert record.held


def incident(name, begun_at=10.0, replicas=("m-1",), cause="hung"):
    told = {"id": name, "title": f"{cause} of m-1", "cause": cause, "replicas": [*replicas]}
    return told | {"opened_at": 10.0, "begun_at": begun_at}


def test_incidents_of_the_day_are_those_that_began_came_back_or_changed_on_it():
    before = [incident(name) for name in ("gone", "stays", "back", "grows", "turns")]
    after = [incident("new"), incident("gone", 50.0), incident("stays"), incident("back", 50.0)]
    after.append(incident("grows", replicas=("m-1", "m-2")))
    after.append(incident("turns", cause="slow"))

    async def run():
        replica = await StandIn(Options(ttft_ms=0.0, tpot_ms=0.0)).start()
        try:
            told = chain([before], repeat(after))
            return await played(replica.url, stream=False, told=told)
        finally:
            await replica.stop()

    record = asyncio.run(run())
    assert [one["id"] for one in record.incidents] == ["new", "gone", "back", "grows", "turns"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_day_does_not_begin_with_an_ill_fleet(stream):
    ill = fault("status", code=500, instant=True)
    with pytest.raises(ChaosError, match="not well to begin with: status 500"):
        asyncio.run(with_stand_in(ill, stream=stream))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "malformed"),
        (b"[]", "malformed"),
        (b'{"choices": []}', "malformed"),
        (b'{"choices": [{"message": {"content": "one"}}]}', "no finish"),
    ],
)
def test_an_answer_in_one_piece_has_to_be_one(body, told):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            await played(f"http://127.0.0.1:{port}", stream=False)

    with pytest.raises(ChaosError, match=f"not well to begin with: {told}"):
        asyncio.run(run())
