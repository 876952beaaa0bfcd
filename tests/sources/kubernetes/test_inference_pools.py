"""InferencePools of both groups: read, watched, missing, refused, and the pods that they select."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from fakekube import Right, pod
from fakekube.custom import CUSTOM, NEW, OLD, of_pool, pool
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.sources.kubernetes.inference_pools import PART, read_objective, read_pool

POOLS, OLD_POOLS = f"inferencepools.{NEW}", f"inferencepools.{OLD}"
LABELS = {"app": "llama"}
VERBS = ("list", "watch")


@asynccontextmanager
async def source(kube, **more):
    said = {"api_url": kube.url, "retry_s": 0.02, "retry_max_s": 0.1, "inference_pools": True}
    found = KubernetesSource("kube", KubernetesConfig(**said, **more))
    try:
        yield found
    finally:
        await found.close()


async def until(found, condition):
    async with asyncio.timeout(20):
        seen = 0
        while not condition(found.glance()):
            seen = await found.changed(seen)


def part(reading):
    return next(one for one in reading.parts if one.name == PART)


@pytest.mark.parametrize(
    ("thing", "labels", "ports", "problem"),
    [
        (pool("p", LABELS, 8000), (("app", "llama"),), (8000,), ""),
        (pool("p", LABELS, 8000, group=OLD), (("app", "llama"),), (8000,), ""),
        (pool("p", LABELS, 8001, 8000, 8001), (("app", "llama"),), (8000, 8001), ""),
        (pool("p", {}, 8000), (), (8000,), "no labels"),
        (pool("p", LABELS), (("app", "llama"),), (), "names no port"),
        (pool("p", LABELS, 70_000), (("app", "llama"),), (), "names no port"),
        (pool("p", LABELS, 8000, appProtocol="http"), (("app", "llama"),), (8000,), ""),
        (
            pool("p", LABELS, 8000, appProtocol="kubernetes.io/h2c"),
            (("app", "llama"),),
            (8000,),
            "kubernetes.io/h2c",
        ),
    ],
)
def test_a_pool_is_read_as_its_group_has_it(thing, labels, ports, problem):
    found = read_pool(thing)
    assert (found.id, found.labels, found.ports) == ("default/p", labels, ports)
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)


def test_an_objective_has_its_name_and_priority():
    told = read_objective(of_pool("urgent", "p", priority=10))
    assert (told.pool, told.name) == ("default/p", "urgent (priority 10)")
    assert read_objective(of_pool("any", "p")).name == "any"


def test_pools_and_their_pods_are_seen_and_followed(kube):
    kube.installed = set(CUSTOM)
    kube.put(POOLS, pool("llama", LABELS, 8000))
    kube.put(f"inferencemodels.{OLD}", of_pool("m", "llama", modelName="food-review"))
    kube.put(f"inferenceobjectives.{OLD}", of_pool("urgent", "llama", priority=1))
    kube.put("pods", pod("a", labels=LABELS))  # without a model's label: the pool has it
    kube.put("pods", pod("db", labels={"app": "database"}))

    async def main():
        async with source(kube) as found:
            reading = await found.read()
            (one,) = reading.pools.rows
            assert reading.pools.known
            assert [row.id for row in reading.placed] == ["default/a"]
            assert [row.id for row in found.glance().placed] == ["default/a"]
            assert part(reading).error == ""
            assert part(reading).at is not None
            await until(found, lambda seen: seen.pools.rows[0].models == ("food-review",))
            await until(found, lambda seen: bool(seen.pools.rows[0].objectives))
            assert (one.id, one.ports) == ("default/llama", (8000,))
            await asyncio.to_thread(kube.await_watch, POOLS)
            kube.bookmark()
            kube.put(POOLS, pool("llama", LABELS, 8001))
            await until(found, lambda seen: seen.pools.rows[0].ports == (8001,))
            kube.put(POOLS, pool("llama", {"app": "nobody"}, 8001))
            await until(found, lambda seen: not seen.placed)
            (note,) = [one for one in found.reading().notes if "inference pool" in one]
            told = "inference pool default/llama: pods with app=nobody at port 8001"
            assert note == f"{told}: there is no such pod"
            kube.delete(POOLS, "llama")
            await until(found, lambda seen: not seen.pools.rows)
            assert found.glance().pools.known

    asyncio.run(main())


def test_a_pool_of_both_groups_is_that_of_v1_and_one_group_is_enough(kube):
    kube.installed = {POOLS, OLD_POOLS}
    kube.put(OLD_POOLS, pool("llama", LABELS, 9000, group=OLD))

    async def main():
        async with source(kube) as found:
            reading = await found.read()
            assert [one.ports for one in reading.pools.rows] == [(9000,)]
            await asyncio.to_thread(kube.await_watch, POOLS)
            kube.put(POOLS, pool("llama", LABELS, 8000))
            await until(found, lambda seen: [one.ports for one in seen.pools.rows] == [(8000,)])
        kube.installed = {OLD_POOLS}  # an older cluster
        async with source(kube) as found:
            reading = await found.read()
            assert [one.ports for one in reading.pools.rows] == [(9000,)]
            assert (part(reading).error, reading.pools.problem) == ("", "")

    asyncio.run(main())


def test_a_cluster_without_the_definition_is_told_so_until_it_has_it(kube):
    async def main():
        async with source(kube) as found:
            reading = await found.read()
            assert not reading.pools.known
            told = part(reading)
            assert "404: this cluster has no inferencepools" in told.error
            assert "install the Gateway API inference extension" in told.error
            assert told.failing_since is not None
            assert not found.reading().placed
            kube.put(POOLS, pool("llama", LABELS, 8000))
            kube.installed = {POOLS}
            await until(found, lambda seen: seen.pools.known and len(seen.pools.rows) == 1)
            await until(found, lambda seen: not seen.pools.problem)  # its watch is open
            assert part(found.reading()).error == ""

    asyncio.run(main())


def test_a_missing_right_is_told_in_the_server_s_words_and_rows_stay(kube):
    kube.installed = set(CUSTOM)
    kube.put(POOLS, pool("llama", LABELS, 8000))
    every = {Right("", name, verb) for name in ("nodes", "pods", "events") for verb in VERBS}

    async def main():
        kube.rights = every
        async with source(kube) as found:
            reading = await found.read()
            assert not reading.pools.known
            assert "403" in part(reading).error
            assert 'cannot list resource "inferencepools"' in reading.pools.problem
        kube.rights = None
        async with source(kube) as found:
            await found.read()
            await asyncio.to_thread(kube.await_watch, POOLS)
            kube.rights = every
            kube.cut()
            await until(found, lambda seen: "403" in seen.pools.problem)
            assert [one.id for one in found.glance().pools.rows] == ["default/llama"]
            assert found.glance().pools.known

    asyncio.run(main())


def test_history_that_is_gone_is_listed_again(kube):
    kube.installed = {POOLS}
    kube.put(POOLS, pool("llama", LABELS, 8000))

    async def main():
        async with source(kube) as found:
            await found.read()
            await asyncio.to_thread(kube.await_watch, POOLS)
            lists = len(kube.asked(f"{NEW}/v1/inferencepools"))
            kube.delete(POOLS, "llama")
            kube.put(POOLS, pool("qwen", LABELS, 8000))
            kube.expire()
            await until(found, lambda seen: [o.id for o in seen.pools.rows] == ["default/qwen"])
            assert len(kube.asked(f"{NEW}/v1/inferencepools")) > lists

    asyncio.run(main())


def test_one_namespace_is_asked_for_and_nothing_where_nobody_wants_pools(kube):
    kube.installed = set(CUSTOM)

    async def main():
        async with source(kube, namespace="inference") as found:
            await found.read()
            await asyncio.to_thread(kube.await_request, "inference.networking", 4)
            for kind in CUSTOM:
                await asyncio.to_thread(kube.await_request, kind.partition(".")[0], 1)
        paths = {path for path, _ in kube.asked("inference.networking")}
        assert paths == {
            f"/apis/{NEW}/v1/namespaces/inference/inferencepools",
            f"/apis/{OLD}/v1alpha2/namespaces/inference/inferencepools",
            f"/apis/{OLD}/v1alpha2/namespaces/inference/inferencemodels",
            f"/apis/{OLD}/v1alpha2/namespaces/inference/inferenceobjectives",
        }
        before = len(kube.requests)
        plain = KubernetesSource("kube", KubernetesConfig(api_url=kube.url))
        await plain.read()
        await plain.close()
        later = list(kube.requests)[before:]
        assert not [path for _, path, _ in later if "inference.networking" in path]

    asyncio.run(main())
