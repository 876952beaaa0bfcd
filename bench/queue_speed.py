"""Measures how many items a durable queue takes through enqueue, lease and ack in a second.

    python bench/queue_speed.py                                # SQLite
    python bench/queue_speed.py --store postgres --store valkey   # see `make test-stores`

One process: a producer enqueues ``--batch`` items per call, a consumer leases and acknowledges as
many per call, each waiting for its answer. With ``--callers`` above 1 that many pairs run at once,
and calls share commits. Items have 1 KB of payload, results 200 bytes. The first row of each store
is for one item per call.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.queue_port import DurableQueue, ItemState, NewItem, Settlement
from holdfast.storage.queues.sqlite import SqliteQueue
from holdfast.testing.store_servers import PostgresServer, ValkeyServer

PAYLOAD = b"x" * 1_024
RESULT = b"y" * 200
SYNC = {
    "sqlite": "WAL, synchronous=FULL",
    "postgres": "fsync=on, synchronous_commit=on",
    "valkey": "appendonly yes, appendfsync always",
}


@contextlib.contextmanager
def opened(kind: str) -> Iterator[DurableQueue]:
    """A queue in a store of its own."""
    with contextlib.ExitStack() as kept:
        if kind == "sqlite":
            folder = kept.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-queue-"))
            yield SqliteQueue(Path(folder) / "queue.db")
        elif kind == "postgres":
            from holdfast.storage.queues.postgres import PostgresQueue  # noqa: PLC0415 an extra

            yield PostgresQueue(kept.enter_context(PostgresServer()).url)
        else:
            from holdfast.storage.queues.redis import RedisQueue  # noqa: PLC0415 an extra

            yield RedisQueue(kept.enter_context(ValkeyServer()).url)


async def produce(queue: DurableQueue, name: str, items: int, batch: int) -> None:
    """Enqueue items, so many per call."""
    for start in range(0, items, batch):
        count = min(batch, items - start)
        new = [NewItem(f"{start + n}", PAYLOAD) for n in range(count)]
        assert all(await queue.enqueue(name, new))


async def consume(queue: DurableQueue, name: str, items: int, batch: int) -> None:
    """Lease and acknowledge all items, so many per call."""
    done = 0
    while done < items:
        leased = await queue.lease(name, batch, 60.0, "bench")
        if not leased:
            await asyncio.sleep(0.02)
            continue
        ends = [Settlement(item.lease, ItemState.DONE, RESULT) for item in leased]
        answers = await queue.ack(ends)
        assert set(answers) == {"ok"}
        done += len(leased)


async def measure(queue: DurableQueue, name: str, items: int, batch: int, callers: int) -> Any:
    """Items per second through the whole way, by the clock and by this process's own CPU."""
    each = items // callers
    queues = [f"{name}-{caller}" for caller in range(callers)]
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(
        *(produce(queue, one, each, batch) for one in queues),
        *(consume(queue, one, each, batch) for one in queues),
    )
    took, used = time.perf_counter() - began, time.process_time() - cpu
    ended = sum(depth.counts[ItemState.DONE] for depth in await queue.depths() if depth.counts)
    return {
        "batch": batch,
        "callers": callers,
        "items": each * callers,
        "per_s": round(each * callers / took),
        "cpu_us_per_item": round(used / (each * callers) * 1e6),
        "ended_in_store": ended,
    }


async def run(queue: DurableQueue, kind: str, items: int, batches: list[int]) -> dict[str, Any]:
    """All rows of one store."""
    await measure(queue, "warm", 200, 20, 1)
    rows = [await measure(queue, "one", max(items // 20, 200), 1, 1)]
    rows.append(await measure(queue, "many", max(items // 4, 800), 1, 100))
    rows += [await measure(queue, f"b{batch}", items, batch, 1) for batch in batches]
    await queue.close()
    return {"store": kind, "sync": SYNC[kind], "rows": rows}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--store", choices=sorted(SYNC), action="append")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--batch", type=int, action="append")
    given = parser.parse_args()
    for kind in given.store or ["sqlite"]:
        with opened(kind) as queue:
            result = asyncio.run(run(queue, kind, given.items, given.batch or [20, 100, 500]))
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
