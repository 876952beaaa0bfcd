"""What every durable queue promises, asked of the one in memory and of every store.

The servers (PostgreSQL, Valkey) are started by ``make test-stores`` only.
"""

import asyncio
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_queues import (
    QueueUnderTest,
    memory_queue,
    postgres_queue,
    queue_test,
    redis_queue,
    sqlite_queue,
)
from holdfast.queue_port import (
    NOTE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    STORY_ENTRIES_MAX,
    TERMINAL,
    EndedItem,
    ItemRefusedError,
    ItemState,
    Lease,
    LeaseAnswer,
    NewItem,
    RecordStore,
    Settlement,
)
from holdfast.testing.store_servers import PostgresServer, ValkeyServer

SERVERS = ["postgres", "valkey"] if os.environ.get("HOLDFAST_STORES") else []
KINDS = ["memory", "sqlite", *SERVERS]
OK, REPEATED = LeaseAnswer.OK, LeaseAnswer.REPEATED
FENCED, GONE = LeaseAnswer.FENCED, LeaseAnswer.GONE


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture(params=KINDS)
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> QueueUnderTest:
    if request.param == "memory":
        return memory_queue()
    if request.param == "sqlite":
        return sqlite_queue(tmp_path / "queue.db")
    server = request.getfixturevalue(request.param)
    test = postgres_queue(server.url) if request.param == "postgres" else redis_queue(server.url)

    async def emptied() -> None:
        queue = test.again()
        for depth in await queue.depths():
            await queue.purge(depth.queue)
        await queue.close()

    asyncio.run(emptied())
    test.opened.clear()
    return test


def some(count: int, **more: object) -> list[NewItem]:
    return [NewItem(id=f"i{n}", payload=b"p%d" % n, **more) for n in range(count)]  # type: ignore[arg-type]


async def states(test: QueueUnderTest, queue: str = "q") -> dict[str, int]:
    found = await test.queue.depths(queue)
    return {state.value: n for one in found for state, n in one.counts.items()}


# --- the way of an item ---------------------------------------------------------------------------


@queue_test
async def test_an_item_is_enqueued_leased_and_ended_once(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    item = NewItem("i", b"\x00\xff", group="b1", tenant="acme", priority=2, deadline=9e9)
    assert await queue.enqueue("q", [item]) == [True]
    (leased,) = await queue.lease("q", 10, 30.0, "runner")
    assert (leased.payload, leased.group, leased.tenant) == (b"\x00\xff", "b1", "acme")
    assert (leased.priority, leased.deadline, leased.receives) == (2, 9e9, 1)
    assert (leased.max_receives, leased.story, leased.last_receive) == (3, (), False)
    assert await queue.lease("q", 10, 30.0) == []
    assert await queue.ack([Settlement(leased.lease, ItemState.DONE, b"\xfe")]) == [OK]
    view = await queue.item("q", "i")
    assert view is not None
    assert (view.state, view.result, view.payload) == (ItemState.DONE, b"\xfe", b"")
    assert (view.owner, view.receives, view.ended_at) == ("runner", 1, under_test.clock.wall_s)
    assert await states(under_test) == {"done": 1}


@queue_test
async def test_an_empty_queue_has_nothing(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    assert await queue.lease("q", 1, 1.0) == []
    assert await queue.depths() == []
    assert await queue.items("q") == []
    assert await queue.item("q", "i") is None
    assert await queue.redrive("q") == await queue.purge("q") == await queue.cancel("q", "g") == 0
    assert await queue.reclaim("nobody") == 0
    assert await queue.ack([]) == await queue.extend([], 1.0) == await queue.enqueue("q", []) == []


@queue_test
async def test_queues_are_apart(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("chat/acme", some(2))
    await queue.enqueue("chat/zebra", some(1))
    assert len(await queue.lease("chat/zebra", 10, 30.0)) == 1
    assert len(await queue.lease("chat/acme", 10, 30.0)) == 2
    assert [depth.queue for depth in await queue.depths()] == ["chat/acme", "chat/zebra"]


@queue_test
async def test_an_id_is_added_once_whatever_became_of_it(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    assert await queue.enqueue("q", [*some(2), NewItem("i1", b"other")]) == [True, True, False]
    (first, _) = await queue.lease("q", 2, 30.0)
    assert await queue.ack([Settlement(first.lease)]) == [OK]
    assert await queue.enqueue("q", some(3)) == [False, False, True]
    assert [item.payload for item in await queue.lease("q", 5, 30.0)] == [b"p2"]
    assert await queue.purge("q") == 3
    assert await queue.enqueue("q", some(1)) == [True]


@queue_test
async def test_the_most_urgent_goes_first(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    items = [
        NewItem("late", b"", priority=0, deadline=9e9),
        NewItem("no deadline", b"", priority=0),
        NewItem("no deadline, later", b"", priority=0),
        NewItem("soon", b"", priority=0, deadline=8e9),
        NewItem("urgent", b"", priority=-1),
        NewItem("slow", b"", priority=5, deadline=1e9),
    ]
    await queue.enqueue("q", items)
    order = [item.id for _ in range(3) for item in await queue.lease("q", 2, 30.0)]
    assert order == ["urgent", "soon", "late", "no deadline", "no deadline, later", "slow"]


@queue_test
async def test_a_delayed_item_waits(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1, delay_s=10.0))
    assert await states(under_test) == {"delayed": 1}
    await under_test.pass_time(9.0)
    assert await queue.lease("q", 1, 30.0) == []
    await under_test.pass_time(1.5)
    assert await states(under_test) == {"ready": 1}
    assert len(await queue.lease("q", 1, 30.0)) == 1


# --- leases ---------------------------------------------------------------------------------------


@queue_test
async def test_a_lease_runs_out_and_its_late_holder_is_fenced(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    (first,) = await queue.lease("q", 1, 30.0, "a")
    await under_test.pass_time(28.0)
    assert await queue.lease("q", 1, 30.0, "b") == []
    await under_test.pass_time(4.0)
    (second,) = await queue.lease("q", 1, 30.0, "b")
    assert second.receives == 2
    assert [told["what"] for told in second.story] == ["lease ran out"]
    assert second.story[0]["owner"] == "a"
    late = Settlement(first.lease, ItemState.DONE, b"late")
    assert await queue.ack([late]) == [FENCED]
    assert await queue.extend([first.lease], 30.0) == [FENCED]
    assert await queue.nack([first.lease]) == await queue.release([first.lease]) == [FENCED]
    assert await queue.ack([Settlement(second.lease, ItemState.DONE, b"good")]) == [OK]
    assert await queue.ack([late]) == [FENCED]
    view = await queue.item("q", "i0")
    assert view is not None
    assert view.result == b"good"


@queue_test
async def test_a_late_holder_that_nobody_replaced_may_still_end_it(
    under_test: QueueUnderTest,
) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(2))
    first, second = await queue.lease("q", 2, 30.0)
    await under_test.pass_time(60.0)
    assert await states(under_test) == {"ready": 2}
    assert await queue.ack([Settlement(first.lease, ItemState.DONE, b"r")]) == [OK]
    assert await queue.extend([second.lease], 30.0) == [OK]
    assert await queue.lease("q", 2, 30.0) == []


@queue_test
async def test_a_heartbeat_keeps_a_lease(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    (leased,) = await queue.lease("q", 1, 30.0)
    for _ in range(4):
        await under_test.pass_time(20.0)
        assert await queue.extend([leased.lease], 30.0) == [OK]
        assert await queue.lease("q", 1, 30.0) == []
    assert await queue.ack([Settlement(leased.lease)]) == [OK]


@queue_test
async def test_an_ack_can_be_repeated_and_changes_nothing(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    (leased,) = await queue.lease("q", 1, 30.0)
    first = Settlement(leased.lease, ItemState.FAILED, b"first")
    second = Settlement(leased.lease, ItemState.DONE, b"second")
    assert await queue.ack([first, second]) == [OK, REPEATED]
    assert await queue.ack([second]) == [REPEATED]
    assert await queue.nack([leased.lease]) == [REPEATED]
    (view,) = await queue.items("q", states=TERMINAL)
    assert (view.state, view.result) == (ItemState.FAILED, b"first")


@queue_test
async def test_what_was_purged_is_gone_for_its_holder(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    (leased,) = await queue.lease("q", 1, 30.0)
    assert await queue.purge("q") == 1
    assert await queue.ack([Settlement(leased.lease)]) == [GONE]
    assert await queue.ack([Settlement(Lease("q", "never", "1"))]) == [GONE]
    assert await states(under_test) == {}


@queue_test
async def test_a_made_up_token_has_no_right(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    (leased,) = await queue.lease("q", 1, 30.0)
    for token in ("", "0", "2", "x", "99999999999999999999999999"):
        assert await queue.ack([Settlement(Lease("q", "i0", token))]) == [FENCED]
    assert await queue.ack([Settlement(leased.lease)]) == [OK]


# --- failed receives ------------------------------------------------------------------------------


@queue_test
async def test_a_failed_item_pauses_longer_each_time_and_dies_at_the_third(
    under_test: QueueUnderTest,
) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    for pause, lost in ((1.0, "r1"), (2.0, "r2")):
        (leased,) = await queue.lease("q", 1, 30.0, "runner")
        assert await queue.nack([leased.lease], note={"lost_replica": lost}) == [OK]
        assert await states(under_test) == {"delayed": 1}
        await under_test.pass_time(pause - 0.5)
        assert await queue.lease("q", 1, 30.0) == []
        await under_test.pass_time(1.5)
    (leased,) = await queue.lease("q", 1, 30.0)
    assert (leased.receives, leased.last_receive) == (3, True)
    assert await queue.nack([leased.lease], note={"lost_replica": "r3"}) == [OK]
    (dead,) = await queue.items("q", states=[ItemState.DEAD])
    assert [told["note"]["lost_replica"] for told in dead.story] == ["r1", "r2", "r3"]
    assert [told["receive"] for told in dead.story] == [1, 2, 3]
    assert dead.payload == b"p0"
    assert dead.ended_at is not None
    assert await queue.ack([Settlement(leased.lease)]) == [FENCED]


@queue_test
async def test_leases_that_run_out_are_receives_too(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1, max_receives=2))
    for _ in range(2):
        assert len(await queue.lease("q", 1, 5.0)) == 1
        await under_test.pass_time(8.0)
    assert await queue.lease("q", 1, 5.0) == []
    assert await states(under_test) == {"dead": 1}


@queue_test
async def test_a_nack_may_name_its_pause_or_bury_at_once(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(2))
    first, second = await queue.lease("q", 2, 30.0)
    assert await queue.nack([first.lease], delay_s=0.0) == [OK]
    assert await queue.nack([second.lease], note={"lost": 2}, dead=True) == [OK]
    assert await states(under_test) == {"ready": 1, "dead": 1}


@queue_test
async def test_a_released_item_was_never_received(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1, max_receives=1))
    for _ in range(5):  # a model that is down burns no receives
        (leased,) = await queue.lease("q", 1, 30.0)
        assert leased.receives == 1
        assert await queue.release([leased.lease]) == [OK]
        assert await queue.ack([Settlement(leased.lease)]) == [FENCED]
    assert await states(under_test) == {"ready": 1}


@queue_test
async def test_what_a_dead_owner_held_comes_back_at_once(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(3))
    (mine,) = await queue.lease("q", 1, 300.0, "a")
    (other,) = await queue.lease("q", 1, 300.0, "b")
    assert await queue.reclaim("a") == 1
    assert await queue.reclaim("a") == 0
    again = await queue.lease("q", 3, 300.0, "c")
    assert [item.id for item in again] == [mine.id, "i2"]
    assert (again[0].receives, again[0].story[0]["what"]) == (2, "owner ended")
    assert await queue.ack([Settlement(mine.lease), Settlement(other.lease)]) == [FENCED, OK]


@queue_test
async def test_dead_letters_are_redriven_with_their_story(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(3, max_receives=1))
    leased = await queue.lease("q", 3, 30.0)
    await queue.nack([item.lease for item in leased], note={"why": "poison"})
    assert await states(under_test) == {"dead": 3}
    assert await queue.redrive("q", ["i1", "unknown", "i1"]) == 1
    (again,) = await queue.lease("q", 3, 30.0)
    assert (again.id, again.receives, again.payload) == ("i1", 1, b"p1")
    assert again.story[0]["note"] == {"why": "poison"}
    assert await queue.ack([Settlement(leased[1].lease)]) == [FENCED]
    assert await queue.ack([Settlement(again.lease)]) == [OK]
    assert await queue.redrive("q") == 2
    assert await states(under_test) == {"done": 1, "ready": 2}


@queue_test
async def test_a_story_stays_small(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1, max_receives=1_000))
    for receive in range(20):
        (leased,) = await queue.lease("q", 1, 30.0)
        note = {"n": receive, "text": "ä" * (20_000 if receive == 19 else 1)}
        await queue.nack([leased.lease], note=note, delay_s=0.0)
    (view,) = await queue.items("q")
    assert len(view.story) == STORY_ENTRIES_MAX
    assert [told["receive"] for told in view.story] == [1, 14, 15, 16, 17, 18, 19, 20]
    assert len(str(view.story[-1]["note"]["cut"]).encode()) <= NOTE_BYTES_MAX


# --- groups, looking, deleting --------------------------------------------------------------------


@queue_test
async def test_a_cancelled_group_ends_but_for_what_is_leased(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(3, group="b1"))
    await queue.enqueue("q", [NewItem("other", b"o", group="b2")])
    (leased,) = await queue.lease("q", 1, 30.0)
    assert await queue.cancel("q", "b1") == 2
    assert await queue.cancel("q", "b1") == 0
    (depth,) = await queue.depths("q", "b1")
    assert depth.counts == {ItemState.LEASED: 1, ItemState.CANCELLED: 2}
    assert (depth.open, depth.in_flight, depth.waiting, depth.dead) == (1, 1, 0, 0)
    assert await queue.ack([Settlement(leased.lease)]) == [OK]
    assert [item.id for item in await queue.lease("q", 9, 30.0)] == ["other"]


@queue_test
async def test_terminal_records_are_read_page_by_page(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(5, group="b"))
    await queue.enqueue("q", [NewItem("x", b"", group="c")])
    leased = await queue.lease("q", 5, 30.0)
    settlements = [Settlement(item.lease, result=item.payload) for item in reversed(leased)]
    assert await queue.ack(settlements) == [OK] * 5
    seen, after = [], 0
    while page := await queue.items("q", states=TERMINAL, group="b", after=after, limit=2):
        seen += [(view.id, view.result) for view in page]
        after = page[-1].seq
    assert seen == [(f"i{n}", b"p%d" % n) for n in range(5)]
    assert await queue.items("q", limit=0) == []


@queue_test
async def test_purging_takes_what_was_named(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(2, group="b"))
    await queue.enqueue("q", [NewItem("x", b"", group="c"), NewItem("y", b"", group="c")])
    (leased,) = await queue.lease("q", 1, 30.0)
    await queue.ack([Settlement(leased.lease)])
    assert await queue.purge("q", group="b", states=[ItemState.DONE]) == 1
    assert await queue.purge("q", group="b") == 1
    assert await states(under_test) == {"ready": 2}
    assert await queue.purge("q", states=TERMINAL) == 0
    assert await queue.purge("q", ids=["x", "unknown"], states=TERMINAL) == 0
    assert await queue.purge("q", ids=["x", "unknown"]) == 1
    assert await queue.purge("q", ids=[]) == 0
    assert await queue.purge("q") == 1
    assert await queue.depths() == []


@queue_test
async def test_the_oldest_item_that_has_not_ended_gives_the_age(
    under_test: QueueUnderTest,
) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    await under_test.pass_time(10.0)
    await queue.enqueue("q", [NewItem("later", b"")])
    await under_test.pass_time(5.0)
    (depth,) = await queue.depths()
    assert depth.oldest_age_s == pytest.approx(15.0, abs=0.01)
    (leased,) = await queue.lease("q", 1, 30.0)
    await queue.ack([Settlement(leased.lease)])
    (depth,) = await queue.depths("q")
    assert depth.oldest_age_s == pytest.approx(5.0, abs=0.01)
    (leased,) = await queue.lease("q", 1, 30.0)
    await queue.ack([Settlement(leased.lease)])
    (depth,) = await queue.depths("q")
    assert depth.oldest_age_s is None


@queue_test
async def test_the_first_record_of_another_queues_item_stands(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    assert isinstance(queue, RecordStore)
    story = ({"what": "nacked", "receive": 1}, {"what": "nacked", "receive": 2})
    done = EndedItem("m1", ItemState.DONE, b"\xff1", group="g", tenant="t", owner="h1")
    dead = EndedItem("m2", ItemState.DEAD, payload=b"\xfe", receives=3, story=story)
    late = EndedItem("m1", ItemState.FAILED, b"late", owner="h2")
    assert await queue.settle("sqs", [done, dead, late]) == [True, True, False]
    assert await queue.settle("sqs", [late]) == [False]
    assert await queue.settle("sqs", []) == []
    first, second = await queue.items("sqs", states=TERMINAL)
    assert (first.state, first.result, first.owner) == (ItemState.DONE, b"\xff1", "h1")
    assert (first.group, first.tenant) == ("g", "t")
    assert (second.payload, second.receives, second.story) == (b"\xfe", 3, story)
    assert await states(under_test, "sqs") == {"done": 1, "dead": 1}
    with pytest.raises(ItemRefusedError, match=r"ended\[0\]\.state is ready; use done, failed"):
        await queue.settle("sqs", [EndedItem("m3", ItemState.READY)])


# --- bad input ------------------------------------------------------------------------------------


@queue_test
async def test_a_bad_item_is_refused_with_its_field_and_nothing_is_added(
    under_test: QueueUnderTest,
) -> None:
    queue = under_test.queue
    bad = [
        (NewItem("", b""), r"items\[1\]\.id is empty"),
        (NewItem("x" * 257, b""), r"items\[1\]\.id has 257 characters; use at most 256"),
        (NewItem("a\nb", b""), r"items\[1\]\.id has characters that cannot be printed"),
        (NewItem("x", b"", group="\ud800"), r"items\[1\]\.group has characters"),
        (NewItem("x", b"", tenant="t" * 999), r"items\[1\]\.tenant has 999 characters"),
        (NewItem("x", bytes(PAYLOAD_BYTES_MAX + 1)), r"items\[1\]\.payload has 1048577 bytes; use"),
        (NewItem("x", b"", max_receives=0), r"items\[1\]\.max_receives is 0; use 1 to 1000"),
        (NewItem("x", b"", priority=9999), r"items\[1\]\.priority is 9999"),
        (NewItem("x", b"", deadline=math.nan), r"items\[1\]\.deadline is nan"),
        (NewItem("x", b"", delay_s=-1.0), r"items\[1\]\.delay_s is -1\.0; use 0 or more"),
    ]
    for item, told in bad:
        with pytest.raises(ItemRefusedError, match=told):
            await queue.enqueue("q", [NewItem("good", b""), item])
    with pytest.raises(ItemRefusedError, match="queue is empty"):
        await queue.enqueue("", some(1))
    assert await queue.depths() == []


@queue_test
async def test_bad_arguments_are_refused_with_their_name(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(1))
    for count, visibility, told in (
        (0, 30.0, "count is 0"),
        (1, 0.5, r"visibility_s is 0\.5; use 1 or more"),
        (1, math.inf, "visibility_s is inf"),
    ):
        with pytest.raises(ItemRefusedError, match=told):
            await queue.lease("q", count, visibility)
    (leased,) = await queue.lease("q", 1, 30.0)
    with pytest.raises(ItemRefusedError, match="visibility_s"):
        await queue.extend([leased.lease], math.nan)
    with pytest.raises(ItemRefusedError, match="delay_s"):
        await queue.nack([leased.lease], delay_s=-1.0)
    with pytest.raises(ItemRefusedError, match=r"settlements\[0\]\.state is dead; use done or"):
        await queue.ack([Settlement(leased.lease, ItemState.DEAD)])
    with pytest.raises(ItemRefusedError, match=r"settlements\[0\]\.result has"):
        await queue.ack([Settlement(leased.lease, result=bytes(PAYLOAD_BYTES_MAX + 1))])
    assert await queue.ack([Settlement(leased.lease)]) == [OK]


# --- many at once, and a second process -----------------------------------------------------------


@queue_test
async def test_many_consumers_never_hold_the_same_item(under_test: QueueUnderTest) -> None:
    queue = under_test.queue
    await queue.enqueue("q", some(60))
    held: list[str] = []

    async def consume(owner: str) -> None:
        while leased := await queue.lease("q", 3, 300.0, owner):
            held.extend(item.id for item in leased)
            answers = await queue.ack([Settlement(item.lease) for item in leased])
            assert set(answers) == {OK}

    await asyncio.gather(*(consume(f"c{n}") for n in range(8)))
    assert sorted(held) == sorted(item.id for item in some(60))
    assert await states(under_test) == {"done": 60}


@queue_test
async def test_a_second_opener_sees_the_same_queue_and_leases(under_test: QueueUnderTest) -> None:
    if under_test.reopen is None:
        pytest.skip("lives in one object")
    queue, other = under_test.queue, under_test.again()
    await queue.enqueue("q", some(2))
    (mine,) = await queue.lease("q", 1, 30.0, "a")
    (theirs,) = await other.lease("q", 5, 30.0, "b")
    assert mine.id != theirs.id
    assert await other.ack([Settlement(mine.lease, result=b"r")]) == [OK]
    await queue.close()
    assert await other.extend([theirs.lease], 30.0) == [OK]
    view = await other.item("q", mine.id)
    assert view is not None
    assert view.result == b"r"


@pytest.mark.parametrize("jump_s", [3_600.0, -3_600.0])
def test_a_jump_of_the_wall_clock_ends_no_lease_and_starts_none(
    under_test: QueueUnderTest, jump_s: float
) -> None:
    @queue_test
    async def story(under_test: QueueUnderTest) -> None:
        queue = under_test.queue
        await queue.enqueue("q", some(1))
        (leased,) = await queue.lease("q", 1, 30.0)
        under_test.clock.wall_s += jump_s
        assert await queue.lease("q", 1, 30.0) == []
        await under_test.pass_time(28.0)
        assert await queue.lease("q", 1, 30.0) == []
        await under_test.pass_time(4.0)  # and it still ends when it should
        (again,) = await queue.lease("q", 1, 30.0)
        assert await queue.ack([Settlement(leased.lease)]) == [FENCED]
        assert await queue.ack([Settlement(again.lease)]) == [OK]
        (depth,) = await queue.depths("q")
        assert depth.oldest_age_s is None

    story(under_test)
