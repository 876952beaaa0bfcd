from dataclasses import replace

from holdfast.core.view.fleet_records import FleetRecords, ModelRecord, ReplicaRecord


def test_equal_means_that_nothing_has_changed():
    one = FleetRecords((ReplicaRecord("m-1", "m", "ready"),), (ModelRecord("m"),), {"gateways": 1})
    same = FleetRecords((ReplicaRecord("m-1", "m", "ready"),), (ModelRecord("m"),), {"gateways": 1})
    assert one == same
    assert one != replace(same, replicas=(ReplicaRecord("m-1", "m", "dead"),))
    assert one != replace(same, totals={"gateways": 2})
