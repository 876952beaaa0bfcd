r"""Finds the meaning of a log line for diagnosis, as a mark that is the same for all engines.

    line ─► mark_of ─► (Mark, the peer it names), or None for nearly all lines

``startup_log.py`` finds how far a start has come. This module finds what went wrong, at any time,
with the same marks for every engine: a rule that reads marks does not depend on the engine. Most
marks come from below the engines, from drivers, kernels and shared libraries, and stand in one
table; lines of one engine alone stand under its name and are compared first.

A line that only *may* be bad has no mark. SGLang's "Health check failed" comes with every long
prefill, vLLM's "No available shared memory broadcast block" with every compilation, and a runner
that could not lock its pages runs well without: these would make evidence out of ordinary days.
What users wrote is kept out as in ``startup_log.py``, and the texts here are long for the same
reason.
Rejected: levels ("ERROR …"). Engines log aborted requests as errors and lost caches as warnings.
"""

import re
from typing import Final

from holdfast.core.diagnose.facts import Mark
from holdfast.engines.dialect import Dialect
from holdfast.engines.startup_log import HEAD_CHARACTERS, head_of

Words = tuple[tuple[str, Mark], ...]

PEER_CHARACTERS: Final = 3 * HEAD_CHARACTERS  # an exception names the other side at its end

# They hold words that mean something elsewhere, and mean nothing.
HARMLESS: Final = (
    "failed to mlock",  # its pages may be swapped; it runs
    "trying port ",  # it found another by itself
    "falling back to non-pinned",
)

# What follows these was written by users, or is a value that was refused.
DATA_BEGINS: Final = ('"messages"', "'messages'", '"prompt"', "'prompt'", "prompt:", "input_value=")

# Drivers, kernels, and libraries that several engines stand on. The first match counts.
COMMON: Final[Words] = (
    ("ray.exceptions.OutOfMemoryError", Mark.HOST_MEMORY_FULL),
    ("due to the node running low on memory", Mark.HOST_MEMORY_FULL),
    ("torch.OutOfMemoryError", Mark.GPU_MEMORY_FULL),
    ("torch.cuda.OutOfMemoryError", Mark.GPU_MEMORY_FULL),
    ("out of memory. Tried to allocate", Mark.GPU_MEMORY_FULL),  # CUDA, HIP, XPU
    ("CUDA error: out of memory", Mark.GPU_MEMORY_FULL),
    ("cudaMalloc failed: out of memory", Mark.GPU_MEMORY_FULL),
    ("CUDA_ERROR_OUT_OF_MEMORY", Mark.GPU_MEMORY_FULL),
    ("cudaErrorMemoryAllocation", Mark.GPU_MEMORY_FULL),
    ("Cuda Runtime (out of memory)", Mark.GPU_MEMORY_FULL),
    ("ran out of memory trying to allocate", Mark.GPU_MEMORY_FULL),
    ("out of memory: Killed process", Mark.HOST_MEMORY_FULL),  # the kernel, in a group of limits
    ("Out of memory: Killed process", Mark.HOST_MEMORY_FULL),  # the kernel, of the whole host
    ("oom-kill:constraint=", Mark.HOST_MEMORY_FULL),
    ("std::bad_alloc", Mark.HOST_MEMORY_FULL),
    ("Cannot allocate memory", Mark.HOST_MEMORY_FULL),
    ("DefaultCPUAllocator: ", Mark.HOST_MEMORY_FULL),
    ("an illegal memory access was encountered", Mark.CUDA_CORRUPTED),
    ("CUDA_ERROR_ILLEGAL_ADDRESS", Mark.CUDA_CORRUPTED),
    ("an illegal instruction was encountered", Mark.CUDA_CORRUPTED),
    ("device-side assert triggered", Mark.CUDA_CORRUPTED),
    ("unspecified launch failure", Mark.CUDA_CORRUPTED),
    ("CUDA error: misaligned address", Mark.CUDA_CORRUPTED),
    ("Memory access fault by GPU", Mark.CUDA_CORRUPTED),  # HIP
    ("uncorrectable ECC error", Mark.GPU_DAMAGED),
    ("uncorrectable double bit error", Mark.GPU_DAMAGED),
    ("fallen off the bus", Mark.GPU_DAMAGED),
    ("GPU is lost", Mark.GPU_DAMAGED),
    ("no kernel image is available", Mark.DRIVER_MISMATCH),
    ("CUDA driver version is insufficient", Mark.DRIVER_MISMATCH),
    ("NVIDIA driver on your system is too old", Mark.DRIVER_MISMATCH),
    ("Found no NVIDIA driver on your system", Mark.DRIVER_MISMATCH),
    ("Driver/library version mismatch", Mark.DRIVER_MISMATCH),
    ("forward compatibility was attempted on non supported HW", Mark.DRIVER_MISMATCH),
    ("unsupported display driver / cuda driver combination", Mark.DRIVER_MISMATCH),
    ("was compiled with an unsupported toolchain", Mark.DRIVER_MISMATCH),
    ("unsatisfied condition: cuda>=", Mark.DRIVER_MISMATCH),  # the container runtime
    ("libcuda.so.1: cannot open shared object file", Mark.DRIVER_MISMATCH),
    ("CUBLAS_STATUS_ALLOC_FAILED", Mark.ALLOCATION_FAILED),
    ("CUDNN_STATUS_ALLOC_FAILED", Mark.ALLOCATION_FAILED),
    ("Failed to allocate memory for requested buffer", Mark.ALLOCATION_FAILED),  # ONNX Runtime
    ("Watchdog caught collective operation timeout", Mark.COLLECTIVE_TIMEOUT),
    ("Some NCCL operations have failed or timed out", Mark.COLLECTIVE_TIMEOUT),
    ("Timeout at NCCL work", Mark.COLLECTIVE_TIMEOUT),
    ("remote process exited or there was a network error", Mark.COLLECTIVE_TIMEOUT),  # NCCL
    ("for recv operation to complete", Mark.COLLECTIVE_TIMEOUT),  # Gloo
    ("torch.distributed.DistStoreError: Timed out", Mark.COLLECTIVE_TIMEOUT),
    ("NIXL_ERR_", Mark.TRANSFER_FAILED),
    ("nixlRemoteDisconnectError", Mark.TRANSFER_FAILED),
    ("No space left on device", Mark.DISK_FULL),
    ("Disk quota exceeded", Mark.DISK_FULL),
    ("Not enough free disk space", Mark.DISK_FULL),
    ("ddress already in use", Mark.PORT_TAKEN),
    ("is not a local folder and is not a valid model", Mark.MODEL_MISSING),
    ("does not appear to have a file named", Mark.MODEL_MISSING),
    ("SafetensorError", Mark.MODEL_MISSING),
    ("RepositoryNotFoundError", Mark.MODEL_MISSING),
    ("GatedRepoError", Mark.MODEL_MISSING),
    ("LocalEntryNotFoundError", Mark.MODEL_MISSING),
    ("Consistency check failed: file should be of size", Mark.MODEL_MISSING),
    ("does not recognize this architecture", Mark.MODEL_MISSING),
    (": error: unrecognized arguments", Mark.CONFIG_REFUSED),
    (": error: argument ", Mark.CONFIG_REFUSED),
    (": error: the following arguments are required", Mark.CONFIG_REFUSED),
    ("probability tensor contains either `inf`, `nan`", Mark.NOT_FINITE),
    ("The actor died unexpectedly before finishing this task", Mark.ENGINE_DEAD),  # Ray
)

_LLAMA: Final[Words] = (
    ("unable to allocate CUDA", Mark.GPU_MEMORY_FULL),  # before "error loading model"
    ("unable to allocate CPU", Mark.HOST_MEMORY_FULL),
    ("cpu_buffer_type_alloc_buffer: failed to allocate", Mark.HOST_MEMORY_FULL),
    ("no usable GPU found", Mark.CPU_FALLBACK),
    ("not compiled with GPU offload support", Mark.CPU_FALLBACK),
    ("ggml_cuda_init: failed to initialize CUDA", Mark.CPU_FALLBACK),
    ("offloaded 0/", Mark.CPU_FALLBACK),
    ("failed to open GGUF file", Mark.MODEL_MISSING),
    ("unknown model architecture", Mark.MODEL_MISSING),
    ("invalid magic characters", Mark.MODEL_MISSING),
    ("model is corrupted or incomplete", Mark.MODEL_MISSING),
    ("error loading model: ", Mark.MODEL_MISSING),
    ("failed to find free space in the KV cache", Mark.KV_EXHAUSTED),
    ("failed to find a memory slot for batch", Mark.KV_EXHAUSTED),
    ("could not find a kv cache slot", Mark.KV_EXHAUSTED),
    ("found nan value at block", Mark.NOT_FINITE),
)

# What one engine says and no other, by the name of its dialect.
OWN: Final[dict[str, Words]] = {
    "vllm": (
        ("Free memory on device", Mark.GPU_MEMORY_FULL),
        ("No available memory for the cache blocks", Mark.GPU_MEMORY_FULL),
        ("larger than the available KV cache memory", Mark.GPU_MEMORY_FULL),
        ("larger than the maximum number of tokens that can be stored", Mark.GPU_MEMORY_FULL),
        ("NIXL transfer failure", Mark.TRANSFER_FAILED),
        ("Handshake failed for request", Mark.TRANSFER_FAILED),
        ("Remote NIXL agent engine ID mismatch", Mark.TRANSFER_FAILED),
        ("is preempted by PreemptionMode", Mark.KV_EXHAUSTED),
        ("EngineDeadError", Mark.ENGINE_DEAD),
        ("EngineCore encountered a fatal error", Mark.ENGINE_DEAD),
        ("died unexpectedly", Mark.ENGINE_DEAD),
        ("Background loop has errored already", Mark.ENGINE_DEAD),
        ("TimeoutError: RPC call to ", Mark.WATCHDOG),
        ("Engine iteration timed out", Mark.WATCHDOG),
        ("Invalid repository ID or local directory specified", Mark.MODEL_MISSING),
        ("Cannot find any model weights", Mark.MODEL_MISSING),
        ("are not supported for now", Mark.MODEL_MISSING),  # "Model architectures […] …"
        ("is greater than the derived max_model_len", Mark.CONFIG_REFUSED),
        ("must be divisible by tensor parallel size", Mark.CONFIG_REFUSED),
        ("Bfloat16 is only supported on GPUs", Mark.CONFIG_REFUSED),
        ("validation error for ", Mark.CONFIG_REFUSED),
        ("running on UnspecifiedPlatform", Mark.CPU_FALLBACK),
    ),
    "sglang": (
        ("Not enough memory. Please try to increase", Mark.GPU_MEMORY_FULL),
        ("Losing connection with prefill instance", Mark.TRANSFER_FAILED),
        ("Could not fetch prefill parallel info", Mark.TRANSFER_FAILED),
        ("Error fetching prefill parallel info", Mark.TRANSFER_FAILED),
        ("KVTransferError", Mark.TRANSFER_FAILED),
        ("Decode transfer failed for request", Mark.TRANSFER_FAILED),
        ("Decode handshake failed for request", Mark.TRANSFER_FAILED),
        ("Prefill transfer failed for request", Mark.TRANSFER_FAILED),
        ("Prefill bootstrap failed for request", Mark.TRANSFER_FAILED),
        ("KV cache pool is full. Retract requests", Mark.KV_EXHAUSTED),
        ("Decode out of memory happened", Mark.KV_EXHAUSTED),  # older releases
        ("Prefill out of memory. Try to lower", Mark.KV_EXHAUSTED),
        ("Decode out of memory. Try to lower", Mark.KV_EXHAUSTED),
        ("Detected errors during sampling! NaN", Mark.NOT_FINITE),
        ("Watchdog timeout (self", Mark.WATCHDOG),
        ("Scheduler hit an exception", Mark.ENGINE_DEAD),
        ("Received sigquit from a child proces", Mark.ENGINE_DEAD),  # as it is spelt there
    ),
    "tgi": (
        ("Not enough memory to handle", Mark.GPU_MEMORY_FULL),
        ("DownloadError", Mark.MODEL_MISSING),
        ("Unsupported model type", Mark.MODEL_MISSING),
        ("ArgumentValidation(", Mark.CONFIG_REFUSED),
        ("error: unexpected argument", Mark.CONFIG_REFUSED),
        ("ShardFailed", Mark.ENGINE_DEAD),
        ("Webserver Crashed", Mark.ENGINE_DEAD),
    ),
    "triton": (
        ("pinned memory pool will not be available", Mark.CPU_FALLBACK),  # it has no driver at all
        ("Failed to create CUDAExecutionProvider", Mark.CPU_FALLBACK),
        ("generated on an incompatible device", Mark.DRIVER_MISMATCH),
        ("not compatible with this version of TensorRT", Mark.DRIVER_MISMATCH),
        ("Version tag does not match", Mark.DRIVER_MISMATCH),
        ("): out of memory", Mark.GPU_MEMORY_FULL),
        ("failed to read text proto from", Mark.CONFIG_REFUSED),
        ("unable to find backend library", Mark.CONFIG_REFUSED),
        ("Not found: unable to load", Mark.MODEL_MISSING),
        ("failed to poll model repository", Mark.MODEL_MISSING),
        ("' already in use", Mark.PORT_TAKEN),  # "Socket '0.0.0.0:8000' …"
        ("No free blocks left", Mark.KV_EXHAUSTED),
        ("Stub process is unhealthy", Mark.ENGINE_DEAD),
        ("Stub process '", Mark.ENGINE_DEAD),  # "… name_0' is not healthy."
    ),
    "trtllm": (
        ("insufficient GPU memory", Mark.GPU_MEMORY_FULL),
        ("): out of memory", Mark.GPU_MEMORY_FULL),
        ("due to KV cache transfer timeout", Mark.TRANSFER_FAILED),
        ("No free blocks left", Mark.KV_EXHAUSTED),
        ("Hang detected on rank", Mark.WATCHDOG),
        ("Failed to bind socket", Mark.PORT_TAKEN),
        ("Executor worker returned error", Mark.ENGINE_DEAD),
        ("No GPU devices found", Mark.DRIVER_MISMATCH),
    ),
    "llamacpp": (
        *_LLAMA,
        ("couldn't bind", Mark.PORT_TAKEN),
        ("error while handling argument", Mark.CONFIG_REFUSED),
        ("error: invalid argument", Mark.CONFIG_REFUSED),
        ("GGML_ASSERT(", Mark.ENGINE_DEAD),
    ),
    "ollama": (
        *_LLAMA,
        ("model requires more system memory", Mark.HOST_MEMORY_FULL),
        ("no compatible GPUs were discovered", Mark.CPU_FALLBACK),
        ('msg="offload to cpu"', Mark.CPU_FALLBACK),
        ("digest mismatch, file must be downloaded again", Mark.MODEL_MISSING),
        ("llama runner process has terminated", Mark.ENGINE_DEAD),
        ("llama runner process no longer running", Mark.ENGINE_DEAD),
        ("timed out waiting for llama runner", Mark.WATCHDOG),
    ),
}

# How a line names the replica on the other side: an address as its writer knows it.
_PEERS: Final = (
    re.compile(r"bootstrap_addr: ([\w.\-]++:\d{1,5})"),
    re.compile(r"HTTPConnectionPool\(host='([\w.\-]++)', port=(\d{1,5})"),
)


def mark_of(dialect: Dialect, line: str) -> tuple[Mark, str] | None:
    """The mark of a log line and the peer's address it names ("" if none); None if no mark."""
    head = _believed(dialect, line)
    if not head or any(words in head for words in HARMLESS):
        return None
    for table in (OWN.get(dialect.name, ()), COMMON):
        for words, mark in table:
            if words in head:
                return mark, _peer(line) if mark is Mark.TRANSFER_FAILED else ""
    return None


def _believed(dialect: Dialect, line: str) -> str:
    """The head of a line, up to where it begins to repeat what somebody sent."""
    head = head_of(dialect, line)
    for words in DATA_BEGINS:
        head = head.partition(words)[0]
    return head


def _peer(line: str) -> str:
    for pattern in _PEERS:
        if (found := pattern.search(line, 0, PEER_CHARACTERS)) is not None:
            return ":".join(found.groups())
    return ""


__all__ = ["COMMON", "DATA_BEGINS", "HARMLESS", "OWN", "PEER_CHARACTERS", "mark_of"]
