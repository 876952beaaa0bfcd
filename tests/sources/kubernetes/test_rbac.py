"""The manifest grants what the source asks for, all of it and nothing else."""

import asyncio
from pathlib import Path

import yaml

from fakekube import node, pod
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource

MANIFEST = Path(__file__).resolve().parents[3] / "examples" / "kubernetes" / "rbac.yaml"


def granted():
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    return {
        (group, resource, verb)
        for one in documents
        if one["kind"] == "ClusterRole"
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(requests):
    """The right that each request to an API server takes."""
    found = set()
    for method, path, query in requests:
        assert method == "GET"
        parts = path.strip("/").split("/")
        group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
        if rest[0] == "namespaces" and len(rest) > 2:
            rest = rest[2:]
        if len(rest) == 1:
            verb = "watch" if query.get("watch") else "list"
            found.add((group, rest[0], verb))
        else:
            found.add((group, "/".join([rest[0], *rest[2:]]), "get"))
    return found


def test_every_request_is_granted_and_every_grant_is_used(kube):
    kube.put("nodes", node("node-1"))
    kube.put("pods", pod("m-1", model="m"))
    kube.metrics = {"nodes": [], "pods": []}

    async def main():
        source = KubernetesSource("kube", KubernetesConfig(api_url=kube.url))
        await source.read()
        for resource in ("nodes", "pods", "events"):
            await asyncio.to_thread(kube.await_watch, resource)
        await asyncio.to_thread(kube.await_request, "metrics.k8s.io", 2)
        await source.tail("default/m-1")
        await source.close()

    asyncio.run(main())
    asked = needed(kube.requests)
    assert asked <= granted()
    unused = granted() - asked
    # kubectl describe, which people run with the same account, gets single objects.
    assert {verb for _, _, verb in unused} <= {"get"}


def test_the_manifest_binds_what_it_grants():
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    roles = {one["metadata"]["name"] for one in documents if one["kind"] == "ClusterRole"}
    bound = {one["roleRef"]["name"] for one in documents if one["kind"] == "ClusterRoleBinding"}
    assert roles == bound
    (account,) = [one["metadata"] for one in documents if one["kind"] == "ServiceAccount"]
    for one in documents:
        for subject in one.get("subjects", ()):
            assert (subject["name"], subject["namespace"]) == (
                account["name"],
                account["namespace"],
            )
    verbs = {verb for _, _, verb in granted()}
    assert verbs == {"get", "list", "watch"}
