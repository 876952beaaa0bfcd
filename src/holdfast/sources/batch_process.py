"""Reads the backlog of batches and consumed queues from the batch process, over its unix socket.

Its rows stand beside those of SQS in the joined view: one queue per model, with what waits, what is
in flight, dead letters, the oldest item and an estimate of when it will be worked off. Batch work
waits by nature: its age and its growth are shown, and are no sign of a failure. A consumed queue
has the name that its platform has for it, so that both rows of one queue are found together.

Whoever reads also tells: which models are down by an incident, so that nothing is taken for them.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from holdfast.core.view.layers import Part, Queue, Reading

NAME: Final = "batches"
PERIOD_S: Final = 2.0
_ANSWER_S: Final = 5.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_MODELS_MAX: Final = 256  # rows and series; a fleet file has far fewer
_ASK: Final = "GET /internal/backlog HTTP/1.1\r\nhost: batch\r\nconnection: close\r\n"
_REASON_MAX: Final = 120  # characters of why a model is down: titles of incidents are shorter
_RECEIVES_LEAST: Final = 3  # below it, a platform gives messages up that would be tried again
_GAUGES: Final = (
    ("batch_items_waiting", "waiting"),
    ("batch_items_delayed", "delayed"),
    ("batch_items_in_flight", "in_flight"),
    ("batch_dead_letters", "dead"),
    ("batch_oldest_seconds", "oldest_s"),
    ("batch_drain_seconds", "drain_s"),
)


_CONSUMER_GAUGES: Final = (
    ("consumed_messages_waiting", "waiting"),
    ("consumed_messages_in_flight", "in_flight"),
    ("consumed_messages_held", "held"),
    ("consumed_dead_letters", "dead"),
    ("consumed_oldest_seconds", "oldest_s"),
    ("consumed_drain_seconds", "drain_s"),
)


class BatchSource:
    """The source of the rows of batches."""

    def __init__(self, path: Path, held: Callable[[], Mapping[str, str]] = dict[str, str]) -> None:
        self._held = held  # models that are down by an incident, and why
        self.name = NAME
        self.kind = "batch"
        self.period_s = PERIOD_S
        self._path = path
        self._last: dict[str, Any] = {}
        self._read_at: float | None = None
        self._failing_since: float | None = None

    async def read(self) -> Reading:
        """Return the backlog now; while the batch process is away, the last one with its age."""
        now = time.time()
        error = ""
        try:
            async with asyncio.timeout(_ANSWER_S):
                self._last = await self._ask()
            self._read_at, self._failing_since = now, None
        except (OSError, TimeoutError, TypeError, ValueError) as failed:
            error = f"the batch process does not answer ({type(failed).__name__})"
            self._failing_since = self._failing_since or now
        problem = str(self._last.get("problem") or "")
        if problem and not error:
            error = f"results wait to be recorded: {problem[:200]}"
            self._failing_since = self._failing_since or now
        part = Part("queues", self._read_at, error, self._failing_since, calls=1)
        return Reading(
            self.name, self.kind, now, (part,), queues=self.queues(), notes=self._notes()
        )

    def queues(self) -> tuple[Queue, ...]:
        """One row for each model with items, and one for each consumed queue."""
        rows = list((self._last.get("models") or {}).items())[:_MODELS_MAX]
        consumed = (_consumed_queue(row) for row in self._consumers())
        batches = (
            Queue(
                f"batch {model}",
                model,
                row.get("waiting"),
                row.get("in_flight"),
                row.get("delayed"),
                row.get("dead"),
                oldest_s=row.get("oldest_s"),
                drain_s=row.get("drain_s"),
                deferrable=True,
            )
            for model, row in rows
        )
        return (*batches, *consumed)

    def _consumers(self) -> list[dict[str, Any]]:
        return list(self._last.get("consumers") or ())[:_MODELS_MAX]

    def _notes(self) -> tuple[str, ...]:
        """What is wrong with consumed queues, for people."""
        notes = []
        for row in self._consumers():
            if row.get("problem"):
                notes.append(f"{row['queue']}: {row['problem']}")
            most = row.get("receives_max")
            if most is not None and most < _RECEIVES_LEAST:
                told = f"{row['queue']}: its redrive policy gives messages up after {most} receives"
                notes.append(f"{told}; set maxReceiveCount to {_RECEIVES_LEAST} or more")
        return tuple(notes)

    def gauges(self) -> dict[str, float]:
        """Gauges of each model's backlog and of batches by state, for Prometheus."""
        told: dict[str, float] = {}
        for model, row in list((self._last.get("models") or {}).items())[:_MODELS_MAX]:
            if '"' in model or "\\" in model or "\n" in model:
                continue
            for gauge, member in _GAUGES:
                if row.get(member) is not None:
                    told[f'{gauge}{{model="{model}"}}'] = row[member]
        for row in self._consumers():
            labels = f'queue="{row["queue"]}",model="{row["model"]}"'
            if "\\" in labels or "\n" in labels or labels.count('"') != 4:
                continue
            for gauge, member in _CONSUMER_GAUGES:
                if row.get(member) is not None:
                    told[f"{gauge}{{{labels}}}"] = row[member]
        for state, count in (self._last.get("batches") or {}).items():
            told[f'batches_open{{state="{state}"}}'] = count
        return told

    async def _ask(self) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        try:
            held = {model: reason[:_REASON_MAX] for model, reason in self._held().items()}
            told_held = f"x-holdfast-held: {json.dumps(held)}\r\n" if held else ""
            writer.write(f"{_ASK}{told_held}\r\n".encode())
            answer = b""
            while data := await reader.read(65_536):
                answer += data
                if len(answer) > _ANSWER_BYTES_MAX:
                    raise ValueError("the answer is too long")
        finally:
            writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise ValueError("not answered with 200")
        told = orjson.loads(body)
        if not isinstance(told, dict):
            raise TypeError("not an object")
        return told

    async def close(self) -> None:
        """Nothing is kept open."""


def _consumed_queue(row: dict[str, Any]) -> Queue:
    return Queue(
        row["queue"],
        row["model"],
        row.get("waiting"),
        row.get("in_flight"),
        row.get("delayed"),
        row.get("dead"),
        row.get("dead_letter_queue") or "",
        oldest_s=row.get("oldest_s"),
        drain_s=row.get("drain_s"),
        deferrable=row.get("priority") == "batch",
    )


__all__ = ["NAME", "BatchSource"]
