import asyncio
import errno
import socket
import time

import orjson
import pytest

from holdfast.control.fetch import FetchError, fetch
from holdfast.control.fleet.engine_pages import read_engine
from holdfast.control.fleet.probes import Prober
from holdfast.core.health.canary_evidence import UsersBeside
from holdfast.core.health.own_lateness import EXCUSES_MAX, LATE, LoopWatch
from holdfast.core.messages import RunCanary
from holdfast.core.types import MILLISECOND, SECOND, nanos
from holdfast.engines import Load

PACE = 50 * MILLISECOND


def probe(
    world,
    prepare,
    *,
    deadline_s=5.0,
    engine="vllm",
    watch=None,
    witness=None,
    env=None,
    lacks=lambda _: None,
):
    """What a probe of one engine says."""

    async def main():
        server = await world.Engine().start()
        prepare(server)
        now = time.monotonic_ns()
        prober = Prober(
            watch or LoopWatch(3_600 * SECOND, now),
            witness or (lambda *_: UsersBeside()),
            world.canaries(environment=env),
            lacks,
        )
        if prepare is gone:
            await server.stop()
        action = RunCanary("m-1", "m", nanos(deadline_s), 7)
        result = await prober.probe(world.deployed(server.url, engine=engine), action)
        await server.stop()
        return result, server

    return asyncio.run(main())


def gone(server):
    """Nobody listens there."""


def silent(server):
    server.silent = True


def answering(status, headers="", body=b""):
    def prepare(server):
        server.default = (status, headers, body)

    return prepare


def cut(server):
    """The connection breaks under every answer."""
    server.default = b""


def well(server):
    """An engine that answers the question, for once without a stand-in: every byte is known."""
    said = [{"choices": [{"index": 0, "delta": {"content": "one two three"}}]}]
    said.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in said)
    server.answers["/v1/chat/completions"] = (200, "", events + b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("prepare", "verdict"),
    [
        (well, "pass"),
        (answering(200), "fail"),
        (answering(500), "fail"),
        (answering(503), "fail"),
        (answering(404), "fail"),
        (answering(302, "location: /elsewhere\r\n"), "fail"),
        (answering(429), "busy"),
        (answering(503, "retry-after: 1\r\n"), "busy"),
        (answering(503, "", b"Request queue full."), "busy"),
        (gone, "refused"),
    ],
)
def test_an_answer_becomes_a_verdict(world, prepare, verdict):
    result, _ = probe(world, prepare)
    assert result.verdict == verdict
    assert (result.replica_id, result.incarnation) == ("m-1", 7)
    assert (result.latency > 0) is (verdict == "pass")
    assert result.detail


@pytest.mark.parametrize(
    ("number", "resource"), [(errno.EMFILE, "descriptors"), (errno.EADDRNOTAVAIL, "ports")]
)
def test_what_could_not_be_asked_for_want_of_our_own_has_no_verdict(world, number, resource):
    async def fail(*_, **__):
        raise OSError(number, "planted")

    def poor(server):
        server.silent = True
        asyncio.get_running_loop().create_connection = fail

    lacked = []
    result, server = probe(world, poor, lacks=lacked.append)
    assert (result.verdict, result.excused) == ("unknown", True)
    assert f"this process lacks {resource}" in result.detail
    assert lacked == [resource]
    assert server.asked == []


def test_it_asks_the_page_that_the_engine_names_and_then_the_question(world):
    _, server = probe(world, well)
    assert server.asked == ["/health", "/v1/chat/completions"]
    _, server = probe(world, well, engine="triton")
    assert server.asked == ["/v2/models/m/ready"]


def test_silence_is_a_timeout_that_says_what_users_saw_meanwhile(world):
    result, _ = probe(
        world, silent, deadline_s=0.1, witness=lambda name, since: UsersBeside(3, progress=False)
    )
    assert (result.verdict, result.running, result.progress) == ("timeout", 3, False)


def test_while_control_itself_was_late_a_missing_answer_is_unknown(world):
    watch = LoopWatch(PACE, time.monotonic_ns() - SECOND)  # its tick is overdue by far
    result, _ = probe(world, silent, deadline_s=0.1, watch=watch)
    assert (result.verdict, result.excused) == ("unknown", True)
    assert "this process was late itself" in result.detail


@pytest.mark.parametrize(
    ("prepare", "verdict"),
    [(gone, "refused"), (answering(500), "fail"), (answering(503), "fail"), (cut, "fail")],
)
def test_what_came_counts_however_late_control_was(world, prepare, verdict):
    watch = LoopWatch(PACE, time.monotonic_ns() - SECOND)
    result, _ = probe(world, prepare, deadline_s=5.0, watch=watch)
    assert (result.verdict, result.excused) == (verdict, False)


def test_an_answer_stands_though_control_was_late(world):
    watch = LoopWatch(PACE, time.monotonic_ns() - SECOND)
    result, _ = probe(world, well, watch=watch)
    assert (result.verdict, result.latency) == ("pass", 0)  # its time says nothing of the replica


class LateBy(LoopWatch):
    """A loop that was late by this much in every probe."""

    def __init__(self, late):
        super().__init__(PACE, 0)
        self.late = late

    def late_within(self, since, now):
        return self.late(now - since) if callable(self.late) else self.late


def probes(world, watch, prepares, *, deadline_s=0.05):
    """The results of one prober that asks the same replica again and again."""

    async def main():
        server = await world.Engine().start()
        prober = Prober(watch, lambda *_: UsersBeside(), world.canaries())
        action, told = RunCanary("m-1", "m", nanos(deadline_s), 0), []
        for prepare in prepares:
            server.silent = False
            server.answers.clear()
            prepare(server)
            told.append(await prober.probe(world.deployed(server.url), action))
            if prepare is forgotten:
                prober.forget("m-1")
        await server.stop()
        return [result.verdict.value for result in told]

    return asyncio.run(main())


def forgotten(server):
    server.silent = True


def test_a_hang_is_found_although_control_is_late_now_and_then(world):
    """One excuse in a row: a loop that is always a little late would else excuse every hang."""
    late = LateBy(LATE + 1)  # of a wait of many seconds
    told = probes(world, late, [silent] * 4, deadline_s=0.3)
    assert told == ["unknown", "timeout", "timeout", "timeout"]


def test_an_answer_of_any_kind_gives_the_next_missing_one_its_excuse_again(world):
    row = [silent, silent, answering(500), silent, silent, forgotten, silent]
    told = probes(world, LateBy(LATE + 1), row, deadline_s=0.3)
    assert told == ["unknown", "timeout", "fail", "unknown", "timeout", "timeout", "unknown"]


def test_a_wait_that_was_mostly_ours_is_excused_again_and_not_for_ever(world):
    told = probes(world, LateBy(lambda waited: waited * 3 // 4), [silent] * (EXCUSES_MAX + 2))
    assert told == ["unknown"] * EXCUSES_MAX + ["timeout"] * 2


def test_a_little_lateness_is_taken_off_an_answer_s_time_and_much_leaves_none(world):
    def took(watch):
        result, _ = probe(world, well, watch=watch)
        return result.latency, result.took

    latency, taken = took(LateBy(0))
    assert latency > 0
    latency, taken = took(LateBy(1_000))  # ns
    assert latency == taken - 1_000
    latency, _ = took(LateBy(10 * SECOND))
    assert latency == 0


def test_what_a_canary_cost_is_told(world):
    async def main():
        engine = await world.standin()
        watch = LoopWatch(3_600 * SECOND, time.monotonic_ns())
        prober = Prober(watch, lambda *_: UsersBeside(), world.canaries())
        action = RunCanary("m-1", "m", nanos(5), 0)
        result = await prober.probe(world.deployed(engine.url), action)
        await engine.stop()
        return result

    result = asyncio.run(main())
    assert result.verdict == "pass"
    assert result.tokens > 8


def test_a_loop_that_is_really_blocked_makes_a_timeout_unknown(world):
    async def main():
        server = await world.Engine().start()
        server.silent = True
        loop = asyncio.get_running_loop()
        watch = LoopWatch(PACE, time.monotonic_ns())

        def beat():
            watch.beat(time.monotonic_ns())
            loop.call_later(0.05, beat)

        beat()
        prober = Prober(watch, lambda *_: UsersBeside(), world.canaries())
        loop.call_later(0.02, time.sleep, 0.3)  # what must never happen in control, happens
        action = RunCanary("m-1", "m", nanos(0.2), 0)
        result = await prober.probe(world.deployed(server.url), action)
        await server.stop()
        return result.verdict

    assert asyncio.run(main()) == "unknown"


# --- metrics -------------------------------------------------------------------------------------

PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
COUNTERS = b"vllm:generation_tokens_total 5e9\nvllm:num_preemptions_total 7\n"


@pytest.mark.parametrize(
    ("answer", "engine", "load"),
    [
        ((200, "", PAGE), "vllm", Load(3, 2, 0.5)),
        ((200, "", PAGE + COUNTERS), "vllm", Load(3, 2, 0.5, 5_000_000_000, 7)),
        ((200, "", b"\xff\xfe nonsense"), "vllm", Load()),
        ((404, "", PAGE), "vllm", Load()),
        (b"what is this\r\n\r\n", "vllm", Load()),
        ((200, "", PAGE), "openai", Load()),
    ],
)
def test_what_an_engine_does_not_say_of_its_load_is_none(world, answer, engine, load):
    async def main():
        server = await world.Engine().start()
        server.default = answer
        told = await read_engine(world.deployed(server.url, engine=engine), 5, {})
        await server.stop()
        return told.load

    assert asyncio.run(main()) == load


# --- the GET itself ------------------------------------------------------------------------------


def get(world, answer, path="/x", **more):
    async def main():
        server = await world.Engine().start()
        server.default = answer
        try:
            return await fetch(server.url + "/base", path, 5, **more), server
        finally:
            await server.stop()

    return asyncio.run(main())


def test_a_body_is_posted_as_json(world):
    _, server = get(world, (200, "", b""), body=b'{"a":1}')
    assert server.heads[0].startswith(b"POST /base/x HTTP/1.1\r\n")
    assert b"content-type: application/json\r\ncontent-length: 7\r\n" in server.heads[0].lower()


def test_a_get_carries_the_base_path_and_the_token(world):
    answer, server = get(world, (200, "x-a: b\r\n", b"hello"), bearer="secret")
    assert (answer.status, answer.headers["x-a"], answer.body) == (200, "b", b"hello")
    assert server.asked == ["/base/x"]
    assert b"authorization: bearer secret\r\n" in server.heads[0].lower()


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
    ],
)
def test_bodies_of_every_framing_are_read(world, raw, body):
    assert get(world, raw)[0].body == body


END = b"\r\n"


@pytest.mark.parametrize(
    ("raw", "lost"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", True),
        (b"HTTP/1.1 2", True),
        (b"", True),
        (b"\x16\x03\x01", False),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(300)) + END, False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n" + b"x" * (5 << 20), False),
    ],
)
def test_what_is_no_complete_answer_is_broken(world, raw, lost):
    with pytest.raises(FetchError) as caught:
        get(world, raw)
    assert (caught.value.what, caught.value.lost) == ("broken", lost)


def test_a_name_that_nobody_knows_is_broken():
    with pytest.raises(FetchError) as caught:
        asyncio.run(fetch("http://no-such-host.invalid:80", "/", 5))
    assert caught.value.what in {"broken", "timeout"}


def test_an_answer_that_does_not_end_in_time_tells_for_how_long_it_moved():
    async def drip(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.05)
        await asyncio.gather(reader.read(), return_exceptions=True)  # until it gives up
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        ended.set()

    ended = asyncio.Event()

    async def main():
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(FetchError) as caught:
                await fetch(f"http://127.0.0.1:{port}", "/", 0.6)
            await asyncio.wait_for(ended.wait(), 10)
            return caught.value

    error = asyncio.run(main())
    assert error.what == "timeout"
    assert 0.05 < error.pieces.moved_s < 0.6
    assert 0 < error.pieces.next_gap_s <= error.pieces.gap_s <= error.pieces.moved_s
    assert error.pieces.began


async def fetched(pieces, apart_s, deadline_s, overtime):
    """Fetch an answer that comes in so many pieces, so far apart, and then ends."""
    ended = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(pieces):
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(apart_s)
            if reader.at_eof():
                break
        writer.write(b"0\r\n\r\n")
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            return await fetch(url, "/", deadline_s, overtime=overtime)
        finally:
            await asyncio.wait_for(ended.wait(), 30)


def test_an_overdue_answer_is_read_on_for_as_long_as_it_is_given():
    asked = []

    def patient(pieces):
        asked.append(pieces)
        return 30.0

    answer = asyncio.run(fetched(4, 0.1, 0.05, patient))
    assert answer.body == b"xxxx"
    assert asked[0].headed or not asked[0].began
    assert answer.pieces.moved_s >= 0.25
    assert 0.1 <= answer.pieces.next_gap_s <= answer.pieces.gap_s
    assert len(asked) >= 2  # with each piece anew


@pytest.mark.parametrize(("late", "first"), [(False, 1), (True, 0)])
def test_an_overdue_canary_is_told_once_when_it_is_due_and_then_read_on(world, late, first):
    ended = asyncio.Event()

    async def stalls(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await asyncio.gather(reader.read(), return_exceptions=True)  # until it gives up
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        ended.set()

    async def main():
        server = await asyncio.start_server(stalls, "127.0.0.1", 0)
        now = time.monotonic_ns()
        # A loop whose tick has been due since then was late itself, and excuses what is not over.
        watch = LoopWatch(0 if late else 3_600 * SECOND, now)
        prober = Prober(watch, lambda *_: UsersBeside(2, progress=False), world.canaries())
        overdue = []
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            action = RunCanary("m-1", "m", nanos(0.2), 7, longest=nanos(1.0))
            asked = world.deployed(url, engine="openai")
            result = await prober.probe(asked, action, overdue.append)
            await asyncio.wait_for(ended.wait(), 30)
        return overdue, result

    overdue, result = asyncio.run(main())
    assert len(overdue) == first
    for early in overdue:
        assert (early.verdict, early.reads_on, early.began) == ("timeout", True, True)
        assert (early.running, early.incarnation) == (2, 7)
        assert early.latency < result.latency
    assert result.reads_on is False
    assert late or (result.verdict, result.began) == ("timeout", True)


def test_an_overdue_answer_ends_when_what_came_of_it_is_enough():
    def enough(pieces):
        return 0.0 if pieces.gap_s >= 0.05 else 30.0

    with pytest.raises(FetchError) as caught:
        asyncio.run(fetched(200, 0.1, 0.01, enough))
    assert caught.value.what == "timeout"
    assert caught.value.pieces.gap_s >= 0.05


def test_a_port_that_completes_no_connection_is_told_from_one_that_does_not_answer():
    async def asked(port):
        with pytest.raises(FetchError) as caught:
            await fetch(f"http://127.0.0.1:{port}", "/health", 0.3)
        return caught.value

    with socket.create_server(("127.0.0.1", 0), backlog=0) as mute:
        port = mute.getsockname()[1]
        silent = asyncio.run(asked(port))
        assert (silent.what, silent.connected) == ("timeout", True)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:  # the kernel accepts one or two more, and then drops what comes
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        unreached = asyncio.run(asked(port))
        for one in waiting:
            one.close()
    assert (unreached.what, unreached.connected) == ("timeout", False)


def test_a_canary_that_is_hurried_ends_at_its_new_deadline_and_counts_as_silent(world):
    async def main():
        server = await world.Engine().start()
        silent(server)
        prober = Prober(
            LoopWatch(3_600 * SECOND, time.monotonic_ns()),
            lambda *_: UsersBeside(0, progress=False),
            world.canaries(),
        )
        prober.hurry("m-1", 0.0)  # none is under way: nothing happens
        action = RunCanary("m-1", "m", nanos(600.0), 7)
        asking = asyncio.ensure_future(prober.probe(world.deployed(server.url), action))
        await world.until(lambda: server.asked)
        prober.hurry("m-2", 0.0)
        prober.hurry("m-1", 0.0)
        async with asyncio.timeout(60):
            result = await asking
        assert prober._limits == {}
        prober.hurry("m-1", 0.0)
        await server.stop()
        return result

    result = asyncio.run(main())
    assert (result.verdict, result.incarnation) == ("timeout", 7)
    assert 0 < result.latency < nanos(600.0)
    assert (result.running, result.progress) == (0, False)
    assert "nothing moves beside it" in result.detail
