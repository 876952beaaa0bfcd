"""Dialect of llama.cpp's server.

``/health`` is 503 "Loading model" until the weights are there and 200 from then on, saturated or
not. Requests beyond its slots wait inside ("deferred") and are never refused. Newer builds have no
gauge of the KV cache; the old one is read where an old build serves it.

A chat is continued by ending the messages with the part of the answer that is there. A stream sends
the new text only; without streaming the answer repeats the part, which must be cut off. An event
holds one token or, around characters of several bytes and half-matched stop strings, more.

Greedy answers were the same alone and under load, so they are compared exactly. Weights bring their
quantisation with them, and layers are split over GPUs by flags that are no degree, so neither is an
option here. Its context is one pool for all slots: so much for each of them is asked for.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.engines.dialect import (
    LOADING,
    SERVING,
    WARM_UP,
    Continuation,
    Dialect,
    Recipe,
)
from holdfast.engines.prometheus import load_reader

DIALECT: Final = Dialect(
    name="llamacpp",
    takes_memory_at_start=True,
    health_path="/health",
    metrics_path="/metrics",
    version_page=("/props", "build_info"),
    read_load=load_reader(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_used=("llamacpp:kv_cache_usage_ratio",),
        steps=("llamacpp:n_decode_total",),  # calls, each with up to a batch of a prompt's tokens
    ),
    chat_continuation=Continuation.PREFILL,
    one_token_per_event=True,  # but for those that end inside a character or a stop string
    metrics_need="--metrics",
    loading_bodies=(b"Loading model",),
    bit_stable=True,
    phases=(
        ("loading model", LOADING),
        ("llama_model_loader", LOADING),
        ("load_tensors", LOADING),
        ("warming up the model", WARM_UP),
        ("threadpool init", WARM_UP),
        ("model loaded", SERVING),  # its HTTP server was there before the model was
        ("listening on", SERVING),  # "is listening, hostname" of old builds comes before the load
    ),
    fatals=(
        ("failed to open GGUF file", Kind.EXITED, "the weights cannot be opened"),
        ("unknown model architecture", Kind.EXITED, "this build does not know the architecture"),
        ("error loading model", Kind.EXITED, "the weights cannot be loaded"),
        ("failed to load model", Kind.EXITED, "the weights cannot be loaded"),
        ("exiting due to model loading error", Kind.EXITED, "the weights cannot be loaded"),
        ("couldn't bind", Kind.EXITED, "it cannot listen at its address"),
    ),
    quotes=("request: {", "Parsed message"),
    recipe=Recipe(
        program=(
            *("llama-server", "--model", "{weights}", "--alias", "{served_as}"),
            *("--host", "{host}", "--port", "{port}", "--metrics"),
        ),
        options=(("context", "--ctx-size"), ("slots", "--parallel"), ("threads", "--threads")),
        context_is_shared=True,
        embedded=(
            *("{python}", "-m", "holdfast.launchers.llamacpp"),
            *("--model", "{weights}", "--alias", "{served_as}"),
            *("--host", "{host}", "--port", "{port}"),
        ),
        embedded_options=(
            ("slots", "--slots"),
            ("threads", "--threads"),
            ("context", "--context"),  # of one request; our own module knows the slots too
        ),
    ),
)

__all__ = ["DIALECT"]
