import json

import pytest
import yaml

from holdfast.config.files import load
from holdfast.config.fleet_file import FleetFile
from holdfast.core.types import ConfigError
from holdfast.planner import PLANS


def ask(**given):
    return PLANS["memory"].ask({"device": "h100-80gb", **given})


def test_seventy_billion_weights_go_over_four_devices():
    answer = ask(model="llama-3.1-70b")
    figures = answer.figures
    assert (figures["tensor"], figures["pipeline"], figures["devices"]) == (4, 1, 4)
    assert figures["largest_tensor"] == 8
    assert figures["kv_bytes_per_token"] == 327_680
    assert figures["weights_bytes"] == 141_107_412_992
    assert "tensor parallel 4" in answer.verdict
    assert "meta-llama/Llama-3.1-70B" in figures["source"]


def test_the_published_room_for_the_cache_follows_from_the_published_overheads():
    figures = ask(model="llama-3.1-70b", overhead="2GB", activations=0).figures
    assert figures["kv_tokens"] == 423_866


def test_seven_billion_at_16_bits_and_its_shards():
    answer = ask(model="llama-2-7b", quantisation="fp16", device="l4")
    assert answer.figures["weights_bytes"] == 13_476_831_232
    shards = {one["tensor"]: one["weights_bytes"] for one in answer.figures["shards"]}
    assert shards[4] == 13_476_831_232 / 4
    assert "2 x 32 x 32 x 128 x 2 = 524,288 B" in answer.steps[1].numbers


def test_what_to_write_elsewhere_is_valid_there(tmp_path):
    answer = ask(model="llama-3.1-70b", concurrency=32)
    ecs, pod, fleet = answer.snippets
    task = json.loads(ecs.text)
    assert task["memoryReservation"] < task["memory"]
    assert task["resourceRequirements"] == [{"type": "GPU", "value": "4"}]
    limits = yaml.safe_load(pod.text)["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 4
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet.text)
    (model,) = load(path, FleetFile).models
    assert model.launch is not None
    assert (model.launch.tensor_parallel, model.launch.slots) == (4, 32)
    assert model.launch.memory.reservation is not None


def test_parler_holds_three_and_a_half_gigabytes_and_is_given_four():
    answer = PLANS["memory"].ask(
        {
            "parameters": "880M",
            "quantisation": "fp16",
            "device": "cpu",
            "buffers": "740MB",
            "overhead": "1GB",
            "host_memory": "31GB",
            "reservation": "1GB",
        }
    )
    assert answer.figures["total_bytes"] == pytest.approx(3.5e9)
    assert answer.figures["reservation_bytes"] == 4e9
    assert (answer.figures["placed_now"], answer.figures["fit_on_host"]) == (31, 7)
    assert any("more than the host has" in remark for remark in answer.remarks)
    ecs, pod, fleet = answer.snippets
    assert json.loads(ecs.text)["memory"] * 2**20 >= 4e9
    assert yaml.safe_load(fleet.text)["launch"]["memory"]["limit"].endswith("MiB")
    assert yaml.safe_load(pod.text)["resources"]["limits"]["memory"].endswith("Mi")


def test_the_embedded_engine_is_planned_within_ten_percent_of_what_it_held():
    answer = PLANS["memory"].ask(
        {
            "model": "smollm2-135m",
            "quantisation": "q4_1",
            "engine": "llamacpp",
            "device": "cpu",
            "context": 4096,
            "concurrency": 2,
            "batch_tokens": 16,
        }
    )
    assert answer.figures["total_bytes"] == pytest.approx(340_600 * 1024, rel=0.1)


def test_any_config_can_be_read(tmp_path):
    config = {
        "model_type": "somebody",
        "hidden_size": 1024,
        "num_hidden_layers": 10,
        "num_attention_heads": 16,
        "vocab_size": 32000,
        "intermediate_size": 4096,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    answer = ask(config_json=str(path))
    assert answer.figures["devices"] == 1
    assert any("not known here" in note for note in answer.notes)
    with_size = ask(config_json=str(path), weights="20GB")
    assert with_size.figures["device"]["weights"] == pytest.approx(20e9)


def test_files_that_are_none_are_told_apart(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        ask(config_json=str(tmp_path / "none.json"))
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        ask(config_json=str(path))
    path.write_text("[]")
    with pytest.raises(ConfigError, match="holds no object"):
        ask(config_json=str(path))


def test_a_model_that_fits_nowhere_gets_a_plain_answer():
    with pytest.raises(ConfigError) as refused:
        ask(model="deepseek-v3", device="t4", devices_per_host=1)
    assert refused.value.field == "device"
    assert "does not hold it" in refused.value.problem
    assert "quantise it" in refused.value.fix
    with pytest.raises(ConfigError, match="shorten the context"):
        ask(model="llama-2-7b", context=1_000_000, concurrency=1000)
    with pytest.raises(ConfigError, match="one process needs"):
        ask(parameters="70B", device="cpu", host_memory="31GB")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"utilisation": 1.2}, "utilisation"),
        ({"context": -5}, "context"),
        ({"concurrency": 0}, "concurrency"),
        ({"model": "gpt-17"}, "model"),
        ({"device": "abacus"}, "device"),
        ({"overhead": "-1GB"}, "overhead"),
        ({"headroom": -1}, "headroom"),
        ({"quantisation": "q0"}, "quantisation"),
    ],
)
def test_bad_questions_name_the_field(given, field):
    with pytest.raises(ConfigError) as refused:
        ask(**{"model": "llama-2-7b", **given})
    assert refused.value.field == field


def test_experts_are_all_held_and_few_are_met():
    answer = ask(model="mixtral-8x7b")
    assert any("12.9 billion" in note for note in answer.notes)
    assert answer.figures["tensor"] == 2
