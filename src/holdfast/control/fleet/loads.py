"""Polls each engine's load once a second and passes it on to gateways.

The replicas are polled at random moments within the second, and only some at a time, so that a
fleet is not polled in one burst. An engine that does not answer in time is passed on as ``None``,
and gateways then go by their own measurements.
"""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.fleet.probes import poll_load
from holdfast.core.diagnose.facts import LoadSeen
from holdfast.core.messages import LoadReported
from holdfast.engines import Load

PERIOD_S: Final = 1.0
DEADLINE_S: Final = 0.8  # below the period: rounds do not pile up
AT_ONCE_MAX: Final = 16  # replicas asked at the same time
_NOTHING: Final = Load()
_SPREAD_S: Final = 0.15  # of the moments within a round, so that it ends in its period


class Loads:
    """Polls the load of all replicas, round by round, and reports it."""

    def __init__(
        self,
        deployed: Callable[[], Mapping[str, Deployed]],
        tell: Callable[[list[LoadReported]], None],
        environment: Mapping[str, str],
        rng: Random,
        saw: Callable[[LoadSeen], None] = lambda _: None,
    ) -> None:
        self._deployed = deployed
        self._tell = tell
        self._saw = saw  # gateways need a part of it; whoever looks for failures wants all
        self._environment = environment
        self._rng = rng
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)
        self._spoke: set[str] = set()  # replicas that said something in the last round

    async def run(self) -> None:
        """Poll all replicas once a second, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.once()
            await asyncio.sleep(max(0.05, PERIOD_S - (loop.time() - began)))

    async def once(self) -> None:
        """Poll all replicas once and report their loads.

        A replica that never reports a load costs gateways no frame; one that stops reporting is
        sent as unknown once.
        """
        replicas = list(self._deployed().values())
        told = await asyncio.gather(*(self._ask(one) for one in replicas))
        news = [load for load in told if _says(load) or load.replica_id in self._spoke]
        self._spoke = {load.replica_id for load in told if _says(load)}
        if news:
            self._tell(news)

    async def _ask(self, one: Deployed) -> LoadReported:
        await asyncio.sleep(self._rng.random() * _SPREAD_S)
        async with self._gate:
            load = await poll_load(one, DEADLINE_S, self._environment)
        name = one.replica.id
        if load != _NOTHING:
            told = (load.running, load.waiting, load.kv_used, load.generated, load.preemptions)
            prefixes = (load.prefix_asked, load.prefix_found, load.prefix_hits)
            self._saw(LoadSeen(name, *told, *prefixes))
        return LoadReported(one.replica.model, name, None, load.waiting, load.kv_used)


def _says(load: LoadReported) -> bool:
    return load.waiting is not None or load.kv_used is not None


__all__ = ["AT_ONCE_MAX", "DEADLINE_S", "PERIOD_S", "Loads"]
