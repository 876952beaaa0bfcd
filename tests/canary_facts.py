"""Replicas whose canaries are told to a detector, and the signs that it makes of them."""

from holdfast.core.canary import CanaryVerdict
from holdfast.core.diagnose.detect.canary.config import ProbingConfig
from holdfast.core.diagnose.detect.canary.failures import ProbingDetector
from holdfast.core.diagnose.facts import CanaryAnswered, Declared
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.types import SECOND

NAMES = ("r1", "r2", "r3")


def made():
    census = ReplicaRegistry()
    for name in NAMES:
        census.take(Declared(name, "m", "1"))
    return ProbingDetector(ProbingConfig(), census)


def canary(verdict, replica="r1", **values):
    return CanaryAnswered(replica, CanaryVerdict(verdict), **values)


def told(detector, *facts, every=1):
    times = [(every * at * SECOND, fact) for at, fact in enumerate(facts)]
    return [one for at, fact in times for one in detector.take(fact, at)]


def signs(detector, *facts, every=1):
    """The signs of facts that come so many seconds apart."""
    return [one.sign for one in told(detector, *facts, every=every)]
