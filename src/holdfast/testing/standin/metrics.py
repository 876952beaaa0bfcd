"""Metrics of a stand-in, under the names of the engine it imitates."""

from dataclasses import dataclass
from typing import Final

from holdfast.testing.standin.options import Like


@dataclass(slots=True)
class EngineCounters:
    """Counters of a stand-in, rendered when its metrics page is asked for."""

    requests: int = 0  # inference requests that arrived
    finished: int = 0
    failed: int = 0  # answered with an error, or broken, by a fault
    cancelled: int = 0  # left by their clients
    refused: int = 0  # answered with a 4xx
    prompt_tokens: int = 0
    generated_tokens: int = 0
    lone: int = 0  # of the requests, those with a connection of their own, as canaries come
    lone_cancelled: int = 0  # of the cancelled

    def arrived(self, *, lone: bool) -> None:
        """Count a new request."""
        self.requests += 1
        if lone:
            self.lone += 1

    def left(self, how: str, *, lone: bool) -> None:
        """Count a request that ended: finished, failed or cancelled."""
        if how == "finished":
            self.finished += 1
            return
        setattr(self, how, getattr(self, how) + 1)
        if lone and how == "cancelled":
            self.lone_cancelled += 1


@dataclass(slots=True, frozen=True)
class EngineState:
    """The current load of a stand-in."""

    model: str
    running: int
    waiting: int
    kv_used: float  # share


_VLLM: Final = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {waiting}.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {kv_used:.6f}
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} {prompt_tokens}.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {generated_tokens}.0
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{model}"}} {finished}.0
"""

_LLAMACPP: Final = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total {prompt_tokens}
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total {generated_tokens}
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing {running}
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred {waiting}
# HELP llamacpp:n_busy_slots_per_decode Average number of busy slots per decode call.
# TYPE llamacpp:n_busy_slots_per_decode counter
llamacpp:n_busy_slots_per_decode {running}
"""  # no gauge of the KV cache: llama.cpp has none


def render(like: Like, account: EngineCounters, now: EngineState) -> bytes:
    """Build the text of ``/metrics``."""
    template = _VLLM if like is Like.VLLM else _LLAMACPP
    model = now.model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return template.format(
        model=model,
        running=now.running,
        waiting=now.waiting,
        kv_used=now.kv_used,
        prompt_tokens=account.prompt_tokens,
        generated_tokens=account.generated_tokens,
        finished=account.finished,
    ).encode()


__all__ = ["EngineCounters", "EngineState", "render"]
