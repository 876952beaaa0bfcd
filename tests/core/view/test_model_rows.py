"""What single rows say; whole pictures are in ``test_snapshot_join.py``."""

from holdfast.core.diagnose.evidence import About, Incident
from holdfast.core.failure import Cause, Class
from holdfast.core.types import SECOND
from holdfast.core.view.layers import DesiredReplicas
from holdfast.core.view.model_rows import (
    concerned,
    exhausted_in,
    incident_row,
    marked,
    model_rows,
    with_shares,
)
from holdfast.core.view.snapshot import ModelRow, QueueRow, ReplicaRow


def test_without_work_there_are_no_shares():
    rows = [QueueRow("a", "m", "aws", 0), QueueRow("b", "m", "aws")]
    assert with_shares(rows) == rows


def test_a_model_that_is_only_wished_for_is_a_row():
    (row,) = model_rows({}, [], [], {"m": DesiredReplicas("m", 3)}, {}, {})
    assert (row.name, row.desired, row.replicas, row.waiting) == ("m", 3, 0, None)


def test_rows_without_a_name_are_no_model():
    assert model_rows({}, [], [QueueRow("q", "", "aws", 3)], {}, {}, {}) == []


def test_misplaced_and_undersized_replicas_are_counted_by_values_and_not_by_sentences():
    rows = [
        ReplicaRow("a", "m", "running", host="h", faults=("misplaced: says its platform",)),
        ReplicaRow("b", "m", "running", host="h"),
        ReplicaRow("c", "m", "running", reserved_bytes=10**9, used_bytes=2 * 10**9),
        ReplicaRow("d", "m", "running", faults=("reserves much, says its platform",)),
    ]
    (row,) = model_rows({}, rows, [], {}, {}, {("b", "h"): ("any words",), ("a", "g"): ("x",)})
    assert row.faults == ("1 of 4 reserve 1.0 GB, use 2.0 GB", "1 misplaced")


def test_an_incident_without_an_age_is_not_from_the_future():
    made = Incident("inc-1", Cause.HUNG, Class.RUNTIME, About("r", "m"), 10 * SECOND, 0.7)
    row = incident_row(made, 5 * SECOND)
    assert (row.opened_s, row.title) == (0.0, "hung of r")
    assert exhausted_in([made], 0) == {}


def test_a_row_that_nothing_concerns_is_left_as_it_is():
    row = ModelRow("m")
    assert marked(row, ()) is row
    assert marked(row, ["a", "a"]).incidents == ("a",)


def test_the_replica_that_an_incident_is_about_is_concerned_even_if_it_is_not_listed():
    made = Incident("inc-1", Cause.HUNG, Class.RUNTIME, About("r", "m"), 0, 0.7)
    found = concerned([made], {"r": "h"}, {"r": "m"})
    assert (found.replicas, found.hosts, found.models) == (
        {"r": ["inc-1"]},
        {"h": ["inc-1"]},
        {"m": ["inc-1"]},
    )
    assert (found.queues, found.disks) == ({}, {})
