"""Follows the lives of a launched replica's container through what a platform says of its pods.

    awaited ─ a pod runs ─► running ─ its container ended, its pod is gone ─► ended ─► awaited
                               └─ its pod was told to end ─► leaving (still running)

A life is one run of one container: the pod's uid and the number of restarts. A platform starts a
container again by itself, within its pod or in a new one. Such a life is not shown until control
asks for a start: who restarts, when, and how often is control's to decide, and a replica that ended
is not back because its process is. What the platform started meanwhile is then taken over as it is,
so that a restart keeps its node and its devices.

Rejected: no workload above pods. Nobody would bring a replica back while control is away. Rejected:
to let a platform's restarts count as starts. A replica that ends again and again would look like
one that runs, and its revision would never be refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BY_PLATFORM = "its pod was deleted"  # where nothing says how its process ended


@dataclass(slots=True, frozen=True)
class PodEnd:
    """How a container's run ended, as far as its platform says: exit code, signal, memory, reason.

    None or empty: it does not say.
    """

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    reason: str = ""  # for people
    host_lost: bool = False


@dataclass(slots=True, frozen=True, order=True)
class PodLife:
    """The identity of one run of a container: its pod's uid, and the number of restarts before."""

    uid: str
    number: int


@dataclass(slots=True, frozen=True)
class PodSight:
    """Figures now of one pod of a replica, as its platform lists it, and how its runs ended."""

    replica: str
    name: str
    uid: str
    created_at: float = 0.0
    number: int = 0  # of the container's last run: how often it was started again
    running: bool = False
    began_at: float | None = None  # the run that goes on
    address: str = ""
    node: str = ""
    ended: PodEnd | None = None  # how the run of this number ended
    before: PodEnd | None = None  # how the run before it ended
    waits: str = ""  # why its container does not run, for people
    backs_off: bool = False  # its platform waits longer and longer before each restart
    leaving: str = ""  # why it was told to end; empty: it was not


@dataclass(slots=True, frozen=True)
class LifeBegan:
    """News: a start that was asked for was seen; the container runs, or ran and ended already."""

    life: PodLife
    pod: PodSight


@dataclass(slots=True, frozen=True)
class LifeEnded:
    """News, once per life: the container that ran has ended, and whether that was asked for."""

    life: PodLife
    end: PodEnd
    asked: bool  # its pod was told to end, by whomever


@dataclass(slots=True, frozen=True)
class LifeLeaving:
    """News, once per life: the pod that runs was told to end, and not by control. It still runs."""

    life: PodLife
    reason: str


LifeNews = LifeBegan | LifeEnded | LifeLeaving


class ReplicaLives:
    """Follows the runs of one launched replica's container on Kubernetes from what its pods show.

    At most one life runs, and each that began ends once. Keeps the running life and the last that
    ended; starts and stops nothing.
    """

    def __init__(self, last: PodLife | None = None) -> None:
        """``last``: the life whose end was told already."""
        self.running: PodLife | None = None
        self.last = last
        self.awaited = False  # a start was asked for
        self._leaving = False  # that was told
        self._asked = False  # control itself told it to end

    def begin(self) -> None:
        """Note that control asked for a start: the next run that is seen is reported as begun.

        Ignored while one runs. Starts nothing itself.
        """
        self.awaited = self.running is None

    def end(self) -> None:
        """Note that control told this replica to end; stops nothing itself.

        The end of the life that runs is then reported as asked for, and a start that is still
        awaited is called off.
        """
        self.awaited, self._asked = False, True

    def give_up(self) -> None:
        """Count the running life as over, without news of it, and call off an awaited start.

        For a platform that does not say what became of it.
        """
        if self.running is not None:
            self.running, self.last = None, self.running
        self.awaited = False

    def take(self, pods: Iterable[PodSight]) -> list[LifeNews]:
        """Compare with the replica's pods as they are now; return what is new, oldest first.

        The news are ``LifeBegan`` (only if a start is awaited), ``LifeLeaving`` and ``LifeEnded``;
        empty: nothing. A running life whose pod is not in ``pods`` has ended.
        """
        by_uid = {pod.uid: pod for pod in pods}
        news: list[LifeNews] = []
        if self.running is None and self.awaited:
            found = self.next_life(by_uid.values())
            if found is not None:
                self.running, self.awaited = PodLife(found.uid, found.number), False
                self._leaving = self._asked = False
                news.append(LifeBegan(self.running, found))
        if self.running is not None:
            news += self._look(self.running, by_uid)
        return news

    def next_life(self, pods: Iterable[PodSight]) -> PodSight | None:
        """Return the newest pod with a run that was not reported as ended yet, or None.

        Pods that leave are left out. Changes nothing.
        """
        fresh = [pod for pod in pods if not pod.leaving and self._is_fresh(pod)]
        return max(fresh, key=lambda pod: (pod.created_at, pod.uid), default=None)

    def _is_fresh(self, pod: PodSight) -> bool:
        if not pod.running and pod.ended is None:
            return False  # nothing has run yet
        return self.last is None or self.last.uid != pod.uid or pod.number > self.last.number

    def _look(self, life: PodLife, by_uid: Mapping[str, PodSight]) -> list[LifeNews]:
        pod = by_uid.get(life.uid)
        asked = self._asked or self._leaving or (pod is not None and bool(pod.leaving))
        end = _end_of(life, pod)
        if end is not None:
            self.running, self.last = None, life
            if pod is not None and not pod.running:  # what ended unseen since then is told with it
                self.last = PodLife(life.uid, max(life.number, pod.number))
            return [LifeEnded(life, end, asked)]
        assert pod is not None, "a pod that is gone has ended"
        if pod.leaving and not self._asked and not self._leaving:
            self._leaving = True
            return [LifeLeaving(life, pod.leaving)]
        return []


def _end_of(life: PodLife, pod: PodSight | None) -> PodEnd | None:
    """How a life ended; None: it goes on."""
    if pod is None:
        return PodEnd(reason=BY_PLATFORM)
    if pod.number == life.number:
        return pod.ended
    if pod.number == life.number + 1 and pod.before is not None:
        return pod.before
    if not pod.running and pod.ended is not None:
        return pod.ended
    return PodEnd(reason="it ended and was started again, and nobody says how")


__all__ = [
    "LifeBegan",
    "LifeEnded",
    "LifeLeaving",
    "LifeNews",
    "PodEnd",
    "PodLife",
    "PodSight",
    "ReplicaLives",
]
