"""One simulated request and its attempts, kept until the request is answered.

Both are slotted and unfrozen: there is one record per request and one run per attempt.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.core.types import Request

# Where a run is.
OUTSIDE: Final = -1  # not handed over yet, or never
WAITING: Final = 0
ACTIVE: Final = 1
LEAVING: Final = 2  # cancelled in the middle of a step: gone at the coming boundary
GONE: Final = 3
PARKED: Final = 4  # stopped for good by a fault; its client still waits


class EngineRun:
    """One attempt of a request, or one canary, as the engine works on it."""

    __slots__ = (
        "admitted",
        "attempt",
        "computed",
        "ends_as",
        "excused_at",
        "first_at",
        "mute",
        "output",
        "owner",
        "parked_at",
        "parks",
        "place",
        "prompt",
        "replica_id",
        "sent_at",
        "silence_max",
        "wrong",
    )

    def __init__(
        self, owner: "RequestRecord | None", replica_id: str, attempt: int, prompt: int, output: int
    ) -> None:
        self.owner = owner  # the request it belongs to; a canary has none
        self.replica_id = replica_id
        self.attempt = attempt
        self.prompt = prompt
        self.computed = prompt  # of the prompt: what no cache has
        self.output = output  # tokens it will produce, at least one
        self.place = OUTSIDE
        self.admitted = 0  # step index of its first step
        self.first_at = 0
        self.silence_max = 0
        self.sent_at = 0
        self.excused_at = 0  # when its silence was told last: patience lasts as long again
        self.ends_as: Kind | None = None  # a failure planned for it by a fault
        self.mute = False  # that failure comes before any content
        self.parks = False  # a fault stops it after its last token instead of ending it
        self.parked_at = 0
        self.wrong = False  # a fault makes this answer wrong, not every one of its replica

    @property
    def whole(self) -> bool:
        """Whether its answer comes in one piece; canaries stream."""
        return self.owner is not None and self.owner.request.whole


class RequestRecord:
    """One request: what was asked, and its outcome so far."""

    __slots__ = (
        "attempts",
        "capped",
        "continued",
        "done_at",
        "first_at",
        "model",
        "output",
        "request",
        "runs",
        "shown",
        "status",
        "wasted_calls",
        "wasted_tokens",
        "wrong",
    )

    def __init__(self, request: Request, output: int) -> None:
        self.request = request
        self.output = output  # tokens a full answer has
        self.runs: dict[int, EngineRun] = {}  # live attempts
        self.attempts = 0
        self.continued = 0
        self.capped = False  # a ladder made its answer shorter than was asked for
        self.model = request.model
        self.shown = 0  # tokens the client has seen
        self.first_at = 0
        self.done_at = 0
        self.status = 0
        self.wasted_calls = 0
        self.wasted_tokens = 0
        self.wrong = False  # part of it came from a replica that answers wrong


__all__ = [
    "ACTIVE",
    "GONE",
    "LEAVING",
    "OUTSIDE",
    "PARKED",
    "WAITING",
    "EngineRun",
    "RequestRecord",
]
