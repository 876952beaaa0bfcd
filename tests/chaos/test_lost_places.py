import asyncio
import signal

import pytest

from holdfast.chaos import injection
from holdfast.config.chaos import one_step

ROWS = [
    {"id": "a", "region": "east", "zone": "east/1"},
    {"id": "b", "region": "east", "zone": "east/2"},
    {"id": "c", "region": "west", "zone": "west/1"},
    {"id": "d", "region": "", "zone": ""},
]
PIDS = {"a": 101, "b": 102, "c": 103, "d": 104}


class Target:
    async def check(self, replica):
        return next(row for row in ROWS if row["id"] == replica)

    async def replicas(self):
        return ROWS

    async def process_of(self, replica):
        return PIDS[replica]


@pytest.mark.parametrize(
    ("fault", "replica", "killed"),
    [
        ("crash", "a", [101]),
        ("zone_loss", "a", [101]),
        ("region_loss", "a", [101, 102]),
        ("region_loss", "c", [103]),
        ("region_loss", "d", [104]),  # it says no region: nobody is in the same
    ],
)
def test_a_lost_place_takes_all_that_are_in_it(monkeypatch, fault, replica, killed):
    told = []
    monkeypatch.setattr(injection.os, "kill", lambda pid, what: told.append((pid, what)))

    async def main():
        async with injection.injected(Target(), one_step(fault, replica).steps[0], replica):
            pass

    asyncio.run(main())
    assert told == [(pid, signal.SIGKILL) for pid in killed]
