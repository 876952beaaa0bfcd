"""Every published value, with its tolerance, by the code that answers questions.

The values are those of the planning notes: closed forms to about eight digits (relative tolerance
1e-5, or exact where it is 0), counted or measured by others where a source stands beside them.
"""

from collections.abc import Callable
from math import log
from typing import Any

import pytest

from holdfast.core.plan.accelerators import ACCELERATORS, LINKS
from holdfast.core.plan.capacity import (
    Traffic,
    alone_ms,
    split_need,
    token_budget_ms,
    users_to_rate,
)
from holdfast.core.plan.coldstart import Filesystem, bytes_read, schedule_loads, share_bytes_per_s
from holdfast.core.plan.engine_speeds import SPEEDS
from holdfast.core.plan.failure_rates import replica_availability, spot_availability
from holdfast.core.plan.memory import MemoryQuestion, fit_on_host
from holdfast.core.plan.model_catalogue import MODELS
from holdfast.core.plan.model_shape import QUANTISATIONS
from holdfast.core.plan.overload import (
    budget_bound,
    exponential_tail,
    hedged_quantile,
    lognormal_quantile,
    metastable_attempts,
    nested_attempts,
    retry_amplification,
    slow_after_hedge,
    tail_per_call,
)
from holdfast.core.plan.parallelism import Layout, all_reduce_bytes, decode_step, pipeline_bubble
from holdfast.core.plan.queues import (
    erlang_c,
    random_choice_wait,
    shared_sojourn,
    sojourn_quantile,
    two_choices_sojourn,
    two_choices_tail,
)
from holdfast.core.plan.redundancy import (
    Redundancy,
    availability,
    replicas_by_mean,
    spares_for,
    zone_availability,
)
from holdfast.testing.textbook import OutageParams

BF16 = QUANTISATIONS["bf16"]
ROUTER = SPEEDS["router-example"]
EFS = Filesystem(100e6)
LATE = -log(0.05)  # p95 of exponential times
USERS_RATE = users_to_rate(10_000, 0.0, 1.005)


def together(k: int, rho: float) -> float:
    return Redundancy(20, 0.995, correlation=rho).availability(k)


def spares(target: float, a: float = 0.995, rho: float = 0.0, need: int = 20) -> int:
    return spares_for(target, need, a, correlation=rho).spares


def kv(name: str) -> float:
    return MODELS[name].shape.kv_bytes_per_token()


def parameters(name: str) -> int:
    return MODELS[name].shape.parameters


def room(devices: int) -> int:
    shape = MODELS["llama-3.1-70b"].shape
    asked = MemoryQuestion(shape, BF16, 8192, 1, 80e9, 0.9, 2e9, activations=0.0)
    return asked.kv_tokens(devices)


def smallest_tensor() -> int:
    shape = MODELS["llama-3.1-70b"].shape
    asked = MemoryQuestion(shape, BF16, 8192, 1, 80e9, 0.9, 2e9, activations=0.0)
    found = asked.smallest([1, 2, 4, 8])
    assert found is not None
    return found.tensor


def floor_ms() -> float:
    link = LINKS["nvlink4"]
    shape, device = MODELS["llama-3.1-70b"].shape, ACCELERATORS["h100-80gb"]
    step = decode_step(shape, BF16, device, Layout(4, 1, link, link), batch=1, context=0)
    return step.weights_s * 1e3


def split(batch: int) -> Any:
    return split_need(
        ROUTER,
        Traffic(USERS_RATE, 500, 200),
        batch,
        wait_s=0.1,
        late_share=0.01,
        utilisation=0.7,
        kv_bytes_per_token=kv("llama-3.1-8b"),
        link_bytes_s=40e9,
    )


def loads(parallel: int) -> float:
    return schedule_loads([10e9] * 40, parallel, EFS).mean_s


MEASURED = {1: 66_144, 8: 744_224}  # DistServe's max_num_tokens.csv, OPT-13B on devices of 80 GB
SLOPE = (MEASURED[8] - MEASURED[1]) / 7
OPT = SPEEDS["distserve-opt-13b"]

# id: (computed, value, relative tolerance; 0: exact)
GOLDENS: dict[str, tuple[Callable[[], Any], Any, float]] = {
    **{
        f"binom N=8 k={k} a=.99": (lambda k=k: availability(8, k, 0.99), value, 1e-5)
        for k, value in ((0, 0.9227446944), (1, 0.99656427), (2, 0.9998861509), (4, 0.9999999253))
    },
    "zones 3x4": (lambda: zone_availability(8, 3, 4, 0.99, 0.999), 0.99976562, 1e-5),
    "one zone 12": (lambda: zone_availability(8, 1, 12, 0.99, 0.999), 0.99899993, 1e-5),
    "indep a*z": (lambda: availability(8, 4, 0.99 * 0.999), 0.99999988, 1e-5),
    "zones 3x6": (lambda: zone_availability(8, 3, 6, 0.99, 0.999), 0.999997, 1e-5),
    "zones 4x3": (lambda: zone_availability(8, 4, 3, 0.99, 0.999), 0.99998023, 1e-5),
    **{
        f"beta-binomial k={k} rho={rho}": (lambda k=k, rho=rho: together(k, rho), value, 1e-5)
        for k, rho, value in (
            (2, 0.0, 0.99982073),
            (3, 0.0, 0.99999487),
            (3, 0.01, 0.99969935),
            (2, 0.05, 0.99113006),
            (3, 0.05, 0.99602385),
            (2, 0.1, 0.98709293),
            (2, 0.3, 0.98638512),
            (3, 0.3, 0.98918682),
        )
    },
    "min k .99": (lambda: spares(0.99), 1, 0),
    "min k .999": (lambda: spares(0.999), 2, 0),
    "min k .99999": (lambda: spares(0.99999), 3, 0),
    "min k .999 rho=.01": (lambda: spares(0.999, rho=0.01), 3, 0),
    "min k .999 rho=.05": (lambda: spares(0.999, rho=0.05), 5, 0),
    "min k .999 rho=.1": (lambda: spares(0.999, rho=0.1), 9, 0),
    "min k .9999 rho=.05": (lambda: spares(0.9999, rho=0.05), 9, 0),
    "min k .9999 rho=.1": (lambda: spares(0.9999, rho=0.1), 17, 0),
    "peer rule a=.995": (lambda: replicas_by_mean(20, 0.995), 21, 0),
    "peer rule a=.95": (lambda: replicas_by_mean(20, 0.95), 22, 0),
    "min k a=.95 .9999": (lambda: spares(0.9999, a=0.95), 7, 0),
    "RSC-1 MTTR 4h": (lambda: replica_availability(24_000 / 6.5, 0, 4), 0.998918, 1e-5),
    "RSC-1 MTTR 48h": (lambda: replica_availability(24_000 / 6.5, 0, 48), 0.987167, 1e-5),
    "spot a": (lambda: spot_availability(240, 5, 0), 0.979592, 1e-5),
    "spot k 240/245": (lambda: spares(0.999, a=spot_availability(240, 5, 0), need=8), 2, 0),
    "spot k 240/243": (lambda: spares(0.999, a=spot_availability(240, 5, 2), need=8), 2, 0),
    "book a": (lambda: replica_availability(500, 3, 20), 0.956022945, 1e-5),
    "book a fragile": (lambda: replica_availability(100, 3, 20), 0.81300813, 1e-5),
    "book served": (lambda: replica_availability(100, 3, 0), 0.970873786, 1e-5),
    **{
        f"ErlangC c={c} a={a}": (lambda c=c, a=a: erlang_c(c, a), value, 1e-5)
        for c, a, value in (
            (1, 0.8, 0.8),
            (2, 1.6, 0.71111111),
            (8, 6.4, 0.45764493),
            (64, 51.2, 0.05605638),
            (64, 57.6, 0.31066332),
            (64, 60.8, 0.58801093),
        )
    },
    "M/M/1 T/S": (lambda: random_choice_wait(0.8) + 1.0, 5.0, 1e-5),
    "PK cv2=4": (lambda: random_choice_wait(0.8, 4.0), 10.0, 1e-5),
    "PS T/S": (lambda: shared_sojourn(0.8), 5.0, 1e-5),
    "M/M/1 p99": (lambda: sojourn_quantile(0.8, 0.99), 23.025851, 1e-5),
    **{
        f"p2c T {load}": (lambda load=load: two_choices_sojourn(load), value, 1e-5)
        for load, value in (
            (0.5, 1.265686),
            (0.8, 1.947363),
            (0.9, 2.614057),
            (0.95, 3.383046),
            (0.99, 5.431997),
        )
    },
    **{
        f"p2c tail {i}": (lambda i=i: two_choices_tail(0.9, i), value, 1e-5)
        for i, value in ((2, 0.729), (3, 0.4782969), (4, 0.20589113209), (5, 0.03815204244))
    },
    "tail over 100": (lambda: tail_per_call(0.001, 100), 1.0004953285958074e-05, 1e-5),
    "bimodal hedge": (lambda: slow_after_hedge(0.01), 0.0001, 1e-5),
    "lognormal p99.9": (lambda: lognormal_quantile(0.999), 21.982184, 1e-5),
    "lognormal p95": (lambda: lognormal_quantile(0.95), 5.180252, 1e-5),
    "exp p99.9": (lambda: sojourn_quantile(0.0, 0.999), 6.907755, 1e-5),
    "exp p99.9 hedged": (
        lambda: hedged_quantile(exponential_tail(), LATE, 0.999),
        4.951744,
        1e-5,
    ),
    "exp p99 hedged": (lambda: hedged_quantile(exponential_tail(), LATE, 0.99), 3.800451, 1e-5),
    "retry 3 .5": (lambda: retry_amplification(3, 0.5), 1.75, 1e-5),
    "retry 4 .5": (lambda: retry_amplification(4, 0.5), 1.875, 1e-5),
    "retry 5 1": (lambda: retry_amplification(5, 1.0), 5.0, 1e-5),
    "3 layers x 4": (lambda: nested_attempts(3, 4), 64, 0),
    "budget 10%": (lambda: budget_bound(0.1), 1.1, 1e-5),
    "metastable .5": (lambda: metastable_attempts(0.5), 3, 0),
    "metastable .7": (lambda: metastable_attempts(0.7), 2, 0),
    "metastable .9": (lambda: metastable_attempts(0.9), 2, 0),
    "hedging tipping point": (lambda: OutageParams().hedging_tipping_point(), 6.66389, 1e-5),
    "outage ceiling %": (lambda: 100 * OutageParams().ceiling(), 84.8186, 1e-5),
    "with backlog %": (lambda: 100 * OutageParams().ceiling(with_backlog=True), 84.9186, 1e-5),
    "KV 8B": (lambda: kv("llama-3.1-8b"), 131_072, 0),
    "KV 70B": (lambda: kv("llama-3.1-70b"), 327_680, 0),
    "KV Llama-2-7B": (lambda: kv("llama-2-7b"), 524_288, 0),
    "KV Llama-2-13B": (lambda: kv("llama-2-13b"), 819_200, 0),
    "KV OPT-13B": (lambda: kv("opt-13b"), 819_200, 0),
    "KV Qwen3-32B": (lambda: kv("qwen3-32b"), 262_144, 0),
    "KV Mistral-7B": (lambda: kv("mistral-7b"), 131_072, 0),
    "params 8B": (lambda: parameters("llama-3.1-8b"), 8_030_261_248, 0),
    "params 70B": (lambda: parameters("llama-3.1-70b"), 70_553_706_496, 0),
    "params 405B": (lambda: parameters("llama-3.1-405b"), 405_853_388_800, 0),
    "params Llama-2-7B": (lambda: parameters("llama-2-7b"), 6_738_415_616, 0),
    "params Llama-2-70B": (lambda: parameters("llama-2-70b"), 68_976_648_192, 0),
    "params Mistral-7B": (lambda: parameters("mistral-7b"), 7_241_732_096, 0),
    "params Qwen3-32B": (lambda: parameters("qwen3-32b"), 32_762_123_264, 0),
    "vLLM KV bytes": (lambda: 41_408 * kv("llama-3.1-8b"), 5_427_429_376, 0),
    "KV tokens TP4": (lambda: room(4), 423_866, 0),
    "KV tokens TP2": (lambda: room(2), -3379, 0),
    "KV tokens TP8": (lambda: room(8), 1_278_358, 0),
    "min TP": (smallest_tensor, 4, 0),
    "TP4 floor ms": (floor_ms, 10.5304, 1e-5),
    "DistServe slope": (lambda: SLOPE, 96_868.57142857143, 1e-5),
    "DistServe weights": (lambda: SLOPE - MEASURED[1], 30_724.571428571435, 1e-5),
    "DistServe prefill": (lambda: OPT.prefill(512), 72.1486810534344, 1e-5),
    "DistServe decode": (lambda: OPT.step(128, 128 * 512), 65.42776751597967, 1e-5),
    "EFS share": (lambda: share_bytes_per_s(EFS, 40) / 1e6, 2.5, 1e-5),
    "EFS 10 GB": (lambda: 10e9 / share_bytes_per_s(EFS, 40), 4000.0, 1e-5),
    "PS mean": (lambda: loads(40), 4000.0, 1e-5),
    "waves of 1": (lambda: loads(1), 2050.0, 1e-5),
    "waves of 2": (lambda: loads(2), 2100.0, 1e-5),
    "waves of 4": (lambda: loads(4), 2200.0, 1e-5),
    "waves of 8": (lambda: loads(8), 2400.0, 1e-5),
    "EFS saturated": (
        lambda: [bytes_read(EFS, 1800) / 1e9, bytes_read(EFS, 2700) / 1e9],
        [180.0, 270.0],
        1e-5,
    ),
    "Parler": (lambda: [fit_on_host(31e9, 1e9), fit_on_host(31e9, 4e9)], [31, 7], 1e-5),
    "serve(2000, 200)": (
        lambda: [*alone_ms(ROUTER, 2000, 200), sum(alone_ms(ROUTER, 2000, 200))],
        [20.0, 1000.0, 1020.0],
        1e-5,
    ),
    "ex2 T": (lambda: sum(alone_ms(ROUTER, 500, 200)) / 1000, 1.005, 1e-5),
    "prefill erlangs": (lambda: split(64).prefill_offered, 49.751, 1e-5),
    "decode in flight": (lambda: split(64).decode_offered, 9950.25, 1e-5),
    "decode B=32": (lambda: split(32).decode_by_batch, 311, 0),
    "decode B=64": (lambda: split(64).decode_by_batch, 156, 0),
    "prefill rho .7": (lambda: split(64).prefill_by_utilisation, 72, 0),
    "prefill Erlang-C": (lambda: split(64).prefill_by_waiting, 50, 0),
    "TPOT budget": (lambda: token_budget_ms(2.0, 0.1, 200), 9.5477, 1e-5),
    "KV/request": (lambda: 700 * kv("llama-3.1-8b") / 1e6, 91.7504, 1e-5),
    "think 10s": (lambda: users_to_rate(10_000, 10, 1.005), 908.68, 1e-5),
    "think 30s": (lambda: users_to_rate(10_000, 30, 1.005), 322.53, 1e-5),
    "think 60s": (lambda: users_to_rate(10_000, 60, 1.005), 163.92, 1e-5),
    "bubble 4 1": (lambda: pipeline_bubble(4, 1), 0.75, 1e-5),
    "bubble 4 16": (lambda: pipeline_bubble(4, 16), 0.157895, 1e-5),
    "bubble 8 32": (lambda: pipeline_bubble(8, 32), 0.179487, 1e-5),
    "all-reduce": (lambda: all_reduce_bytes(8, 64, 8192), 1_835_008.0, 1e-5),
    "x160": (lambda: all_reduce_bytes(8, 64, 8192) * 160 / 1e6, 293.60128, 1e-5),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_the_published_value_is_what_the_planner_says(name):
    compute, value, tolerance = GOLDENS[name]
    if tolerance:
        # Some were published with six digits: half of the last one is up to 2e-5 of the value.
        assert compute() == pytest.approx(value, rel=max(tolerance, 2e-5))
    else:
        assert compute() == value


def test_none_is_missing():
    """The notes list 123 values; KV of Llama-2-13B and OPT-13B are one of them and two here."""
    assert len(GOLDENS) == 124
