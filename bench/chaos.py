"""What a client notices when the engine that answers it is killed, stopped or out of memory.

    python bench/chaos.py [--runs 20] [--tokens 40] [--seed 0] [--idle] [--defaults] [--json]

Real engines: three llama.cpp replicas under ``holdfast up``, one core kept busy by other work. In
each run a greedy stream is asked for, and after some tokens the replica that serves it is struck:
by SIGKILL, by SIGSTOP, or by the kernel's OOM killer in a cgroup of its own. The answer must be the
one that the same request gives undisturbed, in one piece. Exit status 1 where it is not.
"""

import argparse
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from real_fleet import Answer, Groups, RealFleet, busy_core, stream, tell, until

GAP_S: Final = 3.0  # a longer silence in the middle of an answer is noticed
TOKENS: Final = 40
TOLD_S: Final = 15.0  # for control to tell, on a busy machine
STRIKE_AFTER: Final = (4, 12)  # pieces of text: early, so that much is left to go wrong
# Twenty deaths in two minutes are a crash loop to the defaults, and those wait for it to end. And
# whoever was stopped proves itself twice a second instead of every other one.
SETTINGS: Final[dict[str, Any]] = {
    "fleet": {"launch_backoff_max_s": 1.0, "health": {"canary_quarantined_s": 0.5}}
}
PROMPTS: Final = (
    "Tell me about the sea.",
    "Write two sentences about trains.",
    "What is a lighthouse?",
    "Write a short poem about rain.",
    "Write a Python function that adds two numbers.",
)
# What control calls it, in the events of the replica.
TOLD: Final = {"kill": "SIGKILL", "stop": "is stopped", "oom": "out_of_memory"}


@dataclass(slots=True)
class Run:
    """One struck stream."""

    kind: str
    replica: str
    gap_s: float  # the longest silence
    first_s: float  # until the first text
    read_s: float  # of the gap: the second engine reads the prompt and what was said
    struck_at: float = 0.0  # on the wall's clock, which control's events have
    noticed_s: float | None = None  # until control told of it
    back_s: float | None = None  # until the replica was ready again
    reasons: list[str] = field(default_factory=list)  # what control told
    problems: list[str] = field(default_factory=list)


class Chaos:
    """A fleet, and streams on it that are struck."""

    def __init__(self, fleet: RealFleet, rng: Random, tokens: int = TOKENS) -> None:
        self.fleet = fleet
        self.groups = Groups()
        self._rng = rng
        self._tokens = tokens
        self._undisturbed: dict[str, Answer] = {}

    def undisturbed(self, prompt: str) -> Answer:
        """What the same request gives when nobody is struck; asked once."""
        if prompt not in self._undisturbed:
            answer = stream(self.fleet.port, prompt, self._tokens)
            problems = flaws(answer, answer)
            if problems:
                raise RuntimeError(f"undisturbed, and yet: {', '.join(problems)}")
            self._undisturbed[prompt] = answer
        return self._undisturbed[prompt]

    def settle(self, kind: str = "") -> None:
        """Wait until all are ready: one death at a time.

        With two replicas loading beside the one that goes on, and one core of two busy, a client
        waits for a processor, whatever the fleet does. Before an OOM kill each keeper must know the
        cgroup of its engine, too, and any of them may get the stream.
        """
        count = self.fleet.count

        def everybody() -> dict[str, int]:
            ready = self.fleet.ready()
            return ready if len(ready) == count else {}

        ready = until(everybody, f"all {count} replicas are ready")
        self.groups.tidy()
        if kind == "oom":
            self.groups.cover([*ready.values()])

    def run(self, kind: str, prompt: str) -> Run:
        """One stream, struck; returns when control has told of it."""
        expected = self.undisturbed(prompt)
        self.settle(kind)
        after = self._rng.randint(*STRIKE_AFTER)
        strike = Strike(kind, after, self.fleet.replicas(), self.groups)
        answer = stream(self.fleet.port, prompt, self._tokens, strike)
        run = Run(kind, answer.replica, answer.gap_s, answer.first_s, answer.read_s)
        run.struck_at = strike.struck_at
        run.problems = flaws(answer, expected)
        if not strike.struck_at:
            run.problems.append("it ended before it was struck")
            return run
        if not answer.continued:
            run.problems.append("nobody says that it was continued")
        try:
            self._follow(run)
        finally:
            if kind == "stop":
                tell(strike.pid, signal.SIGCONT)
        return run

    def word(self, kind: str) -> str:
        """By which control tells that it knows what happened."""
        by_hand = kind == "oom" and not self.groups.possible
        return TOLD["kill" if by_hand else kind]

    def _since(self, run: Run) -> list[dict[str, Any]]:
        events = self.fleet.events(run.replica)
        return [event for event in events if event["at"] >= run.struck_at]

    def _follow(self, run: Run) -> None:
        """What control told of it."""
        word = self.word(run.kind)

        def told() -> dict[str, Any] | None:
            return next((one for one in self._since(run) if word in one["reason"]), None)

        try:
            event = until(told, f"control tells of {word!r}", TOLD_S)
        except RuntimeError as error:
            run.problems.append(str(error))
        else:
            run.noticed_s = event["at"] - run.struck_at
        run.reasons = [f"{event['what']}: {event['reason']}" for event in self._since(run)]

    def recover(self, runs: Sequence[Run]) -> None:
        """Wait until everybody is ready again, and note how long each took."""
        until(lambda: len(self.fleet.ready()) == self.fleet.count, "everybody is ready again")
        for run in runs:
            ready = (event["at"] for event in self._since(run) if event["what"] == "ready")
            run.back_s = next(ready, float("inf")) - run.struck_at


class Strike:
    """Counts pieces of text, and strikes who says them."""

    def __init__(
        self, kind: str, after: int, rows: dict[str, dict[str, Any]], groups: Groups
    ) -> None:
        self._kind, self._after, self._rows, self._groups = kind, after, rows, groups
        self.pid = 0
        self.struck_at = 0.0

    def __call__(self, answer: Answer) -> None:
        """After each chunk."""
        if self.struck_at or len(answer.texts) < self._after or answer.finishes:
            return
        row = self._rows[answer.replica]
        self.pid = int(row["pid"])
        self.struck_at = time.time()
        if self._kind == "oom":
            self._groups.kill(self.pid, row["endpoint"])
        else:
            tell(self.pid, signal.SIGKILL if self._kind == "kill" else signal.SIGSTOP)


def flaws(answer: Answer, expected: Answer) -> list[str]:
    """What is wrong with an answer, compared with the one that it should be."""
    usage, right = answer.usage or {}, expected.usage or {}
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    checks: dict[str, bool] = {
        f"error {answer.error}": bool(answer.error),
        f"status {answer.status}": answer.status != 200,
        f"finish reasons {answer.finishes}": answer.finishes != expected.finishes,
        f"{len(answer.finishes)} finish reasons": len(answer.finishes) != 1,
        "no [DONE]": not answer.done,
        f"{len(answer.ids)} ids": len(answer.ids) != 1,
        f"{answer.roles} roles": answer.roles != 1,
        f"a gap of {answer.gap_s:.1f} s": answer.gap_s > GAP_S,
        f"another text: {answer.text!r}, not {expected.text!r}": answer.text != expected.text,
        f"usage {usage}, not {right}": any(usage.get(one) != right.get(one) for one in counts),
        f"no sum of tokens: {usage}": not adds_up(usage),
    }
    return [what for what, wrong in checks.items() if wrong]


def adds_up(usage: dict[str, Any]) -> bool:
    """Whether the tokens of prompt and answer are what it says they are together."""
    asked, said = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return bool(asked and said and asked + said == usage.get("total_tokens"))


@contextmanager
def staged(settings: dict[str, Any], rng: Random, tokens: int = TOKENS) -> Iterator[Chaos]:
    """A fleet, ready; ended whatever happens."""
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as folder:
        fleet = RealFleet(Path(folder), settings)
        chaos = Chaos(fleet, rng, tokens)
        try:
            fleet.open()
            yield chaos
        finally:
            fleet.close()
            chaos.groups.tidy()


def plan(runs: int, rng: Random) -> list[tuple[str, str]]:
    """Kinds and prompts in no order: three of seven killed, the rest stopped and out of memory."""
    cycle = itertools.cycle(("kill", "stop", "oom", "kill", "stop", "oom", "kill"))
    kinds = list(itertools.islice(cycle, runs))
    rng.shuffle(kinds)
    return [(kind, PROMPTS[number % len(PROMPTS)]) for number, kind in enumerate(kinds)]


def play(chaos: Chaos, planned: Sequence[tuple[str, str]], say: Callable[[str], None]) -> list[Run]:
    """All of them, one after the other."""
    runs = []
    for number, (kind, prompt) in enumerate(planned, 1):
        run = chaos.run(kind, prompt)
        runs.append(run)
        verdict = "; ".join(run.problems) or "as if nothing had happened"
        gap = f"gap {run.gap_s:.2f} s, of it {run.read_s:.2f} s to read"
        say(f"{number:3} {kind:4} {run.replica}: {gap}; {verdict}")
    chaos.recover(runs)
    return runs


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def show(runs: Sequence[Run]) -> None:
    """The table."""
    table = Table(
        title="the longest silence in a struck stream; when it was told; when ready again"
    )
    table.add_column("what happened")
    columns = ("runs", "unnoticed", "gap p50", "p99", "max", "reading", "told max", "back p50")
    for column in columns:
        table.add_column(column, justify="right")
    for kind in TOLD:
        mine = [run for run in runs if run.kind == kind]
        if mine:
            gaps = [run.gap_s for run in mine]
            told = max(run.noticed_s or float("nan") for run in mine)
            read = quantile([run.read_s for run in mine], 0.5)
            back = quantile([run.back_s or float("nan") for run in mine], 0.5)
            times = [*(quantile(gaps, share) for share in (0.5, 0.99, 1.0)), read, told, back]
            well = sum(not run.problems for run in mine)
            table.add_row(kind, str(len(mine)), str(well), *(f"{one:.2f} s" for one in times))
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def main() -> int:
    """Do it all and print; 1 where a client noticed something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--idle", action="store_true", help="keep no core busy")
    parser.add_argument("--defaults", action="store_true", help="change nothing of the fleet file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    rng = Random(given.seed)
    settings = {} if given.defaults else SETTINGS
    with nullcontext() if given.idle else busy_core(), staged(settings, rng, given.tokens) as chaos:
        runs = play(chaos, plan(given.runs, rng), lambda line: print(line, file=sys.stderr))
    if given.json:
        print(json.dumps({"benchmark": "chaos", "runs": [asdict(run) for run in runs]}))
    else:
        show(runs)
    return int(any(run.problems for run in runs))


if __name__ == "__main__":
    sys.exit(main())
