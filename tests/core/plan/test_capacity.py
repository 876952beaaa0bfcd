import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.plan.capacity import (
    Traffic,
    alone_ms,
    batch_at,
    batch_on_the_spare,
    choose_batch,
    replicas_for,
    split_need,
    token_budget_ms,
    users_to_rate,
    warm_share,
)
from holdfast.core.plan.engine_speeds import SPEEDS, EngineSpeed, engine_speed
from holdfast.core.types import ConfigError

ROUTER, VLLM = SPEEDS["router-example"], SPEEDS["vllm-llama-3.1-8b"]


def split(batch=64, utilisation=0.7):
    traffic = Traffic(users_to_rate(10_000, 0.0, 1.005), 500, 200)
    return split_need(
        ROUTER,
        traffic,
        batch,
        wait_s=0.1,
        late_share=0.01,
        utilisation=utilisation,
        kv_bytes_per_token=131_072,
        link_bytes_s=40e9,
    )


def test_the_routers_example_takes_20_1000_and_1020_ms():
    assert alone_ms(ROUTER, 2000, 200) == (20.0, 1000.0)


def test_ten_thousand_users_split_over_prompts_and_answers():
    found = split()
    assert found.prefill_offered == pytest.approx(49.751, rel=1e-4)
    assert (found.prefill_by_waiting, found.prefill_by_utilisation) == (50, 72)
    assert found.decode_offered == pytest.approx(9950.249, rel=1e-6)
    assert [split(batch).decode_by_batch for batch in (32, 64, 128)] == [311, 156, 78]
    assert found.transfer_bytes == pytest.approx(65.536e6)
    assert found.transfer_s == pytest.approx(1.638e-3, rel=1e-3)
    assert found.transfer_bytes_s == pytest.approx(652e9, rel=1e-3)


def test_a_larger_batch_serves_more_and_each_more_slowly():
    traffic = Traffic(10, 500, 200)
    small, large = batch_at(VLLM, traffic, 8), batch_at(VLLM, traffic, 64)
    assert large.requests_s > small.requests_s
    assert large.token_ms > small.token_ms
    assert large.requests_s * large.service_s == pytest.approx(64)  # Little's law


@given(st.floats(14.0, 60.0), st.floats(1, 4000), st.floats(1, 2000))
def test_the_chosen_batch_is_in_time_and_one_more_would_not_be(budget, prompt, output):
    traffic = Traffic(10, prompt, output)
    if batch_at(VLLM, traffic, 1).token_ms > budget:
        with pytest.raises(ConfigError, match="more replicas do not help"):
            choose_batch(VLLM, traffic, budget)
        return
    chosen = choose_batch(VLLM, traffic, budget)
    assert chosen.token_ms <= budget
    if chosen.batch < VLLM.batch_max:
        assert batch_at(VLLM, traffic, chosen.batch + 1).token_ms > budget


def test_the_cache_bounds_the_batch_too():
    assert choose_batch(VLLM, Traffic(1, 500, 200), None, 6000).batch == 10
    with pytest.raises(ConfigError, match="less than one request"):
        choose_batch(VLLM, Traffic(1, 500, 200), None, 100)


@given(st.floats(0.1, 500.0), st.floats(0.3, 0.95))
def test_replicas_carry_the_load_within_their_utilisation(rate, busy):
    traffic = Traffic(rate, 500, 200)
    batch = choose_batch(VLLM, traffic, 30.0)
    need = replicas_for(traffic, batch, wait_s=0.5, late_share=0.01, utilisation=busy)
    assert need.utilisation <= busy + 1e-9
    assert need.replicas == max(1, need.by_waiting, need.by_utilisation)


def test_a_surge_needs_ready_replicas_as_far_as_new_ones_are_late():
    assert warm_share(4.0, 120.0, 300.0) == pytest.approx(3 * 0.4)
    assert warm_share(4.0, 120.0, 60.0) == 3.0
    assert warm_share(1.0, 120.0, 60.0) == 0.0


def test_batch_work_gets_what_the_mean_leaves():
    batch = batch_at(VLLM, Traffic(1, 500, 200), 64)
    assert batch_on_the_spare(4, batch, 10.0, 0.8) == pytest.approx(4 * batch.requests_s * 0.8 - 10)
    assert batch_on_the_spare(1, batch, 1e6, 0.8) == 0.0


def test_bands_of_a_law_begin_where_they_say():
    opt = SPEEDS["distserve-opt-13b"]
    assert opt.step(32, 32 * 512) == pytest.approx(31.439, rel=1e-4)
    assert opt.step(94, 0) != pytest.approx(opt.step(95, 0), rel=0.05)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: Traffic(0, 1, 1), "traffic.rate"),
        (lambda: Traffic(1, -5, 1), "traffic.prompt"),
        (lambda: Traffic(1, 1, 0), "traffic.output"),
        (lambda: users_to_rate(0, 1, 1), "traffic.users"),
        (lambda: users_to_rate(1, -1, 1), "traffic.think"),
        (lambda: users_to_rate(1, 1, 0), "traffic.answer_s"),
        (lambda: token_budget_ms(1.0, 2.0, 10), "capacity.latency"),
        (lambda: warm_share(0.5, 1, 1), "capacity.surge"),
        (lambda: EngineSpeed("x", (), 0.0, 1, ""), "speed.bands"),
        (lambda: EngineSpeed("x", ((1, 0.0, 0.0, 0.0),), 0.0, 1, ""), "speed.step_ms"),
        (
            lambda: EngineSpeed("x", ((1, 1.0, 0.0, 0.0),), -1.0, 1, ""),
            "speed.prefill_ms_per_token",
        ),
        (lambda: engine_speed("abacus"), "speed"),
        (lambda: split(0), "capacity.batch"),
    ],
)
def test_what_cannot_be_names_its_field(call, field):
    with pytest.raises(ConfigError) as refused:
        call()
    assert refused.value.field == field
