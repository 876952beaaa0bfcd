"""Dialect of Text Generation Inference (TGI).

``/health`` asks only whether a shard can allocate, until something failed. Overload is a 429
("Model is overloaded") and needs no words here. Gauges appear with the first request: unknown
before it. No gauge says how full the KV cache is: ``tgi_batch_current_max_tokens`` is a budget, not
a use. Usage at the end of a stream and ``continue_final_message`` came in late 2024.

Whatever model a request names, it answers with the one it has. Two on one host would meet in the
socket of their shards, the port these find each other at and the port of a second metrics page: all
three are given apart. It has no pipeline parallelism.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.engines.dialect import (
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
    name="tgi",
    takes_memory_at_start=True,
    health_path="/health",
    metrics_path="/metrics",
    version_page=("/info", "version"),
    read_load=load_reader(running=("tgi_batch_current_size",), waiting=("tgi_queue_size",)),
    chat_continuation=Continuation.FINAL_MESSAGE,
    phases=(
        ("Starting check and download process", STARTING),
        ("Starting download process", STARTING),
        ("Starting shard", LOADING),
        ("Waiting for shard to be ready", LOADING),
        ("Shard ready in", LOADING),
        ("Starting Webserver", LOADING),
        ("Warming up model", WARM_UP),
        ("Cuda Graphs are enabled", WARM_UP),
        ("Setting max batch total tokens", WARM_UP),
        (": Connected", SERVING),
    ),
    fatals=(
        ("Not enough memory to handle", Kind.OUT_OF_MEMORY, "no room for a full batch"),
        ("DownloadError", Kind.EXITED, "the weights cannot be fetched"),
        ("ShardCannotStart", Kind.EXITED, "a shard did not start"),
        ("ShardFailed", Kind.EXITED, "a shard ended"),
        ("Webserver Crashed", Kind.EXITED, "its web server ended"),
        ("WebserverFailed", Kind.EXITED, "its web server ended"),
    ),
    needs_gpu=True,
    recipe=Recipe(
        program=(
            *("text-generation-launcher", "--model-id", "{weights}"),
            *("--hostname", "{host}", "--port", "{port}", "--master-port", "{side_port}"),
            *("--shard-uds-path", "/tmp/text-generation-server-{port}"),  # noqa: S108
        ),
        options=(
            ("tensor_parallel", "--num-shard"),
            ("context", "--max-total-tokens"),
            ("quantisation", "--quantize"),
            ("memory_fraction", "--cuda-memory-fraction"),
        ),
        told_always=("tensor_parallel",),  # left alone it takes every GPU it sees
        environment=(("PROMETHEUS_PORT", "{second_side_port}"),),  # older releases ignore it
    ),
)

__all__ = ["DIALECT"]
