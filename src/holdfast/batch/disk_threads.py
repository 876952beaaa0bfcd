"""Disk work in a thread that a cancelled caller sees to its end.

``asyncio.to_thread`` leaves the thread alone with its work when the caller is cancelled: a file
that it opens then is nobody's, and one that the caller closes is still being read. Work whose end
nobody needs to see (a record that is put) stays with ``to_thread``.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_disk_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking work in a thread; a caller that is cancelled meanwhile goes on when it ended.

    Its result is lost to a cancelled caller: work that opens something hands it to its owner
    itself, as in ``in_disk_thread(lambda: opened.enter_context(store.open(name)))``.
    """
    loop = asyncio.get_running_loop()
    # A future of the executor: unlike a task it is not cancelled with the caller's loop.
    ending = loop.run_in_executor(None, partial(copy_context().run, work, *args, **kwargs))
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        ending.exception()  # seen: the caller is told that it was cancelled
        raise


__all__ = ["in_disk_thread"]
