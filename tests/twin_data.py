"""Measurements of engines whose law is known: made by replaying drawn arrivals through it."""

from dataclasses import replace
from random import Random

from holdfast.sim.engine_parameters import EngineParameters
from holdfast.twin.measurement import MeasuredRequest
from holdfast.twin.replay import replay

LAW = EngineParameters(
    step_ms=12.0,
    per_sequence_ms=1.5,
    per_kv_token_ms=0.002,
    per_prompt_token_ms=0.2,
    batch_max=8,
    overhead_ms=3.0,
)

FLEET = """\
# what runs
models:
  - name: llama
    engine: vllm
    slo_first_token: 2s
    launch:
      replicas: 2  # two are enough
      zones: [zone-a, zone-b]
      weights: w
      slots: 8
prices:
  gpu_hour: 2.5
"""


def drawn(rate, count, replicas=3, seed=1):
    """Requests that nobody has answered yet, sent round robin."""
    rng, at, made = Random(seed), 0.0, []
    for number in range(count):
        at += rng.expovariate(rate)
        prompt, output = rng.randint(20, 400), rng.randint(5, 80)
        made.append(MeasuredRequest(at, prompt, output, at, at, f"llama-{number % replicas + 1}"))
    return made


def measured(law, rate, count, *, hosts=None, seed=1, replicas=3):
    """What a client of three engines with this law would have seen."""
    asked = drawn(rate, count, replicas, seed)
    return [
        replace(
            one, first_s=one.arrived_s + told.first_token_s, last_s=one.arrived_s + told.latency_s
        )
        for one, told in zip(asked, replay(asked, law, hosts), strict=True)
    ]
