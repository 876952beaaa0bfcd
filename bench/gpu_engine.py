"""A real engine on a GPU that can be told to leak memory or to run one endless kernel.

    python bench/gpu_engine.py ORDERS MODEL --port PORT [what `transformers serve` takes]

Serves with transformers in this process. Files in the folder ORDERS give orders to the engine of
that port, and vanish once they are taken:

    leak-PORT     take so many bytes of device memory a minute, a piece each second, and keep them;
                  when none is left, `full-PORT` says when that was, and the engine serves on
    kernel-PORT   fill the GPU with one kernel for so many seconds

For ``bench/gpu_real.py``; needs torch and transformers, which nothing else here does.
"""

import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

torch: Any = import_module("torch")

THREADS: Final = 1024  # of a block; two of them fill a multiprocessor
LOOK_S: Final = 0.5
SPIN: Final = r"""
extern "C" __global__ void spin(int lasts_ms) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begun < 1000000ULL * lasts_ms);
}
"""


class Orders:
    """Looks for orders in a folder and carries them out, in a thread of its own."""

    def __init__(self, folder: Path, port: str) -> None:
        self._folder = folder
        self._port = port
        self._held: list[Any] = []  # what was leaked
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_S)
            if wanted := self._taken("leak"):
                self._leak(wanted / 60)
            if wanted := self._taken("kernel"):
                self._spin(wanted)

    def _taken(self, order: str) -> float:
        path = self._folder / f"{order}-{self._port}"
        if not path.exists():
            return 0.0
        wanted = float(path.read_text())
        path.unlink()
        return wanted

    def _leak(self, bytes_per_s: float) -> None:
        begun = time.monotonic()
        while True:
            due = int((time.monotonic() - begun) * bytes_per_s) - sum(map(len, self._held))
            try:
                piece = torch.ones(max(1, due), dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                (self._folder / f"full-{self._port}").write_text(str(time.time()))
                return
            self._held.append(piece)
            time.sleep(1.0)

    def _spin(self, lasts_s: float) -> None:
        torch.zeros(1, device="cuda")  # gives this thread the device's context
        kernel = torch.cuda._compile_kernel(SPIN, "spin")  # noqa: SLF001 there is no public way
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            kernel((2 * multiprocessors, 1, 1), (THREADS, 1, 1), (int(lasts_s * 1_000),))


def main() -> None:
    """Serve until the process is ended."""
    folder, model, *rest = sys.argv[1:]
    Orders(Path(folder), rest[rest.index("--port") + 1])
    transformers = import_module("transformers.cli.transformers")
    sys.argv = ["transformers", "serve", model, *rest]
    transformers.main()


if __name__ == "__main__":
    main()
