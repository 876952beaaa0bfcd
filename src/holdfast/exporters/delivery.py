"""A thread that sends bundles to a receiver, with a bounded queue in front of it.

The caller never waits: what finds no room is dropped and counted, the newest first, so that a
bundle under way stays whole. A bundle that cannot be sent is given up, because its library has
tried several times already and the next figures are newer; that is counted, and logged once until
a bundle gets through again: a collector that is away for a night must not fill a log.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import structlog

CLOSE_S: Final = 5.0  # what is under way may end; more is not worth a stop that hangs

ItemT = TypeVar("ItemT")

_log = structlog.get_logger("holdfast.exporters")


class MissingExtraError(Exception):
    """A library that an exporter needs is not installed."""

    def __init__(self, exporter: str, extra: str) -> None:
        super().__init__(f"{exporter} needs an extra: pip install 'holdfast[{extra}]'")


class Delivery(Generic[ItemT]):
    """Sends the items it is offered from a thread of its own."""

    def __init__(
        self, name: str, send: Callable[[list[ItemT]], None], *, room: int, bundle: int
    ) -> None:
        self.name = name
        self._send = send  # raises whatever it likes
        self._room = room
        self._bundle = bundle  # items that are sent at once, at most
        self._waiting: deque[ItemT] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failing = False
        self.sent = self.failed = self.dropped = 0
        # A daemon: a send that hangs must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name=f"export-{name}", daemon=True)
        self._thread.start()

    def offer(self, items: Iterable[ItemT]) -> None:
        """Queue items to be sent soon; returns at once, and drops those without room."""
        with self._changed:
            for item in items:
                if len(self._waiting) >= self._room or self._closing:
                    self.dropped += 1
                else:
                    self._waiting.append(item)
            self._changed.notify()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Send what is queued, within the given time, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def counters(self) -> dict[str, float]:
        """Counts of items sent, failed and dropped, for Prometheus."""
        outcomes = (("sent", self.sent), ("failed", self.failed), ("dropped", self.dropped))
        return {
            f'exports_total{{exporter="{self.name}",outcome="{outcome}"}}': count
            for outcome, count in outcomes
        }

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                count = min(len(self._waiting), self._bundle)
                bundle = [self._waiting.popleft() for _ in range(count)]
            self._deliver(bundle)

    def _deliver(self, bundle: list[ItemT]) -> None:
        try:
            self._send(bundle)
        except Exception as error:  # noqa: BLE001 - somebody else's library, in our own thread
            self.failed += len(bundle)
            if not self._failing:
                _log.warning(
                    "export fails", exporter=self.name, kind=type(error).__name__, why=_why(error)
                )
            self._failing = True
            return
        self.sent += len(bundle)
        if self._failing:
            _log.info("export works again", exporter=self.name, failed=self.failed)
        self._failing = False


def _why(error: Exception) -> str:
    """One short line; libraries put whole requests into their errors."""
    return " ".join(str(error).split())[:200]


__all__ = ["CLOSE_S", "Delivery", "MissingExtraError"]
