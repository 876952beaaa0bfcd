"""Batch work beside people on the embedded fleet: real engines, gateway and batch runner.

    python bench/batch_beside.py --embedded [--rounds 3] [--window 12] [--out FILE]

``holdfast up`` with its built-in file (llama.cpp), batches enabled. Three ways take turns, at three
shares of people's load: people alone, beside a batch that the runner paces, and beside the naive
way (as many requests at once as there are slots, sent like anybody's). A window of each is measured
in every round, so that whatever else the machine does meets all three alike; where fewer people
come, windows are longer. Between windows everything is cancelled and the engines come to rest. A
person who has no first token at the end of a window counts with the wait until then.

    spare = tokens/s of batch work alone (all slots) - tokens/s of people alone

Each window is appended to ``--out`` as it ends; windows that are there are not measured again.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, Final

import orjson

from operations_http import ask, upload
from real_fleet import MODEL, RealFleet

SHARES: Final = (0.2, 0.5, 0.8)
WAYS: Final = ("alone", "policy", "naive")
FULL: Final = "batch alone"
RAMP_S: Final = 4.0  # not counted: the runner takes half a second, answers some seconds
REST_S: Final = 1.0  # after a window: what was cancelled leaves the engines
TOKENS: Final = 16  # of every answer, a person's or an item's: shares of tokens are shares of work
LINES: Final = 5_000  # more than any window works off
WORDS: Final = 12  # of a prompt
_VOCABULARY: Final = ("river", "stone", "garden", "winter", "letter", "market", "summer", "paper")

Row = dict[str, Any]


def request_body(number: int, tokens: int, *, streamed: bool) -> dict[str, Any]:
    """A chat with a prompt like no other from its first word on, and so many tokens of answer."""
    rng = Random(number)
    words = [str(number), *(rng.choice(_VOCABULARY) for _ in range(WORDS))]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": streamed,
    }


@dataclass(slots=True)
class Seen:
    """What the clients of one window saw; times are monotonic seconds."""

    began: float
    ended: float = 0.0
    firsts: list[tuple[float, float]] = field(default_factory=list)  # asked at, waited
    answers: list[tuple[float, int]] = field(default_factory=list)  # ended at, tokens
    refused: int = 0

    def tokens(self) -> int:
        """Of the answers that ended in the window."""
        return sum(count for at, count in self.answers if self.began <= at <= self.ended)


class Clients:
    """Sends requests to the gateway and notes when first tokens and ends come."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._serial = 0

    async def person(self, seen: Seen) -> None:
        """One streamed request."""
        asked = time.monotonic()
        first: float | None = None
        try:
            async for line in self._lines(TOKENS, streamed=True):
                if line == b"":
                    seen.refused += 1
                    return
                if first is None and b'"content":"' in line and b'"content":""' not in line:
                    first = time.monotonic() - asked
                if line.startswith(b"data: [DONE]"):
                    seen.answers.append((time.monotonic(), TOKENS))
        finally:  # cancelled at the end of the window: it waited at least so long
            waited = time.monotonic() - asked if first is None else first
            seen.firsts.append((asked, waited))

    async def item(self, seen: Seen) -> None:
        """One request of the naive way, in one piece."""
        async for line in self._lines(TOKENS, streamed=False):
            if line == b"":
                await asyncio.sleep(0.5)
                return
            seen.answers.append((time.monotonic(), TOKENS))

    async def _lines(self, tokens: int, *, streamed: bool) -> Any:
        """The lines of an answer's body, or its body; one empty line where it was refused."""
        self._serial += 1
        number = time.monotonic_ns() // 1_000 * 1_000 + self._serial % 1_000
        body = orjson.dumps(request_body(number, tokens, streamed=streamed))
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                yield b""
            elif streamed:
                while line := await reader.readline():
                    if line.startswith(b"data: "):
                        yield line
            else:
                yield await reader.read() or b" "
        except (OSError, asyncio.IncompleteReadError):
            yield b""
        finally:
            writer.close()


async def people(clients: Clients, rate: float, seen: Seen, seed: int) -> None:
    """People who come at random, whatever those before them wait."""
    rng = Random(seed)
    async with asyncio.TaskGroup() as group:
        due = time.monotonic()
        while True:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(clients.person(seen))


async def loop_of(work: Callable[[], Awaitable[None]]) -> None:
    """One after the other, without end."""
    while True:
        await work()


@dataclass(slots=True)
class Stage:
    """A running fleet, and what windows need of it."""

    fleet: RealFleet
    slots: int
    file_id: str
    window_s: float

    async def window(self, way: str, rate: float, span_s: float, seed: int) -> Row:
        """Measure one way for one window."""
        clients = Clients(self.fleet.port)
        begin = time.monotonic() + RAMP_S
        of_people, of_items = Seen(begin), Seen(begin)
        tasks = [asyncio.create_task(people(clients, rate, of_people, seed))] if rate else []
        batch = ""
        if way == "policy":
            batch = (await self._call("POST", "/v1/batches", self._order()))["id"]
        elif way in {"naive", FULL}:
            tasks += [
                asyncio.create_task(loop_of(lambda: clients.item(of_items)))
                for _ in range(self.slots)
            ]
        await asyncio.sleep(begin - time.monotonic())
        before = await self._completed(batch)
        of_people.began = of_items.began = began = time.monotonic()
        await asyncio.sleep(span_s)
        after = await self._completed(batch)
        of_people.ended = of_items.ended = ended = time.monotonic()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if batch:
            await self._cancel(batch)
        await asyncio.sleep(REST_S)
        span = ended - began
        items = (after - before) * TOKENS if batch else of_items.tokens()
        return {
            "span_s": round(span, 3),
            "firsts_s": [round(w, 4) for at, w in of_people.firsts if began <= at],
            "refused": of_people.refused,
            "people_tokens_s": round(of_people.tokens() / span, 2),
            "batch_tokens_s": round(items / span, 2),
        }

    def _order(self) -> Row:
        return {
            "input_file_id": self.file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }

    async def _call(self, method: str, path: str, body: Row | None = None) -> Any:
        return await asyncio.to_thread(ask, self.fleet.url, method, path, body)

    async def _completed(self, batch: str) -> int:
        if not batch:
            return 0
        return int((await self._call("GET", f"/v1/batches/{batch}"))["request_counts"]["completed"])

    async def _cancel(self, batch: str) -> None:
        await self._call("POST", f"/v1/batches/{batch}/cancel", {})
        path = f"/v1/batches/{batch}"
        while (await self._call("GET", path))["status"] != "cancelled":  # noqa: ASYNC110 over HTTP
            await asyncio.sleep(0.2)


def write_lines(path: Path) -> None:
    """The input of the batch."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(LINES):
            line = {
                "custom_id": f"c{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": request_body(number, TOKENS, streamed=False),
            }
            file.write(json.dumps(line) + "\n")


class Record:
    """The windows that were measured, one a line of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = []
        if path.exists():
            with path.open(encoding="utf-8") as file:
                self.rows = [json.loads(line) for line in file]

    def find(self, way: str, share: float, number: int) -> Row | None:
        """The window of one way at one share in one round, if it was measured."""
        key = (way, share, number)
        fitting = (r for r in self.rows if (r["way"], r["share"], r["round"]) == key)
        return next(fitting, None)

    def add(self, row: Row) -> None:
        """Keep a window."""
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rounds(self, share: float) -> list[dict[str, Row]]:
        """The rounds of which all windows at a share were measured, by way."""
        found: list[dict[str, Row]] = []
        for number in range(1 + max((row["round"] for row in self.rows), default=-1)):
            windows = {way: self.find(way, share, number) for way in (FULL, *WAYS)}
            complete = {way: row for way, row in windows.items() if row is not None}
            if len(complete) == len(windows):
                found.append(complete)
        return found


async def prepare(fleet: RealFleet, folder: Path, slots: int, window_s: float) -> Stage:
    """Upload the input of all batches."""
    source = folder / "in.jsonl"
    await asyncio.to_thread(write_lines, source)
    file_id = (await asyncio.to_thread(upload, fleet.url, source))["id"]
    return Stage(fleet, slots, file_id, window_s)


async def measure(stage: Stage, record: Record, rounds: int) -> None:
    """Measure the windows that are missing.

    What the fleet can do at most is measured anew before each share: people's rate is a share of
    it, and the machine may have other work than an hour ago.
    """
    for number in range(rounds):
        for share in SHARES:
            for way in (FULL, *_turned(number)):
                if record.find(way, share, number) is not None:
                    continue
                full = record.find(FULL, share, number)
                rate = 0.0 if full is None else share * full["batch_tokens_s"] / TOKENS
                span_s = stage.window_s * (1.0 if full is None else SHARES[1] / share)
                seed = 1_000 * number + round(100 * share)
                row: Row = {"way": way, "share": share, "round": number}
                row |= await stage.window(way, rate, span_s, seed)
                record.add(row)
                shown = {key: value for key, value in row.items() if key != "firsts_s"}
                print(json.dumps({**shown, "firsts": len(row["firsts_s"])}), flush=True)


def _turned(number: int) -> tuple[str, ...]:
    """The ways in another order in each round."""
    by = number % len(WAYS)
    return (*WAYS[by:], *WAYS[:by])


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies; the nearest that was seen."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(record: Record) -> list[Row]:
    """One row for each share and way, over all rounds."""
    rows: list[Row] = []
    for share in SHARES:
        rounds = record.rounds(share)
        if not rounds:
            continue
        full = mean(windows[FULL]["batch_tokens_s"] for windows in rounds)
        spare = full - mean(windows["alone"]["people_tokens_s"] for windows in rounds)
        usual = _firsts(rounds, "alone")
        for way in WAYS:
            firsts = _firsts(rounds, way)
            items = mean(windows[way]["batch_tokens_s"] for windows in rounds)
            told: Row = {"people": f"{share:.0%}", "way": way, "requests": len(firsts)}
            told["refused"] = sum(windows[way]["refused"] for windows in rounds)
            for name, cut in (("p50", 0.5), ("p95", 0.95)):
                told[f"{name}_s"] = round(quantile(firsts, cut), 3)
                told[f"{name}_factor"] = round(quantile(firsts, cut) / quantile(usual, cut), 2)
            told["people_tokens_s"] = round(
                mean(windows[way]["people_tokens_s"] for windows in rounds), 1
            )
            told["batch_tokens_s"] = round(items, 1)
            told["spare_used"] = round(items / max(1.0, spare), 2)
            rows.append(told)
        rows[-1]["batch_alone_tokens_s"] = round(full, 1)
    return rows


def _firsts(rounds: Sequence[dict[str, Row]], way: str) -> list[float]:
    return [first for windows in rounds for first in windows[way]["firsts_s"]]


def run_embedded(rounds: int, window_s: float, replicas: int, slots: int, out: Path) -> None:
    """Run what is missing of the trial, and print its summary."""
    record = Record(out)

    async def trial(fleet: RealFleet, folder: Path) -> None:
        stage = await prepare(fleet, folder, replicas * slots, window_s)
        await measure(stage, record, rounds)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet = RealFleet(folder, {"batch": {"enabled": True}}, replicas=replicas)
        told = fleet.config.read_text().replace("slots: 2", f"slots: {slots}")
        fleet.config.write_text(told)
        fleet.open()
        try:
            asyncio.run(trial(fleet, folder))
        finally:
            fleet.close()
    for row in summary(record):
        print(json.dumps(row))


__all__ = ["run_embedded", "summary"]
