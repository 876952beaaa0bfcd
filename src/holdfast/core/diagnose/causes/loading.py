"""Rules of causes that keep a replica from getting ready: model, memory, disk or driver.

A replica that is silent while it loads has a loading problem, whatever the queues say meanwhile.
"""

from typing import Final

from holdfast.core.diagnose.causes.rule import CauseRule, During, Scope, proof
from holdfast.core.diagnose.evidence import Remedy, Sign
from holdfast.core.failure import Cause, Class

# Work that does not get done waits somewhere: whatever stops a replica can show as these.
FLOW: Final = frozenset(
    {
        *(Cause.QUEUE_STALLED, Cause.CHAIN_BACKED_UP, Cause.OVERLOADED),
        *(Cause.GPU_IDLE, Cause.LATENCY_TAIL),
    }
)
WAITING: Final = frozenset(
    {
        *(Sign.QUEUE_GROWS, Sign.DEAD_LETTERS, Sign.CHAIN_WAITS, Sign.NO_REPLICA_READY),
        *(Sign.GPU_IDLE, Sign.LATENCY_TAIL),
    }
)
_NOT_THERE: Final = frozenset(
    {
        *(Sign.EXITED, Sign.EXITS_AGAIN, Sign.EXITED_LOADING, Sign.LOAD_STUCK, Sign.SILENT_LOADING),
        *(Sign.REFUSES, Sign.UNREACHABLE, Sign.CANARY_ERRORS, Sign.NOTHING_ANSWERS),
        *WAITING,
    }
)

LOADING: Final[dict[Cause, CauseRule]] = {
    Cause.LOAD_FAILED: CauseRule(
        Class.LOADING,
        (
            proof(Sign.LOG_MODEL_MISSING, at=0.8),
            proof(Sign.LOG_CONFIG, at=0.8),
            proof(Sign.LOG_PORT_TAKEN, at=0.8),
            proof(Sign.EXITED_LOADING, at=0.87),
        ),
        story="The replica cannot load its model: a file is missing or damaged, the engine refuses "
        "its arguments, or its port is taken. It ends while loading, and every restart ends the "
        "same way.",
        look="Read the last lines of its log before the process ended. Start the engine by hand "
        "with the same arguments, and compare the size and the checksum of the model's files.",
        fix="Correct what the log names: the model's path or files, the engine's arguments, the "
        "port. Restarting alone changes nothing[; it has ended {ends} times].",
        remedy=Remedy.PAGE,
        consequences=_NOT_THERE,
        explains=FLOW | {Cause.CRASHED, Cause.LOAD_STALLED, Cause.TRANSFER_FAILED},
    ),
    Cause.LOAD_OUT_OF_MEMORY: CauseRule(
        Class.LOADING,
        (
            proof(Sign.LOG_GPU_MEMORY, at=0.85, during=During.LOADING),
            proof(Sign.LOG_HOST_MEMORY, at=0.85, during=During.LOADING),
            proof(Sign.LOG_GPU_MEMORY, Sign.EXITED_LOADING, at=0.92),
            proof(Sign.LOG_HOST_MEMORY, Sign.EXITED_LOADING, at=0.92),
            proof(Sign.KILLED_FOR_MEMORY, Sign.EXITED_LOADING, at=0.95),
            proof(Sign.EXIT_137, Sign.EXITED_LOADING, at=0.65),
        ),
        story="The model does not fit: memory ran out while its weights or its cache were being "
        "set up. It never becomes ready, and the queue in front of it only grows.",
        look="Compare the size of the weights plus the KV cache with the memory of the GPU, or of "
        "the container's limit, and see what else runs there: nvidia-smi, or the cgroup's "
        "memory.max and memory.events.",
        fix="Give it more memory or make it smaller: a larger GPU or limit, fewer tokens of "
        "context, a lower share of memory for the cache, a quantised model[. Memory limit "
        "{limit_bytes:GB}, footprint {footprint_bytes:GB}: set {suggested_bytes:GB}].",
        remedy=Remedy.PAGE,
        consequences=_NOT_THERE | {Sign.RESERVED_TOO_LITTLE, Sign.LIMIT_TOO_LOW},
        explains=FLOW
        | {Cause.LOAD_FAILED, Cause.OUT_OF_MEMORY, Cause.UNDERSIZED, Cause.CRASHED}
        | {Cause.LOAD_STALLED, Cause.TRANSFER_FAILED},
    ),
    Cause.LOAD_STALLED: CauseRule(
        Class.LOADING,
        (
            proof(Sign.LOAD_STUCK, at=0.7),
            proof(Sign.SILENT_LOADING, at=0.65),
            proof(Sign.LOG_WATCHDOG, at=0.6, during=During.LOADING),
        ),
        story="The replica began to load and stopped: no error, no progress, no end. Something it "
        "waits for does not come, such as a download, a lock, a mount or another rank.",
        look="See where it waits: the stack of the process (py-spy dump, /proc/PID/stack), its "
        "open files and sockets, and whether the model's storage answers a plain read.",
        fix="Restart it once. If it stops at the same place, mend what it waits for[: it has been "
        "silent for {silent_s:s}].",
        remedy=Remedy.DRAIN_AND_RESTART,
        consequences=_NOT_THERE,
        explains=FLOW | {Cause.TRANSFER_FAILED},
    ),
    Cause.COLD_START_CONTENTION: CauseRule(
        Class.LOADING,
        (
            proof(Sign.FILESYSTEM_FULL_SPEED, at=0.8),
            proof(Sign.FILESYSTEM_OPERATIONS, at=0.75),
            proof(Sign.FILESYSTEM_FULL_SPEED, Sign.LOAD_SLOW, at=0.9),
            proof(Sign.LOAD_SLOW, at=0.6, least={"readers": 2.0}),
        ),
        story="Many replicas read their weights from one filesystem at once, and it is at its "
        "ceiling. Each gets a small part of the bandwidth, so that loads of minutes take an hour. "
        "Nothing is broken, and restarting makes it worse: what was read is read again.",
        look="Compare the filesystem's read throughput with what it permits, and its operations "
        "with theirs: bandwidth at the ceiling while operations are low is this. Count the "
        "replicas that are loading.",
        fix="Let them load; start fewer at a time, raise the filesystem's throughput (elastic "
        "instead of bursting), or keep weights on local disks[. {readers} readers get "
        "{bytes_s:MBs} each][; ready in about {eta_s:s}].",
        remedy=Remedy.OBSERVE,
        scope=Scope.FILESYSTEM,
        consequences=_NOT_THERE | {Sign.LOAD_SLOW},
        explains=FLOW | {Cause.LOAD_STALLED},
    ),
    Cause.DRIVER_MISMATCH: CauseRule(
        Class.LOADING,
        (
            proof(Sign.LOG_DRIVER, at=0.85),
            proof(Sign.LOG_DRIVER, Sign.EXITED_LOADING, at=0.93),
        ),
        story="The engine, the driver and the GPU of this host do not fit each other: the driver "
        "is older than the CUDA version needs, or the engine was built for other GPUs. It will "
        "never start here, however often it is tried.",
        look="Compare `nvidia-smi` on the host (driver and the CUDA version it supports) with the "
        "CUDA version of the engine's image, and the GPU's compute capability with what the "
        "engine was built for.",
        fix="Run it on a host with a fitting driver, update the driver, or use an image built for "
        "this one. Keep the host out of scheduling for this image until then.",
        remedy=Remedy.RELOCATE,
        scope=Scope.HOST,
        consequences=_NOT_THERE
        | {Sign.LOG_CPU_FALLBACK, Sign.ERRORS, Sign.FAST_ERRORS, Sign.INFERENCES_FAIL},
        explains=FLOW
        | {Cause.LOAD_FAILED, Cause.CRASHED, Cause.LOAD_STALLED, Cause.SERVER_ERRORS}
        | {Cause.FAST_FAILURES, Cause.SLOW, Cause.TRANSFER_FAILED},
    ),
    Cause.DISK_FULL: CauseRule(
        Class.LOADING,
        (
            proof(Sign.LOG_DISK_FULL, at=0.85),
            proof(Sign.LOG_DISK_FULL, Sign.EXITED_LOADING, at=0.93),
        ),
        story="A disk that the replica writes to is full, most often the cache of downloaded "
        "models or the space for compiled kernels. Loads fail there until somebody makes room.",
        look="`df -h` and `df -i` on the host and inside the container; look for old models in "
        "the cache and for core dumps.",
        fix="Make room or give it a larger volume; then let it start again.",
        remedy=Remedy.PAGE,
        scope=Scope.HOST,
        consequences=_NOT_THERE | {Sign.ERRORS, Sign.LOG_MODEL_MISSING},
        explains=FLOW
        | {Cause.LOAD_FAILED, Cause.CRASHED, Cause.LOAD_STALLED, Cause.SERVER_ERRORS}
        | {Cause.TRANSFER_FAILED},
    ),
}

__all__ = ["FLOW", "LOADING", "WAITING"]
