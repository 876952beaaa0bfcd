import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import Report, Summary, Tally
from holdfast.frames import (
    PROTOCOL,
    BlockFrame,
    EpochFrame,
    FrameError,
    FrameReader,
    Hello,
    SeenFrame,
    Welcome,
    encode,
)
from holdfast.frames import control_links as module
from holdfast.frames.control_links import ControlAddress, ControlLinks

HELLO = Hello("gateway-3", 42, PROTOCOL)
REPORT = Report("m", "m-1", "breaker", "open")


class FakeControl:
    """A unix socket that speaks frames; each connection is kept with what came on it."""

    def __init__(self, path):
        self.path = path
        self.frames = []
        self.transports = []
        self._server = None

    async def start(self, *, read=True):
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Line(self, read), self.path)
        return self

    async def stop(self):
        if self._server is not None:
            self._server.close()
            for transport in self.transports:
                transport.abort()
            await self._server.wait_closed()
            self._server = None

    def send(self, frame):
        self.transports[-1].write(encode(frame))

    def seen(self):
        return [frame for frame in self.frames if isinstance(frame, SeenFrame)]


class _Line(asyncio.Protocol):
    def __init__(self, control, read):
        self._control, self._read = control, read
        self._reader = FrameReader()

    def connection_made(self, transport):
        self._control.transports.append(transport)
        if not self._read:
            transport.pause_reading()

    def data_received(self, data):
        self._control.frames += self._reader.feed(data)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 conditions of the other end
            await asyncio.sleep(0.002)


@pytest.fixture
def meet(tmp_path, monkeypatch):
    """Run a scene with a link that is kept, and with control's end of it."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.01)

    def run(scene, *, listens=True, read=True, hear=None):
        async def main():
            heard = []
            control = FakeControl(str(tmp_path / "s"))
            if listens:
                await control.start(read=read)
            address = ControlAddress(path=control.path)
            link = ControlLinks(HELLO, [address], hear or heard.append)
            keeping = asyncio.create_task(link.keep())
            try:
                await scene(link, control, heard)
            finally:
                keeping.cancel()
                link.close()
                await asyncio.gather(keeping, return_exceptions=True)
                await control.stop()

        asyncio.run(main())

    return run


def test_it_says_who_it_is_and_then_both_sides_speak(meet):
    async def scene(link, control, heard):
        await until(lambda: control.frames == [HELLO])
        assert link.connected
        control.send(Welcome(7, "control-1"))
        await until(lambda: heard == [Welcome(7, "control-1")])
        assert link.send(EpochFrame(7, accepted=True, reason=""))
        await until(lambda: control.frames[1:] == [EpochFrame(7, accepted=True, reason="")])

    meet(scene)


def test_frames_that_come_in_pieces_are_put_together(meet):
    async def scene(link, control, heard):
        await until(lambda: link.connected and control.transports)
        for byte in encode(Welcome(1, "a")):
            control.transports[0].write(bytes([byte]))
            await asyncio.sleep(0)
        control.transports[0].write(encode(Welcome(2, "b")) + encode(Welcome(3, "c")))
        await until(lambda: [frame.epoch for frame in heard] == [1, 2, 3])

    meet(scene)


def test_it_waits_for_a_control_that_is_not_there_yet(meet):
    async def scene(link, control, heard):
        assert not link.send(EpochFrame(1, accepted=True, reason=""))
        assert not link.connected
        await control.start()
        await until(lambda: control.frames == [HELLO])

    meet(scene, listens=False)


def test_it_comes_back_to_a_control_that_was_restarted(meet):
    async def scene(link, control, heard):
        await until(lambda: control.frames == [HELLO])  # before that, its end has no line to cut
        await control.stop()
        await until(lambda: not link.connected)
        assert not link.send(EpochFrame(1, accepted=True, reason=""))
        control.frames.clear()
        await control.start()
        await until(lambda: control.frames == [HELLO])
        control.send(Welcome(9, "control-2"))
        await until(lambda: heard == [Welcome(9, "control-2")])

    meet(scene)


def test_half_a_frame_of_a_dead_control_is_forgotten(meet):
    async def scene(link, control, heard):
        await until(lambda: control.transports)
        control.transports[0].write(encode(Welcome(1, "first"))[:-3])
        control.transports[0].close()
        await until(lambda: len(control.transports) == 2)
        control.send(Welcome(2, "second"))
        await until(lambda: heard == [Welcome(2, "second")])

    meet(scene)


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xff\xff\xff and more",  # a length that no frame has
        b"\x00\x00\x00\x03abc",  # no array
        b"GET / HTTP/1.1\r\n\r\n",
        encode(Welcome(1, "a"))[:-1] + b"\xc1",
    ],
)
def test_what_cannot_be_read_ends_the_connection_and_nothing_else(meet, junk):
    async def scene(link, control, heard):
        await until(lambda: control.transports)
        control.transports[0].write(junk)
        await until(lambda: len(control.transports) == 2)  # it came again
        control.send(Welcome(2, "sober"))
        await until(lambda: heard[-1:] == [Welcome(2, "sober")])
        assert control.frames == [HELLO, HELLO]

    meet(scene)


def test_a_frame_that_cannot_be_used_ends_the_connection_and_nothing_else(meet):
    used = []

    def hear(frame):
        if frame.control_id == "mad":
            raise FrameError("a state that nobody knows")
        used.append(frame)

    async def scene(link, control, heard):
        await until(lambda: control.transports)
        control.send(Welcome(1, "mad"))
        await until(lambda: len(control.transports) == 2)
        control.send(Welcome(2, "sober"))
        await until(lambda: used == [Welcome(2, "sober")])

    meet(scene, hear=hear)


def test_what_could_not_be_told_is_counted_and_the_count_is_told(meet):
    async def scene(link, control, heard):
        for _ in range(5):
            link.news(REPORT)
        assert link.dropped == 5
        await control.start()
        await until(lambda: link.connected)
        link.news(REPORT)
        link.news(Summary((Tally("m", "m-1", 1, 2, 3, 4, 5),)))
        await until(lambda: len(control.seen()) == 2)
        first, second = control.seen()
        assert (first.dropped, second.dropped) == (5, 0)
        assert first.reports[0].what == "breaker"
        assert second.tallies[0].tokens == 5
        assert link.dropped == 0

    meet(scene, listens=False)


def test_a_control_that_does_not_read_costs_a_bounded_buffer(meet, monkeypatch):
    monkeypatch.setattr(module, "_UNSENT_BYTES_MAX", 20_000)
    wordy = Report("m", "m-1", "breaker", "x" * 1_000)

    async def scene(link, control, heard):
        await until(lambda: link.connected and control.transports)
        sent = 0
        while not link.dropped:  # the kernel takes some, then the buffer fills
            link.news(wordy)
            sent += 1
            assert sent < 100_000
        for _ in range(99):
            link.news(wordy)
        assert link.dropped == 100
        assert link._leader._transport.get_write_buffer_size() < 20_000 + 2_000
        assert link.connected  # it may be late, not dead: nothing is broken off
        control.transports[0].resume_reading()
        await until(lambda: not link._leader._transport.get_write_buffer_size())
        link.news(wordy)
        await until(lambda: len(control.seen()) == sent)
        assert control.seen()[-1].dropped == 100
        assert link.dropped == 0

    meet(scene, read=False)


# --- several controls ----------------------------------------------------------------------------


@pytest.fixture
def several(tmp_path, monkeypatch):
    """Run a scene with links to two controls, and with both ends of them."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.01)

    def run(scene):
        async def main():
            heard, terms = [], []
            controls = [FakeControl(str(tmp_path / name)) for name in "ab"]
            for control in controls:
                await control.start()
            addresses = [ControlAddress(path=control.path) for control in controls]
            links = ControlLinks(HELLO, addresses, heard.append, lambda: terms.append(links.term))
            keeping = asyncio.create_task(links.keep())
            try:
                await until(lambda: all(control.frames for control in controls))
                await scene(links, *controls, heard, terms)
            finally:
                keeping.cancel()
                links.close()
                await asyncio.gather(keeping, return_exceptions=True)
                for control in controls:
                    await control.stop()

        asyncio.run(main())

    return run


def test_whoever_leads_in_the_later_term_is_followed_and_the_other_refused(several):
    async def scene(links, a, b, heard, terms):
        assert not links.connected
        a.send(Welcome(1, "a", term=1))
        a.send(BlockFrame([("x", 1.0)]))
        await until(lambda: len(heard) == 2)
        assert links.send(EpochFrame(1, accepted=True, reason=""))
        await until(lambda: len(a.frames) == 2)
        b.send(Welcome(1, "b", term=2))
        await until(lambda: len(heard) == 3)
        a.send(BlockFrame([("late", 1.0)]))  # it does not know yet
        a.send(Welcome(1, "a", term=1))
        await until(lambda: links.refused == 2)
        assert links.send(EpochFrame(1, accepted=True, reason=""))
        await until(lambda: len(b.frames) == 2)
        b.send(BlockFrame([("y", 1.0)]))
        await until(lambda: len(heard) == 4)
        assert [type(frame) for frame in heard] == [Welcome, BlockFrame, Welcome, BlockFrame]
        assert heard[-1].fingerprints == [("y", 1.0)]
        assert terms == [1, 2]

    several(scene)


def test_before_anybody_leads_nobody_is_heard_and_nothing_is_sent(several):
    async def scene(links, a, b, heard, terms):
        a.send(BlockFrame([("x", 1.0)]))
        await until(lambda: links.refused == 1)
        assert not links.send(EpochFrame(1, accepted=True, reason=""))
        assert (heard, terms) == ([], [])

    several(scene)


def test_a_leader_that_comes_back_in_its_own_term_is_followed_again(several):
    async def scene(links, a, b, heard, terms):
        b.send(Welcome(1, "b", term=4))
        await until(lambda: links.connected)
        await b.stop()
        await until(lambda: not links.connected)
        b.frames.clear()
        await b.start()
        await until(lambda: b.frames == [HELLO])
        b.send(Welcome(2, "b", term=4))
        await until(lambda: len(heard) == 2 and links.connected)
        assert terms == [4]

    several(scene)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3) | st.none()), max_size=30))
def test_no_frame_of_a_lower_term_than_any_heard_before_comes_through(sent):
    """``None``: an order; a number: a greeting in that term."""
    heard = []
    links = ControlLinks(HELLO, [ControlAddress(path="a"), ControlAddress(path="b")], heard.append)
    ends = dict(zip("ab", links._links, strict=True))
    spoke, highest = {}, 0
    for name, term in sent:
        if term is not None:
            spoke[name] = term
            highest = max(highest, term)
        frame = BlockFrame([]) if term is None else Welcome(1, name, term=term)
        before = len(heard)
        links._heard(ends[name], frame)
        if len(heard) > before:
            assert spoke.get(name) == highest
