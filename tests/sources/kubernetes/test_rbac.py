"""The manifest as shipped: it suffices, each right in it is used, and a missing one is told."""

import asyncio
from pathlib import Path

import pytest
import yaml

from fakekube import Right, node, pod, rights_of
from fakekube.rbac import right_for
from holdfast.sources.kubernetes import KubernetesConfig, KubernetesSource
from holdfast.sources.kubernetes.api import KubernetesApiError

MANIFEST = Path(__file__).resolve().parents[3] / "examples" / "kubernetes" / "rbac.yaml"
DOCUMENTS = list(yaml.safe_load_all(MANIFEST.read_text()))
ACCOUNT = ("holdfast", "holdfast")
SHIPPED = rights_of(DOCUMENTS, *ACCOUNT)
METRICS = "metrics.k8s.io"
SPACE = "inference"


def fill(kube):
    kube.put("nodes", node("node-1", labels={"topology.kubernetes.io/zone": "z1"}))
    kube.put("pods", pod("m-1", model="m", namespace=SPACE))
    kube.say("m-1", "hello", namespace=SPACE)
    inside = [{"usage": {"memory": "1Gi"}}]
    kube.metrics = {
        "nodes": [{"metadata": {"name": "node-1"}, "usage": {"memory": "2Gi"}}],
        "pods": [{"metadata": {"name": "m-1", "namespace": SPACE}, "containers": inside}],
    }


class Seen:
    """All that a source could find out with the rights it has."""

    def __init__(self, reading, known, log, refusal):
        self.parts = {part.name: part for part in reading.parts}
        self.hosts, self.placed, self.notes = reading.hosts, reading.placed, reading.notes
        self.known, self.log, self.refusal = known, log, refusal

    @property
    def errors(self):
        return {name: part.error for name, part in self.parts.items() if part.error}


def look(kube, **more):
    """Everything that the source ever asks for, until each answer or refusal has come."""
    told = {"api_url": kube.url, "retry_s": 0.02, "retry_max_s": 0.1, **more}

    def settled(source):
        reading = source.reading()
        parts = {part.name: part for part in reading.parts}
        watched = (kube.watching[name] or parts[name].error for name in ("nodes", "pods", "events"))
        usage = parts.get("usage")
        return all(watched) and (usage is None or usage.at is not None)

    async def main():
        source = KubernetesSource("kube", KubernetesConfig(**told))
        log, refusal = [], ""
        try:
            await source.read()
            async with asyncio.timeout(20):
                while not settled(source):  # noqa: ASYNC110 usage tells nobody that it came
                    await asyncio.sleep(0.01)
            try:
                log = await source.tail(f"{SPACE}/m-1")
            except KubernetesApiError as error:
                refusal = str(error)
            return Seen(source.reading(), source.known, log, refusal)
        finally:
            await source.close()

    return asyncio.run(main())


def test_what_is_shipped_suffices(kube):
    fill(kube)
    kube.rights = SHIPPED
    seen = look(kube)
    assert kube.forbade == []
    assert (seen.errors, seen.notes, seen.refusal) == ({}, (), "")
    (host,), (placed,) = seen.hosts, seen.placed
    assert (host.zone, host.used_bytes) == ("z1", 2 << 30)
    assert (placed.id, placed.used_bytes) == ("inference/m-1", 1 << 30)
    assert seen.log[-1].endswith("hello")


def test_no_right_is_shipped_that_is_never_used(kube):
    fill(kube)
    look(kube)
    asked = {right_for(path, query) for _, path, query in kube.requests}
    unused = {one for one in SHIPPED if not any(one.covers(right) for right in asked)}
    assert unused == set()


def used(seen):
    return seen.hosts[0].used_bytes, seen.placed[0].used_bytes


# What each right is for: what is told where it is missing, and what no longer works.
LOST = {
    Right("", "nodes", "list"): ("nodes", lambda seen: not seen.hosts and seen.placed),
    Right("", "nodes", "watch"): ("nodes", lambda seen: seen.hosts),  # lists, one by one
    Right("", "pods", "list"): ("pods", lambda seen: not seen.placed and not seen.known),
    Right("", "pods", "watch"): ("pods", lambda seen: seen.placed),
    Right("", "events", "list"): ("events", lambda seen: seen.placed and seen.hosts),
    Right("", "events", "watch"): ("events", lambda seen: seen.placed and seen.hosts),
    Right("", "pods/log", "get", SPACE): ("", lambda seen: not seen.log),
    Right(METRICS, "nodes", "list"): ("", lambda seen: used(seen) == (None, 1 << 30)),
    Right(METRICS, "pods", "list"): ("", lambda seen: used(seen) == (2 << 30, None)),
}


def test_every_right_has_its_loss():
    assert set(LOST) == SHIPPED


@pytest.mark.parametrize("right", sorted(SHIPPED), ids=str)
def test_without_one_right_the_rest_works_and_it_is_told_which(kube, right):
    fill(kube)
    kube.rights = SHIPPED - {right}
    seen = look(kube)
    part, lost = LOST[right]
    assert lost(seen)
    missing = f'cannot {right.verb} resource "{right.resource}"'
    assert set(seen.errors) == ({part} if part else set())
    if part:
        assert "403" in seen.errors[part]
        assert missing in seen.errors[part]
        assert seen.parts[part].failing_since is not None
    elif right.resource == "pods/log":
        assert missing in seen.refusal
    else:
        (note,) = seen.notes
        assert "metrics-server cannot be asked" in note
        assert missing in note
    assert {one.resource for one in kube.forbade} == {right.resource}


def test_logs_of_a_namespace_without_a_binding_are_refused(kube):
    fill(kube)
    kube.rights = SHIPPED
    kube.put("pods", pod("m-2", model="m", namespace="elsewhere"))

    async def main():
        source = KubernetesSource("kube", KubernetesConfig(api_url=kube.url))
        try:
            await source.read()
            with pytest.raises(KubernetesApiError, match=r"pods/log.*in the namespace .elsewhere"):
                await source.tail("elsewhere/m-2")
        finally:
            await source.close()

    asyncio.run(main())


def test_one_namespace_can_be_seen_by_a_binding_in_it_alone(kube):
    """As the manifest says: the roles of replicas and logs by RoleBindings, and none for hosts."""
    fill(kube)
    kube.put("pods", pod("m-2", model="m", namespace="elsewhere"))
    kube.rights = {
        Right(one.group, one.resource, one.verb, SPACE)
        for one in SHIPPED
        if one.resource != "nodes"
    }
    seen = look(kube, namespace=SPACE)
    assert set(seen.errors) == {"nodes"}
    assert seen.known
    assert [one.id for one in seen.placed] == ["inference/m-1"]
    assert seen.placed[0].used_bytes == 1 << 30
    assert seen.log


def test_the_manifest_binds_what_it_grants_and_logs_by_namespace_only():
    roles = {one["metadata"]["name"] for one in DOCUMENTS if one["kind"] == "ClusterRole"}
    bindings = [one for one in DOCUMENTS if one["kind"].endswith("RoleBinding")]
    assert {one["roleRef"]["name"] for one in bindings} == roles
    (account,) = [one["metadata"] for one in DOCUMENTS if one["kind"] == "ServiceAccount"]
    assert (account["name"], account["namespace"]) == ACCOUNT
    for one in bindings:
        (subject,) = one["subjects"]
        assert (subject["name"], subject["namespace"]) == ACCOUNT
    logs = {one for one in SHIPPED if one.resource == "pods/log"}
    assert {one.namespace for one in logs} == {SPACE}
    assert {one.verb for one in SHIPPED - logs} == {"list", "watch"}
