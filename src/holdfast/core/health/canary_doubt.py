"""Decides whether a model's canaries are believed when all of them fail at once.

    latest canary of each replica ─► CanaryMix ─┐
                                                ├─► RULINGS ─► hold or act, suspect, cause
    users' requests of the model ──► UsersMeet ─┘

One replica whose canary fails is ill. All replicas whose canaries fail at once more likely share
something that is ill: the expected answer, the checker, the network. Then their states are held and
the suspect is named. What users meet meanwhile can overrule what the canaries look like: no broken
checker makes users' requests fail, and no broken engine serves them.

``RULINGS`` is the whole decision. This module counts and looks up; it remembers nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.core.canary import CanarySuspect, CanaryVerdict
from holdfast.core.failure import Cause


@dataclass(slots=True, frozen=True)
class LatestCanary:
    """The latest conclusive canary of one replica: when it ended (ns), and with which verdict."""

    replica_id: str
    at: int
    passed: bool
    verdict: CanaryVerdict | None = None
    server_error: bool = False  # it failed because the engine said that it fails (5xx)


class CanaryMix(StrEnum):
    """How the latest canaries of a model's replicas look together, as one of a few named cases."""

    SOME_PASS = "some_pass"  # noqa: S105 at least one was right lately
    TOO_FEW = "too_few"  # fewer than two failed lately: there is nothing to compare
    SOME_UNASKED = "some_unasked"  # all that were asked lately failed; another might still pass
    ALL_ANSWER = "all_answer"  # all failed, and at least two of them said something
    ALL_ERR = "all_err"  # all failed, more of them with a server's error than in silence
    ALL_SILENT = "all_silent"  # all failed, and mostly nothing came back


class UsersMeet(StrEnum):
    """What users' requests of a model experience while its canaries are in doubt."""

    NOTHING = "nothing"  # nobody asked, or nothing is told of it yet
    ANSWERS = "answers"  # somebody was served since the doubt began
    FAILURES = "failures"  # some failed, and nobody was served after them
    ANSWERS_THEN_FAILURES = "answers_then_failures"  # both of the above, in this order


@dataclass(slots=True, frozen=True)
class Ruling:
    """What one mix of canaries and users' experience means: hold states or not, who is suspected.

    A constant of the table ``RULINGS``, with the cause that diagnosis names, and why.
    """

    hold: bool  # no canary moves the state of any replica of the model
    suspect: CanarySuspect
    cause: Cause | None  # that diagnosis names; ``None``: each replica's own, or there is none
    why: str  # for people


_PASS: Final = Ruling(False, CanarySuspect.NOBODY, None, "canaries disagree: at least one passes")
_FEW: Final = Ruling(False, CanarySuspect.NOBODY, None, "fewer than two replicas answered canaries")
_UNASKED: Final = Ruling(False, CanarySuspect.NOBODY, None, "the others have not been asked lately")
_CHECKER: Final = Ruling(
    True,
    CanarySuspect.CHECKER,
    Cause.CHECKER_BROKEN,
    "suspect the expected answer or the checker, not the replicas",
)
_SERVED: Final = Ruling(
    True, CanarySuspect.CHECKER, Cause.CHECKER_BROKEN, "all canaries fail, and users are served"
)
_SHARED: Final = Ruling(
    True,
    CanarySuspect.SHARED,
    Cause.ALL_SILENT,
    "nothing came back: suspect what they share before each of them",
)
_ENGINES: Final = Ruling(
    True, CanarySuspect.REPLICAS, None, "the engines themselves say that they fail"
)
_USERS_FAIL: Final = Ruling(
    True, CanarySuspect.REPLICAS, None, "all canaries fail, and users' requests as well"
)

_NOTHING, _ANSWERS = UsersMeet.NOTHING, UsersMeet.ANSWERS
_FAILURES, _BOTH = UsersMeet.FAILURES, UsersMeet.ANSWERS_THEN_FAILURES
RULINGS: Final[dict[tuple[CanaryMix, UsersMeet], Ruling]] = {
    **{(CanaryMix.SOME_PASS, users): _PASS for users in UsersMeet},
    **{(CanaryMix.TOO_FEW, users): _FEW for users in UsersMeet},
    **{(CanaryMix.SOME_UNASKED, users): _UNASKED for users in UsersMeet},
    # Answers came: users who fail as well speak against the replicas, and for the checker.
    (CanaryMix.ALL_ANSWER, _NOTHING): _CHECKER,
    (CanaryMix.ALL_ANSWER, _ANSWERS): _CHECKER,
    (CanaryMix.ALL_ANSWER, _FAILURES): _USERS_FAIL,
    (CanaryMix.ALL_ANSWER, _BOTH): _USERS_FAIL,
    # Engines say that they fail: users who are served speak against the checker.
    (CanaryMix.ALL_ERR, _NOTHING): _ENGINES,
    (CanaryMix.ALL_ERR, _ANSWERS): _SERVED,
    (CanaryMix.ALL_ERR, _FAILURES): _ENGINES,
    (CanaryMix.ALL_ERR, _BOTH): _SERVED,
    # Nothing came back: users' failures are the same silence, and say nothing new.
    **{(CanaryMix.ALL_SILENT, users): _SHARED for users in UsersMeet},
}
_COUNTED: Final = (CanaryMix.ALL_ANSWER, CanaryMix.ALL_ERR, CanaryMix.ALL_SILENT)


@dataclass(slots=True, frozen=True)
class CanaryCount:
    """The mix that a model's latest canaries form, how many failed, and of how many replicas."""

    mix: CanaryMix
    failed: int  # within the period
    members: int  # that could have passed

    def reason(self, ruling: Ruling) -> str:
        """Return the ruling's reason as a sentence for people, with counts where they matter."""
        if self.mix is CanaryMix.SOME_UNASKED:
            return f"{self.failed} of {self.members} failed, {ruling.why}"
        if self.mix in _COUNTED and ruling not in (_SERVED, _USERS_FAIL):
            return f"all {self.failed} canaries failed within one period: {ruling.why}"
        return ruling.why


def count_canaries(
    latest: Sequence[LatestCanary], now: int, period: int, *, members: int
) -> CanaryCount:
    """Return the ``CanaryCount`` of a model's latest canaries: their mix and how many failed.

    ``latest`` holds one canary of each replica that could have passed; ``members`` is how many such
    replicas there are. A canary older than ``period`` (ns) counts as not asked, and a replica that
    refused its connection is left out.
    """
    asked = [canary for canary in latest if canary.verdict is not CanaryVerdict.REFUSED]
    members -= len(latest) - len(asked)
    recent = [canary for canary in asked if 0 <= now - canary.at <= period]
    silent = sum(canary.verdict is CanaryVerdict.TIMEOUT for canary in recent)
    errors = sum(canary.server_error for canary in recent)
    if any(canary.passed for canary in recent):
        mix = CanaryMix.SOME_PASS
    elif len(recent) < 2:
        mix = CanaryMix.TOO_FEW
    elif len(recent) < members:
        mix = CanaryMix.SOME_UNASKED
    elif len(recent) - silent - errors >= 2:
        mix = CanaryMix.ALL_ANSWER
    else:
        mix = CanaryMix.ALL_ERR if errors > silent else CanaryMix.ALL_SILENT
    return CanaryCount(mix, len(recent), members)


def users_meet(*, failing: bool, served: bool) -> UsersMeet:
    """Classify what users' requests experience as one ``UsersMeet``.

    ``failing``: some failed around the doubt and nobody was served after them. ``served``:
    somebody was served since the doubt began.
    """
    if failing:
        return _BOTH if served else _FAILURES
    return _ANSWERS if served else _NOTHING


__all__ = [
    "RULINGS",
    "CanaryCount",
    "CanaryMix",
    "LatestCanary",
    "Ruling",
    "UsersMeet",
    "count_canaries",
    "users_meet",
]
