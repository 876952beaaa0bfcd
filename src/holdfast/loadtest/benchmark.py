"""Runs a whole benchmark: probes the server, holds the loads, reads the fleet beside it.

find_target ─► probe ─► load, load, … ─► BenchFile
                           ▲     │
                           └─────┘   fixed loads, a search for the knee, or numbers of replicas
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast import __version__
from holdfast.core.types import require
from holdfast.loadtest.client_check import ClientLimits, descriptors_for
from holdfast.loadtest.fleet_watch import FleetWatch
from holdfast.loadtest.load_run import LoadClient, LoadProgress, StepLoad
from holdfast.loadtest.load_sequence import KneeSearch, SweepConfig, SweepRange
from holdfast.loadtest.records import BenchFile, BenchRecord, BenchStep, FleetState
from holdfast.loadtest.request_plan import BodyForm, RequestPlan
from holdfast.loadtest.summary import ServiceObjective, summarise
from holdfast.loadtest.target import BenchTarget, TargetError, probe
from holdfast.sim.workload import Workload

_STEPS_MAX: Final = 64


@dataclass(slots=True, frozen=True)
class BenchSettings:
    """What a benchmark is to do; one of ``users``, ``sweep`` and ``scale`` may be set."""

    workload: Workload = field(default_factory=Workload)
    file: Path | None = None
    users: int | None = None  # closed loop; None: open loop at the workload's rate
    sweep: SweepRange | None = None
    scale: tuple[int, ...] = ()  # numbers of replicas to measure one after the other
    objective: ServiceObjective = field(default_factory=ServiceObjective)
    warmup_s: float = 5.0
    seconds: float = 30.0
    requests_max: int = 20_000
    timeout_s: float = 120.0
    think_s: float = 0.0
    chat: bool = True
    ignore_eos: bool = True
    seed: int = 1
    label: str = ""
    limits: ClientLimits = field(default_factory=ClientLimits)
    search: SweepConfig = field(default_factory=SweepConfig)

    def __post_init__(self) -> None:
        counted = [x for x in self.scale if x >= 1]
        rising = counted == sorted(set(counted)) and len(counted) == len(self.scale)
        require(rising, "--scale", f"is {self.scale}", "write rising numbers, such as 1,2,4")
        both = bool(self.scale) and self.sweep is not None
        require(not both, "--scale", "is set beside --sweep", "choose one of them")
        streams = self.most_users
        bound = self.limits.streams_max
        fix = f"use at most {bound:,}, or raise --streams-max"
        require(streams is None or streams <= bound, "--users", f"asks for {streams} streams", fix)

    @property
    def most_users(self) -> int | None:
        """The most users of any step; None where all loops are open."""
        if self.sweep is not None and self.sweep.unit == "users":
            return int(self.sweep.high)
        if self.users is None:
            return None
        return self.users * max(self.scale, default=1)


class Benchmark:
    """One benchmark of one server."""

    def __init__(
        self,
        target: BenchTarget,
        settings: BenchSettings,
        *,
        fleet: FleetWatch | None = None,
        on_progress: Callable[[LoadProgress], None] = lambda _: None,
        on_step: Callable[[BenchFile], None] = lambda _: None,
    ) -> None:
        self._target = target
        self._settings = settings
        self._fleet = fleet
        self._on_progress = on_progress
        self._on_step = on_step
        self._steps: list[BenchStep] = []
        self._records: list[BenchRecord] = []
        self._remarks: list[str] = []
        self._plan: RequestPlan | None = None
        self._began_at = 0.0
        self.search: KneeSearch | None = None

    async def run(self) -> BenchFile:
        """Probe, load, and return all of it; raises ``TargetError`` and ``FleetError``."""
        settings, target = self._settings, self._target
        # An open loop has as many streams as the server lets pile up: all that are allowed.
        problem = descriptors_for(settings.most_users or settings.limits.streams_max)
        if problem:
            raise TargetError(problem)
        self._began_at = time.time()
        client = LoadClient(
            target.url,
            key=target.key,
            tls=target.tls,
            limits=settings.limits,
            on_progress=self._on_progress,
        )
        reader: asyncio.Task[None] | None = None
        try:
            await self._prepare(client)
            if self._fleet is not None:
                await self._fleet.begin()
                reader = asyncio.create_task(self._fleet.read_gpus(client.zero))
            await self._hold_all(client)
        finally:
            if reader is not None:
                reader.cancel()
            client.close()
        return self.file()

    def file(self) -> BenchFile:
        """The benchmark so far."""
        plan = self._plan
        return BenchFile(
            made_by=f"holdfast {__version__}",
            began_at=round(self._began_at, 3),
            target=self._target.url,
            model=self._target.model,
            label=self._settings.label,
            workload=plan.described() if plan is not None else {},
            slo=self._settings.objective.to_dict(),
            steps=tuple(self._steps),
            fleet=self._fleet.state() if self._fleet is not None else _NO_FLEET,
            remarks=tuple(self._remarks),
            requests=tuple(self._records),
        )

    async def _prepare(self, client: LoadClient) -> None:
        settings = self._settings
        form = BodyForm(self._target.model, settings.chat, settings.ignore_eos)
        # Read before anything is sent: a bad trace or file should cost nobody a request.
        plan = RequestPlan(settings.workload, form, seed=settings.seed, file=settings.file)
        first = next(plan.requests(), None)
        require(first is not None, "--trace", "holds no request", "name another trace")
        probed = await probe(client, form, settings.timeout_s)
        self._remarks += probed.remarks
        if probed.form != form:
            plan = RequestPlan(
                settings.workload, probed.form, seed=settings.seed, file=settings.file
            )
        plan.writer.rule = probed.rule
        self._plan = plan

    async def _hold_all(self, client: LoadClient) -> None:
        settings = self._settings
        if settings.sweep is not None:
            await self._search_knee(client, settings.sweep)
        elif settings.scale:
            await self._scale(client)
        else:
            await self._hold(client, settings.users, settings.workload.rate)

    async def _search_knee(self, client: LoadClient, span: SweepRange) -> None:
        self.search = search = KneeSearch(span, self._settings.objective, self._settings.search)
        while (load := search.next_load()) is not None and len(self._steps) < _STEPS_MAX:
            if span.unit == "users":
                await self._hold(client, int(load), 0.0)
            else:
                await self._hold(client, None, load)
            summary = summarise(self.file(), len(self._steps) - 1, self._settings.objective)
            search.saw(load, summary)

    async def _scale(self, client: LoadClient) -> None:
        """Hold the load for each number of replicas, as much of it as there are replicas."""
        settings = self._settings
        assert self._fleet is not None, "the command checks that a fleet is there"
        for count in settings.scale:
            users = None if settings.users is None else settings.users * count
            async with self._fleet.only(count):
                await self._hold(client, users, settings.workload.rate * count, replicas=count)

    async def _hold(
        self,
        client: LoadClient,
        users: int | None,
        rate: float,
        replicas: int | None = None,
    ) -> None:
        settings, plan = self._settings, self._plan
        assert plan is not None, "the server was probed"
        held = plan if users is not None or plan.timed else plan.at_rate(rate)
        load = StepLoad(
            _name(users, None if held.timed else rate, replicas),
            users,
            warmup_s=settings.warmup_s,
            seconds=settings.seconds,
            requests_max=settings.requests_max,
            timeout_s=settings.timeout_s,
            think_s=settings.think_s,
            replicas=replicas,
        )
        step, records = await client.hold(load, held, len(self._steps))
        self._steps.append(step)
        self._records += records
        self._on_step(self.file())


_NO_FLEET: Final = FleetState(gpus_why="no admin port was asked")


def _name(users: int | None, rate: float | None, replicas: int | None) -> str:
    if users is not None:
        name = f"{users:,} user{'s' if users != 1 else ''}"
    elif rate is not None:
        name = f"{rate:g} requests/s"
    else:
        name = "as in the trace"
    if replicas is not None:
        name += f", {replicas} replica{'s' if replicas != 1 else ''}"
    return name


__all__ = ["BenchSettings", "Benchmark"]
