"""Models that need a GPU by their footprint and reserve none, on Kubernetes and on AWS."""

import orjson
import pytest

from holdfast.config.fleet_file import FleetFile
from holdfast.config.incidents import FootprintSection
from holdfast.control.deploy.declarations import reading_with_footprints, with_placed
from holdfast.core.diagnose.facts import Declared, Looked, QueueSeen
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.failure import Cause
from holdfast.core.types import SECOND
from holdfast.core.view.fleet_records import FleetRecords
from holdfast.core.view.layers import Host, Placed, Queue, Reading
from holdfast.core.view.reading_diff import ReadingDiff
from holdfast.core.view.snapshot_join import join
from holdfast.sources.kubernetes.nodes import read_node
from holdfast.sources.kubernetes.pods import read_pod

WALL = 1_790_000_000.0
MODEL = "upscaler"


def kubernetes():
    """A worker pod that asks for no GPU, on a node that has none, as the API tells them."""
    pod = {
        "metadata": {"name": "upscaler-1", "namespace": "ml", "uid": "u1", "labels": {"m": MODEL}},
        "spec": {"nodeName": "n1", "containers": [{"name": "w", "image": "r/u@sha256:1"}]},
        "status": {"phase": "Running", "startTime": "2026-09-21T12:00:00Z"},
    }
    node = {
        "metadata": {"name": "n1", "labels": {}},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}, "conditions": []},
    }
    placed = read_pod(pod, "m", None).placed
    assert placed.needs_gpu is False
    queue = Queue("upscaler-work", MODEL, visible=40)
    return Reading(
        "kube", "kubernetes", WALL, hosts=(read_node(node).host,), placed=(placed,), queues=(queue,)
    )


def aws():
    """A task of a definition without a GPU, on an instance without one, as ECS tells them."""
    host = Host("i-1", "r5", "r5.xlarge", gpus=0, memory_bytes=32 << 30)
    placed = Placed("t1", MODEL, "running", "i-1", needs_gpu=False, reserved_bytes=1 << 30)
    queue = Queue("upscaler-work", MODEL, visible=40)
    return Reading("aws", "aws", WALL, hosts=(host,), placed=(placed,), queues=(queue,))


def incidents(reading, footprints):
    """What is found of a platform that is read for two minutes."""
    found, diff, placed = Investigation(), ReadingDiff(), {}
    for step in range(24):
        now = step * 5 * SECOND
        facts = diff.take(reading, now, WALL + step * 5)
        placed |= {one.replica: one for one in facts if isinstance(one, Declared)}
        told = with_placed({}, placed, footprints)
        for fact in [
            *told.values(),
            *(one for one in facts if not isinstance(one, Declared | QueueSeen)),
        ]:
            found.take(fact, now)
        found.take(Looked(), now)
    return list(found.incidents.values())


@pytest.mark.parametrize("reading", [kubernetes(), aws()], ids=["kubernetes", "aws"])
def test_a_model_without_a_reservation_that_needs_a_gpu_is_misplaced(reading):
    needs = {MODEL: FootprintSection(gpu=True)}
    (incident,) = incidents(reading, needs)
    assert incident.cause is Cause.MISPLACED
    assert f"{MODEL} needs a GPU and runs on" in incident.evidence[0].text
    shot = join([reading_with_footprints(reading, needs)], FleetRecords(), [], WALL, 0)
    (row,) = shot.replicas
    assert any("needs a GPU" in fault for fault in row.faults)
    assert "1 misplaced" in shot.models[0].faults


@pytest.mark.parametrize("reading", [kubernetes(), aws()], ids=["kubernetes", "aws"])
@pytest.mark.parametrize(
    "footprints",
    [
        {},
        {MODEL: FootprintSection(gpu=False)},
        {MODEL: FootprintSection(weights=1 << 20)},  # of a GPU nothing is said
        {"other": FootprintSection(gpu=True)},
    ],
)
def test_a_model_that_needs_no_gpu_or_says_nothing_is_well_where_it_is(reading, footprints):
    causes = {one.cause for one in incidents(reading, footprints)}
    assert Cause.MISPLACED not in causes
    assert reading_with_footprints(reading, footprints) == reading


def test_one_on_a_host_with_gpus_or_of_an_unknown_number_is_not_misplaced():
    for gpus in (4, None):
        host = Host("i-1", "g5", gpus=gpus, memory_bytes=32 << 30)
        placed = Placed("t1", MODEL, "running", "i-1", needs_gpu=False)
        reading = Reading("aws", "aws", WALL, hosts=(host,), placed=(placed,))
        assert incidents(reading, {MODEL: FootprintSection(gpu=True)}) == []


def test_a_footprint_outranks_what_a_platform_reserved_and_a_declared_model_keeps_its_own():
    own = Declared("m-1", "m", needs_gpu=None, host="h")
    placed = {"m-1": Declared("m-1", "m", host="n1", needs_gpu=False), "x": Declared("x", "x")}
    told = with_placed({"m-1": own}, placed, {"m": FootprintSection(gpu=True, weights=7)})
    assert (told["m-1"].needs_gpu, told["m-1"].host) == (True, "n1")
    assert told["x"] == placed["x"]
    assert with_placed({"m-1": own}, placed)["m-1"].needs_gpu is False


def test_footprints_come_from_models_and_for_models_of_queues_from_a_section_of_their_own():
    model = {"name": "m", "engine": "vllm", "endpoints": ["http://h"], "footprint": {"gpu": True}}
    more = {"footprints": {MODEL: {"gpu": True, "weights": "4GB"}}}
    file = FleetFile.from_json(orjson.dumps({"models": [model], **more}))
    assert file.footprint_of_models() == {
        "m": FootprintSection(gpu=True),
        MODEL: FootprintSection(gpu=True, weights=4_000_000_000),
    }
    again = {"models": [model], "footprints": {"m": {"gpu": True}}}
    with pytest.raises(ValueError, match=r"footprints.m.*set it under 'footprint' of the model"):
        FleetFile.from_json(orjson.dumps(again))
