"""A fake of NVIDIA's management library, for tests: GPUs, slices, links and others' memory.

It answers to the names of ``pynvml`` that Holdfast asks for. A test changes what the host has by
its attributes, as another process or an administrator would.
"""

# ruff: noqa: N802, D102 the library's own names, which it documents itself

from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 1 << 30


@dataclass(slots=True)
class FakeGpu:
    """One GPU of a fake host."""

    uuid: str
    name: str = "NVIDIA Z9"
    memory_total: int = 80 * GIB
    memory_used: int = GIB // 2  # what the driver keeps
    processes: list[int] = field(default_factory=list)
    slices: list[int] = field(default_factory=list)  # GiB of each; none: it is not cut
    lost: bool = False  # fallen off the bus


class NvmlFakeError(Exception):
    """An error of the library, with its code as ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeGpuHost:
    """The module ``pynvml`` of a host with the given number of GPUs."""

    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self, count: int = 4, links: tuple[tuple[int, int], ...] = ()) -> None:
        self.gpus = [FakeGpu(f"GPU-{index}") for index in range(count)]
        self.links = {frozenset(pair) for pair in links}
        self.missing: str | None = None  # why the driver does not answer at all
        self.opened = 0
        self.reads = 0

    def _of(self, handle: tuple[int, int | None]) -> FakeGpu:
        return self.gpus[handle[0]]

    # --- the library's own names -----------------------------------------------------------------

    def nvmlInit(self) -> None:
        if self.missing is not None:
            raise RuntimeError(self.missing)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13_010

    def nvmlDeviceGetCount(self) -> int:
        self.reads += 1
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[int, int | None]:
        if self.gpus[index].lost:
            raise NvmlFakeError(15)
        return index, None

    def nvmlDeviceGetUUID(self, handle: tuple[int, int | None]) -> str:
        index, part = handle
        return self.gpus[index].uuid if part is None else f"MIG-{index}-{part}"

    def nvmlDeviceGetName(self, handle: tuple[int, int | None]) -> bytes:
        return self._of(handle).name.encode()

    def nvmlDeviceGetMemoryInfo(self, handle: tuple[int, int | None]) -> SimpleNamespace:
        gpu, part = self._of(handle), handle[1]
        if part is not None:
            return SimpleNamespace(total=gpu.slices[part] * GIB, used=0)
        return SimpleNamespace(total=gpu.memory_total, used=gpu.memory_used)

    def nvmlDeviceGetComputeRunningProcesses(
        self, handle: tuple[int, int | None]
    ) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self._of(handle).processes]

    def nvmlDeviceGetMigMode(self, handle: tuple[int, int | None]) -> list[int]:
        if not self._of(handle).slices:
            raise NvmlFakeError(self.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: tuple[int, int | None]) -> int:
        return 7 if self._of(handle).slices else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(
        self, handle: tuple[int, int | None], place: int
    ) -> tuple[int, int | None]:
        if place >= len(self._of(handle).slices):
            raise NvmlFakeError(6)
        return handle[0], place

    def nvmlDeviceGetP2PStatus(
        self, first: tuple[int, int | None], second: tuple[int, int | None], kind: int
    ) -> int:
        linked = frozenset((first[0], second[0])) in self.links
        return 0 if linked and kind == 2 else 5


__all__ = ["GIB", "FakeGpu", "FakeGpuHost", "NvmlFakeError"]
