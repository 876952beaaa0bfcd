"""Runs calls that may never return (a driver, a user's check) in a thread of their own.

Threads of a pool are waited for when the process ends, and a pool whose threads all hang serves no
other caller. So such a call has a thread of its own, which ends with the process. The caller must
bound how many run at a time.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def detached(call: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a daemon thread of its own and return its result, or raise its error.

    A caller that is cancelled leaves the thread running, and the end of the process does not wait
    for it. The number of threads is not bounded here.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if answer.done():  # nobody waits for it any more
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def work() -> None:
        value, failure = None, None
        try:
            value = call(*arguments)
        except Exception as error:  # noqa: BLE001 it is raised where somebody waits for it
            failure = error
        except BaseException as error:  # noqa: BLE001 an exit of foreign code must not be ours
            failure = RuntimeError(f"it raised {type(error).__name__}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, name="detached", daemon=True).start()
    return await answer


__all__ = ["detached"]
