"""Pods as replicas: by readings alone, with a real fleet loop, and against a fake API server."""

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from discovery_stage import PORTS, Stage, fleet_file, labelled, placed, reading
from fakekube import FakeKube, node, pod
from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy import discovery as module
from holdfast.control.deploy.discovered_replica import discovered
from holdfast.control.fleet.loop import TICK, FleetLoop
from holdfast.control.gateways.previous_state import without_placed_endpoints
from holdfast.core.health.own_lateness import LoopWatch
from holdfast.core.messages import DrainAsked, UndrainAsked
from holdfast.core.types import State
from holdfast.core.view.layers import Host, Placed
from holdfast.frames import ConfigFrame
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.testing.standin.faults import fault


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (placed("a", ports=PORTS), "no port of the name 'grpc' (it has metrics, http)"),
        (placed("a"), "no port of the name 'grpc' (it names none)"),
        (placed("a", ports=PORTS, port_said="0"), "asks for the port '0'; use a number from 1"),
        (placed("a", ports=PORTS, port_said="web_1"), "asks for the port 'web_1'; use a number"),
        (placed("a", ports=PORTS, port_said="web"), "no port of the name 'web'"),
    ],
)
def test_a_pod_without_such_a_port_is_left_out_and_says_why_once(store, one, told):
    stage = Stage(store, fleet_file(port="grpc"))
    other = placed("b", ip="10.1.0.2", ports=(("grpc", 50_051),))
    stage.discovery.look(reading(one, other))
    stage.discovery.look(reading(one, other))
    assert stage.discovery.ids() == {"b"}
    (notice,) = stage.said("left out")
    assert "pod default/a: " in notice.reason
    assert told in notice.reason


def test_a_replica_whose_pod_is_edited_to_a_port_that_is_none_serves_on_where_it_was(store):
    stage = Stage(store, fleet_file(port="http"))
    one = placed("a", ports=PORTS)
    stage.discovery.look(reading(one))
    stage.discovery.look(reading(replace(one, port_said="web")))
    assert [one.url for one in stage.discovery.endpoints()["m"]] == ["http://10.1.0.1:8001"]
    assert "'web'" in stage.said("left out")[0].reason
    stage.discovery.look(reading(replace(one, port_said="9001")))
    assert [one.url for one in stage.discovery.endpoints()["m"]] == ["http://10.1.0.1:9001"]


def test_a_pod_comes_leaves_and_goes(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("a")))
    assert stage.told == [("placed", "a")]
    stage.discovery.look(reading(placed("a")))
    assert len(stage.told) == 1  # nothing new
    stage.discovery.look(reading(placed("a", state="stopping")))
    why = "its pod default/a was told to end"
    assert stage.told[1] == ("tell", DrainAsked("a", why))
    assert stage.discovery.leavers() == [DrainAsked("a", why)]
    assert stage.discovery.leaves("a")
    assert [one.id for one in stage.discovery.endpoints()["m"]] == ["a"]  # until it is gone
    assert len(stage.told) == 2  # and gateways need no other file for that
    stage.discovery.look(reading())
    assert stage.told[-1] == ("placed",)
    assert stage.discovery.leavers() == []
    assert [notice.what for notice in stage.notices] == [
        "discovered",
        "leaves",
        "gone",
        "has no replica",
    ]


def test_one_that_is_leaving_when_it_is_first_seen_never_joins(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("a", state="stopping")))
    assert stage.told == []
    assert stage.discovery.ids() == set()


def test_another_pod_by_the_same_name_is_not_taken_for_the_first(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("a", uid="1")))
    stage.discovery.look(reading(placed("a", uid="1", state="stopping")))
    stage.told.clear()
    stage.discovery.look(reading(placed("a", uid="2")))
    assert stage.told == [("placed",), ("placed", "a")]
    assert not stage.discovery.leaves("a")
    assert len(stage.said("discovered")) == 2


def test_ids_that_others_have_are_not_taken(store):
    launched = {"name": "web", "engine": "vllm", "launch": {"weights": "w"}}
    stage = Stage(store, fleet_file(launched))
    pods = [
        placed("listed-1"),
        placed("web-7", ip="10.1.0.2"),
        placed("same", ip="10.1.0.3"),
        placed("same", ip="10.1.0.4", space="other"),
    ]
    stage.discovery.look(reading(*pods))
    assert stage.discovery.ids() == {
        "default.listed-1",
        "default.web-7",
        "same",
        "other.same",
    }
    assert stage.discovery.pods()["kube", "other/same"] == "other.same"
    stage.discovery.look(reading(*reversed(pods)))
    assert stage.discovery.pods()["kube", "other/same"] == "other.same"


def test_a_pod_of_two_models_is_two_replicas(store):
    rule = {"source": "kube", "selector": "app"}
    other = {"name": "n", "engine": "vllm", "discover": rule}
    stage = Stage(store, fleet_file(other, selector="app"))
    stage.discovery.look(reading(placed("a", labels=(("app", "x"),))))
    assert stage.discovery.ids() == {"a", "default.a"}
    assert [len(ends) for ends in stage.discovery.endpoints().values()] == [1, 1]


def test_what_changes_about_other_models_costs_nothing(store, monkeypatch):
    """In a large cluster some pod changes all the while."""
    looked = []
    monkeypatch.setattr(module, "discovered", lambda *args: looked.append(1) or discovered(*args))
    stage = Stage(store, fleet_file())
    other = placed("x", model="other", ip="10.1.0.9")
    stage.discovery.look(reading(placed("a"), other))
    before = len(looked)
    stage.discovery.look(reading(placed("a"), replace(other, ready=False)))
    assert len(looked) == before
    stage.discovery.look(reading(placed("a"), other, hosts=(Host("n1", zone="z2"),)))
    assert len(looked) == before + 1  # it stands in another zone
    stage.discovery.look(reading(placed("a", state="stopping"), other))
    assert stage.discovery.leaves("a")
    by_label = Stage(store, fleet_file(selector="app"))
    by_label.discovery.look(reading(other))
    by_label.discovery.look(reading(replace(other, labels=(("app", "x"),))))
    assert by_label.discovery.ids() == {"x"}  # whose model is another, by its source


def task(name, *, revision="m:1", ip="10.1.0.1", **more):
    """A task of ECS: no namespace, and its definition for a revision."""
    labels = (("task-definition", revision),)
    return Placed(name, "m", "running", "i-1", address=ip, uid=name, labels=labels, **more)


def test_tasks_of_ecs_are_replicas_by_their_own_id_with_their_definition_for_a_revision(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(task("0f1e"), task("2d3c", revision="m:2", ip="10.1.0.2")))
    ends = stage.discovery.endpoints()["m"]
    assert [(one.id, one.revision) for one in ends] == [("0f1e", "m:1"), ("2d3c", "m:2")]


def test_a_task_on_its_host_s_address_is_reached_at_the_port_that_ecs_chose(store):
    stage = Stage(store, fleet_file(port=8000))
    stage.discovery.look(reading(task("0f1e", port_said="32768"), task("2d3c", ip="10.1.0.2")))
    urls = {one.id: str(one.url) for one in stage.discovery.endpoints()["m"]}
    assert urls == {"0f1e": "http://10.1.0.1:32768", "2d3c": "http://10.1.0.2:8000"}


def test_a_task_of_two_models_is_two_replicas(store):
    rule = {"source": "kube", "selector": "task-definition"}
    other = {"name": "n", "engine": "vllm", "discover": rule}
    stage = Stage(store, fleet_file(other, selector="task-definition"))
    stage.discovery.look(reading(task("0f1e")))
    assert stage.discovery.ids() == {"0f1e", "n.0f1e"}


def test_a_pod_s_revision_is_its_template_s_so_that_other_weights_are_not_judged_by_the_old(store):
    stage = Stage(store, fleet_file())
    old, new = labelled("a", pod_template_hash="aa"), labelled("b", pod_template_hash="bb")
    stage.discovery.look(reading(old, replace(new, address="10.1.0.2")))
    assert [one.revision for one in stage.discovery.endpoints()["m"]] == ["aa", "bb"]
    assert [one.replica.revision for one in stage.configs[-1].models[0].deployed()] == ["aa", "bb"]


def test_a_label_that_is_edited_starts_no_revision_and_another_pod_does(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(labelled("a", pod_template_hash="aa")))
    stage.discovery.look(reading(labelled("a", pod_template_hash="bb")))
    assert stage.discovery.endpoints()["m"][0].revision == "aa"
    other = replace(labelled("a", pod_template_hash="bb"), uid="another")
    stage.discovery.look(reading(other))
    assert stage.discovery.endpoints()["m"][0].revision == "bb"


def test_a_pod_that_was_kept_without_a_revision_keeps_the_model_s(store):
    kept = {"pod": "default/a", "uid": "a", "url": "http://10.1.0.1:8000", "id": "a"}
    store.put_setting("discovered/m", [kept])
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(labelled("a", pod_template_hash="aa")))
    assert stage.discovery.endpoints()["m"][0].revision is None


def test_a_pod_that_ended_is_still_known_by_the_id_it_served_under(store):
    """Evicted, it is listed for a while: what its platform says then is said of that replica."""
    launched = {"name": "web", "engine": "vllm", "launch": {"weights": "w"}}
    stage = Stage(store, fleet_file(launched))
    stage.discovery.look(reading(placed("web-7")))
    assert stage.discovery.replica_of("kube", "default/web-7") == "default.web-7"
    stage.discovery.look(reading(placed("web-7", state="stopped")))
    assert stage.discovery.ids() == set()
    assert stage.discovery.replica_of("kube", "default/web-7") == "default.web-7"
    assert stage.discovery.replica_of("kube", "default/other") == ""


# --- readiness ------------------------------------------------------------------------------------


def two(a, b):
    return reading(placed("a", ready=a), placed("b", ip="10.1.0.2", ready=b))


def test_a_pod_that_is_ready_no_more_is_drained_until_it_is_again(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(two(True, True))
    stage.told.clear()
    stage.discovery.look(two(False, True))
    why = "its pod default/a is not ready any more, as its platform says"
    assert stage.told == [("tell", DrainAsked("a", why))]  # and no new file
    assert stage.discovery.leavers() == [DrainAsked("a", why)]
    assert Stage(store, fleet_file()).discovery.leavers() == [DrainAsked("a", why)]
    stage.discovery.look(two(False, True))
    stage.discovery.look(two(True, True))
    assert stage.told[1:] == [("tell", UndrainAsked("a", "its pod default/a may serve again"))]


def test_a_pod_that_ends_is_gone_or_is_drained_is_withdrawn_and_its_successor_is_not(store):
    stage = Stage(store, fleet_file())
    withdrawn, look = stage.discovery.withdrawn, stage.discovery.look
    b = placed("b", ip="10.1.0.2", ready=True)
    look(reading(placed("a", ready=True), b))
    assert not withdrawn("a")
    assert not withdrawn("stranger")
    look(reading(placed("a", ready=False), b))
    assert withdrawn("a")  # by its own probe
    look(reading(placed("a", ready=True), b))
    assert not withdrawn("a")
    look(reading(placed("a", state="stopping"), b))
    assert withdrawn("a")
    look(reading(b))
    assert withdrawn("a")
    assert not withdrawn("b")
    look(reading(placed("a", uid="another"), b))
    assert not withdrawn("a")


def test_a_pod_whose_probe_repeats_our_own_verdict_is_not_drained_for_it(store):
    stage = Stage(store, fleet_file())
    labels = (("holdfast.dev/readiness", "verdict"),)
    for ready in (True, False):
        a = placed("a", ready=ready, labels=labels)
        stage.discovery.look(reading(a, placed("b", ip="10.1.0.2", ready=True)))
    assert stage.told == [("placed", "a", "b")]
    assert stage.discovery.leavers() == []


def test_a_pod_that_was_never_ready_is_left_to_canaries(store):
    stage = Stage(store, fleet_file())
    for _ in range(2):
        stage.discovery.look(two(False, True))
    assert stage.told == [("placed", "a", "b")]


def test_a_platform_that_does_not_say_drains_nobody(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(two(True, True))
    stage.discovery.look(two(None, None))
    assert stage.told == [("placed", "a", "b")]


def test_probes_that_fail_everywhere_drain_half_and_no_more(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(two(True, True))
    stage.discovery.look(two(False, False))
    assert [event[1].replica_id for event in stage.told[1:]] == ["a"]
    stage.discovery.look(two(True, False))  # the first is back: now it may be the other
    assert [type(event) for event in stage.told[-1][1:]] == [UndrainAsked, DrainAsked]


def test_what_cannot_be_an_endpoint_is_left_out_and_told_once(store):
    stage = Stage(store, fleet_file())
    for _ in range(3):
        stage.discovery.look(reading(placed("a", ip="10.1.0.999"), placed("b")))
    assert stage.discovery.ids() == {"b"}
    (notice,) = stage.said("left out")
    assert notice.reason.startswith("pod default/a: it cannot be an endpoint")


def test_a_name_that_became_somebody_elses_is_left_out(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("x-1")))
    stage.file = fleet_file({"name": "x", "engine": "vllm", "endpoints": ["http://h:1"]})
    stage.discovery.follow(stage.file)
    stage.placed()
    assert stage.discovery.ids() == set()
    assert "rename one of them" in stage.said("left out")[0].reason


def test_long_names_fit_and_stay_apart(store):
    stage = Stage(store, fleet_file())
    long = "x" * 200
    for _ in range(2):
        stage.discovery.look(reading(placed(long + "a"), placed(long + "b", ip="10.1.0.2")))
        assert len(stage.discovery.ids()) == 2
    assert len(stage.told) == 1
    assert all(len(one) <= 128 for one in stage.discovery.ids())


def test_a_zone_stays_when_its_host_is_gone_first(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("a")))
    stage.discovery.look(reading(placed("a"), hosts=()))
    assert stage.discovery.endpoints()["m"][0].zone == "z1"
    assert len(stage.told) == 1


def test_a_changed_rule_holds_at_once(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("a")))
    stage.discovery.follow(fleet_file(port=9000))
    assert stage.discovery.endpoints()["m"][0].url == "http://10.1.0.1:9000"
    without = FleetFile.model_validate(
        {"models": [{"name": "l", "engine": "vllm", "endpoints": ["http://h:1"]}]}
    )
    stage.discovery.follow(without)
    assert stage.discovery.endpoints() == {}


def test_another_control_begins_with_what_was_known(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("a"), placed("b", ip="10.1.0.2", state="running")))
    stage.discovery.look(reading(placed("a"), placed("b", ip="10.1.0.2", state="stopping")))
    again = Stage(store, fleet_file())
    assert again.discovery.ids() == {"a", "b"}
    assert again.discovery.endpoints() == stage.discovery.endpoints()
    assert again.discovery.leaves("b")


@pytest.mark.parametrize(
    "kept", [None, "x", [1], [{"id": "a"}], [{"pod": "d/a", "uid": "", "url": "no", "id": "a"}]]
)
def test_what_was_kept_and_makes_no_sense_is_left(store, kept):
    store.put_setting("discovered/m", kept)
    assert Stage(store, fleet_file()).discovery.ids() == set()


def test_a_config_that_was_left_behind_is_read_without_places(store):
    stage = Stage(store, fleet_file())
    stage.discovery.look(reading(placed("a")))
    left = ConfigFrame(3, stage.configs[-1].to_json())
    assert without_placed_endpoints(left) == fleet_file().to_json()


# --- with a real fleet loop and a real watch ------------------------------------------------------


class Fleet(Stage):
    """With the loop that control has, and nobody to launch or stop anything."""

    def __init__(self, store, file, source, world):
        self.asked = 0
        super().__init__(store, file, (source,))
        watch = LoopWatch(TICK, time.monotonic_ns())
        self.loop = FleetLoop(self, watch, world.canaries(), self, 1)

    def tell(self, *events):
        super().tell(*events)
        self.loop.tell(*events)

    def placed(self):
        super().placed()
        file = self.configs[-1]
        self.loop.adopt(file.replicas(), file.fleet_config())
        self.loop.tell(*self.discovery.leavers())

    def publish(self, view):
        pass

    def move(self, action):
        pass

    def saw(self, fact):
        pass

    def answered(self, result, *, slow, inflight):
        pass

    def launch(self, replica_id, delay):
        return False

    def stop(self, replica_id):
        return False

    def heard(self, replica_id, source):
        pass

    def state(self, replica_id):
        health = self.loop.health(replica_id)
        return health.state if health is not None else None


@asynccontextmanager
async def fleet(kube, store, world, **discover):
    config = KubernetesConfig(api_url=kube.url, retry_s=0.02, retry_max_s=0.1)
    source = KubernetesSource("kube", config)
    stage = Fleet(store, fleet_file(**discover), source, world)
    stage.placed()
    stage.loop.start()
    running = asyncio.create_task(stage.discovery.run())
    try:
        yield stage
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await stage.loop.stop()
        await source.close()


def test_a_pod_from_its_birth_to_its_end(store, world):
    async def main(kube):
        engine = await world.standin(models=("m",))
        port = int(engine.url.rpartition(":")[2])
        async with fleet(kube, store, world, port=port) as stage:
            await asyncio.to_thread(kube.await_watch, "pods")
            kube.put("pods", pod("m-abc", model="m", ip="127.0.0.1", ready=False))
            # Not ready by its own probe, and yet a replica: canaries find that it serves.
            await world.until(lambda: stage.state("m-abc") is State.READY)
            assert stage.loop.deployed["m-abc"].replica.zone == "z1"
            (row,) = stage.discovery._sources()[0].reading().placed
            assert row.replica == "m-abc"  # what joins the pod to the replica
            # The watch breaks, and the API server with it: who is known stays.
            kube.refuse("*", 500)
            kube.cut(abrupt=True)
            source = stage.discovery._sources()[0]
            await world.until(lambda: source.reading().parts[1].error)
            assert stage.state("m-abc") is State.READY
            kube.refuse("*", 0)
            await world.until(lambda: not source.reading().parts[1].error)
            lists = len([q for _, q in kube.asked("/pods") if "watch" not in q])
            # Told to end: it drains at the word of the watch, and no list is needed for that.
            kube.terminate("m-abc")
            out = (State.DRAINING, State.STOPPED)
            await world.until(lambda: stage.state("m-abc") in out)
            assert len([q for _, q in kube.asked("/pods") if "watch" not in q]) == lists
            drained = [event for told in stage.told for event in told if told[0] == "tell"]
            assert DrainAsked("m-abc", "its pod default/m-abc was told to end") in drained
            assert "m-abc" in stage.loop.deployed
            kube.delete("pods", "m-abc")
            await world.until(lambda: "m-abc" not in stage.loop.deployed)
        await engine.stop()

    with FakeKube() as kube:
        kube.put("nodes", node("node-1", labels={"topology.kubernetes.io/zone": "z1"}))
        asyncio.run(main(kube))


def test_a_rollout_to_weights_that_answer_differently_is_served_and_nobody_is_wrong(store, world):
    """On another template other answers are right; the old ones go on being right on the old."""

    async def main(kube):
        old = await world.standin(models=("m",))
        port = int(old.url.rpartition(":")[2])
        new = await world.standin(port, "127.0.0.2", models=("m",))
        new.engine.set_fault(fault("wrong_output"))  # always the same words, and others than before
        async with fleet(kube, store, world, port=port) as stage:
            await asyncio.to_thread(kube.await_watch, "pods")
            first = pod("m-aa", model="m", ip="127.0.0.1", labels={"pod-template-hash": "aa"})
            kube.put("pods", first)
            await world.until(lambda: stage.state("m-aa") is State.READY)
            second = pod("m-bb", model="m", ip="127.0.0.2", labels={"pod-template-hash": "bb"})
            kube.put("pods", second)
            await world.until(lambda: stage.state("m-bb") is State.READY)
            assert stage.state("m-aa") is State.READY
            deployed = stage.loop.deployed
            assert [deployed[one].replica.revision for one in ("m-aa", "m-bb")] == ["aa", "bb"]
            kube.terminate("m-aa")
            await world.until(lambda: stage.state("m-aa") in (State.DRAINING, State.STOPPED))
            assert stage.state("m-bb") is State.READY
        await old.stop()
        await new.stop()

    with FakeKube() as kube:
        kube.put("nodes", node("node-1"))
        asyncio.run(main(kube))


def test_a_control_that_begins_while_nobody_answers_keeps_who_was_known(store, world):
    before = Stage(store, fleet_file())
    before.discovery.look(reading(placed("a", ip="127.0.0.1")))

    async def main(kube):
        async with fleet(kube, store, world) as stage:
            await asyncio.to_thread(kube.await_request, "/pods", 3)
            assert set(stage.loop.deployed) == {"a", "listed-1"}
            kube.refuse("*", 0)
            await world.until(lambda: "a" not in stage.loop.deployed)

    with FakeKube() as kube:
        kube.refuse("*", 503)
        asyncio.run(main(kube))


def test_a_source_that_a_reload_takes_away_is_let_go(store):
    class Still:
        name = "kube"
        replica_of = None
        known = True
        ended = False

        async def changed(self, since):
            if since < 0:
                return 0
            try:
                return await asyncio.Event().wait()
            finally:
                self.ended = True

        def glance(self):
            return reading(placed("a"))

    async def main():
        still = Still()
        sources = [still, object()]
        stage = Stage(store, fleet_file(), sources)
        running = asyncio.create_task(stage.discovery.run())
        async with asyncio.timeout(20):
            while not stage.discovery.ids():  # noqa: ASYNC110 what is waited for has no event
                await asyncio.sleep(0.005)
            sources.clear()
            while not still.ended:  # noqa: ASYNC110 as above
                await asyncio.sleep(0.005)
        assert stage.discovery.ids() == {"a"}  # nobody said that it is gone
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
