"""What ``holdfast render istio`` prints, judged by the schema of Istio's own resources."""

from pathlib import Path

import pydantic
import pytest
import resource_schemas
import yaml
from click.testing import CliRunner

from holdfast.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def schema():
    return resource_schemas.istio()


def rendered(path, *arguments):
    result = CliRunner().invoke(main, ["render", "istio", "-c", str(path), *arguments])
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.output))


@pytest.mark.parametrize(
    ("name", "arguments", "kinds"),
    [
        ("minimal.yaml", [], ["ServiceEntry", "DestinationRule", "VirtualService"]),
        ("fleet.yaml", [], ["ServiceEntry", "DestinationRule", "VirtualService"] * 2),
        (
            "kubernetes.yaml",
            ["--service", "llama=llama.ml.svc:8000", "--service", "embed=embed.ml.svc:8080"],
            ["DestinationRule", "VirtualService"] * 2,
        ),
    ],
)
def test_every_resource_fits_istios_schema(schema, name, arguments, kinds):
    documents = rendered(ROOT / "examples/serving" / name, *arguments)
    assert [document["kind"] for document in documents] == kinds
    for document in documents:
        getattr(schema, document["kind"]).model_validate(document)


def test_unusual_figures_fit_it_too(schema, tmp_path):
    fleet = {
        "models": [
            {
                "name": "a.b/c",
                "engine": "openai",
                "endpoints": ["https://engines.example.org/base"],
                "breaker": {"enabled": False},
            }
        ],
        "retry": {"attempts": 1, "budget": False},
    }
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleet))
    for document in rendered(file):
        getattr(schema, document["kind"]).model_validate(document)


def test_the_schema_would_find_a_member_that_istio_does_not_have(schema):
    document = rendered(ROOT / "examples/serving/minimal.yaml")[1]
    document["spec"]["trafficPolicy"]["outlierDetection"]["consecutive5xx"] = 5
    with pytest.raises(pydantic.ValidationError, match="consecutive5xx"):
        schema.DestinationRule.model_validate(document)
