"""llama.cpp's server.

``/health`` is 503 "Loading model" until the weights are there and 200 from then on, saturated or
not. Requests beyond its slots wait inside ("deferred") and are never refused. Newer builds have no
gauge of the KV cache; the old one is read where an old build serves it.

A chat is continued by ending the messages with the part of the answer that is there. A stream sends
the new text only; without streaming the answer repeats the part, which must be cut off. An event
holds one token or, around characters of several bytes and half-matched stop strings, more.
"""

from typing import Final

from holdfast.engines.dialect import Continuation, Dialect
from holdfast.engines.prometheus import load_reader

DIALECT: Final = Dialect(
    name="llamacpp",
    health_path="/health",
    metrics_path="/metrics",
    read_load=load_reader(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        kv_used=("llamacpp:kv_cache_usage_ratio",),
    ),
    chat_continuation=Continuation.PREFILL,
    one_token_per_event=True,  # but for those that end inside a character or a stop string
    metrics_need="--metrics",
    loading_bodies=(b"Loading model",),
)

__all__ = ["DIALECT"]
