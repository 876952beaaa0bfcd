"""Models whose replicas are the pods of an InferencePool, and what is said of the pool."""

import asyncio

import pytest
from pydantic import ValidationError

from fakekube import FakeKube, node, pod
from fakekube.custom import CUSTOM, NEW, pool
from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.discovered_replica import discovered
from holdfast.control.deploy.discovery import Discovery
from holdfast.control.deploy.pool_notices import WHAT
from holdfast.core.messages import DrainAsked
from holdfast.core.view.layers import Host, Placed, Reading
from holdfast.core.view.pod_pools import PodPool, PodPools
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource

LABELS = (("app", "llama"),)
LLAMA = PodPool("a/llama", LABELS, (8000,))


def fleet_file(**discover):
    discover = {"source": "kube", "inference_pool": "llama", **discover}
    model = {"name": "m", "engine": "vllm", "discover": discover}
    source = {"type": "kubernetes", "name": "kube", "inference_pools": True}
    return FleetFile.model_validate({"models": [model], "sources": [source]})


def placed(name, *, ip="10.1.0.1", space="a", labels=LABELS, state="running", **more):
    more = {"created_at": 1.0, "uid": name, **more}
    return Placed(f"{space}/{name}", "", state, "n1", address=ip, labels=labels, **more)


def reading(*pods, pools=(LLAMA,), known=True, problem=""):
    hosts = (Host("n1", zone="z1"),)
    there = PodPools(tuple(pools), known, problem)
    return Reading("kube", "kubernetes", 1.0, hosts=hosts, placed=pods, pools=there)


class Stage:
    """What control is to discovery, without a fleet."""

    def __init__(self, store, file=None):
        self.file = file or fleet_file()
        self.events, self.notices = [], []
        self.discovery = Discovery(lambda: (), store, self)
        self.discovery.follow(self.file)

    def tell(self, *events):
        self.events += events

    def note(self, notice):
        self.notices.append(notice)

    def placed(self):
        """The places are asked for below."""

    @property
    def urls(self):
        return {one.id: one.url for one in self.discovery.endpoints()["m"]}

    @property
    def said(self):
        return [one.reason for one in self.notices if one.what == WHAT]


def test_pods_of_the_pool_are_replicas_at_its_port():
    seen = reading(
        placed("one", port_said="9999"),  # the pool's port holds, not the pod's own word
        placed("two", ip="10.1.0.2", labels=(*LABELS, ("zone", "x"))),
        placed("other", ip="10.1.0.3", labels=(("app", "qwen"),)),
        placed("there", ip="10.1.0.4", space="b"),
    )
    found = discovered(seen, fleet_file().models)["m"]
    assert {one.pod: one.url for one in found} == {
        "a/one": "http://10.1.0.1:8000",
        "a/two": "http://10.1.0.2:8000",
    }


def test_each_port_is_a_replica_of_its_own_and_all_drain_with_their_pod(store):
    two = PodPool("a/llama", LABELS, (8000, 8001))
    stage = Stage(store)
    stage.discovery.look(reading(placed("one"), pools=(two,)))
    assert stage.urls == {
        "one": "http://10.1.0.1:8000",
        "one-8001": "http://10.1.0.1:8001",
    }
    stage.discovery.look(reading(placed("one", state="stopping"), pools=(two,)))
    assert {one.replica_id for one in stage.events if isinstance(one, DrainAsked)} == {
        "one",
        "one-8001",
    }
    stage.discovery.look(reading(pools=(two,)))
    assert stage.urls == {}


def test_a_port_that_changes_moves_all_replicas_and_is_told(store):
    stage = Stage(store)
    stage.discovery.look(reading(placed("one")))
    assert stage.said == ["a/llama: pods with app=llama at port 8000"]
    stage.discovery.look(reading(placed("one"), pools=(PodPool("a/llama", LABELS, (9000,)),)))
    assert stage.urls == {"one": "http://10.1.0.1:9000"}
    assert stage.said[1:] == [
        "its replicas move from port 8000; a/llama: pods with app=llama at port 9000"
    ]


def test_a_pool_that_is_deleted_keeps_its_replicas_and_takes_no_new_one(store):
    stage = Stage(store)
    stage.discovery.look(reading(placed("one"), placed("two", ip="10.1.0.2")))
    stage.discovery.look(
        reading(placed("one"), placed("two", ip="10.1.0.2"), placed("new", ip="10.1.0.3"), pools=())
    )
    assert set(stage.urls) == {"one", "two"}
    assert stage.said[-1] == (
        "there is no inference pool llama (there is none at all); "
        "replicas that it has stay, and no new one is taken"
    )
    told = len(stage.notices)
    ending = placed("two", ip="10.1.0.2", state="stopping")
    stage.discovery.look(reading(placed("one"), ending, pools=()))
    assert [one.replica_id for one in stage.events] == ["two"]  # they are followed all the same
    stage.discovery.look(reading(placed("one"), pools=()))
    assert set(stage.urls) == {"one"}
    assert [one.what for one in stage.notices[told:]] == ["leaves", "gone"]
    stage.discovery.look(reading(placed("one"), placed("new", ip="10.1.0.3")))
    assert set(stage.urls) == {"one", "new"}
    assert stage.said[-1] == "a/llama: pods with app=llama at port 8000"


def test_another_pod_of_the_same_name_is_no_replica_of_a_pool_that_is_not_there(store):
    stage = Stage(store)
    stage.discovery.look(reading(placed("llama-0")))
    again = placed("llama-0", ip="10.1.0.9", uid="other")
    stage.discovery.look(reading(again, pools=()))
    assert stage.urls == {}
    stage.discovery.look(reading(again))
    assert stage.urls == {"llama-0": "http://10.1.0.9:8000"}


def test_the_next_control_keeps_them_too_while_pools_cannot_be_read(store):
    first = Stage(store)
    first.discovery.look(reading(placed("one")))
    second = Stage(store)
    second.discovery.look(reading(placed("one"), pools=(), known=False))
    assert (set(second.urls), second.said) == ({"one"}, [])  # not listed yet: nothing to say
    refused = reading(placed("one"), pools=(), known=False, problem="403 Forbidden: no right")
    second.discovery.look(refused)
    second.discovery.look(refused)
    assert set(second.urls) == {"one"}
    (told,) = second.said
    assert told.startswith("inference pools cannot be read: 403 Forbidden: no right; ")
    assert told.endswith("replicas that it has stay, and no new one is taken")


def test_a_pool_that_selects_nobody_says_so_and_follows_its_selector(store):
    stage = Stage(store)
    stage.discovery.look(reading(placed("db", labels=(("app", "database"),))))
    assert stage.urls == {}
    assert stage.said == ["a/llama: pods with app=llama at port 8000: there is no such pod"]
    other = PodPool("a/llama", (("app", "database"),), (8000,))
    stage.discovery.look(reading(placed("db", labels=(("app", "database"),)), pools=(other,)))
    assert set(stage.urls) == {"db"}
    assert stage.said[-1] == "a/llama: pods with app=database at port 8000"


def test_a_model_name_of_the_pool_that_the_file_does_not_have_is_told_once(store):
    named = PodPool("a/llama", LABELS, (8000,), models=("food-review", "m"))
    stage = Stage(store)
    stage.discovery.look(reading(placed("one"), pools=(named,)))
    stage.discovery.look(reading(placed("one"), placed("two", ip="10.1.0.2"), pools=(named,)))
    assert "a/llama also serves food-review, which no model here is called" in stage.said
    assert len(stage.said) == 2


@pytest.mark.parametrize(
    ("change", "field", "fix"),
    [
        ({"selector": "app=x"}, "discover.selector", "keep one of the two"),
        ({"port": 8000}, "discover.port", "keep one of the two"),
        ({"inference_pool": "No Name"}, "inference_pool", "pattern"),
        ({"source": "plain"}, "inference_pool", "set sources.1.inference_pools: true"),
        ({"source": "ecs"}, "inference_pool", "use a Kubernetes source"),
    ],
)
def test_what_does_not_fit_is_refused_with_field_and_fix(change, field, fix):
    rule = {"source": "kube", "inference_pool": "llama", **change}
    model = {"name": "m", "engine": "vllm", "discover": rule}
    sources = [
        {"type": "kubernetes", "name": "kube", "inference_pools": True},
        {"type": "kubernetes", "name": "plain"},
        {"type": "aws", "name": "ecs", "region": "eu-west-2"},
    ]
    with pytest.raises((ValidationError, ValueError)) as caught:
        FleetFile.model_validate({"models": [model], "sources": sources})
    assert field in str(caught.value)
    assert fix in str(caught.value)


def test_a_pool_of_an_api_server_becomes_replicas_and_its_deletion_takes_none_away(store):
    async def main(kube):
        config = KubernetesConfig(
            api_url=kube.url, retry_s=0.02, retry_max_s=0.1, inference_pools=True
        )
        source = KubernetesSource("kube", config)
        stage = Stage(store)
        stage.discovery = Discovery(lambda: (source,), store, stage)
        stage.discovery.follow(stage.file)
        job = asyncio.create_task(stage.discovery.run())

        async def until(condition):
            async with asyncio.timeout(20):
                while not condition():  # noqa: ASYNC110 discovery has nobody to tell
                    await asyncio.sleep(0.01)

        try:
            await until(lambda: set(stage.urls) == {"one"})
            await asyncio.to_thread(kube.await_watch, f"inferencepools.{NEW}")
            kube.delete(f"inferencepools.{NEW}", "llama", "inference")
            await until(lambda: any("there is no inference pool" in one for one in stage.said))
            assert set(stage.urls) == {"one"}
            kube.terminate("one", "inference")
            await until(lambda: [one.replica_id for one in stage.events] == ["one"])
        finally:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            await source.close()

    with FakeKube() as kube:
        kube.installed = set(CUSTOM)
        kube.put("nodes", node("node-1"))
        kube.put(
            f"inferencepools.{NEW}", pool("llama", {"app": "llama"}, 8000, namespace="inference")
        )
        kube.put("pods", pod("one", namespace="inference", labels={"app": "llama"}))
        asyncio.run(main(kube))
