"""Decides which replicas are drained because their platform says that they are not ready, or go.

A pod that was ready and is not any more asks for no new work: its ``preStop`` hook, an operator or
its own probe took it out. One that was never ready is left to canaries, which know more than a
port that answers. Never more than half of a model's pods are drained so: a probe that times out on
busy replicas would otherwise take all of them out, and busy is not dead.

A pod that is about to end, or whose host is about to be taken away (a spot notice), is drained
before it is told to end, so that its streams have the time of the notice. The same bound holds: a
notice for all hosts at once must not leave nobody, while each of them still serves for a minute or
two. As drained pods go, the next ones are drained. A notice that is taken back ends the drain.

A pod with the label ``READINESS: VERDICT`` is not judged so: its probe repeats what control itself
said of it (``pod_readiness.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

READINESS: Final = "holdfast.dev/readiness"  # a label of pods
VERDICT: Final = "verdict"  # their readiness is control's own verdict


@dataclass(slots=True, frozen=True)
class PodReadiness:
    """What a platform says of one pod's readiness now and said before, and of its removal."""

    pod: str
    ready: bool | None  # None: the platform does not say
    was_ready: bool  # at any time since it came
    drained: bool  # for one of these reasons, already
    noticed: bool = False  # it, or its host, is about to be taken away


def drained_pods(pods: Sequence[PodReadiness]) -> frozenset[str]:
    """Return the names of the pods to drain now: unready again, or about to go; at most half.

    ``pods`` are all pods of one model that were not told to end; those drained already come first,
    then those with a notice that they are about to go, then the order given. Drains nothing itself.
    """
    out = [one for one in pods if one.noticed or (one.was_ready and one.ready is False)]
    out.sort(key=lambda one: (not one.drained, not one.noticed))
    return frozenset(one.pod for one in out[: len(pods) // 2])


__all__ = ["READINESS", "VERDICT", "PodReadiness", "drained_pods"]
