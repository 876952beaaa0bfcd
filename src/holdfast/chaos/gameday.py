"""Runs a game day: injects faults by plan into a serving fleet and records what happens.

    plan ─► injected faults ─┐
    own traffic ─────────────┼─► Record: shares and states over time, requests, incidents ─► report
    status, incidents ───────┘

It samples the fleet twice a second; its own requests are real ones through the gateway, and each
answer is compared with the answer to the same question before any fault.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import orjson

from holdfast.chaos.injection import injected
from holdfast.chaos.target import ChaosError, ChaosTarget, KnownIncidents
from holdfast.config.chaos import ANY, PlanFile, StepSection, TrafficSection
from holdfast.control.fetch import FetchError, fetch

LOOK_S: Final = 0.5
IN_FLIGHT_MAX: Final = 512  # own requests; beyond it they count as not sent
REQUEST_S: Final = 60.0
_QUESTIONS: Final = tuple(f"Say the word {word}." for word in ("one", "two", "three", "four"))

Say = Callable[[str], None]


@dataclass(slots=True, frozen=True)
class FleetSample:
    """States and traffic shares of all replicas at one moment."""

    at_s: float
    replicas: dict[str, tuple[str, float]]  # state and share of each


@dataclass(slots=True, frozen=True)
class GameDayRequest:
    """One request that the game day sent itself, and how it was harmed."""

    at_s: float
    took_s: float
    harm: str  # empty: none


@dataclass(slots=True, frozen=True)
class InjectedFault:
    """One fault as it was injected, with its times, or why it could not be."""

    begun_s: float
    ended_s: float
    fault: str
    replica: str
    problem: str = ""  # why it could not be


@dataclass(slots=True)
class GameDayRecord:
    """All that was observed on a game day: samples, requests, faults, incidents."""

    plan: PlanFile
    looks: list[FleetSample] = field(default_factory=list)
    asked: list[GameDayRequest] = field(default_factory=list)
    struck: list[InjectedFault] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    began_at: float = 0.0  # seconds since 1970

    @property
    def harmed(self) -> Counter[str]:
        """Number of own requests that went wrong, by kind of harm."""
        return Counter(one.harm for one in self.asked if one.harm)

    @property
    def harmed_share(self) -> float:
        """Share of own requests that went wrong."""
        return sum(self.harmed.values()) / len(self.asked) if self.asked else 0.0

    @property
    def held(self) -> bool:
        """Whether no more requests were harmed than the plan allows and all faults ran."""
        return self.harmed_share <= self.plan.harmed_max and not any(
            one.problem for one in self.struck
        )


class GameDay:
    """Runs one plan once."""

    def __init__(self, target: ChaosTarget, gateway: str, plan: PlanFile, say: Say) -> None:
        self._target = target
        self._gateway = gateway.rstrip("/")
        self._plan = plan
        self._say = say
        self._rng = Random(plan.seed)
        self._record = GameDayRecord(plan)
        self._began = 0.0
        self._known: dict[str, str] = {}  # what each question is answered, when all is well

    async def run(self) -> GameDayRecord:
        """Run the plan to the end of its settling time; undoes every fault before returning."""
        rows = await self._target.replicas()
        model = self._plan.model or (rows[0]["model"] if rows else "")
        if not any(row["model"] == model for row in rows):
            raise ChaosError(f"no replica serves {model!r}")
        earlier = KnownIncidents(await self._target.incidents())
        traffic = self._plan.traffic
        if traffic is not None:
            await self._learn(model, traffic)
        self._began = time.monotonic()
        self._record.began_at = time.time()
        jobs = [asyncio.create_task(self._watch(earlier))]
        if traffic is not None:
            jobs.append(asyncio.create_task(self._send(model, traffic)))
        steps = [asyncio.create_task(self._step(step, model)) for step in self._plan.steps]
        try:
            await asyncio.gather(*steps)
            await asyncio.sleep(max(0.0, self._plan.length_s - self._now()))
        finally:
            for task in (*steps, *jobs):
                task.cancel()
            await asyncio.gather(*steps, *jobs, return_exceptions=True)
        await self._look(earlier)
        return self._record

    def _now(self) -> float:
        return time.monotonic() - self._began

    # --- faults ----------------------------------------------------------------------------------

    async def _step(self, step: StepSection, model: str) -> None:
        await asyncio.sleep(step.at)
        replica, begun = step.replica, self._now()
        try:
            if replica == ANY:
                replica = await self._some_ready(model)
            async with injected(self._target, step, replica):
                self._say(f"{begun:6.1f} s  {step.fault} on {replica} for {step.lasts:g} s")
                await asyncio.sleep(step.lasts)
        except ChaosError as error:
            self._say(f"{begun:6.1f} s  {step.fault} on {replica} not done: {error}")
            self._record.struck.append(
                InjectedFault(begun, self._now(), step.fault, replica, str(error))
            )
        else:
            self._say(f"{self._now():6.1f} s  {step.fault} on {replica} is over")
            self._record.struck.append(InjectedFault(begun, self._now(), step.fault, replica))

    async def _some_ready(self, model: str) -> str:
        rows = await self._target.replicas()
        ready = [row["id"] for row in rows if row["model"] == model and row["state"] == "ready"]
        if not ready:
            raise ChaosError(f"no replica of {model!r} is ready")
        return str(self._rng.choice(sorted(ready)))

    # --- looking on ------------------------------------------------------------------------------

    async def _watch(self, earlier: KnownIncidents) -> None:
        while True:
            await self._look(earlier)
            await asyncio.sleep(LOOK_S)

    async def _look(self, earlier: KnownIncidents) -> None:
        with contextlib.suppress(ChaosError):  # control may be what is hurt; the next look tells
            rows = await self._target.replicas()
            seen = {str(r["id"]): (str(r["state"]), float(r.get("share") or 0.0)) for r in rows}
            self._record.looks.append(FleetSample(self._now(), seen))
            found = earlier.news(await self._target.incidents())
            known = {one["id"] for one in self._record.incidents}
            for one in found:
                if one["id"] not in known:
                    self._say(f"{self._now():6.1f} s  {one['id']}: {one['title']}")
            self._record.incidents = found

    # --- own traffic -----------------------------------------------------------------------------

    async def _learn(self, model: str, traffic: TrafficSection) -> None:
        for question in _QUESTIONS:
            text, harm = await self._ask(model, question, traffic)
            if harm:
                raise ChaosError(f"the fleet is not well to begin with: {harm}")
            self._known[question] = text

    async def _send(self, model: str, traffic: TrafficSection) -> None:
        flying: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        try:
            while True:
                due += self._rng.expovariate(traffic.rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if len(flying) >= IN_FLIGHT_MAX:
                    self._record.asked.append(GameDayRequest(self._now(), 0.0, "not sent"))
                    continue
                question = self._rng.choice(_QUESTIONS)
                task = asyncio.create_task(self._count(model, question, traffic))
                flying.add(task)
                task.add_done_callback(flying.discard)
        finally:
            await asyncio.gather(*flying, return_exceptions=True)

    async def _count(self, model: str, question: str, traffic: TrafficSection) -> None:
        begun = self._now()
        text, harm = await self._ask(model, question, traffic)
        took = self._now() - begun
        if not harm and text != self._known[question]:
            harm = "wrong text"
        elif not harm and took > traffic.late:
            harm = "late"
        self._record.asked.append(GameDayRequest(begun, took, harm))

    async def _ask(self, model: str, question: str, traffic: TrafficSection) -> tuple[str, str]:
        """The answer's text, and what was wrong with getting it."""
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": traffic.tokens,
            "temperature": 0,
            "stream": traffic.stream,
        }
        try:
            answer = await fetch(
                self._gateway, "/v1/chat/completions", REQUEST_S, body=orjson.dumps(body)
            )
        except FetchError as error:
            return "", error.what
        if answer.status != 200:
            return "", f"status {answer.status}"
        return _read_stream(answer.body) if traffic.stream else _read_whole(answer.body)


def _read_stream(body: bytes) -> tuple[str, str]:
    """The text of a stream, and what is wrong with it."""
    text, finished = "", False
    for line in body.split(b"\n"):
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        try:
            event = orjson.loads(data)
            if "error" in event:
                return text, "error event"
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finished = finished or bool(choice.get("finish_reason"))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return text, "malformed"
    return text, "" if finished else "no finish"


def _read_whole(body: bytes) -> tuple[str, str]:
    """The text of an answer in one piece, and what is wrong with it."""
    try:
        (choice,) = orjson.loads(body)["choices"]
        text, finished = choice["message"].get("content") or "", choice.get("finish_reason")
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return "", "malformed"
    return text, "" if finished else "no finish"


__all__ = ["FleetSample", "GameDay", "GameDayRecord", "GameDayRequest", "InjectedFault"]
