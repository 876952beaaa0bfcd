"""How a replica is asked whether it is well: the one place that turns an answer into a verdict.

For now the question is the engine's own health page. It is weak evidence: a hung engine may well
answer it. Gateways' breakers catch what it misses, until canaries ask a real question here.

A probe measures two machines at once. When this process itself was late, silence says nothing about
the replica: the verdict is *unknown*. An answer that came stands all the same.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.config.fleet_file import Deployed
from holdfast.control.fetch import Answer, FetchError, fetch
from holdfast.core.messages import CanaryResult, RunCanary
from holdfast.core.types import MILLISECOND, seconds
from holdfast.engines import Dialect, dialect

LATE: Final = 50 * MILLISECOND  # of this loop: as long as a whole answer on a LAN


class LoopWatch:
    """How late this event loop runs. ``beat`` is called at a steady pace by whoever ticks."""

    __slots__ = ("_due", "_late_at", "_pace")

    def __init__(self, pace: int, now: int) -> None:
        self._pace = pace
        self._due = now + pace
        self._late_at = -LATE  # when it was last late by more than ``LATE``

    def beat(self, now: int) -> None:
        """The loop got round to its tick."""
        if now - self._due > LATE:
            self._late_at = now
        self._due = now + self._pace

    def was_late(self, since: int, now: int) -> bool:
        """Whether it was late at some time since then; a tick that is overdue counts already."""
        return self._late_at >= since or now - self._due > LATE


@dataclass(slots=True)
class Witness:
    """What gateways saw of a replica while it was probed."""

    running: int | None = None
    progress: bool | None = None


class Prober:
    """Probes replicas, at most one probe of each at a time."""

    def __init__(
        self,
        watch: LoopWatch,
        witness: Callable[[str, int], Witness],
        environment: Mapping[str, str],
    ) -> None:
        self._watch = watch
        self._witness = witness
        self._environment = environment

    async def probe(self, deployed: Deployed, action: RunCanary) -> CanaryResult:
        """Ask once; always returns a verdict within the deadline."""
        began = time.monotonic_ns()
        known = dialect(deployed.engine)
        try:
            answer = await fetch(
                deployed.url,
                _health_path(known, deployed),
                seconds(action.deadline),
                bearer=bearer(deployed, self._environment),
            )
            verdict = _read(known, answer)
        except FetchError as error:
            verdict = error.what if error.what in {"refused", "timeout"} else "fail"
        now = time.monotonic_ns()
        if verdict not in {"pass", "busy"} and self._watch.was_late(began, now):
            verdict = "unknown"
        seen = self._witness(deployed.replica.id, began) if verdict == "timeout" else Witness()
        return CanaryResult(
            deployed.replica.id,
            verdict,
            now - began,
            running=seen.running,
            progress=seen.progress,
            incarnation=action.incarnation,
        )


def bearer(deployed: Deployed, environment: Mapping[str, str]) -> str | None:
    """The engine's own token, where one is configured."""
    return environment.get(deployed.api_key_env) if deployed.api_key_env else None


def _health_path(known: Dialect, deployed: Deployed) -> str:
    if known.model_health_path is None:
        return known.health_path
    return known.model_health_path.replace("{model}", deployed.served_as)


def _read(known: Dialect, answer: Answer) -> str:
    """Backpressure is no illness, and an engine that still loads has not failed yet."""
    if answer.status == 200:
        return "pass"
    busy = answer.status == 429 or (answer.status == 503 and "retry-after" in answer.headers)
    if busy or known.says_busy(answer.status, answer.body):
        return "busy"
    return "fail"


async def poll_load(
    deployed: Deployed, deadline_s: float, environment: Mapping[str, str]
) -> tuple[int | None, int | None, float | None]:
    """What an engine says of its load: running, waiting, share of its cache. Silence is None."""
    known = dialect(deployed.engine)
    nothing = (None, None, None)
    if known.metrics_path is None:
        return nothing
    try:
        answer = await fetch(
            deployed.url, known.metrics_path, deadline_s, bearer=bearer(deployed, environment)
        )
    except FetchError:
        return nothing
    if answer.status != 200:
        return nothing
    load = known.read_load(answer.body.decode("utf-8", "replace"))
    return load.running, load.waiting, load.kv_used


__all__ = ["LATE", "LoopWatch", "Prober", "Witness", "bearer", "poll_load"]
