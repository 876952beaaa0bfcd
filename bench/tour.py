"""The README's tour, again and again beside a dashboard: whether it does what it says.

    python bench/tour.py [--times 10] [--steps kill,stop,hang,orders] [--browser /usr/bin/chromium]

Each time is a ``holdfast up`` of its own with the built-in file, its own ports and a scratch state
directory, until all three real replicas are ready. A dashboard is open all the time: a reader that
asks what the page asks and holds its stream of changes, or with ``--browser`` a real one without a
screen. Somebody chats about once a second, streamed. Then, by the commands that the README has:

    kill    ``kill -9`` in the middle of an answer: its reader reads on, the same words
    stop    ``kill -STOP``: out of service within a second, replaced within ten
    hang    ``holdfast chaos hang --for 20``: out of service while it hangs, and an incident says
            which replica, that it is hung, and of class runtime
    orders  status, incidents, explain, top --once, logs, drain, undrain, scale, restart
    down    ``holdfast down``: all of it ends

Nobody who chats may get an error, an answer without its end, or wait for longer than 15 s. Three
engines need two cores for themselves: beside other work requests queue, and that is told as it is.
The load of the machine at the start is in every line.

The weights are fetched as ``holdfast up`` does it; where they cannot be had it says so and ends
with status 2. Exit status 1 unless every time did all it says.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from fault_fleet import call, end
from holdfast.launchers.weights import WeightsError, fetch
from real_fleet import MODEL, PATIENCE_S, Answer, RealFleet, stream, tell, until

WAIT_MAX_S: Final = 15.0  # of somebody who chats
CHAT_EVERY_S: Final = 1.0
CHAT_TOKENS: Final = 16
LONG_TOKENS: Final = 48  # of the answer that is broken in its middle
STRUCK_AT: Final = 8  # pieces of it
OUT_MAX_S: Final = 1.0  # a stopped replica, as the README says
REPLACED_MAX_S: Final = 10.0
WELL_S: Final = 180.0  # for all replicas to be ready again
NAMED_S: Final = 15.0  # after a hang has ended, for its incident
LOOK_S: Final = 0.05
STATE_LOOK_S: Final = 0.25
COMMAND_S: Final = 120.0
PAGE_S: Final = 5.0  # the dashboard's lists of incidents and events are asked for so often
QUESTION: Final = "Tell me about the sea."
WEIGHTS: Final = "smollm2-135m"
STEPS: Final = ("kill", "stop", "hang", "orders")
_CODE: Final = re.compile(r"""['"]code['"]: ['"](\w+)['"]""")
_STRUCK: Final = re.compile(r"hang on (\S+) for")


class TourError(Exception):
    """Something did not do what the README says; the text says what."""


# --- who is there beside --------------------------------------------------------------------------


class Dashboard:
    """Asks what the web page asks: the view, its stream of changes, incidents and events."""

    def __init__(self, admin_port: int) -> None:
        self._port = admin_port
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._poll, daemon=True),
        ]
        self.changes = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * PAGE_S)

    def _listen(self) -> None:
        while not self._over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PAGE_S)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/view/stream?only=changes")
                for line in connection.getresponse():
                    self.changes += line.startswith(b"data:")
                    if self._over.is_set():
                        break
            connection.close()
            self._over.wait(1.0)  # as an EventSource: it comes again

    def _poll(self) -> None:
        base = f"http://127.0.0.1:{self._port}"
        while not self._over.is_set():
            for path in ("/view", "/incidents?stage=closed&limit=20", "/events?limit=500"):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    call(base + path)
            self._over.wait(PAGE_S)


@contextlib.contextmanager
def browser(program: str, admin: str, folder: Path) -> Iterator[None]:
    """A real browser on the dashboard, without a screen."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    options += ["--disable-background-networking", "--remote-debugging-port=0"]
    options.append(f"--user-data-dir={folder / 'browser'}")
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen([program, *options, f"{admin}/ui/"], stdout=log, stderr=log)
        try:
            yield
            if process.poll() is not None:
                raise TourError(f"the browser ended with {process.returncode}")
        finally:
            end([process])


class Chats:
    """Somebody who asks about once a second, and remembers every answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._asking: list[threading.Thread] = []
        self.answers: list[tuple[Answer, float]] = []  # and how long it took
        self._sender = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Self:
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sender.join()
        for thread in self._asking:
            thread.join()

    def _send(self) -> None:
        while not self._over.wait(CHAT_EVERY_S):
            thread = threading.Thread(target=self._ask, daemon=True)
            self._asking.append(thread)
            thread.start()

    def _ask(self) -> None:
        began = time.monotonic()
        answer = stream(self._port, QUESTION, CHAT_TOKENS)
        self.answers.append((answer, time.monotonic() - began))

    def longest_s(self) -> float:
        """The longest that anybody waited."""
        return max((took for _, took in self.answers), default=0.0)

    def problems(self) -> list[str]:
        """What those who chatted would complain of."""
        bad = Counter(flaw for answer, _ in self.answers if (flaw := flaw_of(answer)))
        found = [f"{count} of {len(self.answers)} chats: {flaw}" for flaw, count in bad.items()]
        if self.longest_s() > WAIT_MAX_S:
            found.append(f"a chat took {self.longest_s():.1f} s")
        if not self.answers:
            found.append("nobody chatted")
        return found


def flaw_of(answer: Answer) -> str:
    """What is wrong with an answer; empty for most."""
    if answer.error or answer.status != 200:
        code = _CODE.search(answer.error)  # the rest differs from request to request
        return code[1] if code else answer.error or f"status {answer.status}"
    if not answer.finishes or not answer.done:
        return "an answer without its end"
    return "" if answer.text else "an answer without a word"


# --- the tour -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Round:
    """One tour: the fleet, and what was found on the way."""

    fleet: RealFleet
    hang_s: float
    figures: dict[str, float] = field(default_factory=dict)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the README against this fleet; it must succeed."""
        where = ("--state-dir", str(self.fleet.state_dir)) if words[0] != "down" else ()
        done = self._run([*words, *where])
        if done.returncode:
            raise TourError(f"holdfast {' '.join(words)}: {done.stderr.strip()[-300:]}")
        return done

    def _run(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
            stdin=subprocess.DEVNULL,
        )

    def pid(self, replica: str) -> int:
        """As the README asks for it."""
        pid = int(self.command("status", "--pid", replica).stdout)
        if pid <= 1:  # a signal to 0 would reach ourselves
            raise TourError(f"status --pid {replica} says {pid}")
        return pid

    def well(self) -> None:
        """Wait until every replica is ready."""
        until(lambda: len(self.fleet.ready()) >= self.fleet.count, "all are ready again", WELL_S)

    # --- steps ---

    def kill(self) -> None:
        """Kill a replica in the middle of its answer: the reader gets the same words."""
        whole = stream(self.fleet.port, QUESTION, LONG_TOKENS)
        struck: list[float] = []

        def strike(answer: Answer) -> None:
            if len(answer.texts) >= STRUCK_AT and not struck:
                pid = self.fleet.ready().get(answer.replica) or self.pid(answer.replica)
                tell(pid, signal.SIGKILL)
                struck.append(time.monotonic())

        answer = stream(self.fleet.port, QUESTION, LONG_TOKENS, strike)
        if flaw := flaw_of(answer):
            raise TourError(f"kill: {flaw}")
        if not struck:
            raise TourError("kill: the answer ended before it was struck")
        if answer.text != whole.text:
            raise TourError("kill: the words are not the same")
        self.figures["kill_gap_s"] = answer.gap_s

    def stop(self) -> None:
        """Stop a replica's process: it is out of service at once, and replaced soon."""
        replica = f"{MODEL}-2"
        pid = self.pid(replica)
        began = time.monotonic()
        tell(pid, signal.SIGSTOP)

        def row() -> dict[str, Any]:
            return self.fleet.replicas().get(replica, {})

        self.figures["stop_out_s"] = self._after(began, lambda: row().get("state") != "ready")
        replaced = self._after(began, lambda: row().get("pid") not in (pid, None, 0))
        self.figures["stop_replaced_s"] = replaced
        if self.figures["stop_out_s"] > OUT_MAX_S:
            raise TourError(f"stop: ready for {self.figures['stop_out_s']:.1f} s")
        if replaced > REPLACED_MAX_S:
            raise TourError(f"stop: replaced after {replaced:.1f} s")

    def _after(self, began: float, true: Callable[[], bool]) -> float:
        until(true, "a stopped replica is taken out and replaced", 60.0)
        return time.monotonic() - began

    def hang(self) -> None:
        """Let any replica hang: it is out of service, and an incident says so."""
        earlier = {one["id"] for one in self._incidents()}
        states: dict[str, list[tuple[float, str]]] = {}
        over = threading.Event()

        def look() -> None:
            while not over.wait(STATE_LOOK_S):
                for name, row in self.fleet.replicas().items():
                    states.setdefault(name, []).append((time.monotonic(), row["state"]))

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        began, at = time.monotonic(), time.time()
        try:
            said = self.command("chaos", "hang", "--for", f"{self.hang_s:g}").stderr
            struck = _STRUCK.search(said)
            if struck is None:
                raise TourError(f"hang: did not say on which replica: {said[-300:]}")
            replica = struck[1]
            deadline = time.monotonic() + NAMED_S
            while not (named := self._named(earlier, replica)) and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        finally:
            over.set()
            looking.join()
        new = [one for one in self._incidents() if one["id"] not in earlier]
        others = sorted({name for one in new for name in one["replicas"]} - {replica})
        out = [when - began for when, state in states.get(replica, ()) if state != "ready"]
        if not named:
            told = ", ".join(f"{one['class']} {one['title']}" for one in new) or "nothing"
            raise TourError(f"hang: no incident says hung, runtime, {replica}; there is {told}")
        self.figures["hang_named_s"] = float(named["opened_at"]) - at
        if not out:
            raise TourError(f"hang: {replica} stayed ready")
        self.figures["hang_out_s"] = out[0]
        if others:
            raise TourError(f"hang: {', '.join(others)} was accused too")

    def _incidents(self) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                told: dict[str, Any] = call(f"{self.fleet.admin}/incidents?limit=200")
            except OSError:  # on a busy machine control may take its time
                if time.monotonic() > deadline:
                    raise
            else:
                return list(told["incidents"])

    def _named(self, earlier: set[str], replica: str) -> dict[str, Any] | None:
        for one in self._incidents():
            new = one["id"] not in earlier and replica in one["replicas"]
            if new and (one["class"], one["cause"]) == ("runtime", "hung"):
                return one
        return None

    def orders(self) -> None:
        """Look at the fleet and give it orders, with every command that the README has."""
        for words in (("status",), ("incidents", "--all"), ("top", "--once")):
            if not self.command(*words).stdout.strip():
                raise TourError(f"holdfast {' '.join(words)} printed nothing")
        if found := self._incidents():
            self.command("explain", found[-1]["id"])
        third = f"{MODEL}-3"
        self.command("logs", third)
        self.command("drain", third)
        until(lambda: third not in self.fleet.ready(), "it is drained")
        self.command("undrain", third)
        self.well()
        self.command("scale", MODEL, "4")
        until(lambda: len(self.fleet.ready()) == 4, "there are four", WELL_S)
        self.command("scale", MODEL, "3")
        until(lambda: len(self.fleet.ready()) == 3, "there are three", WELL_S)
        self.command("restart", max(self.fleet.ready()))
        self.well()
        json.loads(self.command("status", "--json").stdout)

    def down(self) -> None:
        """End it as the README does."""
        began = time.monotonic()
        self.command("down", "--state-dir", str(self.fleet.state_dir))
        until(lambda: self.fleet.ended, "it has ended")
        self.figures["down_s"] = time.monotonic() - began


def tour(given: argparse.Namespace, number: int) -> dict[str, Any]:
    """One whole tour on a fresh fleet; what went wrong, and the times."""
    problems: list[str] = []
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet = RealFleet(folder, {})
        walk = Round(fleet, given.hang_s)
        chats = Chats(fleet.port)
        try:
            began = time.monotonic()
            fleet.open()
            walk.figures["up_s"] = time.monotonic() - began
            page = (
                browser(given.browser, fleet.admin, folder)
                if given.browser
                else Dashboard(fleet.admin_port)
            )
            with page, chats:
                for step in given.steps:
                    problems += attempt(getattr(walk, step))
                    problems += attempt(walk.well)
            if isinstance(page, Dashboard) and not page.changes:
                problems.append("the dashboard was told no change")
            problems += attempt(walk.down)
        except (RuntimeError, TourError, OSError) as error:
            problems.append(str(error))
        finally:
            fleet.close()
    problems += chats.problems()
    figures = {key: round(value, 2) for key, value in walk.figures.items()}
    row = {"time": number, "problems": problems, "chats": len(chats.answers), "load": load}
    return row | figures | {"longest_wait_s": round(chats.longest_s(), 2)}


def attempt(step: Callable[[], None]) -> list[str]:
    """Do a step; what went wrong with it, if anything."""
    try:
        step()
    except TourError as error:
        return [str(error)]
    except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
        return [f"{step.__name__}: {error}"]
    return []


def line_of(row: dict[str, Any]) -> str:
    """One tour in a line."""
    times = ", ".join(f"{key[:-2]} {value:.1f} s" for key, value in row.items() if key[-2:] == "_s")
    verdict = "; ".join(row["problems"]) or "as the README says"
    return f"{row['time']}: {verdict} ({row['chats']} chats, load {row['load']}; {times})"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--steps", default=",".join(STEPS), help="comma-separated, in their order")
    parser.add_argument("--hang-s", type=float, default=20.0, help="seconds of the hang")
    parser.add_argument("--browser", default="", help="a Chromium; default: a reader like the page")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    given.steps = [name for name in given.steps.split(",") if name]
    if not set(given.steps) <= set(STEPS):
        parser.error(f"--steps: known are {', '.join(STEPS)}")
    if given.times < 1:
        parser.error("--times: use 1 or more")
    if given.browser and not Path(given.browser).exists():
        parser.error(f"--browser: {given.browser} does not exist; leave it out for a reader")
    return given


def main() -> int:
    """Go on the tour so many times, print, and judge."""
    given = arguments()
    try:
        fetch(WEIGHTS, lambda _have, _whole: None)
    except WeightsError as error:
        print(f"no weights, so there is no tour: {error}", file=sys.stderr)
        return 2
    rows = []
    for number in range(1, given.times + 1):
        rows.append(tour(given, number))
        print(line_of(rows[-1]), file=sys.stderr if given.json else sys.stdout, flush=True)
    good = sum(not row["problems"] for row in rows)
    if given.json:
        print(json.dumps({"benchmark": "tour", "good": good, "rows": rows}))
    else:
        print(f"{good} of {len(rows)} did what the README says")
    return int(good < len(rows))


if __name__ == "__main__":
    sys.exit(main())
