"""Dialect of Ollama.

Nothing deeper than "the process answers": ``/api/version``. No metrics. A full queue is a 503
without Retry-After, so only its text distinguishes it from a failure.

Nothing is continued here. ``/v1/completions`` wraps its prompt in the model's chat template, so a
longer prompt is a new question, not the same answer further on; and whether a chat that ends with
the assistant is taken up or answered anew is decided by each model's template.

It loads a model when it is first asked for it and forgets it after five minutes. Started by us it
keeps it; its weights are the folder of its models, and ``served_as`` is the name of one of them.
"""

from typing import Final

from holdfast.core.failure import Kind
from holdfast.engines.dialect import SERVING, STARTING, Dialect, LoadPhase, Recipe
from holdfast.engines.prometheus import nothing_told

_ON_DEMAND: Final = LoadPhase("loading", None)  # the server itself is there and stays so

DIALECT: Final = Dialect(
    name="ollama",
    takes_memory_at_start=True,
    health_path="/api/version",
    metrics_path=None,
    version_page=("/api/version", "version"),
    read_load=nothing_told,
    prompt_continuation=False,
    busy_bodies=(b"server busy",),
    missing_bodies=(b"not found, try pulling it first",),
    phases=(
        ("server config", STARTING),
        ("Listening on", SERVING),  # the model comes with the first question: a canary's
        ("starting runner", _ON_DEMAND),
        ("starting llama server", _ON_DEMAND),
        ("waiting for llama runner", _ON_DEMAND),
        ("waiting for server to become available", _ON_DEMAND),
        ("llama runner started", SERVING),
    ),
    fatals=(
        ("timed out waiting for llama runner", Kind.LOAD_STALLED, "its runner never came up"),
        ("llama runner process has terminated", Kind.EXITED, "its runner ended"),
        ("llama runner process no longer running", Kind.EXITED, "its runner ended"),
        ("error loading model", Kind.EXITED, "the weights cannot be loaded"),
    ),
    quotes=("prompt=",),
    recipe=Recipe(
        program=("ollama", "serve"),
        options=(("context", "OLLAMA_CONTEXT_LENGTH"), ("slots", "OLLAMA_NUM_PARALLEL")),
        environment=(
            ("OLLAMA_HOST", "{address}"),
            ("OLLAMA_MODELS", "{weights}"),
            ("OLLAMA_KEEP_ALIVE", "-1"),  # a model that leaves when idle is a cold start for a user
        ),
    ),
)

__all__ = ["DIALECT"]
