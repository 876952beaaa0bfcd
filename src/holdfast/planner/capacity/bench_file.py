"""Reads how fast an engine is from a benchmark's file: Holdfast's own, or that of vLLM.

A file of ``holdfast bench`` has the times of every request, so that the time of a step can be
fitted for any batch, as ``holdfast twin calibrate`` does, in a second instead of half a minute. A
result of ``vllm bench serve`` has one mean for one concurrency: that one is planned with.
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from holdfast.core.plan.engine_speeds import EngineSpeed
from holdfast.core.types import ConfigError, require
from holdfast.twin.fit import REQUESTS_MIN, FitConfig, fit_engine
from holdfast.twin.measurement import MeasuredRequest, load_seen

_BYTES_MAX: Final = 64 << 20
_FORMAT: Final = "holdfast-bench"
_FIT: Final = FitConfig(calls_max=60, requests_max=800)  # a second: a plan is no calibration
_KINDS: Final = "use a file of 'holdfast bench' or of 'vllm bench serve --save-result'"


def speed_of_bench(path: Path, batch: int | None) -> EngineSpeed:
    """The speed that a benchmark measured; ``batch`` goes before the most that was seen."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(_BYTES_MAX))
    except OSError as error:
        raise ConfigError("bench", f"cannot be read: {error.strerror}", "name a file") from error
    except ValueError as error:
        raise ConfigError("bench", f"is no JSON: {error}"[:200], "name a result file") from error
    require(isinstance(told, dict), "bench", "is no JSON object", _KINDS)
    if told.get("format") == _FORMAT:
        return _fitted(path.name, told, batch)
    return _of_vllm(path.name, told, batch)


def _fitted(name: str, told: Mapping[str, Any], batch: int | None) -> EngineSpeed:
    requests = _answered(told)
    enough = len(requests) >= REQUESTS_MIN
    fix = f"measure {REQUESTS_MIN} or more: 'holdfast bench' with a longer --duration"
    require(enough, "bench", f"has {len(requests)} answered requests", fix)
    most = load_seen(requests).batch_most
    fit = fit_engine(requests, batch_max=batch, config=_FIT)
    law = fit.law
    late, whole = (fit.errors[metric]["mean"] for metric in ("first_token_s", "latency_s"))
    errors = ", ".join(
        f"{share:+.0%} ({what})"
        for share, what in ((late, "first token"), (whole, "whole answer"))
        if share is not None
    )
    source = (
        f"measured ({name}): {law.step_ms:.3g} + {law.per_sequence_ms:.3g} for each request + "
        f"{law.per_kv_token_ms:.2g} for each token held, ms a step; fitted to {len(requests)} "
        f"answers at up to {most} at once, off by {errors} on those held out"
    )
    band = (1, law.step_ms, law.per_kv_token_ms, law.per_sequence_ms)
    # Beyond the batches that were seen nothing is known: the plan stays within them.
    return EngineSpeed(name, (band,), law.per_prompt_token_ms, batch or max(1, most), source)


def _answered(told: Mapping[str, Any]) -> list[MeasuredRequest]:
    """The answered requests of a benchmark whose load was not refused as the client's own."""
    steps = told.get("steps")
    rows = told.get("requests")
    good = isinstance(steps, list) and isinstance(rows, list)
    require(good, "bench", "has no steps and requests", "measure again: the file is damaged")
    assert isinstance(steps, list), "checked above"
    assert isinstance(rows, list), "checked above"
    found = []
    for number, row in enumerate(rows):
        try:
            one = _request(steps, row)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            problem = f"requests[{number}] is damaged ({type(error).__name__})"
            raise ConfigError("bench", problem, "measure again") from error
        if one is not None:
            found.append(one)
    return found


def _request(steps: Sequence[Any], row: Mapping[str, Any]) -> MeasuredRequest | None:
    step = steps[row["step"]]
    times = (row["arrived_s"], row.get("first_s"), row.get("last_s"))
    tokens = (row.get("prompt_tokens") or row.get("asked_prompt_tokens"), row.get("output_tokens"))
    if row.get("outcome") != "success" or step.get("refused") or None in (*times, *tokens):
        return None
    values = [float(value) for value in (*times, *tokens) if value is not None]
    if not all(map(isfinite, values)):
        raise ValueError("not a number")
    arrived, first, last, prompt, output = values
    counted = arrived >= float(step.get("counted_from_s") or 0.0)
    return MeasuredRequest(
        arrived, int(prompt), int(output), first, last, row.get("replica") or "", counted=counted
    )


def _of_vllm(name: str, told: Mapping[str, Any], batch: int | None) -> EngineSpeed:
    """Read the result of ``vllm bench serve``: one run at one concurrency.

    Its mean time per token is a step at that concurrency, with the prompts of others read in
    between; so no time is added for prompts. A single run says nothing of other batch sizes: that
    concurrency is the one that is planned with.
    """
    for key in ("mean_tpot_ms", "mean_ttft_ms"):
        value = told.get(key)
        good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        require(good, "bench", f"has no {key}", _KINDS)
    held = batch or int(told.get("max_concurrency") or told.get("num_prompts") or 1)
    band = (1, float(told["mean_tpot_ms"]), 0.0, 0.0)
    source = f"measured ({name}): first token after {told['mean_ttft_ms']:.0f} ms on average"
    return EngineSpeed(name, (band,), 0.0, held, source)


__all__ = ["speed_of_bench"]
