"""Streams and lists of a real Valkey as queues that others fill, and as places for answers.

Run by ``make test-stores``.
"""

import asyncio
import os

import pytest

from holdfast.queue_port import QueueUnavailableError
from holdfast.storage.message_queues.redis_boxes import RedisInbox, RedisOutbox
from holdfast.testing.store_servers import ValkeyServer

pytestmark = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_STORES"), reason="needs servers: make test-stores"
)


@pytest.fixture(scope="module")
def server():
    with ValkeyServer() as running:
        yield running


def asked(server, scenario):
    async def main():
        from redis import asyncio as redis_asyncio  # noqa: PLC0415 an extra

        client = redis_asyncio.Redis.from_url(server.url)
        try:
            await client.flushall()
            await scenario(client)
        finally:
            await client.aclose()

    asyncio.run(main())


def stream(server):
    return RedisInbox(server.url, stream="requests", group="holdfast")


def test_entries_are_received_kept_and_deleted(server):
    async def scenario(client):
        inbox = stream(server)
        await client.xadd("requests", {"body": b"one", "id": "a"})
        await client.xadd("requests", {"anything": b"two"})
        depth = await inbox.depth()
        assert (depth.waiting, depth.in_flight) == (2, 0)
        assert 0 <= depth.oldest_s < 60
        first, second = await inbox.receive(10, 60.0, 0.0)
        assert (first.payload, first.id, first.receives) == (b"one", "a", 1)
        assert (second.payload, second.id) == (b"two", "")
        assert (await inbox.depth()).in_flight == 2
        assert await inbox.receive(10, 60.0, 0.0) == []
        assert await inbox.extend([first.receipt, second.receipt], 60.0) == [True, True]
        await inbox.delete([first.receipt])
        assert await inbox.extend([first.receipt, second.receipt], 60.0) == [False, True]
        assert await client.xlen("requests") == 1
        await inbox.close()

    asked(server, scenario)


def test_what_is_given_back_is_received_at_once_and_not_counted(server):
    async def scenario(client):
        one, other = stream(server), stream(server)
        await client.xadd("requests", {"body": b"p"})
        (held,) = await one.receive(1, 60.0, 0.0)
        assert await other.receive(1, 60.0, 0.0) == []
        await one.show([held.receipt])
        (again,) = await other.receive(1, 60.0, 0.0)
        assert (again.key, again.receives) == (held.key, 1)
        assert await one.extend([held.receipt], 60.0) == [False]  # it is another's now
        assert await other.extend([again.receipt], 60.0) == [True]
        await one.close()
        await other.close()

    asked(server, scenario)


def test_what_its_holder_left_is_received_again_and_counted(server):
    async def scenario(client):
        one, other = stream(server), stream(server)
        await client.xadd("requests", {"body": b"p"})
        (held,) = await one.receive(1, 60.0, 0.0)
        await one.close()  # killed
        await asyncio.sleep(0.05)
        (again,) = await other.receive(1, 0.01, 0.0)  # idle for longer than that
        assert (again.key, again.receives) == (held.key, 2)
        assert again.receipt != held.receipt
        await other.close()

    asked(server, scenario)


def test_a_list_is_read_from_its_other_end_and_loses_nothing(server):
    async def scenario(client):
        inbox = RedisInbox(server.url, list_key="work", group="holdfast")
        await client.lpush("work", b"one")
        await client.lpush("work", b"two", b"three")
        assert (await inbox.depth()).waiting == 3
        received = await inbox.receive(2, 60.0, 0.0)
        assert [message.payload for message in received] == [b"one", b"two"]
        depth = await inbox.depth()
        assert (depth.waiting, depth.in_flight) == (1, 2)
        await inbox.close()

    asked(server, scenario)


def test_entries_that_another_group_reads_are_not_deleted(server):
    async def scenario(client):
        inbox = stream(server)
        await client.xgroup_create("requests", "others", "0", mkstream=True)
        await client.xadd("requests", {"body": b"p"})
        (held,) = await inbox.receive(1, 60.0, 0.0)
        await inbox.delete([held.receipt])
        assert await client.xlen("requests") == 1
        assert (await inbox.depth()).in_flight == 0
        await inbox.close()

    asked(server, scenario)


def test_a_dead_letter_is_sent_again_with_its_id_and_answers_are_added(server):
    async def scenario(client):
        inbox = stream(server)
        await inbox.send("i", b"p")
        (held,) = await inbox.receive(1, 60.0, 0.0)
        assert (held.id, held.payload) == ("i", b"p")
        await inbox.close()
        outbox = RedisOutbox(server.url, stream="answers", length_max=1_000)
        await outbox.put("i", b"{}")
        ((_, fields),) = await client.xrange("answers")
        assert fields == {b"id": b"i", b"body": b"{}"}
        await outbox.close()
        other = RedisOutbox(server.url, list_key="answers-list", length_max=1)
        await other.put("i", b"{}")
        assert await client.lrange("answers-list", 0, -1) == [b"{}"]
        await other.close()

    asked(server, scenario)


def test_a_server_that_is_away_is_unavailable_and_then_goes_on(server):
    async def scenario(client):
        await client.xadd("requests", {"body": b"p"})
        inbox = stream(server)
        (held,) = await inbox.receive(1, 60.0, 0.0)
        await asyncio.to_thread(server.kill)
        with pytest.raises(QueueUnavailableError):
            await inbox.receive(1, 60.0, 0.0)
        await asyncio.to_thread(server.start)
        assert await inbox.extend([held.receipt], 60.0) == [True]
        await inbox.close()

    asked(server, scenario)
