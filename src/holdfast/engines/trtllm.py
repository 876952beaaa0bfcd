"""Dialect of trtllm-serve, TensorRT-LLM's own server.

``/metrics`` is JSON: statistics of iterations, which the first reader takes out of a queue. The
text page is ``/prometheus/metrics`` and needs an option; without it the load is unknown.
While it loads, every route answers 503 with Retry-After and a header that says "starting".

Unknown fields are refused with a 400, and ``continue_final_message`` is one of them: no chat is
continued here.

Older releases hold their port from the start and answer at the end. The name in a request is not
compared with that of the model, so none is given at the start: not every release knows the flag.
Its share of memory is of what is free beside the weights, and for the KV cache alone.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.engines.dialect import (
    COMPILING,
    LOADING,
    SERVING,
    WARM_UP,
    Dialect,
    Recipe,
)
from holdfast.engines.prometheus import load_reader

DIALECT: Final = Dialect(
    name="trtllm",
    takes_memory_at_start=True,
    health_path="/health",
    metrics_path="/prometheus/metrics",
    version_page=("/version", "version"),
    read_load=load_reader(
        running=("trtllm_num_requests_running",),
        waiting=("trtllm_num_requests_waiting",),
        kv_used=("trtllm_kv_cache_utilization",),
    ),
    running_usage=True,
    metrics_need="return_perf_metrics: true",
    loading_header=("x-trtllm-server-state", "starting"),
    phases=(
        ("Prefetching", LOADING),
        ("Loading weights", LOADING),
        ("weights in parallel", LOADING),
        ("Running autotuner warmup", COMPILING),
        ("Autotuning process", COMPILING),
        ("Creating CUDA graph instances", COMPILING),
        ("CUDA graph warmup", COMPILING),
        ("Run warmup with", WARM_UP),
        ("Application startup complete", SERVING),
    ),
    fatals=(
        (
            "Executor creation failed due to insufficient GPU memory",
            Kind.OUT_OF_MEMORY,
            "no room for a KV cache beside the weights",
        ),
        ("No GPU devices found", Kind.EXITED, "there is no GPU"),
        ("Failed to bind socket", Kind.EXITED, "another process holds its port"),
        ("Executor worker returned error", Kind.EXITED, "its executor did not come up"),
    ),
    needs_gpu=True,
    recipe=Recipe(
        program=("trtllm-serve", "{weights}", "--host", "{host}", "--port", "{port}"),
        options=(
            ("tensor_parallel", "--tp_size"),
            ("pipeline_parallel", "--pp_size"),
            ("context", "--max_seq_len"),
            ("memory_fraction", "--kv_cache_free_gpu_memory_fraction"),
            ("slots", "--max_batch_size"),
        ),
    ),
)

__all__ = ["DIALECT"]
