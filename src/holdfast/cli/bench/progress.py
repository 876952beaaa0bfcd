"""Shows how far a benchmark is, on standard error: a bar in a terminal, else a line per load."""

import sys
from types import TracebackType
from typing import Self

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from holdfast.loadtest.load_run import LoadProgress
from holdfast.loadtest.records import BenchFile
from holdfast.ui.terminal.console import stderr


class BenchProgress:
    """The progress of one benchmark, and its file as far as whole loads were held."""

    def __init__(self) -> None:
        self.file: BenchFile | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[told]}"),
                TimeElapsedColumn(),
                console=stderr(),
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("asking the server", total=1.0, told="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def progress(self, told: LoadProgress) -> None:
        """Move the bar."""
        if self._bar is None or self._task is None:
            return
        failed = f", {told.failed:,} failed" if told.failed else ""
        text = f"{told.ended:,} answers, {told.under_way:,} under way{failed}"
        self._bar.update(self._task, description=told.name, completed=told.share, told=text)

    def step(self, file: BenchFile) -> None:
        """A load was held to its end."""
        self.file = file
        step = file.steps[-1]
        what = f"refused: {step.refused}" if step.refused else "held"
        line = f"{step.name}: {len(file.of_step(len(file.steps) - 1)):,} requests, {what}"
        if self._bar is not None:
            self._bar.console.print(line)
        else:
            click.echo(line, err=True)


__all__ = ["BenchProgress"]
