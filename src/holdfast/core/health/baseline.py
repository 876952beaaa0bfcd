"""Judges whether a canary was slow, and how many canaries their price allows.

The question is always the same, so only the environment can change how long the answer takes: a
throttled GPU, a noisy neighbour, a link that fell back, or load. Load is ruled out by comparing
only with samples of similar concurrency, and a slowdown of all replicas by comparing with the
peers' present latencies. What is left is this replica's own.

The reference is the lower of two medians, of the first samples and of the last. With the first
alone a cold start would excuse everything after it; the last alone would follow a slow decay and
call it normal.

Rejected: a deadline for canaries. It must be wide enough for the busiest hour, so at any other
hour it misses a replica that became three times as slow. Rejected: standard deviations. A handful
of samples does not know its own, and latencies are not normal. Rejected: stretching the period by
the present rate of tokens. Each moment without a request takes the stretching back, and a replica
that is used a tenth of the time then pays a quarter of its tokens for canaries.
"""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Final

from holdfast.core.canary import CanaryConfig
from holdfast.core.stats import RateWindow
from holdfast.core.types import MILLISECOND, SECOND, Decision, nanos, seconds

# --- in good time ---------------------------------------------------------------------------------

_VERSION: Final = 1  # of what ``export`` writes
_SAMPLES_MAX: Final = 64  # first and last ones each: a median of 64 is steady
_BUCKETS_MAX: Final = 16  # of concurrency, each twice the one before: up to 32 thousand requests
_PRESENT: Final = 3  # canaries: the latest, less one outlier
_PEERS_FACTOR: Final = 1.5  # slower than its peers by so much, or it is everybody's trouble
_LONE_FACTOR: Final = 4.0  # of its peers' canaries at work, for one that has nothing else to do

_IN_TIME: Final = Decision(True, "in good time")
_TOO_FEW: Final = Decision(True, "too few samples under such load to tell")


class UsualLatency:
    """Samples of one replica's canary latency under like load; their median is what is usual.

    It keeps the first 64 and the last 64 (ns). Only canaries in good time may be added. The fleet
    judges by it whether a canary is slow, and diagnosis by how much.
    """

    __slots__ = ("first", "last")

    def __init__(self, first: Iterable[int] = (), last: Iterable[int] = ()) -> None:
        self.first = list(first)
        self.last: deque[int] = deque(last, maxlen=_SAMPLES_MAX)

    def __len__(self) -> int:
        return len(self.last)

    def add(self, latency: int) -> None:
        """Add the latency of one canary that was in good time to the samples."""
        if len(self.first) < _SAMPLES_MAX:
            self.first.append(latency)
        self.last.append(latency)

    def median(self) -> int:
        """The lower of the medians of the first and of the last samples; needs a sample."""
        return min(_median(self.first), _median(self.last))


class LatencyBaseline:
    """Canary latencies of one replica by load; judges whether a new one is slow.

    Kept per process life: a relaunched replica gets a new one.
    """

    __slots__ = (
        "_best",
        "_buckets",
        "_factor",
        "_floor",
        "_median",
        "_present",
        "_question",
        "_samples_min",
    )

    def __init__(self, config: CanaryConfig) -> None:
        self._factor = config.slow_factor
        self._floor = nanos(config.slow_floor_s)
        self._samples_min = config.samples_min
        self._question = config.question
        self._buckets: dict[int, UsualLatency] = {}
        self._present: deque[int] = deque(maxlen=_PRESENT)
        self._best: int | None = None  # its quickest so far, under any load
        self._median: int | None = None  # of the present ones; None = to be computed

    def judge(self, latency: int, running: int | None, peers_median: int | None) -> Decision:
        """Decide whether a canary was in good time (true) or slow, with the reason.

        Also records it. True where too little is known. ``running`` counts the users' requests
        beside it; ``peers_median`` is the median of the peers' ``median()``. Does not learn it as
        usual: see ``take``.
        """
        self.saw(latency)
        samples = self._buckets.get(_bucket(running))
        if samples is None or len(samples) < self._samples_min:
            return self._beside_peers(latency, running, peers_median)
        own = samples.median()
        if latency <= self._factor * own or latency <= own + self._floor:
            return _IN_TIME
        what = f"{seconds(latency):.3f} s where {seconds(own):.3f} s is usual under such load"
        if peers_median is None:
            return Decision(False, f"{what}; no peers to compare with")
        peers = f"peers take {seconds(peers_median):.3f} s"
        if latency <= _PEERS_FACTOR * peers_median:
            return Decision(True, f"{what}, but {peers}")
        return Decision(False, f"{what}; {peers}")

    def _beside_peers(
        self, latency: int, running: int | None, peers_median: int | None
    ) -> Decision:
        """Without a baseline of its own: it was as quick as its peers, and idle it is not now.

        A replica that serves all the time has no idle canary to compare with, until something is
        so wrong with it that routing sends it nothing.
        """
        best = self._best
        if running or peers_median is None or best is None or best > 2 * peers_median:
            return _TOO_FEW
        if latency <= _LONE_FACTOR * peers_median or latency <= peers_median + self._floor:
            return _TOO_FEW
        told = f"{seconds(latency):.3f} s with nothing beside it"
        return Decision(False, f"{told}; peers take {seconds(peers_median):.3f} s at work")

    def saw(self, latency: int) -> None:
        """Record a canary's latency for ``median`` only, without judging or learning it."""
        self._present.append(latency)
        self._median = None
        if self._best is None or latency < self._best:
            self._best = latency

    def take(self, latency: int, running: int | None) -> None:
        """Learn a latency as usual at this load; call it only for a canary in good time."""
        self._buckets.setdefault(_bucket(running), UsualLatency()).add(latency)

    def median(self) -> int | None:
        """Median latency (ns) of the last three canaries, slow ones too; ``None`` before any."""
        if self._median is None and self._present:
            self._median = _median(self._present)  # every view of the fleet asks for it
        return self._median

    def export(self) -> dict[str, object]:
        """Return the baseline as JSON-ready data, for ``restore``; writes nothing."""
        return {
            "version": _VERSION,
            "question": self._question,
            "present": list(self._present),
            "buckets": [
                [bucket, samples.first, list(samples.last)]
                for bucket, samples in sorted(self._buckets.items())
            ],
        }

    @classmethod
    def restore(cls, config: CanaryConfig, data: object) -> "LatencyBaseline":
        """Build a baseline from what ``export`` returned; empty if the question has changed.

        Anything else raises ``ValueError``.
        """
        baseline = cls(config)
        names = {"version", "question", "present", "buckets"}
        if not isinstance(data, dict) or data.keys() != names or data["version"] != _VERSION:
            raise ValueError(f"a baseline of version {_VERSION} is needed")
        present = _durations(data["present"])
        buckets = [_read_bucket(entry) for entry in _entries(data["buckets"])]
        if data["question"] == baseline._question:
            baseline._present.extend(present)
            baseline._buckets.update(buckets)
        return baseline


def _median(samples: Iterable[int]) -> int:
    """The middle one, of an even number the lower. There must be a sample."""
    ordered = sorted(samples)
    return ordered[(len(ordered) - 1) // 2]


def _bucket(running: int | None) -> int:
    """Like load: none; one; two and three; four to seven; and so on."""
    return min(max(running or 0, 0).bit_length(), _BUCKETS_MAX - 1)


def _entries(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError("a baseline needs a list here")  # noqa: TRY004 - bad data, no bug
    return data


def _durations(data: object) -> list[int]:
    found = _entries(data)[-_SAMPLES_MAX:]
    if not all(type(each) is int and each >= 0 for each in found):
        raise ValueError("a baseline needs whole nanoseconds here")
    return found


def _read_bucket(entry: object) -> tuple[int, UsualLatency]:
    fields = _entries(entry)
    if len(fields) != 3 or type(fields[0]) is not int or not 0 <= fields[0] < _BUCKETS_MAX:
        raise ValueError("a baseline needs a bucket of load and its samples here")
    first, last = _durations(fields[1]), _durations(fields[2])
    if not first or not last:
        raise ValueError("a baseline needs samples in each bucket")
    return fields[0], UsualLatency(first, last)


# --- how often ------------------------------------------------------------------------------------

_WINDOW_S: Final = 600.0  # of the share that people are shown
_WINDOW_BUCKETS: Final = 20
_SAVED_MAX: Final = 12.0  # canaries: at the usual pace they last for the first minute of a peak
_ADMITTED: Final = 4.0  # canaries: agreement with peers, and most of a baseline of latency
_OWED_MAX: Final = 2.0  # canaries: more would leave it unwatched just after there was a doubt
_PLANNED: Final = 0.85  # of the share; the rest is for canaries that doubt asks for
_OFTENER: Final = 5  # times as often as when they are due, at most, and no more than one a second
_APART: Final = 10 * MILLISECOND  # between two of a whole fleet: control has time for so many
_PRICED_MIN: Final = 3  # right answers of a model, before it is known what one takes


class CanaryBudget:
    """Limits charged canaries on one replica to a share of the tokens that its users consume.

    Users' tokens earn canaries and each charged one spends one; a few can be saved or owed. It
    sends nothing.
    """

    __slots__ = (
        *("_charged_at", "_cost", "_earning", "_saved", "_served", "_spent"),
        *("_stretch_max", "served_tokens", "spent_tokens"),
    )

    def __init__(self, config: CanaryConfig) -> None:
        self._earning = _PLANNED * config.share_max
        self._stretch_max = nanos(config.stretch_max_s)
        self._cost = config.tokens  # of one canary: the last one's, once an engine has told
        self._spent = RateWindow(_WINDOW_S, _WINDOW_BUCKETS)
        self._served = RateWindow(_WINDOW_S, _WINDOW_BUCKETS)
        self.spent_tokens = self.served_tokens = 0  # since it joined
        self._charged_at: int | None = None
        self.renew()

    def renew(self) -> None:
        """Set the saved canaries to four, after the replica was admitted."""
        self._saved = _ADMITTED  # in canaries

    def spent(self, tokens: int, now: int, *, charged: bool) -> None:
        """Count one canary of so many tokens, prompt and answer; 0 = the engine did not say.

        ``charged``: it took a slot that users needed, or money, and spends what was earned.
        """
        if tokens > 0:
            self._cost = tokens
        self._spent.add(now, self._cost)
        self.spent_tokens += self._cost
        if charged:
            self._charged_at = now
            self._saved = max(-_OWED_MAX, self._saved - 1.0)

    def served(self, tokens: int, now: int, *, earns: bool = True) -> None:
        """Credit the tokens, prompts and answers, that users got since the last call.

        Without ``earns`` they are only counted: they were served while canaries cost nothing.
        """
        if tokens > 0:
            self._served.add(now, tokens)
            self.served_tokens += tokens
            earned = self._earning * tokens / self._cost if earns else 0.0
            self._saved = min(self._saved + earned, _SAVED_MAX)

    def affords(self, now: int, *, doubted: bool = False) -> bool:
        """Whether a canary that is charged may be sent now; if ``doubted``, also on a bounded debt.

        Also true if the last charged one is ``stretch_max_s`` ago. Spends nothing.
        """
        if self._saved >= (1.0 - _OWED_MAX if doubted else 1.0):
            return True
        return self._charged_at is None or now - self._charged_at >= self._stretch_max

    def share(self, now: int) -> float | None:
        """Canaries' share of all tokens of the last ten minutes; ``None`` without any token."""
        spent = self._spent.total(now)
        total = spent + self._served.total(now)
        return spent / total if total else None


class CanaryPace:
    """How often extra canaries may be asked, between those that are due, by what they take.

    What one takes is learned for the model, over all its replicas, and is the lower of what the
    first and the last took: a replica that becomes slow is not asked less. The models of one
    server share its slots.
    """

    __slots__ = ("_least", "_models", "_replicas", "_usual")

    def __init__(self, period: int) -> None:
        self._least = max(SECOND, period // _OFTENER)  # period: ns between two that are due
        self._models: dict[str, Counter[str]] = {}  # by server: its models
        self._replicas: Counter[str] = Counter()  # by model
        self._usual: dict[str, UsualLatency] = {}  # by model

    def join(self, server: str, model: str) -> None:
        """Add one (replica, model) at this server."""
        self._models.setdefault(server, Counter())[model] += 1
        self._replicas[model] += 1

    def leave(self, server: str, model: str) -> None:
        """Remove one that joined; what a model's canaries take goes with its last replica."""
        self._models[server][model] -= 1
        self._models[server] += Counter()  # without those at zero
        if not self._models[server]:
            del self._models[server]
        self._replicas[model] -= 1
        if not self._replicas[model]:
            del self._replicas[model]
            self._usual.pop(model, None)

    def saw(self, model: str, latency: int) -> None:
        """Learn what one canary took (ns) that was right and in good time."""
        self._usual.setdefault(model, UsualLatency()).add(latency)

    def between(self, server: str, slots: int, share: float, rest: int) -> int | None:
        """Return the ns until an extra canary, where the next is due in ``rest``; ``None``: no.

        Extra ones divide that time evenly, and all of a server's take ``share`` of its slots'
        time at the most. ``None`` also while it is not known what one takes.
        """
        took = 0
        for model, count in self._models[server].items():
            usual = self._usual.get(model)
            if usual is None or len(usual) < _PRICED_MIN:
                return None
            took += count * usual.median()
        least = max(self._least, self._replicas.total() * _APART)
        if not share or rest < 2 * least:
            return None
        count = int(rest // max(least, took / (slots * share)))
        return rest // count if count > 1 else None


__all__ = ["CanaryBudget", "CanaryPace", "LatencyBaseline", "UsualLatency"]
