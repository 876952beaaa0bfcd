"""vLLM.

``/health`` is 200 unless the engine process is known to be dead: a hang is 200. While it loads, the
port refuses. With data parallelism every gauge has one series for each ``engine`` label. The KV
gauge was renamed when the first engine was retired (0.10); its old name still runs in many fleets,
and routers that read one of the two take its absence for an empty cache.

It refuses for load only where a queue bound was configured: 503, no Retry-After. A prompt beyond
the context is a 400, the client's error. A stream that dies ends with an error event and then
``[DONE]``. Several tokens share an event under load: count by usage, never by events.
"""

from typing import Final

from holdfast.engines.dialect import Continuation, Dialect
from holdfast.engines.prometheus import load_reader

DIALECT: Final = Dialect(
    name="vllm",
    health_path="/health",
    metrics_path="/metrics",
    read_load=load_reader(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ),
    chat_continuation=Continuation.FINAL_MESSAGE,
    running_usage=True,
    busy_bodies=(b"Request queue",),  # "… full.", "… reached max pending tokens limit."
)

__all__ = ["DIALECT"]
