"""Triton Inference Server, with its KServe routes and, where it runs, its OpenAI front end.

``/v2/health/ready`` goes 200, 400 while a model loads, 200 again, and speaks for all models at
once; each model has a page of its own, and that is the one to ask. Metrics stand on another port
(8002), so no path here leads to them by default; the reader knows them for whoever fetches the
page. With the TensorRT-LLM backend running and waiting are label values of one metric.
"""

from typing import Final

from holdfast.engines.dialect import Dialect, Load
from holdfast.engines.prometheus import label, labelled, mean_share, samples, total

PENDING: Final = "nv_inference_pending_request_count"
REQUESTS: Final = "nv_trt_llm_request_metrics"
BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"


def read_load(text: str) -> Load:
    """The TensorRT-LLM backend's own figures where they are, else the count of pending requests."""
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
)

__all__ = ["DIALECT", "read_load"]
