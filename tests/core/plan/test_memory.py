import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.plan.memory import (
    MemoryQuestion,
    activation_bytes,
    fit_on_host,
    with_headroom,
)
from holdfast.core.plan.model_catalogue import MODELS
from holdfast.core.plan.model_shape import QUANTISATIONS
from holdfast.core.types import ConfigError
from sampling import examples

GIB = 2.0**30


def question(model="llama-3.1-70b", quantisation="bf16", **changed):
    usual = {"context": 8192, "sequences": 16, "device_bytes": 80e9, "utilisation": 0.9}
    usual |= {"overhead": 2e9, "activations": 0.0}
    return MemoryQuestion(MODELS[model].shape, QUANTISATIONS[quantisation], **(usual | changed))


@pytest.mark.parametrize(("tensor", "tokens"), [(2, -3379), (4, 423_866), (8, 1_278_358)])
def test_the_cache_that_fits_beside_70_billion_weights(tensor, tokens):
    assert question().kv_tokens(tensor) == tokens


def test_70_billion_weights_need_four_devices_and_eight_need_one():
    need = question().smallest([1, 2, 4, 8])
    assert (need.tensor, need.pipeline) == (4, 1)
    small = question("llama-3.1-8b")
    assert small.smallest([1, 2, 4, 8]).devices == 1
    assert small.kv_tokens() == 411_525
    assert small.kv_tokens() // 700 == 587


def test_stages_come_when_a_host_is_not_enough():
    need = question("llama-3.1-405b").smallest([1, 2, 4, 8])
    assert (need.tensor, need.pipeline) == (8, 2)
    assert question("llama-3.1-405b", device_bytes=24e9).smallest([1, 2], stages_max=4) is None


def test_seven_billion_weights_at_16_bits_and_their_shards():
    whole = question("llama-2-7b", "fp16")
    assert whole.stage_weights(1, 1) == 13_476_831_232
    assert whole.stage_weights(2, 1) == 13_476_831_232 / 2
    assert whole.stage_weights(1, 4) < 13_476_831_232 / 3.5  # 8 of 32 layers and one embedding
    assert whole.stage_weights(1, 4) > 13_476_831_232 / 4


# vLLM's own words when it starts; sizes as it prints them. Tolerance: 10 %.
def test_what_vllm_says_of_llama_3_8b():
    """Pull request vllm-project/vllm#10511: 79.22 GiB x 0.9, default 8,192 tokens and 256 slots."""
    shape = MODELS["llama-3.1-8b"].shape
    assert shape.weight_bytes(QUANTISATIONS["bf16"]) / GIB == pytest.approx(14.96, rel=0.001)
    assert activation_bytes(shape, 1, 8192, 256) / GIB == pytest.approx(1.26, rel=0.1)
    asked = question("llama-3.1-8b", device_bytes=79.22 * GIB, overhead=0.7e9, activations=None)
    wide = MemoryQuestion(
        asked.shape, asked.quantisation, 8192, 256, 79.22 * GIB, 0.9, 0.7e9, batch_tokens=8192
    )
    assert wide.kv_tokens() * 131_072 / GIB == pytest.approx(53.29, rel=0.1)


def test_what_vllm_says_of_llama_3_1_8b_on_a_smaller_device():
    """vLLM 0.19 on 25,250,627,584 bytes x 0.9 kept 41,408 tokens, 5,427,429,376 bytes."""
    asked = MemoryQuestion(
        MODELS["llama-3.1-8b"].shape,
        QUANTISATIONS["bf16"],
        8192,
        256,
        25_250_627_584,
        0.9,
        0.7e9,
        batch_tokens=2048,
    )
    assert asked.kv_tokens() * 131_072 == pytest.approx(5_427_429_376, rel=0.1)


def test_what_vllm_says_of_qwen3_4b():
    """kyuz0/amd-strix-halo-vllm-toolboxes pull request 5: model loading took 7.6785 GiB."""
    size = MODELS["qwen3-4b"].shape.weight_bytes(QUANTISATIONS["bf16"])
    assert size / GIB == pytest.approx(7.6785, rel=0.1)


def test_what_distserve_measured_of_opt_13b():
    """Its max_num_tokens.csv: 66,144 tokens fit on one device of 80 GB, 96,868 more on each."""
    measured = {1: 66_144, 2: 163_008, 4: 356_752, 8: 744_224}
    shape = MODELS["opt-13b"].shape
    slope = (measured[8] - measured[1]) / 7
    assert slope == pytest.approx(96_868.57142857143)
    weights = slope - measured[1]
    assert weights == pytest.approx(30_724.571428571435)
    held = weights * shape.kv_bytes_per_token()
    assert held == pytest.approx(shape.weight_bytes(QUANTISATIONS["fp16"]), rel=0.1)


def test_the_embedded_model_holds_what_was_measured():
    """llama.cpp of `holdfast up`, two slots of 4,096 tokens: 340,600 kB resident. Within 10 %."""
    asked = MemoryQuestion(
        MODELS["smollm2-135m"].shape,
        QUANTISATIONS["q4_1"],
        4096,
        2,
        31e9,
        1.0,
        0.05e9,
        batch_tokens=16,
    )
    assert asked.need().total == pytest.approx(340_600 * 1024, rel=0.1)


def test_a_reservation_has_headroom_and_round_steps():
    assert with_headroom(3.5e9, 0.1) == 4.0e9
    assert with_headroom(4.0e9, 0.0) == 4.0e9
    assert (fit_on_host(31e9, 1e9), fit_on_host(31e9, 4e9)) == (31, 7)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"context": 0}, "memory.context"),
        ({"sequences": -1}, "memory.sequences"),
        ({"device_bytes": 0}, "memory.device_bytes"),
        ({"utilisation": 1.2}, "memory.utilisation"),
        ({"overhead": -1.0}, "memory.overhead"),
        ({"activations": -1.0}, "memory.activations"),
        ({"kv_bits": 0}, "memory.kv_bits"),
    ],
)
def test_a_question_that_cannot_be_names_its_field(change, field):
    with pytest.raises(ConfigError) as refused:
        question(**change)
    assert refused.value.field == field


def test_other_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="headroom"):
        with_headroom(1e9, -0.1)
    with pytest.raises(ConfigError, match="host_memory"):
        fit_on_host(0, 1e9)
    with pytest.raises(ConfigError, match="reservation"):
        fit_on_host(31e9, 0)
    with pytest.raises(ConfigError, match="batch_tokens"):
        activation_bytes(MODELS["llama-2-7b"].shape, 1, 0, 1)


@settings(max_examples=examples(60))
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.integers(1, 8),
    context=st.integers(1, 100_000),
    sequences=st.integers(1, 512),
)
def test_more_devices_never_need_more_each_and_fits_means_room(
    *, tensor, pipeline, context, sequences
):
    asked = question(context=context, sequences=sequences)
    need = asked.need(tensor, pipeline)
    assert asked.need(2 * tensor, pipeline).total <= need.total
    assert asked.need(tensor, pipeline + 1).weights <= need.weights
    assert need.fits == (asked.kv_tokens(tensor, pipeline) >= context * sequences)
