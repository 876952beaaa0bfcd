"""The fake API's selectors and bookmarks, as a real server has them."""

import json
import urllib.error
import urllib.request
from urllib.parse import urlencode

import pytest

from fakekube import FakeKube, event, pod


def asked(kube, resource, **query):
    url = f"{kube.url}/api/v1/{resource}?{urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=a", ["a"]),
        ("app==a", ["a"]),
        ("app!=a", ["b", "none"]),
        ("app in (a, b)", ["a", "b"]),
        ("app notin (a)", ["b", "none"]),
        ("app", ["a", "b"]),
        ("!app", ["none"]),
        ("app,tier=x", ["b"]),
        ("app=", []),
    ],
)
def test_labels_select(selector, names):
    with FakeKube() as kube:
        kube.put("pods", pod("a", labels={"app": "a"}))
        kube.put("pods", pod("b", labels={"app": "b", "tier": "x"}))
        kube.put("pods", pod("none"))
        status, found = asked(kube, "pods", labelSelector=selector)
    assert status == 200
    assert [one["metadata"]["name"] for one in found["items"]] == names


@pytest.mark.parametrize("watch", [{}, {"watch": "true"}])
@pytest.mark.parametrize(
    "query",
    [
        {"labelSelector": "a/b/c=1"},
        {"labelSelector": "-l=x"},
        {"labelSelector": "app=-x"},
        {"labelSelector": "app in (a b)"},
        {"labelSelector": "app=a,"},
        {"labelSelector": "app = a b"},
        {"labelSelector": "x" * 64},
        {"fieldSelector": "spec.nothing=1"},
        {"fieldSelector": "type"},
    ],
)
def test_a_selector_that_cannot_be_read_is_a_bad_request(query, watch):
    with FakeKube() as kube:
        status, said = asked(kube, "pods", **query, **watch)
    assert status == said["code"] == 400
    assert (said["kind"], said["reason"], said["status"]) == ("Status", "BadRequest", "Failure")
    assert said["message"]


def test_a_watch_by_labels_tells_of_what_begins_and_ceases_to_fit():
    with FakeKube() as kube:
        first = kube.put("pods", pod("m", labels={"app": "b"}))
        version = first["metadata"]["resourceVersion"]
        kube.patch("pods", "m", {"metadata": {"labels": {"app": "a"}}})  # before it is watched
        query = urlencode({"watch": "1", "labelSelector": "app=b", "resourceVersion": version})
        with urllib.request.urlopen(f"{kube.url}/api/v1/pods?{query}", timeout=20) as answer:
            found = [json.loads(answer.readline())["type"]]
            kube.put("pods", pod("other", labels={"app": "x"}))  # nobody hears of it
            kube.delete("pods", "other")
            kube.patch("pods", "m", {"metadata": {"labels": {"app": "b"}}})
            found.append(json.loads(answer.readline())["type"])
            kube.patch("pods", "m", {"metadata": {"labels": {"more": "y"}}})
            found.append(json.loads(answer.readline())["type"])
            kube.delete("pods", "m")
            found.append(json.loads(answer.readline())["type"])
    assert found == ["DELETED", "ADDED", "MODIFIED", "DELETED"]


def test_events_have_no_bookmarks():
    with FakeKube() as kube:
        query = urlencode({"watch": "1", "allowWatchBookmarks": "true"})
        with urllib.request.urlopen(f"{kube.url}/api/v1/events?{query}", timeout=20) as answer:
            kube.await_watch("events")
            kube.bookmark()
            kube.put("events", event("e1", "BackOff", "x", about="m"))
            assert json.loads(answer.readline())["type"] == "ADDED"
