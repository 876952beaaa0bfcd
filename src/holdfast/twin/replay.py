"""Replays measured requests through modelled engines: the same arrivals at the same replicas.

No policy decides here: each request goes to the replica that answered it. So a fit compares engines
with engines, request by request, and is not disturbed by a routing decision that chance made
otherwise. Whoever waited in the gateway's queue for that replica waits here in the engine's.
"""

from collections.abc import Mapping, Sequence
from random import Random

from holdfast.sim.clock import TRAFFIC, Clock
from holdfast.sim.engine import Engine
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.hosts.placement import EnginePlacement
from holdfast.sim.request_record import EngineRun
from holdfast.twin.measurement import MeasuredRequest, Times, as_nanos, times_of

_FOR_EVER = 1 << 62


def replay(
    requests: Sequence[MeasuredRequest],
    law: EngineParameters,
    hosts: Mapping[str, str] | None = None,
) -> list[Times | None]:
    """How long each request would have taken; None for one that can never fit into memory.

    ``hosts``: the host of each replica, where replicas share hosts.
    """
    clock = Clock()
    first = [0] * len(requests)
    last = [0] * len(requests)

    def on_first(run: EngineRun, now: int) -> None:
        first[run.attempt] = now

    def on_done(run: EngineRun, now: int) -> None:
        last[run.attempt] = now

    placement = EnginePlacement(clock, Random, on_first, on_done)
    engines = {
        replica: placement.engine(replica, law, (hosts or {}).get(replica), routed=False)
        for replica in dict.fromkeys(one.replica for one in requests)
    }

    def submit(arrival: tuple[Engine, EngineRun], now: int) -> None:
        engine, run = arrival
        engine.submit(run, now)

    overhead = round(law.overhead_ms * 1e6)
    began = min((one.arrived_s for one in requests), default=0.0)
    for number, one in enumerate(requests):
        run = EngineRun(None, one.replica, number, one.prompt, one.output)
        at = as_nanos(one.arrived_s - began) + overhead
        clock.at(at, TRAFFIC, submit, (engines[one.replica], run))
    clock.run(_FOR_EVER)
    return [
        times_of(one.arrived_s - began, first[number] / 1e9, last[number] / 1e9, one.output)
        if last[number]
        else None
        for number, one in enumerate(requests)
    ]


__all__ = ["replay"]
