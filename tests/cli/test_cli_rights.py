"""``holdfast doctor --rights``: which rights an account lacks, asked of an API server."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from fakekube import FakeKube, Right, rights_of
from holdfast.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/kubernetes"
FILE = """\
models:
  - {{name: m, engine: vllm, discover: {{source: kube, inference_pool: llama}}}}
sources:
  - {{type: kubernetes, name: kube, api_url: '{url}', inference_pools: true{more}}}
"""


@pytest.fixture
def kube():
    with FakeKube() as server:
        yield server


def shipped(*names):
    documents = [one for name in names for one in yaml.safe_load_all((EXAMPLES / name).read_text())]
    return rights_of(documents, "holdfast", "holdfast")


def asked(folder, kube, more="", url=""):
    place = folder / "fleet.yaml"
    place.write_text(FILE.format(url=url or kube.url, more=more))
    result = CliRunner().invoke(main, ["doctor", "-c", str(place), "--rights", "--json"])
    advice = json.loads(result.stdout)["advice"]
    return result.exit_code, [one for one in advice if one["where"].startswith("sources")]


def test_what_is_shipped_lacks_nothing(kube, tmp_path):
    kube.rights = shipped("rbac.yaml", "inference-pools.yaml")
    assert asked(tmp_path, kube) == (0, [])
    assert asked(tmp_path, kube, ", namespace: inference") == (0, [])


def test_a_missing_right_is_named_with_what_is_lost_and_how_to_get_it(kube, tmp_path):
    kube.rights = shipped("rbac.yaml") - {Right("", "pods", "watch")}
    code, advice = asked(tmp_path, kube)
    assert code == 1
    told = {one["problem"]: one for one in advice}
    lists = told["may not watch pods: lists replace it: changes are seen later"]
    assert (lists["level"], "examples/kubernetes/rbac.yaml" in lists["fix"]) == ("error", True)
    pools = [one for one in advice if "inferencepools" in one["problem"]]
    assert len(pools) == 4
    assert all("inference-pools.yaml" in one["fix"] for one in pools)
    assert "pods of inference pools are not found" in pools[0]["problem"]
    names = [one for one in advice if "inferencemodels" in one["problem"]]
    assert {one["level"] for one in names} == {"note"}


def test_logs_are_asked_for_in_the_source_s_namespace(kube, tmp_path):
    kube.rights = shipped("rbac.yaml", "inference-pools.yaml")
    code, (advice,) = asked(tmp_path, kube, ", namespace: elsewhere")
    assert code == 0
    assert advice["problem"].startswith("may not get pods/log in elsewhere")


def test_a_server_that_cannot_be_asked_is_an_error(kube, tmp_path):
    code, (advice,) = asked(tmp_path, kube, url="http://127.0.0.1:9")
    assert code == 1
    assert "its API server cannot be asked for rights" in advice["problem"]


def test_it_needs_a_file():
    result = CliRunner().invoke(main, ["doctor", "--rights"])
    assert result.exit_code == 2
    assert "add -c fleet.yaml" in result.output
