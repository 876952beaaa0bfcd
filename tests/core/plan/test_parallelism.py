import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan.accelerators import ACCELERATORS, LINKS, Link, accelerator, link_between
from holdfast.core.plan.model_catalogue import MODELS
from holdfast.core.plan.model_shape import QUANTISATIONS
from holdfast.core.plan.parallelism import (
    Layout,
    all_reduce_bytes,
    decode_step,
    pipeline_bubble,
    prefill_time,
    stage_bytes,
    stage_layers,
    tensor_degrees,
)
from holdfast.core.types import ConfigError

SHAPE, BF16 = MODELS["llama-3.1-70b"].shape, QUANTISATIONS["bf16"]
H100 = ACCELERATORS["h100-80gb"]
NVLINK, ETHERNET = LINKS["nvlink4"], LINKS["25gbit"]


def step(tensor, pipeline=1, link=NVLINK, batch=1, context=0):
    layout = Layout(tensor, pipeline, link, link)
    return decode_step(SHAPE, BF16, H100, layout, batch=batch, context=context)


def test_32_layers_over_4_stages():
    ranges = stage_layers(32, 4)
    assert [(each.start, each.stop - 1) for each in ranges] == [(0, 7), (8, 15), (16, 23), (24, 31)]
    assert [len(each) for each in stage_layers(61, 4)] == [16, 15, 15, 15]


@pytest.mark.parametrize(
    ("stages", "parts", "idle"),
    [(4, 1, 0.75), (4, 4, 0.428571), (4, 16, 0.157895), (8, 32, 0.179487), (1, 1, 0.0)],
)
def test_the_bubble_shrinks_with_the_parts(stages, parts, idle):
    assert pipeline_bubble(stages, parts) == pytest.approx(idle, rel=1e-5)


def test_the_weights_alone_take_ten_and_a_half_milliseconds_over_four():
    assert step(4).weights_s * 1e3 == pytest.approx(10.5304, rel=1e-5)
    assert MODELS["llama-3.1-8b"].shape.weight_bytes(BF16) / 3.35e12 * 1e3 == pytest.approx(
        4.794, rel=1e-3
    )


def test_an_all_reduce_sends_what_a_ring_sends():
    assert all_reduce_bytes(8, 64, 8192) == pytest.approx(1_835_008)
    assert step(8, batch=64).all_reduce_bytes == pytest.approx(293.60128e6)
    assert all_reduce_bytes(1, 64, 8192) == 0.0
    assert stage_bytes(64, 8192) == 64 * 8192 * 2


def test_tensor_parallel_pays_on_fast_links_only():
    assert step(8, batch=64).total_s < 0.6 * step(4, batch=64).total_s
    assert step(8, link=ETHERNET, batch=64).total_s > step(4, batch=64).total_s


def test_stages_buy_room_and_no_speed():
    assert (
        step(4, 2, batch=64, context=100).total_s >= 0.95 * step(4, batch=64, context=100).total_s
    )
    assert step(8, batch=64).total_s < step(4, 2, batch=64).total_s


def test_a_prompt_is_read_faster_by_more_devices():
    one, four = Layout(1, 1, NVLINK, NVLINK), Layout(4, 1, NVLINK, NVLINK)
    assert prefill_time(SHAPE, H100, four, 4096) < prefill_time(SHAPE, H100, one, 4096) / 2
    piped = Layout(1, 4, NVLINK, NVLINK)
    assert prefill_time(SHAPE, H100, piped, 4096, 1) == pytest.approx(
        prefill_time(SHAPE, H100, one, 4096), rel=1e-6
    )
    assert prefill_time(SHAPE, H100, piped, 4096, 16) < prefill_time(SHAPE, H100, one, 4096) / 2


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 512), st.floats(0, 1e5))
def test_no_layout_beats_its_bandwidth(tensor, batch, context):
    found = step(tensor, batch=batch, context=context)
    assert found.total_s >= found.weights_s + found.kv_s
    assert step(2 * tensor, batch=batch, context=context).weights_s < found.weights_s


def test_degrees_divide_the_heads():
    assert tensor_degrees(SHAPE, 8) == [1, 2, 4, 8]
    assert tensor_degrees(MODELS["qwen2.5-7b"].shape, 16) == [1, 2, 4]


@pytest.mark.parametrize(
    "call",
    [
        lambda: pipeline_bubble(0, 1),
        lambda: pipeline_bubble(1, 0),
        lambda: stage_layers(4, 5),
        lambda: all_reduce_bytes(0, 1, 1),
        lambda: Layout(0, 1, NVLINK, NVLINK),
        lambda: step(1, batch=0),
        lambda: step(1, context=-1),
        lambda: tensor_degrees(SHAPE, 0),
        lambda: accelerator("abacus"),
        lambda: link_between("string"),
        lambda: Link("x", 0.0, 0.0, ""),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ConfigError):
        call()
