"""A watcher that can be waited for, and a way to wait for anything else."""

import asyncio
import time

import pytest

PATIENCE_S = 20.0


class WrittenDown:
    def __init__(self):
        self.all = []

    def started(self, replica_id, pid):
        self.all.append(("started", replica_id, pid))

    def line(self, replica_id, text):
        self.all.append(("line", replica_id, text))

    def ended(self, replica_id, ended):
        self.all.append(("ended", replica_id, ended))

    def stopped(self, replica_id, stopped):
        self.all.append(("stopped", replica_id, stopped))

    def of(self, what):
        return [news[-1] for news in self.all if news[0] == what]

    async def first(self, what):
        await until(lambda: self.of(what))
        return self.of(what)[0]


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 the world gives no event
            await asyncio.sleep(0.01)


def until_now(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


@pytest.fixture
def notes():
    return WrittenDown()


@pytest.fixture
def waits():
    return until


@pytest.fixture
def waits_now():
    return until_now
