"""Detects inferences that fail inside an inference server, by the server's own counts.

    the last minute of one replica: five failed, and a fifth of all that ended ─► a sign

Gateways see the errors of their own requests. The server counts all of them, also those of callers
that do not come through a gateway, and it tells a failed execution from a queue that is full and
from a client that left. A malformed request is refused before it is counted. Still one caller's
request can fail an execution by itself, so the sign names a cause and is no reason to act alone.

What the server says of waiting, computing and batches in the same minute is told with it: it is
what one looks at next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from holdfast.core.diagnose.detect.detector import NOTHING, Pace
from holdfast.core.diagnose.detect.inference.window import InferenceFigures, InferenceWindow
from holdfast.core.diagnose.evidence import Evidence, Sign
from holdfast.core.diagnose.facts import InferencesSeen, ProcessEnded
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import require

_SOURCE: Final = "engine"


@dataclass(slots=True, frozen=True)
class InferenceConfig:
    """Settings: how many inferences must fail inside a server in a minute, and which share.

    Checked when built: raises ``ConfigError``.
    """

    failures_min: int = 5  # in a minute: one bad request that is sent again is fewer
    share_min: float = 0.2  # of what ended, as of users' requests

    def __post_init__(self) -> None:
        few, share = self.failures_min, self.share_min
        require(few >= 2, "inferences.failures_min", f"is {few}", "use 2 or more: one is chance")
        require(0 < share <= 1, "inferences.share_min", f"is {share}", "use a share in (0, 1]")


class InferenceFailureDetector:
    """Finds replicas whose inference server counts many failed executions in the last minute.

    Keeps a window of counts per replica.
    """

    reads: ClassVar[tuple[type, ...]] = (InferencesSeen, ProcessEnded)

    def __init__(self, config: InferenceConfig, census: ReplicaRegistry) -> None:
        self._config = config
        self._census = census
        self._windows: dict[str, InferenceWindow] = {}  # as many as the census holds
        self._pace = Pace()

    def take(self, fact: InferencesSeen | ProcessEnded, now: int) -> Sequence[Evidence]:
        """Take a server's counts or a process end; return ``INFERENCES_FAIL`` if many failed.

        An end drops the replica's counts.
        """
        if isinstance(fact, ProcessEnded):
            self.forget(fact.replica)
            return NOTHING
        if fact.replica not in self._census.replicas:
            return NOTHING
        window = self._windows.setdefault(fact.replica, InferenceWindow())
        window.add(fact, now)
        figures = window.figures()
        if figures is None or not self._fails(figures):
            self._pace.over(fact.replica)
            return NOTHING
        if not self._pace.due(fact.replica, now):
            return NOTHING
        return (self._evidence(fact, figures, now),)

    def forget(self, replica: str) -> None:
        """Drop the counts of a replica that left the fleet or whose process ended."""
        self._windows.pop(replica, None)
        self._pace.over(replica)

    def _fails(self, figures: InferenceFigures) -> bool:
        share = figures.failed_share
        enough = figures.failures is not None and figures.failures >= self._config.failures_min
        return enough and share is not None and share >= self._config.share_min

    def _evidence(self, fact: InferencesSeen, figures: InferenceFigures, now: int) -> Evidence:
        failures, successes = figures.failures or 0, figures.successes or 0
        text = (
            f"the server of {fact.replica} counts {failures} of {failures + successes} inferences "
            f"as failed in the last {figures.span_s:.0f} s"
        )
        numbers = {"failures": float(failures), "successes": float(successes)}
        if figures.queue_s is not None and figures.compute_s is not None:
            text += (
                f"; those that were answered waited {figures.queue_s * 1e3:.1f} ms and took "
                f"{figures.compute_s * 1e3:.1f} ms"
            )
            numbers |= {"queue_s": figures.queue_s, "compute_s": figures.compute_s}
        if figures.batch is not None:
            numbers["batch"] = figures.batch
        for name in ("pending", "gpu_used_bytes", "gpu_total_bytes"):
            value = getattr(fact, name)
            if value is not None:
                numbers[name] = float(value)
        about = self._census.about(fact.replica)
        return Evidence(Sign.INFERENCES_FAIL, about, now, _SOURCE, text, numbers)


__all__ = ["InferenceConfig", "InferenceFailureDetector"]
