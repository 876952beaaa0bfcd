"""What ``holdfast render keda`` and ``render hpa`` print, by the schemas of KEDA and Kubernetes."""

import kubernetes_validate
import pydantic
import pytest
import resource_schemas
import yaml
from click.testing import CliRunner

from holdfast.cli import main

SAID = ["--model", "llama", "--deployment", "llama-server"]
VERSION = "1.37"


@pytest.fixture(scope="module")
def schema():
    return resource_schemas.keda()


def rendered(what, *arguments):
    result = CliRunner().invoke(main, ["render", what, *arguments])
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.stdout)


@pytest.mark.parametrize(
    "arguments",
    [
        SAID,
        ["--model", "org/llama", "--deployment", "d", "--namespace", "ml", "--min", "0"],
        [*SAID, "--min", "1", "--max", "1000", "--memory", "1", "--queue", "1", "--down", "0"],
    ],
)
def test_a_scaled_object_fits_kedas_schema(schema, arguments):
    document = rendered("keda", *arguments)
    assert document["kind"] == "ScaledObject"
    schema.ScaledObject.model_validate(document)


@pytest.mark.parametrize(
    ("place", "member", "value"),
    [
        (("spec",), "maxReplicas", 8),
        (("spec", "scaleTargetRef"), "replicas", 2),
        (("spec", "triggers", 0), "query", "up"),
        (("spec",), "cooldownPeriod", "soon"),
    ],
)
def test_kedas_schema_would_find_what_it_does_not_have(schema, place, member, value):
    document = rendered("keda", *SAID)
    part = document
    for step in place:
        part = part[step]
    part[member] = value
    with pytest.raises(pydantic.ValidationError, match=member):
        schema.ScaledObject.model_validate(document)


@pytest.mark.parametrize(
    "arguments", [[], ["--namespace", "ml"], ["--metrics", "cloudwatch"], ["--down", "0"]]
)
def test_an_autoscaler_fits_the_schema_of_kubernetes(arguments):
    document = rendered("hpa", *SAID, *arguments)
    assert document["kind"] == "HorizontalPodAutoscaler"
    kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_schema_of_kubernetes_would_find_what_it_does_not_have():
    document = rendered("hpa", *SAID)
    document["spec"]["cooldown"] = 300
    with pytest.raises(kubernetes_validate.ValidationError, match="cooldown"):
        kubernetes_validate.validate(document, VERSION, strict=True)
