"""The output of ``holdfast up``: progress while a fleet starts, then how to use it, then changes.

Two screens with the same methods. A terminal gets bars that move; a pipe or a log gets one line for
each event, so that it reads well afterwards. No output may end a fleet: output that cannot be
written any more (a closed pipe, a terminal that hung up) is dropped; the log has it.
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

from holdfast.ui.terminal.console import SafeConsole
from holdfast.ui.terminal.fleet import Row, style_of

_STAGES: Final = {"starting": 1, "loading": 2, "warming": 3, "ready": 4}
_STEPS: Final = 4
_PERCENT_STEP: Final = 10  # of a download, between two plain lines
_IN_CACHE: Final = "in the cache, and whole"
_WHY_MAX: Final = 30  # characters beside a bar, so that it fits 80 columns


@dataclass(slots=True, frozen=True)
class UsageGuide:
    """Addresses and commands for using a fleet that runs."""

    data: str  # URL, without a path
    admin: str
    model: str
    chats: bool  # whether the model speaks the OpenAI chat API
    needs_key: bool
    log: str  # the path of the log
    pid: int | None  # of a replica that one may kill
    which: str  # options that name this fleet to other commands
    sign_in: str = ""  # a link that signs a browser in, once; "": the command that makes one


class StartupScreen(Protocol):
    """Shows the start of a fleet and later changes; one class for terminals, one for pipes."""

    def say(self, line: str) -> None:
        """Print one line at once."""

    def fetching(self, name: str, done: int, total: int) -> None:
        """Show how far the download of weights is."""

    def starting(self, rows: Sequence[Row]) -> None:
        """Show how far each replica's start is."""

    def started(self, guide: UsageGuide) -> None:
        """Show that the start is over, and how to use the fleet."""

    def changed(self, row: Row) -> None:
        """Show that a replica changed its state."""

    def close(self) -> None:
        """Stop all moving output."""


class PersistentConsole(SafeConsole):
    """A rich console that falls silent on a broken pipe instead of ending the process."""

    def on_broken_pipe(self) -> None:
        """Drop all further output."""
        self.quiet = True


def screen() -> StartupScreen:
    """The screen that suits standard output: bars on a terminal, else lines."""
    terminal = sys.stdout.isatty()
    console = PersistentConsole(highlight=False, markup=False, emoji=False)
    return TerminalScreen(console) if terminal else PlainScreen(console)


class PlainScreen:
    """Shows a start as lines of text, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._percent: dict[str, int] = {}
        self._seen: dict[str, str] = {}

    def say(self, line: str) -> None:
        """Print one line at once."""
        _survive(lambda: self._console.print(line, soft_wrap=True))

    def fetching(self, name: str, done: int, total: int) -> None:
        """Print a line for every tenth of a download."""
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
        """Print a line for each replica that reached another stage."""
        for row in rows:
            told = _stage(row)
            if self._seen.get(row["id"]) != told:
                self._seen[row["id"]] = told
                self.say(f"{row['id']} ({row.get('zone', '')}): {told}")

    def started(self, guide: UsageGuide) -> None:
        """Print how to use the fleet."""
        self.say("\n".join(guide_lines(guide)))

    def changed(self, row: Row) -> None:
        """Print the new state of a replica as one line."""
        self.say(_change(row).plain)

    def close(self) -> None:
        """Does nothing: plain output has no moving parts."""


class TerminalScreen:
    """Shows a start as progress bars, for terminals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._download: Progress | None = None
        self._loading: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def say(self, line: str) -> None:
        """Print one line, above the bars if there are any."""
        _survive(lambda: self._console.print(line, soft_wrap=True))

    def fetching(self, name: str, done: int, total: int) -> None:
        """Show a download as a bar in bytes."""
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
        """Show a bar for each replica: started, loaded, warm, ready."""
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
        """Print how to use the fleet below the bars, which stop moving."""
        self.close()
        self.say("\n".join(guide_lines(guide)))

    def changed(self, row: Row) -> None:
        """Print the new state of a replica as one line."""
        _survive(lambda: self._console.print(_change(row), soft_wrap=True))

    def close(self) -> None:
        """Stop the bars and leave them as they are."""
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
    """The usage guide as lines: addresses, a command and a program to paste, next steps."""
    which = f" {guide.which}" if guide.which else ""
    sign_in = guide.sign_in or f"holdfast sign-in{which}  # a link for a browser that gives orders"
    lines = [
        "",
        f"gateway    {guide.data}/v1",
        f"dashboard  {guide.admin}/",
        f"sign in    {sign_in}",
        f"log        {guide.log}",
    ]
    if guide.chats:
        lines += ["", "Try it:", "", *_curl(guide), "", "or in Python:", "", *_python(guide)]
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
