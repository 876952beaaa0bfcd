"""Dialect of Triton Inference Server: KServe routes and, where it runs, its OpenAI front end.

``/v2/health/ready`` goes 200, 400 while a model loads, 200 again, and speaks for all models at
once; each model has a page of its own, and that is the one to ask. Metrics stand on another port,
8002 beside 8000, and hold all models of the server: counts are read for one of them. The same
counts, and sizes of batches, are on a page of statistics for each model, which may be closed to all
without a token. With the TensorRT-LLM backend running and waiting are label values of one metric.

Requests that it refuses for a full queue or that their clients gave up are told apart from
failures since release 23.12; before that all of them are one number.

There is no question that any Triton model answers, so its canary needs a body. A model that is not
there is a 400 in older releases and a 404 in newer ones: the words are the same.

A scheduler that is being stopped refuses new inferences in words of its own and ends those it has.

Started by us it loads the one model of its repository that is served, by name: every other would be
loaded too, and fail its start. gRPC stays off and metrics have a port of their own, because the
fixed ports allow only one server on a host. Degrees, context and precision are the model's config.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.core.canary import Shape
from holdfast.core.failure import Kind
from holdfast.engines.dialect import (
    LOADING,
    SERVING,
    STARTING,
    Dialect,
    InferenceCounts,
    Load,
    Recipe,
)
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


# --- counts of one model --------------------------------------------------------------------------

SUCCESSES: Final = "nv_inference_request_success"
FAILURES: Final = "nv_inference_request_failure"
INFERENCES: Final = "nv_inference_count"
EXECUTIONS: Final = "nv_inference_exec_count"
QUEUED_US: Final = "nv_inference_queue_duration_us"
COMPUTED_US: Final = (
    *("nv_inference_compute_input_duration_us", "nv_inference_compute_infer_duration_us"),
    "nv_inference_compute_output_duration_us",
)
GPU_BUSY: Final = "nv_gpu_utilization"
GPU_USED: Final = "nv_gpu_memory_used_bytes"
GPU_TOTAL: Final = "nv_gpu_memory_total_bytes"
_OF_MODELS: Final = (
    *(SUCCESSES, FAILURES, INFERENCES, EXECUTIONS, QUEUED_US, *COMPUTED_US, PENDING),
)
_NOT_ITS_FAULT: Final = ("REJECTED", "CANCELED")  # reasons: the queue is full, the client left
_COUNT_MAX: Final = 2**53
_STATISTICS_BYTES_MAX: Final = 1 << 20  # a page of one model has a few KB
_VERSIONS_MAX: Final = 64  # of one model


def read_counts(text: str, model: str) -> InferenceCounts:
    """Counts of one model on a metrics page, over all of its versions."""
    sums: dict[str, float] = {}
    for name, labels, value in labelled(text, _OF_MODELS):
        if label(labels, "model") == model and 0 <= value <= _COUNT_MAX:
            counts = label(labels, "reason") not in _NOT_ITS_FAULT
            sums[name] = sums.get(name, 0.0) + (value if counts else 0.0)
    devices = samples(text, (GPU_BUSY, GPU_USED, GPU_TOTAL))
    computed = [sums.get(name) for name in COMPUTED_US]
    return InferenceCounts(
        successes=_whole(sums.get(SUCCESSES)),
        failures=_whole(sums.get(FAILURES)),
        inferences=_whole(sums.get(INFERENCES)),
        executions=_whole(sums.get(EXECUTIONS)),
        queue_s=_scaled(sums.get(QUEUED_US), 1e-6),
        compute_s=_scaled(_added(computed), 1e-6),
        pending=_whole(sums.get(PENDING)),
        gpu_used_bytes=_whole(_added(devices.get(GPU_USED, ()))),
        gpu_total_bytes=_whole(_added(devices.get(GPU_TOTAL, ()))) or None,
        gpu_busy=mean_share(devices, (GPU_BUSY,)),
    )


def read_statistics(body: bytes, model: str) -> InferenceCounts:
    """Counts of one model on its page of statistics, over all of its versions.

    Its failures hold refused and cancelled requests, too: a metrics page that tells them apart is
    the better source. What cannot be read is unknown.
    """
    if len(body) > _STATISTICS_BYTES_MAX:
        return InferenceCounts()
    try:
        told = msgspec.json.decode(body, type=_Statistics)
    except (ValueError, RecursionError):
        return InferenceCounts()
    mine = [one for one in told.model_stats[:_VERSIONS_MAX] if one.name == model]
    if not mine:
        return InferenceCounts()
    stats = [one.inference_stats for one in mine]
    parts = [part for one in stats for part in (one.compute_input, one.compute_infer)]
    parts += [one.compute_output for one in stats]
    sizes = [batch.batch_size for one in mine for batch in one.batch_stats]
    held = [use.byte_size for one in mine for use in one.memory_usage if use.type == "GPU"]
    return InferenceCounts(
        successes=sum(one.success.count for one in stats),
        failures=sum(one.fail.count for one in stats),
        inferences=sum(one.inference_count for one in mine),
        executions=sum(one.execution_count for one in mine),
        queue_s=sum(one.queue.ns for one in stats) / 1e9,
        compute_s=sum(part.ns for part in parts) / 1e9,
        batch_max=max(sizes, default=None),
        model_gpu_bytes=sum(held) if held else None,
    )


class _Span(msgspec.Struct, gc=False):
    count: int = 0
    ns: int = 0


class _Inferences(msgspec.Struct, gc=False):
    success: _Span
    fail: _Span
    queue: _Span
    compute_input: _Span
    compute_infer: _Span
    compute_output: _Span


class _Batch(msgspec.Struct, gc=False):
    batch_size: int


class _Memory(msgspec.Struct, gc=False):
    type: str = ""
    byte_size: int = 0


class _Version(msgspec.Struct, gc=False):
    name: str
    inference_stats: _Inferences
    inference_count: int = 0
    execution_count: int = 0
    batch_stats: list[_Batch] = []
    memory_usage: list[_Memory] = []


class _Statistics(msgspec.Struct, gc=False):
    model_stats: list[_Version] = []


def _added(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


DIALECT: Final = Dialect(
    name="triton",
    health_path="/v2/health/ready",
    metrics_path=None,
    read_load=read_load,
    version_page=("/v2", "version"),
    metrics_ports=(8000, 8002),
    recipe_metrics_url="http://{host}:{side_port}/metrics",
    read_counts=read_counts,
    statistics_path="/v2/models/{model}/stats",
    read_statistics=read_statistics,
    token_header="triton-access-token",  # noqa: S106 a header's name, as PyTriton has it
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
            *("--allow-grpc=false", "--metrics-port={side_port}"),
        ),
    ),
)

__all__ = ["DIALECT", "read_counts", "read_load", "read_statistics"]
