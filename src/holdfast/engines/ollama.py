"""Ollama.

Nothing deeper than "the process answers": ``/api/version``. No metrics. A full queue is a 503
without Retry-After, so its words are all that tells it from a failure.

Nothing is continued here. ``/v1/completions`` wraps its prompt in the model's chat template, so a
longer prompt is a new question, not the same answer further on; and whether a chat that ends with
the assistant is taken up or answered anew is decided by each model's template.
"""

from typing import Final

from holdfast.engines.dialect import Dialect
from holdfast.engines.prometheus import nothing_told

DIALECT: Final = Dialect(
    name="ollama",
    health_path="/api/version",
    metrics_path=None,
    read_load=nothing_told,
    prompt_continuation=False,
    busy_bodies=(b"server busy",),
)

__all__ = ["DIALECT"]
