"""The fake API held against a real one: each recorded request, asked of it again.

Where the two differ the fake is wrong. The recordings are of a
kube-apiserver 1.36.4.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fakekube import FakeKube, pod
from fakekube.controllers import Controllers

FOLDER = Path(__file__).parents[1] / "sources" / "kubernetes" / "recordings"
READS = (
    "events-list",
    "forbidden-403",
    "list-gone-410",
    "node-spot-taint",
    "nodes-list",
    "notfound-404",
    "pod-oomkilled-after-serving",
    "pods-list",
    "pods-list-page-1",
    "pods-unschedulable",
    "unauthorized-401",
)


def recorded(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def filled(kube, body):
    """Put what the real server had into the fake."""
    kind = str(body.get("kind") or "")
    things = body["items"] if kind.endswith("List") else [body] if kind != "Status" else []
    for thing in things:
        made = {**thing, "kind": thing.get("kind") or kind.removesuffix("List")}
        plural = {"Pod": "pods", "Node": "nodes", "Event": "events"}[made["kind"]]
        kube.put(plural, made)


def asked(kube, path, headers=None, method="GET", body=None):
    headers = dict(headers or {})
    headers.setdefault("Content-Type", "application/json")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(kube.url + path, headers=headers, method=method, data=data)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("name", READS)
def test_the_fake_answers_as_the_real_server_did(name):
    said = recorded(name)
    real, path = said["response"]["body"], said["request"]["path"]
    with FakeKube() as kube:
        filled(kube, real)
        if real.get("kind") == "Status" and real["code"] in (401, 403):
            kube.refuse("pods", real["code"])
        if real.get("kind") == "Status" and real["code"] == 410:
            kube.objects.version = 100  # the recorded request asks for 20
            kube.expire()
        status, fake = asked(kube, path)
    assert status == said["response"]["status"]
    assert (fake["kind"], fake["apiVersion"]) == (real["kind"], real["apiVersion"])
    assert set(fake["metadata"]) >= set(real["metadata"]) - {"continue", "remainingItemCount"}
    if real["kind"] == "Status":
        same = ("status", "reason", "code")
        assert [fake[key] for key in same] == [real[key] for key in same]
        assert fake["message"]
    elif "items" in real:
        limit = "limit=" in urlsplit(path).query
        assert len(fake["items"]) == len(real["items"])
        assert limit or not fake["metadata"].get("continue")
        for mine, theirs in zip(fake["items"], real["items"], strict=True):
            assert shape(mine) == shape(theirs)
    else:
        assert shape(fake) == shape(real)


def shape(thing):
    """What a reader finds in an object, without versions that each server counts for itself."""
    kept = {key: value for key, value in thing.items() if key not in ("metadata", "kind")}
    meta = {key: value for key, value in thing["metadata"].items() if key != "resourceVersion"}
    return {key: value for key, value in kept.items() if key != "apiVersion"}, meta


def test_a_watch_that_begins_too_far_back_ends_with_an_error_event():
    said = recorded("watch-gone-410")
    (real,) = said["response"]["events"]
    with FakeKube() as kube:
        kube.expire()
        request = urllib.request.Request(kube.url + said["request"]["path"])
        with urllib.request.urlopen(request, timeout=20) as answer:
            fake = json.loads(answer.readline())
    assert fake["type"] == real["type"] == "ERROR"
    same = ("kind", "status", "reason", "code")
    assert [fake["object"][key] for key in same] == [real["object"][key] for key in same]


def test_the_events_of_a_watch_have_the_real_one_s_types_and_objects():
    real = recorded("pods-watch-rollout")["response"]["events"]
    assert {one["type"] for one in real} <= {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}
    with FakeKube() as kube:
        path = "/api/v1/namespaces/inference/pods?watch=1&allowWatchBookmarks=true"
        first = next(one["object"] for one in real if one["type"] != "BOOKMARK")
        with urllib.request.urlopen(kube.url + path, timeout=20) as answer:
            kube.put("pods", {**first, "kind": "Pod"})
            fake = json.loads(answer.readline())
    assert fake["type"] == "ADDED"
    assert shape(fake["object"]) == shape(first)


def test_a_missing_right_is_told_in_the_real_server_s_words():
    said = recorded("forbidden-403")
    with FakeKube() as kube:
        kube.rights, kube.user = set(), "system:serviceaccount:inference:nobody"
        status, fake = asked(kube, said["request"]["path"])
    real = said["response"]["body"]
    assert (status, fake["code"], fake["reason"]) == (403, real["code"], real["reason"])
    assert fake["message"] == real["message"]


def test_the_fake_takes_and_refuses_leases_as_the_real_server_did():
    created, lost = recorded("lease-create"), recorded("lease-lost-409")
    with FakeKube() as kube:
        for said in (created, lost):
            wish, real = said["request"], said["response"]
            status, fake = asked(kube, wish["path"], None, wish["method"], wish["body"])
            assert status == real["status"]
            assert fake["kind"] == real["body"]["kind"]
            if status == 201:
                assert set(fake["metadata"]) == set(real["body"]["metadata"])
                assert fake["spec"] == real["body"]["spec"]
            else:
                assert (fake["reason"], fake["code"]) == ("Conflict", 409)


# --- writes ---------------------------------------------------------------------------------------


def written(kube, name):
    """Ask the fake for what the real server was asked to write."""
    wish = recorded(name)["request"]
    kind = {"Content-Type": wish["content_type"]}
    return asked(kube, wish["path"], kind, wish["method"], wish["body"])


def same_status(fake, name):
    real = recorded(name)["response"]["body"]
    for key in ("kind", "apiVersion", "status", "reason", "code", "message"):
        assert fake.get(key) == real.get(key), key
    assert fake.get("details") == real.get("details")


def test_a_deployment_is_made_with_the_real_server_s_defaults():
    with FakeKube() as kube:
        status, fake = written(kube, "deployment-create")
    real = recorded("deployment-create")["response"]
    assert status == real["status"] == 201
    assert fake["spec"] == real["body"]["spec"]
    assert fake["status"] == real["body"]["status"] == {}
    assert set(fake["metadata"]) == set(real["body"]["metadata"])
    same = ("name", "namespace", "generation", "labels")
    assert [fake["metadata"][key] for key in same] == [
        real["body"]["metadata"][key] for key in same
    ]


def test_what_exists_what_is_wrong_and_what_is_old_is_refused_in_the_real_server_s_words():
    with FakeKube() as kube:
        written(kube, "deployment-create")
        for name in ("exists-409", "invalid-422"):
            status, fake = written(kube, name)
            assert status == recorded(name)["response"]["status"]
            same_status(fake, name)
        uid = recorded("conflict-409")["request"]["body"]["metadata"]["uid"]
        there = kube.objects.get("deployments", "inference", "llama")
        there["metadata"]["uid"] = uid
        kube.put("deployments", there)
        status, fake = written(kube, "conflict-409")
        assert status == 409
        same_status(fake, "conflict-409")


def test_scale_answers_a_scale_and_an_apply_of_another_manager_is_a_conflict():
    with FakeKube() as kube:
        written(kube, "deployment-create")
        status, fake = written(kube, "scale-patch")
        real = recorded("scale-patch")["response"]
        assert status == real["status"] == 200
        assert (fake["kind"], fake["spec"]) == (real["body"]["kind"], real["body"]["spec"])
        assert set(fake["metadata"]) == set(real["body"]["metadata"])
        assert set(fake["status"]) == set(real["body"]["status"])
        assert kube.objects.get("deployments", "inference", "llama")["spec"]["replicas"] == 3
        status, fake = written(kube, "apply-ssa")
        assert status == 409
        same_status(fake, "apply-ssa")


def test_an_eviction_is_taken_and_the_pod_is_told_to_end():
    name = "llama-54d8484bc9-zc75d"
    with FakeKube() as kube:
        kube.put("pods", pod(name, namespace="inference"))
        status, fake = written(kube, "eviction-201")
        real = recorded("eviction-201")["response"]
        assert (status, fake) == (real["status"], real["body"])
        meta = kube.objects.get("pods", "inference", name)["metadata"]
        assert meta["deletionGracePeriodSeconds"] == 30


def test_a_rollout_makes_pods_and_sets_as_the_real_controllers_did():
    """Owners, hashes and labels of what controllers make, by what was recorded of them."""
    real_set = recorded("replicasets-list")["response"]["body"]["items"][0]
    real_pod = recorded("pods-watch-rollout")["response"]["events"][0]["object"]
    with FakeKube() as kube, Controllers(kube):
        written(kube, "deployment-create")
        with kube._changed:
            assert kube._changed.wait_for(lambda: len(kube.objects.things["pods"]) == 2, 60)
        (fake_set,) = kube.objects.things["replicasets"].values()
        fake_pod = next(iter(kube.objects.things["pods"].values()))
    for fake, real, owner in (
        (fake_set, real_set, "llama"),
        (fake_pod, real_pod, fake_set["metadata"]["name"]),
    ):
        assert set(fake["metadata"]["labels"]) == set(real["metadata"]["labels"])
        (mine,), (theirs,) = (one["metadata"]["ownerReferences"] for one in (fake, real))
        assert set(mine) == set(theirs)
        same = ("apiVersion", "kind", "controller", "blockOwnerDeletion")
        assert [mine[key] for key in same] == [theirs[key] for key in same]
        assert mine["name"] == owner
    assert fake_pod["metadata"]["name"].startswith(fake_set["metadata"]["name"])
    assert set(fake_set["spec"]["selector"]["matchLabels"]) == set(
        real_set["spec"]["selector"]["matchLabels"]
    )
    assert fake_pod["status"] == real_pod["status"]
