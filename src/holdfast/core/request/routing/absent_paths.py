"""Remembers which replicas do not serve which path, so that requests for it go to others.

An engine that only chats answers 404 to embeddings: that is what it is, and no illness. The first
such answer is remembered for the replica, its revision and the path. It is forgotten after ten
minutes and when the replica starts anew, as an engine may be started with other abilities, and the
eldest goes first where too many are known. Whoever is known to lack a path is only avoided: with
nobody else to ask, it is asked again.
"""

from collections.abc import Iterable
from typing import Final

from holdfast.core.request.candidate import Candidate
from holdfast.core.types import SECOND

ABSENT_MAX: Final = 64  # of one model: a few paths of some tens of replicas
ABSENT_FOR: Final = 600 * SECOND  # an engine that is replaced unseen gets such requests again


class AbsentPaths:
    """The paths that replicas of one model do not serve, as their own answers said; bounded."""

    __slots__ = ("until",)

    def __init__(self) -> None:
        # When each is forgotten, by replica, revision and path, the eldest first; to be read only.
        self.until: dict[tuple[str, str, str], int] = {}

    def learn(self, candidate: Candidate, path: str, now: int) -> None:
        """Remember that this replica, at its present revision, does not serve the path."""
        key = (candidate.id, candidate.revision, path)
        self.until.pop(key, None)
        if len(self.until) >= ABSENT_MAX:
            del self.until[next(iter(self.until))]
        self.until[key] = now + ABSENT_FOR

    def forget(self, replica_id: str) -> None:
        """Forget what is known of a replica, because its process is another one."""
        for key in [key for key in self.until if key[0] == replica_id]:
            del self.until[key]

    def lacking(self, path: str, candidates: Iterable[Candidate], now: int) -> tuple[str, ...]:
        """Return the ids of those candidates that are known not to serve the path.

        One that has served it since, as nobody else was left to ask, is none of them.
        """
        until = self.until
        while until and next(iter(until.values())) <= now:
            del until[next(iter(until))]
        return tuple(
            one.id
            for one in candidates
            if (one.id, one.revision, path) in until and path not in one.serves
        )


__all__ = ["ABSENT_FOR", "ABSENT_MAX", "AbsentPaths"]
