import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan.model_catalogue import MODELS, known_model
from holdfast.core.plan.model_shape import QUANTISATIONS, ModelShape, Quantisation, shape_of_config
from holdfast.core.types import ConfigError

# As published on the models' pages, or counted in their files.
PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_419_200,
    "opt-13b": 12_853_473_280,
    "smollm2-135m": 134_515_008,
}


def test_every_built_in_model_has_its_published_number_of_weights():
    assert {name: known.shape.parameters for name, known in MODELS.items()} == PARAMETERS
    assert all("/" in known.source for known in MODELS.values())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-405b", 516_096),
        ("llama-2-7b", 524_288),
        ("llama-2-13b", 819_200),
        ("opt-13b", 819_200),
        ("qwen3-32b", 262_144),
        ("mistral-7b", 131_072),
        ("deepseek-v3", 70_272),
    ],
)
def test_the_cache_of_a_token_is_what_heads_or_latents_take(name, size):
    assert MODELS[name].shape.kv_bytes_per_token() == size
    assert MODELS[name].shape.kv_bytes_per_token(8.0) == size / 2


def test_a_token_meets_only_the_experts_that_are_chosen():
    assert MODELS["mixtral-8x7b"].shape.active_parameters == 12_879_925_248
    assert MODELS["deepseek-v3"].shape.active_parameters == pytest.approx(37.5e9, rel=0.01)
    dense = MODELS["llama-2-7b"].shape
    assert dense.active_parameters == dense.parameters


def test_heads_are_divided_until_they_must_be_copied():
    shape = MODELS["llama-3.1-70b"].shape
    assert [shape.kv_share(t) for t in (1, 2, 8, 16)] == [1.0, 0.5, 0.125, 0.125]
    assert MODELS["deepseek-v3"].shape.kv_share(8) == 1.0


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def test_a_config_is_read_as_it_is_published():
    assert shape_of_config(LLAMA) == MODELS["llama-3.1-8b"].shape
    assert shape_of_config({"text_config": LLAMA, "vision_config": {}}).parameters == 8_030_261_248
    opt = {
        "model_type": "opt",
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "ffn_dim": 20480,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    }
    assert shape_of_config(opt).parameters == PARAMETERS["opt-13b"]
    deepseek = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "head_dim": 192,
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    assert shape_of_config(deepseek) == MODELS["deepseek-v3"].shape


def test_an_unknown_family_is_counted_and_said_to_be_a_guess():
    assert shape_of_config(LLAMA).exact
    assert not shape_of_config(LLAMA | {"model_type": "tomorrow"}).exact


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": None}, "config_json"),
        ({"hidden_size": -1}, "config_json.hidden_size"),
        ({"hidden_size": "wide"}, "config_json.hidden_size"),
        ({"vocab_size": True}, "config_json.vocab_size"),
        ({"num_key_value_heads": 5}, "model.kv_heads"),
        ({"num_hidden_layers": 0}, "model.layers"),
        ({"num_local_experts": 4, "num_experts_per_tok": 9}, "model.experts_active"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_its_field(change, field):
    with pytest.raises(ConfigError) as refused:
        shape_of_config(LLAMA | change)
    assert refused.value.field == field


def test_a_name_that_is_not_built_in_is_answered_with_those_that_are():
    assert known_model(" LLaMA-2-7B ").name == "llama-2-7b"
    with pytest.raises(ConfigError, match="llama-2-7b"):
        known_model("gpt-17")


def test_quantised_weights_have_the_size_of_their_files():
    # Ollama pull request 6279 shows llama.cpp's log for Llama-3-70B Q4_0: 37.22 GiB.
    q4 = MODELS["llama-3.1-70b"].shape.weight_bytes(QUANTISATIONS["q4_0"])
    assert q4 / 2**30 == pytest.approx(37.22, rel=0.001)
    # The file of the embedded engine, with 1.8 MB of vocabulary in it.
    q4_1 = MODELS["smollm2-135m"].shape.weight_bytes(QUANTISATIONS["q4_1"])
    assert q4_1 == pytest.approx(98_362_432, rel=0.03)


def test_bits_must_be_bits():
    with pytest.raises(ConfigError, match="bits"):
        Quantisation("none", 0.0, 16.0, 16.0)


@given(
    layers=st.integers(1, 100),
    heads=st.sampled_from([8, 16, 32]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    width=st.integers(64, 4096),
    tied=st.booleans(),
)
def test_parts_add_up_and_fewer_bits_never_weigh_more(*, layers, heads, kv_heads, width, tied):
    shape = ModelShape(layers, width, heads, kv_heads, 64, 4 * width, 1000, tied=tied)
    parts = shape.embedding_parameters + shape.layer_parameters + shape.output_parameters
    assert shape.parameters == parts
    sizes = [shape.weight_bytes(QUANTISATIONS[name]) for name in ("awq", "fp8", "bf16", "fp32")]
    assert sizes == sorted(sizes)
    assert shape.weight_bytes(QUANTISATIONS["bf16"]) == 2 * shape.parameters
    assert shape.kv_share(kv_heads) == pytest.approx(1 / kv_heads)
