"""Which pods of a reading are replicas of a model, and at which URL, zone and revision."""

import pytest

from discovery_stage import PORTS, fleet_file, labelled, placed, reading
from holdfast.control.deploy.discovered_replica import discovered


def found_in(reading_, **discover):
    file = fleet_file(**discover)
    return discovered(reading_, file.models)["m"]


def test_running_pods_of_the_model_are_its_replicas_in_their_zones():
    (one,) = found_in(reading(placed("a"), placed("b", model="other")))
    assert (one.pod, one.url, one.zone, one.host) == (
        "default/a",
        "http://10.1.0.1:8000",
        "z1",
        "n1",
    )


@pytest.mark.parametrize(
    ("one", "count"),
    [
        (placed("a", state="pending"), 0),
        (placed("a", state="stopped"), 0),
        (placed("a", ip=""), 0),
        (placed("a", state="stopping"), 1),
        (placed("a", space="other"), 1),
    ],
)
def test_who_can_be_reached_and_is_not_over_counts(one, count):
    assert len(found_in(reading(one))) == count


def test_rules_choose_by_labels_namespace_port_and_scheme():
    labelled = placed("a", model="", labels=(("app", "llama"),))
    other = placed("b", model="", ip="10.1.0.2", labels=(("app", "qwen"),))
    seen = reading(labelled, other)
    (one,) = found_in(seen, selector="app=llama", port=443, scheme="https")
    assert one.url == "https://10.1.0.1"
    (one,) = found_in(seen, selector="app in (qwen)", port=80)
    assert one.url == "http://10.1.0.2"
    assert found_in(seen, selector="app", namespace="other") == []
    assert found_in(reading(placed("a", ip="fd00::1")))[0].url == "http://[fd00::1]:8000"


@pytest.mark.parametrize(
    ("one", "rule", "port"),
    [
        (placed("a", ports=PORTS), {}, 8000),  # what it declares is not what it listens on
        (placed("a", ports=PORTS), {"port": "http"}, 8001),
        (placed("a", ports=PORTS, port_said="9001"), {"port": "http"}, 9001),
        (placed("a", ports=PORTS, port_said="metrics"), {"port": 8000}, 9400),
        (placed("a", port_said="7000"), {"port": "http"}, 7000),
    ],
)
def test_a_port_is_a_number_or_a_name_and_the_pod_has_the_last_word(one, rule, port):
    (found,) = found_in(reading(one), **rule)
    assert (found.url, found.problem) == (f"http://10.1.0.1:{port}", "")


def test_a_named_port_that_is_the_scheme_s_own_is_left_out_of_the_url():
    (found,) = found_in(reading(placed("a", ports=(("https", 443),))), port="https", scheme="https")
    assert found.url == "https://10.1.0.1"


def test_other_sources_say_nothing_of_it():
    assert discovered(reading(placed("a"), source="aws"), fleet_file().models) == {}


def test_of_two_at_one_address_the_one_that_stays_is_taken():
    old, new = placed("old", created_at=1.0), placed("new", created_at=2.0)
    assert [one.pod for one in found_in(reading(old, new))] == ["default/new"]
    leaving = placed("new", created_at=2.0, state="stopping")
    assert [one.pod for one in found_in(reading(leaving, old))] == ["default/old"]


@pytest.mark.parametrize(
    ("pod_", "rule", "revision"),
    [
        (labelled("a", pod_template_hash="aa"), {}, "aa"),
        (
            placed("a", labels=(("holdfast.dev/revision", "7"), ("pod-template-hash", "aa"))),
            {},
            "7",
        ),
        (placed("a", labels=(("app.kubernetes.io/version", "v2"),)), {}, "v2"),
        (placed("a", image="vllm:1", digest="sha256:ab"), {}, "sha256:ab"),
        (placed("a", image="vllm:1"), {}, "vllm:1"),
        (placed("a"), {}, ""),
        (labelled("a", pod_template_hash="aa", weights="w7"), {"revision_from": ["weights"]}, "w7"),
        (labelled("a", pod_template_hash="aa"), {"revision_from": []}, ""),
    ],
)
def test_the_first_name_of_the_rule_that_a_pod_has_is_its_revision(pod_, rule, revision):
    assert found_in(reading(pod_), **rule)[0].revision == revision


def test_a_pod_that_names_its_zone_needs_no_host_for_it():
    one = placed("a", labels=(("topology.kubernetes.io/zone", "z7"),))
    assert found_in(reading(one, hosts=()))[0].zone == "z7"
