"""Random calls and random time: what must hold of every durable queue, whatever happens.

The same calls go to a queue in memory and to a second one (in memory too, or a SQLite file); all
answers must be equal. Beside them a ledger of what callers were told checks that no item vanishes,
that a record which was confirmed never changes, and that no two holders have the right to one item.
"""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from durable_queues import HandClock
from holdfast.queue_port import (
    TERMINAL,
    ItemState,
    ItemView,
    Lease,
    LeaseAnswer,
    NewItem,
    Settlement,
)
from holdfast.storage.queues.sqlite import SqliteQueue
from holdfast.testing.queue import MemoryQueue

QUEUES = st.sampled_from(["a", "b"])
IDS = st.sampled_from([f"i{n}" for n in range(6)])
SHM = Path("/dev/shm")  # the disk is not what is tested here


def _plain(answer):
    """An answer without numbers of items: only their order is promised, and lists have it."""
    if isinstance(answer, list):
        return [replace(one, seq=0) if isinstance(one, ItemView) else one for one in answer]
    return answer


class QueueMachine(RuleBasedStateMachine):
    """Two queues that must answer alike, and what callers were told."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.loop = asyncio.new_event_loop()
        self.model = MemoryQueue(self.clock.monotonic, self.clock.wall)
        self.other = self.opened()
        self.leases: list[tuple[Lease, Lease]] = []  # of the model, of the other
        self.recorded: dict[tuple[str, str], bytes] = {}
        self.added: set[tuple[str, str]] = set()

    def opened(self):
        return MemoryQueue(self.clock.monotonic, self.clock.wall)

    def ask(self, name, *arguments, **more):
        """The answer of both queues, which must be one."""
        first = self.loop.run_until_complete(getattr(self.model, name)(*arguments, **more))
        second = self.loop.run_until_complete(getattr(self.other, name)(*arguments, **more))
        assert _plain(first) == _plain(second), (name, arguments, more)
        return first

    def ask_held(self, name, numbers, *arguments, **more):
        """As ``ask``, for calls about leases."""
        held = [self.leases[number % len(self.leases)] for number in numbers]
        own = [[pair[side] for pair in held] for side in (0, 1)]
        first = self.loop.run_until_complete(getattr(self.model, name)(own[0], *arguments, **more))
        second = self.loop.run_until_complete(getattr(self.other, name)(own[1], *arguments, **more))
        assert first == second, (name, held, arguments)
        return held, first

    @initialize()
    def begin(self) -> None:
        self.add("a", {"i0": 2, "i1": 1}, 0.0)

    @rule(
        queue=QUEUES,
        items=st.dictionaries(IDS, st.integers(1, 3), max_size=3),
        delay=st.sampled_from([0.0, 5.0]),
    )
    def add(self, queue, items, delay) -> None:
        new = [
            NewItem(name, name.encode(), group=name[-1], max_receives=most, delay_s=delay)
            for name, most in items.items()
        ]
        answers = self.ask("enqueue", queue, new)
        for item, added in zip(new, answers, strict=True):
            assert added == ((queue, item.id) not in self.added)
            self.added.add((queue, item.id))

    @rule(queue=QUEUES, count=st.integers(1, 4), seconds=st.sampled_from([2.0, 30.0]))
    def lease(self, queue, count, seconds) -> None:
        leased = self.ask("lease", queue, count, seconds, "owner")
        for item in leased:
            assert (queue, item.id) not in self.recorded
            assert 1 <= item.receives <= item.max_receives
            # Of tokens for one item only the newest may have any right.
            assert not any(item.lease == old for old, _ in self.leases)
            self.leases.append((item.lease, item.lease))
        del self.leases[:-20]

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 19), min_size=1, max_size=3), good=st.booleans())
    def ack(self, numbers, good) -> None:
        held = [self.leases[number % len(self.leases)] for number in numbers]
        state = ItemState.DONE if good else ItemState.FAILED
        result = f"{len(self.recorded)} {numbers}".encode()
        ends = [[Settlement(pair[side], state, result) for pair in held] for side in (0, 1)]
        first = self.loop.run_until_complete(self.model.ack(ends[0]))
        second = self.loop.run_until_complete(self.other.ack(ends[1]))
        assert first == second
        for (lease, _), answer in zip(held, first, strict=True):
            name = (lease.queue, lease.id)
            if answer is LeaseAnswer.OK:
                assert name not in self.recorded  # exactly one terminal record
                self.recorded[name] = result
            elif answer is LeaseAnswer.REPEATED:
                assert name in self.recorded

    @precondition(lambda self: self.leases)
    @rule(
        numbers=st.lists(st.integers(0, 19), min_size=1, max_size=2, unique=True),
        delay=st.sampled_from([None, 0.0, 3.0]),
        dead=st.booleans(),
    )
    def nack(self, numbers, delay, dead) -> None:
        unique = {number % len(self.leases) for number in numbers}
        held, answers = self.ask_held("nack", unique, note={"n": 1}, delay_s=delay, dead=dead)
        for (lease, _), answer in zip(held, answers, strict=True):
            assert answer is not LeaseAnswer.OK or (lease.queue, lease.id) not in self.recorded

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 19), min_size=1, max_size=2, unique=True))
    def release(self, numbers) -> None:
        self.ask_held("release", {number % len(self.leases) for number in numbers})

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 19), min_size=1, max_size=2))
    def extend(self, numbers) -> None:
        self.ask_held("extend", numbers, 10.0)

    @rule(seconds=st.sampled_from([0.5, 2.5, 31.0]), jump=st.sampled_from([0.0, 3_600.0, -3_600.0]))
    def wait(self, seconds, jump) -> None:
        self.clock.monotonic_s += seconds
        self.clock.wall_s += seconds + jump

    @rule()
    def reclaim(self) -> None:
        self.ask("reclaim", "owner")

    @rule(queue=QUEUES, group=st.sampled_from(["0", "1", "2"]))
    def cancel(self, queue, group) -> None:
        self.ask("cancel", queue, group)

    @rule(queue=QUEUES)
    def redrive(self, queue) -> None:
        self.ask("redrive", queue)

    @rule(queue=QUEUES, states=st.sampled_from([[ItemState.DEAD], [ItemState.CANCELLED]]))
    def purge(self, queue, states) -> None:
        gone = {view.id for view in self.ask("items", queue, states=states)}
        assert self.ask("purge", queue, states=states) == len(gone)
        self.added -= {(queue, name) for name in gone}

    @invariant()
    def nothing_vanishes_and_records_stay(self) -> None:
        there: set[tuple[str, str]] = set()
        for queue in ("a", "b"):
            for view in self.ask("items", queue):
                there.add((queue, view.id))
                recorded = self.recorded.get((queue, view.id))
                if recorded is not None:
                    assert view.state in {ItemState.DONE, ItemState.FAILED}
                    assert view.result == recorded
                else:
                    assert view.state not in {ItemState.DONE, ItemState.FAILED}
                assert (view.ended_at is not None) == (view.state in TERMINAL)
        assert there == self.added
        depths = self.ask("depths")
        assert sum(sum(depth.counts.values()) for depth in depths) == len(there)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.other.close())
        self.loop.close()


class SqliteQueueMachine(QueueMachine):
    """The same with a SQLite file, which is closed and opened again now and then."""

    def opened(self):
        self.folder = tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None)
        return self.reopened()

    def reopened(self):
        return SqliteQueue(
            Path(self.folder.name) / "q.db",
            monotonic=self.clock.monotonic,
            wall=self.clock.wall,
            boot=lambda: "boot",
            reserve_bytes=0,
        )

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.other.close())
        self.other = self.reopened()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
TestMemoryQueue = QueueMachine.TestCase
TestMemoryQueue.settings = settings(
    max_examples=20, stateful_step_count=25, suppress_health_check=SLOW
)
TestSqliteQueue = SqliteQueueMachine.TestCase
TestSqliteQueue.settings = settings(
    max_examples=8, stateful_step_count=25, suppress_health_check=SLOW
)
