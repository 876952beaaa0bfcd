"""A replacement for NVIDIA's management library that answers from a recording of a real GPU.

A recording is JSON: ``static`` holds answers that do not change, ``samples`` one object for each
moment; both by the library's own names, arguments that matter in brackets
(``nvmlDeviceGetTotalEccErrors(1,0)``). An answer ``{"error": …, "code": 3}`` is raised as the
binding raises it, and what was never recorded is not supported. ``at`` chooses the moment.

The recorded board can be shown several times, as a host with several GPUs: the first is the
recording, the others are idle copies of it with their own ids. ``overlay`` puts other answers in
place of recorded ones, for faults that nobody can order from hardware.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

NOT_SUPPORTED: Final = 3
TIMEOUT: Final = 10
# Of one board, arguments that are not part of a recorded name.
_SHORT: Final = frozenset({"nvmlDeviceGetMemoryInfo"})


class ReplayedError(Exception):
    """An error of the library, with its code as ``value``."""

    def __init__(self, text: str, value: int) -> None:
        super().__init__(text)
        self.value = value


class ReplayedNvml:
    """Stands in for ``pynvml``: gives the values that were recorded at one moment on a GPU."""

    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_TIMEOUT = TIMEOUT
    NVML_TEMPERATURE_GPU = 0
    NVML_VOLATILE_ECC = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 the library's own name

    def __init__(self, recording: Mapping[str, Any], boards: int = 1) -> None:
        self._static: Mapping[str, Any] = recording["static"]
        self.samples: list[Mapping[str, Any]] = recording["samples"]
        self._boards = boards
        self._at = 0
        self.overlay: dict[int, dict[str, Any]] = {}  # by board, other answers than recorded
        self.xids: list[tuple[int, int]] = []  # board and code of faults that nobody heard yet

    @classmethod
    def read(cls, path: Path, boards: int = 1) -> "ReplayedNvml":
        """Read a recording from a file of gzipped JSON."""
        return cls(json.loads(gzip.decompress(path.read_bytes())), boards)

    def at(self, place: int) -> "ReplayedNvml":
        """Go to a sample of the recording; returns itself."""
        self._at = place
        return self

    def places(self, phase: str) -> list[int]:
        """The places of all samples of one phase of the recording."""
        return [at for at, one in enumerate(self.samples) if one["phase"] == phase]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The function of that name, which answers from the recording."""
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if name.startswith("nvmlSystem"):
            return lambda *_: _answer(name, self._static.get(name))
        return lambda board, *more: self._of_board(name, board, more)

    def nvmlInit(self) -> None:  # noqa: N802 the library's own names, here and below
        """Do nothing: a recording is always open."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Do nothing."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """The number of boards."""
        return self._boards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """The handle of a board: its index."""
        return index

    def nvmlDeviceGetIndex(self, board: int) -> int:  # noqa: N802
        """The index of a board."""
        return board

    def nvmlDeviceGetUUID(self, board: int) -> str:  # noqa: N802
        """The recorded id, with the board's index in its last digits."""
        recorded = str(self._static["nvmlDeviceGetUUID"])
        return recorded if board == 0 else f"{recorded[:-2]}{board:02d}"

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        """A set of events."""
        return "events"

    def nvmlEventSetFree(self, _events: str) -> None:  # noqa: N802
        """Do nothing."""

    def nvmlDeviceRegisterEvents(self, _board: int, _kinds: int, _set: str) -> None:  # noqa: N802
        """Do nothing: all faults are heard."""

    def nvmlEventSetWait_v2(self, _events: str, _timeout_ms: int) -> Any:  # noqa: N802
        """The next of ``xids``; where there is none, the error that says so."""
        if not self.xids:
            raise ReplayedError("Timeout", TIMEOUT)
        board, code = self.xids.pop(0)
        return SimpleNamespace(device=board, eventType=8, eventData=code)

    def _of_board(self, name: str, board: int, more: tuple[Any, ...]) -> Any:
        shown = "" if not more or name in _SHORT else f"({','.join(map(str, more))})"
        sample = self.samples[self._at if board == 0 else 0]  # the others idle on
        places = (self.overlay.get(board, {}), sample, self._static)
        for key in (name + shown, name):
            for answers in places:
                if key in answers:
                    return _answer(name, answers[key])
        return _answer(name, None)


def _answer(name: str, recorded: Any) -> Any:
    if recorded is None or (isinstance(recorded, dict) and "missing" in recorded):
        raise ReplayedError(f"{name}: Not Supported", NOT_SUPPORTED)
    if isinstance(recorded, dict) and "error" in recorded:
        raise ReplayedError(f"{name}: {recorded['error']}", int(recorded["code"]))
    if isinstance(recorded, dict):
        return SimpleNamespace(**recorded)
    if isinstance(recorded, list) and all(isinstance(one, dict) for one in recorded):
        return [SimpleNamespace(**one) for one in recorded]
    return recorded


__all__ = ["ReplayedError", "ReplayedNvml"]
