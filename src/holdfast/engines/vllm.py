"""Dialect of vLLM.

``/health`` is 200 unless the engine process is known to be dead: a hang is 200. While it loads, the
port refuses. With data parallelism every gauge has one series for each ``engine`` label. The KV
gauge was renamed when the first engine was retired (0.10); its old name still runs in many fleets,
and routers that read one of the two take its absence for an empty cache.

It refuses for load only where a queue bound was configured: 503, no Retry-After. A prompt beyond
the context is a 400, the client's error. A stream that dies ends with an error event and then
``[DONE]``. Several tokens share an event under load: count by usage, never by events.

While it changes its data-parallel size it ends what runs and answers everything else with 503 and
words that say so. When it is told to stop it closes its port: no words are needed for that.

Greedy output is not bit-stable: a hit in the prefix cache has changed an answer's last word.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.engines.dialect import (
    COMPILING,
    LOADING,
    SERVING,
    STARTING,
    WARM_UP,
    Continuation,
    Dialect,
    Recipe,
)
from holdfast.engines.prometheus import load_reader

DIALECT: Final = Dialect(
    name="vllm",
    takes_memory_at_start=True,
    health_path="/health",
    metrics_path="/metrics",
    version_page=("/version", "version"),
    read_load=load_reader(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        generated=("vllm:generation_tokens_total",),
        preemptions=("vllm:num_preemptions_total",),
        prefix_asked=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        prefix_found=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    ),
    chat_continuation=Continuation.FINAL_MESSAGE,
    running_usage=True,
    draining_bodies=(b"The model is currently scaling",),
    busy_bodies=(b"Request queue",),  # "… full.", "… reached max pending tokens limit."
    phases=(
        ("Resolved architecture", STARTING),
        ("Initializing a V1 LLM engine", STARTING),
        ("Starting to load model", LOADING),
        ("Prefetching checkpoint files", LOADING),
        ("checkpoint shards", LOADING),
        ("Loading weights took", LOADING),
        ("Model loading took", LOADING),
        ("torch.compile", COMPILING),
        ("Dynamo bytecode transform", COMPILING),
        ("Compiling a graph", COMPILING),
        ("Capturing CUDA graph", COMPILING),
        ("Graph capturing", COMPILING),
        ("Warming up model", WARM_UP),
        ("Autotuning process", WARM_UP),
        ("init engine (", WARM_UP),
        ("Starting vLLM API server", WARM_UP),
        ("Application startup complete", SERVING),
    ),
    fatals=(
        (
            "Free memory on device",
            Kind.OUT_OF_MEMORY,
            "other processes hold the GPU memory it wants",
        ),
        (
            "No available memory for the cache blocks",
            Kind.OUT_OF_MEMORY,
            "no room for a KV cache beside the weights",
        ),
        ("Engine core initialization failed", Kind.EXITED, "its engine process did not come up"),
        ("EngineCore failed to start", Kind.EXITED, "its engine process did not come up"),
        ("EngineCore encountered a fatal error", Kind.EXITED, "its engine process died"),
        ("EngineDeadError", Kind.EXITED, "its engine process is dead"),
    ),
    quotes=("Received request",),
    needs_gpu=True,
    counts_gpus=True,
    recipe=Recipe(
        program=(
            *("vllm", "serve", "{weights}", "--served-model-name", "{served_as}"),
            *("--host", "{host}", "--port", "{port}"),
        ),
        options=(
            ("tensor_parallel", "--tensor-parallel-size"),
            ("pipeline_parallel", "--pipeline-parallel-size"),
            ("context", "--max-model-len"),
            ("quantisation", "--quantization"),
            ("memory_fraction", "--gpu-memory-utilization"),
            ("slots", "--max-num-seqs"),
            ("threads", "OMP_NUM_THREADS"),
        ),
    ),
)

__all__ = ["DIALECT"]
