"""What operators see of batches and consumed queues: what waits, runs and was given up, how long.

The answer to ``GET /internal/backlog`` on the batch process's own socket, which control reads as a
source of the joined view. Clients cannot reach this path: gateways pass on files and batches only.
"""

from collections.abc import Callable
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.batch.api_answers import json_answer
from holdfast.batch.batch_desk import BatchDesk
from holdfast.batch.consumers.consumer_group import ConsumerGroup
from holdfast.batch.items import queue_of
from holdfast.batch.runner import BatchRunner
from holdfast.core.batch.progress import drain_estimate
from holdfast.core.types import SECOND
from holdfast.queue_port import DurableQueue, ItemState

HELD_HEADER: Final = "x-holdfast-held"  # models that are down by an incident, as control knows


class BacklogApi:
    """Tells depth, work in flight, dead letters, age and drain estimate of each model."""

    def __init__(
        self,
        desk: BatchDesk,
        queue: DurableQueue,
        runner: BatchRunner,
        now_ns: Callable[[], int],
        consumers: ConsumerGroup | None = None,
    ) -> None:
        self._consumers = consumers
        self._desk = desk
        self._queue = queue
        self._runner = runner
        self._now_ns = now_ns

    def routes(self) -> list[Route]:
        """The routes of all handlers."""
        return [Route("/internal/backlog", self.backlog, methods=["GET"])]

    async def backlog(self, request: Request) -> Response:
        """Answer with the backlog of all models; who asks says which of them are down."""
        consumers: list[dict[str, Any]] = []
        if self._consumers is not None:
            self._consumers.hold(_held(request.headers.get(HELD_HEADER, "")))
            consumers = await self._consumers.backlog()
        models: dict[str, dict[str, Any]] = {}
        for depth in await self._queue.depths():
            queue = queue_of(depth.queue)
            if queue is None:
                continue
            row = models.setdefault(
                queue.model,
                {"waiting": 0, "delayed": 0, "in_flight": 0, "dead": 0, "oldest_s": None},
            )
            row["waiting"] += depth.counts.get(ItemState.READY, 0)
            row["delayed"] += depth.counts.get(ItemState.DELAYED, 0)
            row["in_flight"] += depth.in_flight
            row["dead"] += depth.dead
            if depth.oldest_age_s is not None:
                row["oldest_s"] = max(row["oldest_s"] or 0.0, depth.oldest_age_s)
        now = self._now_ns()
        for model, row in models.items():
            feed = self._runner.feeds.get(model)
            row["running"] = len(feed.running) if feed is not None else 0
            row["pace"] = feed.pace.reason if feed is not None else "nothing to send"
            if self._consumers is not None and (down := self._consumers.down(model)):
                row["pace"] = down
            done = feed.finished.total(now) if feed is not None else 0
            remaining = row["waiting"] + row["delayed"] + row["in_flight"]
            row["drain_s"] = drain_estimate(remaining, done, 60 * SECOND)
            row["finished_per_s"] = round(done / 60.0, 3)
        states: dict[str, int] = {}
        for record in self._desk.open.values():
            states[record.state] = states.get(record.state, 0) + 1
        settlements = self._runner.settlements
        return json_answer(
            {
                "models": models,
                "batches": states,
                "consumers": consumers,
                "recorded": settlements.recorded,
                "problem": settlements.problem,
            }
        )


def _held(text: str) -> dict[str, str]:
    """Models and reasons from a header; what is none holds nothing."""
    try:
        told = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    items = told.items() if isinstance(told, dict) else ()
    return {model: str(reason) for model, reason in items}


__all__ = ["HELD_HEADER", "BacklogApi"]
