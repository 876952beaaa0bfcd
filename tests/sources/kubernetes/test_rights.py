"""The one list of rights: it is what the code asks for, and what the manifests grant."""

import asyncio
from pathlib import Path

import pytest
import yaml

from fakekube import FakeKube, Right, node, pod, rights_of
from fakekube.custom import CUSTOM
from fakekube.rbac import right_for
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.sources.kubernetes.api import KubernetesApi
from holdfast.sources.kubernetes.leadership import KubernetesLeadership
from holdfast.wire.kubernetes.rights import lease_rights, source_rights

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/kubernetes"
LOGS = Right("", "pods/log", "get", "inference")


def granted(*names):
    files = [EXAMPLES / name for name in names]
    documents = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return rights_of(documents, "holdfast", "holdfast")


def plain(rights):
    return {Right(*one.action[:4]) for one in rights}


@pytest.mark.parametrize("pools", [False, True])
def test_the_examples_grant_exactly_the_rights_of_a_source(pools):
    names = ("rbac.yaml", "inference-pools.yaml") if pools else ("rbac.yaml",)
    needed = plain(source_rights(KubernetesConfig(inference_pools=pools)))
    assert granted(*names) == needed | {LOGS}


def test_the_component_is_the_example():
    component = EXAMPLES.parents[1] / "deploy/kubernetes/components/inference-pools/rbac.yaml"
    assert component.read_text() == (EXAMPLES / "inference-pools.yaml").read_text()


@pytest.mark.parametrize("space", ["", "inference"])
def test_a_source_asks_for_exactly_these(kube, space):
    kube.installed = set(CUSTOM)
    kube.metrics = {"nodes": [], "pods": []}
    kube.put("nodes", node("node-1"))
    kube.put("pods", pod("m-1", model="m", namespace="inference"))
    config = KubernetesConfig(api_url=kube.url, namespace=space, inference_pools=True)

    async def main():
        source = KubernetesSource("kube", config)
        await source.read()
        await source.tail("inference/m-1")
        for kind in ("nodes", "pods", "events", *CUSTOM):
            await asyncio.to_thread(kube.await_watch, kind)
        await asyncio.to_thread(kube.await_request, "metrics.k8s.io", 2)
        await source.close()

    asyncio.run(main())
    asked = {right_for(path, query) for _, path, query in kube.requests} - {None}
    # Of a whole cluster, logs are asked for where the pod is.
    assert asked == plain(source_rights(config)) | {LOGS}


def test_a_leadership_asks_for_exactly_these(kube):
    async def main():
        api = KubernetesApi(KubernetesConfig(api_url=kube.url))
        lease = KubernetesLeadership(api, "holdfast", "holdfast")
        await lease.claim("a", 5.0)
        await lease.claim("a", 5.0)
        await lease.release("a")
        await lease.close()

    kube.rights = plain(lease_rights("holdfast", "holdfast"))
    asyncio.run(main())
    asked = {right_for(path, query, method) for method, path, query in kube.requests}
    assert asked == kube.rights
    assert not kube.forbade


def test_without_a_right_to_the_lease_nobody_leads():
    async def main(kube):
        api = KubernetesApi(KubernetesConfig(api_url=kube.url))
        lease = KubernetesLeadership(api, "holdfast", "holdfast")
        with pytest.raises(Exception, match=r'cannot create resource "leases"'):
            await lease.claim("a", 5.0)
        await lease.close()

    with FakeKube() as kube:
        kube.rights = plain(lease_rights("holdfast", "holdfast"))
        kube.rights -= {Right("coordination.k8s.io", "leases", "create", "holdfast")}
        asyncio.run(main(kube))
