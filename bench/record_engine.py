"""Record how a real engine behaves when it is well, for simulations that need honest noise.

    python bench/record_engine.py [--spell 30] [--replicas 2] [--seed 1] [--only-idle] [--out FILE]

llama.cpp replicas of SmolLM2 under ``holdfast up``, asked one, four and eight at a time, each
first alone and then beside a process that keeps one core busy. What is kept are shapes, not
speeds: every time is divided by the median of its spell, so that an engine of another size may
borrow them. No word of a prompt or an answer is kept.

    first     first-token times of short prompts, and so what the machine adds to them
    gaps      between two tokens, each
    pace      mean gap of a second of one stream, in the order of time: how long a slow spell lasts
    canary    the same short question, beside whatever else runs; idle_canary with nothing beside,
              crowded_canary where strangers on this machine took what was left of its cores
    memory    resident bytes of each engine with the requests it had served by then
    lengths   tokens of answers            finishes  why they ended
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from real_fleet import Answer, RealFleet, busy_core, stream

OUT: Final = Path(__file__).resolve().parent / "recorded" / "smollm2.json"
ENGINE: Final = "llama.cpp, SmolLM2 135M, one thread for each replica"
CALLERS: Final = (1, 4, 8)
SAMPLES_MAX: Final = 1_500  # of each kind and spell; the file is read by every run
TOPICS: Final = ("the sea", "trains", "rain", "a lighthouse", "bread", "winter", "stars", "maps")
WAYS: Final = (
    "Write one sentence about {}.",
    "Tell me a short story about {}.",
    "List three facts about {}.",
    "Answer with one word: do you like {}?",
    "Explain {} to a child.",
)
LONG: Final = "The ship left the harbour at dawn and nobody on the shore knew where it went. "
CANARY: Final = "What is two plus two?"
CANARY_TOKENS: Final = 8
CANARY_EVERY_S: Final = 1.0
IDLE_EVERY_S: Final = 0.1
CROWDED: Final = 0.9  # of all cores in use; one engine and we ourselves take little over one
MEMORY_EVERY_S: Final = 2.0
PAGE: Final = 4096
ALARMS: Final = ("suspect", "quarantined", "dead", "draining", "incident opened")


@dataclass(slots=True)
class Spell:
    """One load for some time."""

    callers: int
    beside: bool  # one core is kept busy by somebody else
    answers: list[tuple[Answer, bool]] = field(default_factory=list)  # and whether it was long
    canaries: list[float] = field(default_factory=list)

    def to_plain(self, rng: Random) -> dict[str, Any]:
        """Its shapes, each relative to its median."""
        well = [one for one, _ in self.answers if one.done and not one.error]
        short = [one for one, long in self.answers if one.done and not one.error and not long]
        first = [one.first_s for one in short if one.texts]
        gaps = [late - early for one in well for early, late in _text_times(one)]
        pace = [value for one in well for value in _paces(one)]
        return {
            "callers": self.callers,
            "beside": self.beside,
            "answers": len(well),
            "errors": len(self.answers) - len(well),
            "first_s": _median(first),
            "gap_s": _median(gaps),
            "canary_s": _median(self.canaries),
            "first": _shape(first, rng),
            "gaps": _shape(gaps, rng),
            "pace": _shape(pace),
            "canary": _shape(self.canaries),
        }


def _text_times(answer: Answer) -> list[tuple[float, float]]:
    return list(pairwise(at for at, _ in answer.texts))


def _paces(answer: Answer) -> list[float]:
    """The mean gap of each whole second of a stream."""
    found: list[float] = []
    begin, count = None, 0
    for at, _ in answer.texts:
        if begin is None:
            begin = at
            continue
        count += 1
        if at - begin >= 1.0:
            found.append((at - begin) / count)
            begin, count = at, 0
    return found


def _median(values: list[float]) -> float | None:
    return round(median(values), 5) if values else None


def _shape(values: list[float], rng: Random | None = None) -> list[float]:
    if not values:
        return []
    middle = median(values)
    if len(values) > SAMPLES_MAX:
        values = rng.sample(values, SAMPLES_MAX) if rng else values[:SAMPLES_MAX]
    return [round(value / middle, 3) for value in values]


def _cores() -> tuple[int, int]:
    """Ticks of all cores so far: in use, and in all."""
    told = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(told) - told[3] - told[4], sum(told)


class Recorder:
    """Asks, and keeps what it sees."""

    def __init__(self, fleet: RealFleet, rng: Random) -> None:
        self._fleet = fleet
        self._rng = rng
        self._lock = threading.Lock()
        self._pids = fleet.ready()
        self.served: Counter[str] = Counter()
        self.memory: dict[str, list[tuple[int, int, int]]] = {name: [] for name in self._pids}
        self.lengths: list[int] = []
        self.finishes: Counter[str] = Counter()
        self.ended: set[str] = set()  # replicas whose first process is gone
        self.began = time.monotonic()

    def spell(self, callers: int, span_s: float, *, beside: bool) -> Spell:
        """One load, and canaries and looks at memory meanwhile."""
        spell = Spell(callers, beside)
        until = time.monotonic() + span_s
        with busy_core() if beside else nullcontext():
            jobs = [
                threading.Thread(target=self._call, args=(spell, until)) for _ in range(callers)
            ]
            jobs.append(threading.Thread(target=self._ask, args=(spell, until)))
            for job in jobs:
                job.start()
            while time.monotonic() < until:
                self._weigh()
                time.sleep(MEMORY_EVERY_S)
            for job in jobs:
                job.join()
        return spell

    def loads(self, span_s: float, rng: Random) -> dict[str, Any]:
        """Every load, alone and beside somebody."""
        spells = [
            self.spell(callers, span_s, beside=beside)
            for beside in (False, True)
            for callers in CALLERS
        ]
        return {
            "spell_s": span_s,
            "spells": [spell.to_plain(rng) for spell in spells],
            "memory": self.memory,
            "lengths": self.lengths[:SAMPLES_MAX],
            "finishes": dict(self.finishes),
        }

    def idle(self, span_s: float) -> tuple[list[float], list[float]]:
        """Canaries with nothing else running: in peace, and while strangers crowd the machine."""
        alone: list[float] = []
        crowded: list[float] = []
        until = time.monotonic() + span_s
        while time.monotonic() < until:
            before = _cores()
            answer = stream(self._fleet.port, CANARY, CANARY_TOKENS)
            busy, whole = (late - early for early, late in zip(before, _cores(), strict=True))
            if answer.done and answer.times:
                kept = crowded if busy > CROWDED * whole else alone
                kept.append(answer.times[-1] - answer.asked_at)
            time.sleep(IDLE_EVERY_S)
        return alone, crowded

    def _call(self, spell: Spell, until: float) -> None:
        while time.monotonic() < until:
            with self._lock:
                prompt, tokens, long = self._prompt()
            answer = stream(self._fleet.port, prompt, tokens)
            with self._lock:
                self._book(spell, answer, long=long)

    def _prompt(self) -> tuple[str, int, bool]:
        rng = self._rng
        text = rng.choice(WAYS).format(rng.choice(TOPICS))
        long = rng.random() < 0.15
        if long:
            text = LONG * rng.randint(2, 12) + text
        return text, rng.choice((16, 48, 96, 192)), long

    def _book(self, spell: Spell, answer: Answer, *, long: bool) -> None:
        spell.answers.append((answer, long))
        self.served[answer.replica] += 1
        if answer.usage:
            self.lengths.append(int(answer.usage["completion_tokens"]))
        self.finishes.update(answer.finishes)

    def _ask(self, spell: Spell, until: float) -> None:
        while time.monotonic() < until:
            answer = stream(self._fleet.port, CANARY, CANARY_TOKENS)
            if answer.done and answer.times:
                spell.canaries.append(answer.times[-1] - answer.asked_at)
            time.sleep(CANARY_EVERY_S)

    def _weigh(self) -> None:
        at = round(time.monotonic() - self.began)
        for name, pid in self._pids.items():
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (FileNotFoundError, ProcessLookupError):
                self.ended.add(name)  # told at the end: nobody was ill
                continue
            self.memory[name].append((at, pages * PAGE, self.served[name]))


def main() -> int:
    """Record, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spell", type=float, default=30.0, help="seconds of each load")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only-idle", action="store_true", help="and keep the rest of the file")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    rng = Random(given.seed)
    told: dict[str, Any] = {"engine": ENGINE, "replicas": given.replicas, "seed": given.seed}
    if given.only_idle:
        told = json.loads(given.out.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        fleet = RealFleet(Path(folder), {}, given.replicas)
        try:
            fleet.open()
            recorder = Recorder(fleet, rng)
            alone, crowded = recorder.idle(given.spell)
            told |= {"idle_canary_s": _median(alone), "idle_canary": _shape(alone)}
            told |= {"crowded_canary": [round(one / median(alone), 3) for one in crowded]}
            if not given.only_idle:
                told |= recorder.loads(given.spell, rng)
            alarms = [event for event in fleet.events() if event["what"] in ALARMS]
        finally:
            fleet.close()
    given.out.parent.mkdir(exist_ok=True)
    given.out.write_text(json.dumps(told, separators=(",", ":")) + "\n", encoding="utf-8")
    for spell in told["spells"]:
        shown = {name: value for name, value in spell.items() if not isinstance(value, list)}
        print(json.dumps(shown))
    count = (len(told["idle_canary"]), len(told["crowded_canary"]))
    print(f"idle canaries: {count[0]} in peace, {count[1]} in a crowd")
    for event in alarms:  # nobody is ill here
        print(f"{event['replica']} {event['what']}: {event['reason']}")
    print(f"replicas whose process ended meanwhile: {sorted(recorder.ended) or 'none'}")
    print(f"{given.out}: {given.out.stat().st_size / 1000:.0f} kB")
    return int(not all(spell["answers"] for spell in told["spells"]))


if __name__ == "__main__":
    sys.exit(main())
