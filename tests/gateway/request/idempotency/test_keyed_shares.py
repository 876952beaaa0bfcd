"""What one tenant's keyed requests hold: counted as long as it is held, and never all there is."""

import asyncio
import gc

import pytest

from holdfast.config.tenants import hash_key
from holdfast.core.request.idempotency.key_policy import IdempotencyConfig
from holdfast.storage.key_stores.sqlite_keys import SqliteKeys
from holdfast.testing.key_store import MemoryKeys
from holdfast.testing.standin import Options
from keyed_stage import ask, connected, count, executions, request, runner, send

TENANTS = [{"name": name, "keys": [hash_key(f"hf-key-of-{name}")]} for name in ("red", "blue")]
BIG = 200_000  # bytes; of what else the gateway holds nothing is as large
ENDLESS = Options(ttft_ms=20_000.0, tpot_ms=1.0, tokens=2)
QUICK = IdempotencyConfig(poll_s=0.01)


@pytest.fixture
def keyed(live, tmp_path):
    return runner(live, tmp_path / "keys.db", SqliteKeys)


def of(tenant, key, **more):
    """A request of a tenant, as its client sends it."""
    head = f"HTTP/1.1\r\nauthorization: Bearer hf-key-of-{tenant}\r\n".encode()
    return request(key, **more).replace(b"HTTP/1.1\r\n", head, 1)


async def leave(gateway, sent, until):
    """Send a request and close the connection as soon as something is true."""
    async with connected(gateway) as (_, writer):
        writer.write(sent)
        await gateway.until(until)


def account(gateway, tenant):
    return gateway.driver.budget.account(tenant)


def bodies():
    """The large bodies that objects of the gateway refer to, each once, and their size in all."""
    found = set()
    for holder in gc.get_objects():
        kind = type(holder)
        if not kind.__module__.startswith(("holdfast.gateway", "holdfast.core")):
            continue
        names = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
        values = [getattr(holder, name, None) for name in names if isinstance(name, str)]
        values += getattr(holder, "__dict__", {}).values()
        found.update(value for value in values if type(value) is bytes and len(value) > BIG)
    return len(found), sum(map(len, found))


async def all_forgotten(gateway):
    """Wait until no object refers to a body; it is told by how many still do."""
    async with asyncio.timeout(5):
        while bodies()[0]:
            await asyncio.sleep(0.05)
            gc.collect()


# --- bytes ----------------------------------------------------------------------------------------


def test_a_body_is_counted_until_its_execution_ends_though_its_client_left(keyed):
    async def body(one, two):
        red, blue = account(one, "red"), account(one, "blue")
        for number in range(1, 4):
            sent = of("red", f"k{number}", content="x" * BIG + str(number))
            await leave(one, sent, lambda number=number: executions(one) == number)
            await one.until(lambda: not one.driver.keyed.callers)
            assert (red.requests, red.bytes) == bodies()
            assert red.requests == number
        reply = await send(one, of("red", "k4", content="x" * BIG))
        assert (reply.status, reply.code) == (429, "tenant_share_exceeded")
        assert (blue.requests, blue.bytes) == (0, 0)
        await leave(one, of("blue", "k"), lambda: executions(one) == 4)
        await one.until(lambda: count(one, "abandoned") == 4)
        await all_forgotten(one)
        assert (red.requests, red.bytes, one.driver.budget.held) == (0, 0, 0)

    budget = {"bytes_max": 4 * BIG, "receiving_bytes_max": 4 * BIG, "tenant_share": 0.9}
    http = {"body_bytes_max": 2 * BIG}
    keyed(
        body,
        IdempotencyConfig(abandoned_s=1.0, poll_s=0.01),
        options=ENDLESS,
        tenants=TENANTS,
        gateway={"listen": "127.0.0.1:0", "budget": budget, "http": http},
    )


def test_an_answer_that_is_kept_holds_no_body_and_no_headers_of_its_request(keyed):
    async def body(one, _):
        sent = request("k", content="x" * BIG)
        first = await send(one, sent)
        assert (first.status, one.driver.budget.held) == (200, 0)
        await all_forgotten(one)
        (answer,) = one.driver.keyed.answers.kept.values()
        assert (answer.body, answer.headers) == (b"", {})
        assert (await send(one, sent)).body == first.body

    keyed(body)


def test_who_leaves_while_the_store_is_asked_takes_its_body_along(keyed):
    store = MemoryKeys()

    async def body(one, _):
        assert (await ask(one, "k0")).status == 200
        with store._lock:  # a call of the thread waits here
            for number in range(3):
                sent = request(f"k{number}", content="x" * BIG)
                await leave(one, sent, lambda: one.driver.keyed.callers)
                await one.until(lambda: not one.driver.keyed.callers)
            await all_forgotten(one)
        assert one.driver.budget.held == 0
        while (await ask(one, "k1")).status != 200:
            assert executions(one) == 1, "a claim that was made late, for nobody, is given back"

    keyed(body, IdempotencyConfig(store_s=20.0, poll_s=0.01), store=lambda: store)


def test_duplicates_are_counted_while_they_wait_and_the_execution_once(keyed):
    async def body(one, two):
        sent = request("k", content="x" * BIG)
        size = len(sent.partition(b"\r\n\r\n")[2])
        waiting = [asyncio.ensure_future(send(one, sent)) for _ in range(3)]
        await one.until(lambda: executions(one) == 1 and count(one, "joined") == 2)
        assert one.driver.budget.held == 3 * size
        waiting[0].cancel()  # whose request is executed, perhaps
        await one.until(lambda: len(one.driver.keyed.callers) == 2)
        assert one.driver.budget.held in {2 * size, 3 * size}
        replies = await asyncio.gather(*waiting[1:])
        assert [reply.status for reply in replies] == [200, 200]
        assert (one.driver.budget.held, one.driver.budget.requests) == (0, 0)

    keyed(body, QUICK, options=Options(ttft_ms=300.0, tpot_ms=1.0, tokens=2))


# --- places ---------------------------------------------------------------------------------------


def test_executions_that_one_tenant_left_keep_no_other_tenant_out(keyed):
    async def body(one, _):
        for number in range(6):
            sent = of("red", f"k{number}")
            await leave(one, sent, lambda number=number: executions(one) == number + 1)
        await one.until(lambda: not one.driver.keyed.callers)
        own = await send(one, of("red", "k6"))
        assert (own.status, own.code) == (503, "idempotency_unavailable"), "one alone may have all"
        for number in range(3):
            sent = of("blue", f"k{number}")
            await leave(one, sent, lambda number=number: executions(one) == number + 7)
            assert count(one, "abandoned") == number + 1
        own = await send(one, of("blue", "k3"))
        assert own.status == 503, "blue has a half, and no more"
        assert one.driver.busy == 6

    keyed(
        body,
        IdempotencyConfig(waiting_max=6, poll_s=0.01),
        options=ENDLESS,
        tenants=TENANTS,
    )


def test_callers_who_wait_give_way_as_well_and_are_told(keyed):
    async def body(one, _):
        waiting = [asyncio.ensure_future(send(one, of("red", f"k{n}"))) for n in range(6)]
        await one.until(lambda: executions(one) == 6)
        reply = asyncio.ensure_future(send(one, of("blue", "k")))
        await one.until(lambda: executions(one) == 7)
        ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (told,) = (task.result() for task in ended)
        assert (told.status, told.code) == (503, "idempotency_unavailable")
        assert int(told.headers["retry-after"]) >= 1
        assert one.driver.busy == 6
        for task in (reply, *waiting):
            task.cancel()

    keyed(
        body,
        IdempotencyConfig(waiting_max=6, poll_s=0.01),
        options=ENDLESS,
        tenants=TENANTS,
    )


# --- memory of answers ----------------------------------------------------------------------------


def test_a_retry_of_one_tenant_is_replayed_however_much_another_has_kept(keyed):
    async def body(one, _):
        first = await send(one, of("blue", "k"))
        for number in range(40):
            assert (await send(one, of("red", f"k{number}"))).status == 200
        again = await send(one, of("blue", "k"))
        assert (again.status, again.body, again.replayed) == (200, first.body, True)
        lost = await send(one, of("red", "k0"))
        assert (lost.status, lost.code) == (409, "idempotency_answer_gone")
        assert (await send(one, of("red", "k39"))).replayed
        kept = one.driver.keyed.answers
        assert kept.size <= 8_000

    config = IdempotencyConfig(answer_bytes_max=4_000, memory_bytes_max=8_000, poll_s=0.01)
    keyed(body, config, tenants=TENANTS)
