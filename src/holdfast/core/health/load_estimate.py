"""Estimates when a replica that is starting will serve, from how long earlier starts took.

A request that finds no replica can wait if one is on its way, and should be refused at once if that
one comes too late. Nobody declares how long a start takes, so it is learned per model, from the
beginning of the process to its first right answer. Before the first start was seen nothing is
known, and a start that takes longer than usual may be over at any moment.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Final

from holdfast.core.health.lifecycle import ROUTABLE
from holdfast.core.health.member import Member
from holdfast.core.types import State, seconds

_SAMPLES_MAX: Final = 8  # starts per model: caches and disks of last month say nothing
_STARTING: Final = (State.STARTING, State.LOADING, State.WARMING)
_SEEN: Final = (State.STARTING, State.LOADING)  # one found loaded says nothing of loading


class LoadEstimate:
    """Learns by model how long starts take, from a process's start to its replica's being ready.

    It keeps the last eight starts of each model that were seen from their beginning.
    """

    __slots__ = ("_begun", "_load_timeout", "_took")

    def __init__(self, load_timeout: int) -> None:
        self._load_timeout = load_timeout
        self._begun: dict[str, int] = {}  # by replica: when its present start began
        self._took: dict[str, deque[int]] = {}

    def look(self, members: Iterable[Member], now: int) -> None:
        """Note which replicas began to start and which became ready since the last look."""
        begun: dict[str, int] = {}
        models = set()
        for member in members:
            models.add(member.replica.model)
            replica_id, health = member.replica.id, member.health
            if health.state in _SEEN and health.load_deadline is not None:
                # A backoff before the start moves the deadline, too: it is no part of the load.
                begun[replica_id] = health.load_deadline - self._load_timeout
            elif replica_id in self._begun:
                if health.state is State.WARMING:
                    begun[replica_id] = self._begun[replica_id]
                elif health.state in ROUTABLE:
                    took = self._took.setdefault(member.replica.model, deque(maxlen=_SAMPLES_MAX))
                    took.append(max(0, now - self._begun[replica_id]))
        self._begun = begun
        self._took = {model: took for model, took in self._took.items() if model in models}

    def usual_s(self, model: str) -> float | None:
        """Median seconds of the model's last starts, process start to ready.

        ``None`` before one.
        """
        took = self._took.get(model)
        return round(seconds(int(median(took))), 1) if took else None

    def remaining_s(self, member: Member, now: int) -> float | None:
        """Seconds until a starting replica serves, by the usual time; 0: longer than usual already.

        ``None``: it is not starting, or no start of its model was seen.
        """
        usual, begun = self.usual_s(member.replica.model), self._begun.get(member.replica.id)
        if usual is None or begun is None or member.health.state not in _STARTING:
            return None
        return round(max(0.0, usual + seconds(begun - now)), 1)


__all__ = ["LoadEstimate"]
