"""Detects silence of a replica that should produce output: while it loads, or with requests on it.

Each replica's output is listened to all the time: log lines, metrics that move, tokens, canaries.
How long silence is normal depends on what the replica is doing, so the patience is the phase's:

    starting, loading ── 120 s      compile, warm-up ── 600 s      serving ── 30 s, if requests run

While it loads every sound counts. While it serves log lines do not: access logs of probes and
periodic statistics go on beside an engine that stands still. An idle replica has nothing to say,
and of one whose number of requests is unknown nothing is concluded.

Rejected: one timeout for all. It is either longer than users wait for a hung request, or shorter
than a compilation. Rejected: the log as the only sound; engines with quiet logs serve well.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.core.types import nanos, require, seconds

STARTING: Final = "starting"
LOADING: Final = "loading"
COMPILE: Final = "compile"
WARM_UP: Final = "warm-up"
SERVING: Final = "serving"

LOG: Final = "log"
METRICS: Final = "metrics"  # figures of work moved; that the page answered is no sound
TOKENS: Final = "tokens"
CANARY: Final = "canary"  # an answer came, whatever it said
SOURCES: Final = (LOG, METRICS, TOKENS, CANARY)


@dataclass(slots=True, frozen=True)
class SilenceConfig:
    """Settings: how many seconds a replica may give no output, by phase.

    Checked when built: raises ``ConfigError``.
    """

    loading_s: float = 120.0  # between two sounds; a shard from a slow network takes a minute
    compile_s: float = 600.0  # compilers and graph captures say nothing for minutes
    serving_s: float = 30.0  # with requests running; a long prefill moves the metrics meanwhile

    def __post_init__(self) -> None:
        for name in ("loading_s", "compile_s", "serving_s"):
            value = getattr(self, name)
            fix = "use seconds above 0, up to a day"
            require(0 < value <= 86_400, f"silence.{name}", f"is {value}", fix)
        long_enough = self.compile_s >= self.loading_s
        fix = "use loading_s or more: compiling is the quieter of the two"
        require(long_enough, "silence.compile_s", f"is {self.compile_s}, below loading_s", fix)


@dataclass(slots=True, frozen=True)
class Silence:
    """A finding: a process is silent for too long; since when (core time, ns), in which phase.

    ``source`` is what was heard last; empty: nothing ever.
    """

    phase: str
    since: int
    source: str  # "" = nothing ever
    reason: str


class Heartbeat:
    """Tracks when one process last gave output, by source; a new process gets a new object.

    Reports nothing by itself: ask ``silent``.
    """

    __slots__ = ("_busy_since", "_heard", "_patience", "_since", "name")

    def __init__(self, config: SilenceConfig, now: int) -> None:
        loading, compiling = nanos(config.loading_s), nanos(config.compile_s)
        self._patience = {
            LOADING: loading,
            COMPILE: compiling,
            WARM_UP: compiling,
            SERVING: nanos(config.serving_s),
        }
        self.name = STARTING
        self._since = now  # in this phase
        self._heard: dict[str, int] = {}
        self._busy_since: int | None = None  # requests run without a break

    def beat(self, source: str, now: int) -> None:
        """Record output from a source: log, metrics, tokens or canary.

        Raises ``ValueError`` for another. While serving, log lines are recorded and not counted.
        """
        if source not in SOURCES:
            raise ValueError(f"{source!r} is no source of heartbeats: use one of {SOURCES}")
        self._heard[source] = max(now, self._heard.get(source, now))

    def phase(self, name: str, now: int) -> None:
        """Set the phase the process is in; a new one restarts the wait.

        An unknown name has the patience of loading.
        """
        if name != self.name:
            self.name = name
            self._since = now
            self._busy_since = None

    def silent(self, now: int, running: int | None) -> Silence | None:
        """Return the present ``Silence`` if it is too long, else ``None``; asks each time anew.

        While serving, a replica with no ``running`` requests is never silent, and with ``None``
        (unknown) nothing is concluded; the wait goes on. In other phases ``running`` is ignored.
        """
        if self.name != SERVING:
            source, last = self._latest(SOURCES)
            return self._judge(source, max(last, self._since), now)
        if running is None:
            return None
        if running <= 0:
            self._busy_since = None
            return None
        if self._busy_since is None:
            self._busy_since = now
        source, last = self._latest((METRICS, TOKENS, CANARY))
        return self._judge(source, max(last, self._busy_since), now, running)

    def _latest(self, sources: tuple[str, ...]) -> tuple[str, int]:
        heard = [(at, source) for source, at in self._heard.items() if source in sources]
        if not heard:
            return "", self._since
        at, source = max(heard)
        return source, at

    def _judge(self, source: str, since: int, now: int, running: int = 0) -> Silence | None:
        if now - since <= self._patience.get(self.name, self._patience[LOADING]):
            return None
        told = f"nothing was heard for {seconds(now - since):.0f} s while {self.name}"
        if running:
            told += f" with {running} requests running"
        told += f"; the last was of {source}" if source else "; nothing was ever heard"
        return Silence(self.name, since, source, told)


__all__ = [
    "CANARY",
    "COMPILE",
    "LOADING",
    "LOG",
    "METRICS",
    "SERVING",
    "SOURCES",
    "STARTING",
    "TOKENS",
    "WARM_UP",
    "Heartbeat",
    "Silence",
    "SilenceConfig",
]
