import json
from dataclasses import asdict

from holdfast.core.view.snapshot import (
    DiskRow,
    GroupRow,
    HostRow,
    IncidentRow,
    ModelRow,
    QueueRow,
    ReplicaRow,
    Snapshot,
    SourceRow,
    UnmetRow,
)


def test_a_snapshot_is_plain_data():
    snapshot = Snapshot(
        1.0,
        sources=(SourceRow("aws", "aws", "ecs", None),),
        groups=(GroupRow("g", "aws"),),
        hosts=(HostRow("h", "aws"),),
        replicas=(ReplicaRow("r", "m", "ready"),),
        models=(ModelRow("m"),),
        queues=(QueueRow("q", "m", "aws"),),
        disks=(DiskRow("fs", "aws"),),
        unmet=(UnmetRow("m", 1, "no room"),),
        incidents=(
            IncidentRow("inc-1", "hung of r", "runtime", "hung", "open", 0.9, "r", 5.0, ("r",)),
        ),
        totals={"gateways": 1},
    )
    told = json.loads(json.dumps(asdict(snapshot)))
    assert told["replicas"][0] | {"faults": []} == told["replicas"][0]
    assert told["sources"][0]["age_s"] is None
    assert told["unmet"][0]["missing"] == 1
