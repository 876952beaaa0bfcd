"""What ``holdfast up`` shows: bars while a fleet starts, then how to use it, then what changes.

Two screens with the same methods. A terminal gets bars that move; a pipe or a log gets one line for
each thing that happened, so that it reads well afterwards. Nothing here may end a fleet: output
that nobody takes any more (a closed pipe, a terminal that hung up) is given up; the log has it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from holdfast.ui.terminal.fleet import Row, style_of

_STAGES: Final = {"starting": 1, "loading": 2, "warming": 3, "ready": 4}
_STEPS: Final = 4
_PERCENT_STEP: Final = 10  # of a download, between two plain lines
_IN_CACHE: Final = "in the cache, and whole"
_WHY_MAX: Final = 30  # characters beside a bar, so that it fits 80 columns


@dataclass(slots=True, frozen=True)
class UsageGuide:
    """How to use a fleet that runs."""

    data: str  # URL, without a path
    admin: str
    model: str
    chats: bool  # whether the model speaks the OpenAI chat API
    needs_key: bool
    log: str  # the path of the log
    pid: int | None  # of a replica that one may kill
    which: str  # options that name this fleet to other commands


class StartupScreen(Protocol):
    """Who shows it."""

    def say(self, line: str) -> None:
        """One line, at once."""

    def fetching(self, name: str, done: int, total: int) -> None:
        """How far the download of weights is."""

    def starting(self, rows: Sequence[Row]) -> None:
        """The replicas on their way."""

    def started(self, guide: UsageGuide) -> None:
        """The start is over: how to go on."""

    def changed(self, row: Row) -> None:
        """A replica is in another state now."""

    def close(self) -> None:
        """Take down what moves."""


class PersistentConsole(Console):
    """rich ends the process when nobody reads its output any more; a fleet has other readers."""

    def on_broken_pipe(self) -> None:
        """Say nothing from now on."""
        self.quiet = True


def screen() -> StartupScreen:
    """The one that suits standard output."""
    terminal = sys.stdout.isatty()
    console = PersistentConsole(highlight=False, markup=False, emoji=False)
    return TerminalScreen(console) if terminal else PlainScreen(console)


class PlainScreen:
    """Lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._percent: dict[str, int] = {}
        self._seen: dict[str, str] = {}

    def say(self, line: str) -> None:
        """One line, at once."""
        _survive(lambda: self._console.print(line, soft_wrap=True))

    def fetching(self, name: str, done: int, total: int) -> None:
        """A line for every tenth of it."""
        if name not in self._percent and done >= total:
            self._percent[name] = 100
            self.say(f"weights {name}: {_IN_CACHE}")
            return
        percent = 100 * done // total if total else 0
        step = percent - percent % _PERCENT_STEP
        if self._percent.get(name, -1) < step:
            self._percent[name] = step
            self.say(f"weights {name}: {percent} % of {total / 1e6:.0f} MB")

    def starting(self, rows: Sequence[Row]) -> None:
        """A line for each replica that got further."""
        for row in rows:
            told = _stage(row)
            if self._seen.get(row["id"]) != told:
                self._seen[row["id"]] = told
                self.say(f"{row['id']} ({row.get('zone', '')}): {told}")

    def started(self, guide: UsageGuide) -> None:
        """How to go on."""
        self.say("\n".join(guide_lines(guide)))

    def changed(self, row: Row) -> None:
        """One line."""
        self.say(_change(row).plain)

    def close(self) -> None:
        """Nothing moves here."""


class TerminalScreen:
    """Bars."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._download: Progress | None = None
        self._loading: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def say(self, line: str) -> None:
        """One line, above the bars where there are any."""
        _survive(lambda: self._console.print(line, soft_wrap=True))

    def fetching(self, name: str, done: int, total: int) -> None:
        """A bar in bytes."""
        if self._download is None:
            if done >= total:
                self.say(f"weights {name}: {_IN_CACHE}")
                return
            columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn())
            self._download = Progress(*columns, TransferSpeedColumn(), console=self._console)
            _survive(self._download.start)
        if name not in self._tasks:
            self._tasks[name] = self._download.add_task(f"weights {name}", total=total)
        self._download.update(self._tasks[name], completed=done, total=total)
        if done >= total:
            _survive(self._download.stop)
            self._download = None
            del self._tasks[name]

    def starting(self, rows: Sequence[Row]) -> None:
        """A bar for each replica: started, loaded, warm, ready."""
        if self._loading is None:
            self._loading = Progress(
                SpinnerColumn(finished_text="✓"),
                TextColumn("{task.description}"),
                BarColumn(16),
                TextColumn("{task.fields[stage]}"),
                TimeElapsedColumn(),
                console=self._console,
            )
            _survive(self._loading.start)
        for row in rows:
            stage = Text(_shortened(_stage(row)), style_of(row))
            if row["id"] not in self._tasks:
                who = f"{row['id']} {row.get('zone', '')}".rstrip()
                self._tasks[row["id"]] = self._loading.add_task(who, total=_STEPS, stage=stage)
            done = _STAGES.get(str(row.get("state")), 0)
            self._loading.update(self._tasks[row["id"]], completed=done, stage=stage)

    def started(self, guide: UsageGuide) -> None:
        """How to go on, below the bars as they were last."""
        self.close()
        self.say("\n".join(guide_lines(guide)))

    def changed(self, row: Row) -> None:
        """One line."""
        _survive(lambda: self._console.print(_change(row), soft_wrap=True))

    def close(self) -> None:
        """Leave the bars as they are."""
        for bars in (self._download, self._loading):
            if bars is not None:
                _survive(bars.stop)
        self._download = self._loading = None
        self._tasks.clear()


def _survive(show: Callable[[], Any]) -> bool:
    """Whether somebody took it."""
    try:
        show()
    except OSError:  # the pipe was closed, or the terminal hung up: the fleet goes on
        return False
    return True


def _stage(row: Row) -> str:
    """Where it is on its way, with the engine's own word for it or the reason of a halt."""
    state = str(row.get("state", ""))
    if state == "ready":
        return state
    more = row.get("phase") if state in {"starting", "loading"} else row.get("reason")
    return f"{state}: {more}" if more else state


def _shortened(text: str) -> str:
    return text if len(text) <= _WHY_MAX else f"{text[: _WHY_MAX - 1]}…"


def _change(row: Row) -> Text:
    now = datetime.now().astimezone().strftime("%H:%M:%S")
    text = Text(f"{now}  {row['id']}  ")
    text.append(str(row.get("state", "")), style_of(row))
    if row.get("reason"):
        text.append(f": {row['reason']}")
    return text


# --- how to use it --------------------------------------------------------------------------------


def guide_lines(guide: UsageGuide) -> list[str]:
    """Addresses, a command and a program to paste, and what to try next."""
    lines = [
        "",
        f"gateway    {guide.data}/v1",
        f"dashboard  {guide.admin}/status",
        f"log        {guide.log}",
    ]
    if guide.chats:
        lines += ["", "Try it:", "", *_curl(guide), "", "or in Python:", "", *_python(guide)]
    which = f" {guide.which}" if guide.which else ""
    victim = str(guide.pid) if guide.pid else "PID"
    return [
        *lines,
        "",
        "Then, in another terminal:",
        "",
        f"  holdfast status{which}",
        f"  kill -9 {victim}  # a replica, in the middle of an answer: the answer goes on",
        f"  holdfast down{which}  # or Ctrl-C here",
        "",
    ]


def _curl(guide: UsageGuide) -> list[str]:
    key = ["  -H 'authorization: Bearer YOUR_KEY' \\"] if guide.needs_key else []
    asked = f'{{"model": "{guide.model}", "stream": true'
    return [
        f"curl -N {guide.data}/v1/chat/completions \\",
        "  -H 'content-type: application/json' \\",
        *key,
        f"  -d '{asked},",
        '  "messages": [{"role": "user", "content": "Tell me about the sea."}]}\'',
    ]


def _python(guide: UsageGuide) -> list[str]:
    key = "YOUR_KEY" if guide.needs_key else "none"
    return [
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{guide.data}/v1", api_key="{key}")',
        "for chunk in client.chat.completions.create(",
        f'    model="{guide.model}", stream=True,',
        '    messages=[{"role": "user", "content": "Tell me about the sea."}],',
        "):",
        '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
    ]


__all__ = [
    "PersistentConsole",
    "PlainScreen",
    "StartupScreen",
    "TerminalScreen",
    "UsageGuide",
    "guide_lines",
    "screen",
]
