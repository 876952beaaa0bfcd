"""Polls each engine's load once a second and passes it on to gateways and to the investigation.

The replicas are polled at random moments within the second, and only some at a time, so that a
fleet is not polled in one burst. An engine that does not answer in time is passed on as ``None``,
and gateways then go by their own measurements. What an inference server counts of a model is passed
on every few rounds, with its page of statistics, to whoever looks for failures.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import astuple
from random import Random
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.fleet.engine_pages import read_engine
from holdfast.core.diagnose.facts import InferencesSeen, LoadSeen
from holdfast.core.messages import LoadReported
from holdfast.engines import Load
from holdfast.engines.dialect import InferenceCounts

PERIOD_S: Final = 1.0
DEADLINE_S: Final = 0.8  # below the period: rounds do not pile up
AT_ONCE_MAX: Final = 16  # replicas asked at the same time
COUNTS_EVERY: Final = 5  # rounds: counts are of minutes, and cost a second page
_NOTHING: Final = Load()
_UNCOUNTED: Final = InferenceCounts()
_SPREAD_S: Final = 0.15  # of the moments within a round, so that it ends in its period


class Loads:
    """Polls the metrics pages of all engines each second and passes the loads to two callbacks.

    ``tell`` gets the queue and KV figures for gateways, ``saw`` the facts for the investigation.
    """

    def __init__(
        self,
        deployed: Callable[[], Mapping[str, Deployed]],
        tell: Callable[[list[LoadReported]], None],
        environment: Mapping[str, str],
        rng: Random,
        saw: Callable[[LoadSeen | InferencesSeen], None] = lambda _: None,
    ) -> None:
        self._deployed = deployed
        self._tell = tell
        self._saw = saw  # gateways need a part of it; whoever looks for failures wants all
        self._environment = environment
        self._rng = rng
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)
        self._spoke: set[str] = set()  # replicas that said something in the last round
        self._rounds = 0

    async def run(self) -> None:
        """Poll all replicas about once a second, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.once()
            await asyncio.sleep(max(0.05, PERIOD_S - (loop.time() - began)))

    async def once(self) -> None:
        """Poll all replicas once, some at a time, and report their loads.

        A replica that never reports a load is left out of the report to gateways; one that stops
        reporting is sent once with unknown (None) figures. Counts of inferences are read every
        fifth round.
        """
        replicas = list(self._deployed().values())
        counted = self._rounds % COUNTS_EVERY == 0
        self._rounds += 1
        told = await asyncio.gather(*(self._ask(one, counted=counted) for one in replicas))
        news = [load for load in told if _says(load) or load.replica_id in self._spoke]
        self._spoke = {load.replica_id for load in told if _says(load)}
        if news:
            self._tell(news)

    async def _ask(self, one: Deployed, *, counted: bool) -> LoadReported:
        await asyncio.sleep(self._rng.random() * _SPREAD_S)
        async with self._gate:
            report = await read_engine(one, DEADLINE_S, self._environment, statistics=counted)
        name, load = one.replica.id, report.load
        if counted and report.counts is not None and report.counts != _UNCOUNTED:
            self._saw(InferencesSeen(name, *astuple(report.counts)))
        if load != _NOTHING:
            told = (load.running, load.waiting, load.kv_used, load.generated, load.preemptions)
            prefixes = (load.prefix_asked, load.prefix_found, load.prefix_hits)
            self._saw(LoadSeen(name, *told, *prefixes, load.steps))
        work = (load.running, load.generated, load.steps)
        return LoadReported(one.replica.model, name, None, load.waiting, load.kv_used, *work)


def _says(load: LoadReported) -> bool:
    return load.waiting is not None or load.kv_used is not None


__all__ = ["AT_ONCE_MAX", "COUNTS_EVERY", "DEADLINE_S", "PERIOD_S", "Loads"]
