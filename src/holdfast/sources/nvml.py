"""Reads the GPUs of this machine through NVIDIA's management library (NVML).

Each value is read by itself, and one that fails becomes None: boards differ in what they
support, and a GPU that fell off the bus must not hide the seven beside it. Nothing here raises.
Without the package (the extra ``gpu``), the driver or a GPU, the report says which of them is
missing.

Xid codes are how the driver reports faults. They come as events and are stored nowhere, so a
process has to listen: ``XidWatch``. Rejected: the kernel's log, which containers may not read.

A report takes 20 to 100 ms on an H200, 1.5 ms while a watch keeps the library open, and far more
where the driver has to wake first: from an event loop, in a thread. A poll without waiting takes
some 15 µs. ``python -m holdfast.sources.nvml`` prints the report.
"""

import importlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from holdfast.sources.nvml_health import read_health

GPUS_MAX: Final = 64  # more than any machine holds; a driver gone mad does not fill the memory
PROCESSES_MAX: Final = 256  # of one GPU
XIDS_KEPT: Final = 16  # per GPU
XIDS_PER_POLL_MAX: Final = 256  # a dying GPU says the same thing thousands of times

_PACKAGE: Final = "pynvml"

# What people need to know first: what it is, and whether only a reset or new hardware helps.
_XIDS: Final[Mapping[int, tuple[str, bool]]] = MappingProxyType(
    {
        13: ("a program's graphics engine exception", False),
        31: ("a program touched memory that is not its own", False),
        43: ("a program's work was stopped", False),
        45: ("a program's work was cleaned up after another fault", False),
        48: ("an uncorrectable memory error", True),
        61: ("an internal controller's breakpoint", True),
        62: ("an internal controller halted", True),
        63: ("a memory row will be remapped at the next reset", False),
        64: ("a memory row could not be remapped", True),
        69: ("a program's graphics engine class error", False),
        74: ("an NVLink error", True),
        79: ("the GPU has fallen off the bus", True),
        92: ("many corrected memory errors", False),
        94: ("an uncorrectable memory error, contained to one program", False),
        95: ("an uncorrectable memory error, not contained", True),
        109: ("a context switch timed out", True),
        119: ("the GPU's system processor does not answer", True),
        120: ("the GPU's system processor failed", True),
        140: ("an unrecovered memory error", True),
        143: ("the GPU failed to initialise", True),
    }
)


@dataclass(slots=True, frozen=True)
class Xid:
    """A GPU fault that the driver reported, by its Xid code."""

    at: float  # seconds since 1970
    index: int | None  # of the GPU
    uuid: str | None
    code: int
    meaning: str
    needs_reset: bool  # until then nothing on this GPU can be trusted


def xid_needs_reset(code: int) -> bool:
    """Whether a fault of this code ends what runs on the GPU until it is reset or replaced."""
    return _XIDS.get(code, ("", False))[1]


@dataclass(slots=True, frozen=True)
class Gpu:
    """Figures of one GPU; None where the library does not give a value."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_used: int | None = None  # bytes, with what the driver keeps: the rest is free
    memory_total: int | None = None  # bytes
    utilisation: float | None = None  # 0 to 1: time with work, not how much of the chip works
    temperature_c: int | None = None
    power_w: float | None = None
    ecc_uncorrected: int | None = None  # since the driver was loaded
    ecc_corrected: int | None = None
    xid: tuple[Xid, ...] = ()  # recent ones, as far as somebody listened
    problem: str | None = None  # the first question that failed in a way that is no mere lack
    processes: tuple[tuple[int, int | None], ...] = ()  # pid as the driver counts, bytes it holds
    temperature_max_c: int | None = None  # above it, the board's maker does not want it to run
    power_limit_w: float | None = None
    power_default_w: float | None = None  # the limit that the board came with
    remap_pending: bool | None = None  # a bad row of memory is replaced at the next reset
    remap_failed: bool | None = None  # no spare row is left for it
    throttle: tuple[str, ...] | None = None  # why it runs slower than it could; (): it does not


@dataclass(slots=True, frozen=True)
class GpuReport:
    """All GPUs of this machine, or why none can be seen."""

    available: bool
    reason: str
    driver: str | None = None
    cuda: str | None = None  # the newest that this driver supports
    gpus: tuple[Gpu, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return asdict(self)


def read_gpus(library: Any = None, watch: "XidWatch | None" = None) -> GpuReport:
    """Read all GPUs once. ``library`` is the module ``pynvml``, or a replacement for tests."""
    library, reason = _begin(library)
    if library is None:
        return GpuReport(available=False, reason=reason)
    try:
        driver = _text(_ask(library, "nvmlSystemGetDriverVersion").value)
        cuda = _cuda(_ask(library, "nvmlSystemGetCudaDriverVersion_v2").value)
        count = _ask(library, "nvmlDeviceGetCount")
        if count.value is None:
            return GpuReport(available=False, reason=count.problem, driver=driver, cuda=cuda)
        gpus = tuple(_gpu(library, index, watch) for index in range(min(count.value, GPUS_MAX)))
        reason = f"GPUs: {len(gpus)}" if gpus else "the driver sees no GPU"
        return GpuReport(bool(gpus), reason, driver, cuda, gpus)
    finally:
        _ask(library, "nvmlShutdown")


class XidWatch:
    """Listens for Xid events of all GPUs. ``start``, then ``poll`` repeatedly, then ``close``."""

    def __init__(self, library: Any = None, clock: Callable[[], float] = time.time) -> None:
        self._given = library
        self._clock = clock
        self._library: Any = None
        self._events: Any = None
        self._recent: dict[str | None, deque[Xid]] = {}
        self.reason = "not started"
        self.polls_failed = 0
        self.seen = 0

    @property
    def listening(self) -> bool:
        """Whether events of at least one GPU would arrive."""
        return self._events is not None

    def start(self) -> bool:
        """Begin to listen; returns whether it does, and ``reason`` says why not."""
        if self.listening:
            return True
        library, self.reason = _begin(self._given)
        if library is None:
            return False
        self._library = library
        events = _ask(library, "nvmlEventSetCreate")
        if events.value is None:
            return self._give_up(events.problem)
        self._events = events.value
        kind = getattr(library, "nvmlEventTypeXidCriticalError", 8)
        count = _ask(library, "nvmlDeviceGetCount").value or 0
        heard, problem = 0, "the driver sees no GPU"
        for index in range(min(count, GPUS_MAX)):
            handle = _ask(library, "nvmlDeviceGetHandleByIndex", index)
            if handle.value is not None:
                told = _ask(library, "nvmlDeviceRegisterEvents", handle.value, kind, self._events)
                heard += not told.problem
                problem = told.problem
            else:
                problem = handle.problem
        if not heard:
            return self._give_up(problem)
        self.reason = f"listening to {heard} of {count} GPUs"
        return True

    def poll(self, timeout_ms: int = 0) -> list[Xid]:
        """Xid events since the last call; waits up to the given time for the first one."""
        found: list[Xid] = []
        while self.listening and len(found) < XIDS_PER_POLL_MAX:
            told = _ask(self._library, "nvmlEventSetWait_v2", self._events, timeout_ms)
            if told.value is None:
                # Nothing to tell is an error with this code; others count, and are asked again.
                if told.code != getattr(self._library, "NVML_ERROR_TIMEOUT", 10):
                    self.polls_failed += 1
                    self.reason = told.problem
                break
            found.append(self._xid(told.value))
            timeout_ms = 0
        return found

    def recent(self, uuid: str | None) -> tuple[Xid, ...]:
        """The last Xid events of one GPU."""
        return tuple(self._recent.get(uuid, ()))

    def close(self) -> None:
        """Stop listening; events that were received stay readable."""
        if self._library is not None:
            self._give_up("closed")

    def _xid(self, event: Any) -> Xid:
        device = getattr(event, "device", None)
        uuid = _text(_ask(self._library, "nvmlDeviceGetUUID", device).value)
        index = _ask(self._library, "nvmlDeviceGetIndex", device).value
        code = int(getattr(event, "eventData", 0))
        meaning, needs_reset = _XIDS.get(code, ("a fault without a known meaning", False))
        xid = Xid(self._clock(), index, uuid, code, meaning, needs_reset)
        self.seen += 1
        if uuid in self._recent or len(self._recent) < GPUS_MAX:
            self._recent.setdefault(uuid, deque(maxlen=XIDS_KEPT)).append(xid)
        return xid

    def _give_up(self, reason: str) -> bool:
        if self._events is not None:
            _ask(self._library, "nvmlEventSetFree", self._events)
        _ask(self._library, "nvmlShutdown")
        self._library = self._events = None
        self.reason = reason
        return False


# --- asking ---------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Answer:
    value: Any = None
    problem: str = ""
    code: int | None = None


def _ask(library: Any, name: str, *arguments: Any) -> _Answer:
    """One call. Whatever goes wrong in foreign code concerns this answer alone."""
    try:
        return _Answer(getattr(library, name)(*arguments))
    except Exception as error:  # noqa: BLE001 the binding raises its own and ctypes'
        code = getattr(error, "value", None)
        told = str(error) or type(error).__name__
        return _Answer(None, f"{name}: {told}", code if isinstance(code, int) else None)


def _begin(library: Any) -> tuple[Any, str]:
    """The library, ready to be asked; or None and why not."""
    if library is None:
        try:
            library = importlib.import_module(_PACKAGE)
        except ImportError as error:
            return None, f"the package nvidia-ml-py is not installed ({error})"
        except Exception as error:  # noqa: BLE001 a broken install must not stop whoever asks
            return None, f"the package nvidia-ml-py does not load ({type(error).__name__})"
    answer = _ask(library, "nvmlInit")
    return (None, answer.problem) if answer.problem else (library, "")


def open_library(library: Any = None) -> tuple[Any, str]:
    """Open the management library, or return None and why not; ``nvmlShutdown`` closes it."""
    return _begin(library)


def ask(library: Any, name: str, *arguments: Any) -> Any:
    """The answer to one call of an open library; None where the call fails."""
    return _ask(library, name, *arguments).value


def _gpu(library: Any, index: int, watch: XidWatch | None) -> Gpu:
    handle = _ask(library, "nvmlDeviceGetHandleByIndex", index)
    if handle.value is None:
        return Gpu(index, problem=handle.problem)
    problems: list[str] = []
    # A board that lacks a sensor says one of these; that is no trouble.
    lacks = {
        getattr(library, "NVML_ERROR_NOT_SUPPORTED", 3),
        getattr(library, "NVML_ERROR_FUNCTION_NOT_FOUND", 13),
    }

    def ask(name: str, *arguments: Any) -> Any:
        answer = _ask(library, name, handle.value, *arguments)
        if answer.problem and answer.code not in lacks:
            problems.append(answer.problem)
        return answer.value

    def ecc(kind: str, default: int) -> int | None:
        since_load = getattr(library, "NVML_VOLATILE_ECC", 0)
        return _whole(
            ask("nvmlDeviceGetTotalEccErrors", getattr(library, kind, default), since_load)
        )

    uuid = _text(ask("nvmlDeviceGetUUID"))
    memory = ask("nvmlDeviceGetMemoryInfo")
    busy = _whole(getattr(ask("nvmlDeviceGetUtilizationRates"), "gpu", None))
    sensor = getattr(library, "NVML_TEMPERATURE_GPU", 0)
    temperature = _whole(_ask(library, "nvmlDeviceGetTemperatureV", handle.value, sensor).value)
    if temperature is None:  # drivers of before 2025 know only this one
        temperature = _whole(ask("nvmlDeviceGetTemperature", sensor))
    power = _whole(ask("nvmlDeviceGetPowerUsage"))
    return Gpu(
        index=index,
        uuid=uuid,
        name=_text(ask("nvmlDeviceGetName")),
        memory_used=_whole(getattr(memory, "used", None)),
        memory_total=_whole(getattr(memory, "total", None)),
        utilisation=busy / 100 if busy is not None else None,
        temperature_c=temperature,
        power_w=power / 1_000 if power is not None else None,
        ecc_uncorrected=ecc("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1),
        ecc_corrected=ecc("NVML_MEMORY_ERROR_TYPE_CORRECTED", 0),
        xid=watch.recent(uuid) if watch else (),
        problem=problems[0] if problems else None,
        processes=_processes(library, handle.value),
        # What is asked for its health alone may be unknown to a board: that is no problem of it.
        **read_health(lambda name, *more: _ask(library, name, handle.value, *more).value),
    )


def _processes(library: Any, handle: Any) -> tuple[tuple[int, int | None], ...]:
    """Who computes on it. In containers the driver may tell of none, or by other pids than ours."""
    told = _ask(library, "nvmlDeviceGetComputeRunningProcesses", handle).value
    found: list[tuple[int, int | None]] = []
    for one in (told or ())[:PROCESSES_MAX]:
        pid = _whole(getattr(one, "pid", None))
        if pid is not None:
            found.append((pid, _whole(getattr(one, "usedGpuMemory", None))))
    return tuple(found)


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):  # older releases of the binding
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _cuda(version: Any) -> str | None:
    number = _whole(version)
    return None if number is None else f"{number // 1_000}.{number % 1_000 // 10}"


def main(library: Any = None) -> int:
    """Print the GPU report as JSON; returns 1 if no GPU can be seen."""
    watch = XidWatch(library)
    watch.start()
    heard = watch.poll()
    report = read_gpus(library, watch)
    told = report.as_dict() | {"xid_watch": watch.reason, "xids_heard": len(heard)}
    watch.close()
    json.dump(told, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if report.available else 1


if __name__ == "__main__":
    sys.exit(main())


__all__ = [
    "Gpu",
    "GpuReport",
    "Xid",
    "XidWatch",
    "ask",
    "main",
    "open_library",
    "read_gpus",
    "xid_needs_reset",
]
