from dataclasses import replace

from holdfast.core.view.known import Known, KnownModel, KnownReplica


def test_equal_means_that_nothing_has_changed():
    one = Known((KnownReplica("m-1", "m", "ready"),), (KnownModel("m"),), {"gateways": 1})
    same = Known((KnownReplica("m-1", "m", "ready"),), (KnownModel("m"),), {"gateways": 1})
    assert one == same
    assert one != replace(same, replicas=(KnownReplica("m-1", "m", "dead"),))
    assert one != replace(same, totals={"gateways": 2})
