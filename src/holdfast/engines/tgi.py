"""Text Generation Inference.

``/health`` asks only whether a shard can allocate, until something failed. Overload is a 429
("Model is overloaded") and needs no words here. Gauges appear with the first request: unknown
before it. No gauge says how full the KV cache is: ``tgi_batch_current_max_tokens`` is a budget, not
a use. Usage at the end of a stream and ``continue_final_message`` came in late 2024.
"""

from typing import Final

from holdfast.engines.dialect import Continuation, Dialect
from holdfast.engines.prometheus import load_reader

DIALECT: Final = Dialect(
    name="tgi",
    health_path="/health",
    metrics_path="/metrics",
    read_load=load_reader(running=("tgi_batch_current_size",), waiting=("tgi_queue_size",)),
    chat_continuation=Continuation.FINAL_MESSAGE,
)

__all__ = ["DIALECT"]
