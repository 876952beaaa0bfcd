"""Runs what-if simulations in a process of their own, one at a time, with a time limit.

Control watches replicas in one loop: a simulation in it, or in a thread beside it, would take its
turns away. So each runs in a small process at the lowest priority, which is killed when its time is
up. A pool that waits for work was rejected: it would hold 60 MB for a page that is opened twice a
week.
"""

import asyncio
import contextlib
import os
import sys
import time
from typing import Any, Final

import orjson

from holdfast.sim.scenario import Scenario, prepare
from holdfast.twin.arms import Arm, differences, run_arms

LIMIT_S: Final = 30.0  # as long as somebody looks at a page that says "wait"
SEED: Final = 1
_ANSWER_BYTES_MAX: Final = 4 << 20
_MODULE: Final = "holdfast.ui.web.rehearsal"


class RehearsalBusyError(Exception):
    """A what-if simulation was refused because another one runs."""

    def __init__(self) -> None:
        super().__init__("another what-if is being simulated; try again in a moment")


class RehearsalError(Exception):
    """A what-if simulation failed or ran out of time."""


class RehearsalRunner:
    """Runs what-if simulations in child processes, one at a time."""

    def __init__(self, limit_s: float | None = None, module: str = _MODULE) -> None:
        self._limit_s = LIMIT_S if limit_s is None else limit_s
        self._module = module  # what is run with python -m
        self._running = False

    async def ask(self, question: bytes) -> bytes:
        """Hand a question to a child process and return what it writes; one at a time."""
        if self._running:
            raise RehearsalBusyError
        self._running = True
        try:
            return await self._asked(question)
        finally:
            self._running = False

    async def run(self, now: Scenario, then: Scenario, seeds: int = 1) -> dict[str, Any]:
        """Simulate both scenarios; returns their results under "now" and "then".

        The results are those of the first seed; "differences" are over all seeds.
        """
        began = time.monotonic()
        question = [one.model_dump_json(by_alias=True) for one in (now, then)]
        asked = {"scenarios": question, "seeds": seeds}
        told = orjson.loads(await self.ask(orjson.dumps(asked)))
        return {
            "now": told["accounts"][0],
            "then": told["accounts"][1],
            "differences": told["differences"],
            "duration_s": then.duration,
            "took_s": round(time.monotonic() - began, 3),
        }

    async def _asked(self, question: bytes) -> bytes:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self._limit_s):
                told, _ = await child.communicate(question)
        except TimeoutError as error:
            limit = f"{self._limit_s:g} s"
            raise RehearsalError(
                f"the simulation was not done after {limit}: this machine has other work, or it is "
                "too much; ask about less traffic or fewer runs"
            ) from error
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # it ended just now
                    child.kill()
                await child.wait()
        if child.returncode != 0 or len(told) > _ANSWER_BYTES_MAX:
            raise RehearsalError("the simulation failed; 'holdfast simulate' would say why")
        return told


def rehearse(question: bytes) -> bytes:
    """In the child process: run both scenarios under the same seeds; their results as JSON."""
    asked = orjson.loads(question)
    arms = []
    for text in asked["scenarios"]:
        (name, setup), *_ = prepare(Scenario.model_validate_json(text), SEED).variants
        arms.append(Arm(name, setup))
    seeds = range(SEED, SEED + int(asked["seeds"]))
    ran = run_arms(arms, list(seeds), jobs=1, diagnosis=False)
    told = {
        "accounts": [outcome.runs[0] for outcome in ran],
        "differences": [one.to_dict() for one in differences(*ran)] if len(ran) == 2 else [],
    }
    return orjson.dumps(told)


if __name__ == "__main__":
    os.nice(19)
    sys.stdout.buffer.write(rehearse(sys.stdin.buffer.read()))


__all__ = ["RehearsalBusyError", "RehearsalError", "RehearsalRunner", "rehearse"]
