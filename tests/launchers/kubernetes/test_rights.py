"""The manifest of launching as shipped: it suffices, each right is used, and doctor asks for it."""

import asyncio
from pathlib import Path

import pytest
import yaml

from fakekube import FakeKube, Right, rights_of
from fakekube.rbac import right_for
from holdfast.config.fleet_file import FleetFile
from holdfast.launchers.kubernetes.client import ApiClient
from holdfast.launchers.kubernetes.pod_reader import REPLICA
from holdfast.launchers.kubernetes.rights import needed_rights
from holdfast.launchers.kubernetes.workloads import KINDS, Workloads
from holdfast.ports import Ended, Order
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.wire.kubernetes.launcher import check_launch_rights

ROOT = Path(__file__).resolve().parents[3]
SPACE = "inference"
DIGEST = "engine@sha256:" + "ab" * 32


def documents(*parts):
    text = (ROOT / "deploy" / "kubernetes").joinpath(*parts).read_text()
    return list(yaml.safe_load_all(text))


LAUNCHING = rights_of(documents("components", "launching", "rbac.yaml"), "holdfast", "holdfast")
READING = rights_of(documents("base", "rbac.yaml"), "holdfast", "holdfast")


def file(kube, kind="deployment"):
    pod = {"image": DIGEST, "kind": kind}
    launch = {"on": "kubernetes", "command": ["serve"], "kubernetes": pod}
    model = {"name": "m", "engine": "vllm", "launch": launch}
    return FleetFile.model_validate({"kubernetes": {"api_url": kube.url}, "models": [model]})


@pytest.fixture
def kube():
    with FakeKube() as kube:
        yield kube


def test_the_shipped_rights_are_those_that_are_needed():
    needed = {
        Right(one.group, one.resource, one.verb, "" if one.everywhere else SPACE)
        for one in needed_rights(KINDS)
    }
    nodes = {one for one in needed if one.resource == "nodes"}
    assert needed - nodes == LAUNCHING
    assert nodes <= READING


@pytest.mark.parametrize("kind", KINDS)
def test_each_right_to_workloads_is_used_and_no_other(kube, kind):
    """A workload's whole life, with another writer in between."""
    kube.rights = LAUNCHING

    def make(order, zone):
        labels = {REPLICA: order.replica_id}
        template = {"metadata": {"labels": labels}, "spec": {"containers": []}}
        meta, api = {"name": order.replica_id}, KINDS[kind][0].removeprefix("/apis/")
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        if kind == "LeaderWorkerSet":
            inside = {"size": 1, "leaderTemplate": template, "workerTemplate": template}
            spec = {"replicas": 1, "leaderWorkerTemplate": inside}
        return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": spec}

    async def main():
        api: ApiClient = KubernetesApi(KubernetesConfig(api_url=kube.url))
        workloads = Workloads(api, SPACE, "own", make)
        try:
            made = await workloads.create(Order("a", ("serve",)), "")
            (found,) = await workloads.owned()
            assert found == made
            found.version = "1"
            await workloads.sleep(found)
            ended = Ended(3, None, oom=False, reason="exited with code 3")
            await workloads.note_end(found, None, ended)
            (again,) = await workloads.owned()
            assert (again.replicas, again.ended) == (0, (None, ended))
            await workloads.wake(again)
            await workloads.remove(again)
            assert await workloads.owned() == []
        finally:
            await api.close()

    asyncio.run(main())
    assert kube.forbade == []
    group, plural = KINDS[kind][0].split("/")[2], KINDS[kind][1]
    asked = {right_for(path, query, how) for how, path, query in kube.requests}
    mine = {one for one in asked if one is not None and one.resource == plural}
    assert mine == {one for one in LAUNCHING if (one.group, one.resource) == (group, plural)}


def test_doctor_names_each_right_that_is_missing(kube):
    kube.rights = LAUNCHING | READING
    assert asyncio.run(check_launch_rights(file(kube))) == []
    kube.rights -= {Right("apps", "deployments", "create", SPACE)}
    kube.rights -= {Right("", "nodes", "watch")}
    told = [advice.problem for advice in asyncio.run(check_launch_rights(file(kube)))]
    assert told == [
        "may not watch nodes",
        "may not create deployments.apps in inference",
    ]
    assert asyncio.run(check_launch_rights(file(kube, "statefulset")))[1:] == []


def test_doctor_says_that_it_could_not_ask(kube):
    unreachable = file(kube)
    section = unreachable.kubernetes.model_copy(update={"api_url": "http://127.0.0.1:9"})
    (advice,) = asyncio.run(
        check_launch_rights(unreachable.model_copy(update={"kubernetes": section}))
    )
    assert (advice.level, "could not be asked" in advice.problem) == ("warning", True)


def test_a_file_that_launches_nothing_there_is_not_asked_about(kube):
    plain = FleetFile.model_validate(
        {"models": [{"name": "m", "engine": "vllm", "endpoints": ["http://127.0.0.1:9"]}]}
    )
    assert asyncio.run(check_launch_rights(plain)) == []
    assert not kube.requests
