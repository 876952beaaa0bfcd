"""What only the servers promise: which of them are refused, and what a crash of theirs does.

Run by ``make test-stores``: the servers come from packages that nothing else needs.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.queue_port import (
    LeaseAnswer,
    NewItem,
    QueueFullError,
    QueueUnavailableError,
    QueueUnsupportedError,
    Settlement,
)
from holdfast.testing.store_servers import PostgresServer, ValkeyServer

pytestmark = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_STORES"), reason="needs servers: make test-stores"
)


def redis_queue(server, **more):
    from holdfast.storage.queues.redis import RedisQueue  # noqa: PLC0415 an extra

    return RedisQueue(server.url, **more)


def postgres_queue(server, **more):
    from holdfast.storage.queues.postgres import PostgresQueue  # noqa: PLC0415 an extra

    return PostgresQueue(server.url, **more)


OPENED = {"postgres": (PostgresServer, postgres_queue), "valkey": (ValkeyServer, redis_queue)}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"aof": False}, "no append-only file: a restart would lose every item; set"),
        ({"policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru: it would drop items"),
    ],
)
def test_a_valkey_that_would_lose_items_is_refused(settings, told):
    async def story(server):
        queue = redis_queue(server)
        with pytest.raises(QueueUnsupportedError, match=told):
            await queue.enqueue("q", [NewItem("i", b"")])
        with pytest.raises(QueueUnsupportedError, match=told):
            await queue.lease("q", 1, 30.0)
        await queue.close()

    with ValkeyServer(**settings) as server:
        asyncio.run(story(server))


def test_a_valkey_that_syncs_each_second_is_waited_for():
    async def story(server):
        queue = redis_queue(server)
        assert await queue.enqueue("q", [NewItem("i", b"p")]) == [True]
        (leased,) = await queue.lease("q", 1, 30.0)
        assert await queue.ack([Settlement(leased.lease, result=b"r")]) == [LeaseAnswer.OK]
        assert queue._waits_for_sync
        server.kill()
        server.start()
        after = redis_queue(server)
        view = await after.item("q", "i")
        assert (view.state.value, view.result) == ("done", b"r")
        await queue.close()
        await after.close()

    with ValkeyServer(fsync="everysec") as server:
        asyncio.run(story(server))


def test_a_valkey_without_memory_refuses_new_items_and_keeps_the_rest():
    async def story(server):
        queue = redis_queue(server)
        await queue.enqueue("q", [NewItem("i", b"p")])
        await queue._client.config_set("maxmemory", "1mb")
        with pytest.raises(QueueFullError, match="memory is full: nothing was changed; raise"):
            await queue.enqueue("q", [NewItem("j", bytes(1_000_000))])
        await queue._client.config_set("maxmemory", "512mb")
        assert await queue.enqueue("q", [NewItem("j", b"")]) == [True]
        await queue.close()

    with ValkeyServer() as server:
        asyncio.run(story(server))


@pytest.mark.parametrize("kind", OPENED)
def test_the_number_of_items_is_bounded(kind):
    make, opened = OPENED[kind]

    async def story(server):
        queue = opened(server, items_max=3)
        await queue.enqueue("q", [NewItem("a", b""), NewItem("b", b"")])
        with pytest.raises(QueueFullError, match="has 2 items and may have 3; purge"):
            await queue.enqueue("q", [NewItem("c", b""), NewItem("d", b"")])
        await queue.purge("q")
        assert await queue.enqueue("q", [NewItem("c", b"")]) == [True]
        await queue.close()

    with make() as server:
        asyncio.run(story(server))


@pytest.mark.parametrize("kind", OPENED)
def test_a_server_that_crashed_keeps_what_it_confirmed_and_fences_as_before(kind):
    make, opened = OPENED[kind]

    async def story(server):
        queue = opened(server)
        await queue.enqueue("q", [NewItem(f"i{n}", b"p") for n in range(5)])
        first, second = await queue.lease("q", 2, 300.0)
        assert await queue.ack([Settlement(first.lease, result=b"r")]) == [LeaseAnswer.OK]
        server.kill()
        with pytest.raises(QueueUnavailableError):
            await queue.lease("q", 1, 30.0)
        server.start()
        assert len(await queue.lease("q", 9, 30.0)) == 3  # what is held is not given out again
        assert await queue.ack([Settlement(first.lease)]) == [LeaseAnswer.REPEATED]
        assert await queue.ack([Settlement(second.lease)]) == [LeaseAnswer.OK]
        await queue.close()

    with make() as server:
        asyncio.run(story(server))


def test_a_postgres_that_does_not_sync_is_refused(monkeypatch):
    monkeypatch.setattr("holdfast.testing.store_servers.SETTINGS", ("fsync=off",))

    async def story(server):
        queue = postgres_queue(server)
        with pytest.raises(QueueUnsupportedError, match="fsync = off: a crash of its machine"):
            await queue.enqueue("q", [NewItem("i", b"")])
        await queue.close()

    with PostgresServer() as server:
        asyncio.run(story(server))


@pytest.mark.parametrize("kind", OPENED)
def test_a_server_that_is_not_there_is_told_without_its_password(kind):
    async def story():
        if kind == "postgres":
            from holdfast.storage.queues.postgres import PostgresQueue  # noqa: PLC0415 an extra

            queue = PostgresQueue("postgresql://u:hunter2@127.0.0.1:9/d")
        else:
            from holdfast.storage.queues.redis import RedisQueue  # noqa: PLC0415 an extra

            queue = RedisQueue("redis://:hunter2@127.0.0.1:9/0")
        with pytest.raises(QueueUnavailableError) as caught:
            await queue.enqueue("q", [NewItem("i", b"")])
        assert "hunter2" not in str(caught.value)
        await queue.close()

    asyncio.run(story())


@pytest.mark.parametrize("kind", OPENED)
def test_nothing_is_lost_and_nothing_ends_twice_when_all_are_killed(kind):
    """A short run of bench/queue_kill.py, with kills of the server among them."""
    script = Path(__file__).parents[2] / "bench" / "queue_kill.py"
    amount = ["--items", "150", "--each", "1", "--random", "8"]
    command = [sys.executable, str(script), "--store", kind, *amount]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"lost": 0' in ran.stdout
