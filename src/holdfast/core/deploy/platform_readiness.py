"""Decides which replicas are drained because their platform says that they are not ready.

A pod that was ready and is not any more asks for no new work: its ``preStop`` hook, an operator or
its own probe took it out. One that was never ready is left to canaries, which know more than a
port that answers. Never more than half of a model's pods are drained so: a probe that times out on
busy replicas would otherwise take all of them out, and busy is not dead.

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
    """What a platform says of one pod's readiness, and said before."""

    pod: str
    ready: bool | None  # None: the platform does not say
    was_ready: bool  # at any time since it came
    drained: bool  # for this reason, already


def drained_pods(pods: Sequence[PodReadiness]) -> frozenset[str]:
    """Names of the pods to drain now: ready once and unready now, up to half of all given.

    ``pods`` are all pods of one model that were not told to end; those drained already come first.
    """
    unready = [one for one in pods if one.was_ready and one.ready is False]
    unready.sort(key=lambda one: not one.drained)
    return frozenset(one.pod for one in unready[: len(pods) // 2])


__all__ = ["READINESS", "VERDICT", "PodReadiness", "drained_pods"]
