"""Ends the batch process at a named point of a commit; found through PYTHONPATH by a benchmark.

The file that ``HOLDFAST_KILL_PLAN`` names holds a point and a number: at its so manieth time at
that point the process kills itself. Other processes, and those without a plan, are left alone.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any


def arm(plan: Path) -> None:
    """Read the plan, and put its point into the store of queues that the process will open."""
    try:
        point, _, nth = plan.read_text().strip().rpartition(" ")
        plan.rename(plan.with_suffix(".taken"))
    except FileNotFoundError:
        return
    left = [int(nth)]

    def on_point(name: str) -> None:
        if name == point:
            left[0] -= 1
            if left[0] == 0:
                plan.with_suffix(".reached").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    kind = os.environ["HOLDFAST_KILL_STORE"]
    if kind == "sqlite":
        from holdfast.storage.queues.sqlite import SqliteQueue as Store  # noqa: PLC0415
    elif kind == "postgres":
        from holdfast.storage.queues.postgres import (  # type: ignore[assignment] # noqa: PLC0415
            PostgresQueue as Store,
        )
    else:
        from holdfast.storage.queues.redis import (  # type: ignore[assignment] # noqa: PLC0415
            RedisQueue as Store,
        )
    begin = Store.__init__

    def init(self: Any, *given: Any, **more: Any) -> None:
        begin(self, *given, on_point=on_point, **more)

    Store.__init__ = init  # type: ignore[method-assign]


if "HOLDFAST_KILL_PLAN" in os.environ and "batch-process" in sys.orig_argv:
    arm(Path(os.environ["HOLDFAST_KILL_PLAN"]))
