"""The proxy against real sockets: what passes, and each way of hurting it."""

import asyncio
import contextlib
import json

import pytest

from holdfast.chaos.proxy import Dose, FaultProxy, Toxic, stamp
from holdfast.core.types import ConfigError
from holdfast.testing.standin import Options, StandIn

PATIENCE_S = 20.0
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
).encode()
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
GET = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def stage():
    """A stand-in with a proxy before it."""
    standin = StandIn(Options(ttft_ms=1.0, tpot_ms=1.0, tokens=12))
    await standin.start()
    proxy = FaultProxy("127.0.0.1", standin.port)
    try:
        await proxy.open()
        yield proxy
    finally:
        await proxy.close()
        await standin.stop()


async def exchange(proxy, request=POST, wait_s=PATIENCE_S):
    """Everything that comes back, and how it ended."""
    host, port = "127.0.0.1", int(proxy.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    data = b""
    try:
        async with asyncio.timeout(wait_s):
            while piece := await reader.read(65_536):
                data += piece
    except TimeoutError:
        return data, "silence"
    except ConnectionResetError:
        return data, "reset"
    else:
        return data, "end"
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def run(scenario):
    async def bounded():
        async with asyncio.timeout(60), stage() as proxy:
            return await scenario(proxy)

    return asyncio.run(bounded())


def test_without_a_toxic_everything_passes_as_it_is():
    async def scenario(proxy):
        data, end = await exchange(proxy)
        page, _ = await exchange(proxy, GET)
        return data, end, page, proxy.passed, proxy.touched

    data, end, page, passed, touched = run(scenario)
    assert end == "end"
    assert b"[DONE]" in data
    assert page.startswith(b"HTTP/1.1 200")
    assert (passed, touched) == (1, 0)


def test_corrupted_text_is_valid_and_another_of_the_same_length():
    async def scenario(proxy):
        right, _ = await exchange(proxy)
        await proxy.set(Dose(Toxic.WRONG_OUTPUT))
        wrong, end = await exchange(proxy)
        return right, wrong, end

    right, wrong, end = run(scenario)
    assert end == "end"
    assert texts(right) != texts(wrong)
    assert len("".join(texts(right))) == len("".join(texts(wrong)))
    assert b"[DONE]" in wrong


def texts(data):
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
    chunks = [json.loads(line)["choices"][0]["delta"].get("content") for line in lines]
    return [text for text in chunks if text]


@pytest.mark.parametrize(("toxic", "end"), [(Toxic.RESET, "reset"), (Toxic.CUT, "end")])
def test_an_answer_breaks_off_with_a_reset_or_in_good_order(toxic, end):
    async def scenario(proxy):
        await proxy.set(Dose(toxic, pieces=3))
        return await exchange(proxy)

    data, ended = run(scenario)
    assert ended == end
    assert b"[DONE]" not in data
    assert data or toxic is Toxic.RESET  # a reset may take along what was not read yet
    assert data.endswith(b"\r\n0\r\n\r\n") or toxic is Toxic.RESET  # no client misses a chunk


@pytest.mark.parametrize("toxic", [Toxic.HANG, Toxic.STALL])
def test_requests_hang_while_the_page_stays_green(toxic):
    async def scenario(proxy):
        await proxy.set(Dose(toxic, pieces=1))
        data, end = await exchange(proxy, wait_s=0.5)
        page, _ = await exchange(proxy, GET)
        return data, end, page

    data, end, page = run(scenario)
    assert end == "silence"
    assert b"[DONE]" not in data
    assert page.startswith(b"HTTP/1.1 200")


def test_a_hang_goes_on_when_the_replica_closes_connections_that_bring_it_nothing():
    async def impatient(_, writer):
        await asyncio.sleep(0.05)
        writer.close()

    async def main():
        server = await asyncio.start_server(impatient, "127.0.0.1", 0)
        proxy = FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1])
        await proxy.open()
        try:
            await proxy.set(Dose(Toxic.HANG))
            return await exchange(proxy, wait_s=0.5)
        finally:
            await proxy.close()
            server.close()

    assert asyncio.run(main()) == (b"", "silence")


def test_a_partition_takes_even_the_page_and_a_refusal_takes_the_port():
    async def scenario(proxy):
        await proxy.set(Dose(Toxic.PARTITION))
        page, end = await exchange(proxy, GET, wait_s=0.3)
        assert (page, end) == (b"", "silence")
        await proxy.set(Dose(Toxic.REFUSE))
        with pytest.raises(ConnectionRefusedError):
            await exchange(proxy, GET)
        await proxy.set(None)
        return await exchange(proxy)

    data, _ = run(scenario)
    assert b"[DONE]" in data


@pytest.mark.parametrize(
    "dose",
    [Dose(Toxic.LATENCY, delay_s=0.01), Dose(Toxic.DRIP, delay_s=0.02), Dose(Toxic.SLOW, factor=3)],
)
def test_a_late_answer_is_whole(dose):
    async def scenario(proxy):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await proxy.set(dose)
        data, end = await exchange(proxy)
        return data, end, loop.time() - begun

    data, end, took = run(scenario)
    assert end == "end"
    assert b"[DONE]" in data
    assert took >= 0.01


def test_when_a_piece_came_is_noted_while_the_one_before_it_is_held_back():
    """Else the delay of one counts as the time that the next one took, and delays multiply."""

    async def main():
        incoming, arrivals = asyncio.StreamReader(), asyncio.Queue()
        reading = asyncio.create_task(stamp(incoming, arrivals))
        for piece in (b"one", b"two"):
            incoming.feed_data(piece)
            while arrivals.qsize() < 1 + (piece == b"two"):  # noqa: ASYNC110 nobody takes them
                await asyncio.sleep(0)
        incoming.set_exception(ConnectionResetError())
        await reading
        return [arrivals.get_nowait() for _ in range(3)]

    (first, one), (second, two), (_, end) = asyncio.run(main())
    assert (one, two, end) == (b"one", b"two", b"")
    assert first < second


@pytest.mark.parametrize(
    ("toxic", "status"),
    [(Toxic.BLACK_HOLE, b"500"), (Toxic.REFUSE_BUSY, b"429"), (Toxic.EMPTY, b"200")],
)
def test_a_request_gets_another_answer_and_never_reaches_the_replica(toxic, status):
    async def scenario(proxy):
        await proxy.set(Dose(toxic))
        data, end = await exchange(proxy, wait_s=1.0)
        page, _ = await exchange(proxy, GET)
        return data, end, page

    data, _, page = run(scenario)
    assert data.split()[1] == status
    assert page.startswith(b"HTTP/1.1 200")
    if toxic is Toxic.EMPTY:
        assert texts(data) == []
        assert b"[DONE]" in data
    if toxic is Toxic.REFUSE_BUSY:
        assert b"retry-after" in data


def test_garbage_is_one_letter_and_corrupt_is_no_json():
    async def scenario(proxy):
        await proxy.set(Dose(Toxic.GARBAGE))
        garbage, _ = await exchange(proxy)
        await proxy.set(Dose(Toxic.CORRUPT))
        corrupt, _ = await exchange(proxy)
        return garbage, corrupt

    garbage, corrupt = run(scenario)
    assert set("".join(texts(garbage))) == {"!"}
    with pytest.raises(json.JSONDecodeError):
        texts(corrupt)


def test_flaky_resets_its_share_of_the_requests():
    async def scenario(proxy):
        await proxy.set(Dose(Toxic.FLAKY, share=0.5))
        return [(await exchange(proxy))[1] for _ in range(20)]

    ends = run(scenario)
    assert {"reset", "end"} == set(ends)


def test_out_of_memory_is_told_to_whoever_does_the_killing():
    async def main():
        standin = StandIn(Options(ttft_ms=1.0, tpot_ms=1.0, tokens=3))
        await standin.start()
        told = []
        proxy = FaultProxy("127.0.0.1", standin.port, at_request=lambda: told.append(1))
        await proxy.open()
        await proxy.set(Dose(Toxic.OOM))
        try:
            await exchange(proxy, GET)
            assert told == []
            await exchange(proxy)
        finally:
            await proxy.close()
            await standin.stop()
        return told

    assert asyncio.run(main()) == [1]


def test_a_target_that_is_gone_gives_an_end_and_no_error():
    async def main():
        proxy = FaultProxy("127.0.0.1", 1)
        await proxy.open()
        try:
            return await exchange(proxy)
        finally:
            await proxy.close()

    data, end = asyncio.run(main())
    assert data == b""
    assert end in {"end", "reset"}


@pytest.mark.parametrize(
    "bad", [{"delay_s": 0.0}, {"factor": 1.0}, {"pieces": -1}, {"delay_s": 1e9}, {"share": 0.0}]
)
def test_a_dose_that_cannot_be_is_refused_by_its_field(bad):
    with pytest.raises(ConfigError, match=f"dose.{next(iter(bad))}"):
        Dose(Toxic.LATENCY, **bad)
