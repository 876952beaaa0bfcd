"""Batch work beside people, in simulation: what people notice, and how much of the spare is used.

    python bench/batch_beside.py --replicas 64 --seconds 60

The simulator drives the gateway's own flow; the batch runner's own policy (``core.batch``) looks
ten times a second, as the real one does. For each share of people's load it prints the p95 and p99
of first tokens alone, with the policy, and with the naive way (as many requests at once as there
are slots, sent like anybody's), and how much of the spare throughput batch work got:

    spare = tokens/s of batch work alone - tokens/s of people
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import quantiles
from typing import Any, Final

from batch_embedded import run_embedded
from holdfast.core.batch.spare_capacity import (
    ModelLoad,
    SpareCapacity,
    SpareCapacityConfig,
    is_young,
)
from holdfast.core.messages import Arrived, ClientGone, Finish
from holdfast.core.request.candidate import UNLIMITED
from holdfast.core.types import SECOND, Priority, Replica, Request, nanos, seconds
from holdfast.sim.clock import TRAFFIC
from holdfast.sim.engine_parameters import EngineParameters
from holdfast.sim.experiment import Experiment
from holdfast.sim.request_record import RequestRecord
from holdfast.sim.workload import Lengths, Workload
from holdfast.sim.world import World

MODEL: Final = "m"
SIMULATED_REPLICAS: Final = 64
EMBEDDED_REPLICAS: Final = 2  # one for each core of a small machine
LOOK: Final = SECOND // 10
WARM_S: Final = 20.0  # not counted: answers take 5 s, and batch work moves together as they end
ENGINE: Final = EngineParameters(batch_max=32)
PROMPT: Final = Lengths(mean=500.0)
ANSWER: Final = Lengths(mean=200.0)
_NO_ROOM: Final = (429, 503)


class BesideWorld(World):
    """A world into which a batch runner sends items, by its policy or by a fixed number."""

    def __init__(
        self, setup: Experiment, seed: int, config: SpareCapacityConfig | None, fixed: int
    ) -> None:
        super().__init__(setup, seed)
        self._policy = SpareCapacity(config) if config is not None else None
        self._config = config or SpareCapacityConfig()
        self._fixed = fixed
        chance = Random(f"{seed} batch")
        self._prompt, self._answer = PROMPT.sampler(chance), ANSWER.sampler(chance)
        self._items: dict[str, int] = {}  # that run, and since when
        self._serial = self._wanted = 0
        self._refused_until = 0  # the gateway had no place: the runner asks again after a second
        self.first_s: list[float] = []
        self.tokens = {Priority.INTERACTIVE: 0, Priority.BATCH: 0}
        self.taken_back = 0
        self.people = self.answered = 0
        self.clock.at(0, TRAFFIC, self._look)

    def _look(self, _: object, now: int) -> None:
        wanted = self._fixed
        if self._policy is not None:
            wanted = self._ask_policy(self._policy, now)
        self._wanted = wanted
        if now < self._end:
            for _number in range(wanted - len(self._items)):
                if now >= self._refused_until:
                    self._submit(now)
            self.clock.at(now + LOOK, TRAFFIC, self._look)

    def _ask_policy(self, policy: SpareCapacity, now: int) -> int:
        lane = self.flow.lanes[MODEL]
        late = lane.first_token_p95(now)
        capacity = lane.pool.capacity
        load = ModelLoad(
            lane.queue.waiting_interactive,
            lane.pool.inflight,
            capacity if 0 < capacity < UNLIMITED else None,
            None if late is None else seconds(int(late)),
            lane.pool.ready(now),
            lane.pool.routable,
        )
        young = [key for key, at in self._items.items() if is_young(at, now, self._config)]
        if not self._items:
            policy.learn(load, now)
        pace = policy.look(load, len(self._items), len(young), now)
        for key in young[len(young) - pace.take_back :] if pace.take_back else ():
            self.taken_back += 1
            self._tell_flow(ClientGone(key), now)
        return pace.running_max

    def _submit(self, now: int) -> None:
        self._serial += 1
        key = f"batch-{self._serial}"
        answer = self._answer()
        urgent = self._policy is None
        request = Request(
            key,
            MODEL,
            arrived=now,
            prompt_tokens=self._prompt(),
            max_tokens=answer,
            tenant="batch",
            priority=Priority.INTERACTIVE if urgent else Priority.BATCH,
            whole=True,
        )
        self._items[key] = now
        self.records[key] = RequestRecord(request, answer)
        self._tell_flow(Arrived(request), now)

    def _do_finish(self, action: Finish, now: int) -> None:
        record = self.records[action.request_id]
        counted = nanos(WARM_S) <= now <= self._end
        item = action.request_id in self._items
        if item:
            del self._items[action.request_id]  # type: ignore[arg-type]
            if action.status in _NO_ROOM:
                self._refused_until = now + SECOND
        if counted and not item:
            self.people += 1
            self.answered += action.status == 200
        if counted and action.status == 200:  # what was taken back is work lost
            kind = Priority.BATCH if item else Priority.INTERACTIVE
            self.tokens[kind] += record.shown
            if not item and record.first_at:
                self.first_s.append(seconds(record.first_at - record.request.arrived))
        super()._do_finish(action, now)
        if item and now < self._end and len(self._items) < self._wanted:
            self.clock.at(now, TRAFFIC, self._replace)  # as the runner does when an item ends

    def _replace(self, _: object, now: int) -> None:
        if len(self._items) < self._wanted and now >= self._refused_until:
            self._submit(now)


def run(
    replicas: int,
    seconds_long: float,
    rate: float,
    seed: int,
    config: SpareCapacityConfig | None,
    fixed: int,
) -> dict[str, float]:
    """One run; ``config`` None and ``fixed`` 0: people alone."""
    setup = Experiment(
        replicas=tuple(
            Replica(f"{MODEL}-{n}", MODEL, slots=ENGINE.batch_max) for n in range(replicas)
        ),
        duration_s=seconds_long,
        workloads=((MODEL, Workload(rate=rate, prompt=PROMPT, output=ANSWER)),) if rate else (),
        engine=ENGINE,
        canaries=False,
    )
    world = BesideWorld(setup, seed, config, fixed)
    world.run()
    span = seconds_long - WARM_S
    first = sorted(world.first_s)
    cuts = quantiles(first, n=100) if len(first) > 100 else [0.0] * 99
    return {
        "p50_s": round(cuts[49], 4),
        "p95_s": round(cuts[94], 4),
        "p99_s": round(cuts[98], 4),
        "people_tokens_s": round(world.tokens[Priority.INTERACTIVE] / span),
        "batch_tokens_s": round(world.tokens[Priority.BATCH] / span),
        "people_answered": round(world.answered / max(1, world.people), 3),
        "taken_back": world.taken_back,
    }


def rows(replicas: int, seconds_long: float, seed: int) -> Iterator[dict[str, Any]]:
    """People alone, with the policy, and the naive way, at three shares of the capacity."""
    config = SpareCapacityConfig()
    slots = replicas * ENGINE.batch_max
    alone = run(replicas, seconds_long, 0.0, seed, None, slots)
    yield {"case": "batch alone", **alone}
    full = alone["batch_tokens_s"]
    for share in (0.2, 0.5, 0.8):
        rate = share * full / ANSWER.mean
        people = run(replicas, seconds_long, rate, seed, None, 0)
        yield {"case": f"people alone at {share:.0%}", **people}
        for name, policy, fixed in (("policy", config, 0), ("naive", None, slots)):
            told = run(replicas, seconds_long, rate, seed, policy, fixed)
            spare = max(1.0, full - people["people_tokens_s"])
            told["p95_factor"] = round(told["p95_s"] / people["p95_s"], 2)
            told["p99_factor"] = round(told["p99_s"] / people["p99_s"], 2)
            told["spare_used"] = round(told["batch_tokens_s"] / spare, 2)
            yield {"case": f"{name} beside {share:.0%}", **told}


def main() -> None:
    """Print one JSON object a line, as each run ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, help="64 simulated ones, or 2 embedded ones")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--embedded", action="store_true", help="real engines: see batch_embedded")
    parser.add_argument("--rounds", type=int, default=3, help="of all windows (embedded)")
    parser.add_argument("--window", type=float, default=12.0, help="seconds of one (embedded)")
    parser.add_argument("--slots", type=int, default=4, help="of a replica (embedded)")
    parser.add_argument("--out", type=Path, default=Path("batch_embedded.jsonl"))
    args = parser.parse_args()
    if args.embedded:
        replicas = args.replicas or EMBEDDED_REPLICAS
        run_embedded(args.rounds, args.window, replicas, args.slots, args.out)
        return
    for row in rows(args.replicas or SIMULATED_REPLICAS, args.seconds, args.seed):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
