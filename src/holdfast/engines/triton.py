"""Dialect of Triton Inference Server: KServe routes and, where it runs, its OpenAI front end.

``/v2/health/ready`` goes 200, 400 while a model loads, 200 again, and speaks for all models at
once; each model has a page of its own, and that is the one to ask. Metrics stand on another port
(8002), so no path here leads to them by default; the reader can parse them if the page is
fetched. With the TensorRT-LLM backend running and waiting are label values of one metric.

There is no question that any Triton model answers, so its canary needs a body. A model that is not
there is a 400 in older releases and a 404 in newer ones: the words are the same.

A scheduler that is being stopped refuses new inferences in words of its own and ends those it has.

Started by us it loads the one model of its repository that is served, by name: every other would be
loaded too, and fail its start. gRPC and metrics stay off, because their fixed ports allow only one
server on a host. Degrees, context and precision are the model's own config.
"""

from typing import Final

from holdfast.core.canary import Shape
from holdfast.core.failure import Kind
from holdfast.engines.dialect import LOADING, SERVING, STARTING, Dialect, Load, Recipe
from holdfast.engines.prometheus import label, labelled, mean_share, samples, total

PENDING: Final = "nv_inference_pending_request_count"
REQUESTS: Final = "nv_trt_llm_request_metrics"
BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"


def read_load(text: str) -> Load:
    """The load by the TensorRT-LLM backend's metrics if present, else by pending requests."""
    found = samples(text, (PENDING,))
    for name, labels, value in labelled(text, (REQUESTS, BLOCKS)):
        kind = "request_type" if name == REQUESTS else "kv_cache_block_type"
        found.setdefault(label(labels, kind), []).append(value)
    return Load(
        running=total(found, ("scheduled",)),
        waiting=total(found, ("waiting", PENDING)),
        kv_used=mean_share(found, ("fraction",)),
    )


DIALECT: Final = Dialect(
    name="triton",
    health_path="/v2/health/ready",
    metrics_path=None,
    read_load=read_load,
    model_health_path="/v2/models/{model}/ready",
    busy_bodies=(b"Exceeds maximum queue size",),
    draining_bodies=(b"Server is stopping",),  # "…, scheduler for model has stopped accepting …"
    missing_bodies=(b"Request for unknown model",),
    canary_shape=Shape.INFER,
    phases=(
        ("Pinned memory pool", STARTING),
        ("] loading: ", LOADING),
        ("successfully loaded", LOADING),
        ("Started HTTPService at", SERVING),
    ),
    fatals=(
        ("failed to load all models", Kind.EXITED, "a model cannot be loaded"),
        ("failed to load '", Kind.EXITED, "a model cannot be loaded"),
        ("creating server: ", Kind.EXITED, "it cannot be started with these options"),
        ("failed to start HTTP service", Kind.EXITED, "it cannot listen at its address"),
    ),
    recipe=Recipe(
        program=(
            *("tritonserver", "--model-repository={weights}", "--model-control-mode=explicit"),
            *("--load-model={served_as}", "--http-address={host}", "--http-port={port}"),
            *("--allow-grpc=false", "--allow-metrics=false"),
        ),
    ),
)

__all__ = ["DIALECT", "read_load"]
