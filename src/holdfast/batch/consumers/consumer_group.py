"""Runs all consumers, and divides what may run between them and batches, model by model.

every look (100 ms)
for each model:  is it down by an incident?      then nothing is taken
batch:        spare capacity    core.batch.spare_capacity
interactive:  the model's slots core.batch.interactive_pace
whose turn                      core.batch.fair_shares
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any, Final

import structlog

from holdfast.batch.consumers.consumer import AGAIN_S, RECEIVE_MAX, Consumer
from holdfast.batch.load_reports import LoadReports
from holdfast.batch.runner import BatchRunner
from holdfast.core.batch.fair_shares import fair_shares
from holdfast.core.batch.interactive_pace import InteractivePace
from holdfast.core.batch.progress import drain_estimate
from holdfast.core.batch.spare_capacity import (
    BatchPace,
    SpareCapacity,
    SpareCapacityConfig,
    is_young,
)
from holdfast.core.batch.suspect_turns import SuspectTurns
from holdfast.core.types import SECOND, nanos

LOOK_S: Final = 0.1  # gateways report as often
HOLD_S: Final = 20.0  # control repeats every two seconds which models are down; without it: unknown
BATCHES: Final = ""  # the name of batches among those who share; consumers have longer ones
MANY: Final = 4_096  # what batches want while some are open: as much as there is
_log = structlog.get_logger("holdfast.batch.consumers")


class ConsumerGroup:
    """All consumers of one process, and what each of them may have."""

    def __init__(
        self,
        consumers: Sequence[Consumer],
        loads: LoadReports,
        runner: BatchRunner,
        pace: SpareCapacityConfig,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.consumers = consumers
        self._loads = loads
        self._runner = runner
        self._pace = pace
        self._now_ns = now_ns
        models = {one.model for one in consumers}
        self._spare = {model: SpareCapacity(pace) for model in models}
        self._slots = {model: InteractivePace(pace) for model in models}
        self._held_back: dict[str, tuple[str, int]] = {}  # models that are down, until when
        self._reasons: dict[tuple[str, bool], str] = {}  # by model, and whether interactive
        self._for_batches: dict[str, int] = {}
        self._turn = 0
        self._stopping = asyncio.Event()
        runner.cap = self.cap
        runner.suspect_turns = {model: SuspectTurns() for model in models}
        for one in consumers:
            one.suspect_turns = runner.suspect_turns[one.model]

    async def run(self) -> None:
        """Work until ``stop``."""
        tasks = [asyncio.create_task(self._keep_running(one)) for one in self.consumers]
        while not self._stopping.is_set():
            self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stopping.wait()
        for one in self.consumers:
            one.stop()
        await asyncio.gather(*tasks)
        for one in self.consumers:
            await one.close()

    async def _keep_running(self, consumer: Consumer) -> None:
        """Run one consumer; a mistake of ours in one of them must not end it, nor the others."""
        while not self._stopping.is_set():
            try:
                await consumer.run()
            except Exception as error:  # noqa: BLE001 see above
                consumer.problem = f"failed here: {type(error).__name__}"
                _log.exception("a consumer failed", consumer=consumer.name)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await self._stopping.wait()

    def stop(self) -> None:
        """Make ``run`` take no more messages and return."""
        self._stopping.set()

    def hold(self, models: Mapping[str, str]) -> None:
        """Take nothing for these models, which are down by an incident; replaces what was held."""
        until = self._now_ns() + nanos(HOLD_S)
        self._held_back = {model: (reason, until) for model, reason in models.items()}

    def cap(self, model: str) -> int | None:
        """How many items of batches may run beside consumers of this model; None: no bound."""
        if self.down(model):
            return 0
        return self._for_batches.get(model)

    def look(self) -> None:
        """Set what each consumer may have."""
        self._turn += 1
        now = self._now_ns()
        for model in self._spare:
            own = [one for one in self.consumers if one.model == model]
            self._share_spare(model, [one for one in own if not one.interactive], now)
            self._share_slots(model, [one for one in own if one.interactive], now)

    def _share_spare(self, model: str, consumers: list[Consumer], now: int) -> None:
        if not consumers:
            return
        feed = self._runner.feeds.get(model)
        batches = 0 if feed is None else len(feed.running)
        sent = sum(one.gate.inside for one in consumers)
        young = [
            (held.began, one, held)
            for one in consumers
            for held in one.sent
            if is_young(held.began, now, self._pace)
        ]
        load = self._loads.of(model)
        spare = self._spare[model]
        if not sent + batches:
            spare.learn(load, now)
        pace = spare.look(load, sent + batches, len(young), now)
        down = self.down(model)
        if down:
            pace = BatchPace(0, 0, down)
        wants = {one.name: _wants(one) for one in consumers}
        wants[BATCHES] = MANY if feed is not None else 0
        shares = fair_shares(pace.running_max, wants, self._turn)
        self._for_batches[model] = shares[BATCHES]
        self._grant(model, consumers, shares, pace)
        young.sort(key=lambda entry: entry[0], reverse=True)
        for _, one, held in young[: pace.take_back]:
            one.take_back(held)

    def _share_slots(self, model: str, consumers: list[Consumer], now: int) -> None:
        if not consumers:
            return
        sent = sum(one.gate.inside for one in consumers)
        pace = self._slots[model].look(self._loads.of(model), sent, now)
        down = self.down(model)
        if down:
            pace = BatchPace(0, 0, down)
        wants = {one.name: _wants(one) for one in consumers}
        self._grant(model, consumers, fair_shares(pace.running_max, wants, self._turn), pace)

    def _grant(
        self, model: str, consumers: list[Consumer], shares: Mapping[str, int], pace: BatchPace
    ) -> None:
        for one in consumers:
            self._reasons[model, one.interactive] = pace.reason
            # One that found its queue empty may go on looking, with one message at a time.
            least = 1 if pace.running_max and one.empty and not one.held else 0
            grown = max(shares[one.name], least) > one.gate.limit
            one.gate.set_limit(max(shares[one.name], least))
            if grown:
                one.wake()

    def down(self, model: str) -> str:
        """Why a model is down; empty: nobody says that it is."""
        now = self._now_ns()
        targets = self._loads.leads_to.get(model, (model,))  # of a virtual name: all of them
        told = [self._held_back.get(target, ("", 0)) for target in targets]
        held = [reason for reason, until in told if now < until]
        return f"incident: {held[0]}" if held and len(held) == len(targets) else ""

    # --- what is seen ---

    async def backlog(self) -> list[dict[str, Any]]:
        """The rows of all consumers, for the view."""
        now = self._now_ns()
        rows = []
        for one in self.consumers:
            depth = await one.depth()
            done = one.finished.total(now)
            open_items = _sum(depth.waiting, depth.in_flight, depth.delayed)
            left = None if open_items is None else drain_estimate(open_items, done, 60 * SECOND)
            inbox = one.section.inbox
            rows.append(
                {
                    "name": one.name,
                    "model": one.model,
                    "queue": inbox.called,
                    "kind": inbox.kind,
                    "priority": one.section.priority,
                    "waiting": depth.waiting,
                    "in_flight": depth.in_flight,
                    "delayed": depth.delayed,
                    "dead": depth.dead if depth.dead is not None else await one.records.dead(),
                    "dead_letter_queue": depth.dead_letter_queue,
                    "receives_max": depth.receives_max,
                    "oldest_s": depth.oldest_s,
                    "held": len(one.held),
                    "running": one.gate.inside,
                    "pace": self._reasons.get((one.model, one.interactive), "not looked yet"),
                    "finished_per_s": round(done / 60.0, 3),
                    "drain_s": left,
                    "problem": one.problem,
                }
            )
        return rows


def _wants(consumer: Consumer) -> int:
    """What a consumer would run, if it could; nobody knows how much an unread queue has."""
    more = 0 if consumer.empty else RECEIVE_MAX
    return min(len(consumer.held) + more, consumer.section.at_once_max)


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


__all__ = ["ConsumerGroup"]
