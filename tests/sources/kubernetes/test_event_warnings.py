import pytest

from fakekube.objects import event
from holdfast.sources.kubernetes.event_warnings import EventWarning, newest, read_event


def test_a_warning_about_a_pod_is_read():
    thing = event("e1", "BackOff", "Back-off  restarting\nfailed container", about="m-1", count=7)
    told = "Back-off restarting failed container"
    assert read_event(thing) == EventWarning("Pod", "default/m-1", "BackOff", told, 1_000_100.0, 7)


def test_others_are_left():
    assert read_event(event("e1", "Pulled", "Image pulled", about="m-1")) is None


def test_nodes_have_no_namespace():
    thing = event("e1", "SystemOOM", "victim process: python", about="n1", kind="Node")
    assert read_event(thing).about == "n1"


def test_new_style_events_have_their_time_and_count_in_a_series():
    thing = event("e1", "Unhealthy", "probe failed", about="m-1")
    del thing["lastTimestamp"]
    thing |= {"eventTime": "1970-01-01T00:00:10.000000Z", "series": {"count": 4}}
    assert (read_event(thing).at, read_event(thing).count) == (10.0, 4)
    thing["series"]["lastObservedTime"] = "1970-01-01T00:01:00.000000Z"
    assert read_event(thing).at == 60.0


def test_the_newest_about_each_counts():
    old = EventWarning("Pod", "d/m-1", "BackOff", "a", 1.0)
    new = EventWarning("Pod", "d/m-1", "Unhealthy", "b", 2.0)
    other = EventWarning("Node", "d/m-1", "SystemOOM", "c", 3.0)
    assert newest([new, old, other], "Pod") == {"d/m-1": new}


def test_an_event_about_nothing_is_not_understood():
    thing = event("e1", "BackOff", "x", about="m-1")
    del thing["involvedObject"]
    with pytest.raises(KeyError):
        read_event(thing)
