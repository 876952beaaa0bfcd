"""The manifest of launching as shipped: it suffices, and each right is used."""

import asyncio
from pathlib import Path

import pytest
import yaml

from fakekube import FakeKube, Right, rights_of
from fakekube.rbac import right_for
from holdfast.launchers.kubernetes.client import ApiClient
from holdfast.launchers.kubernetes.pod_reader import REPLICA
from holdfast.launchers.kubernetes.workloads import KINDS, Workloads
from holdfast.ports import Ended, Order
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.config import KubernetesConfig
from holdfast.wire.kubernetes.rights import launch_rights

ROOT = Path(__file__).resolve().parents[3]
SPACE = "inference"


def documents(*parts):
    text = (ROOT / "deploy" / "kubernetes").joinpath(*parts).read_text()
    return list(yaml.safe_load_all(text))


LAUNCHING = rights_of(documents("components", "launching", "rbac.yaml"), "holdfast", "holdfast")
READING = rights_of(documents("base", "rbac.yaml"), "holdfast", "holdfast")


@pytest.fixture
def kube():
    with FakeKube() as kube:
        yield kube


def test_the_shipped_rights_are_those_that_are_needed():
    needed = {Right(*one.action[:4]) for one in launch_rights(KINDS, SPACE)}
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
