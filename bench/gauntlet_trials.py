"""What the gauntlet does to replicas, and under which work: its faults, its pairs, its shapes."""

from dataclasses import dataclass
from typing import Any, Final

_BROKEN: Final = 8  # tokens before a stream breaks: late enough that a retry would repeat


@dataclass(slots=True, frozen=True)
class Trial:
    """A fault, and what its incident has to say."""

    fault: dict[str, Any]
    cause: str
    comparison: bool = False  # peers are compared
    failure_class: str = "runtime"


_WRONG: Final = {"kind": "wrong_output"}
_SOMETIMES: Final = {"kind": "wrong_output", "share": 0.1}
TRIALS: Final[dict[str, Trial]] = {
    "crash": Trial({"kind": "crash"}, "crashed"),
    "sigstop": Trial({"kind": "sigstop"}, "frozen"),
    "hang": Trial({"kind": "hang"}, "hung"),
    "stall": Trial({"kind": "stall", "tokens": _BROKEN}, "stalled"),
    "slow": Trial({"kind": "slow", "factor": 10.0}, "slow"),
    "drip": Trial({"kind": "drip", "interval_s": 5.0}, "dripping"),
    "cut": Trial({"kind": "cut", "tokens": _BROKEN}, "connection_lost"),
    "silent-cut": Trial({"kind": "close", "tokens": _BROKEN}, "truncated"),
    "wrong": Trial(_WRONG, "wrong_output", comparison=True),
    "garbage": Trial({"kind": "garbage"}, "degenerate_output"),
    "empty": Trial({"kind": "empty"}, "empty_output"),
    "500": Trial({"kind": "status", "code": 500}, "server_errors"),
    "500-instant": Trial({"kind": "status", "code": 500, "instant": True}, "fast_failures"),
    "503-instant": Trial({"kind": "status", "code": 503, "instant": True}, "fast_failures"),
    "oom": Trial({"kind": "oom"}, "out_of_memory"),
    # Reported apart, in no mean: right most of the time, and without the comparison of peers.
    "wrong-10": Trial(_SOMETIMES, "wrong_output", comparison=True),
    "wrong, canaries only": Trial(_WRONG, "wrong_output"),
    "wrong-10, canaries only": Trial(_SOMETIMES, "wrong_output"),
}
COUNTED: Final = list(TRIALS)[:15]  # those that the mean is of
SIXTEEN: Final = list(TRIALS)[:16]  # those that are run for peers too

# Two of four replicas at once. Every fault of the mean is in one of them; each pair is here because
# what saves users from the one fault is made harder by the other.
PAIRS: Final[dict[tuple[str, str], str]] = {
    ("crash", "wrong"): "the share of the one that is gone falls to one that lies",
    ("crash", "hang"): "retries of a clean failure land where nothing comes back",
    ("hang", "slow"): "one is silent for good, the other for so long that it looks the same",
    ("sigstop", "drip"): "nothing at all beside hardly anything: two kinds of silence",
    ("stall", "cut"): "a continued stream may break off or stop again at its second replica",
    ("silent-cut", "empty"): "both end in good order with status 200",
    ("garbage", "wrong"): "half of the pool says other things than before: no majority is left",
    ("500", "500-instant"): "retries between two that fail, one of them the fastest of the pool",
    ("503-instant", "slow"): "one looks idle since it fails at once, the other keeps what it gets",
    ("oom", "sigstop"): "one ends and is launched anew while another is neither dead nor alive",
    ("drip", "wrong"): "the liar is the faster of the two, and looks like the way out",
    ("hang", "hang"): "half of the pool is late: is it the fleet that is slow?",
}
PAIR_NAMES: Final = {"+".join(pair): pair for pair in PAIRS}


def trials_of(name: str) -> tuple[Trial, ...]:
    """The faults of a row: one, or the two of a pair."""
    return tuple(TRIALS[fault] for fault in PAIR_NAMES.get(name, (name,)))


@dataclass(slots=True, frozen=True)
class Shape:
    """The work beside the faults, and what Holdfast has to hold in it."""

    rate: float  # requests per second
    seconds: float  # counted after the onset
    warm_up_s: float  # of the same work before it
    mean_max: float  # share harmed, upper 95 % bound over seeds of the mean over faults
    stream: bool = True
    fault_max: float | None = None  # share harmed of any fault, on average over seeds
    wrong_ended_max_s: float | None = None  # from the onset to the last wrong answer
    names_judged: bool = False  # a wrong cause fails the benchmark; elsewhere it is only shown
    starts: tuple[str, ...] = ("",)
    faults: tuple[str, ...] = tuple(TRIALS)
    counted: tuple[str, ...] = tuple(COUNTED)


BUSY_RATE: Final = 40.0
WARMED_REQUESTS: Final = 200  # the pool's deadlines are learned from 100 of a length class on
# Fresh: 30 requests of the light work and no more, of which no deadline can be learned.
LIGHT_WARM_UP_S: Final = 20.0
SHAPES: Final[dict[str, Shape]] = {
    "stream": Shape(BUSY_RATE, 20.0, 10.0, 0.007, fault_max=0.025, names_judged=True),
    "unary": Shape(BUSY_RATE, 20.0, 10.0, 0.008, stream=False),
    "light": Shape(
        1.5, 60.0, LIGHT_WARM_UP_S, 0.04, wrong_ended_max_s=12.0, starts=("fresh", "warmed")
    ),
    "pair": Shape(
        BUSY_RATE, 20.0, 10.0, 0.025, faults=tuple(PAIR_NAMES), counted=tuple(PAIR_NAMES)
    ),
}

__all__ = [
    "BUSY_RATE",
    "COUNTED",
    "PAIRS",
    "PAIR_NAMES",
    "SHAPES",
    "SIXTEEN",
    "TRIALS",
    "WARMED_REQUESTS",
    "Shape",
    "Trial",
    "trials_of",
]
