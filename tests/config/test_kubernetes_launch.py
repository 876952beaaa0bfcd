"""The keys of replicas that are launched on Kubernetes, and what is refused of them."""

import pytest
from pydantic import ValidationError

from holdfast.config.fleet_file import FleetFile, ModelSection
from holdfast.control.deploy.launched_replica import build_of

IMAGE = "engine@sha256:" + "ab" * 32
POD = {"image": IMAGE}


def file(launch=None, kubernetes=None, engine="vllm"):
    base = {"on": "kubernetes", "weights": "/models/m", "kubernetes": POD}
    model = {"name": "m", "engine": engine, "launch": {**base, **(launch or {})}}
    return FleetFile.model_validate({"kubernetes": kubernetes or {}, "models": [model]})


def test_a_model_on_kubernetes_needs_an_image_and_nothing_else():
    found = file()
    assert found.platforms == {"kubernetes"}
    pod = found.models[0].launch.kubernetes
    assert (pod.kind, pod.hosts, pod.port) == ("deployment", 1, None)
    assert (found.kubernetes.namespace, found.kubernetes.owner) == ("inference", "holdfast")


@pytest.mark.parametrize(
    ("launch", "kubernetes", "told"),
    [
        ({"kubernetes": None}, {}, "launch.kubernetes: is missing"),
        ({"on": ""}, {}, "launch.kubernetes: is set for another platform"),
        ({"on": "ray"}, {}, "launch.kubernetes: is set for another platform"),
        ({"kubernetes": {"image": "engine:v1"}}, {}, "a tag can be another image tomorrow"),
        ({"kubernetes": {"image": "Not An Image"}}, {}, "write registry/name@sha256"),
        ({"kubernetes": {**POD, "hosts": 2}}, {}, "use kind: leaderworkerset"),
        (
            {"kubernetes": {**POD, "kind": "leaderworkerset", "hosts": 2}},
            {},
            "worker_command: is missing",
        ),
        ({"kubernetes": {**POD, "device": "h200"}}, {}, "give both, or none"),
        ({"gpu_share": 0.5, "gpus": 1}, {}, "gpu_share: is set for kubernetes"),
        ({}, {"api_url": "http://x", "kubeconfig": "/k"}, "is set beside a kubeconfig"),
        ({}, {"token_file": "/t"}, "is set without api_url"),
        ({}, {"agent_image": "holdfast:latest"}, "a tag can be another image tomorrow"),
        ({}, {"owner": ""}, "owner"),
        ({}, {"namespace": "Not_a_name"}, "namespace"),
    ],
)
def test_what_cannot_work_is_refused_with_its_field(launch, kubernetes, told):
    with pytest.raises(ValidationError) as caught:
        file(launch, kubernetes)
    assert told in str(caught.value)


def test_an_engine_of_this_process_has_no_image():
    with pytest.raises(ValidationError, match="embedded: is set for kubernetes"):
        file({"embedded": True}, engine="llamacpp")


def test_tags_are_taken_where_the_file_says_so():
    found = file({"kubernetes": {"image": "engine:v1"}}, {"allow_tags": True})
    assert found.models[0].launch.kubernetes.image == "engine:v1"


def test_another_image_is_another_build_and_the_new_key_alone_is_none():
    def build(**launch):
        section = {"name": "m", "engine": "vllm", "launch": {"weights": "/m", **launch}}
        return build_of(ModelSection.model_validate(section), "")

    assert build() == "1+88650379", "fleets of before this key are not replaced for it"
    first = build(on="kubernetes", kubernetes=POD)
    assert first != build(on="kubernetes", kubernetes={"image": "e@sha256:" + "ef" * 32})
    assert first == build(on="kubernetes", kubernetes=POD, replicas=4)
