"""The progress of ``holdfast batch run``: a bar with an estimate at a terminal, else lines."""

import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_S: Final = 10.0  # between two lines where no terminal is


def spell_left(left_s: float | None) -> str:
    """The rest of a run in words: ``1 h 20 min``, ``40 s``, or that it is not known yet."""
    if left_s is None:
        return "not known yet"
    whole = round(left_s)
    if whole >= 3_600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


class ProgressLine:
    """Shows how far a run is."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._said_at: float | None = None
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
                BarColumn(),
                TextColumn("{task.percentage:>5.1f} %"),
                TextColumn("errors {task.fields[failed]:,}"),
                TextColumn("left {task.fields[left]}"),
                console=console,
            )
            self._task = self._bar.add_task("", total=None, failed=0, left="not known yet")
            self._bar.start()

    def show(self, done: int, failed: int, total: int, left_s: float | None) -> None:
        """Show these figures; ``left_s`` None: nobody knows yet."""
        left = spell_left(left_s)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, failed=failed, left=left)
            return
        now = self._clock()
        if self._said_at is None or now - self._said_at >= LINE_S or done >= total:
            self._said_at = now
            told = f"{done} of {total} done, {failed} errors, left: {left}"
            self._console.print(told, highlight=False)

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.stop()


__all__ = ["ProgressLine", "spell_left"]
