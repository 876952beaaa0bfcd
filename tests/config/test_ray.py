"""Keys of Ray in the fleet file: what is read, and what is refused with its place and fix."""

import pytest
from pydantic import ValidationError

from holdfast.config.fleet_file import FleetFile
from holdfast.control.deploy.gpu_request import devices_of, gpu_request_of

COMMAND = ["serve", "{port}"]


def file_of(launch=None, **more):
    launched = {"on": "ray", "command": COMMAND, **(launch or {})}
    return FleetFile.model_validate(
        {"models": [{"name": "m", "engine": "vllm", "launch": launched}], **more}
    )


def test_a_cluster_and_a_model_on_it():
    file = file_of({"cpus": 2.5, "tensor_parallel": 2, "pipeline_parallel": 2})
    assert (file.ray.address, file.ray.namespace, file.ray.lease_s) == ("auto", "holdfast", 300.0)
    model = file.models[0]
    assert (model.launch.on, model.launch.cpus) == ("ray", 2.5)
    assert devices_of(model) == 4
    assert gpu_request_of(model) is None, "the cluster counts its own devices"
    assert file_of(ray={"address": "head:6379", "lease_s": "10m"}).ray.lease_s == 600.0


def test_devices_follow_the_file_or_the_engine():
    assert devices_of(file_of({"gpus": 8}).models[0]) == 8
    assert devices_of(file_of({"gpus": 0}).models[0]) == 0
    assert devices_of(file_of().models[0]) == 1, "vLLM needs one"


@pytest.mark.parametrize(
    ("launch", "told"),
    [
        ({"on": "mars"}, "on"),
        ({"on": "", "cpus": 2}, "this host sets no CPUs aside"),
        ({"gpus": 1, "gpu_share": 0.5}, "given to one replica"),
        ({"gpus": 1, "command": [*COMMAND, "{device}"]}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_ray_cannot_do_is_refused(launch, told):
    with pytest.raises(ValidationError, match=told):
        file_of(launch)


@pytest.mark.parametrize("ray", [{"lease_s": 1}, {"namespace": "a b"}, {"address": ""}])
def test_a_cluster_that_cannot_be_is_refused(ray):
    with pytest.raises(ValidationError, match="ray"):
        file_of(ray=ray)


def test_applications_of_a_ray_source_can_be_replicas():
    file = FleetFile.model_validate(
        {
            "sources": [{"type": "ray", "dashboard_url": "http://head:8265"}],
            "models": [{"name": "chat", "engine": "openai", "discover": {"source": "ray"}}],
        }
    )
    assert file.models[0].discover.source == "ray"
    with pytest.raises(ValidationError, match="dashboard_url"):
        FleetFile.model_validate({"sources": [{"type": "ray", "dashboard_url": "head"}]})
