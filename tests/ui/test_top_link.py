"""How ``top`` holds on to control: real ports that come, go, refuse and talk nonsense."""

import asyncio
from dataclasses import replace

import fleets
import orjson
import pytest
from admin_port import AdminPort, looking_at

from holdfast.ui.terminal.top.link import Link, LinkError, decode
from holdfast.ui.terminal.top.snapshot_feed import PollIntervals, SnapshotFeed

QUICK = PollIntervals(pause_s=0.05, pause_max_s=0.1, poll_s=0.05)


def test_a_snapshot_comes_back_as_it_went():
    for fleet in (fleets.calm(), fleets.busy(), fleets.broken(), fleets.big(40, 4)):
        assert decode(orjson.dumps(fleet)) == fleet


def test_a_newer_control_may_say_more_and_an_older_one_less():
    told = orjson.loads(orjson.dumps(fleets.calm()))
    told["weather"] = "fine"
    del told["replicas"][0]["kv_used"]
    assert decode(orjson.dumps(told)).replicas[0].kv_used is None


def test_what_is_no_snapshot_is_refused():
    with pytest.raises(LinkError, match="no snapshot"):
        decode(b'{"replicas": 3}')


def test_a_picture_is_kept_with_its_age_while_control_is_away():
    async def story(seen):
        await seen.until("✓ live")
        await seen.admin.stop()
        await seen.until("✗ control away")
        assert "picture of 14:30:00" in seen.lines[0]
        assert "parler-tts-0" in seen.text  # the last picture is still there
        seen.admin.snapshot = replace(fleets.calm(), at=fleets.AT + 60)
        await seen.admin.start()
        await seen.until("✓ live 14:31:00 · ✓ no incident")

    looking_at(fleets.broken(), story, pace=QUICK)


def test_a_change_is_shown_as_the_stream_tells_it():
    async def story(seen):
        await seen.until("✓ live")
        while "GET /view/stream" not in seen.admin.asked:
            await seen.pilot.pause(0.02)
        seen.admin.change(fleets.broken())
        await seen.until("! 3 incidents")
        assert seen.admin.asked.count("GET /view") == 1

    looking_at(fleets.calm(), story)


def test_where_there_is_no_stream_the_page_is_asked_for_again():
    async def story(seen):
        seen.admin.streams = False
        await seen.admin.stop()
        await seen.until("✗ control away")
        await seen.admin.start()
        await seen.until("✓ live")
        seen.admin.snapshot = fleets.broken()
        await seen.until("! 3 incidents")

    looking_at(fleets.calm(), story, pace=QUICK)


def test_r_asks_at_once_and_says_when_nobody_answers():
    async def story(seen):
        await seen.until("✓ live")
        seen.admin.snapshot = fleets.broken()
        await seen.press("r")
        await seen.until("! 3 incidents")
        await seen.admin.stop()
        await seen.press("r")
        await seen.until("✗ control away")

    looking_at(fleets.calm(), story)


def run(story, **settings):
    async def main():
        admin = AdminPort(fleets.calm(), **settings)
        await admin.start()
        try:
            async with asyncio.timeout(10):
                await story(admin)
        finally:
            await admin.stop()

    asyncio.run(main())


def test_a_wrong_token_is_told_by_page_and_stream():
    async def story(admin):
        link = Link(admin.url, "wrong")
        with pytest.raises(LinkError, match="token is missing or wrong") as refused:
            await link.view()
        assert refused.value.status == 401
        with pytest.raises(LinkError, match="token is missing or wrong"):
            await anext(link.views())
        assert (await Link(admin.url, "right").view()).version == 41

    run(story, token="right")


def test_an_order_that_is_refused_says_so():
    async def story(admin):
        link = Link(admin.url)
        assert await link.order("drain", "m/1") == "taken on: /replicas/m/1/drain"
        admin.token = "x"
        told = await link.order("drain", "m-1")
        assert told == "drain m-1: not done: the admin token is missing or wrong"

    run(story)


def test_nobody_there_is_told_as_such():
    async def main():
        admin = AdminPort(None)
        await admin.start()
        await admin.stop()
        link = Link(admin.url)
        with pytest.raises(LinkError, match="refused"):
            await link.view()
        with pytest.raises(LinkError, match="refused: nobody listens"):
            await anext(link.pieces("/x"))
        with pytest.raises(LinkError):
            await anext(Link("http://no-such-host.invalid:1").pieces("/x"))

    asyncio.run(main())


def answering(raw, path="/view/stream", quiet_s=None):
    """What ``pieces`` makes of an answer that is these bytes."""

    async def main():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = Link(f"http://127.0.0.1:{port}")
        try:
            return [piece async for piece in link.pieces(path, quiet_s)]
        finally:
            server.close()
            await server.wait_closed()

    return asyncio.run(main())


def test_answers_with_and_without_a_length_are_read_to_their_end():
    assert b"".join(answering(b"HTTP/1.1 200 OK\r\n\r\nabc")) == b"abc"
    framed = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    assert b"".join(answering(framed)) == b"abc"
    long = b"x" * 1_000_000  # more than is read ahead
    assert b"".join(answering(b"HTTP/1.1 200 OK\r\n\r\n" + long)) == long


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"nonsense\r\n\r\n", "no HTTP"),
        (b"", "closed before the answer was complete"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno", "the admin port answered 503"),
        (b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 200_000, "answered 500"),
    ],
)
def test_answers_that_are_none_are_refused(raw, told):
    with pytest.raises(LinkError, match=told):
        answering(raw)


def test_a_stream_that_says_nothing_for_too_long_is_given_up():
    async def story(admin):
        pieces = Link(admin.url).pieces("/view/stream", quiet_s=0.05)
        assert await anext(pieces) == b": hello\n\n"
        with pytest.raises(LinkError, match="nothing came for too long"):
            await anext(pieces)

    run(story)


def test_events_that_come_in_parts_and_together_are_one_picture_each():
    body = orjson.dumps(fleets.calm())
    event = b"event: view\r\nid: 1\r\ndata: " + body + b"\r\n\r\n"
    other = b"event: other\ndata: x\n\n"
    raw = b"HTTP/1.1 200 OK\r\n\r\n: hello\n\n" + other + event * 2

    async def main():
        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            for at in range(0, len(raw), 1_000):
                writer.write(raw[at : at + 1_000])
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        link = Link(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            found = [view async for view in link.views()]
        finally:
            server.close()
            await server.wait_closed()
        assert found
        assert all(view == fleets.calm() for view in found)

    asyncio.run(main())


def test_a_watch_that_is_hurried_does_not_sit_out_its_pause():
    async def story(admin):
        lost, came = asyncio.Event(), asyncio.Event()
        await admin.stop()
        watch = SnapshotFeed(
            Link(admin.url),
            lambda _: came.set(),
            lambda _: lost.set(),
            PollIntervals(600, 600, 600),
        )
        running = asyncio.create_task(watch.run())
        await lost.wait()
        await admin.start()
        watch.hurry()
        await came.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(story)
