"""Dialect of SGLang.

``/health`` generates a token by default and passes when the detokenizer sent anything in 20 s.
Metrics need a flag. Two things make a plain sum wrong here: with priority scheduling the total
stands under an empty ``priority`` label and its parts beside it under the same name, and with
metrics of all schedulers the ranks of one tensor- or pipeline-parallel group repeat one figure.
So parts are left out, and one figure is taken for each ``dp_rank``.

A full queue is a 503 without Retry-After; for a stream it is a 200 whose first event holds the 503.
``continue_final_message`` came in March 2025, usage in every chunk in October 2025; a server older
than that ignores the wish for usage.

While it shuts down in good order ``/health`` is a 503 without a word, as while it starts: neither
can be told from a page that is broken, so that only the answer to a question counts.

Its HTTP server listens before the model is warm: "Application startup complete" is not the end,
"fired up" is. A scheduler that died may leave that HTTP server behind.
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
from holdfast.engines.prometheus import label, labelled, load_reader


def rank_samples(text: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    """One value for each data-parallel rank: the largest that its schedulers report."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in labelled(text, names):
        if label(labels, "priority"):
            continue
        ranks = found.setdefault(name, {})
        rank = label(labels, "dp_rank")
        ranks[rank] = max(value, ranks.get(rank, value))
    return {name: list(ranks.values()) for name, ranks in found.items()}


DIALECT: Final = Dialect(
    name="sglang",
    takes_memory_at_start=True,
    health_path="/health",
    metrics_path="/metrics",
    version_page=("/server_info", "version"),
    read_load=load_reader(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_used=("sglang:token_usage",),
        prefix_hits=("sglang:cache_hit_rate",),
        read=rank_samples,
    ),
    chat_continuation=Continuation.FINAL_MESSAGE,
    running_usage=True,
    metrics_need="--enable-metrics",
    busy_bodies=(
        b"The request queue is full",
        b"aborted by a higher priority request",
    ),
    phases=(
        ("server_args=", STARTING),
        ("Init torch distributed", STARTING),
        ("Load weight begin", LOADING),
        ("checkpoint shards", LOADING),
        ("Load weight end", LOADING),
        ("Memory pool end", LOADING),
        ("Capture cuda graph", COMPILING),
        ("Capturing batches", COMPILING),
        ("Application startup complete", WARM_UP),
        ("The server is fired up and ready to roll", SERVING),
    ),
    fatals=(
        (
            "Not enough memory. Please try to increase --mem-fraction-static",
            Kind.OUT_OF_MEMORY,
            "no room for a KV cache beside the weights",
        ),
        ("Scheduler hit an exception", Kind.EXITED, "its scheduler died; its port may not have"),
    ),
    quotes=("Receive: obj=", "Finish: obj="),
    needs_gpu=True,
    counts_gpus=True,
    recipe=Recipe(
        program=(
            *("python3", "-m", "sglang.launch_server"),
            *("--model-path", "{weights}", "--served-model-name", "{served_as}"),
            *("--host", "{host}", "--port", "{port}", "--enable-metrics"),
        ),
        options=(
            ("tensor_parallel", "--tp-size"),
            ("pipeline_parallel", "--pp-size"),
            ("context", "--context-length"),
            ("quantisation", "--quantization"),
            ("memory_fraction", "--mem-fraction-static"),
            ("slots", "--max-running-requests"),
            ("threads", "OMP_NUM_THREADS"),
        ),
    ),
)

__all__ = ["DIALECT", "rank_samples"]
