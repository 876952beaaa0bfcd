import pytest

from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.planner import PLANS
from holdfast.planner.question import UnderspecifiedError

FORTY = {"replicas": 40, "size": "10GB", "bandwidth": "100MB"}


def ask(**given):
    return PLANS["coldstart"].ask(given)


def test_forty_containers_on_one_filesystem():
    answer = ask(**FORTY, saturated="30m")
    ways = {one["way"]: one for one in answer.figures["ways"]}
    assert answer.figures["share_bytes_per_s"] == pytest.approx(2.5e6)
    assert ways["all at once"]["mean_s"] == pytest.approx(4000)
    assert ways["one by one"]["mean_s"] == pytest.approx(2050)
    assert answer.figures["parallel_cold"] == 1
    assert answer.figures["read_while_saturated"] == pytest.approx(180e9)
    assert "one at a time" not in answer.verdict
    assert answer.verdict.startswith("Load 1 at a time")


def test_packing_on_fewer_hosts_reads_less():
    answer = ask(**FORTY, models=10, hosts=20, packed_hosts=2)
    ways = {one["way"]: one for one in answer.figures["ways"]}
    packed = ways["packed on 2 hosts"]
    assert (ways["one by one"]["reads"], packed["reads"]) == (40, 20)
    assert packed["last_s"] == pytest.approx(2000)


def test_a_slow_loader_is_given_company():
    answer = ask(replicas=16, size="16GB", bandwidth="1GB", reader_rate="250MB")
    assert answer.figures["parallel_cold"] == 4
    assert any("takes 4 of them" in note for note in answer.notes)


def test_the_keys_are_those_of_a_fleet_file(tmp_path):
    (snippet,) = ask(replicas=16, size="160GB", bandwidth="100MB").snippets
    path = tmp_path / "fleet.yaml"
    model = "models:\n  - {name: m, engine: vllm, endpoints: ['http://127.0.0.1:9']}\n"
    path.write_text(model + snippet.text)
    file = load(path, FleetFile)
    assert (file.launches.parallel_cold, file.launches.load_max_s) == (1, 3200.0)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"replicas": 0}, "replicas"),
        ({"size": "-1GB"}, "size"),
        ({"bandwidth": 0}, "bandwidth"),
        ({"models": 50}, "models"),
        ({"reader_rate": "-1MB"}, "reader_rate"),
        ({"credits": -1}, "credits"),
    ],
)
def test_bad_questions_name_the_field(given, field):
    with pytest.raises(ConfigError) as refused:
        ask(**(FORTY | given))
    assert refused.value.field == field


def test_what_is_missing_is_named():
    with pytest.raises(UnderspecifiedError) as lacking:
        ask(replicas=3)
    assert [one.name for one in lacking.value.fields] == ["size", "bandwidth"]
