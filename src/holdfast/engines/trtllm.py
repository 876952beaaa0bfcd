"""trtllm-serve, TensorRT-LLM's own server.

``/metrics`` is JSON: statistics of iterations, taken out of a queue by whoever asks first. The text
page is ``/prometheus/metrics`` and exists with one option only; without it the load is unknown.
While it loads, every route answers 503 with Retry-After and a header that says "starting".

Unknown fields are refused with a 400, and ``continue_final_message`` is one of them: no chat is
continued here.
"""

from typing import Final

from holdfast.engines.dialect import Dialect
from holdfast.engines.prometheus import load_reader

DIALECT: Final = Dialect(
    name="trtllm",
    health_path="/health",
    metrics_path="/prometheus/metrics",
    read_load=load_reader(
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        kv_used=("trtllm_kv_cache_utilization",),
    ),
    running_usage=True,
    metrics_need="return_perf_metrics: true",
)

__all__ = ["DIALECT"]
