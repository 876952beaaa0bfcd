"""The AWS source: asks nine parts independently and combines their last answers.

    autoscaling ─┬─► ec2           ecs tasks ────┬─► logs
    ecs hosts ───┘                 sqs           ├─► cloudwatch
                                   ecs services ─┤
                                   efs ──────────┘

A part runs in a thread, because boto3 blocks. It is given so long; then the reading goes out
without it, and the part is not started again before its thread has come back, so that a service
that hangs costs one thread and not one for each refresh. Parts that build on others wait for them a
third of that time, at their first reading all of it, and then go on with what these said last.

Rejected: an asynchronous AWS library. It would pin botocore to the release it was patched for, and
fifty calls in fifteen seconds are no load for a few threads.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.core.view.layers import Part, Placed, Reading
from holdfast.core.view.staleness import DISKS, GROUPS, HOSTS, LOGS, MEMORY, PLACED, QUEUES, WISHES
from holdfast.sources.aws.calls import AwsAccount, AwsCaller, require_boto3
from holdfast.sources.aws.config import AwsConfig
from holdfast.sources.aws.disks import read_filesystems
from holdfast.sources.aws.errors import CallError
from holdfast.sources.aws.logs import Heard, LogFollower
from holdfast.sources.aws.machines import Machine, read_groups, read_machines
from holdfast.sources.aws.metrics import Metrics, MetricSubjects, questions, read_metrics
from holdfast.sources.aws.queues import Queues
from holdfast.sources.aws.reading import AwsAnswers, reading_of
from holdfast.sources.aws.services import Services
from holdfast.sources.aws.tasks import Tasks, read_registered

CLOSING_S: Final = 2.0  # threads that are under way get so long to end


@dataclass(slots=True, frozen=True)
class _Outcome:
    """How one run of a part went."""

    value: Any
    error: str
    calls: int
    notes: tuple[str, ...]
    at: float
    took_s: float


class _Part:
    """One part: how it is read, and how that went."""

    def __init__(
        self,
        name: str,
        slot: str,
        feeds: tuple[str, ...],
        read: Callable[[AwsCaller], Any],
        *,
        every_s: float = 0.0,
        about: Callable[[], object] = lambda: None,
        lasting: bool = False,
    ) -> None:
        self.name = name
        self.service = name.partition(" ")[0]
        self.slot = slot  # in Seen
        self.feeds = feeds
        self.read = read
        self.every_s = every_s
        self.about = about  # what it is asked about; once that changes it is due again
        self.asked_about: object = None
        # What it says does not age until it is due: rows would look as old as their oldest column.
        self.lasting = lasting
        self.holds_at: float | None = None
        self.future: asyncio.Future[_Outcome] | None = None
        self.started_at = 0.0
        self.at: float | None = None
        self.error = ""
        self.failing_since: float | None = None
        self.calls = 0
        self.took_s = 0.0
        self.notes: tuple[str, ...] = ()

    def due(self, now: float, slack_s: float) -> bool:
        """Whether it has to be asked again; what failed is asked each time."""
        if self.at is None or self.error or self.about() != self.asked_about:
            return True
        return now - self.at >= self.every_s - slack_s

    def fail(self, error: str, now: float) -> None:
        """It gave nothing; what it said before stays."""
        self.error = error
        self.failing_since = self.failing_since or now

    def row(self) -> Part:
        """For the reading."""
        return Part(
            name=self.name,
            at=self.at if self.holds_at is None else self.holds_at,
            error=self.error,
            failing_since=self.failing_since,
            calls=self.calls,
            took_s=self.took_s,
            feeds=self.feeds,
        )


class AwsSource:
    """Reads one ECS cluster with its groups, queues, filesystems, metrics and logs."""

    kind = "aws"

    def __init__(
        self, name: str, config: AwsConfig, clock: Callable[[], float] = time.time
    ) -> None:
        require_boto3()
        self.name = name
        self.period_s = config.period_s
        self._config = config
        self._clock = clock
        self._account = AwsAccount(config)
        self._seen = AwsAnswers()
        self._tasks = Tasks(config)
        self._services = Services(config, clock)
        self._queues = Queues(config, clock)
        self._logs = LogFollower(config, clock)
        self._parts = {part.name: part for part in self._made_parts()}
        self._pool = ThreadPoolExecutor(len(self._parts), thread_name_prefix=f"aws-{name}")
        self.version = 0  # of what is known of tasks and where they are; moves with each change
        self.replica_of: Callable[[str], str] = lambda _: ""  # who knows tasks as replicas says so
        self._shown: tuple[object, ...] = ()
        self._news = asyncio.Event()

    @property
    def operations(self) -> dict[str, int]:
        """Number of requests since the start, by "service:Operation"."""
        return dict(self._account.operations)

    async def read(self) -> Reading:
        """Ask all parts that are due, and return a reading of what is known."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.part_s
        patience = loop.time() + self._config.part_s / 3
        started: dict[str, asyncio.Task[None]] = {}
        for name, part in self._parts.items():
            after = [started[one] for one in _AFTER.get(name, ()) if one in started]
            started[name] = loop.create_task(self._refresh(part, after, patience, deadline))
        try:
            await asyncio.gather(*started.values())
        finally:
            for task in started.values():
                task.cancel()
        counted = self._seen.queues is not None and self._seen.queues.by_metrics
        self._parts["cloudwatch"].feeds = (DISKS, MEMORY, *((QUEUES,) if counted else ()))
        rows = tuple(part.row() for part in self._parts.values())
        notes = tuple(note for part in self._parts.values() for note in part.notes)
        reading = reading_of(self.name, self._clock(), rows, self._seen, self._config, notes)
        return replace(reading, placed=tuple(map(self._as_replica, reading.placed)))

    def _as_replica(self, placed: Placed) -> Placed:
        replica = self.replica_of(placed.id)
        return replace(placed, replica=replica) if replica else placed

    # --- for the discovery of replicas ------------------------------------------------------------

    def _tell_changes(self) -> None:
        seen = self._seen
        shown = (seen.tasks, seen.services, seen.registered, seen.machines)
        if shown != self._shown:
            self._shown = shown
            self.version += 1
            self._news.set()

    @property
    def known(self) -> bool:
        """Whether tasks, their models and their addresses were read at least once."""
        seen = self._seen
        if seen.tasks is None or seen.services is None:
            return False
        placed = seen.registered is not None and seen.machines is not None
        return placed or all(task.address for task in seen.tasks if task.runs)

    async def changed(self, since: int) -> int:
        """Wait until tasks are newer than version ``since``; returns the new version.

        It asks nothing: ``read`` does, once in each period.
        """
        while self.version <= since:
            self._news.clear()
            await self._news.wait()
        return self.version

    def glance(self) -> Reading:
        """The hosts and tasks as they were last read."""
        return reading_of(self.name, self._clock(), (), self._seen, self._config)

    async def close(self) -> None:
        """Refuse further requests, and wait shortly for those under way."""
        self._account.close()
        parts = self._parts.values()
        under_way = [part.future for part in parts if part.future is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSING_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- one part ---------------------------------------------------------------------------------

    async def _refresh(
        self, part: _Part, after: list[asyncio.Task[None]], patience: float, deadline: float
    ) -> None:
        loop = asyncio.get_running_loop()
        if after:
            first = part.at is None  # then there is nothing else to go on with
            until = deadline if first else patience
            await asyncio.wait(after, timeout=max(0.0, until - loop.time()))
            if first:
                deadline = max(deadline, loop.time() + self._config.part_s / 2)
        now = self._clock()
        self._adopt(part)
        part.calls, part.took_s = 0, 0.0
        if part.future is None:
            if not part.due(now, self._config.period_s / 2):
                part.holds_at = now if part.lasting else None
                return
            part.started_at, part.asked_about = now, part.about()
            part.future = loop.run_in_executor(self._pool, self._work, part)
        await asyncio.wait({part.future}, timeout=max(0.0, deadline - loop.time()))
        if not self._adopt(part):
            now = self._clock()
            part.fail(f"no answer for {now - part.started_at:.0f} s", now)

    def _adopt(self, part: _Part) -> bool:
        """Take what a run gave, if it has ended; runs of earlier readings included."""
        if part.future is None or not part.future.done():
            return False
        outcome = part.future.result()
        part.future = None
        part.calls, part.took_s, part.notes = outcome.calls, outcome.took_s, outcome.notes
        if outcome.error:
            part.fail(outcome.error, outcome.at)
        else:
            setattr(self._seen, part.slot, outcome.value)
            part.at, part.error, part.failing_since = outcome.at, "", None
            part.holds_at = None
            self._tell_changes()  # now: a part that hangs must not delay what is known of tasks
        return True

    def _work(self, part: _Part) -> _Outcome:
        """In a thread. Never raises: what one part cannot read concerns no other."""
        began = time.monotonic()
        caller = self._account.caller(part.service)
        value, error = None, ""
        try:
            value = part.read(caller)
        except CallError as failed:
            error = str(failed)
        except Exception as surprise:  # noqa: BLE001 an answer of a shape that nobody expected
            error = f"the answer was not understood ({type(surprise).__name__}: {surprise})"[:300]
        took_s = time.monotonic() - began
        return _Outcome(value, error, caller.calls, tuple(caller.notes), self._clock(), took_s)

    # --- what the parts read ----------------------------------------------------------------------

    def _made_parts(self) -> tuple[_Part, ...]:
        """In an order in which each comes after those it waits for."""
        config = self._config
        parts = (
            _Part("autoscaling", "groups", (GROUPS,), lambda caller: read_groups(caller, config)),
            _Part("ecs hosts", "registered", (HOSTS,), lambda call: read_registered(call, config)),
            _Part("ecs tasks", "tasks", (PLACED,), self._tasks.read),
            _Part("ecs services", "services", (WISHES,), self._services.read),
            _Part("sqs", "queues", (QUEUES,), self._queues.read),
            _Part(
                "ec2",
                "machines",
                (HOSTS,),
                self._read_machines,
                every_s=config.machines_s,
                about=self._seen.host_ids,
                lasting=True,
            ),
            _Part(
                "efs",
                "filesystems",
                (DISKS,),
                read_filesystems,
                every_s=config.efs_s,
                lasting=True,
            ),
            _Part(
                "cloudwatch",
                "metrics",
                (DISKS, MEMORY),
                self._read_metrics,
                every_s=config.metrics_s,
                about=self._metrics_wanted,
            ),
            _Part("logs", "heard", (LOGS,), self._read_logs),
        )
        return parts if config.read_logs else parts[:-1]

    def _read_machines(self, caller: AwsCaller) -> dict[str, Machine]:
        if self._seen.groups is None and self._seen.registered is None:
            raise _nothing_known("autoscaling and ecs hosts")
        return read_machines(caller, self._seen.host_ids())

    def _read_logs(self, caller: AwsCaller) -> Heard:
        if self._seen.tasks is None:
            raise _nothing_known("ecs tasks")
        return self._logs.read(caller, self._seen.streams())

    def _read_metrics(self, caller: AwsCaller) -> Metrics:
        seen = self._seen
        if seen.filesystems is None and seen.queues is None and seen.services is None:
            raise _nothing_known("efs, sqs and ecs services")
        asked = questions(self._metrics_wanted(), self._config)
        return read_metrics(caller, asked, self._clock(), self._config)

    def _metrics_wanted(self) -> MetricSubjects:
        seen, table = self._seen, self._seen.queues
        disks = seen.disks(self._config.filesystems)
        return MetricSubjects(
            disks={one.id: one.limited for one in disks},
            queues=tuple(table.models) if table is not None else (),
            counted=tuple(table.counted) if table is not None and table.by_metrics else (),
            services=tuple(one.name for one in seen.services or ()),
            gpu_hosts=tuple(
                one.id for one in (seen.registered or {}).values() if len(one.gpu_ids) == 1
            ),
        )


def _nothing_known(parts: str) -> CallError:
    return CallError(f"has nothing to ask about before an answer of {parts}")


_AFTER: Final = {
    "ec2": ("autoscaling", "ecs hosts"),
    "cloudwatch": ("efs", "sqs", "ecs services", "ecs tasks"),
    "logs": ("ecs tasks",),
}


__all__ = ["AwsSource"]
