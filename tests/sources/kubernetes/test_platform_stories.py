"""What a cluster says of its nodes and pods, told to the investigation beside what canaries see."""

import json
from pathlib import Path

import pytest

from fakekube import node, pod
from fakekube.objects import stamp
from holdfast.core.canary import CanarySuspect, CanaryVerdict
from holdfast.core.diagnose.facts import CanariesDoubted, CanaryAnswered, Looked, StateChanged
from holdfast.core.diagnose.investigation import Investigation
from holdfast.core.types import State, nanos
from holdfast.core.view.layers import Part, Reading
from holdfast.core.view.reading_diff import ReadingDiff
from holdfast.sources.kubernetes.nodes import read_node
from holdfast.sources.kubernetes.pods import read_pod

RECORDINGS = Path(__file__).parent / "recordings"
LABEL = "app.kubernetes.io/name"
WALL = 1_800_000_000.0


def recorded(name):
    return json.loads((RECORDINGS / f"{name}.json").read_text())["response"]["body"]


class Cluster:
    """Readings of a cluster, every five seconds, and canaries of its replicas in between."""

    def __init__(self):
        self.diff = ReadingDiff()
        self.investigation = Investigation()
        self.at = 0.0

    @property
    def now(self):
        return nanos(1_000 + self.at)

    def read(self, nodes, pods):
        wall = WALL + self.at
        self.take(
            self.diff.take(
                Reading(
                    "kube",
                    "kubernetes",
                    wall,
                    (Part("nodes", wall), Part("pods", wall)),
                    hosts=tuple(read_node(one).host for one in nodes),
                    placed=tuple(read_pod(one, LABEL, None).placed for one in pods),
                ),
                self.now,
                wall,
            )
        )

    def take(self, facts):
        for fact in facts:
            self.investigation.take(fact, self.now)

    def pass_s(self, seconds, nodes, pods, *answers):
        """Let time pass: a reading and one canary of each replica every five seconds."""
        for _ in range(int(seconds / 5)):
            self.at += 5
            self.read(nodes, pods)
            self.take(answers)
            self.take([Looked()])

    def causes(self):
        found = self.investigation.incidents.values()
        return [(str(one.about), one.cause.value) for one in found if one.closed_at is None]


def frozen(name="default/m-1"):
    """A canary that found the port open, and nothing behind it, not even the health page."""
    return CanaryAnswered(name, CanaryVerdict.TIMEOUT, running=0, progress=False, page_ok=False)


def right(name="default/m-1"):
    return CanaryAnswered(name, CanaryVerdict.PASS, 0.3, running=0, page_ok=True)


def on(host, name="m-1"):
    return pod(name, model="m", host=host, created_at=WALL - 3_600)


def out(name="default/m-1"):
    return StateChanged(name, State.QUARANTINED, "canary", "two canaries in a row")


def test_a_frozen_engine_on_a_node_that_stopped_posting_is_the_node_s_failure():
    """The real server's node: Ready is Unknown, and it has the taint that it is unreachable."""
    cluster, gone = Cluster(), recorded("node-spot-taint")
    well = node("gpu-0", gpus=8)
    cluster.pass_s(30, [well], [on("gpu-0")], right())
    cluster.pass_s(20, [well], [on("gpu-0")], frozen())  # before anybody noticed
    cluster.take([out()])
    assert cluster.causes() == [("default/m-1", "frozen")]
    cluster.pass_s(60, [gone], [on("gpu-0")], frozen())
    assert cluster.causes() == [("gpu-0", "host_unavailable")]
    (incident,) = (one for one in cluster.investigation.incidents.values() if one.closed_at is None)
    assert any("Kubelet stopped posting node status" in one.text for one in incident.evidence)
    assert incident.replicas == ("default/m-1",)
    assert "debugger" not in incident.fix


@pytest.mark.parametrize("verdict", [CanaryVerdict.TIMEOUT, CanaryVerdict.REFUSED])
def test_an_engine_that_is_silent_on_a_node_that_is_not_ready_is_the_node_s_failure(verdict):
    cluster = Cluster()
    ill = node("node-1", ready=False)
    quiet = CanaryAnswered("default/m-1", verdict, running=0, progress=False, page_ok=True)
    cluster.pass_s(30, [node("node-1")], [on("node-1")], right())
    cluster.take([out()])
    cluster.pass_s(60, [ill], [on("node-1")], quiet)
    assert cluster.causes() == [("node-1", "host_unavailable")]


def test_a_frozen_engine_on_a_node_that_is_being_drained_is_the_node_s_failure():
    cluster = Cluster()
    drained = node("node-1")
    drained["spec"]["unschedulable"] = True
    cluster.pass_s(30, [node("node-1")], [on("node-1")], right())
    cluster.take([out()])
    cluster.pass_s(60, [drained], [on("node-1")], frozen())
    assert cluster.causes() == [("node-1", "host_unavailable")]


def test_all_engines_of_one_node_are_one_incident_and_those_elsewhere_another():
    cluster, gone = Cluster(), recorded("node-spot-taint")
    well = node("node-1")
    names = ("default/m-1", "default/m-2", "default/m-3", "default/m-4")
    pods = [on("gpu-0"), on("gpu-0", "m-2"), on("node-1", "m-3"), on("node-1", "m-4")]
    cluster.pass_s(30, [node("gpu-0"), well], pods, *map(right, names))
    cluster.take([out(name) for name in names[:3]])
    cluster.pass_s(60, [gone, well], pods, *map(frozen, names[:3]), right(names[3]))
    assert sorted(cluster.causes()) == [("default/m-3", "frozen"), ("gpu-0", "host_unavailable")]


def all_doubted():
    return CanariesDoubted.by(CanarySuspect.SHARED, "m", "no replica of m answers")


def test_a_model_that_is_silent_because_all_of_it_is_on_one_node_is_the_node_s_failure():
    cluster, gone = Cluster(), recorded("node-spot-taint")
    names, pods = ("default/m-1", "default/m-2"), [on("gpu-0"), on("gpu-0", "m-2")]
    cluster.pass_s(30, [node("gpu-0")], pods, *map(right, names))
    cluster.pass_s(40, [node("gpu-0")], pods, *map(frozen, names), all_doubted())
    assert ("m", "all_silent") in cluster.causes()
    cluster.pass_s(60, [gone], pods, *map(frozen, names), all_doubted())
    assert cluster.causes() == [("gpu-0", "host_unavailable")]


def test_a_model_that_is_silent_on_other_nodes_too_is_not_explained_by_one_of_them():
    cluster, gone, well = Cluster(), recorded("node-spot-taint"), node("node-1")
    names, pods = ("default/m-1", "default/m-2"), [on("gpu-0"), on("node-1", "m-2")]
    cluster.pass_s(30, [node("gpu-0"), well], pods, *map(right, names))
    cluster.pass_s(100, [gone, well], pods, *map(frozen, names), all_doubted())
    assert {("gpu-0", "host_unavailable"), ("m", "all_silent")} <= set(cluster.causes())


def test_a_node_that_is_not_ready_is_no_failure_of_an_engine_that_answers():
    cluster = Cluster()
    cluster.pass_s(120, [node("node-1", ready=False)], [on("node-1")], right())
    assert cluster.causes() == []


def test_a_wrong_answer_is_not_the_failure_of_a_node_that_is_not_ready():
    cluster = Cluster()
    wrong = CanaryAnswered("default/m-1", CanaryVerdict.WRONG, 0.3, page_ok=True)
    cluster.pass_s(60, [node("node-1", ready=False)], [on("node-1")], wrong)
    assert cluster.causes() == [("default/m-1", "wrong_output")]


def test_a_frozen_engine_on_a_node_of_which_nothing_is_known_stays_frozen():
    cluster = Cluster()
    unknown = node("node-1")
    unknown["status"]["conditions"] = []
    cluster.pass_s(30, [unknown], [on("node-1")], right())
    cluster.take([out()])
    cluster.pass_s(60, [unknown], [on("node-1")], frozen())
    assert cluster.causes() == [("default/m-1", "frozen")]


def test_a_hung_model_with_a_green_page_on_a_cordoned_node_is_its_own_failure():
    """Nodes stay cordoned for days; what stops at one leaves its health page silent, too."""
    cluster = Cluster()
    cordoned = node("node-1")
    cordoned["spec"]["unschedulable"] = True
    hung = CanaryAnswered(
        "default/m-1", CanaryVerdict.TIMEOUT, running=0, progress=False, page_ok=True
    )
    cluster.pass_s(30, [cordoned], [on("node-1")], right())
    cluster.take([out()])
    cluster.pass_s(60, [cordoned], [on("node-1")], hung)
    assert cluster.causes() == [("default/m-1", "hung")]


def test_the_incident_ends_when_the_node_is_back_and_its_engines_answer():
    cluster, gone = Cluster(), recorded("node-spot-taint")
    cluster.pass_s(30, [node("gpu-0")], [on("gpu-0")], right())
    cluster.take([out()])
    cluster.pass_s(60, [gone], [on("gpu-0")], frozen())
    assert cluster.causes() == [("gpu-0", "host_unavailable")]
    cluster.take([StateChanged("default/m-1", State.READY, "canary", "answers again")])
    cluster.pass_s(180, [node("gpu-0")], [on("gpu-0")], right())
    assert cluster.causes() == []


def test_an_engine_that_stays_frozen_when_its_node_is_back_has_a_failure_of_its_own():
    cluster, gone = Cluster(), recorded("node-spot-taint")
    cluster.pass_s(30, [node("gpu-0")], [on("gpu-0")], right())
    cluster.take([out()])
    cluster.pass_s(60, [gone], [on("gpu-0")], frozen())
    assert cluster.causes() == [("gpu-0", "host_unavailable")]
    cluster.pass_s(60, [node("gpu-0")], [on("gpu-0")], frozen())
    assert ("default/m-1", "frozen") in cluster.causes()
    cluster.pass_s(120, [node("gpu-0")], [on("gpu-0")], frozen())
    assert cluster.causes() == [("default/m-1", "frozen")]


def test_a_node_that_nobody_can_read_any_more_explains_nothing_new():
    cluster, gone = Cluster(), recorded("node-spot-taint")
    cluster.pass_s(30, [node("gpu-0")], [on("gpu-0")], right())
    cluster.take([out()])
    cluster.pass_s(60, [gone], [on("gpu-0")], frozen())
    for _ in range(80):  # canaries go on; the API server does not answer
        cluster.at += 5
        cluster.take([frozen(), Looked()])
    assert cluster.causes() == [("default/m-1", "frozen")]


# --- ends -----------------------------------------------------------------------------------------


def evicted(name="m-1", uid="u-1", at=WALL - 60):
    made = pod(name, model="m", phase="Failed", created_at=WALL - 3_600)
    made["metadata"]["uid"] = uid
    made["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
    made["status"]["conditions"][1]["lastTransitionTime"] = stamp(at)
    ended = {"exitCode": 137, "reason": "Error", "startedAt": stamp(WALL - 3_500)}
    made["status"]["containerStatuses"][0]["state"] = {
        "terminated": {**ended, "finishedAt": stamp(at)}
    }
    return made


def test_an_evicted_pod_that_is_listed_on_is_no_new_incident_for_a_control_that_began_anew():
    first = Cluster()
    first.pass_s(10, [node("node-1")], [on("node-1")], right())
    first.pass_s(10, [node("node-1")], [evicted()])
    assert len(first.investigation.incidents) == 1
    second = Cluster()
    second.diff.restore(json.loads(json.dumps(first.diff.told_ends())))
    second.pass_s(60, [node("node-1")], [evicted()])
    assert not second.investigation.incidents


def test_another_pod_of_the_same_name_that_is_evicted_later_is_news():
    cluster = Cluster()
    cluster.pass_s(10, [node("node-1")], [evicted()])
    assert len(cluster.causes()) == 1
    cluster.pass_s(700, [node("node-1")], [on("node-1")], right())
    assert cluster.causes() == []
    cluster.pass_s(10, [node("node-1")], [evicted(uid="u-2", at=WALL + cluster.at)])
    assert len(cluster.causes()) == 1
