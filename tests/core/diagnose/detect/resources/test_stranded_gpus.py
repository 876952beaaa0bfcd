"""GPUs that are free in total, and on no host enough."""

import pytest

from holdfast.core.diagnose.detect.resources.stranded_gpus import (
    StrandedGpusConfig,
    StrandedGpusDetector,
)
from holdfast.core.diagnose.evidence import Sign
from holdfast.core.diagnose.facts import HostSeen, Looked, ReplicasWanted
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.diagnose.replica_registry import ReplicaRegistry
from holdfast.core.failure import Cause
from holdfast.core.types import ConfigError, nanos


def wanted(gpus=4, waited_s=130.0):
    reason = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    return ReplicasWanted("large", 1, 0, 1, waited_s, reason, "kube", gpus)


def signs(fact, *free):
    census = ReplicaRegistry()
    for number, count in enumerate(free):
        census.take(HostSeen(f"n{number}", 8, gpus_free=count))
    return list(StrandedGpusDetector(StrandedGpusConfig(), census).take(fact, nanos(1_000)))


def test_two_free_on_each_of_three_hosts_are_no_use_to_one_that_needs_four():
    (one,) = signs(wanted(), 2, 2, 2)
    assert (one.sign, one.about.model) == (Sign.GPUS_STRANDED, "large")
    assert one.numbers == {"needed": 4.0, "free": 6.0, "hosts": 3.0, "largest": 2.0}


@pytest.mark.parametrize(
    ("fact", "free"),
    [
        (wanted(), (4, 0, 0)),  # it fits: the platform has not placed it yet
        (wanted(), (2, 1, 0)),  # not even in total
        (wanted(), ()),
        (wanted(), (None, 8)),
        (wanted(gpus=1), (1, 1, 1)),
        (wanted(gpus=None), (2, 2, 2)),
        (wanted(waited_s=60.0), (2, 2, 2)),
    ],
)
def test_room_and_want_are_nothing(fact, free):
    assert signs(fact, *free) == []


def test_it_explains_why_a_replica_is_not_placed():
    investigation = Investigation()
    for number in range(3):
        investigation.take(HostSeen(f"n{number}", 4, gpus_free=2), nanos(1_000))
    for at in (1_000, 1_040, 1_080):
        investigation.take(wanted(), nanos(at))
        investigation.take(Looked(), nanos(at))
    causes = {one.cause for one in investigation.incidents.values() if one.closed_at is None}
    assert causes == {Cause.GPUS_STRANDED}


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"stranded_gpus\.waited_s"):
        StrandedGpusConfig(waited_s=0)
