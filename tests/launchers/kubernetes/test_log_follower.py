"""The last lines of a container's log, whatever the reading of it met before the end."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from holdfast.launchers.kubernetes import log_follower as module
from holdfast.launchers.kubernetes.log_follower import PodLogFollower
from holdfast.ports import UnreadableError

LAST = [b"2026-11-19T01:00:00.5Z up", b"2026-11-19T01:00:01.5Z last words"]
PATIENCE_S = 3.0


class Api:
    """Logs of one container; each reading is what a test makes of it."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.asked = 0
        self.began, self.read = asyncio.Event(), asyncio.Event()  # the first reading

    @asynccontextmanager
    async def lines(self, _path, _params, _quiet_s):
        self.asked += 1
        self.began.set()
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        try:
            yield reading()
        finally:
            self.read.set()


async def refused():
    raise UnreadableError("the container is waiting to start")
    yield b""


async def whole():
    for line in LAST:
        yield line


def followed(api, play):
    """What was told until the end, which ``play`` brings about."""

    async def main():
        told = []
        follower = PodLogFollower(api, "pods/a", None, told.append)
        async with asyncio.timeout(PATIENCE_S):
            await api.began.wait()
            await play(follower)
        return told

    return asyncio.run(main())


def after_a_reading(api):
    async def play(follower):
        await api.read.wait()
        await follower.finish(PATIENCE_S)

    return play


def test_a_container_that_ends_while_its_log_is_being_refused_has_its_last_lines_told():
    ended = asyncio.Event()

    async def refused_late():
        await ended.wait()
        raise UnreadableError("the container is waiting to start")
        yield b""

    async def play(follower):
        finish = asyncio.create_task(follower.finish(PATIENCE_S))
        await asyncio.sleep(0)
        ended.set()
        await finish

    assert followed(Api(refused_late, whole), play) == ["up", "last words"]


def test_one_that_ends_before_its_log_is_asked_for_again_has_it_asked_for_at_once(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 60.0)

    api = Api(refused, whole)
    assert followed(api, after_a_reading(api)) == ["up", "last words"]


def test_lines_that_were_read_are_not_told_again_at_the_end():
    api = Api(whole)
    assert followed(api, after_a_reading(api)) == ["up", "last words"]
    assert api.asked == 2


def test_a_log_that_cannot_be_read_at_the_end_is_asked_for_once_more_and_no_longer():
    api = Api(refused)
    assert followed(api, after_a_reading(api)) == []
    assert api.asked == 2


def test_a_log_that_never_ends_is_given_up():
    async def silent():
        await asyncio.Event().wait()
        yield b""

    async def play(follower):
        await follower.finish(0.05)
        assert follower._task.done()

    assert followed(Api(silent), play) == []


@pytest.mark.parametrize("known", [None, 0.0])
def test_who_stops_reading_waits_for_nothing(known):
    async def main():
        follower = PodLogFollower(Api(refused), "pods/a", known, print)
        await follower.close()
        return follower._task.done()

    assert asyncio.run(main())
