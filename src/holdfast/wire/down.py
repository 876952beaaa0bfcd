"""``holdfast down``: stops a fleet that another process runs."""

import os
import select
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from holdfast.wire.state_dir import StateDirError, holder

_WAIT_S: Final = 1.0  # between two remarks on how long an end takes


class NotRunningError(StateDirError):
    """No fleet runs with this state directory, so there is nothing to stop."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(f"no fleet runs with {state_dir}; 'holdfast up' starts one")


def down(state_dir: Path, waiting: Callable[[int, float], None], *, at_once: bool) -> int:
    """Stop the fleet of a state directory and wait for its end; returns its pid.

    Raises ``NotRunningError`` if none runs. ``at_once`` skips draining.

    The pid is read from the lock, and again once a descriptor holds the process: a pid that was
    reused meanwhile is never signalled.
    """
    pid = holder(state_dir)
    if not pid:
        raise NotRunningError(state_dir)
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise NotRunningError(state_dir) from error
    try:
        if holder(state_dir) != pid:
            raise NotRunningError(state_dir)
        _signal(descriptor, pid, (signal.SIGTERM, signal.SIGINT) if at_once else (signal.SIGTERM,))
        ending = select.poll()
        ending.register(descriptor, select.POLLIN)
        waited = 0.0
        waiting(pid, waited)
        while not ending.poll(_WAIT_S * 1000):
            waited += _WAIT_S
            waiting(pid, waited)
    finally:
        os.close(descriptor)
    return pid


def _signal(descriptor: int, pid: int, signals: Sequence[signal.Signals]) -> None:
    """Send signals to a process. Haste takes two different ones: equal ones may arrive as one."""
    try:
        for number in signals:
            signal.pidfd_send_signal(descriptor, number)
    except PermissionError as error:
        raise StateDirError(f"pid {pid} belongs to somebody else and cannot be stopped") from error
    except ProcessLookupError:
        return  # it has ended by itself, which is what was wanted


__all__ = ["NotRunningError", "down"]
